# cython: language_level=3
"""
Memory that arrays of a block give up, kept for those that come after them.

The C library gives the memory of large arrays back to the system when they die, and the next ones wait for it page by
page, 0.4 to 2 ms for each MiB. Time steps make arrays of the same sizes again and again.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset, strcmp, strcpy

cimport numpy as cnp

from ebbtide.machine._handler cimport Allocator, Handler, PyDataMem_GetHandler, PyDataMem_SetHandler

cnp.import_array()

cdef enum:
    MOST = 256  # blocks that are kept; to look for one of a size takes less than the first write into a page
    LEAST = 1 << 15  # bytes of a block that is kept
    HEADER = 16  # bytes before those of an array, as much as memory is aligned by: how many, and when they were free
    SLACK = 4096  # a block serves arrays that are smaller by no more than so many bytes
    IDLE = 2  # a block goes that was free for so many steps

# What an array needs of its memory, which outlives the block: one allocation of 240 bytes, with its capsule.
cdef struct Kept:
    Handler handler
    PyObject *before
    Allocator source
    size_t live  # bytes of arrays
    size_t peak  # the most so far
    size_t free_bytes  # of the blocks that are kept
    size_t steps  # that were run so far
    bint stepped  # whether somebody counts them
    int count
    void **blocks  # the oldest first; NULL before there is one, and after the block
    bint closed


cdef inline size_t size_of(void *block) noexcept nogil:
    return (<size_t *> block)[0]


cdef inline size_t *freed_at(void *block) noexcept nogil:
    """Where a block says in which step it was free."""
    return &(<size_t *> block)[1]


cdef void release(Kept *kept, int place) noexcept nogil:
    cdef void *block = kept.blocks[place]
    kept.count -= 1
    memmove(&kept.blocks[place], &kept.blocks[place + 1], (kept.count - place) * sizeof(void *))
    kept.free_bytes -= size_of(block)
    kept.source.free(kept.source.ctx, block, size_of(block))


cdef void *find(Kept *kept, size_t nbytes) noexcept nogil:
    """Return a block that is kept, the last one of its size, as it may be in the cache; or NULL."""
    cdef int place = kept.count
    cdef size_t most = nbytes + SLACK
    cdef void *block
    if nbytes < LEAST:
        return NULL
    while place > 0:
        place -= 1
        block = kept.blocks[place]
        if nbytes <= size_of(block) <= most:
            kept.count -= 1
            memmove(&kept.blocks[place], &kept.blocks[place + 1], (kept.count - place) * sizeof(void *))
            kept.free_bytes -= size_of(block)
            return block
    return NULL


cdef void *started(Kept *kept, void *block, size_t nbytes) noexcept nogil:
    """Count a block, of so many bytes with its header, and return what an array has of it."""
    if block is NULL:
        return NULL
    (<size_t *> block)[0] = nbytes
    kept.live += nbytes
    if kept.live > kept.peak:
        kept.peak = kept.live
    return <char *> block + HEADER


cdef void make_room(Kept *kept, size_t nbytes) noexcept nogil:
    """Let the oldest blocks go until no more is held than arrays have held at a time, or are going to."""
    while kept.count and kept.live + kept.free_bytes + nbytes > kept.peak:
        release(kept, 0)


cdef void *take(void *context, size_t nbytes) noexcept nogil:
    cdef Kept *kept = <Kept *> context
    cdef void *block
    nbytes += HEADER
    block = find(kept, nbytes)
    if block is not NULL:
        return started(kept, block, size_of(block))
    make_room(kept, nbytes)
    return started(kept, kept.source.malloc(kept.source.ctx, nbytes), nbytes)


cdef void *take_zeros(void *context, size_t number, size_t each) noexcept nogil:
    cdef Kept *kept = <Kept *> context
    cdef size_t nbytes = number * each + HEADER
    cdef void *block
    if each and number > (<size_t> -1 - HEADER) // each:
        return NULL
    block = find(kept, nbytes)
    if block is not NULL:
        memset(<char *> block + HEADER, 0, nbytes - HEADER)
        return started(kept, block, size_of(block))
    make_room(kept, nbytes)
    return started(kept, kept.source.calloc(kept.source.ctx, 1, nbytes), nbytes)


cdef void give_back(void *context, void *memory, size_t _) noexcept nogil:
    cdef Kept *kept = <Kept *> context
    cdef void *block
    cdef size_t nbytes
    if memory is NULL:
        return
    block = <char *> memory - HEADER
    nbytes = size_of(block)
    kept.live -= nbytes
    if kept.blocks is NULL and not kept.closed and nbytes >= LEAST:
        kept.blocks = <void **> calloc(MOST, sizeof(void *))
    if kept.blocks is NULL or nbytes < LEAST:
        kept.source.free(kept.source.ctx, block, nbytes)
        return
    if kept.count == MOST:
        release(kept, 0)
    freed_at(block)[0] = kept.steps
    kept.blocks[kept.count] = block
    kept.count += 1
    kept.free_bytes += nbytes


cdef void *take_other(void *context, void *memory, size_t nbytes) noexcept nogil:
    cdef Kept *kept = <Kept *> context
    cdef void *block = NULL if memory is NULL else <char *> memory - HEADER
    cdef size_t before = 0 if block is NULL else size_of(block)
    cdef void *found
    kept.live -= before
    make_room(kept, nbytes + HEADER)
    found = kept.source.realloc(kept.source.ctx, block, nbytes + HEADER)
    if found is NULL:
        kept.live += before
    return started(kept, found, nbytes + HEADER)


cdef void finish(Kept *kept) noexcept:
    """Keep nothing from here on."""
    kept.closed = True
    while kept.count:
        release(kept, kept.count - 1)
    free(kept.blocks)
    kept.blocks = NULL


cdef void forget(object capsule) noexcept:
    cdef Kept *kept = <Kept *> PyCapsule_GetPointer(capsule, "mem_handler")
    finish(kept)
    Py_XDECREF(kept.before)
    free(kept)


cdef object found_now():
    """Return the handler of this context; the one before, where the block is over that it is of."""
    handler = PyDataMem_GetHandler()
    cdef Kept *kept
    while True:
        kept = <Kept *> PyCapsule_GetPointer(handler, "mem_handler")
        if strcmp(kept.handler.name, "ebbtide_heap") != 0 or not kept.closed:
            return handler
        handler = <object> kept.before


cdef class Heap:
    """
    Keeps, in a block, the memory of arrays that die there, for those to come; a context manager, to be entered once.

    Never more is held than arrays of the block held at a time, nothing that was free for two steps, and nothing after
    it. Within the block of another one it has its memory, and counts its steps if nobody does. Where NumPy's memory is
    somebody else's already, it does nothing.

    Args:
        steps: Whether steps of a loop are in the block, each of which `passed` counts.

    Attributes:
        peak: The most bytes that arrays held at a time, 16 for each included.
        held: Bytes that are held now, by arrays and for those to come.
    """

    cdef object _capsule, _before
    cdef Kept *_kept
    cdef bint _steps

    def __cinit__(self, bint steps=True):
        self._steps = steps

    @property
    def peak(self):
        return 0 if self._kept is NULL else self._kept.peak

    @property
    def held(self):
        return 0 if self._kept is NULL else self._kept.live + self._kept.free_bytes

    def passed(self):
        """Let memory go that no step of late has had: a step is over."""
        cdef Kept *kept = self._kept
        if kept is NULL or not self._steps:
            return
        kept.steps += 1
        while kept.count and freed_at(kept.blocks[0])[0] + IDLE < kept.steps:
            release(kept, 0)

    def __enter__(self):
        cdef Kept *kept
        before = found_now()
        cdef Handler *handler = <Handler *> PyCapsule_GetPointer(before, "mem_handler")
        if strcmp(handler.name, "ebbtide_heap") == 0:
            kept = <Kept *> handler
            self._steps = self._steps and not kept.stepped
            kept.stepped = kept.stepped or self._steps
            self._kept, self._capsule = kept, before
            return self
        if strcmp(handler.name, "default_allocator") != 0:
            return self
        kept = <Kept *> calloc(1, sizeof(Kept))
        if kept is NULL:
            raise MemoryError
        strcpy(kept.handler.name, "ebbtide_heap")
        kept.handler.version = 1
        kept.handler.allocator = Allocator(kept, take, take_zeros, take_other, give_back)
        kept.source = handler.allocator
        kept.stepped = self._steps
        self._capsule = PyCapsule_New(kept, "mem_handler", forget)
        Py_INCREF(before)
        kept.before = <PyObject *> before
        self._kept, self._before = kept, before
        PyDataMem_SetHandler(self._capsule)
        return self

    def __exit__(self, kind, error, trace):
        if self._kept is NULL:
            return
        if self._before is None:  # that of another block, which goes on
            if self._steps:
                self._kept.stepped = False
        else:
            # Somebody else may have set another one, or this may come late.
            if PyDataMem_GetHandler() is self._capsule:
                PyDataMem_SetHandler(self._before)
            finish(self._kept)
        # Arrays that live on hold the capsule.
        self._kept = NULL
        self._capsule = self._before = None
