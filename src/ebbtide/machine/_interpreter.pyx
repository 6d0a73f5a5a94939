# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
The machine: steps over a table of buffers, run for one member or for many, without Python and without its lock.

All that a step does is known when it is made, up to the addresses of the buffers. Members lie one after the other in
each buffer, or share it; threads take each a part of them, and each its own workspace, so the bits are the same for any
number of threads.
"""

cimport numpy as cnp
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc

from ebbtide.machine._steps cimport Outside, Step, cleared
from ebbtide.machine._steps cimport Run

import numpy as np

from ebbtide.machine._steps import failures_of, mask_of
from ebbtide.machine.failures import heard, report
from ebbtide.machine.pools import one_blas_thread

cdef extern from "workers.h" nogil:
    enum: EBBTIDE_MOST_THREADS
    ctypedef struct ebbtide_workers:
        pass
    ebbtide_workers *ebbtide_workers_new()
    void ebbtide_workers_free(ebbtide_workers *)
    void ebbtide_work(ebbtide_workers *, int, void (*)(void *, int) noexcept nogil, void *)
    long ebbtide_take(long *, long, long, long *)

cnp.import_array()

# A thread takes members that follow each other, one of so many parts for each thread of those that are left: one that
# comes late leaves more to the others. Steps of 200 small nets take 0.99 of the time that they take in equal parts.
cdef enum:
    MOST_BUFFERS = 1024
    PARTS = 2
    LINE = 64

MOST = MOST_BUFFERS

cdef struct Action:
    Run run
    void *plan
    int slot

cdef struct Buffer:
    cnp.npy_intp low, high, alignment
    bint written
    char letter

# What a thread has found: in lines of the cache of its own.
cdef struct Part:
    int *failed
    cnp.npy_intp first
    Outside outside
    bint stopped
    char apart[LINE]

# What all threads work on: members from `next` on are nobody's yet.
cdef struct Job:
    Action *actions
    int count, slots, buffers, workspace
    char **bases
    cnp.npy_intp *strides
    cnp.npy_intp members
    long next, parts_left
    Part *parts


cdef class Machine:
    """
    Steps, one after the other.

    Args:
        *steps: The steps.
        workspace: Number of the buffer of which each thread has its own; -1 for none.

    Memory:
        What its steps are, and a few kilobytes while it runs; no array of its own. The threads of a run wait for the
        next one, with a MiB of addresses each, until the machine is released.
    """

    cdef Action *actions
    cdef Buffer *table
    cdef ebbtide_workers *workers
    cdef int count, slots, length, workspace
    cdef bint uses_blas
    cdef readonly tuple steps

    def __cinit__(self, *steps, int workspace=-1):
        cdef int k, place
        cdef Step step
        self.actions = NULL
        self.table = NULL
        self.workers = NULL
        self.steps, self.count, self.workspace, self.slots = steps, len(steps), workspace, 0
        self.uses_blas = any([step.uses_blas for step in steps])
        each = [(one, False) for step in steps for one in step.reads] + [(one, True) for step in steps for one in step.writes]
        self.length = 1 + max([one[0] for one, _ in each], default=-1)
        if self.length > MOST_BUFFERS:
            raise ValueError(f"A machine with {self.length} buffers: at most {MOST_BUFFERS}.")
        self.actions = <Action *>calloc(max(1, self.count), sizeof(Action))
        self.table = <Buffer *>calloc(max(1, self.length), sizeof(Buffer))
        if self.actions == NULL or self.table == NULL:
            raise MemoryError
        for k, step in enumerate(steps):
            self.actions[k].run, self.actions[k].plan, self.actions[k].slot = step.run, step.plan, self.slots
            self.slots += len(step.names)
        for k in range(self.length):
            self.table[k].alignment = 1
        for (place, low, high, alignment), written in each:
            if low < high:
                self.table[place].low = min(self.table[place].low, low)
                self.table[place].high = max(self.table[place].high, high)
            self.table[place].alignment = max(self.table[place].alignment, alignment)
            self.table[place].written = self.table[place].written or written

    def __dealloc__(self):
        ebbtide_workers_free(self.workers)
        free(self.actions)
        free(self.table)

    def __call__(self, *arrays):
        """
        Run the steps once.

        Args:
            *arrays: The buffers: the steps count bytes from the first element of each.
        """
        held = [aligned(array, self.table[k].alignment) for k, array in enumerate(arrays)]
        self.work(held, None, 1, 1)
        for array, one in zip(arrays, held, strict=True):
            if one is not array and type(array) is np.ndarray and array.flags.writeable and array.ndim:
                array[...] = one  # what lay where the machine cannot write

    def run(self, arrays, strides, cnp.npy_intp members, int threads=1):
        """
        Run the steps for each of some members.

        Args:
            arrays: The buffers: the steps count bytes from the first element of each.
            strides: For each buffer how many bytes a member is from the one before; 0 where all share it. Of the
                workspace how many bytes one thread's is from the other's.
            members: How many there are.
            threads: How many threads take part, this one included. BLAS has one thread in each of them meanwhile.

        Raises:
            ValueError: A buffer is too small, not aligned, cannot be written, or is written and shared by members.
            IndexError: An index was out of bounds; the members that came before it are done.
            FloatingPointError: As `np.errstate` says.
        """
        if members > 1:
            for k in range(self.length):
                if self.table[k].written and k != self.workspace and strides[k] == 0:
                    raise ValueError(f"Buffer {k} is written, and all members share it.")
        threads = max(1, min(threads, members, EBBTIDE_MOST_THREADS))
        if not self.uses_blas:
            # To limit its pools and to give them back takes 30 us.
            self.work(list(arrays), strides, members, threads)
            return
        with one_blas_thread():
            self.work(list(arrays), strides, members, threads)

    cdef int work(self, list arrays, strides, cnp.npy_intp members, int threads) except -1:
        cdef char *bases[MOST_BUFFERS]
        cdef cnp.npy_intp steps[MOST_BUFFERS]
        cdef Job job
        cdef int k, one, apart = self.slots + LINE // sizeof(int)
        cdef Part *parts
        cdef int *failed
        if len(arrays) != self.length:
            raise TypeError(f"A machine of {self.length} buffers was given {len(arrays)}.")
        for k in range(self.length):
            steps[k] = 0 if strides is None else strides[k]
            self.check(arrays[k], k, steps[k], threads if k == self.workspace else members)
            bases[k] = <char *>cnp.PyArray_DATA(arrays[k])
        parts = <Part *>calloc(threads, sizeof(Part))
        failed = <int *>calloc(threads * apart, sizeof(int))
        try:
            if threads > 1 and self.workers == NULL:
                self.workers = ebbtide_workers_new()
            if parts == NULL or failed == NULL or (threads > 1 and self.workers == NULL):
                raise MemoryError
            for one in range(threads):
                parts[one].failed, parts[one].first = failed + one * apart, -1
            job.actions, job.count, job.slots, job.buffers = self.actions, self.count, self.slots, self.length
            job.bases, job.strides, job.workspace, job.parts = bases, steps, self.workspace, parts
            job.members, job.next = members, 0
            job.parts_left = 1 if threads == 1 else threads * PARTS
            with nogil:
                ebbtide_work(self.workers, threads, run_part, &job)
            self.judge(parts, threads, members)
        finally:
            free(parts)
            free(failed)
        return 0

    cdef int judge(self, Part *parts, int threads, cnp.npy_intp members) except -1:
        """Raise, or warn of, what went wrong."""
        cdef int k, one, status, minded
        cdef Step step
        stopped = [(parts[one].outside.member, one) for one in range(threads) if parts[one].stopped]
        if stopped:
            member, one = min(stopped)
            where = f", in member {member}" if members > 1 else ""
            raise IndexError(
                f"index {parts[one].outside.index} is out of bounds for an axis with size {parts[one].outside.size}{where}"
            )
        firsts = [parts[one].first for one in range(threads) if parts[one].first >= 0]
        if not firsts:
            return 0
        minded = mask_of(heard())
        names = []
        for k in range(self.slots):
            status = 0
            for one in range(threads):
                status |= parts[one].failed[k]
            if status & minded:
                where = f", first in member {min(firsts)}" if members > 1 else ""
                names = names or [name for step in self.steps for name in step.names]
                report(names[k] + where, *failures_of(status))
        return 0

    cdef int check(self, array, int k, cnp.npy_intp stride, cnp.npy_intp members) except -1:
        """Check that a buffer has the bytes that the steps will take."""
        cdef cnp.npy_intp low = 0, high, axis, reach, first, last
        cdef Buffer *needed = &self.table[k]
        if not cnp.PyArray_Check(array):
            raise TypeError(f"Buffer {k} of a machine is an array, and not {array!r}.")
        high = cnp.PyArray_ITEMSIZE(array)
        for axis in range(cnp.PyArray_NDIM(array)):
            if cnp.PyArray_DIM(array, axis) == 0:
                high = 0
                low = 0
                break
            reach = (cnp.PyArray_DIM(array, axis) - 1) * cnp.PyArray_STRIDE(array, axis)
            if reach < 0:
                low += reach
            else:
                high += reach
        reach = (members - 1) * stride if members > 0 else 0
        first, last = needed.low + min(reach, 0), needed.high + max(reach, 0)
        if needed.low < needed.high and members > 0 and (first < low or last > high):
            raise ValueError(f"Buffer {k} has bytes {low} to {high}, and the steps take {first} to {last}.")
        if (<uintptr_t>cnp.PyArray_DATA(array)) % needed.alignment or stride % needed.alignment:
            raise ValueError(f"Buffer {k} is not aligned to {needed.alignment} bytes.")
        if needed.written and not cnp.PyArray_ISWRITEABLE(array):
            raise ValueError(f"Buffer {k} is written, and is read-only.")
        return 0


cdef object aligned(array, cnp.npy_intp alignment):
    """Return an array that lies as another one or number does, but at an address that loops can use."""
    if not cnp.PyArray_Check(array):
        return np.asarray(array)
    if (<uintptr_t>cnp.PyArray_DATA(array)) % alignment == 0:
        return array
    reach = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    below = -sum([min(one, 0) for one in reach])
    memory = np.empty(below + sum([max(one, 0) for one in reach]) + array.itemsize + 64, np.uint8)
    start = below + (-(memory.ctypes.data + below)) % 64
    copy = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    copy[...] = array
    return copy


cdef void run_part(void *given, int thread) noexcept nogil:
    """Run the steps for members as long as there are any."""
    cdef Job *job = <Job *>given
    cdef Part *part = &job.parts[thread]
    cdef char *bases[MOST_BUFFERS]
    cdef cnp.npy_intp member, end
    cdef long count
    cdef int k
    cleared()
    while True:
        member = ebbtide_take(&job.next, job.members, job.parts_left, &count)
        end = member + count
        if count == 0:
            return
        while member < end:
            for k in range(job.buffers):
                bases[k] = job.bases[k] + member * job.strides[k]
            if job.workspace >= 0:
                bases[job.workspace] = job.bases[job.workspace] + thread * job.strides[job.workspace]
            if run_member(job, part, bases, member):
                return
            member += 1


cdef bint run_member(Job *job, Part *part, char **bases, cnp.npy_intp member) noexcept nogil:
    """Run the steps for one member; return whether an index was out of bounds."""
    cdef Action *action
    cdef int k, number
    for number in range(job.count):
        action = &job.actions[number]
        if action.run(action.plan, bases, part.failed + action.slot, &part.outside):
            part.outside.step, part.outside.member, part.stopped = number, member, True
            return True
    if part.first < 0:
        for k in range(job.slots):
            if part.failed[k]:
                part.first = member
                break
    return False
