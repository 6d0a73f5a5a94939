"""Every storage, in every way of making it, passes the contract suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.storages import Delegating

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, Memory, Storage, Tiered
from ebbtide.testing import StorageContract

MIB = 1 << 20
BACK, AHEAD = "what_comes_back_belongs_to_the_caller", "what_was_read_ahead_belongs_to_the_caller"
PLAIN = "of_a_subclass_the_plain_array_is_stored"


class TestMemory(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """Memory needs no directory."""
        return Memory()


class TestDisk(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """In the directory of the test."""
        return Disk(tmp_path)


class TestDiskWithBuffer(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """Room for all that the tests store at a time, or nearly."""
        return Disk(tmp_path, buffer="2 MiB")


class TestDiskWithSmallBuffer(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """Room for two of the small entries; larger ones are written at once."""
        return Disk(tmp_path, buffer=2 * 40_600)


class TestDiskLossless(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """Compressed by zlib, or not, as it is measured."""
        return Disk(tmp_path, compression="lossless")


class TestDiskLosslessWithBuffer(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """As above, in the thread."""
        return Disk(tmp_path, compression="lossless", buffer="1 MiB")


class TestDurableDisk(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """A directory that keeps nothing from an earlier storage of the test."""
        return emptied(Disk(tmp_path / "durable", durable=True))


class TestDurableDiskWithBuffer(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """As above."""
        return emptied(Disk(tmp_path / "durable", durable=True, buffer="1 MiB"))


class TestTiered(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """Some entries in memory, some on disk."""
        return Tiered(100_000, Disk(tmp_path, buffer="1 MiB"))


class TestTieredWithoutMemory(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """All on disk."""
        return Tiered(0, Disk(tmp_path))


class TestTieredWithoutNeedOfDisk(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        """All in memory."""
        return Tiered("1 GiB", Disk(tmp_path))


def emptied(storage: Disk) -> Disk:
    """Delete all that a durable storage has found."""
    for key in storage.keys():
        storage.delete(key)
    return storage


def test_the_suite_finds_a_storage_that_reads_ahead_what_is_stale(tmp_path):
    """A storage that keeps what it read ahead after a deletion fails the contract."""

    class Stale(StorageContract):
        def make(self, tmp_path):
            """A memory that returns what it returned first."""
            return Forgetful()

    with pytest.raises(AssertionError, match="bytes differ"):
        Stale().test_what_was_read_ahead_is_not_stale(tmp_path)


class Forgetful(Delegating):
    """Returns the first arrays of a key for ever."""

    def __init__(self):
        super().__init__()
        self.first = {}

    def put(self, key, arrays, *, kind=""):
        """Keep the first arrays beside."""
        self.first.setdefault(key, [array.copy() for array in arrays])
        return super().put(key, arrays, kind=kind)

    def get(self, key):
        """Not what was put last."""
        return [array.copy() for array in self.first[key]]

    def take(self, key):
        """Not used."""
        raise StorageError(str(key))


class UsedUp(Delegating):
    """Looks through what it is given before it stores that."""

    def put(self, key, arrays, *, kind=""):
        """Nothing is left of an iterator."""
        if isinstance(arrays, np.ndarray):
            raise StorageError("Give a list.")
        assert all(one.dtype.kind != "O" for one in arrays)
        return super().put(key, list(arrays), kind=kind)


class TakesRows(Delegating):
    """Takes an array for the list of its rows."""

    def put(self, key, arrays, *, kind=""):
        """Of an array without axes there is one."""
        return super().put(key, list(np.atleast_1d(arrays) if isinstance(arrays, np.ndarray) else arrays), kind=kind)


class Keeping(Delegating):
    """Forgets to let go of one of the arrays."""

    def put(self, key, arrays, *, kind=""):
        """Keep it beside, for whatever it may be good."""
        self.kept = [array.copy() for array in arrays]
        return super().put(key, arrays, kind=kind)


def test_the_suite_finds_a_storage_that_holds_arrays_after_close(tmp_path):
    """A closed storage that is empty by its keys, and has an array still, fails the contract."""

    class Holding(StorageContract):
        def make(self, tmp_path):
            """It says that it has nothing."""
            return Keeping()

    Holding().test_close_ends_it(tmp_path)
    with pytest.raises(AssertionError, match=r"\d{6} bytes"):
        Holding().test_close_gives_back_memory(tmp_path)


@pytest.mark.parametrize(("storage", "message"), [(UsedUp, "0 arrays came back"), (TakesRows, "was not raised")])
def test_the_suite_finds_a_storage_that_takes_something_else_for_a_list(storage, message, tmp_path):
    """A storage that stores something else than what it was given, without a word, fails the contract."""

    class Careless(StorageContract):
        def make(self, tmp_path):
            """It stores lists rightly."""
            return storage()

    with pytest.raises(AssertionError, match=message):
        Careless().test_arrays_are_given_in_a_list(tmp_path)


class Boasting(Delegating):
    """Has all in memory, and says that it has nothing there."""

    memory_limit = 0


def test_the_suite_finds_a_storage_that_has_more_in_memory_than_it_says(tmp_path):
    """A budget would leave no room for what such a storage takes."""

    class Larger(StorageContract):
        def make(self, tmp_path):
            """It counts its bytes rightly."""
            return Boasting()

    with pytest.raises(AssertionError):
        Larger().test_bytes_are_counted(tmp_path)


class Lending(Delegating):
    """Stores what `keep` makes of each array and returns what `lend` makes of each; both are told its place."""

    def __init__(self, keep, lend):
        super().__init__()
        self.keep, self.lend, self.arrays = keep, lend, {}

    def put(self, key, arrays, *, kind=""):
        """Keep the arrays beside the ones that are counted."""
        count = super().put(key, arrays, kind=kind)
        self.arrays[key] = [self.keep(array, place) for place, array in enumerate(arrays)]
        return count

    def get(self, key):
        """Of what lies beside."""
        super().get(key)
        return [self.lend(array, place) for place, array in enumerate(self.arrays[key])]

    def take(self, key):
        """Of what lies beside."""
        super().take(key)
        return [self.lend(array, place) for place, array in enumerate(self.arrays.pop(key))]

    def delete(self, key):
        """Both."""
        super().delete(key)
        del self.arrays[key]


def packed(array, place=0):
    """Return a plain copy."""
    return np.array(array, order="C", subok=False)


def but(where, other=np.asarray):
    """Return a function that copies arrays, and does something else with those of a kind."""
    return lambda array, place: other(array) if where(array, place) else packed(array)


@pytest.mark.parametrize(
    ("keep", "lend", "fails"),
    [
        (packed, but(lambda array, place: place > 0), [BACK, AHEAD]),
        (packed, but(lambda array, place: array.nbytes > 4 * MIB), [BACK]),
        (but(lambda array, place: array.base is not None), packed, ["put_copies"]),
        (but(lambda array, place: not array.flags.c_contiguous), packed, ["put_copies"]),
        (but(lambda array, place: not array.flags.writeable), packed, ["put_copies"]),
        (but(lambda array, place: array.ndim == 0), packed, ["put_copies"]),
        (but(lambda array, place: array.nbytes > 4 * MIB), packed, ["put_copies"]),
        (
            but(lambda array, place: array.nbytes > 4 * MIB, lambda array: array.astype("f4").astype(array.dtype)),
            packed,
            ["put_copies", BACK],
        ),
        (lambda array, place: array.copy("C"), lambda array, place: array.copy("C"), [PLAIN]),
    ],
    ids=["rest_lent", "large_lent", "views", "strided", "read_only", "scalars", "large", "rounded", "subclass"],
)
def test_the_suite_finds_a_storage_that_shares_some_of_its_arrays(keep, lend, fails, tmp_path):
    """Copies that some arrays of an entry are not, or not exactly, fail the contract, and by the tests that say so."""

    class Sharing(StorageContract):
        def make(self, tmp_path):
            """It copies most of what it is given."""
            return Lending(keep, lend)

    for name in fails:
        with pytest.raises(AssertionError, match=r"array \d"):
            getattr(Sharing(), f"test_{name}")(tmp_path)


@pytest.mark.parametrize("make", [Memory, Disk, lambda: Tiered("1 KiB", Disk())], ids=["Memory", "Disk", "Tiered"])
def test_what_cannot_be_stored_is_told(make):
    """A key is an int or a text, and what is stored a sequence of arrays; what is none is named, and not held."""
    array = np.arange(3.0)
    with make() as storage:
        for key in (None, [], {}, 1.5, (1, 2), b"a", np.int64(3), object()):
            with pytest.raises(StorageError, match=r"by the key .*: a key is an int or a str"):
                storage.put(key, [array])
        for arrays in (None, 3):
            with pytest.raises(StorageError, match=f"Cannot store {arrays!r} by the key 'a': give a"):
                storage.put("a", arrays)
        for arrays in ((one for one in [array]), iter([array]), map(np.asarray, [1.0])):
            with pytest.raises(StorageError, match=r"Cannot store <.* by the key 'a': give a list of arrays"):
                storage.put("a", arrays)
        for alone in (array, np.array(3.0), np.zeros((0, 2))):
            with pytest.raises(StorageError, match=r"Cannot store an array alone by the key 'a': give a list, \[array"):
                storage.put("a", alone)
        for kind in (None, object(), [1]):
            with pytest.raises(StorageError, match=r"Cannot store key 'a' with the kind .*: a kind is a str"):
                storage.put("a", [array], kind=kind)
        for wrong, kind in ((3, "int"), ("a", "str"), (None, "NoneType"), ([1.0], "list")):
            with pytest.raises(StorageError, match=f"array 1 of key 'a': it is a {kind}, and no NumPy array"):
                storage.put("a", [array, wrong])
        assert storage.keys() == ()
        storage.put("a", (array, np.float64(2.0)))
        assert storage.get("a")[1] == 2.0
        storage.put("b", {"x": array}.values())
        assert storage.take("b")[0].tolist() == [0, 1, 2]
        for use in (storage.get, storage.take, storage.delete):
            for key in ([1], {}, (1, [])):
                with pytest.raises(StorageError, match=r"is no key: a key is an int or a str"):
                    use(key)
            with pytest.raises(StorageError, match="nothing stored under the key 3"):
                use(3)


@pytest.mark.parametrize("make", [Memory, Disk, lambda: Tiered("1 KiB", Disk())], ids=["Memory", "Disk", "Tiered"])
def test_a_reservation_is_of_whole_numbers(make):
    """Room is reserved for a number of entries of so many bytes, which may be of NumPy."""
    with make() as storage:
        for slots, nbytes in (("a", 3), (3, "a"), (-1, 3), (3, -1), (None, None), (1.5, 2), (10**30, 9), (2, True)):
            with pytest.raises(StorageError, match=r"Cannot reserve room for .* entries of .* bytes"):
                storage.reserve(slots, nbytes)
        storage.reserve(np.int64(2), np.int64(4096))
        storage.reserve(0, 0)
