"""Whose a directory is, its files tell by what they hold: nothing foreign is removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import NOBODY, run_as_nobody

from ebbtide import StorageError, grad, timeloop
from ebbtide.cli import main
from ebbtide.storage import Disk, StorageLockedError
from ebbtide.storage.durable import DirectoryLock, read_owner
from ebbtide.storage.listing import clean, find_storages
from ebbtide.storage.places import Owner, host_name, sweep

FOREIGN = {
    "segment": {"segment": "my precious data\n" * 10},
    "segment and notes": {"segment": "data\n", "notes.txt": "mine"},
    "lock with text": {"lock": "mine"},
    "lock and owner": {"lock": "", "owner": "Jane Doe"},
    "lock and newest": {"lock": "", "newest": "mine"},
    "all": {"segment": "data", "lock": "l", "owner": "Jane", "newest": "news", "other": "o"},
    "of ranks": {"rank-0/segment": "data", "a.txt": "mine"},
    "nested": {"x/segment": "data"},
    "empty newest": {"newest": ""},
    "empty segment": {"segment": ""},
    "zeros": {"segment": "\0" * 800},
    "empty segment and a part": {"segment": "", "owner.7": ""},
    "lock and newest, empty": {"lock": "", "newest": ""},
}


def made(directory: Path, files: dict[str, str]) -> Path:
    """A directory with these files."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def texts(directory: Path, ours: tuple[str, ...] = ()) -> dict[str, str]:
    """The files in a directory, without those of a storage."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name not in ours]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


def slope(resume: Path) -> Any:
    """A gradient that can be resumed."""
    return grad(lambda u: np.sum(timeloop(lambda u, i: 0.9 * np.sin(u), u, 20)), resume=resume)(np.linspace(0, 1, 9))


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_ours_stays(name: str, tmp_path: Path, capsys: Any) -> None:
    """Files of others with names that a storage has are no storage, are not removed, and not written over."""
    directory = made(tmp_path / "theirs", FOREIGN[name])
    assert list(find_storages(directory)) == []
    assert clean(directory) == []
    assert main(["clean", str(directory)]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    if "/" not in "".join(FOREIGN[name]):
        with pytest.raises(StorageError, match=r"no storage has written.*Give another directory"):
            Disk(directory, durable=True)
        with pytest.raises(StorageError, match="no storage has written"):
            slope(directory)
    assert texts(directory) == FOREIGN[name]


def test_what_is_beside_ours_stays(tmp_path: Path) -> None:
    """A run in a directory with files of the user's leaves these, and warns of nothing."""
    directory = made(tmp_path / "both", {"notes.txt": "mine"})
    slope(directory)
    assert texts(directory) == {"notes.txt": "mine"}
    scratch = made(tmp_path / f"ebbtide-4194305-{host_name()}-7-abc", {"notes.txt": "mine", "segment": ""})
    assert sweep(tmp_path) == []
    assert clean(tmp_path) == []
    assert texts(scratch) == {"notes.txt": "mine"}


BESIDE = {
    "lock": {"lock": ""},
    "part with text": {"owner.2024": "list of owners"},
    "empty part": {"owner.2024": ""},
    "part with text and lock": {"owner.2024": "list of owners", "lock": ""},
    "notes and lock": {"notes.txt": "mine", "lock": ""},
    "directory": {"owner.7/notes.txt": "mine"},
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_only_looks_like_ours_stays(name: str, tmp_path: Path) -> None:
    """Files that a storage may be beside, or may use, are there when it has ended and when it was removed."""
    directory = made(tmp_path / "both", BESIDE[name])
    slope(directory)
    assert texts(directory) == BESIDE[name]
    with Disk(directory, durable=True) as storage:
        storage.put("a", [np.arange(3)])
    assert BESIDE[name].items() <= texts(directory, ours=("segment",)).items()
    clean(directory)
    # Empty ones in a directory of a storage are a storage's.
    assert texts(directory) == {key: text for key, text in BESIDE[name].items() if text}


@pytest.mark.parametrize("text", ["mine", ""])
def test_a_part_of_others_is_not_written_over(text: str, tmp_path: Path) -> None:
    """Though it has the number of this process, under which that writes its name."""
    directory = made(tmp_path / "both", {f"owner.{os.getpid()}": text})
    slope(directory)
    assert texts(directory) == {f"owner.{os.getpid()}": text}


def test_what_is_named_like_a_scratch_directory_stays(tmp_path: Path) -> None:
    """A private directory has one file: with others, or with another content, it is none that a dead process left."""
    for files in ({"lock": "mine"}, {"newest": "", "lock": ""}, {"owner.7": "mine"}, {"segment": "my data, a text"}):
        scratch = made(tmp_path / f"ebbtide-4194305-{host_name()}-7-abc", files)
        with Disk(tmp_path) as storage:
            storage.put("a", [np.arange(3)])
        assert sweep(tmp_path) == []
        assert clean(tmp_path) == []
        assert texts(scratch) == files
        shutil.rmtree(scratch)


def test_a_link_that_is_named_like_a_scratch_directory_is_not_followed(tmp_path: Path) -> None:
    """What a link with such a name points to is not what a dead process left: its files stay, and the link too."""
    theirs = made(tmp_path / "theirs", {"segment": ""})
    link = tmp_path / f"ebbtide-4194305-{host_name()}-7-abc"
    link.symlink_to(theirs)
    with Disk(tmp_path) as storage:
        storage.put("a", [np.arange(3)])
    assert sweep(tmp_path) == []
    assert link.is_symlink()
    assert texts(theirs) == {"segment": ""}


PROGRAM = """
import os, sys, numpy as np
from ebbtide import grad, timeloop
def step(u, i):
    if i == 15 and os.environ.get("KILLED"):
        os.kill(os.getpid(), 9)
    return 0.9 * np.sin(u)
f = lambda u: np.sum(timeloop(step, u, 20, resume_every=2))
print(grad(f, resume=sys.argv[1])(np.linspace(0, 1, 9)).tobytes().hex())
"""


def run(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a gradient that is kept in a directory, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory)], env={**os.environ, **variables}, check=False, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip


def left_by_a_kill(directory: Path) -> None:
    """Let a process begin a run there, and kill it."""
    assert run(directory, KILLED="1").returncode == -signal.SIGKILL


@pytest.mark.parametrize("damaged", ["none", "segment", "owner", "newest", "owner gone", "newest gone"])
def test_what_is_ours_is_removed_though_it_is_damaged(damaged: str, tmp_path: Path) -> None:
    """With any byte of one file changed, or a file gone, the directory is known, and `clean` removes it."""
    directory = tmp_path / "ours"
    for place in (0, 10, 40):
        left_by_a_kill(directory) if not directory.exists() else None
        name, _, gone = damaged.partition(" ")
        if gone:
            (directory / name).unlink()
        elif name != "none":
            content = bytearray((directory / name).read_bytes())
            content[place % len(content)] ^= 5
            (directory / name).write_bytes(content)
        assert list(find_storages(directory)) == [directory]
        try:
            assert clean(directory) == [directory]
        except StorageLockedError as error:  # by the name of another machine
            assert "remove the file" in str(error)  # noqa: PT017
            (directory / "owner").unlink()
            clean(directory)
        assert not directory.exists()


def test_a_link_to_a_directory_is_that_directory(tmp_path: Path, capsys: Any) -> None:
    """What a run kept behind a link is listed and removed; the link and the directory, which are the user's, stay."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    left_by_a_kill(link)
    assert {"segment", "owner", "lock"} <= {path.name for path in real.iterdir()}
    assert main(["inspect", str(link)]) == 0
    assert "left by the dead process" in capsys.readouterr().out
    assert main(["clean", str(link)]) == 0
    assert f"removed what a storage had left in {link}" in capsys.readouterr().out
    assert list(real.iterdir()) == []
    slope(link)
    assert link.is_dir()
    assert list(real.iterdir()) == []


@pytest.mark.parametrize("name", [".", "link"])
def test_a_scratch_directory_is_known_by_its_own_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Named as `.` or by a link it is that of a living storage, or of a dead one, as its own name says."""
    dead = made(tmp_path / f"ebbtide-4194305-{host_name()}-7-abc", {"segment": ""})
    storage = Disk(made(tmp_path / "used", {"note": ""}))
    storage.put("a", [np.arange(3)])
    assert storage.directory is not None
    for directory, used in ((dead, False), (storage.directory, True)):
        link = tmp_path / f"link-{used}"
        link.symlink_to(directory)
        monkeypatch.chdir(directory if name == "." else tmp_path)
        given = "." if name == "." else str(link)
        assert main(["inspect", given]) == 0
        assert f"{given}: scratch, {'in use' if used else 'left'} by" in capsys.readouterr().out
        assert main(["clean", given]) == (2 if used else 0)
        assert (f"directory {given} is used" in capsys.readouterr().err) == used
    assert dead.exists() == (name == ".")
    assert storage.take("a")[0].tolist() == [0, 1, 2]
    storage.close()


def test_the_working_directory_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in the working directory leaves what is there, and warns of nothing."""
    made(tmp_path, {"data.csv": "mine"})
    monkeypatch.chdir(tmp_path)
    slope(Path())
    assert texts(tmp_path) == {"data.csv": "mine"}


@pytest.mark.parametrize("name", [".", "", None, "link"])
def test_the_working_directory_stays(name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though there is nothing else in it, and by whichever name it was given."""
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(here)
    slope(here if name is None else tmp_path / "link" if name == "link" else Path(name))
    assert here.is_dir()
    assert list(here.iterdir()) == []


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is relative to it is refused with words, and an absolute one may be given."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    for use in (slope, Disk):
        with pytest.raises(StorageError, match=r"relative to the working directory.*Give an absolute one"):
            use(Path("run"))
    slope(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


LATER = {
    "owner": {"owner": "Jane Doe, group A\n"},
    "newest": {"newest": "run-17 is the newest of my runs\n"},
    "lock": {"lock": "mine"},
    "all": {"owner": '{"name": "Jane", "host": "here"}', "newest": '{"runs": [16, 17]}', "lock": " "},
}


@pytest.mark.parametrize("name", LATER)
def test_what_the_user_puts_beside_ours_later_stays(name: str, tmp_path: Path) -> None:
    """Files that have names of a storage's, and links, are not removed with it; `owner` is not written over."""
    directory = tmp_path / "ours"
    with Disk(directory, durable=True) as storage:
        storage.put("a", [np.arange(3)])
    made(directory, LATER[name])
    if "owner" in LATER[name]:
        with pytest.raises(StorageError, match=r"no storage has written.*: owner\. Give another directory"):
            Disk(directory, durable=True)
    assert clean(directory) == [directory]
    assert texts(directory) == LATER[name]


@pytest.mark.parametrize("name", ["owner", "newest", "lock"])
def test_links_stay(name: str, tmp_path: Path) -> None:
    """Though what they lead to is as a storage would write it."""
    directory = tmp_path / "ours"
    left_by_a_kill(directory)
    (directory / name).rename(tmp_path / name)
    (directory / name).symlink_to(tmp_path / name)
    clean(directory)
    assert [path.name for path in directory.iterdir()] == [name]


RECORDS = {
    "infinite": '{"host": "h", "pid": 1e999, "start": 7}',
    "no process": json.dumps({"host": host_name(), "pid": 10**20, "start": 7}),
    "deep": "[" * 100_000,
    "no object": "[1, 2]",
    "text": '"x"',
    "other": '{"host": "h"}',
    "no text": "\x80\x00",
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("place", ["owner", "newest"])
def test_damaged_records_are_none(place: str, name: str, tmp_path: Path) -> None:
    """Whatever they hold, a run goes on or begins again with the same gradient; an owner that is none goes first."""
    directory = tmp_path / "ours"
    left_by_a_kill(directory)
    (directory / place).write_text(RECORDS[name])
    owner = read_owner(directory)
    assert owner is None or place == "newest" or owner.is_dead()
    assert list(find_storages(directory)) == [directory]
    found = run(directory)
    if place == "owner" and '"host"' not in RECORDS[name]:
        assert "no storage has written" in found.stderr
        (directory / place).unlink()
        found = run(directory)
    assert found.stdout == run(tmp_path / "other").stdout, found.stderr
    assert not directory.exists()


def test_the_number_of_no_process_is_dead() -> None:
    """A number that the system cannot have is nobody's."""
    assert Owner(host_name(), 10**20, 7).is_dead()


@pytest.mark.parametrize("name", ["owner", "newest"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    """Who reads or writes a pipe waits for the other end: it is taken for no record."""
    directory = tmp_path / "ours"
    directory.mkdir()
    os.mkfifo(directory / name)
    assert read_owner(directory) is None
    # What is in such a place without a storage is somebody's.
    with pytest.raises(StorageError, match=name):
        slope(directory)
    assert texts(directory) == {}
    assert [path.name for path in directory.iterdir()] == [name]


@pytest.mark.parametrize("kind", ["pipe", "directory", "link"])
def test_what_is_no_file_is_no_file_of_entries(kind: str, tmp_path: Path, capsys: Any) -> None:
    """A pipe would be waited for: it is told, and neither `clean` nor the next storage there removes it."""
    segment = made(tmp_path / f"ebbtide-4194305-{host_name()}-7-abc", {"segment": ""}) / "segment"
    segment.unlink()
    if kind == "pipe":
        os.mkfifo(segment)
    elif kind == "directory":
        segment.mkdir()
    else:
        segment.symlink_to(made(tmp_path, {"empty": ""}) / "empty")
    if kind != "link":
        assert main(["inspect", str(segment.parent)]) == 2
        assert f"{segment}: it is no regular file" in capsys.readouterr().err
    with Disk(tmp_path) as storage:
        storage.put("a", [np.arange(3)])
    assert clean(tmp_path) == []
    clean(segment.parent)
    assert os.path.lexists(segment)


def test_a_name_with_a_zero_byte_is_refused() -> None:
    """No file system has such a name."""
    for use in (slope, Disk, lambda path: Disk(path, durable=True)):
        with pytest.raises(StorageError, match="zero byte"):
            use(Path("a\0b"))


@pytest.mark.parametrize("name", [5, True, b"run", ["run"]])
def test_what_is_no_name_is_refused(name: Any) -> None:
    """A directory is named by a text or a path; `resume=` says so by its own name."""
    for use in (Disk, lambda path: Disk(path, durable=True)):
        with pytest.raises(TypeError, match=r"names no directory\. Give a str or a pathlib\.Path"):
            use(name)


@pytest.mark.skipif(os.getuid() != 0, reason="another user's directory needs the right to be that user")
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111, 0o555])
def test_a_directory_out_of_reach_is_told(mode: int, tmp_path: Path) -> None:
    """Who may not look into a directory, or not change it, hears that, and not that there is nothing or a raw error."""
    directory = tmp_path / "ours"
    with Disk(directory, durable=True) as storage:
        storage.put("kept", [np.arange(3)])
    before = {path: path.read_bytes() for path in directory.iterdir()}
    for path in (directory, *before):
        os.chown(path, NOBODY, NOBODY)
    directory.chmod(mode)
    tmp_path.chmod(0o711)
    seen = run_as_nobody(tmp_path, lambda: 10 * main(["inspect", directory.name]) + main(["clean", directory.name]))
    directory.chmod(0o755)
    assert seen == (2 if mode & 0o111 else 22)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.skipif(os.getuid() != 0, reason="to be another user needs the right to")
@pytest.mark.parametrize("mask", [0o777, 0o700, 0o400, 0o300, 0o200, 0o100])
def test_a_directory_that_its_maker_may_not_use_is_not_left(mask: int, tmp_path: Path) -> None:
    """With a mask that takes the maker's own rights, what was made is gone again when the error comes."""
    os.chown(tmp_path, NOBODY, NOBODY)

    def refused() -> int:
        os.umask(mask)
        with pytest.raises(StorageError, match=r"ours for storage: Permission denied\. Give a directory"):
            DirectoryLock(Path("ours")).take()
        return len(os.listdir())  # noqa: PTH208 - no Path of the working directory

    assert run_as_nobody(tmp_path, refused) == 0
