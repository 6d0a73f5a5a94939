"""How arrays are encoded before they are written: not at all, without loss if that is faster, or with loss by name."""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.checksum import Bytes, view_bytes

_ZFP_TYPES = frozenset({np.dtype(np.float32).str, np.dtype(np.float64).str})


@final
@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded array: its bytes, the name of the codec, and the relative error of a lossy one."""

    content: Bytes
    codec: str
    error: float = 0.0


class Codec(ABC):
    """Encodes arrays; `None` means that the bytes of an array are stored as they are."""

    @abstractmethod
    def encode(self, array: NDArray[Any]) -> Encoded | None:
        """Return the encoded array, at most as long as the array itself; None to store it as it is."""

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
        tolerance: The largest absolute error of any value; finite and greater than 0.

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


def decode(content: Bytes, codec: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """
    Return the array that was encoded, writable and C-contiguous.

    Raises:
        ValueError: The bytes are not those of such an array.
    """
    if codec == "zlib":
        return _fill(np.frombuffer(zlib.decompress(content.data), np.uint8), dtype, shape)
    if codec == "blosc2":
        blosc2: Any = importlib.import_module("blosc2")
        return _fill(np.frombuffer(blosc2.decompress(content.tobytes()), np.uint8), dtype, shape)
    if codec == "float32":
        return content.view(_narrow(dtype)).astype(dtype).reshape(shape)
    if codec == "zfp":
        zfpy: Any = importlib.import_module("zfpy")
        return np.array(zfpy.decompress_numpy(content.tobytes()), dtype=dtype, order="C").reshape(shape)
    raise ValueError(f"the codec {codec!r} is not known")


def _fill(content: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    view_bytes(array)[:] = content
    return array


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

    def encode(self, array: NDArray[Any]) -> Encoded | None:
        if self._chosen is False or not array.nbytes:
            return None
        start = stopwatch()
        packed = np.ascontiguousarray(array)
        if self._blosc2 is None:
            found = zlib.compress(view_bytes(packed).data, 1)
        else:
            found = self._blosc2.compress2(packed, typesize=min(255, array.itemsize), codec=self._blosc2.Codec.LZ4)
        encoded = Encoded(np.frombuffer(found, np.uint8), "zlib" if self._blosc2 is None else "blosc2")
        if self._chosen is None:
            decode(encoded.content, encoded.codec, packed.dtype, packed.shape)
            with self._lock:
                self._seconds += stopwatch() - start
                self._before += array.nbytes
                self._after += min(len(found), array.nbytes)
            return None
        return encoded if len(found) < array.nbytes else None

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


@final
class _Float32(Codec):
    """Rounds floating-point numbers to 24 bits; what float32 cannot hold, and all else, is stored as it is."""

    def encode(self, array: NDArray[Any]) -> Encoded | None:
        narrow = _narrow(array.dtype)
        if array.dtype.kind not in "fc" or array.dtype.itemsize <= narrow.itemsize or not array.size:
            return None
        # Infinity and NaN stay what they are; a finite number that becomes infinite is seen below.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            rounded = np.ascontiguousarray(array, dtype=narrow)
            off, largest = _largest_error(array.reshape(-1), rounded.reshape(-1))
        if off == np.inf:
            return None
        return Encoded(view_bytes(rounded), "float32", float(off / largest) if largest else 0.0)

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

    def encode(self, array: NDArray[Any]) -> Encoded | None:
        # zfp takes finite numbers in native byte order, in up to four dimensions.
        if array.dtype.str not in _ZFP_TYPES or not array.size or not np.isfinite(array).all():
            return None
        packed = np.ascontiguousarray(array).reshape(array.shape if 0 < array.ndim <= 4 else -1)
        found = cast("bytes", self._zfpy.compress_numpy(packed, tolerance=self._tolerance))
        if len(found) >= array.nbytes:
            return None
        off, largest = _largest_error(packed.reshape(-1), self._zfpy.decompress_numpy(found).reshape(-1))
        return Encoded(np.frombuffer(found, np.uint8), "zfp", float(off / largest) if largest else 0.0)

    @property
    def lossy(self) -> bool:
        return True


def _largest_error(array: NDArray[Any], other: NDArray[Any]) -> tuple[Any, Any]:
    """The largest absolute difference of two arrays and the largest value, in blocks of 64 Ki elements."""
    off: Any = 0.0
    largest: Any = 0.0
    for start in range(0, array.size, 1 << 16):
        block = array[start : start + (1 << 16)]
        block = block[np.isfinite(block)] if not (whole := bool(np.isfinite(block).all())) else block
        near = other[start : start + (1 << 16)]
        near = near if whole else near[np.isfinite(array[start : start + (1 << 16)])]
        if block.size:
            off = max(off, np.max(np.abs(block - near)))
            largest = max(largest, np.max(np.abs(block)))
    return off, largest


_NAMED: Mapping[str, Callable[[], Codec]] = MappingProxyType({"lossless": _Lossless, "float32": _Float32})


def stopwatch() -> float:
    """Return seconds of a clock that only goes forward."""
    return time.perf_counter()
