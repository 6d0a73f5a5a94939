"""Reverse-mode differentiation of plain NumPy code, in which memory has a plan."""

from ebbtide import optimize as optimize
from ebbtide import rules as _rules  # noqa: F401 - to import the rules is to have them
from ebbtide.arrays.custom import primitive as primitive
from ebbtide.arrays.flat import ravel_tree as ravel_tree
from ebbtide.arrays.spaces import register_space as register_space
from ebbtide.arrays.vectors import axpy as axpy
from ebbtide.arrays.vectors import inner as inner
from ebbtide.budget import Budget as Budget
from ebbtide.errors import BudgetError as BudgetError
from ebbtide.errors import CotangentError as CotangentError
from ebbtide.errors import DeterminismError as DeterminismError
from ebbtide.errors import EbbtideError as EbbtideError
from ebbtide.errors import MutationError as MutationError
from ebbtide.errors import ProgramError as ProgramError
from ebbtide.errors import RankError as RankError
from ebbtide.errors import ReleasedValueError as ReleasedValueError
from ebbtide.errors import ResumeError as ResumeError
from ebbtide.errors import RuleMissingError as RuleMissingError
from ebbtide.errors import ScheduleError as ScheduleError
from ebbtide.errors import SolutionError as SolutionError
from ebbtide.errors import StaleViewError as StaleViewError
from ebbtide.errors import StorageError as StorageError
from ebbtide.errors import TraceError as TraceError
from ebbtide.loop.timeloop import timeloop as timeloop
from ebbtide.profiling.report import profile as profile
from ebbtide.program.constant import stop_gradient as stop_gradient
from ebbtide.program.jit import jit as jit
from ebbtide.program.tracing import trace as trace
from ebbtide.tape.checkpoint import checkpoint as checkpoint
from ebbtide.transforms.batching import vmap as vmap
from ebbtide.transforms.elementwise import deriv as deriv
from ebbtide.transforms.elementwise import elementwise_grad as elementwise_grad
from ebbtide.transforms.forward import jvp as jvp
from ebbtide.transforms.jacobian import hessian as hessian
from ebbtide.transforms.jacobian import jacobian as jacobian
from ebbtide.transforms.linearized import linearize as linearize
from ebbtide.transforms.products import gauss_newton_product as gauss_newton_product
from ebbtide.transforms.products import hvp as hvp
from ebbtide.transforms.pullback import vjp as vjp
from ebbtide.transforms.reverse import grad as grad
from ebbtide.transforms.reverse import value_and_grad as value_and_grad
from ebbtide.transforms.saving import print_saved as print_saved
from ebbtide.transforms.saving import saved_values as saved_values

__all__ = [
    "Budget",
    "BudgetError",
    "CotangentError",
    "DeterminismError",
    "EbbtideError",
    "MutationError",
    "ProgramError",
    "RankError",
    "ReleasedValueError",
    "ResumeError",
    "RuleMissingError",
    "ScheduleError",
    "SolutionError",
    "StaleViewError",
    "StorageError",
    "TraceError",
    "axpy",
    "checkpoint",
    "deriv",
    "elementwise_grad",
    "gauss_newton_product",
    "grad",
    "hessian",
    "hvp",
    "inner",
    "jacobian",
    "jit",
    "jvp",
    "linearize",
    "optimize",
    "primitive",
    "print_saved",
    "profile",
    "ravel_tree",
    "register_space",
    "saved_values",
    "stop_gradient",
    "timeloop",
    "trace",
    "value_and_grad",
    "vjp",
    "vmap",
]
