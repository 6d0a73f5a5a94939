"""
Vectors of PETSc, and the solvers of PETSc as operations on them; needs the extra `petsc`.

With this module imported a `petsc4py.PETSc.Vec` is a vector of a registered type: an argument, a state, a control. All
ranks of its communicator call the same operations, in derivatives too, as they do in PETSc.
"""

from importlib.util import find_spec

if find_spec("petsc4py") is None or find_spec("mpi4py") is None:
    raise ModuleNotFoundError('ebbtide.petsc needs petsc4py and mpi4py: pip install "ebbtide[petsc]"', name="petsc4py")

from ebbtide.petsc.linear import multiply as multiply
from ebbtide.petsc.linear import solve as solve
from ebbtide.petsc.nonlinear import solve_nonlinear as solve_nonlinear
from ebbtide.petsc.vectors import total as total

__all__ = ["multiply", "solve", "solve_nonlinear", "total"]
