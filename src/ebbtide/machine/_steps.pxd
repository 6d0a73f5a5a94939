# cython: language_level=3
"""What a step of the machine is, and what tells what went wrong in one."""

cimport numpy as cnp

cdef extern from "<fenv.h>" nogil:
    int FE_DIVBYZERO, FE_INVALID, FE_OVERFLOW, FE_UNDERFLOW

cdef extern from "loops.h" nogil:
    int ebbtide_flags(bint)

cdef enum:
    MOST_AXES = 16

ctypedef void (*Loop)(char **, const cnp.npy_intp *, const cnp.npy_intp *, void *) noexcept nogil

# An index that was out of bounds, the first one of a run.
cdef struct Outside:
    int step
    cnp.npy_intp member, index, size

# Do a step for buffers at these addresses; `failed` has a place for each operation of it, where the flags of
# floating-point errors are added. Returns whether an index was out of bounds.
ctypedef bint (*Run)(void *plan, char **bases, int *failed, Outside *outside) noexcept nogil

cdef struct Place:
    int buffer
    cnp.npy_intp offset


cdef class Step:
    cdef Run run
    cdef void *plan
    cdef readonly tuple names
    cdef readonly list reads
    cdef readonly list writes
    cdef readonly bint uses_blas

    cdef int read(self, operand, tuple shape, Place *place, cnp.npy_intp *strides) except -1
    cdef int write(self, operand, tuple shape, Place *place, cnp.npy_intp *strides) except -1


cdef Loop numpys_loop_of(object ufunc, str types, void **data) except *
cdef Loop loop_of(object ufunc, str types, void **data) except *
cdef Loop loop_named(str name, str types) except *
cdef bint is_extended(object operation, str types) except *

cdef inline int flags(int old, bint extended) noexcept nogil:
    """Return flags with those of errors that are set now, which are cleared."""
    return old | ebbtide_flags(extended)


cdef inline int cleared() noexcept nogil:
    """Clear the flags of errors."""
    ebbtide_flags(True)
    return 0
