"""Reverse-mode differentiation of plain NumPy code, in which memory has a plan."""

from ebbtide import rules as _rules  # noqa: F401 - to import the rules is to have them
from ebbtide.budget import Budget as Budget
from ebbtide.loop.timeloop import timeloop as timeloop
from ebbtide.transforms import grad as grad, jvp as jvp, stop_gradient as stop_gradient
from ebbtide.transforms import value_and_grad as value_and_grad, vjp as vjp

__all__ = ["Budget", "grad", "jvp", "stop_gradient", "timeloop", "value_and_grad", "vjp"]
