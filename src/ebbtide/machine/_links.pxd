# cython: language_level=3
"""Elementwise operations that follow each other, written down and run piece by piece."""

cimport numpy as cnp

from ebbtide.machine._steps cimport Loop

# Two registers and what NumPy's loops need fit into the first cache of 32 KiB; with pieces of 4 and of 16 KiB
# chains of 14 operations take the same time to 10 %.
cdef enum:
    PIECE = 8192
    MOST_REGISTERS = 48
    MOST_SCRATCH = 16
    MOST_LENGTH = 256
    # Pieces that are done again because of errors; then operations are looked at one by one at once.
    PATIENCE = 4

# A `guarded` one may clear the flags of floating-point errors that others have left, an `extended` one may set those that
# take longer to be looked at.
cdef struct Instruction:
    Loop loop
    void *data
    int count
    bint guarded
    bint extended
    int registers[4]

# Where the result is `last`, only the last operation writes anything else than pieces.
cdef struct Links:
    Instruction *instructions
    int length, count, registers
    bint last
    bint extended
    cnp.npy_intp most
    int types[MOST_REGISTERS]
    cnp.npy_intp sizes[MOST_REGISTERS]
    bint written[MOST_REGISTERS]
    bint read[MOST_REGISTERS]


cdef int link(Links *links, int count, tuple instructions) except -1
cdef void run_links(
    Links *links, int axes, cnp.npy_intp *shape, char **row, cnp.npy_intp *strides, int *failed
) noexcept nogil
cdef cnp.npy_intp pitch_of(Links *links, int axes, cnp.npy_intp *shape, cnp.npy_intp *strides) noexcept nogil
