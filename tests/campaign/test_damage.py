"""Damage to what a killed loop leaves: the gate runs a fixed sample, `make campaign` 10,000 flips and more."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide import grad, timeloop
from ebbtide.errors import ResumeError, StorageError
from ebbtide.schedules import Revolve
from ebbtide.storage.listing import list_storage

FULL = bool(os.environ.get("EBBTIDE_CAMPAIGN"))
FLIPS = 10_000 if FULL else 150
SEED = 20261121
U, LATE = np.linspace(0.3, 0.9, 3), np.linspace(1.0, 2.0, 3)
STEPS = 12
# Where the run is interrupted: in the forward sweep, at its end, and in the reverse sweep.
PLACES = (7, 13, 26)


class Inputs:
    """Inputs that are the step numbers, and interrupt the run when one is read for the given time."""

    def __init__(self, stop: int = 0) -> None:
        self.reads, self.stop = 0, stop

    def __call__(self, index: int) -> int:
        self.reads += 1
        if self.reads == self.stop:
            raise KeyboardInterrupt
        return index


def gradient(path: Path, stop: int = 0) -> bytes:
    """The gradient of a small loop with a late static value and outputs."""

    def objective(u: Any, late: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            x = np.sin(x) * 1.1
            return (x * late if i > 3 else x), x[0]

        last, heads = timeloop(
            step, u, STEPS, inputs=Inputs(stop), outputs=True, schedule=Revolve(3), resume=path, resume_every=2
        )
        return np.sum(last) + np.sum(heads**2)

    return b"".join(found.tobytes() for found in grad(objective, argnums=(0, 1))(U, LATE))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return what an undisturbed run finds."""
    return gradient(tmp_path_factory.mktemp("damage") / "run")


def leave(path: Path, stop: int) -> Path:
    """Return a directory as a kill leaves it: with the name of an owner that is dead."""
    with pytest.raises(KeyboardInterrupt):
        gradient(path, stop)
    (path / "owner").write_text('{"host": "localhost", "pid": 4194305, "start": 7, "since": 1.0}')
    return path


def check(kept: Path, path: Path, expected: bytes, spoil: Any) -> str:
    """Spoil a copy of a directory and go on from it; return what was told, which names file and step."""
    shutil.copytree(kept, path)
    spoil(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            assert gradient(path) == expected
        except (ResumeError, StorageError) as error:
            shutil.rmtree(path)
            caught.append(error)
    told = [str(getattr(one, "message", one)) for one in caught]
    for text in told:
        assert "step" in text, text
        assert str(path) in text, text
        assert "offset" in text or "missing" in text, text
    assert not path.exists()
    return "\n".join(told)


@pytest.mark.parametrize("stop", PLACES)
def test_flipped_bytes_of_a_killed_run(stop: int, expected: bytes, tmp_path: Path) -> None:
    """A byte that changes in any file of a journal costs steps or is an error with file and step, never a bit."""
    kept = leave(tmp_path / "kept", stop)
    files = {path.name: path.read_bytes() for path in kept.iterdir() if path.stat().st_size}
    assert set(files) == {"segment", "owner"}
    # Most of the file are gaps between entries: nine of ten flips go into what was written.
    written = [place for e in list_storage(kept).entries for place in range(e.offset, e.offset + e.length)]
    random, told = np.random.default_rng([SEED, stop]), 0
    for case in range(FLIPS // len(PLACES) + 1):
        name = "owner" if case % 20 == 1 else "segment"
        inside = name == "segment" and case % 10
        place = int(random.choice(written) if inside else random.integers(len(files[name])))
        content = bytearray(files[name])
        content[place] ^= int(random.integers(1, 256))
        told += bool(check(kept, tmp_path / "run", expected, lambda p, n=name, c=content: (p / n).write_bytes(c)))
    assert told > FLIPS // len(PLACES) // 5


@pytest.mark.parametrize("stop", PLACES)
def test_truncated_files_of_a_killed_run(stop: int, expected: bytes, tmp_path: Path) -> None:
    """A file of a journal that ends anywhere, or is gone, costs steps or is an error with file and step."""
    kept = leave(tmp_path / "kept", stop)
    for path in sorted(kept.iterdir()):
        content = path.read_bytes()
        ends = range(0, len(content), max(1, len(content) // (500 if FULL else 30)))
        for end in ends:
            check(kept, tmp_path / "run", expected, lambda p, n=path.name, c=content[:end]: (p / n).write_bytes(c))
        check(kept, tmp_path / "run", expected, lambda p, n=path.name: (p / n).unlink())
