"""How arrays are encoded before they are written: not at all, without loss if that is faster, or with loss by name."""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.checksum import Bytes, view_bytes, view_plain

_ZFP_TYPES = frozenset({np.dtype(np.float32).str, np.dtype(np.float64).str})


FRAME = 1 << 17
"""The most bytes of an array that are encoded at a time: with half of it blosc2 took twice as long."""
SCRATCH = 8 * FRAME
"""The bytes of memory that a storage takes to encode and to decode, in two threads at once."""


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """A part of an encoded array: its bytes, and of a lossy codec the largest error and the largest value."""

    content: Bytes
    error: Any = 0.0
    largest: Any = 0.0


class Codec(ABC):
    """Encodes arrays part by part; `None` means that the bytes of an array are stored as they are."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What `decode` knows it by."""

    @abstractmethod
    def encode(self, array: NDArray[Any]) -> Iterator[Frame | None] | None:
        """
        Return the frames of an array, one after the other; None to store it as it is.

        A frame that is None says that the array turned out to be one that is stored as it is.
        """

    @property
    @abstractmethod
    def lossy(self) -> bool:
        """Whether what comes back is not always what was stored."""

    def wrote(self, nbytes: int, seconds: float) -> None:
        """Hear how long the disk took for *nbytes* of encoded or raw bytes."""
        del nbytes, seconds


@final
@dataclass(frozen=True, slots=True)
class Zfp:
    """
    Lossy compression by zfp, by name only.

    Args:
        tolerance: The largest absolute error of any value; finite and greater than 0. An array for which zfp does not
            keep it, of large and small numbers side by side, is stored as it is.

    Raises:
        ValueError: The tolerance is no such number.

    Source:
        Lindstrom, Fixed-rate compressed floating-point arrays, IEEE TVCG 20 (2014), doi 10.1109/TVCG.2014.2346458.
    """

    tolerance: float

    def __post_init__(self) -> None:
        given: Any = self.tolerance  # a caller need not have a type checker
        if type(given) is bool or not isinstance(given, Real) or not 0 < float(given) < math.inf:
            raise ValueError(
                f"The tolerance of Zfp is the largest absolute error, a finite number greater than 0, not {given!r}."
            )


Compression = str | Zfp | None
"""None, "lossless", "float32", or `Zfp(tolerance)`."""


@final
class Codecs:
    """
    The codecs of a storage, one for each kind of entry.

    Args:
        compression: One for all kinds, or one for each kind; kinds that are not named are stored as they are.

    Raises:
        ValueError: There is no such codec, or a lossy one is asked for without its name or tolerance.
        ImportError: zfp is asked for and not installed.
    """

    __slots__ = ("_default", "_found")

    def __init__(self, compression: Compression | Mapping[str, Compression] = None) -> None:
        # To ask whether None is a `Mapping` keeps 100 bytes for each of its subclasses in the process, 7 KB and more.
        named: Mapping[str, Compression] = {}
        self._default: Compression = None
        if compression is not None and isinstance(compression, Mapping):
            named = compression
        else:
            self._default = compression
        # Filled as kinds are met: what is faster is measured for each.
        self._found: dict[str, Codec | None] = {kind: make_codec(wanted) for kind, wanted in named.items()}
        make_codec(self._default)

    @property
    def scratch(self) -> int:
        """The bytes of memory that they take at work."""
        return SCRATCH if self._default is not None or any(self._found.values()) else 0

    def of(self, kind: str) -> Codec | None:
        """Return the codec of a kind; None for bytes as they are."""
        if self._default is None or kind in self._found:
            return self._found.get(kind)
        return self._found.setdefault(kind, make_codec(self._default))


def make_codec(compression: Compression) -> Codec | None:
    """
    Return the codec of a name.

    Raises:
        ValueError: There is no such codec, or a lossy one is asked for without its name or tolerance.
        ImportError: zfp is asked for and not installed.
    """
    if compression is None:
        return None
    if isinstance(compression, Zfp):
        return _Zfp(compression.tolerance)
    # An array has no hash, and would be compared by its elements.
    if isinstance(compression, str) and compression in _NAMED:  # pyright: ignore[reportUnnecessaryIsInstance]
        return _NAMED[compression]()
    raise ValueError(
        f"There is no compression {compression!r}. It is None, 'lossless' (kept only where it is measured to be "
        "faster), or by name one that loses digits, and so changes the gradient: 'float32', or "
        "ebbtide.storage.Zfp(tolerance); or a dict with one of them for each kind of entry."
    )


def decode(codec: str, array: NDArray[Any], frames: Iterator[Bytes]) -> None:
    """
    Fill an array with what was encoded.

    Args:
        codec: The name of the codec.
        array: A C-contiguous array.
        frames: The bytes of its frames.

    Raises:
        ValueError: The bytes are not those of such an array.
    """
    unpack = _find_unpack(codec, array.dtype)
    if codec == "zfp" and _has_tiles(array):
        for tile, content in zip(_tiles(array.shape, array.itemsize), frames, strict=True):
            array[tile] = unpack(content)
        return
    flat, place = view_bytes(array) if codec in ("zlib", "blosc2") else array.reshape(-1), 0
    for content in frames:
        found = unpack(content)
        flat[place : place + found.size] = found
        place += found.size
    if place != flat.size:
        raise ValueError(f"{place} of {flat.size} elements are there")


def _find_unpack(codec: str, dtype: np.dtype[Any]) -> Callable[[Bytes], NDArray[Any]]:
    """Return what a codec makes of a frame."""
    if codec == "zlib":
        return lambda content: np.frombuffer(zlib.decompress(content.data), np.uint8)
    if codec == "float32":
        return lambda content: content.view(_narrow(dtype))
    if codec == "blosc2":
        blosc2: Any = importlib.import_module("blosc2")
        return lambda content: np.frombuffer(blosc2.decompress(content), np.uint8)
    if codec == "zfp":
        zfpy: Any = importlib.import_module("zfpy")
        return lambda content: zfpy.decompress_numpy(content.tobytes())
    raise ValueError(f"the codec {codec!r} is not known")


def _pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the elements of an array in C order, in packed pieces of at most `FRAME` bytes, or of one element."""
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    axis, nbytes = array.ndim, array.itemsize
    while axis and nbytes * array.shape[axis - 1] <= FRAME:
        axis -= 1
        nbytes *= array.shape[axis]
    if not axis:
        yield np.ascontiguousarray(array).reshape(-1)
        return
    count = max(1, FRAME // nbytes)
    for index in np.ndindex(array.shape[: axis - 1]):
        part = array[index]
        for start in range(0, part.shape[0], count):
            yield np.ascontiguousarray(part[start : start + count]).reshape(-1)


@final
class _Lossless(Codec):
    """
    Compresses if that was faster for the first entries.

    They are stored as they are, while encoding and decoding them is timed: compression goes on if the time for both
    is less than what the disk saves, at its measured speed, by fewer bytes there and back. The first decision is
    the last one: bits never depend on it, only time and bytes on disk do.
    """

    _TRIALS = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = self._disk_seconds = 0.0
        self._before = self._after = self._disk_bytes = self._entries = 0
        self._chosen: bool | None = None
        self._blosc2: Any = importlib.import_module("blosc2") if importlib.util.find_spec("blosc2") else None

    @property
    def lossy(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "zlib" if self._blosc2 is None else "blosc2"

    def encode(self, array: NDArray[Any]) -> Iterator[Frame] | None:
        if self._chosen is False or not array.nbytes:
            return None
        if self._chosen is None:
            self._try(array)
            return None
        return self._frames(array)

    def _frames(self, array: NDArray[Any]) -> Iterator[Frame]:
        for piece in _pieces(view_plain(array)):
            yield Frame(self._pack(piece))

    def _pack(self, piece: NDArray[Any]) -> Bytes:
        if self._blosc2 is None:
            return np.frombuffer(zlib.compress(view_bytes(piece).data, 1), np.uint8)
        found = self._blosc2.compress2(piece, typesize=min(255, piece.itemsize), codec=self._blosc2.Codec.LZ4)
        return np.frombuffer(found, np.uint8)

    def _try(self, array: NDArray[Any]) -> None:
        """Encode and decode an array for the time that it takes."""
        start, after = time.perf_counter(), 0
        for piece in _pieces(view_plain(array)):
            content = self._pack(piece)
            after += content.size
            decode(self.name, np.empty_like(piece), iter([content]))
        with self._lock:
            self._seconds += time.perf_counter() - start
            self._before += array.nbytes
            self._after += min(after, array.nbytes)

    def wrote(self, nbytes: int, seconds: float) -> None:
        with self._lock:
            if self._chosen is not None or not nbytes:
                return
            self._disk_bytes += nbytes
            self._disk_seconds += seconds
            self._entries += 1
            if self._entries == self._TRIALS:
                saved = 2 * (self._before - self._after) * self._disk_seconds / self._disk_bytes
                self._chosen = self._seconds < saved


def _narrow(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.complex64 if dtype.kind == "c" else np.float32)


# Twice what rounding to 24 bits does to the largest value.
_ROUNDED = 2.0**-23


@final
class _Float32(Codec):
    """Rounds floating-point numbers to 24 bits; what float32 cannot hold, and all else, is stored as it is."""

    @property
    def name(self) -> str:
        return "float32"

    def encode(self, array: NDArray[Any]) -> Iterator[Frame | None] | None:
        narrow = _narrow(array.dtype)
        if array.dtype.kind not in "fc" or array.dtype.itemsize <= narrow.itemsize or not array.size:
            return None
        return self._frames(array, narrow)

    def _frames(self, array: NDArray[Any], narrow: np.dtype[Any]) -> Iterator[Frame | None]:
        most: Any = 0.0
        scale: Any = 0.0
        for piece in _pieces(array):
            # Infinity and NaN stay what they are; a finite number that becomes infinite is seen below.
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                rounded = piece.astype(narrow)
                off, largest = _largest_error(piece, rounded)
            yield None if off == np.inf else Frame(view_bytes(rounded), off, largest)
            most, scale = max(most, off), max(scale, largest)
        if most > scale * _ROUNDED:  # numbers of 1e-50 became zeros
            yield None

    @property
    def lossy(self) -> bool:
        return True


@final
class _Zfp(Codec):
    """Rounds floating-point arrays to an absolute tolerance; all else is stored as it is."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        try:
            self._zfpy: Any = importlib.import_module("zfpy")
        except ImportError as error:
            raise ImportError(
                "Compression by zfp needs the package zfpy, which is not installed. Install ebbtide[compress]."
            ) from error

    @property
    def name(self) -> str:
        return "zfp"

    def encode(self, array: NDArray[Any]) -> Iterator[Frame | None] | None:
        # zfp takes numbers in native byte order.
        return None if array.dtype.str not in _ZFP_TYPES or not array.size else self._frames(array)

    def _frames(self, array: NDArray[Any]) -> Iterator[Frame | None]:
        places = _tiles(array.shape, array.itemsize) if _has_tiles(array) else ()
        for tile in (np.ascontiguousarray(array[place]) for place in places) if places else _pieces(array):
            if not np.isfinite(tile).all():  # which zfp does not take
                yield None
                return
            found = cast("bytes", self._zfpy.compress_numpy(tile, tolerance=self._tolerance))
            with np.errstate(over="ignore"):
                found_again = self._zfpy.decompress_numpy(found).reshape(-1)
                off, largest = map(float, _largest_error(tile.reshape(-1), found_again))
            if not off <= self._tolerance:  # where large and small numbers lie together it has too few bits for these
                yield None
                return
            yield Frame(np.frombuffer(found, np.uint8), off, largest)

    @property
    def lossy(self) -> bool:
        return True


def _has_tiles(array: NDArray[Any]) -> bool:
    """Return whether zfp takes parts of an array with its axes, up to four; else it takes its elements in a row."""
    return 0 < array.ndim <= 4


def _tiles(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Yield where the parts of at most `FRAME` bytes lie: whole blocks of 4 by 4 and so on, which zfp encodes alone."""
    size = list(shape)
    for axis in range(len(size)):
        while math.prod(size) * itemsize > FRAME and size[axis] > 4:
            size[axis] = max(4, (size[axis] // 2 + 3) // 4 * 4)
    for index in np.ndindex(*[-(-whole // part) for whole, part in zip(shape, size, strict=True)]):
        yield tuple([slice(k * part, (k + 1) * part) for k, part in zip(index, size, strict=True)])


def _largest_error(piece: NDArray[Any], other: NDArray[Any]) -> tuple[Any, Any]:
    """Return the largest absolute difference of two arrays of one axis, and the largest value, where it is finite."""
    finite = np.isfinite(piece)
    if not finite.all():
        piece, other = piece[finite], other[finite]
    return (np.max(np.abs(piece - other)), np.max(np.abs(piece))) if piece.size else (0.0, 0.0)


_NAMED: Mapping[str, Callable[[], Codec]] = MappingProxyType({"lossless": _Lossless, "float32": _Float32})
