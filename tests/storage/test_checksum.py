from __future__ import annotations

import re
import sys
import threading
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import storage
from ebbtide.storage import checksum, compute_crc32c, compute_crc32c_of_values
from ebbtide.storage.checksum import BLOCK_BYTES, iterate_blocks, view_bytes

# That of Castagnoli, its highest power lowest and left out.
POLYNOMIAL = 0x82F63B78


def make_layouts():
    """Arrays of one content in many layouts, with names."""
    base = np.random.default_rng(0).standard_normal((40, 30, 20))
    return {
        "packed": base,
        "fortran": np.asfortranarray(base),
        "permuted": base.transpose(2, 0, 1),
        "strided": base[::2, 1:],
        "reversed": base[:, ::-1],
        "broadcast": np.broadcast_to(base[0], (3, 30, 20)),
        "strided permuted": base[::2, 1:].transpose(2, 0, 1),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 4)),
        "empty strided": base[:0, ::2],
        "long double": np.arange(5, dtype="g")[::2],
        "dates": np.arange(5).astype("M8[s]"),
        "read-only": np.frombuffer(b"0123456789abcdef", dtype=np.int32),
    }


# Views of some of them whose C order is that of memory, without what is there more than once.
AS_THEY_LIE = {
    "fortran": np.transpose,
    "permuted": lambda array: array.transpose(1, 2, 0),
    "strided permuted": lambda array: array.transpose(1, 2, 0),
    "reversed": lambda array: array[:, ::-1],
    "broadcast": lambda array: array[0],
}


@pytest.mark.parametrize("name", make_layouts())
def test_unchanged_arrays_keep_their_checksum(name):
    """The same array gives the same number, and it is that of its bytes in the documented order."""
    array = make_layouts()[name]
    found = compute_crc32c(array)
    assert found == compute_crc32c(array)
    assert found == google_crc32c.value(AS_THEY_LIE.get(name, np.asarray)(array).tobytes())


@pytest.mark.parametrize("name", ["packed", "fortran", "permuted", "strided", "reversed"])
def test_any_changed_bit_is_seen(name):
    """Flipping one bit of any element changes the checksum, in every layout."""
    array = make_layouts()[name].view()
    before = compute_crc32c(array)
    generator = np.random.default_rng(1)
    for _ in range(50):
        place = tuple(generator.integers(size) for size in array.shape)
        kept = array[place]
        array[place] = np.nextafter(kept, np.inf)
        assert compute_crc32c(array) != before
        array[place] = kept
    assert compute_crc32c(array) == before


def test_known_value():
    """The check value of CRC-32C is that of the standard."""
    assert compute_crc32c(np.frombuffer(b"123456789", dtype=np.uint8)) == 0xE3069283


@pytest.mark.parametrize("name", ["packed", "fortran", "permuted", "reversed", "broadcast", "strided"])
def test_no_full_copy(name):
    """No layout takes a buffer of more than 16 KiB, writable arrays included: small budgets have none to spare."""
    base = np.zeros((256, 256, 32))
    array = {
        "packed": base,
        "fortran": np.asfortranarray(base),
        "permuted": base.transpose(1, 2, 0),
        "reversed": base[::-1, :, ::-1],
        "broadcast": np.broadcast_to(np.array(1.0), base.shape),
        "strided": base[:, ::2],
    }[name]
    assert peak_bytes(lambda: compute_crc32c(array)) < (20 * 1024 if name == "strided" else 4096)
    if name != "permuted":
        assert peak_bytes(lambda: compute_crc32c_of_values(array)) < (4096 if name == "packed" else 20 * 1024)


def test_padding_takes_no_full_copy():
    """Elements without the bytes that pad them are packed a little at a time."""
    assert peak_bytes(lambda: compute_crc32c_of_values(np.broadcast_to(np.longdouble(1), 1 << 20))) < 32 * 1024
    array = np.ones(1 << 17, "g")
    assert peak_bytes(lambda: compute_crc32c_of_values(array)) < 32 * 1024


@pytest.mark.parametrize("name", make_layouts())
def test_blocks_are_the_bytes_in_c_order(name):
    """The blocks of an array joined are its bytes in C order."""
    array = make_layouts()[name]
    assert b"".join(block.tobytes() for block in iterate_blocks(array)) == array.tobytes()


def test_blocks_are_small():
    """No block is larger than 1 MiB, whether the array is contiguous or not."""
    array = np.zeros((3000, 300))
    for layout in (array, array[:, ::2], array.T):
        sizes = [block.size for block in iterate_blocks(layout)]
        assert max(sizes) <= BLOCK_BYTES
        assert sum(sizes) == layout.nbytes


def test_view_bytes_shares_memory():
    """The bytes of an array are a view of it."""
    array = np.zeros((2, 3), dtype=">f4")
    view_bytes(array)[:] = 1
    assert array.view("u1").min() == 1


WAYS = ("ours", "256 bits at a time", "google")


@pytest.fixture
def way(request, monkeypatch):
    """Take checksums by our own function, where the processor has what it takes, or by that of google-crc32c."""
    if request.param == WAYS[1] and checksum.compiled is not None:
        monkeypatch.setattr(checksum, "_extend", partial(checksum.compiled.extend, is_wide=False))
    if request.param == "google":
        monkeypatch.setattr(checksum, "_extend", google_crc32c.extend)
        monkeypatch.setattr(checksum, "_extend_unlocked", checksum._find_unlocked())
    return request.param


def remainder(content: bytes) -> int:
    """Return the CRC-32C by its definition: bit by bit."""
    found = 0xFFFFFFFF
    for byte in content:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (POLYNOMIAL if found & 1 else 0)
    return found ^ 0xFFFFFFFF


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 255, 256, 511, 512, 1000, (1 << 18) - 1, 1 << 18, (1 << 20) + 7])
def test_all_lengths_and_starts(way, size):
    """Either way gives what the other one gives, at any start, of arrays and of bytes, as a whole and in parts."""
    content = np.frombuffer(np.random.default_rng(size).bytes(size + 3), np.uint8)[3:]
    expected = google_crc32c.value(content.tobytes())
    assert size > 1000 or expected == remainder(content.tobytes())
    assert checksum.extend_crc32c(0, content) == expected
    assert checksum.extend_crc32c(0, content.tobytes()) == expected
    for cut in {min(5, size), size // 2, max(0, size - 1)}:
        assert checksum.extend_crc32c(checksum.extend_crc32c(0, content[:cut]), content[cut:]) == expected


def test_constants_are_powers_of_x():
    """The constants of the folds are what their comment says: powers of x modulo the polynomial, bits reversed."""

    def power(exponent):
        """x^exponent modulo the polynomial, its highest power lowest, moved up by one."""
        found = 1 << 31
        for _ in range(exponent):
            found = (found >> 1) ^ (POLYNOMIAL if found & 1 else 0)
        return found << 1

    text = Path(storage.__file__).with_name("crc32c.h").read_text(encoding="ascii")
    found = {int(name): (int(a, 16), int(b, 16)) for name, a, b in re.findall(r"FOLD_(\d+) (\w+)ULL, (\w+)ULL", text)}
    assert found == {distance: (power(distance + 32), power(distance - 32)) for distance in (2048, 1024, 512, 128)}


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_other_threads_run_while_a_large_block_is_checked(way, monkeypatch):
    """The interpreter's lock is free meanwhile: another thread goes on before the checksum is there."""
    content = np.zeros(1 << 25, np.uint8)
    before = sys.getswitchinterval()
    # No thread gives the lock up by itself.
    sys.setswitchinterval(100)
    try:

        def went_on():
            """Whether this thread ran while the other one was at its checksum; a busy machine may not get to it."""
            began, ended = threading.Event(), []

            def check():
                """What the thread of a storage does."""
                began.set()
                checksum.extend_crc32c(0, content)
                ended.append(True)

            thread = threading.Thread(target=check)
            thread.start()
            began.wait()
            early = not ended
            thread.join()
            return early

        assert any(went_on() for _ in range(200))
        monkeypatch.setattr(checksum, "_extend", google_crc32c.extend)
        monkeypatch.setattr(checksum, "_extend_unlocked", None)
        assert not any(went_on() for _ in range(5))
    finally:
        sys.setswitchinterval(before)


PADDED = {
    "long double": np.linspace(0.1, 1, 7, dtype="g"),
    "complex": np.linspace(0.1, 1, 7, dtype="g") * np.clongdouble(1 + 2j),
    "other end": np.linspace(0.1, 1, 7, dtype="g").astype(np.dtype("g").newbyteorder()),
    "fields": np.array([(1, 0.5, [1, 2]), (2, 0.25, [3, 4])], np.dtype("u1,f8,(2,)g", align=True)),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("every", [1, 2])
def test_the_checksum_of_values_knows_no_padding(name, every):
    """What memory held before in bytes that mean nothing does not count; every byte that means something does."""
    wanted = compute_crc32c_of_values(PADDED[name][::every].copy())
    found = set()
    for byte in range(PADDED[name].itemsize):
        array = PADDED[name].copy()
        array.view(np.uint8).reshape(len(array), -1)[0, byte] ^= 1
        if compute_crc32c_of_values(array[::every]) != wanted:
            found.add(byte)
    padding = 0 if np.finfo("g").nmant != 63 else np.dtype("g").itemsize - 10
    meant = {"long double": 1, "complex": 2, "other end": 1, "fields": 2}[name] * (np.dtype("g").itemsize - padding)
    assert len(found) == meant + (9 if name == "fields" else 0)
    assert min(found) == (padding if name == "other end" else 0)


def test_of_plain_arrays_both_checksums_are_one():
    """Where all bytes mean something it is the checksum of the bytes in C order."""
    array = np.random.default_rng(0).standard_normal((300, 500))
    assert compute_crc32c_of_values(array) == compute_crc32c(array)
    assert compute_crc32c_of_values(array.T) == compute_crc32c(array.T.copy())


@pytest.mark.parametrize("wrong", [None, 3, "abc", b"abc", [1.0], np.array([None])], ids=str)
def test_the_checksum_of_values_is_of_an_array(wrong):
    """What is no array of values is refused with what it is."""
    with pytest.raises(TypeError, match="array without Python objects, not of "):
        compute_crc32c_of_values(wrong)
