"""
Sparse matrices of which the products have derivatives, with respect to both operands.

`A @ x` with a traced x wants `A = csr_array(A)` from here; the entries of A may be traced too. No dense matrix is made:
the cotangent of the entries has their shape.
"""

from ebbtide.scipy.sparse.arrays import SparseArray as SparseArray
from ebbtide.scipy.sparse.arrays import coo_array as coo_array
from ebbtide.scipy.sparse.arrays import csc_array as csc_array
from ebbtide.scipy.sparse.arrays import csr_array as csr_array
from ebbtide.scipy.sparse.arrays import diags_array as diags_array

__all__ = ["SparseArray", "coo_array", "csc_array", "csr_array", "diags_array"]
