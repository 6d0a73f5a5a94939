"""
Kills a run with a journal at each of its steps and system calls, as a program of its own, as it forks.

`python -m tests.loop.kill_run DIRECTORY NAME,STRIDE,... [torn] [SIGTERM]` kills the run of each name at every event of
number STRIDE, 2 STRIDE and so on, with `torn` in the middle of each such write, once more at another event of the run
that goes on, and then lets it come to its end. It prints the counts of each as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.loop.trouble import EVERY, STEPS, Events, in_child, kill
from tests.scale import bar

import ebbtide
from ebbtide.storage.listing import list_storage

# What all steps saved dies with its process and is made again, so that going on takes as many steps as beginning.
SAVING = ("store", "store on disk")
# What a run that goes on runs before anything else: the first step; and the steps up to the first use of the late
# static value, from the start or, once there is a place to go on from, from the last restart state before.
MET, MET_LATER = 1 + 8, 1 + EVERY


def twice_of(name: str, left: int) -> int:
    """
    How many of the steps that are left run twice in a run that goes on with what all steps save.

    On disk that is the first step of each part between two restart states, of which there are those of each save, that
    before the late static value, and the initial one: a step has one snapshot, which here is its restart state.
    """
    return left // EVERY + 2 if name == "store on disk" else 0


def bound_of(name: str) -> int:
    """
    The most steps that two kills cost.

    By each that is what was run since the last save, of reversed steps up to four times. Where all steps are saved, a
    kill takes what is at hand: that is at most all of them by the first. Of a run that goes on it is what was run since
    the last save and a part between two restart states, or the steps that the first kill has left.
    """
    if name in SAVING:
        return STEPS + 2 * EVERY + 2 * MET_LATER + twice_of(name, STEPS)
    return 2 * (4 * EVERY + MET)


def kept_places(directory: Path) -> tuple[int, int]:
    """How far the journal of a killed run goes: steps forward, and steps that are left in reverse."""
    forward, left = 0, STEPS
    for record in list_storage(directory).entries:
        _, name, step = str(record.key).split("/")
        if name in {"forward", "final"}:
            forward = max(forward, int(step))
        elif name == "reverse":
            left = min(left, int(step))
    return forward, left


def goes_on(directory: Path) -> bool:
    """Whether there is something to go on from: without its file a run is over, and the next one is another."""
    return (directory / "segment").exists()


class Campaign:
    """The runs of one schedule, all killed twice, and what came of them."""

    def __init__(self, parent: Path, name: str, strike: Any, *, torn: bool) -> None:
        self._parent, self._name, self._strike, self._torn = parent, name, strike, torn
        whole = Events()
        self._expected = in_child(name, None, whole)
        self.steps = whole.steps
        self.kills, self.extra, self.without, self.last = 0, list[int](), list[int](), list[int]()
        self.problems = list[str]()

    def run(self, at: int) -> bool:
        """Kill at an event and once more, and run to the end; False if there are not so many events."""
        name, directory, local = self._name, self._parent / f"{self._name}-{at}", self._parent / "local"
        local.mkdir(exist_ok=True)
        one = Events(at, self._strike, ["pwrite"] * self._torn)
        if in_child(name, directory, one, local) == self._expected:
            return False
        begun = goes_on(directory)
        left = self._check_kept(at, one) if begun else None
        if at % 2:
            # What is on the disk of the machine may go with it.
            shutil.rmtree(local)
            local.mkdir()
        two, three = Events(1 + at * 7 % 150, self._strike), Events()
        again = in_child(name, directory, two, local) != self._expected
        goes_on_again = goes_on(directory)
        if again:
            left = self._check_kept(at, two) if goes_on_again else None
        begun = begun and goes_on_again == again
        self.kills += 1 + again
        if in_child(name, directory, three, local) != self._expected or directory.exists():
            self.problems.append(f"{name}, event {at}: the result is another one, or something is left behind")
        if begun and again:
            self.extra.append(one.steps + two.steps + three.steps - self.steps)
            self.without.append(one.steps + two.steps)
        if left is not None and name in SAVING:
            self._check_last(at, (three if again else two).steps, left)
        return True

    def _check_last(self, at: int, ran: int, left: int) -> None:
        """Check that a run that went on to the end ran no more than what the one before had left to it."""
        self.last.append(ran - left)
        if ran - left > MET_LATER + twice_of(self._name, left):
            self.problems.append(f"{self._name}, event {at}: {left} steps were left, and {ran} were run")

    def _check_kept(self, at: int, events: Events) -> int:
        """Check that a killed run had kept all but what it did last; return how many steps it left in reverse."""
        forward, left = kept_places(self._parent / f"{self._name}-{at}")
        if events.forward - forward > EVERY + 1 or left - events.left > EVERY:
            self.problems.append(
                f"{self._name}, event {at}: {events.forward} steps were run and {forward} of them kept; in reverse "
                f"{events.left} were left, and {left} by what was kept"
            )
        return left


def launch(directory: Path, strides: dict[str, int], *options: str) -> dict[str, Any]:
    """Run this program for schedules by name; return the counts of each."""
    names = ",".join(f"{name},{stride}" for name, stride in strides.items())
    command = [sys.executable, "-m", "tests.loop.kill_run", str(directory), names, *options]
    paths = [Path(ebbtide.__path__[0]).parent, Path(__file__).parents[2]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment, cwd=directory)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}")
    return json.loads(done.stdout)


def main(parent: str, names: str, *rest: str) -> None:
    """Kill, and print the counts."""
    torn = "torn" in rest
    strike = kill(signal.SIGTERM if "SIGTERM" in rest else signal.SIGKILL, torn=torn)
    pairs, found = names.split(","), {}
    for name, stride in zip(pairs[::2], map(int, pairs[1::2]), strict=True):
        campaign = Campaign(Path(parent), name, strike, torn=torn)
        for at in bar(itertools.count(stride, stride), f"kills of {name}"):
            if not campaign.run(at):
                break
        whats = "steps", "kills", "extra", "without", "last", "problems"
        found[name] = {what: getattr(campaign, what) for what in whats}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
