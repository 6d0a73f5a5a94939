# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Steps that somebody else has compiled: functions of the addresses of what they read and write."""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc

from ebbtide.machine._steps cimport FE_UNDERFLOW, Outside, Place, Run, Step, flags

cdef enum:
    MOST_PLACES = 64
    MOST_STEPS = 64

ctypedef void (*Function)(char **) noexcept nogil

cdef struct Again:
    Run run
    void *plan
    int slot

cdef struct Plan:
    Function function
    int places, steps, slots
    Place place[MOST_PLACES]
    Again again[MOST_STEPS]


cdef class Compiled(Step):
    """
    A step: a compiled function that does what other steps do one after the other.

    Flags of errors are looked at once. Where there are some, the other steps do it again, and find out which operation
    it was; an underflow, which most people ignore, is one of the operations together.

    Args:
        steps: The other steps, which overwrite nothing that any of them reads.
        places: Buffers and byte offsets: what the function takes the addresses of.
        address: Of the function.

    Raises:
        ValueError: There are too many steps or places.

    Memory:
        What the other steps take, if one of the operations fails.
    """

    cdef tuple steps

    def __init__(self, tuple steps, tuple places, uintptr_t address):
        cdef Plan *plan = <Plan *>calloc(1, sizeof(Plan))
        cdef Step step
        cdef int k
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_compiled
        if len(places) > MOST_PLACES or len(steps) > MOST_STEPS:
            raise ValueError(f"{len(places)} places and {len(steps)} steps: at most {MOST_PLACES} and {MOST_STEPS}.")
        self.steps = steps
        plan.function, plan.places, plan.steps = <Function>address, len(places), len(steps)
        for k, (buffer, offset) in enumerate(places):
            plan.place[k].buffer, plan.place[k].offset = buffer, offset
        names = []
        for k, step in enumerate(steps):
            plan.again[k].run, plan.again[k].plan, plan.again[k].slot = step.run, step.plan, len(names)
            names += step.names
            self.reads += step.reads
            self.writes += step.writes
        plan.slots = len(names)
        self.names = (*names, ", ".join(dict.fromkeys(names)))


cdef bint run_compiled(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Plan *plan = <Plan *>given
    cdef char *addresses[MOST_PLACES]
    cdef int k, found
    for k in range(plan.places):
        addresses[k] = bases[plan.place[k].buffer] + plan.place[k].offset
    plan.function(addresses)
    found = flags(0, False)
    if found & ~FE_UNDERFLOW:
        for k in range(plan.steps):
            plan.again[k].run(plan.again[k].plan, bases, failed + plan.again[k].slot, outside)
    else:
        failed[plan.slots] |= found
    return False
