"""Compression: without loss by measurement, with loss by name."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, Zfp, codecs
from ebbtide.storage.codecs import decode, make_codec

from .helpers import blocks, find_files

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-320])


@pytest.mark.parametrize("name", ["lossy", "zfp", "float16", "", 1e-3, True])
def test_loss_is_asked_for_by_name(name):
    """What is no name of a codec is an error that lists them; zfp has no default tolerance."""
    with pytest.raises(ValueError, match=r"'float32', or ebbtide\.storage\.Zfp\(tolerance\)"):
        Disk(compression=name)
    with pytest.raises(TypeError):
        Zfp()
    for tolerance in (0.0, -1.0, float("nan")):
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
        storage.delete(0)


def test_float32_never_makes_a_number_infinite(tmp_path):
    """An array with a finite number that float32 does not hold is stored as it is."""
    with Disk(tmp_path, compression="float32") as storage:
        storage.put(0, [np.array([1e300, 1.0])])
        assert storage.get(0)[0].tolist() == [1e300, 1.0]
        assert storage.relative_error == 0


def test_no_compression_has_no_error(tmp_path):
    """The bits come back without compression and with lossless compression, and the error is 0."""
    for compression in (None, "lossless"):
        with Disk(tmp_path, compression=compression) as storage:
            for key in range(6):
                storage.put(key, [SPECIAL, np.tile(SPECIAL, 3000)])
            for key in range(6):
                assert storage.get(key)[1].tobytes() == np.tile(SPECIAL, 3000).tobytes()
            assert storage.relative_error == 0


@pytest.mark.parametrize(("raw", "packed", "chosen"), [(2.0, 1.0, True), (1.0, 2.0, False)])
def test_lossless_is_kept_if_it_was_faster(raw, packed, chosen):
    """Of the first four entries every second one is compressed; then what took less time for its bytes goes on."""
    codec = make_codec("lossless")
    zeros = np.zeros(1000)
    ways = []
    for _ in range(4):
        encoded = codec.encode(zeros)
        ways.append(encoded is not None)
        codec.wrote(zeros.nbytes, 10, packed if encoded is not None else raw)
    assert ways == [False, True, False, True]
    for _ in range(5):
        assert (codec.encode(zeros) is not None) is chosen
        codec.wrote(zeros.nbytes, 10, 100.0)


def test_what_does_not_shrink_is_stored_as_it_is():
    """Random bytes are not compressed, whatever was measured."""
    codec = make_codec("lossless")
    codec.wrote(1, 1, 1.0)
    assert codec.encode(np.frombuffer(np.random.default_rng(0).bytes(8000))) is None
    assert codec.encode(np.zeros(0)) is None


def test_damage_of_encoded_bytes_is_found(tmp_path):
    """Encoded bytes have a checksum, and a header with a codec that is not known is an error."""
    with Disk(tmp_path, compression="float32") as storage:
        storage.put(0, [np.arange(50.0)])
        (path,) = find_files(tmp_path)
        content = bytearray(path.read_bytes())
        content[storage._entries[0].record.data + 3] ^= 1
        path.write_bytes(content)
        with pytest.raises(StorageError, match="CRC-32C"):
            storage.get(0)
    with pytest.raises(ValueError, match="'later'"):
        decode(np.zeros(3, np.uint8), "later", np.dtype("f8"), (1,))


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


def test_blosc2_is_used_where_it_is_installed(monkeypatch):
    """The faster compressor is taken if it is there, and what it made is read by it."""
    stand_in = types.ModuleType("blosc2")
    stand_in.Codec = types.SimpleNamespace(LZ4="lz4")
    stand_in.compress2 = lambda array, typesize, codec: codecs.zlib.compress(array.tobytes())
    stand_in.decompress = codecs.zlib.decompress
    monkeypatch.setitem(sys.modules, "blosc2", stand_in)
    monkeypatch.setattr(codecs.importlib.util, "find_spec", lambda name: True)
    codec = make_codec("lossless")
    codec.wrote(1, 1, 1.0)
    encoded = codec.encode(np.arange(1000))
    assert encoded.codec == "blosc2"
    assert decode(encoded.content, "blosc2", np.dtype(int), (1000,))[999] == 999
