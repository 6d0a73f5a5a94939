# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reductions: sums and other ufuncs along axes, in NumPy's order, and so with its bits."""

cimport numpy as cnp
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from ebbtide.machine._steps cimport MOST_AXES, Loop, Outside, Place, Step, flags, is_extended, loop_named, numpys_loop_of

import numpy as np

cdef extern from "sums.h" nogil:
    ctypedef cnp.npy_intp (*ebbtide_each)(char *, cnp.npy_intp, const char *, cnp.npy_intp, cnp.npy_intp, cnp.npy_intp)
    ctypedef void (*ebbtide_rows)(char *, const char *, cnp.npy_intp, cnp.npy_intp, cnp.npy_intp)
    ebbtide_each ebbtide_each_of(const char *, char)
    ebbtide_rows ebbtide_rows_of(const char *, char)

cnp.import_array()

# How many elements are cast at once.
cdef enum:
    PIECE = 512

# `each` reduces rows without gaps; `rows` adds rows without gaps to a row. `inner`: how many axes these do at once.
cdef struct Plan:
    Loop loop, cast, move
    ebbtide_each each
    ebbtide_rows rows
    void *data
    int axes, inner
    cnp.npy_intp shape[MOST_AXES]
    cnp.npy_intp into[MOST_AXES]
    cnp.npy_intp of[MOST_AXES]
    Place result, operand
    size_t size
    bint started, extended
    char start[32]


cdef class Reduction(Step):
    """
    A step: a ufunc along axes.

    Args:
        shape: Of the operand, its axes in the order in which NumPy goes through them.
        operands: The operand and the result; that has strides of 0 along the axes that are reduced. An operand of
            another type is cast piece by piece: that is for sums that are exact in any order.
        ufunc: The ufunc.
        types: Of its loop.
        start: What the result starts with; None for the first elements.
    """

    def __init__(self, tuple shape, tuple operands, ufunc, str types, start=None):
        cdef Plan *plan = <Plan *>calloc(1, sizeof(Plan))
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_reduction
        self.names = ("reduce",)
        # None of ours: of zeros of both signs NumPy's takes the one that its order of elements comes to.
        plan.loop = numpys_loop_of(ufunc, types, &plan.data)
        plan.extended = is_extended(ufunc, types)
        operand, result = operands
        if types != f"{result[2]}{result[2]}->{result[2]}" or not shape or 0 in shape:
            raise ValueError(f"No reduction of {operand} of shape {shape} to {result} by a loop {types!r}.")
        self.read(operand, shape, &plan.operand, plan.of)
        self.write(result, shape, &plan.result, plan.into)
        plan.axes = len(shape)
        for k, size in enumerate(shape):
            plan.shape[k] = size
        dtype = np.dtype(result[2])
        if operand[2] != result[2] and np.dtype(operand[2]) != dtype:
            if start is None:
                raise ValueError(f"A reduction that casts {operand} starts with a number.")
            plan.cast = loop_named("cast", f"{operand[2]}->{result[2]}")
        plan.size, plan.started = dtype.itemsize, start is not None
        plan.move = loop_named("move", f"{result[2]}->{result[2]}")
        if plan.started:
            text = np.array(start, dtype).tobytes()
            memcpy(plan.start, <char *>text, plan.size)
        find_inner(plan, ufunc.__name__.encode(), ord(result[2]))


cdef void find_inner(Plan *plan, const char *name, char letter) noexcept:
    """Find a way of our own for the fastest axes."""
    cdef int last = plan.axes - 1
    cdef bint packed = plan.cast == NULL and plan.of[last] == <cnp.npy_intp>plan.size
    plan.inner = 1
    if packed and plan.into[last] == 0:
        plan.each = ebbtide_each_of(name, letter)
        if plan.each != NULL and last and plan.into[last - 1]:
            plan.inner = 2
    elif packed and plan.into[last] == <cnp.npy_intp>plan.size and last and plan.into[last - 1] == 0 and plan.started:
        plan.rows = ebbtide_rows_of(name, letter)
        if plan.rows != NULL:
            plan.inner = 2


cdef bint run_reduction(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Plan *plan = <Plan *>given
    cdef char *target = bases[plan.result.buffer] + plan.result.offset
    cdef char *source = bases[plan.operand.buffer] + plan.operand.offset
    cdef cnp.npy_intp place[MOST_AXES]
    cdef int axis, slow = plan.axes - plan.inner
    cdef int later = 0
    for axis in range(plan.axes):
        place[axis] = 0
    while True:
        reduce_inner(plan, target, source, later == 0)
        # `later`: how many of the slower axes along which is reduced are past their first element.
        axis = slow - 1
        while axis >= 0:
            place[axis] += 1
            target += plan.into[axis]
            source += plan.of[axis]
            if place[axis] < plan.shape[axis]:
                later += plan.into[axis] == 0 and place[axis] == 1
                break
            later -= plan.into[axis] == 0 and plan.shape[axis] > 1
            target -= plan.into[axis] * plan.shape[axis]
            source -= plan.of[axis] * plan.shape[axis]
            place[axis] = 0
            axis -= 1
        if axis < 0:
            break
    failed[0] = flags(failed[0], plan.extended)
    return False


cdef void reduce_inner(Plan *plan, char *target, char *source, bint first) noexcept nogil:
    """Reduce along the fastest axis or two; `first` if nothing was put into these elements of the result before."""
    cdef int last = plan.axes - 1
    cdef cnp.npy_intp count = plan.shape[last], one = 1
    cdef char *arguments[3]
    cdef cnp.npy_intp steps[3]
    if plan.each != NULL:
        reduce_each(plan, target, source, first)
        return
    if first:
        arguments[0], arguments[1] = &plan.start[0] if plan.started else source, target
        steps[0], steps[1] = 0 if plan.started else plan.of[last], plan.into[last]
        plan.move(arguments, &count if plan.into[last] else &one, steps, NULL)
        if not plan.started and plan.into[last]:
            return
        if not plan.started:
            count -= 1
            source += plan.of[last]
    if plan.rows != NULL:
        plan.rows(target, source, plan.shape[last - 1], plan.of[last - 1], count)
        return
    arguments[0], arguments[1], arguments[2] = target, source, target
    steps[0], steps[1], steps[2] = plan.into[last], plan.of[last], plan.into[last]
    if plan.cast != NULL:
        cast_and_reduce(plan, arguments, steps, count)
    elif count:
        plan.loop(arguments, &count, steps, plan.data)


cdef void reduce_each(Plan *plan, char *target, char *source, bint first) noexcept nogil:
    """Reduce rows, each to a number, by a loop of ours, and by NumPy's those that this cannot do."""
    cdef int last = plan.axes - 1
    cdef bint many = plan.inner == 2
    cdef cnp.npy_intp done = 0, rows = plan.shape[last - 1] if many else 1, count = plan.shape[last]
    cdef cnp.npy_intp apart = plan.into[last - 1] if many else 0, step = plan.of[last - 1] if many else 0
    cdef char *arguments[3]
    cdef cnp.npy_intp steps[3]
    if first:
        arguments[0], arguments[1] = &plan.start[0] if plan.started else source, target
        steps[0], steps[1] = 0 if plan.started else step, apart
        plan.move(arguments, &rows, steps, NULL)
        if not plan.started:
            count -= 1
            source += plan.of[last]
    while True:
        done += plan.each(target + done * apart, apart, source + done * step, step, rows - done, count)
        if done == rows:
            return
        arguments[0] = arguments[2] = target + done * apart
        arguments[1] = source + done * step
        steps[0], steps[1], steps[2] = 0, plan.of[last], 0
        if count:
            plan.loop(arguments, &count, steps, plan.data)
        done += 1


cdef void cast_and_reduce(Plan *plan, char **arguments, cnp.npy_intp *steps, cnp.npy_intp count) noexcept nogil:
    """Reduce elements of another type."""
    cdef char scratch[PIECE * 16]
    cdef char *pair[2]
    cdef char *here[3]
    cdef cnp.npy_intp strides[2]
    cdef cnp.npy_intp within[3]
    cdef cnp.npy_intp n
    pair[0], pair[1] = arguments[1], scratch
    here[0], here[1], here[2] = arguments[0], scratch, arguments[2]
    strides[0], strides[1] = steps[1], plan.size
    within[0], within[1], within[2] = steps[0], plan.size, steps[2]
    while count > 0:
        n = min(count, <cnp.npy_intp>PIECE)
        plan.cast(pair, &n, strides, NULL)
        plan.loop(here, &n, within, plan.data)
        pair[0] += n * steps[1]
        here[0] += n * steps[0]
        here[2] += n * steps[2]
        count -= n
