"""What `ebbtide inspect --check` says of files that are damaged, in use, or not whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import cli
from ebbtide.storage import Disk, listing
from ebbtide.storage.listing import list_storage


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
            read = listing.read_header if place == 9 else listing.read_stored
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
