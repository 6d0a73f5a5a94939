"""The tests that every storage must pass."""

from __future__ import annotations

import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import StorageError
from ebbtide.storage import Key, Storage

_DTYPES = ("?", "i1", "<u2", ">i4", "<i8", "<f2", "<f4", ">f8", "g", "<c8", ">c16", "<M8[s]", "S3")


class StorageContract(ABC):
    """
    A contract suite for pytest: derive from it in a class named `Test...` and say how to make the storage.

    Example:
        >>> from ebbtide.storage import Memory
        >>> class TestMemory(StorageContract):
        ...     def make(self, tmp_path):
        ...         return Memory()
    """

    @abstractmethod
    def make(self, tmp_path: Path) -> Storage:
        """
        Return a new, open, empty storage with room for a few MiB.

        Args:
            tmp_path: An empty directory of the test.
        """

    def test_get_returns_the_bits_that_were_put(self, tmp_path: Path) -> None:
        """Shape, dtype, byte order and every bit come back, for any dtype, shape and layout."""
        with self.make(tmp_path) as storage:
            arrays = make_arrays()
            storage.put("all", arrays)
            for loaded in (storage.get("all"), storage.get("all"), storage.take("all")):
                assert_same(loaded, arrays)

    def test_put_copies(self, tmp_path: Path) -> None:
        """The caller may overwrite arrays after `put`, whoever has their elements, how ever they lie, large or not."""
        with self.make(tmp_path) as storage:
            arrays, owners = make_lent()
            expected = [array.copy() for array in arrays]
            storage.put(0, arrays)
            for owner in owners:
                owner[...] = -1.0
            for loaded in (storage.get(0), storage.take(0)):
                assert_same(loaded, expected)

    def test_of_a_subclass_the_plain_array_is_stored(self, tmp_path: Path) -> None:
        """What comes back of a subclass is a plain array; one with a mask is refused, and nothing is stored."""
        with self.make(tmp_path) as storage:
            plain = np.arange(6.0).reshape(2, 3)
            storage.put(0, [plain, plain.copy().view(_Named), plain.copy().view(_Named)[:, ::2]])
            for loaded in (storage.get(0), storage.take(0)):
                assert_same(loaded, [plain, plain.copy(), plain[:, ::2].copy()])
            expect_storage_error(lambda: storage.put(0, [plain, np.ma.masked_array(plain, plain > 2.0)]))
            assert (storage.keys(), storage.nbytes) == ((), 0)

    def test_what_comes_back_belongs_to_the_caller(self, tmp_path: Path) -> None:
        """Writing into what `get` returned changes neither the storage nor another result, nor another array of it."""
        with self.make(tmp_path) as storage:
            arrays = make_lent()[0]
            storage.put(0, arrays)
            first, second = storage.get(0), storage.get(0)
            overwrite(first)
            assert_same(second, arrays)
            overwrite(second)
            assert_same(storage.take(0), arrays)

    def test_an_empty_list_is_stored(self, tmp_path: Path) -> None:
        """No arrays at all are as good as some."""
        with self.make(tmp_path) as storage:
            storage.put("none", [])
            assert storage.keys() == ("none",)
            assert storage.take("none") == []

    def test_keys_are_ints_and_texts_in_order(self, tmp_path: Path) -> None:
        """Any int and any text is a key of its own, and keys are told in the order of `put`."""
        keys = (7, "7", "../up", "a/b", "", -1, "a\nb", "x" * 5000)
        with self.make(tmp_path) as storage:
            for place, key in enumerate(keys):
                storage.put(key, [np.array(place)])
            assert storage.keys() == keys
            assert [int(storage.get(key)[0]) for key in keys] == list(range(len(keys)))

    def test_a_key_is_put_once(self, tmp_path: Path) -> None:
        """Putting a key that is in use is an error and changes nothing; after `delete` it is free again."""
        with self.make(tmp_path) as storage:
            storage.put(1, [np.zeros(2)])
            held = storage.nbytes
            expect_storage_error(lambda: storage.put(1, [np.ones(2)]))
            assert_same(storage.get(1), [np.zeros(2)])
            assert storage.nbytes == held
            storage.delete(1)
            storage.put(1, [np.ones(2)])
            assert_same(storage.get(1), [np.ones(2)])

    def test_a_missing_key_is_an_error(self, tmp_path: Path) -> None:
        """`get`, `take` and `delete` of a key that is not in use raise, also after `take`."""
        with self.make(tmp_path) as storage:
            storage.put(1, [np.zeros(2)])
            storage.take(1)
            for use in (storage.get, storage.take, storage.delete):
                for key in (1, "one"):
                    expect_storage_error(lambda use=use, key=key: use(key))

    def test_entries_have_a_kind(self, tmp_path: Path) -> None:
        """A kind is told with `put`, as time loops do; entries of each come back, rounded only where `is_lossy`."""
        with self.make(tmp_path) as storage:
            wave = np.sin(np.linspace(0.0, 9.0, 3000))
            for kind in ("restart", "saved", "another"):
                grown = storage.put(kind, [wave, np.arange(5)], kind=kind)
                assert grown >= 0, "put has to return the bytes by which the storage grew"
                found = storage.get(kind)
                if not storage.is_lossy(kind):
                    assert_same(found, [wave, np.arange(5)])
                assert (found[0].shape, found[0].dtype) == (wave.shape, wave.dtype)

    def test_many_entries_are_held(self, tmp_path: Path) -> None:
        """A loop may store a thousand states at a time."""
        with self.make(tmp_path) as storage:
            for key in range(1000):
                storage.put(key, [np.full(3, key)])
            assert len(storage.keys()) == 1000
            assert [int(storage.get(key)[0][0]) for key in range(0, 1000, 37)] == list(range(0, 1000, 37))

    def test_objects_are_refused(self, tmp_path: Path) -> None:
        """An array of Python objects is refused, and nothing is stored."""
        with self.make(tmp_path) as storage:
            mixed = [np.zeros(2), np.array([None, "text"], dtype=object)]
            expect_storage_error(lambda: storage.put(1, mixed))
            assert (storage.keys(), storage.nbytes) == ((), 0)

    def test_arrays_are_given_in_a_list(self, tmp_path: Path) -> None:
        """One array alone is refused, whatever its shape; what can be read only once is, or it is stored whole."""
        with self.make(tmp_path) as storage:
            # What a caller without a type checker may give.
            alone: tuple[Any, ...] = (np.array(3.0), np.arange(3.0), np.zeros((0, 2)))
            for array in alone:
                expect_storage_error(lambda array=array: storage.put(1, array))
            assert (storage.keys(), storage.nbytes) == ((), 0)
            arrays = [np.ones(2), np.arange(3.0)]
            iterators: tuple[Any, ...] = (iter(arrays), (array for array in arrays))
            for iterator in iterators:
                try:
                    storage.put(1, iterator)
                except StorageError:
                    assert (storage.keys(), storage.nbytes) == ((), 0)
                else:
                    assert_same(storage.take(1), arrays)

    def test_bytes_are_counted(self, tmp_path: Path) -> None:
        """`put` returns the bytes by which `nbytes` grows; they are given back on `delete` and `take`."""
        with self.make(tmp_path) as storage:
            # Bytes that cannot be compressed.
            array = np.frombuffer(np.random.default_rng(2).bytes(8000))
            counts = [storage.put(key, [array, array]) for key in range(4)]
            assert min(counts) >= 2 * array.nbytes
            assert storage.nbytes == sum(counts)
            assert 0 <= storage.memory_nbytes <= storage.nbytes
            assert storage.memory_limit is None or storage.memory_nbytes <= storage.memory_limit
            storage.delete(2)
            storage.take(0)
            assert storage.nbytes == counts[1] + counts[3]

    def test_close_ends_it(self, tmp_path: Path) -> None:
        """After `close` nothing is held, every use raises, and `close` may be called again."""
        storage = self.make(tmp_path)
        storage.put(1, [np.zeros(2)])
        storage.close()
        storage.close()
        assert (storage.keys(), storage.nbytes, storage.memory_nbytes) == ((), 0, 0)
        uses: tuple[Callable[[], object], ...] = (
            lambda: storage.put(2, [np.zeros(2)]),
            lambda: storage.get(1),
            lambda: storage.take(1),
            lambda: storage.delete(1),
            storage.__enter__,
        )
        for use in uses:
            expect_storage_error(use)

    def test_close_gives_back_memory(self, tmp_path: Path) -> None:
        """After `close` nothing of what was stored, read or read ahead is in memory, though the storage still is."""
        # Not to be compressed; seen by what NumPy has allocated, as nobody else can have what a storage holds.
        array = np.random.default_rng(3).random(1 << 16)
        storage = self.make(tmp_path)
        tracemalloc.start()
        try:
            for key in range(4):
                storage.put(key, [array])
            storage.prefetch(range(4))
            storage.get(0)
            storage.close()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < array.nbytes // 2, f"{held} bytes"

    def test_the_context_manager_closes(self, tmp_path: Path) -> None:
        """The block closes the storage, and an error in it comes out as it is."""
        storage, fault = self.make(tmp_path), KeyError("from the block")
        caught: BaseException | None = None
        try:
            with storage:
                storage.put(1, [np.zeros(2)])
                raise fault
        except KeyError as error:
            caught = error
        assert caught is fault
        expect_storage_error(lambda: storage.get(1))

    def test_reading_ahead_changes_nothing(self, tmp_path: Path) -> None:
        """Whatever order `prefetch` is told, and whatever order is taken, the same comes back."""
        count = 12
        hints: tuple[list[Key], ...] = ([], list(range(count)), [*reversed(range(count))], [3, 3, 7, 3, "unknown", 0])
        for hint in hints:
            with self.make(tmp_path) as storage:
                for key in range(count):
                    storage.put(key, [np.full(5000, key), np.arange(key)])
                storage.prefetch(hint)
                for key in [3, 3, *reversed(range(count)), 5]:
                    assert_same(storage.get(key), [np.full(5000, key), np.arange(key)])
                storage.prefetch(hint)
                storage.delete(4)
                storage.put("late", [np.full(5000, -1)])
                for key in [11, 0, 3, "late"]:
                    expected = [np.full(5000, -1)] if key == "late" else [np.full(5000, key), np.arange(key)]
                    assert_same(storage.take(key), expected)

    def test_what_was_read_ahead_is_not_stale(self, tmp_path: Path) -> None:
        """A key that is deleted and put again gives the new arrays, also if the old ones were read ahead."""
        with self.make(tmp_path) as storage:
            for value in range(4):
                storage.put("same", [np.full(3000, value)])
                storage.prefetch(["same", "same"])
                assert_same(storage.get("same"), [np.full(3000, value)])
                storage.delete("same")

    def test_what_was_read_ahead_belongs_to_the_caller(self, tmp_path: Path) -> None:
        """Writing into what was read ahead does not change the storage."""
        with self.make(tmp_path) as storage:
            # All but the large one: no more than has room in a small buffer.
            arrays = [np.arange(4000.0), *make_lent()[0][:-1]]
            storage.put(0, arrays)
            storage.flush()
            for _ in range(3):
                storage.prefetch([0, 0])
                found = storage.get(0)
                assert_same(found, arrays)
                overwrite(found)

    def test_a_reservation_is_found(self, tmp_path: Path) -> None:
        """As many entries as were reserved can be put, again and again, and a reservation may change or end."""
        with self.make(tmp_path) as storage:
            arrays = [np.arange(3000.0)]
            nbytes = storage.put("measure", arrays)
            storage.delete("measure")
            for slots in (4, 2, 6, 0):
                storage.reserve(slots, nbytes)
                for _ in range(2):
                    for key in range(4):
                        storage.put(key, arrays)
                    for key in (1, 3, 0, 2):
                        assert_same(storage.take(key), arrays)
            assert (storage.keys(), storage.nbytes) == ((), 0)

    def test_buffers_are_bounded(self, tmp_path: Path) -> None:
        """Storing many entries takes no more memory than what is stored there and the buffers that are told."""
        array = np.zeros(1 << 15)
        with self.make(tmp_path) as storage:
            tracemalloc.start()
            try:
                for key in range(24):
                    storage.put(key, [array])
                storage.flush()
                storage.prefetch(range(24))
                for key in range(24):
                    storage.get(key)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            # Beside them: what `get` returned, twice, a block of 1 MiB, and small objects.
            held = storage.memory_nbytes + storage.buffer_nbytes
            assert peak < held + 2 * array.nbytes + (1 << 20) + (1 << 18), f"{peak} bytes, {held} are told"

    def test_flush_is_quiet(self, tmp_path: Path) -> None:
        """`flush` changes nothing that can be seen, and is an error after `close`."""
        with self.make(tmp_path) as storage:
            storage.flush()
            storage.put(0, [np.arange(4)])
            storage.flush()
            assert_same(storage.get(0), [np.arange(4)])
        for use in (storage.flush, lambda: storage.prefetch([0]), lambda: storage.reserve(1, 1)):
            expect_storage_error(use)

    def test_many_cycles_leave_nothing(self, tmp_path: Path) -> None:
        """Storing and taking again and again does not grow."""
        with self.make(tmp_path) as storage:
            for cycle in range(50):
                storage.put("same", [np.full(100, cycle)])
                assert_same(storage.take("same"), [np.full(100, cycle)])
            assert (storage.keys(), storage.nbytes) == ((), 0)


def make_arrays() -> list[NDArray[Any]]:
    """Return arrays of all dtypes, layouts and shapes that a storage must take, several blocks long included."""
    bits = np.random.default_rng(1)
    arrays = [np.frombuffer(bits.bytes(4 * np.dtype(name).itemsize), dtype=name) for name in _DTYPES]
    arrays[0] = np.array([True, False, True, True])
    base = bits.standard_normal((6, 5, 4))
    read_only = base.copy()
    read_only.flags.writeable = False
    large = bits.standard_normal((700, 600))
    return [
        *arrays,
        np.array(3.5),
        np.zeros((0, 3)),
        np.array([(1, 2.5, (3, 4)), (5, np.nan, (6, 7))], [("i", "<i4"), ("x", "<f8"), ("pair", "<u2", 2)]),
        np.array([-0.0, np.nan, np.inf]),
        base[::2, ::-1],
        np.asfortranarray(base),
        base.transpose(1, 2, 0),
        np.broadcast_to(np.arange(3.0), (4, 3)),
        read_only,
        large[:, ::2],
        large.T,
    ]


class _Named(np.ndarray):
    """A subclass, as units and names of axes have."""


def make_lent() -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Return arrays that own their elements and that do not, the last one of more than 4 MiB, and all the owners."""
    bits = np.random.default_rng(4)
    own, alone, base, large = bits.random(5), np.array(3.5), bits.random((6, 8)), bits.random((1 << 19) + 3)
    locked = base[4:]
    locked.flags.writeable = False
    arrays = [own, alone, base[1:3], base[:, ::2], base.T, np.broadcast_to(alone, (3,)), base[0, 0, ...], locked, large]
    return arrays, [own, alone, base, large]


def overwrite(found: list[NDArray[Any]]) -> None:
    """Write into all arrays, and fail unless each has what was written into it."""
    for place, array in enumerate(found):
        array[...] = -1.0 - place
    for place, array in enumerate(found):
        assert (array == -1.0 - place).all(), f"array {place} shares memory with another one of its entry"


def assert_same(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> None:
    """Fail unless arrays agree in dtype, shape and every bit, and the found ones are writable and packed."""
    assert len(found) == len(expected), f"{len(found)} arrays came back, {len(expected)} were put"
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"array {place}: {ours.dtype}, {ours.shape}"
        assert ours.tobytes() == theirs.tobytes(), f"array {place} of dtype {ours.dtype}: its bytes differ"
        assert type(ours) is np.ndarray, f"array {place} is a {type(ours)}"
        assert ours.flags.c_contiguous, f"array {place} is not C-contiguous"
        assert ours.flags.writeable, f"array {place} is read-only"
        assert not np.shares_memory(ours, theirs), f"array {place} is not a copy"


def expect_storage_error(use: Callable[[], object]) -> StorageError:
    """Call a function that must raise `StorageError`, and return the error."""
    try:
        result = use()
    except StorageError as error:
        return error
    raise AssertionError(f"StorageError was not raised; the call returned {result!r}")
