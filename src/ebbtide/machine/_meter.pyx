# cython: language_level=3
"""
How many bytes of arrays a block allocates at a time, whatever else the process does.

`tracemalloc` sees all threads, and stays switched on for all of them. A handler of NumPy's memory belongs to one
context: arrays that other threads make meanwhile go by it.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport strcpy

cimport numpy as cnp

cdef extern from "numpy/ndarraytypes.h" nogil:
    ctypedef struct Allocator "PyDataMemAllocator":
        void *ctx
        void *(*malloc)(void *, size_t) noexcept
        void *(*calloc)(void *, size_t, size_t) noexcept
        void *(*realloc)(void *, void *, size_t) noexcept
        void (*free)(void *, void *, size_t) noexcept

    ctypedef struct Handler "PyDataMem_Handler":
        char name[127]
        uint8_t version
        Allocator allocator

cdef extern from "numpy/arrayobject.h":
    object PyDataMem_SetHandler(object)

cnp.import_array()

cdef struct Count:
    long long live
    long long peak
    bint known

# What an array needs of its memory, which outlives the block: one allocation, with its capsule.
cdef struct Metered:
    Handler handler
    Count count


cdef inline void add(Count *count, size_t nbytes) noexcept nogil:
    count.live += nbytes
    if count.live > count.peak:
        count.peak = count.live


cdef void *take(void *count, size_t nbytes) noexcept nogil:
    cdef void *found = malloc(nbytes)
    if found is not NULL:
        add(<Count *> count, nbytes)
    return found


cdef void *take_zeros(void *count, size_t number, size_t nbytes) noexcept nogil:
    cdef void *found = calloc(number, nbytes)
    if found is not NULL:
        add(<Count *> count, number * nbytes)
    return found


cdef void *take_other(void *count, void *memory, size_t nbytes) noexcept nogil:
    # By how much an array grows or shrinks is not told.
    (<Count *> count).known = False
    return realloc(memory, nbytes)


cdef void give_back(void *count, void *memory, size_t nbytes) noexcept nogil:
    (<Count *> count).live -= nbytes
    free(memory)


cdef void forget(object capsule) noexcept:
    free(PyCapsule_GetPointer(capsule, "mem_handler"))


cdef class Meter:
    """
    Measures a block, as a context manager.

    Attributes:
        peak: The most bytes of arrays that were allocated in the block and held at a time; 0 if that is not known.
    """

    cdef object _capsule, _before
    cdef Metered *_metered
    cdef readonly long long peak

    def __enter__(self):
        cdef Metered *metered = <Metered *> calloc(1, sizeof(Metered))
        if metered is NULL:
            raise MemoryError
        strcpy(metered.handler.name, "ebbtide_meter")
        metered.handler.version = 1
        metered.handler.allocator = Allocator(&metered.count, take, take_zeros, take_other, give_back)
        metered.count.known = True
        self._metered = metered
        self._capsule = PyCapsule_New(metered, "mem_handler", forget)
        self._before = PyDataMem_SetHandler(self._capsule)
        return self

    def __exit__(self, kind, error, trace):
        PyDataMem_SetHandler(self._before)
        self.peak = self._metered.count.peak if self._metered.count.known else 0
        # Arrays that live on hold the capsule.
        self._metered = NULL
        self._capsule = self._before = None
