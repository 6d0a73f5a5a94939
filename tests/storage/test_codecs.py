"""Compression: without loss by measurement, with loss by name."""

from __future__ import annotations

import os
import sys
import time
import types
from dataclasses import replace

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, Zfp, codecs
from ebbtide.storage.codecs import decode, make_codec
from ebbtide.storage.system import POSIX

from .helpers import blocks, find_files

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-320])


@pytest.mark.parametrize("name", ["lossy", "zfp", "float16", "", 1e-3, True, np.array(["float32"] * 2), ["float32"]])
def test_loss_is_asked_for_by_name(name):
    """What is no name of a codec is an error that lists them; zfp has no default tolerance."""
    with pytest.raises(ValueError, match=r"'float32', or ebbtide\.storage\.Zfp\(tolerance\)"):
        Disk(compression=name)
    with pytest.raises(TypeError):
        Zfp()
    for tolerance in (0.0, -1.0, float("nan"), float("inf"), "1e-3", None, True, np.ones(2), 1j):
        with pytest.raises(ValueError, match="greater than 0"):
            Zfp(tolerance)


@pytest.mark.parametrize("buffer", [0, 1 << 22])
def test_float32_halves_the_bytes_and_tells_its_error(tmp_path, buffer):
    """Floating-point numbers are rounded to float32, all else comes back as it was, and the error is of rounding."""
    random = np.random.default_rng(0)
    wave = random.standard_normal((300, 400))
    arrays = [wave, wave[::2, ::3] + 1j * wave[::2, ::3], np.arange(5000), wave.astype("f4"), SPECIAL, np.zeros(0)]
    with Disk(tmp_path, compression="float32", buffer=buffer) as storage:
        most = storage.put(0, arrays)
        storage.flush()
        halved = (arrays[0].nbytes + arrays[1].nbytes) // 2
        assert storage.nbytes <= sum(array.nbytes for array in arrays) - halved + 8192
        assert most >= storage.nbytes
        assert blocks(find_files(tmp_path)[0]) <= storage.nbytes + (1 << 20)
        found = storage.get(0)
        for place in (2, 3, 5):
            assert (found[place].dtype, found[place].tobytes()) == (arrays[place].dtype, arrays[place].tobytes())
        for place in (0, 1, 4):
            assert found[place].dtype == arrays[place].dtype
            with np.errstate(under="ignore"):
                expected = arrays[place].astype("c8" if place == 1 else "f4").astype(arrays[place].dtype)
            assert found[place].tobytes() == np.ascontiguousarray(expected).tobytes()
            assert found[place].flags.writeable
        off = np.max(np.abs(found[0] - wave)) / np.max(np.abs(wave))
        assert 0 < off <= storage.relative_error < 1e-7
        storage.put(1, [np.ones(50_000)])  # which loses nothing
        storage.flush()
        storage.delete(1)
        assert off <= storage.relative_error
        storage.delete(0)


def test_float32_never_makes_a_number_infinite(tmp_path):
    """An array with a finite number that float32 does not hold is stored as it is."""
    with Disk(tmp_path, compression="float32") as storage:
        storage.put(0, [np.array([1e300, 1.0])])
        assert storage.get(0)[0].tolist() == [1e300, 1.0]
        assert storage.relative_error == 0


def test_float32_keeps_what_it_would_make_zeros(tmp_path):
    """An array of numbers below its range is stored as it is; the small ones beside large ones are not."""
    smallest = np.full(50, np.longdouble("1e-4900"))
    small, tails = np.full(50_000, 1e-50), np.exp(-np.linspace(-30, 30, 50_000) ** 2)
    with Disk(tmp_path, compression="float32") as storage:
        storage.put(1, [smallest])
        assert (storage.take(1)[0] == smallest).all()
        storage.put(0, [small, tails])
        found = storage.get(0)
        assert found[0].tobytes() == small.tobytes()
        assert 0 < np.max(np.abs(found[1] - tails)) <= storage.relative_error < 1e-7
        assert [array.codec for array in storage._entries[0].record.arrays] == ["raw", "float32"]


def test_no_compression_has_no_error(tmp_path):
    """The bits come back without compression and with lossless compression, and the error is 0."""
    for compression in (None, "lossless"):
        with Disk(tmp_path, compression=compression) as storage:
            for key in range(6):
                storage.put(key, [SPECIAL, np.tile(SPECIAL, 3000)])
            for key in range(6):
                assert storage.get(key)[1].tobytes() == np.tile(SPECIAL, 3000).tobytes()
            assert storage.relative_error == 0


def encoded(codec, array):
    """The bytes of the frames of an array; None if it is stored as it is."""
    frames = codec.encode(array)
    found = None if frames is None else list(frames)
    if found is None or None in found or sum(frame.content.size + 8 for frame in found) >= array.nbytes:
        return None
    return [frame.content for frame in found]


def decoded(codec, contents, dtype, shape):
    """The array that was encoded."""
    array = np.empty(shape, dtype)
    decode(codec, array, iter(contents))
    return array


def tried(codec, array, disk_seconds):
    """A lossless codec after its trials on entries that the disk took so many seconds for."""
    for _ in range(4):
        assert codec.encode(array) is None
        codec.wrote(array.nbytes, disk_seconds)
    return codec


@pytest.mark.parametrize(("disk_seconds", "chosen"), [(10.0, True), (1e-9, False)])
def test_lossless_is_kept_if_it_was_faster(disk_seconds, chosen):
    """The first four entries are stored as they are; then compression goes on where the disk was slower than it."""
    zeros = np.zeros(1000)
    codec = tried(make_codec("lossless"), zeros, disk_seconds)
    for _ in range(5):
        assert (encoded(codec, zeros) is not None) is chosen
        codec.wrote(zeros.nbytes, 1e-9 if chosen else 100.0)


def test_the_time_of_a_trial_is_none_of_the_disk(tmp_path, monkeypatch):
    """A codec that is slower than the disk is not chosen, however long its trials keep a `put` waiting."""
    pack = codecs._Lossless._pack
    monkeypatch.setattr(codecs._Lossless, "_pack", lambda self, piece: time.sleep(0.02) or pack(self, piece))
    with Disk(tmp_path, compression="lossless") as storage:
        for key in range(6):
            storage.put(key, [np.zeros(10_000)])
        assert {entry.record.arrays[0].codec for entry in storage._entries.values()} == {"raw"}


def test_lossless_is_not_kept_for_few_bytes_less():
    """What hardly shrinks is not compressed, even on a slow disk: the disk saves less time than the codec takes."""
    noise = np.frombuffer(np.random.default_rng(0).bytes(1 << 20))
    codec = tried(make_codec("lossless"), noise, 1e-3)
    assert codec.encode(np.zeros(1000)) is None


def test_what_does_not_shrink_is_stored_as_it_is(tmp_path):
    """Random bytes are not compressed, whatever was measured; a frame has 8 bytes beside those of its numbers."""
    codec = tried(make_codec("lossless"), np.zeros(1000), 10.0)
    assert encoded(codec, np.zeros(1000)) is not None
    assert encoded(codec, np.frombuffer(np.random.default_rng(0).bytes(8000))) is None
    assert codec.encode(np.zeros(0)) is None
    with Disk(tmp_path, compression="float32") as storage:
        storage.put(0, [np.ones(count) for count in (1, 2, 3)])
        assert [array.codec for array in storage._entries[0].record.arrays] == ["raw", "raw", "float32"]


@pytest.mark.parametrize("buffer", [0, 1 << 22])
def test_each_kind_has_its_own_compression(tmp_path, buffer):
    """A dict names a compression for each kind; others are stored as they are, and what is measured is of one kind."""
    wave = np.random.default_rng(0).standard_normal(20_000)
    slow = replace(POSIX, pwrite=lambda *arguments: time.sleep(0.02) or os.pwrite(*arguments))
    compression = {"restart": "float32", "zeros": "lossless"}
    with Disk(tmp_path, compression=compression, buffer=buffer, system=slow) as storage:
        assert [storage.is_lossy(kind) for kind in ("restart", "zeros", "saved")] == [True, False, False]
        storage.put("state", [wave], kind="restart")
        storage.put("other", [wave], kind="saved")
        for key in range(8):
            storage.put(key, [np.zeros(20_000)], kind="zeros")
        storage.flush()
        entries = {key: storage._entries[key].record.arrays[0] for key in storage.keys()}
        assert [entries[key].codec for key in ("state", "other", 0, 3)] == ["float32", "raw", "raw", "raw"]
        assert {entries[key].codec for key in range(4, 8)} <= {"zlib", "blosc2"}
        assert storage.get("other")[0].tobytes() == wave.tobytes()
        assert not np.array_equal(storage.get("state")[0], wave)
        assert not storage.get(7)[0].any()
    with pytest.raises(ValueError, match="float16"):
        Disk(compression={"restart": "float16"})
    assert not Disk().is_lossy("restart")
    assert Disk(compression="float32").is_lossy("restart")


# The packages themselves, where they are installed.

FIELDS = {
    "wave": np.sin(np.linspace(0, 9, 5000)).reshape(50, 100),
    "narrow": np.linspace(0, 1, 3000, dtype="f4").reshape(10, 3, 100),
    "five axes": np.random.default_rng(1).standard_normal((3, 2, 2, 2, 50)),
    "strided": np.arange(20_000.0).reshape(100, 200)[::2, ::-3],
    "swapped": np.arange(3000.0).astype(">f8"),
    "integers": np.arange(5000),
    "complex": np.exp(1j * np.linspace(0, 9, 3000)),
    "special": np.tile(SPECIAL, 300),
    "records": np.ones(700, np.dtype([("a", "f8"), ("b", "i2")])),
    "long": np.zeros(50, "S300"),
    "scalar": np.array(3.5),
}


@pytest.mark.parametrize("name", FIELDS)
def test_blosc2_gives_the_bytes_back(name):
    """Whatever the dtype and the layout, what blosc2 packed comes back bit for bit, writable."""
    pytest.importorskip("blosc2", reason="needs the extra `compress`")
    field = FIELDS[name]
    codec = tried(make_codec("lossless"), np.zeros(1000), 10.0)
    contents = encoded(codec, field)
    if contents is None:
        assert name in {"five axes", "scalar"}  # noise, and what is too small
        return
    assert codec.name == "blosc2"
    found = decoded(codec.name, contents, field.dtype, field.shape)
    assert (found.dtype, found.shape, found.tobytes()) == (field.dtype, field.shape, field.tobytes())
    assert found.flags.writeable


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
@pytest.mark.parametrize("name", FIELDS)
def test_zfp_keeps_its_tolerance(tmp_path, name, tolerance):
    """Floating-point arrays come back within the tolerance and the error that is told, all else bit for bit."""
    pytest.importorskip("zfpy", reason="needs the extra `compress`")
    field = FIELDS[name]
    with Disk(tmp_path, compression=Zfp(tolerance)) as storage:
        storage.put(0, [field])
        (found,) = storage.take(0)
        assert (found.dtype, found.shape) == (field.dtype, field.shape)
        if name in {"wave", "narrow", "five axes", "strided"}:
            off = np.max(np.abs(found - field))
            assert off <= tolerance
            assert off <= storage.relative_error * np.max(np.abs(field)) * (1 + 1e-9)
        else:
            assert found.tobytes() == field.tobytes()
            assert storage.relative_error == 0


def test_what_encoding_saves_goes_back_at_once(tmp_path):
    """An entry of 8 MiB that is stored in half of that takes no more of the disk as soon as it is written."""
    with Disk(tmp_path, compression="float32") as storage:
        storage.put("large", [np.linspace(0.0, 1.0, 1 << 20)])
        storage.put("small", [np.zeros(10)])
        assert storage.nbytes < 5 << 20
        assert blocks(find_files(tmp_path)[0]) <= storage.nbytes + (1 << 20)


@pytest.mark.parametrize("place", [3, 4, 8], ids=["length", "checksum", "frame"])
def test_damage_of_encoded_bytes_is_found(tmp_path, monkeypatch, place):
    """Encoded bytes have a checksum, and no decoder is given what was not written."""
    monkeypatch.setattr(codecs, "_find_unpack", lambda codec, dtype: lambda content: pytest.fail("was decoded"))
    with Disk(tmp_path, compression="float32") as storage:
        storage.put(0, [np.arange(50.0)])
        (path,) = find_files(tmp_path)
        content = bytearray(path.read_bytes())
        content[storage._entries[0].record.data + place] ^= 1
        path.write_bytes(content)
        with pytest.raises(StorageError, match="a frame of array 0 has not the CRC-32C"):
            storage.get(0)


def test_what_cannot_be_decoded_is_an_error():
    """A codec of another version, and frames of fewer elements than there were: nothing is left as memory had it."""
    with pytest.raises(ValueError, match="9 of 10 elements are there"):
        decoded("float32", encoded(make_codec("float32"), np.ones(9)), np.dtype("f8"), (10,))
    with pytest.raises(ValueError, match="'later'"):
        decoded("later", [np.zeros(3, np.uint8)], np.dtype("f8"), (1,))


def test_zfp_that_is_not_installed_is_an_error(monkeypatch):
    """Without the package the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "zfpy", None)
    with pytest.raises(ImportError, match=r"ebbtide\[compress\]"):
        Disk(compression=Zfp(1e-6))


def test_zfp_keeps_what_it_cannot_take(tmp_path, monkeypatch):
    """Arrays go through zfp within the tolerance; integers and infinite numbers are stored as they are."""
    stand_in = types.ModuleType("zfpy")
    # Rounds to the tolerance and leaves half the bytes: what matters here is what is handed over and taken back.
    stand_in.compress_numpy = lambda array, tolerance: array.astype("f4").tobytes()
    stand_in.decompress_numpy = lambda content: np.frombuffer(content, "f4").astype("f8")
    monkeypatch.setitem(sys.modules, "zfpy", stand_in)
    wave = np.random.default_rng(0).standard_normal((3, 2, 2, 2, 5))
    with Disk(tmp_path, compression=Zfp(1e-6)) as storage:
        storage.put(0, [wave, SPECIAL, np.arange(9), np.array(0.1)])
        found = storage.get(0)
        assert found[0].shape == wave.shape
        assert 0 < np.max(np.abs(found[0] - wave)) < 1e-6
        assert [a.tobytes() for a in found[1:3]] == [SPECIAL.tobytes(), np.arange(9).tobytes()]
        assert found[3].shape == ()
        assert storage.relative_error > 0


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("sizes", [(300.0, 1e20), (1.0, 1e5), (1.0, 1e14), (1e300, 1e308)])
def test_zfp_stores_as_it_is_what_it_cannot_hold_within_the_tolerance(tmp_path, sizes, dtype):
    """Where numbers of several magnitudes lie together zfp has too few bits for the small ones."""
    pytest.importorskip("zfpy", reason="needs the extra `compress`")
    random = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        field = ((random.random((400, 50)) + 0.5) * np.resize(np.array(sizes), (400, 50))).astype(dtype)
    for tolerance in (1e-3, 1e300):
        with Disk(tmp_path, compression=Zfp(tolerance)) as storage:
            storage.put(0, [field])
            with np.errstate(over="ignore", invalid="ignore"):
                off = np.abs(storage.get(0)[0] - field)
            assert not (off.astype("f8") > tolerance).any()


def test_blosc2_is_used_where_it_is_installed(monkeypatch):
    """The faster compressor is taken if it is there, and what it made is read by it."""
    stand_in = types.ModuleType("blosc2")
    stand_in.Codec = types.SimpleNamespace(LZ4="lz4")
    stand_in.compress2 = lambda array, typesize, codec: codecs.zlib.compress(array.tobytes())
    stand_in.decompress = codecs.zlib.decompress
    monkeypatch.setitem(sys.modules, "blosc2", stand_in)
    monkeypatch.setattr(codecs.importlib.util, "find_spec", lambda name: True)
    codec = tried(make_codec("lossless"), np.zeros(1000), 10.0)
    contents = encoded(codec, np.arange(1000))
    assert codec.name == "blosc2"
    assert decoded("blosc2", contents, np.dtype(int), (1000,))[999] == 999


LARGE = {
    "in a row": np.sin(np.linspace(0, 99, 3 * 10**5)),
    "plane": np.sin(np.linspace(0, 99, 3 * 10**5)).reshape(500, 600),
    "strided": np.sin(np.linspace(0, 99, 12 * 10**5)).reshape(1000, 1200)[::2, ::2],
    "columns": np.asfortranarray(np.sin(np.linspace(0, 99, 3 * 10**5)).reshape(3, 100_000)),
    "four axes": np.cumsum(np.full(24 * 10**4, 1e-3)).reshape(4, 30, 40, 50),
    "five axes": np.cumsum(np.full(24 * 10**4, 1e-3)).reshape(2, 2, 30, 40, 50)[:, :, ::2],
    "rows of 300 bytes": np.zeros(9000, "S300")[::2],
    "noise at the end": np.concatenate([np.zeros(10**5), np.random.default_rng(0).standard_normal(3 * 10**5)]),
    "not a number at the end": np.concatenate([np.zeros(3 * 10**5), [np.nan]]),
    "too large at the end": np.concatenate([np.zeros(3 * 10**5), [1e300]]),
}


@pytest.mark.parametrize("buffer", [0, 1 << 24])
@pytest.mark.parametrize("compression", ["lossless", "float32", "zfp"])
@pytest.mark.parametrize("name", LARGE)
def test_large_arrays_are_encoded_part_by_part(tmp_path, compression, name, buffer):
    """What comes back is right, also of what turns out late to be stored as it is, and `SCRATCH` is all it took."""
    if compression == "zfp":
        pytest.importorskip("zfpy", reason="needs the extra `compress`")
    array, tolerance = LARGE[name], 1e-4
    slow = replace(POSIX, pwrite=lambda *arguments: time.sleep(0.005) or os.pwrite(*arguments))
    given = Zfp(tolerance) if compression == "zfp" else compression
    with Disk(tmp_path, compression=given, buffer=buffer, system=slow) as storage:
        assert storage.buffer_nbytes == buffer + codecs.SCRATCH
        storage.put("before", [np.arange(900.0), np.zeros(10)])
        storage.get("before")

        def turn(key):
            storage.put(key, [np.arange(300), array, np.arange(200)])
            storage.flush()
            before, found, after = storage.get(key)
            assert (before.tolist(), after.tolist()) == (list(range(300)), list(range(200)))
            if compression == "lossless":
                assert found.tobytes() == array.tobytes()
            elif array.dtype.kind == "f":
                np.testing.assert_allclose(found, array, rtol=0 if compression == "zfp" else 1e-7, atol=tolerance)
            storage.delete(key)

        for key in range(5):
            turn(key)
        taken = peak_bytes(lambda: turn(5))
    # Staged, read, and compared: as bytes, or with what NumPy makes to compare numbers.
    beside = {"lossless": 3, "float32": 7, "zfp": 7}[compression]
    assert taken <= codecs.SCRATCH + beside * array.nbytes + (1 << 17)
