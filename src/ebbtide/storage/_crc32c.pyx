# cython: language_level=3
"""CRC-32C of whatever has a buffer, by carry-less multiplication; to be imported where the processor has it."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

cdef extern from "crc32c.h" nogil:
    bint crc32c_is_there()
    bint crc32c_is_wide()
    uint32_t crc32c_extend(uint32_t checksum, const unsigned char *start, size_t count, bint is_wide)

cdef extern from "beside.h" nogil:
    ctypedef struct beside_job:
        size_t arrays
        const unsigned char **starts
        size_t *counts
        uint32_t *checksums
        bint is_wide

    int beside_start(beside_job *job)
    void beside_begin(beside_job *job, size_t count)
    void beside_end(beside_job *job, bint is_stopped)

cdef enum:
    # From here on, 5 to 10 microseconds of work, other threads may run meanwhile.
    UNLOCKED_BYTES = 1 << 18

if not crc32c_is_there():
    raise ImportError("This processor has no carry-less multiplication of 256 bits (vpclmulqdq).")

IS_WIDE = bool(crc32c_is_wide())


def extend(uint32_t checksum, content, bint is_wide=IS_WIDE):
    """
    Return the CRC-32C of bytes that follow others.

    Args:
        checksum: That of the bytes before, 0 for none.
        content: `bytes`, or a C-contiguous array.
        is_wide: Whether to take 512 bits at a time, where the processor has AVX-512.

    Raises:
        ValueError: The array is not C-contiguous.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(content, &view, PyBUF_SIMPLE)
    try:
        if view.len < UNLOCKED_BYTES:
            return crc32c_extend(checksum, <const unsigned char *>view.buf, view.len, is_wide)
        with nogil:
            checksum = crc32c_extend(checksum, <const unsigned char *>view.buf, view.len, is_wide)
        return checksum
    finally:
        PyBuffer_Release(&view)


@cython.final
cdef class ChecksumsBeside:
    """
    The checksums of arrays, taken by a thread of its own as far as the caller has come.

    Args:
        contents: `bytes` and C-contiguous arrays, in the order in which they are begun.

    Raises:
        RuntimeError: The system has no thread to give.
        ValueError: An array is not C-contiguous.
    """

    cdef beside_job job
    cdef Py_buffer *views
    cdef size_t held
    cdef bint runs

    def __cinit__(self, contents):
        cdef size_t count = len(contents)
        self.views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
        self.job.starts = <const unsigned char **>calloc(count + 1, sizeof(void *))
        self.job.counts = <size_t *>calloc(count + 1, sizeof(size_t))
        self.job.checksums = <uint32_t *>calloc(count + 1, sizeof(uint32_t))
        self.job.is_wide = IS_WIDE
        if not (self.views and self.job.starts and self.job.counts and self.job.checksums):
            raise MemoryError
        for content in contents:
            PyObject_GetBuffer(content, &self.views[self.held], PyBUF_SIMPLE)
            self.job.starts[self.held] = <const unsigned char *>self.views[self.held].buf
            self.job.counts[self.held] = self.views[self.held].len
            self.held += 1
        self.job.arrays = self.held
        if beside_start(&self.job):
            raise RuntimeError("The system has no thread to give.")
        self.runs = True

    def begin(self, size_t count):
        """Let the thread read so many bytes more."""
        beside_begin(&self.job, count)

    def wait(self):
        """Return the checksums, in order, when the thread has read all; all bytes must have begun."""
        if self.runs:
            self.runs = False
            with nogil:
                beside_end(&self.job, False)
        return [self.job.checksums[k] for k in range(self.job.arrays)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def __dealloc__(self):
        self.stop()
        for k in range(self.held):
            PyBuffer_Release(&self.views[k])
        free(self.views)
        free(self.job.starts)
        free(self.job.counts)
        free(self.job.checksums)

    cdef void stop(self) noexcept:
        if self.runs:
            self.runs = False
            with nogil:
                beside_end(&self.job, True)
