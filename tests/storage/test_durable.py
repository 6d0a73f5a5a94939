"""Directories that outlive their storage: what is found again, who may use them, and what is cleaned up."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from dataclasses import asdict, replace
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from tests.forks import run_forked

from ebbtide import cli
from ebbtide.errors import StorageError
from ebbtide.storage import Disk, StorageLockedError, entry_nbytes
from ebbtide.storage import durable as durable_module
from ebbtide.storage import places as places_module
from ebbtide.storage.durable import DirectoryLock
from ebbtide.storage.listing import clean, find_storages, list_storage
from ebbtide.storage.places import sweep
from ebbtide.storage.segment import Segment
from ebbtide.storage.system import POSIX

from .helpers import blocks, count_descriptors, find_files, run_python, start_python, takes

OPEN = (
    "import os, sys, time, numpy as np\n"
    "from ebbtide.errors import StorageError\n"
    "from ebbtide.storage import Disk, StorageLockedError\n"
)


def test_entries_are_found_again(tmp_path):
    """Another storage of the same directory has the same keys, arrays and generations, and goes on counting."""
    directory = tmp_path / "kept"
    arrays = [np.arange(6.0).reshape(2, 3), np.array(True), np.zeros((0, 2), "c8")]
    with Disk(directory, durable=True, buffer=1 << 20) as storage:
        storage.put("a", arrays, kind="first")
        storage.put(7, [np.zeros(30_000)])
        storage.put("gone", [np.zeros(5)])
        storage.delete("gone")
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "segment"]
    with Disk(directory, durable=True) as storage:
        assert storage.keys() == ("a", 7)
        assert [storage.generation(key) for key in ("a", 7)] == [1, 2]
        for found, expected in zip(storage.get("a"), arrays, strict=True):
            assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        storage.put("b", [np.ones(3)])
        assert storage.generation("b") > 2
        assert storage.take(7)[0].size == 30_000
    with Disk(directory, durable=True) as storage:
        assert storage.keys() == ("a", "b")


def test_an_entry_at_another_place_is_none(tmp_path):
    """What is a copy of an entry, as where a file was stored that is one of entries, does not bring it back."""
    with Disk(tmp_path, durable=True) as storage:
        for key in ("gone", "kept"):
            storage.put(key, [np.zeros(5)])
        copied = (tmp_path / "segment").read_bytes()[: entry_nbytes([np.zeros(5)], "gone")]
        storage.delete("gone")
    with (tmp_path / "segment").open("ab") as file:
        file.write(bytes(-file.tell() % len(copied)) + copied)
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == ("kept",)


def test_replace_is_the_newest(tmp_path):
    """`replace` has the new arrays, a higher generation and no second copy, buffered writes included."""
    with Disk(tmp_path, durable=True, buffer=1 << 20) as storage:
        storage.put("state", [np.zeros(1000)])
        for turn in range(1, 4):
            size = storage.replace("state", [np.full(1000, turn)])
            assert storage.get("state")[0][0] == turn
            assert storage.generation("state") == turn + 1
            assert storage.nbytes == size
        storage.replace("new", [np.ones(2)])
    with Disk(tmp_path, durable=True) as storage:
        assert storage.get("state")[0][0] == 3
        assert storage.get("new")[0].size == 2


def test_the_newest_is_told_by_its_generation(tmp_path, monkeypatch):
    """Killed when it was written, and before the old one was deleted: wherever in the file each of them lies."""

    def replace():
        with Disk(tmp_path, durable=True) as storage:
            storage.put("before", [np.zeros(3)])
            storage.put("a", [np.full(3, 1.0)])
            storage.delete("before")
            monkeypatch.setattr(Segment, "give", lambda segment, record: os.kill(os.getpid(), signal.SIGKILL))
            storage.replace("a", [np.full(3, 2.0)])

    assert run_forked(replace)[0] == signal.SIGKILL
    assert [(entry.offset, entry.key) for entry in list_storage(tmp_path).entries] == [(4096, "a"), (0, "a")]
    with Disk(tmp_path, durable=True) as storage:
        assert storage.generation("a") == 3
        assert storage.get("a")[0].tolist() == [2.0] * 3


@pytest.mark.parametrize("size", [3, 20_000])
def test_replace_survives_a_kill_at_every_write(tmp_path, size):
    """Whichever write is the last one of a process, the old arrays or the new ones are found, whole."""
    seen = set()
    for fatal in range(1, 12):
        directory = tmp_path / str(fatal)
        calls = []

        def die(descriptor, block, offset, fatal=fatal, calls=calls):
            """Write half a block, and nothing after it."""
            calls.append(offset)
            view = memoryview(block).cast("B")
            if len(calls) < fatal:
                return os.pwrite(descriptor, view, offset)
            if len(calls) == fatal:
                os.pwrite(descriptor, view[: len(view) // 2], offset)
            raise KeyboardInterrupt

        with Disk(directory, durable=True) as storage:
            storage.put("state", [np.full(size, 1.0)])
            storage.put("other", [np.full(size, 5.0)])
        storage = Disk(directory, durable=True, system=replace(POSIX, pwrite=die))
        try:
            storage.replace("state", [np.full(size, 2.0)])
            storage.replace("state", [np.full(size, 3.0)])
        except KeyboardInterrupt:
            pass
        killed = tmp_path / f"{fatal} as it was"
        shutil.copytree(directory, killed)
        (killed / "owner").unlink()
        storage.close()
        with Disk(killed, durable=True) as storage:
            assert sorted(storage.keys()) == ["other", "state"]
            (found,) = storage.get("state")
            assert (found.size, len(set(found))) == (size, 1)
            seen.add(found[0])
            assert storage.get("other")[0][-1] == 5
    assert seen == {1.0, 2.0, 3.0}


@pytest.mark.parametrize("size", [3, 20_000])
def test_replace_survives_a_loss_of_power(tmp_path, size):
    """Whichever of its writes the disk had when the power went, the old arrays or the new ones are found, whole."""
    seen = set()
    # A large entry is written by its pages, the last one, the first one and the header.
    count = 2 if size == 3 else 4
    for kept in chain.from_iterable(combinations(range(count), n) for n in range(count + 1)):
        directory = tmp_path / str(kept)
        calls = []

        def lose(descriptor, block, offset, kept=kept, calls=calls):
            """Have some writes come to the disk, in no order, before it is synchronized."""
            calls.append(offset)
            return os.pwrite(descriptor, block, offset) if len(calls) - 1 in kept else memoryview(block).nbytes

        killed = tmp_path / f"{kept} as it was"

        def fail(descriptor, directory=directory, killed=killed, calls=calls):
            """The power goes; what is there then is kept, as the storage will tidy up."""
            if not killed.exists():
                assert len(calls) == count
                shutil.copytree(directory, killed, ignore=lambda *_: ["owner"])
                raise KeyboardInterrupt

        with Disk(directory, durable=True) as storage:
            storage.put("state", [np.full(size, 1.0)])
        storage = Disk(directory, durable=True, system=replace(POSIX, pwrite=lose, synchronize=fail))
        with pytest.raises(KeyboardInterrupt):
            storage.replace("state", [np.full(size, 2.0)])
        storage.close()
        with Disk(killed, durable=True) as storage:
            (found,) = storage.get("state")
            assert (found.size, len(set(found))) == (size, 1)
            seen.add(found[0])
            assert (found[0] == 2.0) == (len(kept) == count)
    assert seen == {1.0, 2.0}


@pytest.mark.parametrize(("buffer", "live"), [(0, 20), (100_000, 20), (1 << 20, 100)])
def test_a_killed_process_leaves_whole_entries(tmp_path, buffer, live):
    """After kill -9 at any moment every entry that is listed can be read, and the stale lock is taken over."""
    program = OPEN + (
        f"storage = Disk(sys.argv[1], durable=True, buffer={buffer})\n"
        "for turn in range(10**6):\n"
        "    storage.put(turn, [np.full(3000, turn)])\n"
        f"    if turn > {live}: storage.delete(turn - {live})\n"
        f"    if turn == {live + 10}: print('running', flush=True)\n"
    )
    process = start_python(program, tmp_path / "kept")
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list_storage(tmp_path / "kept").used is False
    with Disk(tmp_path / "kept", durable=True) as storage:
        assert len(storage.keys()) >= 10  # of 100 entries a buffer of 1 MiB has room for 43
        for key in storage.keys():
            assert set(storage.get(key)[0]) == {key}
        storage.put("new", [np.zeros(3)])


def test_every_truncation_of_a_durable_file_is_found(tmp_path):
    """Whatever is cut off, the entries before are right, and the one that is cut is an error or not there."""
    with Disk(tmp_path / "kept", durable=True) as storage:
        for key in range(3):
            storage.put(key, [np.full(700, key)])
    content = (tmp_path / "kept" / "segment").read_bytes()
    for length in range(0, len(content), 101):
        (tmp_path / "kept" / "segment").write_bytes(content[:length])
        with Disk(tmp_path / "kept", durable=True) as storage:
            for key in storage.keys():
                if key != storage.keys()[-1] or length >= 8192 * key + storage._entries[key].record.length:
                    assert set(storage.get(key)[0]) == {key}
                else:
                    with pytest.raises(StorageError, match=f"offset {length}"):
                        storage.get(key)


def test_flips_in_a_durable_file_never_change_an_array(tmp_path):
    """With any byte changed, an entry is as it was, an error, or not there."""
    random = np.random.default_rng(11)
    with Disk(tmp_path / "kept", durable=True) as storage:
        for key in range(3):
            storage.put(key, [np.full(300, key)])
    path = tmp_path / "kept" / "segment"
    content = path.read_bytes()
    for _ in range(200):
        place = int(random.integers(len(content))) if random.random() < 0.5 else int(random.integers(200))
        damaged = bytearray(content)
        damaged[place] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        with Disk(tmp_path / "kept", durable=True) as storage:
            assert set(storage.keys()) <= {0, 1, 2}
            for key in storage.keys():
                try:
                    found = storage.get(key)[0]
                except StorageError:
                    continue
                assert set(found) == {key}


# Locks.


def without_locks(*arguments):
    """The call for locks, of a file system that has none."""
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_second_process_is_refused(tmp_path):
    """While a process uses a durable directory, another one is told its host and number; afterwards it may."""
    directory = tmp_path / "kept"
    program = OPEN + "storage = Disk(sys.argv[1], durable=True)\nprint('open', flush=True)\ninput()\n"
    holder = start_python(program, directory)
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(StorageLockedError, match=f"process {holder.pid} on") as caught:
        Disk(directory, durable=True)
    assert (caught.value.pid, caught.value.host) == (holder.pid, places_module.host_name())
    with pytest.raises(StorageLockedError):
        clean(directory)
    assert list_storage(directory).used
    holder.communicate("\n", timeout=60)
    with Disk(directory, durable=True) as storage:
        storage.put(0, [np.zeros(2)])


def test_a_second_storage_of_the_process_is_refused(tmp_path):
    """One process cannot open a directory twice, and being refused does not give up its lock."""
    with Disk(tmp_path, durable=True) as storage:
        with pytest.raises(StorageLockedError, match=str(os.getpid())):
            Disk(tmp_path, durable=True)
        program = OPEN + (
            "try:\n    Disk(sys.argv[1], durable=True)\nexcept StorageLockedError as error:\n    print(error.pid)\n"
        )
        assert run_python(program, tmp_path)[1] == f"{os.getpid()}\n"
        storage.put(0, [np.zeros(2)])


def test_a_process_that_begins_anew_is_not_refused(tmp_path, monkeypatch):
    """After exec a process has its number and start still, and its locks no more: the directory is free."""
    program = OPEN + (
        "storage = Disk(sys.argv[1], durable=True)\n"
        "if len(sys.argv) == 2:\n"
        "    storage.put(0, [np.zeros(2)])\n"
        "    os.execv(sys.executable, [*sys.orig_argv, 'again'])\n"
        "print(os.getpid(), storage.keys(), flush=True)\n"
    )
    process = start_python(program, tmp_path)
    assert process.communicate(timeout=60) == (f"{process.pid} (0,)\n", "")
    # As if this process had used it, and begun anew.
    me = {**asdict(places_module.this_process()), "since": 0.0}
    (tmp_path / "owner").write_text(json.dumps(me))
    with monkeypatch.context() as patch:
        patch.setattr(places_module.fcntl, "lockf", without_locks)
        with pytest.raises(StorageLockedError, match=f"process {os.getpid()} on .*remove the file"):
            Disk(tmp_path, durable=True)
    assert not list_storage(tmp_path).used
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == (0,)
        assert list_storage(tmp_path).used
    (tmp_path / "owner").write_text(json.dumps(me))
    assert clean(tmp_path) == [tmp_path]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupt_while_a_directory_is_locked_leaves_it_free(tmp_path, monkeypatch, after):
    """Interrupted before or after the owner's file is there, no descriptor stays open, and the next storage gets it."""
    replace_file = os.replace

    def interrupt(*arguments):
        """As the terminal does."""
        if after:
            replace_file(*arguments)
        raise KeyboardInterrupt

    before = count_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Disk(tmp_path, durable=True)
    assert count_descriptors() == before
    with Disk(tmp_path, durable=True) as storage:
        storage.put(0, [np.arange(3)])
        assert storage.take(0)[0].tolist() == [0, 1, 2]


def failing(function, at, name=""):
    """A call of the operating system that fails at its call of number *at* on a path with a name: a full disk."""
    calls = 0

    def call(*arguments, **options):
        nonlocal calls
        calls += name in str(arguments)
        if calls == at and name in str(arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("made", [False, True], ids=["theirs", "ours"])
@pytest.mark.parametrize("name", ["lock", "segment"])
def test_a_directory_that_cannot_be_used_is_not_left(tmp_path, monkeypatch, name, made):
    """If a file cannot be made, what was made for it is gone again, and a directory that was there is as it was."""
    directory, before = tmp_path / "kept", count_descriptors()
    if not made:
        directory.mkdir()
        (directory / "notes").write_text("theirs")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(os.open, 1, name))
        with pytest.raises(StorageError, match=r"kept.*No space left on device\. Give a directory"):
            Disk(directory, durable=True)
    assert count_descriptors() == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ([] if made else ["kept", "notes"])
    with Disk(directory, durable=True) as storage:
        storage.put(0, [np.arange(3)])
    with monkeypatch.context() as patch:
        # A file that is there is opened to see whose it is, and then to be used.
        patch.setattr(os, "open", failing(os.open, 1 if name == "lock" else 2, name))
        with pytest.raises(StorageError, match="No space left on device"):
            Disk(directory, durable=True)
    with Disk(directory, durable=True) as storage:
        assert storage.keys() == (0,)


@pytest.mark.parametrize("call", ["write_text", "replace"])
def test_a_full_disk_has_no_owner(tmp_path, monkeypatch, call):
    """Where the owner's name finds no room the lock says enough: others are refused, also by `clean`."""
    directory = tmp_path / "kept"
    with Disk(directory, durable=True) as storage:
        storage.put(0, [np.arange(3)])
    (directory / "owner").write_text('{"host": "localhost", "pid": 4194305, "start": 7, "since": 1.0}')
    with monkeypatch.context() as patch:
        where = Path if call == "write_text" else os
        patch.setattr(where, call, failing(getattr(where, call), 1, "owner"))
        storage = Disk(directory, durable=True)
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "segment"]
    assert storage.keys() == (0,)
    program = OPEN + (
        "from pathlib import Path\nfrom ebbtide.storage.listing import clean\n"
        "for use in lambda path: Disk(path, durable=True), clean:\n"
        "    try:\n        use(Path(sys.argv[1]))\n    except StorageLockedError as error:\n        print(error)\n"
    )
    _, told, problems = run_python(program, directory)
    assert [line.count("by the process 0 on an unknown host") for line in told.splitlines()] == [1, 1], problems
    storage.close()
    clean(directory)
    assert not directory.exists()


def test_a_number_that_was_used_again_is_no_owner(tmp_path):
    """A dead owner whose process number has gone to another process does not keep the directory."""
    me = places_module.this_process()
    (tmp_path / "owner").write_text(json.dumps({"host": me.host, "pid": os.getppid(), "start": 1}))
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == ()


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("written", [0, 5, None])
def test_a_kill_while_the_owner_is_written_leaves_nothing_for_good(tmp_path, entries, written):
    """What a process leaves that is killed before its name is in place is removed by `clean` and by the next owner."""
    # None: the whole text is there, under its other name. A child for each: it has what its parent has imported.
    program = OPEN + (
        "from pathlib import Path\n"
        "write = Path.write_text\n"
        "def half(path, text, **kwargs):\n"
        f"    write(path, text[:{written}], **kwargs)\n"
        "    os.kill(os.getpid(), 9)\n"
        "Path.write_text = half\n"
        "for directory in sys.argv[1:]:\n"
        "    child = os.fork()\n"
        "    if not child: Disk(directory, durable=True)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    directories = tmp_path / "cleaned", tmp_path / "used"
    for directory in directories if entries else ():
        with Disk(directory, durable=True) as storage:
            storage.put("kept", [np.arange(3.0)])
    status, killed, problems = run_python(program, *directories)
    assert (status, killed.split()) == (0, [str(-signal.SIGKILL)] * 2), problems
    for directory in directories:
        assert any(path.name.startswith("owner.") for path in directory.iterdir())
    assert list(find_storages(tmp_path)) == [tmp_path / "cleaned", tmp_path / "used"]
    clean(tmp_path / "cleaned")
    with Disk(tmp_path / "used", durable=True) as storage:
        assert storage.keys() == (("kept",) if entries else ())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["lock", "segment", "used"]


def test_a_lock_of_others_is_no_storage(tmp_path):
    """A directory in which something else lies beside a file `lock` is none of ours, and `clean` leaves it alone."""
    for name in ("lock", "owner.txt"):
        (tmp_path / name).write_text("theirs")
    assert list(find_storages(tmp_path)) == []
    assert clean(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_without_locks_an_owner_elsewhere_is_believed(tmp_path, monkeypatch):
    """On a file system without locks, an owner on another machine cannot be checked: it is refused, and named."""
    monkeypatch.setattr(places_module.fcntl, "lockf", without_locks)
    with Disk(tmp_path, durable=True) as storage:
        storage.put(0, [np.zeros(2)])
    (tmp_path / "owner").write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": 1}))
    with pytest.raises(StorageLockedError, match=r"process 1 on elsewhere.*remove the file"):
        Disk(tmp_path, durable=True)
    (tmp_path / "owner").unlink()
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == (0,)


def test_a_durable_storage_needs_a_directory(tmp_path):
    """Without a directory there is nothing to find again, and one that cannot be made is named."""
    with pytest.raises(ValueError, match="directory="):
        Disk(durable=True)
    with pytest.raises(StorageError, match="missing"):
        Disk(tmp_path / "missing" / "kept", durable=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(StorageError, match=rf"{name} for storage: Not a directory\. Give .* as directory="):
            Disk(tmp_path / name, durable=True)


@pytest.mark.parametrize("who", ["process", "command"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["owner", "lock", "owner."])
def test_killed_while_the_directory_is_erased(name, moment, who, tmp_path, monkeypatch):
    """Whichever file was the last to go, the next process and `ebbtide clean` know what is left, and leave nothing."""
    directory = tmp_path / "run"

    def dying(done):
        def call(path, *arguments, **options):
            is_here = path.name == name or (name == "owner." and path.name.startswith(name))
            if is_here and moment == "before":
                os._exit(0)
            done(path, *arguments, **options)
            if is_here:
                os._exit(0)

        return call

    child = os.fork()
    if not child:
        lock = DirectoryLock(directory)
        lock.take()
        monkeypatch.setattr(Path, "rename", dying(Path.rename))
        monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
        lock.erase([])
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    if who == "command":
        assert clean(directory) == ([] if (name, moment) == ("owner.", "after") else [directory])
    else:
        lock = DirectoryLock(directory)
        lock.take()
        assert lock.erase([])
        lock.release()
    assert not directory.exists() or list(directory.iterdir()) == []


@pytest.mark.parametrize("end", ["erase", "abandon"])
@pytest.mark.parametrize("is_there", [False, True])
def test_killed_while_the_directory_is_taken(is_there, end, tmp_path):
    """Before any call that makes or removes a file: the next process leaves nothing there, and nor does `clean`."""
    calls = "open", "fcntl.lockf", "os.mkdir", "os.rename", "os.remove", "os.rmdir"
    directories = tmp_path / "used", tmp_path / "cleaned"

    def take(directory, at):
        """Take a directory and give it up in a process that dies before a call; return whether it died."""
        child = os.fork()
        if not child:
            count = itertools.count(1)
            lock = DirectoryLock(directory)
            sys.addaudithook(lambda event, arguments: os._exit(9) if event in calls and next(count) == at else None)
            lock.take()
            lock.erase([]) if end == "erase" else lock.abandon()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

    for at in itertools.count(1):
        for directory in directories if is_there else ():
            directory.mkdir(exist_ok=True)
        died = [take(directory, at) for directory in directories]
        if not all(died):
            break
        lock = DirectoryLock(tmp_path / "used")
        lock.take()
        assert lock.erase([])
        lock.release()
        clean(tmp_path / "cleaned") if directories[1].exists() else None
        assert not [path for directory in directories if directory.exists() for path in directory.iterdir()], at
    assert at > 10


class InterruptedAt:
    """A tracer that interrupts at a line of the module of the lock, by its number."""

    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, argument):
        return self.trace if frame.f_code.co_filename == durable_module.__file__ else None

    def trace(self, frame, event, argument):
        self.left -= event == "line"
        if event == "line" and not self.left:
            raise KeyboardInterrupt
        return self.trace


def test_interrupted_while_the_directory_is_erased(tmp_path):
    """Interrupted at any line, the next storage of this process finds whose the directory is, and leaves nothing."""
    before = sys.gettrace()
    for at in itertools.count(1):
        directory = tmp_path / "run"
        lock = DirectoryLock(directory)
        lock.take()
        (directory / "segment").touch()
        interrupted = False
        sys.settrace(InterruptedAt(at))
        try:
            lock.erase(["segment"])
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(before)
        lock.release()
        again = DirectoryLock(directory)
        again.take()
        assert again.erase(["segment"])
        again.release()
        assert list(directory.iterdir()) == [], at
        directory.rmdir()
        if not interrupted:
            break
    assert at > 30


# What dead processes leave.


def leave_scratch(directory):
    """A scratch directory with two entries, left by a process that was killed."""
    program = OPEN + (
        "storage = Disk(sys.argv[1])\n"
        "storage.put('loop-3', [np.arange(1000.0)], kind='snapshot of step 3')\n"
        "storage.put('loop-9', [np.zeros((2, 2), 'f4'), np.zeros(0)])\n"
        "print(storage.directory, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    status, out, problems = run_python(program, directory)
    assert status == -signal.SIGKILL, problems
    return out.strip()


def test_what_a_killed_process_leaves_is_swept(tmp_path):
    """The next storage in the directory removes what a dead process left, and nothing of a living one."""
    with Disk(tmp_path) as alive:
        alive.put(0, [np.zeros(3)])
        left = leave_scratch(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        with Disk(tmp_path) as storage:
            storage.put(0, [np.zeros(3)])
            assert sorted(tmp_path.iterdir()) == sorted([alive.directory, storage.directory])
        assert not os.path.exists(left)  # noqa: PTH110 - a text
        assert alive.take(0)[0].size == 3


def test_what_another_process_namespace_uses_is_not_swept(tmp_path):
    """Where the number of its process says nothing here, a scratch directory stays as long as its file is locked."""
    with Disk(tmp_path) as alive:
        alive.put(0, [np.zeros(3)])
        # No process here has that number.
        used = alive.directory.rename(tmp_path / f"ebbtide-4194305-{places_module.host_name()}-7-abc")
        status, swept = run_forked(lambda: repr(sweep(tmp_path)).encode())
        assert (status, swept) == (0, b"[]")
        assert alive.get(0)[0].size == 3
        assert find_files(tmp_path) == [used / "segment"]
    assert sweep(tmp_path) == [used]
    assert not used.exists()


def test_inspect_and_clean(tmp_path, capsys):
    """`ebbtide inspect` lists what is there, whose and why; `ebbtide clean` removes it; then there is nothing."""
    left = leave_scratch(tmp_path)
    with Disk(tmp_path) as alive:
        alive.put("now", [np.zeros(4)])
        # A storage that starts sweeps: what the dead process left is made again.
        assert cli.main(["inspect", str(alive.directory)]) == 0
        assert f"in use by process {os.getpid()}" in capsys.readouterr().out
    left = leave_scratch(tmp_path)
    for directory in (tmp_path, left):
        assert cli.main(["inspect", str(directory), "--check"]) == 0
        out = capsys.readouterr().out
        for part in (left, "scratch", "left by the dead process", "'loop-3' (snapshot of step 3)", "float64[1000]",
                     "'loop-9'", "float32[2, 2], float64[0]", "2 entries"):  # fmt: skip
            assert part in out
    assert cli.main(["clean", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"removed {left}\n"
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["clean", str(tmp_path)]) == 0
    assert cli.main(["inspect", str(tmp_path)]) == 0
    assert "no storage" in capsys.readouterr().out


def test_a_scratch_directory_of_another_machine_goes_by_hand(tmp_path, capsys):
    """Of its process nothing is known, and there is no file that says whose it is: the directory is to be removed."""
    left = tmp_path / "ebbtide-7-elsewhere-7-abc"
    left.mkdir()
    assert cli.main(["clean", str(left)]) == cli.EXIT_ERROR
    told = capsys.readouterr().err
    assert f"The scratch directory {left} is used by the process 7 on elsewhere" in told
    assert "if that process is gone, remove the directory by hand" in told


def test_inspect_and_clean_of_a_durable_directory(tmp_path, capsys):
    """A durable directory is listed, its damage is found, and only its own name removes it, but no files of others."""
    directory = tmp_path / "kept"
    with Disk(directory, durable=True) as storage:
        storage.put("state", [np.zeros(1000)])
        assert cli.main(["clean", str(directory)]) == cli.EXIT_ERROR
        assert f"process {os.getpid()}" in capsys.readouterr().err
    (directory / "notes").write_text("mine")
    assert cli.main(["clean", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"left {directory}: a run may go on from there")
    assert [path.name for path in find_storages(tmp_path)] == ["kept"]
    content = bytearray((directory / "segment").read_bytes())
    content[-9] ^= 4
    (directory / "segment").write_bytes(content)
    assert cli.main(["inspect", str(tmp_path)]) == 0
    assert cli.main(["inspect", str(tmp_path), "--check"]) == cli.EXIT_VERDICT
    assert "DAMAGED Key 'state'" in capsys.readouterr().out
    assert cli.main(["clean", str(directory)]) == 0
    assert [path.name for path in directory.iterdir()] == ["notes"]


@pytest.mark.parametrize("command", ["inspect", "clean"])
def test_a_missing_directory_is_an_error(tmp_path, capsys, command):
    """A directory that is not there is one line on stderr and exit code 2."""
    assert cli.main([command, str(tmp_path / "missing")]) == cli.EXIT_ERROR
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["inspect", "clean"])
def test_an_empty_name_is_no_directory(tmp_path, monkeypatch, capsys, command):
    """An empty argument, as of a variable that is not set, is not the working directory, and nothing is removed."""
    with Disk(tmp_path, durable=True) as storage:
        storage.put("state", [np.zeros(3)])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([command, ""])
    assert ended.value.code == cli.EXIT_ERROR
    assert "'' names no directory, as where an environment variable is empty" in capsys.readouterr().err
    assert (tmp_path / "segment").exists()


def test_deleted_entries_do_not_come_back(tmp_path):
    """What was deleted is not found again, wherever it lay, also in a reservation; its space is free."""
    with Disk(tmp_path, durable=True) as storage:
        size = storage.put(0, [np.zeros(3000)])
        storage.reserve(6, size)
        for key in range(1, 6):
            storage.put(key, [np.zeros(3000)])
        for key in (1, 5, 2):
            storage.delete(key)
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == (0, 3, 4)
        for key in (1, 2):
            storage.put(key, [np.zeros(3000)])
        assert (tmp_path / "segment").stat().st_size <= 6 * size
        for key in storage.keys():
            storage.delete(key)
    assert [blocks(path) for path in find_files(tmp_path) if path.name == "segment"] == [0]


def test_a_reservation_ends_with_the_storage(tmp_path):
    """A durable storage that is closed keeps the blocks of its entries, and none of what it had reserved."""
    with Disk(tmp_path, durable=True) as storage:
        size = storage.put(0, [np.zeros(3000)])
        storage.reserve(40, size)
    assert takes(tmp_path / "segment", size)
    assert (tmp_path / "segment").stat().st_size <= size


def test_entries_behind_any_reservation_are_found_again(tmp_path):
    """An entry begins where one is looked for, wherever a reservation ended when it was stored."""
    with Disk(tmp_path, durable=True) as storage:
        storage.put("large", [np.zeros(4000)])
        storage.put("last", [np.zeros(3)])
        storage.reserve(1, 5000)
        storage.delete("large")
        storage._open().segment.return_space()
        storage.put("first", [np.zeros(900)])
        storage.put("second", [np.arange(900)])
        assert all(entry.record.offset % 4096 == 0 for entry in storage._entries.values())
    with Disk(tmp_path, durable=True) as storage:
        assert storage.keys() == ("last", "first", "second")
        assert storage.get("second")[0].tolist() == list(range(900))
