# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Chains of elementwise operations, done piece by piece.

A piece of the arrays goes through all operations of a chain while it is in the cache of the processor; values that only
the chain itself uses are never longer than a piece. The operations are NumPy's own inner loops, so that the bits are
NumPy's, called without Python and without the interpreter lock.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport uintptr_t

import numpy as np

from ebbtide.machine.failures import report

cdef extern from "<fenv.h>" nogil:
    int FE_ALL_EXCEPT, FE_DIVBYZERO, FE_INVALID, FE_OVERFLOW, FE_UNDERFLOW
    int feclearexcept(int)
    int fetestexcept(int)

cnp.import_array()
cnp.import_ufunc()

# Two registers and what NumPy's loops need fit into the first cache of 32 KiB; with pieces of 4 and of 16 KiB
# chains of 14 operations take the same time to 10 %.
cdef enum:
    PIECE = 8192
    MOST_REGISTERS = 48
    MOST_SCRATCH = 16
    MOST_AXES = 16
    MOST_LENGTH = 256

MOST_OPERANDS = MOST_REGISTERS - MOST_SCRATCH
MOST_VALUES = MOST_SCRATCH
MOST_LINKS = MOST_LENGTH

ctypedef void (*Loop)(char **, const cnp.npy_intp *, const cnp.npy_intp *, void *) noexcept nogil

cdef struct Instruction:
    Loop loop
    void *data
    int count
    int registers[4]


cdef class Chain:
    """
    Elementwise operations one after the other on arrays of one shape.

    Args:
        count: How many arrays it is called with: registers 0 to count - 1. The others are pieces of its own.
        *instructions: Tuples of a ufunc, the types of its loop as in `ufunc.types`, the registers of its operands, and
            that of its result.

    Raises:
        ValueError: A ufunc has no loop of these types, or there are too many registers.

    Memory:
        128 KiB of the stack of its thread while it runs; nothing between.
    """

    cdef Instruction *instructions
    cdef int length
    cdef int count
    cdef int registers
    cdef cnp.npy_intp most
    cdef int types[MOST_REGISTERS]
    cdef cnp.npy_intp sizes[MOST_REGISTERS]
    cdef bint written[MOST_REGISTERS]
    cdef readonly tuple source

    def __cinit__(self, int count, *instructions):
        cdef int k, j, place
        self.instructions = NULL
        if count > MOST_OPERANDS:
            raise ValueError(f"A chain of {count} arrays: at most {MOST_OPERANDS}.")
        if len(instructions) > MOST_LINKS:
            raise ValueError(f"A chain of {len(instructions)} operations: at most {MOST_LINKS}.")
        self.length, self.count, self.source = len(instructions), count, instructions
        self.instructions = <Instruction *>PyMem_Malloc(max(1, self.length) * sizeof(Instruction))
        if self.instructions == NULL:
            raise MemoryError
        self.registers = count
        for k in range(MOST_REGISTERS):
            self.written[k] = False
        size = 1
        for k, (ufunc, types, *registers) in enumerate(instructions):
            if types not in ufunc.types or ufunc.signature is not None or ufunc.nout != 1:
                raise ValueError(f"np.{ufunc.__name__} has no loop {types!r} of elements to one result.")
            place = ufunc.types.index(types)
            self.instructions[k].loop = <Loop>(<cnp.ufunc>ufunc).functions[place]
            self.instructions[k].data = (<void **>(<cnp.ufunc>ufunc).data)[place]
            self.instructions[k].count = len(registers)
            if self.instructions[k].loop == NULL:
                raise ValueError(f"np.{ufunc.__name__} has no loop {types!r} that a chain can call.")
            if len(registers) > 4:
                raise ValueError(f"np.{ufunc.__name__} has {len(registers) - 1} operands: at most 3.")
            for j, (register, letter) in enumerate(zip(registers, types.replace("->", ""), strict=True)):
                if not 0 <= register < count + MOST_SCRATCH:
                    raise ValueError(f"A chain has {count} arrays and {MOST_SCRATCH} registers more, not {register}.")
                self.instructions[k].registers[j] = register
                self.types[register] = np.dtype(letter).num
                self.sizes[register] = np.dtype(letter).itemsize
                self.registers = max(self.registers, register + 1)
                size = max(size, np.dtype(letter).itemsize)
            self.written[register] = True
        self.most = PIECE // size

    def __dealloc__(self):
        PyMem_Free(self.instructions)

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
        if len(arrays) != self.count:
            raise TypeError(f"A chain of {self.count} arrays was called with {len(arrays)}.")
        held = [fitting(array, self.types[k], self.written[k]) for k, array in enumerate(arrays)]
        last = held[self.count - 1]
        axes = cnp.PyArray_NDIM(last)
        if axes > MOST_AXES - 1:
            raise ValueError(f"A chain of arrays with {axes} axes: at most {MOST_AXES - 1}.")
        for k in range(axes):
            shape[k] = cnp.PyArray_DIM(last, k)
        for k in range(self.count):
            bases[k] = <char *>cnp.PyArray_DATA(held[k])
            spread(held[k], axes, shape, &strides[k * MOST_AXES], self.written[k])
        axes = joined(axes, shape, strides, self.count)
        with nogil:
            self.run(axes, shape, bases, strides, failed)
        for k in range(self.length):
            if failed[k]:
                report(
                    self.source[k][0].__name__, bool(failed[k] & FE_DIVBYZERO), bool(failed[k] & FE_OVERFLOW),
                    bool(failed[k] & FE_UNDERFLOW), bool(failed[k] & FE_INVALID),
                )

    cdef void run(
        self, int axes, cnp.npy_intp *shape, char **bases, cnp.npy_intp *strides, int *failed
    ) noexcept nogil:
        cdef char scratch[MOST_SCRATCH * PIECE + 64]
        cdef char *row[MOST_REGISTERS]
        cdef char *arguments[4]
        cdef cnp.npy_intp steps[4]
        cdef cnp.npy_intp step[MOST_REGISTERS]
        cdef cnp.npy_intp place[MOST_AXES]
        cdef cnp.npy_intp start, n, length = shape[axes - 1]
        cdef int k, j, r, axis
        cdef Instruction *instruction
        cdef char *aligned = <char *>((<uintptr_t>scratch + 63) & ~<uintptr_t>63)
        cdef int status
        for k in range(self.length):
            failed[k] = 0
        for axis in range(axes):
            place[axis] = 0
            if shape[axis] == 0:
                return
        feclearexcept(FE_ALL_EXCEPT)
        for r in range(self.count):
            row[r] = bases[r]
            step[r] = strides[r * MOST_AXES + axes - 1]
        for r in range(self.count, self.registers):
            row[r] = aligned + (r - self.count) * PIECE
            step[r] = self.sizes[r]
        while True:
            start = 0
            while start < length:
                n = min(self.most, length - start)
                for k in range(self.length):
                    instruction = &self.instructions[k]
                    for j in range(instruction.count):
                        r = instruction.registers[j]
                        arguments[j] = row[r] + start * step[r] if r < self.count else row[r]
                        steps[j] = step[r]
                    instruction.loop(arguments, &n, steps, instruction.data)
                    # After each of them: some of NumPy's loops, such as that of negative, clear what others left.
                    status = fetestexcept(FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID)
                    if status:
                        failed[k] |= status
                        feclearexcept(FE_ALL_EXCEPT)
                start += n
            # On to the next row: the slower axes count up as in an odometer.
            axis = axes - 2
            while axis >= 0:
                place[axis] += 1
                for r in range(self.count):
                    row[r] += strides[r * MOST_AXES + axis]
                if place[axis] < shape[axis]:
                    break
                for r in range(self.count):
                    row[r] -= strides[r * MOST_AXES + axis] * shape[axis]
                place[axis] = 0
                axis -= 1
            if axis < 0:
                return


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
