# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Elements by arrays of indices along the first axes of an array: reading them, writing them, adding to them."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc
from libc.string cimport memmove

from ebbtide.machine._steps cimport MOST_AXES, Loop, Outside, Place, Step, flags, is_extended, loop_named, loop_of

import numpy as np

cdef extern from "ahead.h" nogil:
    void ebbtide_ask(const char *, long)

cnp.import_array()

# What is read at a place is asked for so many places before, and of a long one so many bytes: then the processor has
# seen that they follow each other. Steps of 200 small nets take 0.94 to 0.98 of the time by that.
cdef enum:
    MOST_INDICES = 4
    AHEAD = 2
    MOST_ASKED = 1024

cdef struct Plan:
    Loop loop
    void *data
    bint gathers, adds, extended
    int indices, places, inner
    # Of the arrays of indices, broadcast; of what one place has.
    cnp.npy_intp shape[MOST_AXES]
    cnp.npy_intp part[MOST_AXES]
    cnp.npy_intp sizes[MOST_INDICES]
    cnp.npy_intp jumps[MOST_INDICES]
    Place where[MOST_INDICES]
    cnp.npy_intp steps[MOST_INDICES * MOST_AXES]
    Place whole, parts
    cnp.npy_intp of_whole[MOST_AXES]
    cnp.npy_intp of_parts[MOST_AXES]
    # Bytes to ask for, 0 if they are few; and of what is read at a place, 0 if there is something between its elements.
    cnp.npy_intp asked, packed
    bint few


cdef class Indexed(Step):
    """
    A step: parts of an array at places.

    Args:
        kind: "gather" for parts = whole[places], "put" for whole[places] = parts, "add" for `np.add.at`.
        whole: Shape of the array.
        shape: Of the arrays of indices, broadcast.
        array: The array, an operand.
        parts: What is read or written, an operand with the axes of the indices and then what is left of those of the
            array.
        *indices: Operands of int64; negative ones count from the end.
    """

    def __init__(self, str kind, tuple whole, tuple shape, tuple array, tuple parts, *indices):
        cdef Plan *plan = <Plan *>calloc(1, sizeof(Plan))
        cdef cnp.npy_intp strides[MOST_AXES]
        cdef int k, axis
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_indexed
        self.names = ("add",)  # what can fail
        inner = whole[len(indices):]
        if not 0 < len(indices) <= MOST_INDICES or len(shape) + len(inner) > MOST_AXES or array[2] != parts[2]:
            raise ValueError(f"No {kind} of {parts} in {array} at {indices}.")
        plan.gathers, plan.adds = kind == "gather", kind == "add"
        if plan.adds:
            types = f"{array[2]}{array[2]}->{array[2]}"
            plan.loop, plan.extended = loop_of(np.add, types, &plan.data), is_extended(np.add, types)
        else:
            plan.loop = loop_named("move", f"{array[2]}->{array[2]}")
        plan.indices, plan.places, plan.inner = len(indices), len(shape), len(inner)
        if plan.gathers:
            self.read(array, whole, &plan.whole, plan.of_whole)
            self.write(parts, (*shape, *inner), &plan.parts, plan.of_parts)
        else:
            self.read(parts, (*shape, *inner), &plan.parts, plan.of_parts)
            self.write(array, whole, &plan.whole, plan.of_whole)
        for k, index in enumerate(indices):
            if index[2] not in "lq" or np.dtype(index[2]).itemsize != 8:
                raise ValueError(f"Indices of type {index[2]!r}, and not int64.")
            self.read(index, shape, &plan.where[k], &plan.steps[k * MOST_AXES])
            plan.sizes[k], plan.jumps[k] = whole[k], plan.of_whole[k]
        for axis, size in enumerate(shape):
            plan.shape[axis] = size
        # What is left, at least one axis; the last ones joined where they lie together.
        for axis, size in enumerate(inner):
            plan.part[axis] = size
            plan.of_whole[axis] = plan.of_whole[axis + len(indices)]
        for axis in range(len(inner)):
            strides[axis] = plan.of_parts[axis + len(shape)]
        if not inner:
            plan.inner, plan.part[0], plan.of_whole[0], strides[0] = 1, 1, 0, 0
        while plan.inner > 1:
            axis = plan.inner - 2
            size = plan.part[axis + 1]
            if plan.of_whole[axis] != plan.of_whole[axis + 1] * size or strides[axis] != strides[axis + 1] * size:
                break
            plan.part[axis] *= size
            plan.of_whole[axis], strides[axis] = plan.of_whole[axis + 1], strides[axis + 1]
            plan.inner -= 1
        for axis in range(plan.inner):
            plan.of_parts[len(shape) + axis] = strides[axis]
        size = np.dtype(array[2]).itemsize
        if plan.gathers and plan.inner == 1 and (plan.part[0] == 1 or plan.of_whole[0] == strides[0] == size):
            plan.packed = plan.part[0] * size
        together = plan.part[plan.inner - 1] * plan.of_whole[plan.inner - 1]
        if plan.gathers and together >= 64 and plan.indices == 1:
            plan.asked = min(<cnp.npy_intp>together, <cnp.npy_intp>MOST_ASKED)
        plan.few = plan.places == plan.indices == 1 and plan.packed in (4, 8) and plan.asked == 0


cdef bint run_indexed(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Plan *plan = <Plan *>given
    cdef char *whole = bases[plan.whole.buffer] + plan.whole.offset
    cdef char *part = bases[plan.parts.buffer] + plan.parts.offset
    cdef char *at
    cdef char *where[MOST_INDICES]
    cdef cnp.npy_intp place[MOST_AXES]
    cdef cnp.npy_intp index
    cdef int k, axis
    for k in range(plan.indices):
        where[k] = bases[plan.where[k].buffer] + plan.where[k].offset
    if plan.few:
        return gather_few(plan, whole, part, where[0], outside)
    for axis in range(plan.places):
        place[axis] = 0
        if plan.shape[axis] == 0:
            return False
    while True:
        at = whole
        for k in range(plan.indices):
            index = (<int64_t *>where[k])[0]
            if index < -plan.sizes[k] or index >= plan.sizes[k]:
                outside.index, outside.size = index, plan.sizes[k]
                return True
            at += (index + plan.sizes[k] if index < 0 else index) * plan.jumps[k]
        axis = plan.places - 1
        if plan.asked and place[axis] + AHEAD < plan.shape[axis]:
            index = (<int64_t *>(where[0] + AHEAD * plan.steps[axis]))[0]
            ebbtide_ask(whole + (index + plan.sizes[0] if index < 0 else index) * plan.jumps[0], plan.asked)
        if plan.packed:
            memmove(part, at, plan.packed)
        else:
            one_part(plan, at, part)
        while axis >= 0:
            place[axis] += 1
            part += plan.of_parts[axis]
            for k in range(plan.indices):
                where[k] += plan.steps[k * MOST_AXES + axis]
            if place[axis] < plan.shape[axis]:
                break
            part -= plan.of_parts[axis] * plan.shape[axis]
            for k in range(plan.indices):
                where[k] -= plan.steps[k * MOST_AXES + axis] * plan.shape[axis]
            place[axis] = 0
            axis -= 1
        if axis < 0:
            break
    failed[0] = flags(failed[0], plan.extended)
    return False


cdef bint gather_few(Plan *plan, char *whole, char *part, char *where, Outside *outside) noexcept nogil:
    """Read one number at each place, by one index: 128 of them take 0.1 us, and 0.6 by the way of all others."""
    cdef cnp.npy_intp k, index, count = plan.shape[0], size = plan.sizes[0], jump = plan.jumps[0]
    cdef cnp.npy_intp step = plan.steps[0], apart = plan.of_parts[0], packed = plan.packed
    for k in range(count):
        index = (<int64_t *>(where + k * step))[0]
        if index < -size or index >= size:
            outside.index, outside.size = index, size
            return True
        index = index + size if index < 0 else index
        if packed == 8:
            (<int64_t *>(part + k * apart))[0] = (<int64_t *>(whole + index * jump))[0]
        else:
            (<int32_t *>(part + k * apart))[0] = (<int32_t *>(whole + index * jump))[0]
    return False


cdef void one_part(Plan *plan, char *at, char *part) noexcept nogil:
    """Read, write or add what one place has."""
    cdef char *arguments[3]
    cdef cnp.npy_intp steps[3]
    cdef cnp.npy_intp place[MOST_AXES]
    cdef int axis, last = plan.inner - 1
    cdef cnp.npy_intp *of_parts = &plan.of_parts[plan.places]
    for axis in range(plan.inner):
        place[axis] = 0
        if plan.part[axis] == 0:
            return
    while True:
        if plan.gathers:
            arguments[0], arguments[1] = at, part
            steps[0], steps[1] = plan.of_whole[last], of_parts[last]
        elif plan.adds:
            arguments[0], arguments[1], arguments[2] = at, part, at
            steps[0], steps[1], steps[2] = plan.of_whole[last], of_parts[last], plan.of_whole[last]
        else:
            arguments[0], arguments[1] = part, at
            steps[0], steps[1] = of_parts[last], plan.of_whole[last]
        plan.loop(arguments, &plan.part[last], steps, plan.data)
        axis = last - 1
        while axis >= 0:
            place[axis] += 1
            at += plan.of_whole[axis]
            part += of_parts[axis]
            if place[axis] < plan.part[axis]:
                break
            at -= plan.of_whole[axis] * plan.part[axis]
            part -= of_parts[axis] * plan.part[axis]
            place[axis] = 0
            axis -= 1
        if axis < 0:
            return
