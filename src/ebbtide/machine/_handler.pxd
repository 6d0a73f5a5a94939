# cython: language_level=3
"""How NumPy asks for the memory of arrays: by a handler that belongs to a context, and to each array that it served."""

from libc.stdint cimport uint8_t

cdef extern from "numpy/ndarraytypes.h" nogil:
    ctypedef struct Allocator "PyDataMemAllocator":
        void *ctx
        void *(*malloc)(void *, size_t) noexcept nogil
        void *(*calloc)(void *, size_t, size_t) noexcept nogil
        void *(*realloc)(void *, void *, size_t) noexcept nogil
        void (*free)(void *, void *, size_t) noexcept nogil

    ctypedef struct Handler "PyDataMem_Handler":
        char name[127]
        uint8_t version
        Allocator allocator

cdef extern from "numpy/arrayobject.h":
    object PyDataMem_SetHandler(object)
    object PyDataMem_GetHandler()
