# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Chains of elementwise operations: as a step of the machine, and on arrays.

A chain's operations are run by `_links`, on whole rows or, where they are short, on many rows at once.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from ebbtide.machine._axes cimport MOST_SPREAD, Rows, Spread, find_rows, joined, write_out
from ebbtide.machine._links cimport MOST_LENGTH, MOST_REGISTERS, PIECE, Instruction, Links, link, pitch_of, run_links
from ebbtide.machine._steps cimport MOST_AXES, Outside, Place, Step, cleared, flags

import numpy as np

from ebbtide.machine._links import name_of
from ebbtide.machine._steps import failures_of
from ebbtide.machine.failures import report
from ebbtide.machine.fusing import fused

cnp.import_array()

cdef struct Plan:
    Links links
    int axes
    bint by_rows
    Rows rows
    cnp.npy_intp shape[MOST_AXES]
    Place places[MOST_REGISTERS]
    cnp.npy_intp strides[MOST_REGISTERS * MOST_AXES]


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
        160 KiB of the stack of its thread while it runs; nothing between.
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
        if plan.links.length == plan.axes == 1 and plan.links.registers == plan.links.count:
            self.run = run_operation

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


cdef bint run_operation(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    """Run a chain of one operation along one axis, which needs no pieces: on one number it takes half of the time."""
    cdef Plan *plan = <Plan *>given
    cdef Instruction *only = plan.links.instructions
    cdef char *arguments[4]
    cdef cnp.npy_intp steps[4]
    cdef int j, r
    for j in range(only.count):
        r = only.registers[j]
        arguments[j] = bases[plan.places[r].buffer] + plan.places[r].offset
        steps[j] = plan.strides[r * MOST_AXES]
    only.loop(arguments, plan.shape, steps, only.data)
    failed[0] = flags(failed[0], only.extended)
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
