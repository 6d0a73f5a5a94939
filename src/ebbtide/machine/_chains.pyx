# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Chains of elementwise operations, done piece by piece.

A piece of the arrays goes through all operations of a chain while it is in the cache of the processor; values that only
the chain itself uses are never longer than a piece. The operations are NumPy's own inner loops, so that the bits are
NumPy's, called without Python and without the interpreter lock. What NumPy does between loops, casts and choices, are
loops of ours.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from ebbtide.machine._axes cimport MOST_SPREAD, Rows, Spread, find_rows, joined, write_out
from ebbtide.machine._steps cimport MOST_AXES, Loop, Outside, Place, Step, cleared, flags, is_extended, loop_named, loop_of

import numpy as np

from ebbtide.machine._steps import failures_of
from ebbtide.machine.failures import report
from ebbtide.machine.fusing import fused

cnp.import_array()
cnp.import_ufunc()

# Two registers and what NumPy's loops need fit into the first cache of 32 KiB; with pieces of 4 and of 16 KiB
# chains of 14 operations take the same time to 10 %.
cdef enum:
    PIECE = 8192
    MOST_REGISTERS = 48
    MOST_SCRATCH = 16
    MOST_LENGTH = 256
    # Pieces that are done again because of errors; then operations are looked at one by one at once.
    PATIENCE = 4

# Loops of NumPy's that leave the flags of errors as they are but for their own, which are added, as do all of ours.
_KEEPING = frozenset([np.add, np.subtract, np.multiply, np.divide, np.square, np.sqrt, np.reciprocal])

MOST_OPERANDS = MOST_REGISTERS - MOST_SCRATCH
MOST_VALUES = MOST_SCRATCH
MOST_LINKS = MOST_LENGTH

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

cdef struct Plan:
    Links links
    int axes
    bint by_rows
    Rows rows
    cnp.npy_intp shape[MOST_AXES]
    Place places[MOST_REGISTERS]
    cnp.npy_intp strides[MOST_REGISTERS * MOST_AXES]


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


cdef class Elementwise(Step):
    """
    A step: elementwise operations one after the other, on operands of one shape.

    Args:
        shape: The shape.
        operands: The operands, broadcast by strides of 0; the last one is the result.
        *instructions: Tuples of a ufunc, or the name of a loop of ours, the types of its loop as in `ufunc.types`, the
            registers of its operands, and that of its result. The first registers are the operands; the others are
            pieces.

    Raises:
        ValueError: There is no such loop, or there are too many registers.

    Memory:
        128 KiB of the stack of its thread while it runs; nothing between.
    """

    def __init__(self, tuple shape, tuple operands, *instructions):
        cdef Plan *plan = <Plan *>calloc(1, sizeof(Plan))
        cdef int k
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_elementwise
        instructions = fused(instructions, len(operands))
        link(&plan.links, len(operands), instructions)
        self.names = tuple([name_of(instruction[0]) for instruction in instructions])
        for k, operand in enumerate(operands):
            if plan.links.written[k]:
                self.write(operand, shape, &plan.places[k], &plan.strides[k * MOST_AXES])
            else:
                self.read(operand, shape, &plan.places[k], &plan.strides[k * MOST_AXES])
            if np.dtype(operand[2]).itemsize != plan.links.sizes[k]:
                raise ValueError(f"An operand of type {operand[2]!r} is of another size than its loop takes.")
        for k, size in enumerate(shape):
            plan.shape[k] = size
        plan.axes = joined(len(shape), plan.shape, plan.strides, len(operands))
        plan.by_rows = pitch_of(&plan.links, plan.axes, plan.shape, plan.strides) == 0 and find_rows(
            &plan.rows, plan.axes, plan.shape, plan.strides, len(operands), plan.links.written, plan.links.sizes,
            plan.links.most,
        )

    def __dealloc__(self):
        if self.plan != NULL:
            PyMem_Free((<Plan *>self.plan).links.instructions)


cdef bint run_elementwise(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Plan *plan = <Plan *>given
    cdef char *row[MOST_REGISTERS]
    cdef int k
    for k in range(plan.links.count):
        row[k] = bases[plan.places[k].buffer] + plan.places[k].offset
    if plan.by_rows:
        run_rows(plan, row, failed)
    else:
        run_links(&plan.links, plan.axes, plan.shape, row, plan.strides, failed)
    return False


cdef void run_rows(Plan *plan, char **first, int *failed) noexcept nogil:
    """Run a chain on many short rows at once, with the operands that do not lie as they do written out."""
    cdef char spread[MOST_SPREAD * PIECE + 64]
    cdef char *aligned = <char *>((<uintptr_t>spread + 63) & ~<uintptr_t>63)
    cdef char *row[MOST_REGISTERS]
    cdef cnp.npy_intp strides[MOST_REGISTERS * MOST_AXES]
    cdef cnp.npy_intp place[MOST_AXES]
    cdef cnp.npy_intp start, n, length
    cdef int k, r, axis, last = plan.axes - 2
    cdef Spread *operand
    for axis in range(last):
        place[axis] = 0
        if plan.shape[axis] == 0:
            return
    for r in range(plan.links.count):
        strides[r * MOST_AXES] = plan.strides[r * MOST_AXES + last + 1]
    for k in range(plan.rows.spread):
        strides[plan.rows.operands[k].register * MOST_AXES] = plan.rows.operands[k].size
    while True:
        start = 0
        while start < plan.rows.count:
            n = min(plan.rows.most, plan.rows.count - start)
            for r in range(plan.links.count):
                row[r] = first[r] + start * plan.strides[r * MOST_AXES + last]
            for k in range(plan.rows.spread):
                operand = &plan.rows.operands[k]
                if start == 0 or operand.outer:
                    write_out(operand, row[operand.register], aligned + k * PIECE, n, plan.rows.length)
                row[operand.register] = aligned + k * PIECE
            length = n * plan.rows.length
            run_links(&plan.links, 1, &length, row, strides, failed)
            start += n
        axis = last - 1
        while axis >= 0:
            place[axis] += 1
            for r in range(plan.links.count):
                first[r] += plan.strides[r * MOST_AXES + axis]
            if place[axis] < plan.shape[axis]:
                break
            for r in range(plan.links.count):
                first[r] -= plan.strides[r * MOST_AXES + axis] * plan.shape[axis]
            place[axis] = 0
            axis -= 1
        if axis < 0:
            return


cdef class Chain:
    """
    Elementwise operations one after the other on arrays of one shape.

    Args:
        count: How many arrays it is called with: registers 0 to count - 1. The others are pieces of its own.
        *instructions: As of `Elementwise`.

    Raises:
        ValueError: A ufunc has no loop of these types, or there are too many registers.

    Memory:
        128 KiB of the stack of its thread while it runs; nothing between.
    """

    cdef Links links
    cdef readonly tuple source

    def __cinit__(self, int count, *instructions):
        self.source = fused(instructions, count)
        self.links.instructions = NULL
        link(&self.links, count, self.source)

    def __dealloc__(self):
        PyMem_Free(self.links.instructions)

    def __call__(self, *arrays):
        """
        Run the chain.

        Args:
            *arrays: The operands, arrays that broadcast to the shape of the last one, or numbers; the last one is a
                result.
        """
        cdef char *bases[MOST_REGISTERS]
        cdef cnp.npy_intp strides[MOST_REGISTERS * MOST_AXES]
        cdef cnp.npy_intp shape[MOST_AXES]
        cdef int k, axes
        cdef int failed[MOST_LENGTH]
        if len(arrays) != self.links.count:
            raise TypeError(f"A chain of {self.links.count} arrays was called with {len(arrays)}.")
        held = [fitting(array, self.links.types[k], self.links.written[k]) for k, array in enumerate(arrays)]
        last = held[self.links.count - 1]
        axes = cnp.PyArray_NDIM(last)
        if axes > MOST_AXES - 1:
            raise ValueError(f"A chain of arrays with {axes} axes: at most {MOST_AXES - 1}.")
        for k in range(axes):
            shape[k] = cnp.PyArray_DIM(last, k)
        for k in range(self.links.count):
            bases[k] = <char *>cnp.PyArray_DATA(held[k])
            spread(held[k], axes, shape, &strides[k * MOST_AXES], self.links.written[k])
        axes = joined(axes, shape, strides, self.links.count)
        for k in range(self.links.length):
            failed[k] = 0
        with nogil:
            cleared()
            run_links(&self.links, axes, shape, bases, strides, failed)
        for k in range(self.links.length):
            if failed[k]:
                report(name_of(self.source[k][0]), *failures_of(failed[k]))


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


cdef object fitting(object array, int kind, bint written):
    """Return an operand as an array that NumPy's loops can read as it lies, and a result as it is."""
    cdef bint same = cnp.PyArray_Check(array) and cnp.PyArray_TYPE(array) == kind
    if written:
        if not same or not cnp.PyArray_ISBEHAVED(array):
            raise TypeError("A result of a chain is an array that can be written, of the type of its loop.")
        return array
    if not same:  # a number of Python, or a scalar of NumPy
        return np.asarray(array, cnp.PyArray_DescrFromType(kind))
    if not cnp.PyArray_ISBEHAVED_RO(array):
        return np.array(array, cnp.PyArray_DescrFromType(kind))
    return array


cdef int spread(object array, int axes, cnp.npy_intp *shape, cnp.npy_intp *strides, bint written) except -1:
    """Write the strides of an array that is broadcast to a shape."""
    cdef int more = axes - cnp.PyArray_NDIM(array), k
    cdef cnp.npy_intp size
    for k in range(axes):
        strides[k] = 0
        size = cnp.PyArray_DIM(array, k - more) if k >= more else 1
        if size == shape[k]:
            strides[k] = cnp.PyArray_STRIDE(array, k - more) if k >= more else 0
        elif size != 1 or written:
            more = -1
            break
    if more < 0:
        given = tuple([shape[k] for k in range(axes)])
        raise ValueError(f"An array of shape {array.shape} does not broadcast to the result of a chain, {given}.")
    return 0
