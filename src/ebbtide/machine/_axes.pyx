# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
The axes of chains: joined where they are one for all operands, and short rows done many at once.

Where an operand is broadcast along the rows of a result, a chain would run row by row: 50 ns for each operation on each
row of ten numbers, most of them for the calls. Written out, the operand lies as the result does, and the rows are one.
"""

cimport numpy as cnp
from libc.string cimport memcpy

from ebbtide.machine._steps cimport MOST_AXES, Loop, loop_named

import numpy as np

cdef extern from "rows.h" nogil:
    int ebbtide_repeat(int, const char *, long, char *, long, long)

cnp.import_array()

# Bytes of a row, and rows, from which on it pays to write operands out.
cdef enum:
    LONG_ROW = 2048
    FEW_ROWS = 4

# Types by size, of which elements are moved.
_LETTERS = {1: "b", 2: "h", 4: "i", 8: "l", 16: "D"}


cdef bint find_rows(
    Rows *rows, int axes, cnp.npy_intp *shape, cnp.npy_intp *strides, int operands, bint *written, cnp.npy_intp *sizes,
    cnp.npy_intp most,
) except -1:
    """
    Find out whether the rows of a chain are to be done many at once, and how.

    Args:
        rows: What is found.
        axes: How many there are, the rows along the last but one.
        shape: Of the chain.
        strides: Of its operands, `MOST_AXES` for each.
        operands: How many there are.
        written: Whether each of them is a result.
        sizes: Of their elements.
        most: How many elements a piece has.
    """
    cdef int k
    cdef cnp.npy_intp outer, inner
    cdef Spread *spread
    rows.spread = 0
    if axes < 2:
        return False
    rows.count, rows.length = shape[axes - 2], shape[axes - 1]
    if rows.count < FEW_ROWS or rows.length == 0 or rows.length * sizes[operands - 1] > LONG_ROW:
        return False
    rows.most = most // rows.length
    for k in range(operands):
        outer, inner = strides[k * MOST_AXES + axes - 2], strides[k * MOST_AXES + axes - 1]
        if outer == inner * rows.length:
            continue
        if written[k] or rows.spread == MOST_SPREAD or sizes[k] not in _LETTERS:
            return False
        spread = &rows.operands[rows.spread]
        letter = _LETTERS[sizes[k]]
        spread.register, spread.outer, spread.inner, spread.size = k, outer, inner, sizes[k]
        spread.move = loop_named("move", f"{letter}->{letter}")
        rows.spread += 1
    return rows.spread > 0 and rows.most > 1


cdef void write_out(Spread *operand, char *source, char *target, cnp.npy_intp rows, cnp.npy_intp length) noexcept nogil:
    """Write some rows of an operand to memory where they lie without gaps."""
    cdef char *arguments[2]
    cdef cnp.npy_intp steps[2]
    cdef cnp.npy_intp nbytes = length * operand.size, done, k
    steps[0], steps[1] = operand.inner, operand.size
    arguments[0], arguments[1] = source, target
    if operand.outer == 0:
        operand.move(arguments, &length, steps, NULL)
        done = 1
        while done < rows:
            k = min(done, rows - done)
            memcpy(target + done * nbytes, target, k * nbytes)
            done += k
        return
    if operand.inner == 0 and ebbtide_repeat(operand.size, source, operand.outer, target, rows, length):
        return
    for k in range(rows):
        operand.move(arguments, &length, steps, NULL)
        arguments[0] += operand.outer
        arguments[1] += nbytes


cdef int joined(int axes, cnp.npy_intp *shape, cnp.npy_intp *strides, int count) noexcept nogil:
    """Order axes as the last array lies, join those that are one for all arrays, and return how many are left."""
    cdef int k, other, r, fastest, left = 0
    cdef cnp.npy_intp size
    cdef bint together
    for k in range(axes):
        if shape[k] != 1:
            shape[left] = shape[k]
            for r in range(count):
                strides[r * MOST_AXES + left] = strides[r * MOST_AXES + k]
            left += 1
    for k in range(left - 1):
        fastest = k
        for other in range(k + 1, left):
            if size_along(strides, count - 1, other) > size_along(strides, count - 1, fastest):
                fastest = other
        if fastest != k:
            size = shape[k]
            shape[k] = shape[fastest]
            shape[fastest] = size
            for r in range(count):
                size = strides[r * MOST_AXES + k]
                strides[r * MOST_AXES + k] = strides[r * MOST_AXES + fastest]
                strides[r * MOST_AXES + fastest] = size
    k = left - 2
    while k >= 0:
        together = True
        for r in range(count):
            together = together and strides[r * MOST_AXES + k] == strides[r * MOST_AXES + k + 1] * shape[k + 1]
        if together:
            shape[k] *= shape[k + 1]
            for r in range(count):
                strides[r * MOST_AXES + k] = strides[r * MOST_AXES + k + 1]
            for other in range(k + 1, left - 1):
                shape[other] = shape[other + 1]
                for r in range(count):
                    strides[r * MOST_AXES + other] = strides[r * MOST_AXES + other + 1]
            left -= 1
        k -= 1
    if left == 0:
        shape[0] = 1
        for r in range(count):
            strides[r * MOST_AXES + 0] = 0
        left = 1
    return left


cdef cnp.npy_intp size_along(cnp.npy_intp *strides, int array, int axis) noexcept nogil:
    """Return how far apart the elements of an array are along an axis."""
    cdef cnp.npy_intp stride = strides[array * MOST_AXES + axis]
    return -stride if stride < 0 else stride
