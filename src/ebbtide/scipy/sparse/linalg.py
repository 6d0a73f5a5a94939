"""
Linear systems with sparse matrices, and with matrices that are only known by their products.

The derivative of a solution is one solve with the transposed matrix in reverse mode, and one with the matrix in forward
mode; it is taken with respect to the right-hand side and to whatever the matrix is made from.
"""

from ebbtide.scipy.sparse.direct import SuperLU, factorized, splu, spsolve
from ebbtide.scipy.sparse.iterative import LinearOperator, bicgstab, cg, gmres

__all__ = ["LinearOperator", "SuperLU", "bicgstab", "cg", "factorized", "gmres", "splu", "spsolve"]
