# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Elementwise operations that follow each other, written down and run piece by piece.

A piece of the arrays goes through all operations while it is in the cache of the processor; values between them are
never longer than a piece. The operations are NumPy's own inner loops, so that the bits are NumPy's, called without
Python and without the interpreter lock. What NumPy does between loops, casts and choices, are loops of ours.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Malloc
from libc.stdint cimport uintptr_t

from ebbtide.machine._steps cimport MOST_AXES, flags, is_extended, loop_named, loop_of

import numpy as np

cnp.import_array()
cnp.import_ufunc()

# Loops of NumPy's that leave the flags of errors as they are but for their own, which are added, as do all of ours.
_KEEPING = frozenset([np.add, np.subtract, np.multiply, np.divide, np.square, np.sqrt, np.reciprocal])

MOST_OPERANDS = MOST_REGISTERS - MOST_SCRATCH
MOST_VALUES = MOST_SCRATCH
MOST_LINKS = MOST_LENGTH


cdef int link(Links *links, int count, tuple instructions) except -1:
    """Write down the operations of a chain."""
    cdef int k, j
    if count > MOST_OPERANDS:
        raise ValueError(f"A chain of {count} arrays: at most {MOST_OPERANDS}.")
    if len(instructions) > MOST_LINKS:
        raise ValueError(f"A chain of {len(instructions)} operations: at most {MOST_LINKS}.")
    links.length, links.count, links.registers = len(instructions), count, count
    links.instructions = <Instruction *>PyMem_Malloc(max(1, links.length) * sizeof(Instruction))
    if links.instructions == NULL:
        raise MemoryError
    for k in range(MOST_REGISTERS):
        links.written[k] = links.read[k] = False
        links.sizes[k] = 1
    size = 1
    for k, (operation, types, *registers) in enumerate(instructions):
        links.instructions[k].data = NULL
        if isinstance(operation, str):
            links.instructions[k].loop = loop_named(operation, types)
        elif operation.signature is not None:
            raise ValueError(f"np.{operation.__name__} has no loop {types!r} of elements to one result.")
        else:
            links.instructions[k].loop = loop_of(operation, types, &links.instructions[k].data)
        links.instructions[k].count, links.instructions[k].extended = len(registers), is_extended(operation, types)
        links.extended = links.extended or links.instructions[k].extended
        links.instructions[k].guarded = not isinstance(operation, str) and operation not in _KEEPING
        links.last = (registers[len(registers) - 1] < count) == (k == links.length - 1) and (links.last or k == 0)
        if len(registers) > 4:
            raise ValueError(f"{name_of(operation)} has {len(registers) - 1} operands: at most 3.")
        for j, (register, letter) in enumerate(zip(registers, types.replace("->", ""), strict=True)):
            if not 0 <= register < count + MOST_SCRATCH:
                raise ValueError(f"A chain has {count} arrays and {MOST_SCRATCH} registers more, not {register}.")
            links.instructions[k].registers[j] = register
            links.types[register] = np.dtype(letter).num
            links.sizes[register] = np.dtype(letter).itemsize
            links.registers = max(links.registers, register + 1)
            size = max(size, np.dtype(letter).itemsize)
        for j in registers[:len(registers) - 1]:
            links.read[j] = True
        links.written[register] = True
    links.most = PIECE // size
    return 0


def name_of(operation):
    """Return how a message names an operation."""
    return operation if isinstance(operation, str) else operation.__name__


cdef void run_links(
    Links *links, int axes, cnp.npy_intp *shape, char **row, cnp.npy_intp *strides, int *failed
) noexcept nogil:
    """Run a chain on arrays that begin at the addresses in `row`, which has room for all registers."""
    cdef char scratch[MOST_SCRATCH * PIECE + 64]
    cdef cnp.npy_intp step[MOST_REGISTERS]
    cdef cnp.npy_intp place[MOST_AXES]
    cdef cnp.npy_intp start, n, rows = 1, pitch = 0, length = shape[axes - 1]
    cdef int r, axis, slow = axes - 2, patience = PATIENCE, count = links.count
    cdef char *aligned = <char *>((<uintptr_t>scratch + 63) & ~<uintptr_t>63)
    for axis in range(axes):
        place[axis] = 0
        if shape[axis] == 0:
            return
    for r in range(count):
        step[r] = strides[r * MOST_AXES + axes - 1]
    for r in range(count, links.registers):
        row[r] = aligned + (r - count) * PIECE
        step[r] = links.sizes[r]
    pitch = pitch_of(links, axes, shape, strides)
    rows = 1 if pitch == 0 else (links.most - length) // pitch + 1
    while True:
        start = 0
        n = min(rows, shape[slow] - place[slow]) if rows > 1 else 1
        if n > 1:
            run_piece(links, row, step, strides + slow, 0, length, n, pitch, failed, &patience)
        while n == 1 and start < length:
            run_piece(links, row, step, NULL, start, min(links.most, length - start), 1, 0, failed, &patience)
            start += links.most
        # On to the next row: the slower axes count up as in an odometer.
        axis = slow
        while axis >= 0:
            place[axis] += n
            for r in range(count):
                row[r] += n * strides[r * MOST_AXES + axis]
            if place[axis] < shape[axis]:
                break
            for r in range(count):
                row[r] -= strides[r * MOST_AXES + axis] * shape[axis]
            place[axis] = 0
            axis -= 1
            n = 1
        if axis < 0:
            return


cdef cnp.npy_intp pitch_of(Links *links, int axes, cnp.npy_intp *shape, cnp.npy_intp *strides) noexcept nogil:
    """
    Return how many elements a row is from the next one in all arrays that are read, 0 where they differ.

    Then rows are one piece together with what is between them, which nobody needs: a few elements, as of a grid without
    its edge. Short pieces take long: each operation of each costs as much as 100 elements.
    """
    cdef cnp.npy_intp pitch = 0, length = shape[axes - 1], across
    cdef int r
    if axes < 2 or not links.last or 2 * length > links.most:
        return 0
    for r in range(links.count):
        across = strides[r * MOST_AXES + axes - 2]
        if not links.read[r] or (across == 0 and strides[r * MOST_AXES + axes - 1] == 0):
            continue
        if strides[r * MOST_AXES + axes - 1] != links.sizes[r] or across % links.sizes[r]:
            return 0
        if across < length * links.sizes[r] or (pitch and across != pitch * links.sizes[r]):
            return 0
        pitch = across // links.sizes[r]
    return pitch if 8 * (pitch - length) <= length else 0


cdef void run_piece(
    Links *links, char **row, cnp.npy_intp *step, cnp.npy_intp *across, cnp.npy_intp start, cnp.npy_intp length,
    cnp.npy_intp rows, cnp.npy_intp pitch, int *failed, int *patience
) noexcept nogil:
    """
    Run a chain on a piece, or on rows that are a pitch apart.

    Flags of errors are looked at after the piece. Only if there are some, it is done again, row by row without what is
    between rows, and looked at after each operation; up to the last one only pieces have been written.
    """
    cdef cnp.npy_intp line
    cdef int k, count = links.length - 1
    cdef bint good = links.last and patience[0] > 0
    if good:
        for k in range(count):
            if links.instructions[k].guarded and flags(0, links.extended):
                good = False
                break
            run_link(links, k, row, step, across, start, 0, 0, (rows - 1) * pitch + length)
        good = good and not flags(0, links.extended)
        patience[0] -= not good
    for line in range(rows):
        if good:
            run_link(links, count, row, step, across, start, line, line * pitch, length)
            continue
        for k in range(links.length):
            run_link(links, k, row, step, across, start, line, 0, length)
            failed[k] = flags(failed[k], links.instructions[k].extended)
    if good:
        failed[count] = flags(failed[count], links.instructions[count].extended)


cdef inline void run_link(
    Links *links, int k, char **row, cnp.npy_intp *step, cnp.npy_intp *across, cnp.npy_intp start, cnp.npy_intp line,
    cnp.npy_intp within, cnp.npy_intp n
) noexcept nogil:
    """Run an operation on elements of a row from one on; those of pieces begin at another one."""
    cdef Instruction *instruction = &links.instructions[k]
    cdef char *arguments[4]
    cdef cnp.npy_intp steps[4]
    cdef int j, r
    for j in range(instruction.count):
        r = instruction.registers[j]
        steps[j] = step[r]
        if r >= links.count:
            arguments[j] = row[r] + within * step[r]
        else:
            arguments[j] = row[r] + start * step[r]
            if line:
                arguments[j] += line * across[r * MOST_AXES]
    instruction.loop(arguments, &n, steps, instruction.data)
