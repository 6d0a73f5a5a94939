"""What `ebbtide inspect --check` says of files that are damaged, in use, or not whole."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import NOBODY, run_as_nobody

from ebbtide import cli
from ebbtide.storage import Disk, listing
from ebbtide.storage.listing import list_storage
from ebbtide.storage.places import host_name

from .helpers import SOURCE


def stored(directory: Path) -> list[int]:
    """Where the entries of a durable directory with a deleted one are."""
    with Disk(directory, durable=True) as storage:
        for key in range(3):
            storage.put(key, [np.full(300, key)])
        storage.delete(1)
    return [record.offset for record in list_storage(directory).entries]


def change(file: Path, offset: int, content: bytes) -> None:
    """Write bytes into a file."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)


# Checks.


def test_a_flipped_byte_of_a_header_is_found(tmp_path: Path, capsys: Any) -> None:
    """Whichever byte it is, the check names the file and the place, where else the entry would only be missing."""
    stored(tmp_path / "kept")
    assert list_storage(tmp_path / "kept", check=True).damaged == ()
    content = (tmp_path / "kept" / "segment").read_bytes()
    (entry,) = [entry for entry in list_storage(tmp_path / "kept").entries if entry.key == 2]
    for place in range(0, entry.data, 3):
        change(tmp_path / "kept" / "segment", entry.offset, content[entry.offset : entry.offset + entry.length])
        change(tmp_path / "kept" / "segment", entry.offset + place, bytes([content[entry.offset + place] ^ 5]))
        (told,) = list_storage(tmp_path / "kept", check=True).damaged
        assert f"at offset {entry.offset} of the file {tmp_path / 'kept' / 'segment'}" in told
    assert cli.main(["inspect", "--check", str(tmp_path)]) == cli.EXIT_VERDICT
    assert "DAMAGED The header" in capsys.readouterr().out


@pytest.mark.parametrize("left", [9, 50])
def test_a_header_that_is_cut_off_is_found(tmp_path: Path, left: int) -> None:
    """A file that ends in a header has a damaged one."""
    offset = stored(tmp_path)[-1]
    content = (tmp_path / "segment").read_bytes()
    (tmp_path / "segment").write_bytes(content[: offset + left])
    (told,) = list_storage(tmp_path, check=True).damaged
    assert f"header at offset {offset} " in told


def test_a_header_of_another_place_is_not_damaged(tmp_path: Path) -> None:
    """In a file that ranks share, each header names its place in the part of its rank."""
    first, last = stored(tmp_path)
    content = (tmp_path / "segment").read_bytes()
    change(tmp_path / "segment", last + 4096 * 5, content[first:4096])
    assert list_storage(tmp_path, check=True).damaged == ()


def look_while(monkeypatch: pytest.MonkeyPatch, directory: Path, use: Any) -> tuple[str, ...]:
    """What a check finds where something is done when it has seen the headers, and not yet the data."""
    with monkeypatch.context() as patch:
        patch.setattr(listing, "scan", lambda *arguments, scan=listing.scan: (scan(*arguments), use())[0])
        return list_storage(directory, check=True).damaged


def test_what_is_written_meanwhile_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage in use deletes and stores between two looks at it; what is damaged then is told as ever."""
    with Disk(tmp_path) as storage:
        for key in range(4):
            storage.put(key, [np.full(20_000, key)])

        def replace() -> None:
            storage.delete(1)
            storage.put("new", [np.full(19_000, 7)])
            storage.delete(3)

        directory = storage.directory
        assert directory is not None
        assert look_while(monkeypatch, directory, replace) == ()
        begin = list_storage(directory).entries[0].offset
        change(directory / "segment", begin + 9000, b"flipped")
        (told,) = look_while(monkeypatch, directory, lambda: None)
        assert "Key 0 in" in told


@pytest.mark.parametrize("place", [9, 1000], ids=["header", "data"])
def test_what_is_half_written_is_not_damaged(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a storage in use what is whole at a second look is whole; of no other there is one to write it."""
    with Disk(tmp_path / "used", durable=True) as storage:
        storage.put(0, [np.full(300, 7)])
        shutil.copytree(tmp_path / "used", tmp_path / "left", ignore=lambda *_: ["owner"])
        for name in ("used", "left"):
            file = tmp_path / name / "segment"
            content = file.read_bytes()
            change(file, place, b"\0\0\0\0\0\0\0\0")
            read = listing.read_header if place == 9 else listing.check_entry
            read_once = []

            def finish(*arguments: Any, file: Path = file, content: bytes = content, read: Any = read) -> Any:
                """The first look is before the write ends."""
                try:
                    return read(*arguments)
                finally:
                    read_once.append(file)
                    change(file, 0, content)

            with monkeypatch.context() as patch:
                patch.setattr(listing, read.__name__, finish)
                damaged = list_storage(tmp_path / name, check=True).damaged
            assert read_once
            assert len(damaged) == (name == "left")


# Directories that cannot be read.


def scratch(parent: Path, name: str, begin: bytes = b"") -> Path:
    """A scratch directory of a dead process."""
    directory = parent / f"ebbtide-4194305-{host_name()}-7-{name}"
    directory.mkdir(mode=0o700)
    (directory / "segment").write_bytes(begin)
    return directory


def test_one_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: Any) -> None:
    """Each is told on stderr, the others are listed or removed, and the exit code says that not all could be."""
    old = scratch(tmp_path, "a", b"EBBTIDE3".ljust(4096, b"\0"))
    none = scratch(tmp_path, "b")
    (none / "segment").unlink()
    (none / "segment").mkdir()
    last = scratch(tmp_path, "c")
    assert cli.main(["inspect", str(tmp_path)]) == cli.EXIT_ERROR
    out, told = capsys.readouterr()
    assert out.startswith(f"{last}: scratch")
    assert [line.partition(": ")[0] for line in told.splitlines()] == ["error", "error"]
    assert "of the version 3" in told
    assert f"{none / 'segment'}: it is no regular file" in told
    assert old.exists()


def test_one_that_cannot_be_removed_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """What is left is told on stderr, and what is gone on stdout."""
    first, last = scratch(tmp_path, "a"), scratch(tmp_path, "b")
    unlink = Path.unlink

    def refuse(path: Path, **options: Any) -> None:
        if path.parent == first:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert cli.main(["clean", str(tmp_path)]) == cli.EXIT_ERROR
    assert capsys.readouterr() == (
        f"removed {last}\n", f"error: Cannot remove {first}: Operation not permitted. Check its rights.\n"
    )  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0, reason="another user's directory needs the right to be that user")
def test_directories_of_other_users_are_passed_over(tmp_path: Path, capfd: Any) -> None:
    """In a directory that many share each lists and removes what is theirs, and what is closed is no error."""
    tmp_path.chmod(0o1777)
    directories = theirs, mine, other = [scratch(tmp_path, name) for name in "abc"]
    with Disk(tmp_path / "kept", durable=True) as storage:
        storage.put("a", [np.arange(3)])
    for path in (mine, mine / "segment"):
        os.chown(path, NOBODY, NOBODY)

    def look() -> int:
        return 100 * cli.main(["inspect", "."]) + 10 * cli.main(["clean", "."]) + cli.main(["inspect", theirs.name])

    assert run_as_nobody(tmp_path, look) == 2  # two good ones, and one that was named
    assert [path.exists() for path in directories] == [True, False, True]
    assert (tmp_path / "kept" / "segment").exists()
    assert f"Cannot open {theirs.name}" in capfd.readouterr().err
    assert other.exists()


@pytest.mark.parametrize(("count", "named"), [(1, 1), (8, 8), (9, 8), (11, 8)])
def test_no_more_than_eight_that_stay_are_named(tmp_path: Path, capsys: Any, count: int, named: int) -> None:
    """`clean` names eight of the directories that it leaves, and dots stand for the others, if there are any."""
    for number in range(count):
        with Disk(tmp_path / f"kept{number:02}", durable=True) as storage:
            storage.put("a", [np.arange(3)])
    assert cli.main(["clean", str(tmp_path)]) == 0
    names = [*map(str, [tmp_path / f"kept{number:02}" for number in range(named)])]
    told = capsys.readouterr().out
    assert told.startswith(f"left {', '.join(names + ['...'] * (count > named))}: a run may go on from there")


# Output.


def test_an_interrupt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Ctrl-C ends the command with one line and the exit code that shells give to it."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    stored(tmp_path)
    monkeypatch.setattr(cli, "list_storage", interrupt)
    status = None
    with suppress(KeyboardInterrupt):  # which would end the tests, too
        status = cli.main(["inspect", str(tmp_path)])
    assert status == cli.EXIT_INTERRUPTED == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


class Closed(io.StringIO):
    """A stream that nobody reads."""

    def write(self, _: str) -> int:
        """Refuse a text, as a closed pipe does."""
        raise BrokenPipeError(32, "Broken pipe")


def test_an_error_that_nobody_reads_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Where stderr is closed the exit code still says that the command failed."""
    monkeypatch.setattr(sys, "stderr", Closed())
    assert cli.main(["inspect", str(tmp_path / "none")]) == cli.EXIT_ERROR
    assert capsys.readouterr().out == ""


def command(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUTF8": "0", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "ebbtide.cli", *map(str, arguments)], env=environment, stderr=subprocess.PIPE,
        check=False, timeout=60, **options,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 400])
def test_a_closed_pipe_is_no_verdict(count: int, tmp_path: Path) -> None:
    """Who reads one line of the output and goes makes no traceback, nor the exit code of a damaged entry."""
    with Disk(tmp_path, durable=True) as storage:
        for key in range(count):
            storage.put(key, [np.arange(3)])
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        found = command("inspect", tmp_path, stdout=closed)
    assert (found.returncode, found.stderr) == (cli.EXIT_UNREAD, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device to write to")
def test_a_full_disk_takes_no_output(tmp_path: Path) -> None:
    """What cannot be written is an error in one line, and no verdict."""
    with Path("/dev/full").open("wb") as full:
        found = command("inspect", tmp_path, stdout=full)
    text = b"error: Cannot write the output: No space left on device. Send it to another place.\n"
    assert (found.returncode, found.stderr) == (cli.EXIT_ERROR, text)


def test_output_that_is_closed_is_no_error(tmp_path: Path) -> None:
    """What the shell has closed, `>&-`, Python has no stream for; it was an AttributeError."""
    shell = f'"$0" -m ebbtide.cli inspect "{tmp_path}" >&-'
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    found = subprocess.run(
        ["sh", "-c", shell, sys.executable], env=environment, stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, b"")


def test_any_name_can_be_printed(tmp_path: Path) -> None:
    """What the encoding of the output lacks is escaped, and so is what would leave its line."""
    with Disk(tmp_path / "\u00fc", durable=True) as storage:
        storage.put("\u00fc", [np.arange(3)], kind="\u00fc\n\x1b[31m")
    found = command("inspect", tmp_path, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert (found.returncode, found.stderr) == (0, b"")
    first, second = found.stdout.splitlines()
    assert first.startswith(os.fsencode(tmp_path) + rb"/\xfc: durable")
    assert second.startswith(rb"  '\xfc' (\xfc\n\x1b[31m): generation 1")
