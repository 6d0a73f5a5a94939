"""What was deleted from a durable storage, or never stored, where the disk refuses to clear it."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ebbtide.errors import StorageError
from ebbtide.storage import Disk, transfer
from ebbtide.storage.listing import list_storage
from ebbtide.storage.system import POSIX


class Refusing:
    """A disk that refuses some calls."""

    def __init__(self):
        self.refused = set()
        self.system = replace(
            POSIX,
            pwrite=self.call("pwrite"),
            synchronize=self.call("synchronize"),
            punch=lambda *arguments: "punch" not in self.refused and POSIX.punch(*arguments),
        )

    def call(self, name):
        """A call that may be refused."""

        def use(*arguments):
            if name in self.refused:
                raise OSError(errno.EIO, "I/O error")
            return getattr(POSIX, name)(*arguments)

        return use


def find_after_kill(directory, copy):
    """The keys that are found when the process is killed now."""
    shutil.copytree(directory, copy, ignore=lambda *_: ["owner"])
    with Disk(copy, durable=True) as storage:
        return storage.keys()


def fill(storage):
    """Three entries of one size."""
    for key in range(3):
        storage.put(key, [np.full(600, key)])


def test_what_cannot_be_overwritten_is_punched(tmp_path):
    """Where the header of a deleted entry cannot be overwritten its page is given back, and it is gone at once."""
    disk = Refusing()
    with Disk(tmp_path / "kept", durable=True, system=disk.system) as storage:
        fill(storage)
        disk.refused = {"pwrite"}
        storage.delete(1)
        assert find_after_kill(tmp_path / "kept", tmp_path / "killed") == (0, 2)


@pytest.mark.parametrize("refused", [("pwrite", "punch"), ("synchronize",)], ids=" and ".join)
def test_what_cannot_be_cleared_keeps_its_place_and_is_tried_again(tmp_path, refused):
    """No entry gets the place while the old header is there; the next deletion clears it."""
    disk = Refusing()
    with Disk(tmp_path / "kept", durable=True, system=disk.system) as storage:
        fill(storage)
        place = storage._entries[1].record.offset
        disk.refused = refused
        storage.delete(1)
        disk.refused = set()
        storage.put("new", [np.full(600, 7)])
        assert storage._entries["new"].record.offset != place
        storage.delete(0)
        assert find_after_kill(tmp_path / "kept", tmp_path / "killed") == (2, "new")
        storage.put("first", [np.zeros(600)])
        storage.put("second", [np.zeros(600)])
        assert place in {storage._entries[key].record.offset for key in ("first", "second")}


@pytest.mark.parametrize("heals", [False, True])
def test_what_is_never_cleared_is_told_at_the_end(tmp_path, heals):
    """`close` tries once more, and names the file and the key that the next storage will find."""
    disk = Refusing()
    storage = Disk(tmp_path, durable=True, system=disk.system)
    fill(storage)
    disk.refused = {"pwrite", "punch"}
    storage.delete(1)
    if heals:
        disk.refused = set()
        storage.close()
    else:
        with pytest.raises(StorageError, match=f"Cannot delete key 1 in {tmp_path / 'segment'}: its header at offset"):
            storage.close()
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == ((0, 2) if heals else (0, 1, 2))


@pytest.mark.parametrize("buffer", [0, 1 << 20])
def test_what_was_not_synchronized_is_not_stored(tmp_path, buffer):
    """An entry whose `put` failed at its last call is not found later, and is cleared at the latest by `close`."""
    disk = Refusing()
    storage = Disk(tmp_path / "kept", durable=True, buffer=buffer, system=disk.system)
    storage.put("old", [np.arange(600)])
    storage.flush()
    disk.refused = {"synchronize"}

    def store():
        storage.put("new", [np.zeros(600)])
        storage.flush()

    with pytest.raises(StorageError, match="I/O error"):
        store()
    disk.refused = set()
    storage.put("newer", [np.full(600, 5)])
    storage.close()
    with Disk(tmp_path / "kept", durable=True) as storage:
        assert storage.keys() == ("old", "newer")
        assert storage.get("newer")[0][0] == 5


def test_what_fails_at_the_end_is_cleared_before_the_file_is_closed(tmp_path):
    """A write that fails while the storage is closed leaves nothing in the file, and no call for a closed one."""
    disk = Refusing()
    storage = Disk(tmp_path, durable=True, buffer=1 << 20, system=disk.system)
    disk.refused = {"synchronize"}
    storage.put("new", [np.zeros(600)])
    closed = []
    finish = storage._resources.finish
    storage._resources.finish = lambda: (closed.append(list(storage._entries)), disk.refused.clear(), finish())
    with pytest.raises(StorageError, match="'new'"):
        storage.close()
    assert closed == [[]]
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == ()


def two_of_a_key(directory):
    """A directory as it is left by a kill between the two halves of `replace`: how both begin."""
    disk = Refusing()
    storage = Disk(directory, durable=True, compression="float32", system=disk.system)
    storage.put("state", [np.full(6000, 1.0)])
    starts = [storage._entries["state"].record.offset]
    clear = storage._resources.segment.give
    storage._resources.segment.give = lambda record: None
    storage.replace("state", [np.full(6000, 2.0)])
    starts.append(storage._entries["state"].record.offset)
    storage._resources.segment.give = clear
    storage.close()
    return starts


def test_what_cannot_be_read_is_not_taken_for_damaged(tmp_path):
    """An error of the disk while a directory is opened is raised, and both entries of the key stay."""
    _, second = two_of_a_key(tmp_path)
    content = (tmp_path / "segment").read_bytes()

    def refuse(descriptor, buffers, offset):
        raise OSError(errno.EIO, "I/O error")

    with pytest.raises(StorageError, match=f"at offset {second} of {tmp_path / 'segment'}: I/O error") as caught:
        Disk(tmp_path, durable=True, system=replace(POSIX, preadv=refuse))
    assert caught.value.errno == errno.EIO
    del caught  # the storage that was not made has the lock until its error is gone
    assert (tmp_path / "segment").read_bytes() == content
    with Disk(tmp_path, durable=True) as storage:
        assert storage.get("state")[0][0] == 2
    assert len(list_storage(tmp_path).entries) == 1


def test_what_cannot_be_decoded_here_is_whole(tmp_path, monkeypatch):
    """Without the package of a codec a directory is opened and checked as ever; only `get` names what is missing."""
    two_of_a_key(tmp_path)

    def miss(*arguments):
        raise ImportError("No module named 'zfpy'")

    monkeypatch.setattr(transfer, "decode", miss)
    with Disk(tmp_path, durable=True) as storage:
        with pytest.raises(StorageError, match=r"'state'.*No module named 'zfpy'.*Install ebbtide\[compress\]"):
            storage.get("state")
        assert list_storage(tmp_path, check=True).damaged == ()
        monkeypatch.undo()
        assert storage.get("state")[0][0] == 2
