"""CRC-32C checksums of arrays, straight from their memory."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ebbtide.storage._crc32c import ChecksumsBeside
try:
    import ebbtide.storage._crc32c as compiled
except ImportError:  # not built, or not for this processor
    compiled = None

BLOCK_BYTES = 1 << 20
"""The most bytes that are copied, checked or handed to the operating system at a time."""

# Of what is not contiguous a checksum packs as much at a time: it has to fit beside a function in the smallest budget.
# With 1 MiB, 0.75 to 0.85 of the time for 4 MiB of it.
_PACKED_BYTES = 1 << 14

Bytes = NDArray[np.uint8]
# What an extended float of x86 means: 64 bits of mantissa, sign and exponent. Others fill their bytes.
_LONG_BYTES = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize


class _Extend(Protocol):
    def __call__(self, checksum: int, chunk: NDArray[Any] | bytes, /) -> int: ...


def _find_extend() -> tuple[_Extend, Callable[[int, int, int], int] | None]:
    """
    Return what takes checksums: of anything with a buffer, and, if that keeps other threads from running, of memory.

    Our own function lets them run, and takes 51 GB/s of what is in a cache with AVX-512 and 25 of 32 MiB, without it 27
    and 19; google-crc32c, which is there for all processors, 27 and 13.
    """
    if compiled is not None:
        return compiled.extend, None
    # The compiled module takes an array itself, writable or not, without a copy; it refuses a writable memoryview. The
    # fallback in pure Python would read elements in place of bytes, and is of no use at its speed.
    if google_crc32c.implementation != "c":
        raise ImportError(
            "google-crc32c runs without its compiled module, which Ebbtide needs for checksums of arrays. "
            "Install a wheel of google-crc32c for this Python, or a C compiler and then google-crc32c."
        )
    return cast("_Extend", google_crc32c.extend), _find_unlocked()


def _find_unlocked() -> Callable[[int, int, int], int] | None:
    """
    Return the C function behind google-crc32c; None where it cannot be reached.

    The module itself lets other threads run only for `bytes` of 1 MiB and more, and never for an array; a call by
    ctypes always does. Found once, as each search leaves a cycle.
    """
    module: Any = importlib.import_module("google_crc32c._crc32c")
    try:
        function = ctypes.CDLL(module.__file__).crc32c_extend
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_uint32
    return function


_extend, _extend_unlocked = _find_extend()
# From here on a call by ctypes, 3 us slower, is worth what other threads do meanwhile: 256 KiB take 20 us.
_UNLOCKED_BYTES = 1 << 18


def extend_crc32c(checksum: int, chunk: NDArray[Any] | bytes) -> int:
    """
    Return the CRC-32C of bytes that follow others.

    Args:
        checksum: That of the bytes before, 0 for none.
        chunk: `bytes`, or a C-contiguous array. Other threads run while a large array is read.
    """
    if _extend_unlocked is None or isinstance(chunk, bytes) or chunk.nbytes < _UNLOCKED_BYTES:
        return _extend(checksum, chunk)
    return _extend_unlocked(checksum, chunk.__array_interface__["data"][0], chunk.nbytes)


def begin_checksums(arrays: Sequence[NDArray[Any]]) -> ChecksumsBeside | None:
    """
    Return a thread that takes the checksums of arrays beside the caller, as far as that has come.

    Args:
        arrays: C-contiguous arrays, which nobody may change before the checksums are there.

    Returns:
        None where nothing is compiled for the processor, or the system has no thread to give.

    Memory:
        The arrays are held until its end.
    """
    with suppress(RuntimeError):
        return None if compiled is None else compiled.ChecksumsBeside(arrays)
    return None


def compute_crc32c(array: NDArray[Any]) -> int:
    """
    Return the CRC-32C of an array's bytes.

    The bytes are taken in C order if the array is C-contiguous, in the order of memory if it fills that, in another
    order of its axes, backwards or with elements that repeat, and in C order otherwise. So the checksum tells whether
    one array was changed; equal arrays with different strides may have different checksums.

    Args:
        array: Any shape and dtype without Python objects (of objects, the addresses are taken).

    Returns:
        The checksum, 0 <= checksum < 2**32.

    Memory:
        A buffer of at most 16 KiB if the array has gaps, until it returns; nothing otherwise, but for the few bytes of
        layout that NumPy keeps with an array whose buffer was once asked for.

    Source:
        Castagnoli, Braeuer and Herrmann, IEEE Trans. Communications 41 (1993), doi 10.1109/26.231911.

    Example:
        >>> hex(compute_crc32c(np.frombuffer(b"123456789", dtype=np.uint8)))
        '0xe3069283'
    """
    try:
        # Asking first whether the array is contiguous takes half as long as the checksum of a small array.
        return _extend(0, array)
    except ValueError:
        pass
    if array.flags.f_contiguous:
        return _extend(0, array.T)
    # The seed of a sum is one number, repeated: to pack it, as any array with gaps, took what the sum is of.
    packed = in_memory_order(array)
    if packed.flags.c_contiguous:
        return _extend(0, packed)
    return compute_crc32c_in_order(packed)


def in_memory_order(array: NDArray[Any]) -> NDArray[Any]:
    """
    Return a view of the elements of an array in the order in which they lie in memory, each once.

    Example:
        >>> in_memory_order(np.broadcast_to(np.arange(6).reshape(2, 3).T[::-1], (4, 3, 2))).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    forwards = array[tuple([0 if not s else slice(None, None, -1 if s < 0 else 1) for s in array.strides])]
    return forwards.transpose(sorted(range(forwards.ndim), key=lambda axis: -forwards.strides[axis]))


def as_it_lay(elements: NDArray[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """
    Return a view of elements in the order of memory that lies as an array did: in its order, backwards and repeated.

    Args:
        elements: What `in_memory_order` returns of an array, or a copy without gaps.
        shape: That of the array.
        strides: Those of the array.

    Example:
        >>> x = np.arange(6).reshape(2, 3).T[::-1]
        >>> as_it_lay(in_memory_order(x).copy(), x.shape, x.strides).strides == x.strides
        True
    """
    kept = [k for k, stride in enumerate(strides) if stride]
    axes = sorted(kept, key=lambda k: -abs(strides[k]))
    forwards = elements.transpose([axes.index(k) for k in kept])
    whole = forwards[tuple([slice(None, None, -1 if s < 0 else 1) if s else None for s in strides])]
    return whole if whole.shape == shape else np.broadcast_to(whole, shape)


def compute_crc32c_in_order(array: NDArray[Any]) -> int:
    """
    Return the CRC-32C of an array's elements in C order: that of any equal array, however it lies.

    Args:
        array: Any shape, strides and dtype without Python objects.

    Memory:
        A buffer of at most 16 KiB if the array is not C-contiguous, until it returns.

    Example:
        >>> x = np.arange(6).reshape(2, 3)
        >>> compute_crc32c_in_order(x.T) == compute_crc32c_in_order(x.T.copy())
        True
    """
    checksum = 0
    for block in iterate_blocks(array, BLOCK_BYTES if array.flags.c_contiguous else _PACKED_BYTES):
        checksum = extend_crc32c(checksum, block)
    return checksum


def compute_crc32c_of_values(array: NDArray[Any]) -> int:
    """
    Return the CRC-32C of an array's values: its elements in C order without the bytes that mean nothing.

    Such are what pads an extended float (six of sixteen bytes) and the gaps between aligned fields, where NumPy leaves
    what the memory held before, so that two runs of the same code differ there.

    Args:
        array: Any shape, strides and dtype without Python objects.

    Memory:
        A buffer of at most 16 KiB, and what is left of it, if there are such bytes or the array is not C-contiguous.

    Example:
        >>> x = np.zeros(2, np.dtype("u1,f8", align=True))
        >>> x.view(np.uint8)[1:8] = 7
        >>> compute_crc32c_of_values(x) == compute_crc32c_of_values(np.zeros_like(x))
        True
    """
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.hasobject:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"The checksum of values is that of an array without Python objects, not of {array!r:.60}.")
    return _extend_by_values(0, array)


def _extend_by_values(checksum: int, array: NDArray[Any]) -> int:
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            checksum = _extend_by_values(checksum, array[name])
        return checksum
    size = np.dtype(np.longdouble).itemsize
    padding = size - _LONG_BYTES if dtype.char in "gG" else 0
    for block in iterate_blocks(array, BLOCK_BYTES if array.flags.c_contiguous and not padding else _PACKED_BYTES):
        meant = block
        if padding:
            rows = block.reshape(-1, size)
            meant = np.ascontiguousarray(rows[:, :-padding] if dtype.isnative else rows[:, padding:])
        checksum = extend_crc32c(checksum, meant)
    return checksum


def iterate_blocks(array: NDArray[Any], nbytes: int = BLOCK_BYTES) -> Iterator[Bytes]:
    """
    Yield the bytes of an array in C order, in blocks of at most *nbytes* (or of one element, if larger).

    Args:
        array: Any shape, strides and dtype without Python objects.
        nbytes: The size of a block in bytes.

    Yields:
        One-dimensional arrays of bytes: views of the array if it is C-contiguous, else of one buffer that the
        next block overwrites.

    Memory:
        The buffer of *nbytes* bytes, for an array that is not C-contiguous, until the iterator is closed.

    Example:
        >>> [block.tolist() for block in iterate_blocks(np.array([1, 2, 3], dtype=np.uint8)[::-1])]
        [[3, 2, 1]]
    """
    array = view_plain(array)
    if array.flags.c_contiguous:
        content = view_bytes(array)
        for start in range(0, content.size, nbytes):
            yield content[start : start + nbytes]
        return
    size = max(1, nbytes // array.itemsize)
    # "contig" makes NumPy pack what is strided; without it a block could be a strided view.
    # NumPy's stubs misspell "contig".
    with np.nditer(  # pyright: ignore[reportCallIssue]
        array,
        flags=["external_loop", "buffered"],
        op_flags=["readonly", "contig"],  # pyright: ignore[reportArgumentType]
        order="C",
        buffersize=size,
    ) as blocks:
        for block in blocks:
            yield view_bytes(cast("NDArray[Any]", block))


def view_plain(array: NDArray[Any]) -> NDArray[Any]:
    """
    Return an array of which NumPy copies every byte, without a copy: a plain one, whose elements have no fields.

    Fields are copied one by one, and what is between them would be whatever the memory of the copy held before.

    Args:
        array: Any shape, strides, dtype without Python objects, and subclass; where elements have no bytes, neither
            has what is returned.

    Example:
        >>> view_plain(np.zeros(2, "u1,f8")).dtype.str
        '|V9'
    """
    plain = np.asarray(array)
    if not plain.itemsize:
        return np.empty(0, np.uint8)
    return plain if plain.dtype.names is None else plain.view(f"V{plain.itemsize}")


def view_bytes(array: NDArray[Any]) -> Bytes:
    """
    Return the memory of a C-contiguous array as a one-dimensional array of bytes, without a copy.

    Args:
        array: Any shape and dtype without Python objects, C-contiguous.

    Example:
        >>> view_bytes(np.zeros((2, 3))).shape
        (48,)
    """
    return array.reshape(-1).view(np.uint8)
