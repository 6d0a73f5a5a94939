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

from ebbtide.machine._steps import failures_of
from ebbtide.machine.failures import report
from ebbtide.machine.pools import one_blas_thread

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_attr_t:
        pass
    int pthread_attr_init(pthread_attr_t *)
    int pthread_attr_setstacksize(pthread_attr_t *, size_t)
    int pthread_attr_destroy(pthread_attr_t *)
    int pthread_create(pthread_t *, pthread_attr_t *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)

cnp.import_array()

# A chain takes 128 KiB; NumPy's sums and BLAS a few more.
cdef enum:
    STACK = 1 << 20
    MOST_BUFFERS = 1024
    MOST_THREADS = 256

MOST = MOST_BUFFERS

cdef struct Action:
    Run run
    void *plan
    int slot

cdef struct Buffer:
    cnp.npy_intp low, high, alignment
    bint written
    char letter

# What a thread works on: members from `begin` to `end`.
cdef struct Part:
    Action *actions
    int count, slots, buffers
    char **bases
    cnp.npy_intp *strides
    cnp.npy_intp begin, end
    int workspace, thread
    int *failed
    cnp.npy_intp first
    Outside outside
    bint stopped


cdef class Machine:
    """
    Steps, one after the other.

    Args:
        *steps: The steps.
        workspace: Number of the buffer of which each thread has its own; -1 for none.

    Memory:
        What its steps are, and a few kilobytes while it runs; no array of its own.
    """

    cdef Action *actions
    cdef Buffer *table
    cdef int count, slots, length, workspace
    cdef readonly tuple steps

    def __cinit__(self, *steps, int workspace=-1):
        cdef int k, place
        cdef Step step
        self.actions = NULL
        self.table = NULL
        self.steps, self.count, self.workspace, self.slots = steps, len(steps), workspace, 0
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
        with one_blas_thread():
            self.work(list(arrays), strides, members, max(1, min(threads, members, MOST_THREADS)))

    cdef int work(self, list arrays, strides, cnp.npy_intp members, int threads) except -1:
        cdef char *bases[MOST_BUFFERS]
        cdef cnp.npy_intp steps[MOST_BUFFERS]
        cdef int k, one
        cdef Part *parts
        cdef int *failed
        if len(arrays) != self.length:
            raise TypeError(f"A machine of {self.length} buffers was given {len(arrays)}.")
        for k in range(self.length):
            steps[k] = 0 if strides is None else strides[k]
            self.check(arrays[k], k, steps[k], threads if k == self.workspace else members)
            bases[k] = <char *>cnp.PyArray_DATA(arrays[k])
        parts = <Part *>calloc(threads, sizeof(Part))
        failed = <int *>calloc(threads * self.slots + 1, sizeof(int))
        try:
            if parts == NULL or failed == NULL:
                raise MemoryError
            for one in range(threads):
                parts[one].actions, parts[one].count, parts[one].slots = self.actions, self.count, self.slots
                parts[one].buffers, parts[one].bases, parts[one].strides = self.length, bases, steps
                parts[one].begin, parts[one].end = members * one // threads, members * (one + 1) // threads
                parts[one].workspace, parts[one].failed = self.workspace, failed + one * self.slots
                parts[one].first, parts[one].thread = -1, one
            with nogil:
                run_parts(parts, threads)
            self.judge(parts, threads, members)
        finally:
            free(parts)
            free(failed)
        return 0

    cdef int judge(self, Part *parts, int threads, cnp.npy_intp members) except -1:
        """Raise, or warn of, what went wrong."""
        cdef int k, one, status
        cdef Step step
        for one in range(threads):
            if parts[one].stopped:
                where = f", in member {parts[one].outside.member}" if members > 1 else ""
                raise IndexError(
                    f"index {parts[one].outside.index} is out of bounds for an axis with size "
                    f"{parts[one].outside.size}{where}"
                )
        firsts = [parts[one].first for one in range(threads) if parts[one].first >= 0]
        if not firsts:
            return 0
        where = f", first in member {min(firsts)}" if members > 1 else ""
        names = [name for step in self.steps for name in step.names]
        for k in range(self.slots):
            status = 0
            for one in range(threads):
                status |= parts[one].failed[k]
            if status:
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


cdef void run_parts(Part *parts, int threads) noexcept nogil:
    """Run each part in a thread of its own, the first one in this."""
    cdef pthread_t handles[MOST_THREADS]
    cdef bint started[MOST_THREADS]
    cdef pthread_attr_t attributes
    cdef int one
    if threads == 1:
        run_part(&parts[0])
        return
    pthread_attr_init(&attributes)
    pthread_attr_setstacksize(&attributes, STACK)
    for one in range(1, threads):
        started[one] = pthread_create(&handles[one], &attributes, run_part, &parts[one]) == 0
    pthread_attr_destroy(&attributes)
    run_part(&parts[0])
    for one in range(1, threads):
        if started[one]:
            pthread_join(handles[one], NULL)
        else:  # the system has no more threads
            run_part(&parts[one])


cdef void *run_part(void *given) noexcept nogil:
    """Run the steps for the members of a part."""
    cdef Part *part = <Part *>given
    cdef char *bases[MOST_BUFFERS]
    cdef cnp.npy_intp member
    cdef int k, number
    cdef Action *action
    cleared()
    for member in range(part.begin, part.end):
        for k in range(part.buffers):
            bases[k] = part.bases[k] + member * part.strides[k]
        if part.workspace >= 0:
            bases[part.workspace] = part.bases[part.workspace] + part.thread * part.strides[part.workspace]
        for number in range(part.count):
            action = &part.actions[number]
            if action.run(action.plan, bases, part.failed + action.slot, &part.outside):
                part.outside.step, part.outside.member, part.stopped = number, member, True
                return NULL
        if part.first < 0:
            for k in range(part.slots):
                if part.failed[k]:
                    part.first = member
                    break
    return NULL
