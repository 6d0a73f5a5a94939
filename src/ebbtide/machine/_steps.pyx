# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Steps of the machine: what they have in common.

An operand of a step is a tuple (buffer, byte offset, type, strides): the number of a buffer of the machine, where in it
the first element is, the letter of a type of NumPy, and how far apart the elements are along each axis of the step.
"""

cimport numpy as cnp
from libc.stdlib cimport free

import numpy as np

cdef extern from "loops.h" nogil:
    Loop ebbtide_cast(char, char)
    Loop ebbtide_move(int)
    Loop ebbtide_choice(int)
    Loop ebbtide_instead(const char *, char, Loop, void *)

cdef extern from "fused.h" nogil:
    Loop ebbtide_fused(const char *, char)

cnp.import_array()
cnp.import_ufunc()

# Those that are one operation of the processor for each element.
_PLAIN = frozenset([
    np.add, np.subtract, np.multiply, np.divide, np.negative, np.square, np.sqrt, np.reciprocal, np.absolute, np.sign,
    np.maximum, np.minimum, np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.matmul,
])
# Those that have other loops where all types are one, and those with answers.
_REPLACED = frozenset([np.maximum, np.minimum, np.sign, np.exp, np.negative])
_QUESTIONS = frozenset([np.isfinite, np.isnan, np.isinf, np.signbit])


cdef class Step:
    """
    A step of the machine: what it does is known before the addresses of its buffers are.

    Args:
        names: Of its operations, for messages.
        reads: What it reads, for each operand (buffer, first byte, byte after the last, alignment).
        writes: What it writes, likewise.
        uses_blas: Whether it calls BLAS, which may have threads of its own.
    """

    def __cinit__(self, *args, **kwargs):
        self.plan = NULL
        self.names = ()
        self.reads = []
        self.writes = []
        self.uses_blas = False

    def __dealloc__(self):
        free(self.plan)

    cdef int read(self, operand, tuple shape, Place *place, cnp.npy_intp *strides) except -1:
        self.reads.append(_placed(operand, shape, place, strides))
        return 0

    cdef int write(self, operand, tuple shape, Place *place, cnp.npy_intp *strides) except -1:
        self.writes.append(_placed(operand, shape, place, strides))
        return 0


cdef object _placed(operand, tuple shape, Place *place, cnp.npy_intp *strides):
    """Write down an operand, and return the bytes that it takes of its buffer."""
    buffer, offset, letter, steps = operand
    dtype = np.dtype(letter)
    if len(steps) != len(shape) or len(shape) > MOST_AXES:
        raise ValueError(f"An operand with strides {steps} in a step of shape {shape}: one for each, {MOST_AXES} at most.")
    if any([number % dtype.alignment for number in (offset, *steps)]):
        raise ValueError(f"An operand of type {letter!r} at byte {offset} with strides {steps} is not aligned.")
    place.buffer, place.offset = buffer, offset
    for axis, step in enumerate(steps):
        strides[axis] = step
    if 0 in shape:
        return buffer, offset, offset, dtype.alignment
    ends = [(size - 1) * step for size, step in zip(shape, steps, strict=True)]
    low, high = offset + sum([min(end, 0) for end in ends]), offset + sum([max(end, 0) for end in ends])
    return buffer, low, high + dtype.itemsize, dtype.alignment


cdef Loop numpys_loop_of(object ufunc, str types, void **data) except *:
    """Return NumPy's loop of a ufunc for types as in `ufunc.types`."""
    if types not in ufunc.types or ufunc.nout != 1:
        raise ValueError(f"np.{ufunc.__name__} has no loop {types!r} of elements to one result.")
    cdef int place = ufunc.types.index(types)
    cdef Loop loop = <Loop>(<cnp.ufunc>ufunc).functions[place]
    if loop == NULL:
        raise ValueError(f"np.{ufunc.__name__} has no loop {types!r} that the machine can call.")
    data[0] = (<void **>(<cnp.ufunc>ufunc).data)[place]
    return loop


cdef Loop loop_of(object ufunc, str types, void **data) except *:
    """Return the loop of a ufunc for types as in `ufunc.types`, or one of ours that is faster, or right everywhere."""
    cdef Loop loop = numpys_loop_of(ufunc, types, data), ours = NULL
    if ufunc in _QUESTIONS or (ufunc in _REPLACED and len(set(types) - set("->")) == 1):
        ours = ebbtide_instead(ufunc.__name__.encode(), ord(types[0]), loop, data[0])
    if ours == NULL:
        return loop
    data[0] = <void *>loop
    return ours


cdef Loop loop_named(str name, str types) except *:
    """Return a loop of ours: "cast" for types as "?->f", "move" for "f->f", "where" for "?ff->f", or a fused one."""
    cdef Loop loop = NULL
    letters = types.replace("->", "")
    if name == "cast" and len(letters) == 2:
        loop = ebbtide_cast(ord(letters[0]), ord(letters[1]))
    elif name == "move" and len(letters) == 2 and letters[0] == letters[1]:
        loop = ebbtide_move(np.dtype(letters[0]).itemsize)
    elif name == "where" and len(letters) == 4 and letters[0] == "?" and len(set(letters[1:])) == 1:
        loop = ebbtide_choice(np.dtype(letters[1]).itemsize)
    elif len(letters) == 4 and len(set(letters)) == 1:
        loop = ebbtide_fused(name.encode(), ord(letters[0]))
    if loop == NULL:
        raise ValueError(f"There is no loop {name!r} for {types!r}.")
    return loop


cdef bint is_extended(object operation, str types) except *:
    """Return whether a loop may set flags where only `fetestexcept` looks: by x87, or by `feraiseexcept`."""
    return not isinstance(operation, str) and (operation not in _PLAIN or "g" in types.lower())


def failures_of(int status):
    """Return the flags as what `report` takes: division by zero, overflow, underflow, invalid."""
    return (
        bool(status & FE_DIVBYZERO), bool(status & FE_OVERFLOW), bool(status & FE_UNDERFLOW), bool(status & FE_INVALID)
    )


def mask_of(failures):
    """Return the flags of which `failures_of` returns these."""
    flags = FE_DIVBYZERO, FE_OVERFLOW, FE_UNDERFLOW, FE_INVALID
    return sum([flag for flag, there in zip(flags, failures, strict=True) if there])
