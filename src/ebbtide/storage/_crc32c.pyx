# cython: language_level=3
"""CRC-32C of whatever has a buffer, by carry-less multiplication; to be imported where the processor has it."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

cdef extern from "crc32c.h" nogil:
    bint crc32c_is_there()
    bint crc32c_is_wide()
    uint32_t crc32c_extend(uint32_t checksum, const unsigned char *start, size_t count, bint is_wide)

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
