# cython: language_level=3
"""The axes of chains: joined where they are one, and short rows done many at once."""

cimport numpy as cnp

from ebbtide.machine._steps cimport Loop

cdef enum:
    MOST_SPREAD = 4

# An operand that does not lie as the result does: `outer` from row to row, `inner` within a row.
cdef struct Spread:
    int register
    Loop move
    cnp.npy_intp outer, inner, size

# How many rows there are, how long they are, and how many are done at once; what does not lie as they do.
cdef struct Rows:
    cnp.npy_intp count, length, most
    int spread
    Spread operands[MOST_SPREAD]


cdef bint find_rows(
    Rows *rows, int axes, cnp.npy_intp *shape, cnp.npy_intp *strides, int operands, bint *written, cnp.npy_intp *sizes,
    cnp.npy_intp most,
) except -1
cdef void write_out(Spread *operand, char *source, char *target, cnp.npy_intp rows, cnp.npy_intp length) noexcept nogil
cdef int joined(int axes, cnp.npy_intp *shape, cnp.npy_intp *strides, int count) noexcept nogil
