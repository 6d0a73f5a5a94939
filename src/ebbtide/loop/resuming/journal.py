"""
The journal of a time loop: what a run keeps in a directory, so that a later process can go on where it was killed.

One durable `Disk` storage holds the journals of all loops of a call; it brings checksums, atomic writes and the lock. A
key names loop, kind and step. What is damaged counts as missing, and what replaces it is found or computed again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

from ebbtide.agree import agree, is_alone
from ebbtide.errors import StorageError
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.resuming.journal_entries import (
    FORMAT,
    Anchor,
    Begin,
    Forward,
    Leaves,
    Planned,
    Reverse,
    decode,
    encode,
    least_gap,
    shown,
    step_of,
)
from ebbtide.storage import StorageFullError
from ebbtide.storage.segment import NAME as SEGMENT

_PLACES = ("forward", "final", "reverse")


@final
class Journal:
    """
    What one time loop keeps in a directory.

    Saving never ends a run: where there is no room, restart states are given up, and then a warning says once that a
    kill will cost more.

    Args:
        directory: The directory of the call; the loop is the next one in it.
        fingerprint: What must be the same when the loop is resumed: short texts by name.
        named: What its code finds by names, for the message where that is not the same.
        most_anchors: The most restart states to keep, at least 1.

    Memory:
        Nothing that lasts; saving takes a block of at most 1 MiB for an array with gaps between its elements.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "run"
        >>> first = ResumeDirectory(path)
        >>> journal = Journal(first, {"steps": "9"})
        >>> journal.begin()
        >>> journal.save_forward(Forward(4, Leaves([np.arange(2.0), None]), Leaves([]), ran=4))
        >>> first.close()
        >>> second = ResumeDirectory(path)
        >>> journal = Journal(second, {"steps": "9"})
        >>> journal.begin()
        >>> found = journal.latest_forward()
        >>> found.step, found.state.arrays
        (4, [array([0., 1.]), None])
        >>> second.finish()
        >>> path.exists()
        False
    """

    __slots__ = ("_begun", "_fingerprint", "_gap", "_loop", "_most", "_named", "directory", "first")

    def __init__(
        self,
        directory: ResumeDirectory,
        fingerprint: Mapping[str, str],
        named: Sequence[tuple[str, str]] = (),
        *,
        most_anchors: int = 16,
    ) -> None:
        self.directory = directory
        self._loop = directory.next_loop()
        self._fingerprint = {**fingerprint, "format of the journal": FORMAT}
        self._named = (*named,)
        self._most = most_anchors
        self._gap = 1
        self._begun = False
        self.first: int | None = None  # what an earlier run noted of its first step

    @property
    def label(self) -> str:
        """A name of the loop, the same whenever it is resumed."""
        return f"{self.directory.path}/{self._loop}"

    def is_there(self) -> bool:
        """
        Return whether an earlier run left anything of this loop; a directory that is new is not made to see.

        Raises:
            StorageError: The directory is in use or cannot be used.
        """
        return self.directory.is_used and bool(self._keys(""))

    def begin(self, first: int | None = None) -> None:
        """
        Note what this run is, or see that what is there belongs to it; to be called before all that reads or saves.

        It may be called again, which does nothing.

        Args:
            first: A checksum of the state after the first step, where that has run.

        Raises:
            ResumeError: The directory holds another run.
            StorageError: The directory is in use or cannot be used.
        """
        if self._begun:
            return
        keys = self._keys("")
        for name in _PLACES:
            step = self.directory.missing(self._key(name), self._keys(name))
            if step is not None:
                self.directory.note(self._key(name), step, None)
                self._warn(f"is missing in {self.directory.path / SEGMENT}.", name, step)
        if agree((found := self._load("begin", 0, check=True)) is None):
            # If only this entry is lost, the first other one that can be read says whose they are.
            for key in keys:
                name, step = key.split("/")[1:]
                if self._load(name, int(step), check=True) is not None:
                    break
            self.save_begin(first)
        else:
            self.first = found.first
        steps = self._agree_on_anchors()
        self._gap = least_gap(steps) if len(steps) > self._most // 2 else 1
        self._begun = True

    def save_begin(self, first: int | None) -> None:
        """Note what this run is; see `begin`."""
        self._store("begin", 0, Begin(self._named, first), "what the run is", 1)

    def check(self, name: str, now: object, then: object) -> None:
        """
        Compare what is known only while a loop runs with what an entry says.

        Args:
            name: What it is: a static value, the inputs read so far, the incoming cotangent.
            now: Its checksum in this call.
            then: That in the entry.

        Raises:
            ResumeError: They differ.
        """
        if now != then:
            self._refuse({name: str(now)}, {name: str(then)})

    def save_plan(self, plan: Planned) -> None:
        """Keep the schedule that was chosen."""
        self._store("plan", 0, plan, "the schedule that was chosen", 1)

    def plan(self) -> Planned | None:
        """Return the schedule that an earlier run chose; None if there is none."""
        return self._load("plan", 0)

    # The forward sweep.

    def save_forward(self, place: Forward) -> None:
        """Keep a place in the forward sweep beside the one before, when all ranks have kept it."""
        self._store("forward", place.step, place, f"forward sweep after {place.step} steps", 2)

    def latest_forward(self) -> Forward | None:
        """Return the last place in the forward sweep that is whole, of the two that are kept; None if there is none."""
        return self._latest("forward")

    def save_final(self, place: Forward) -> None:
        """Keep the end of the forward sweep, and of the places before it only the last."""
        if self._store("final", place.step, place, "end of the forward sweep", 1):
            self._prune("forward", 1)

    def final(self) -> Forward | None:
        """Return the end of the forward sweep; None if it was not reached, or is damaged."""
        return self._latest("final")

    # Restart states.

    def save_anchor(self, step: int, state: Leaves, *, wanted: bool = False) -> bool:
        """
        Keep a restart state, unless others are near enough; of too many, the kept ones are thinned evenly.

        Args:
            step: The number of steps done; the state of step 0 is never kept, as the caller has it.
            state: The state after them.
            wanted: Whether it is kept however near others are, but in the stead of none.

        Returns:
            Whether it was kept.
        """
        if wanted:
            is_refused = agree(step in (anchors := self.anchors()) or len(anchors) >= self._most)
        else:
            is_refused = self._is_near(step)
            while not is_refused and agree(len(self.anchors()) >= self._most):
                self._thin()
            is_refused = is_refused or self._is_near(step)
        kind = f"restart state of step {step}"
        return not is_refused and self._store("anchor", step, Anchor(state), kind, self._most)

    def _is_near(self, step: int) -> bool:
        """
        Return whether a rank keeps a restart state too near to a step.

        A rank that found one damaged has given it up, so that they may keep different ones.
        """
        return agree(any(abs(step - other) < self._gap for other in (0, *self.anchors())))

    def anchors(self) -> tuple[int, ...]:
        """Return the steps whose restart states are kept, in ascending order."""
        return tuple(sorted(step_of(key) for key in self._keys("anchor")))

    def _agree_on_anchors(self) -> tuple[int, ...]:
        """Return the steps whose restart states all ranks keep; what only some of them have is deleted."""
        left, found = list(self.anchors()), list[int]()
        while (step := agree(max(left, default=-1))) >= 0:
            if not agree(step not in left):
                found.insert(0, step)
            elif step in left:
                self.directory.storage.delete(self._key("anchor", step))
            left = [other for other in left if other < step]
        return tuple(found)

    def load_anchor(self, step: int) -> Leaves | None:
        """Return a restart state; None if it is not there, or damaged, which a warning says."""
        found = self._load("anchor", step)
        return None if found is None else found.state

    def forget_anchors(self, after: int) -> None:
        """Give up the restart states after a step: the steps to them run again, and may have other inputs now."""
        for step in self.anchors():
            if step > after:
                self.directory.storage.delete(self._key("anchor", step))

    def _thin(self) -> bool:
        """Give up restart states that are too near to each other, at least one; False if there is none."""
        steps = self.anchors()
        if not steps:
            return False
        self._gap = max(self._gap, least_gap(steps))
        surplus: list[int] = []
        while not surplus:
            self._gap *= 2
            last = 0
            for step in steps:
                if step - last < self._gap:
                    surplus.append(step)
                else:
                    last = step
        for step in surplus:
            self.directory.storage.delete(self._key("anchor", step))
        return True

    # The reverse sweep.

    def save_reverse(self, place: Reverse) -> None:
        """
        Keep a place in the reverse sweep beside the one before, and give up restart states that nobody needs.

        A later process has to run the steps again that were the first to use a static value.
        """
        self._store("reverse", place.end, place, f"reverse sweep down to step {place.end}", 2)
        ends = [step_of(key) for key in self._keys("reverse")]
        anchors = self.anchors()
        needed = {max((anchor for anchor in anchors if anchor <= step), default=0) for step, *_ in place.met}
        for step in anchors:
            if ends and step >= max(ends) and step not in needed:
                self.directory.storage.delete(self._key("anchor", step))

    def latest_reverse(self) -> Reverse | None:
        """Return the last place in the reverse sweep that is whole, of the two that are kept; None if there is none."""
        return self._latest("reverse")

    # Entries.

    def _key(self, name: str, step: int | str = "") -> str:
        return f"loop-{self._loop}/{name}/{step}"

    def _keys(self, name: str) -> list[str]:
        """Return the keys of a kind, or of all, by age."""
        prefix = self._key(name) if name else f"loop-{self._loop}/"
        storage = self.directory.storage
        found = [key for key in storage.keys() if isinstance(key, str) and key.startswith(prefix)]
        return sorted(found, key=storage.generation)

    def _prune(self, name: str, keep: int) -> bool:
        """Delete all entries of a kind but the newest; return whether there were more."""
        keys = self._keys(name)
        for key in keys[: max(0, len(keys) - keep)]:
            self.directory.storage.delete(key)
        return len(keys) > keep

    def _store(self, name: str, step: int, record: Any, kind: str, keep: int) -> bool:
        """Keep an entry, and of its name no more than the newest; where a rank cannot keep it, none does."""
        key, arrays = self._key(name, step), encode(self._fingerprint, record)
        is_old = key in self.directory.storage.keys()
        while True:
            error: StorageError | None = None
            try:
                self.directory.storage.replace(key, arrays, kind=f"loop {self._loop}: {kind}")
            except StorageError as caught:
                # Without a number it is no trouble of the disk but a misuse.
                if caught.errno is None:
                    raise
                error = caught
            failed, full = agree((error is not None, isinstance(error, StorageFullError)))
            if failed and not is_alone() and key in self.directory.storage.keys():
                self.directory.storage.delete(key)
                if is_old:
                    self.directory.note(self._key(name), step, None)
            if full and name != "anchor":
                has_freed = self._thin() or any(self._prune(kind, 1) for kind in _PLACES)
                if not agree(error is not None and not has_freed):
                    self._warn_of_refusal(error, "with fewer restart states, so that a kill costs more")
                    continue
            if failed:
                self._warn_of_refusal(error, "if it is killed, it resumes from the last save that worked")
                return False
            if name in _PLACES:
                self.directory.note(self._key(name), step, key)
            self._prune(name, keep)
            return True

    def _latest(self, name: str) -> Any:
        """Return the last entry of a name that is whole on all ranks; what only some ranks have kept is deleted."""
        keys, sign = self._keys(name), -1 if name == "reverse" else 1
        found, step, reached = None, 0, -math.inf
        while True:
            while keys and found is None:
                step = step_of(keys.pop())
                found = self._load(name, step)
                reached = -math.inf if found is None else float(sign * step)
            ahead = reached > -agree(-reached)
            if not agree(ahead):
                return found
            if ahead:
                self._give_up(name, step)
                found, reached = None, -math.inf

    def _load(self, name: str, step: int, *, check: bool = False) -> Any:
        """Return an entry; None if there is none, or after a warning if it is no use."""
        key = self._key(name, step)
        storage = self.directory.storage
        if key not in storage.keys():
            return None
        try:
            fingerprint, found = decode(storage.get(key), name)
        except (StorageError, ValueError, KeyError, TypeError, IndexError, StopIteration) as error:
            self._give_up(name, step)
            self._warn(f"is damaged and counts as missing: {error}", name, step)
            return None
        if fingerprint == self._fingerprint:
            return found
        if check:
            now, then = shown(self._named, getattr(found, "named", ()))
            self._refuse(self._fingerprint | now, fingerprint | then)
        self._give_up(name, step)
        self._warn(f"in {self.directory.path} belongs to another run and counts as missing.", name, step)
        return None

    def _give_up(self, name: str, step: int) -> None:
        """Delete an entry that is no use, and miss it no more."""
        self.directory.storage.delete(self._key(name, step))
        self.directory.note(self._key(name), step, None)

    # Messages.

    def _refuse(self, now: Mapping[str, str], then: Mapping[str, str]) -> None:
        self.directory.refuse(f"Time loop {self._loop}", now, then)

    def _warn(self, reason: str, name: str, step: int) -> None:
        what = f"The entry {name!r} of step {step}, loop {self._loop}, "
        warnings.warn(
            f"{what}{reason} The run goes on from an older entry or from its start.", RuntimeWarning, stacklevel=4
        )

    def _warn_of_refusal(self, error: StorageError | None, outcome: str) -> None:
        if not self.directory.warned:
            self.directory.warned = True
            # The storage does not know under which name the user gave the directory.
            reason = str(error or "another process failed.").replace(" directory=", " resume=")
            warnings.warn(
                f"The journal of loop {self._loop} could not be written: {reason} The run goes on; {outcome}.",
                RuntimeWarning,
                stacklevel=4,
            )
