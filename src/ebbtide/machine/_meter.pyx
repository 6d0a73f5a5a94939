# cython: language_level=3
"""
How many bytes of arrays a block allocates at a time, whatever else the process does.

`tracemalloc` sees all threads, and stays switched on for all of them. A handler of NumPy's memory belongs to one
context: arrays that other threads make meanwhile go by it. It has the memory from the handler that was there before,
which keeps small blocks and asks for large pages.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdlib cimport calloc, free
from libc.string cimport strcpy

cimport numpy as cnp

from ebbtide.machine._handler cimport Allocator, Handler, PyDataMem_GetHandler, PyDataMem_SetHandler

cnp.import_array()

# What an array needs of its memory, which outlives the block: one allocation, with its capsule.
cdef struct Metered:
    Handler handler
    PyObject *before
    Allocator source
    long long live
    long long peak
    long long counted
    long long beyond
    bint exact


cdef inline void add(Metered *metered, size_t nbytes) noexcept nogil:
    metered.live += nbytes
    if metered.live > metered.peak:
        metered.peak = metered.live
    if metered.live - metered.counted > metered.beyond:
        metered.beyond = metered.live - metered.counted


cdef void *take(void *context, size_t nbytes) noexcept nogil:
    cdef Metered *metered = <Metered *> context
    cdef void *found = metered.source.malloc(metered.source.ctx, nbytes)
    if found is not NULL:
        add(metered, nbytes)
    return found


cdef void *take_zeros(void *context, size_t number, size_t nbytes) noexcept nogil:
    cdef Metered *metered = <Metered *> context
    cdef void *found = metered.source.calloc(metered.source.ctx, number, nbytes)
    if found is not NULL:
        add(metered, number * nbytes)
    return found


cdef void *take_other(void *context, void *memory, size_t nbytes) noexcept nogil:
    # By how much an array grows or shrinks is not told.
    cdef Metered *metered = <Metered *> context
    add(metered, nbytes)
    metered.exact = False
    return metered.source.realloc(metered.source.ctx, memory, nbytes)


cdef void give_back(void *context, void *memory, size_t nbytes) noexcept nogil:
    cdef Metered *metered = <Metered *> context
    if memory is NULL:  # NumPy's sorts by order give back, by its size, a copy that they had no need of
        return
    metered.live -= nbytes
    metered.source.free(metered.source.ctx, memory, nbytes)


cdef void forget(object capsule) noexcept:
    cdef Metered *metered = <Metered *> PyCapsule_GetPointer(capsule, "mem_handler")
    Py_XDECREF(metered.before)
    free(metered)


cdef class Meter:
    """
    Measures a block, as a context manager.

    Attributes:
        peak: The most bytes of arrays that were allocated in the block and held at a time; an array that changed its
            size counts in all of its sizes.
        beyond: The most of them less those that were counted elsewhere at the time.
        exact: Whether none changed its size.
    """

    cdef object _capsule, _before
    cdef Metered *_metered
    cdef readonly long long peak
    cdef readonly long long beyond
    cdef readonly bint exact

    def __enter__(self):
        cdef Metered *metered = <Metered *> calloc(1, sizeof(Metered))
        if metered is NULL:
            raise MemoryError
        strcpy(metered.handler.name, "ebbtide_meter")
        metered.handler.version = 1
        metered.handler.allocator = Allocator(metered, take, take_zeros, take_other, give_back)
        metered.exact = True
        self._capsule = PyCapsule_New(metered, "mem_handler", forget)
        before = PyDataMem_GetHandler()
        metered.source = (<Handler *> PyCapsule_GetPointer(before, "mem_handler")).allocator
        Py_INCREF(before)
        metered.before = <PyObject *> before
        self._metered, self._before = metered, before
        PyDataMem_SetHandler(self._capsule)
        return self

    @property
    def live(self):
        """Bytes of arrays that were allocated in the block, and are there now."""
        return 0 if self._metered is NULL else self._metered.live

    def count(self, long long nbytes):
        """Say that so many bytes more are counted elsewhere; negative for less."""
        if self._metered is not NULL:
            self._metered.counted += nbytes

    def __exit__(self, kind, error, trace):
        PyDataMem_SetHandler(self._before)
        self.peak, self.beyond, self.exact = self._metered.peak, self._metered.beyond, self._metered.exact
        # Arrays that live on hold the capsule.
        self._metered = NULL
        self._capsule = self._before = None
