"""What a killed loop leaves in its directory, spoiled in any way, and the call that goes on from it."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from tests.loop.lost import unsynchronized
from tests.scale import bar

from ebbtide import grad, timeloop
from ebbtide.errors import ResumeError, StorageError
from ebbtide.schedules import Revolve
from ebbtide.storage.listing import list_storage

U, LATE = np.linspace(0.3, 0.9, 3), np.linspace(1.0, 2.0, 3)
STEPS = 12
# Where the run is interrupted: in the forward sweep, at its end, and in the reverse sweep.
PLACES = (7, 13, 26)


# Of inputs the numbers until they interrupt: what they hold themselves would be a part of the call that goes on.
LEFT: WeakKeyDictionary[Any, Iterator[int]] = WeakKeyDictionary()


class Inputs:
    """Inputs that are the step numbers, and interrupt the run when one is read for the given time."""

    def __init__(self, stop: int = 0) -> None:
        LEFT[self] = itertools.count(stop - 1, -1)

    def __call__(self, index: int) -> int:
        if next(LEFT[self]) == 0:
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


class Damage:
    """
    A directory as a kill leaves it, and what came of the calls that went on from spoiled copies of it.

    Args:
        parent: Where to keep it.
        stop: The input at which the run is interrupted, counted in all of the run.
    """

    def __init__(self, parent: Path, stop: int) -> None:
        self._kept, self._copy = parent / f"kept-{stop}", parent / "run"
        self._expected = gradient(parent / "whole")
        with suppress(KeyboardInterrupt):
            gradient(self._kept, stop)
        # The name of an owner that is dead.
        (self._kept / "owner").write_text('{"host": "localhost", "pid": 4194305, "start": 7, "since": 1.0}')
        self.files = {path.name: path.read_bytes() for path in sorted(self._kept.iterdir())}
        self.tried = self.told = self.refused = 0
        self.problems = list[str]()

    def flip(self, count: int, seed: int) -> None:
        """Change single bytes; most of the file are gaps, so that nine of ten go into what was written."""
        entries = list_storage(self._kept).entries
        written = [place for entry in entries for place in range(entry.offset, entry.offset + entry.length)]
        random = np.random.default_rng([seed, *self._expected[:4]])
        for case in bar(range(count), "flips under a loop"):
            name = {1: "owner", 11: "newest"}.get(case % 20, "segment")
            inside = name == "segment" and case % 10 > 0
            content = bytearray(self.files[name])
            place = int(random.choice(written) if inside else random.integers(len(content)))
            content[place] ^= int(random.integers(1, 256))
            self._try(f"byte {place} of {name}", lambda path, n=name, c=content: (path / n).write_bytes(c))

    def cut(self, lengths: int) -> None:
        """Truncate each file to so many lengths, evenly, and remove it."""
        for name, content in self.files.items():
            ends = range(0, len(content), max(1, len(content) // lengths))
            for end in bar(ends, f"lengths of {name}"):
                part = content[:end]
                self._try(f"{name} of {end} bytes", lambda path, n=name, c=part: (path / n).write_bytes(c))
            self._try(f"no {name}", lambda path, n=name: (path / n).unlink())

    def counts(self) -> dict[str, int]:
        """What came of it."""
        return {
            "runs": self.tried, "that said so": self.told, "refused": self.refused, "wrong": len(self.problems),
        }  # fmt: skip

    @unsynchronized()
    def _try(self, what: str, spoil: Callable[[Path], Any]) -> None:
        shutil.copytree(self._kept, self._copy)
        spoil(self._copy)
        self.tried += 1
        texts = list[str]()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                if gradient(self._copy) != self._expected:
                    self.problems.append(f"{what}: another gradient")
            except (ResumeError, StorageError) as error:
                self.refused += 1
                texts.append(str(error))
                shutil.rmtree(self._copy)
        texts += [str(one.message) for one in caught]
        self.told += bool(texts)
        for text in texts:
            if "step" not in text or str(self._copy) not in text or not ("offset" in text or "missing" in text):
                self.problems.append(f"{what}: {text}")
        if self._copy.exists():
            self.problems.append(f"{what}: something is left")
            shutil.rmtree(self._copy)
