"""
The fault campaign with its counts: what becomes of gradients with a journal that are killed, damaged or refused space.

Processes are killed at their steps and system calls, and within their writes; bytes of what they leave are changed and
files cut or removed; writes fail. Each gradient is finished by the same call, made again, with the same bits, or
refused with an error that says what is damaged: the column of wrong ones is 0. The mean loss by a kill at a random
moment is at most 1 % of the steps (1000 steps, 10 snapshots), and jobs that may run a tenth of them are at most 11.
"""

from __future__ import annotations

import errno
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.campaign.damage import PLACES, Damage
from tests.loop import lost, trouble
from tests.loop.kill_run import bound_of, launch

from bench.measure import Table, run

SEED = 20261121
# Other schedules than the first are killed at each fourth event.
OFTEN, SELDOM = 1, 4


def kills(directory: Path, strides: Mapping[str, int], ways: tuple[tuple[str, ...], ...]) -> None:
    """Print the table of kills."""
    table = Table("Processes killed twice, by schedule: extra steps per case", ("killed", "wrong"), "mean extra")
    for options in ways:
        for schedule, counts in launch(directory, dict(strides), *options).items():
            extra = counts["extra"] or [0]
            bound, wrong = bound_of(schedule), len(counts["problems"])
            cells = [str(counts["kills"]), str(wrong)]
            case = ", ".join([schedule, *options, f"{counts['steps']} steps"])
            met = max(extra) <= bound and not wrong
            table.add(case, str(max(extra)), cells, f"{np.mean(extra):.1f}", str(bound), met)
    table.note("Ours and bar: the most steps, after two kills, beyond those of an undisturbed run. Wrong: other bits.")
    table.show()


def damage(directory: Path, flips: int, lengths: int, places: tuple[int, ...]) -> None:
    """Print the table of flipped bytes and cut files."""
    table = Table("Damage to what a kill leaves: wrong gradients", ("tried", "told", "refused"), "")
    for place in places:
        for name in ("bytes changed", "files cut or removed"):
            with tempfile.TemporaryDirectory(dir=directory) as parent:
                found = Damage(Path(parent), place)
                if name == "bytes changed":
                    found.flip(flips // len(places) + 1, SEED)
                else:
                    found.cut(lengths)
            counts = [str(count) for count in (found.tried, found.told, found.refused)]
            wrong = len(found.problems)
            table.add(f"{name}, killed at input {place}", str(wrong), counts, "", "0", wrong == 0)
    table.note("What was not told was no part of an entry, or the header of one: it is then not there.")
    table.show()


def failures(directory: Path, names: tuple[str, ...], stride: int) -> None:
    """Print the table of writes and allocations that fail."""
    table = Table("Writes that fail, in journal and snapshots: wrong gradients", ("tried", "told"), "")
    local = directory / "local"
    local.mkdir()
    for name in names:
        expected = trouble.gradient(name, None)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            tried = told = wrong = 0
            for lasting in (False, True):
                at, more = 1, True
                while more:
                    events = trouble.Events(at, trouble.fail(number), ("pwrite", "allocate"), lasting=lasting)
                    with warnings.catch_warnings(record=True) as caught, events.installed():
                        warnings.simplefilter("always")
                        found = trouble.gradient(name, directory / "run", local)
                    wrong += found != expected or (directory / "run").exists() or len(caught) > 2
                    tried, told = tried + 1, told + bool(caught)
                    more, at = events.count >= at, at + stride
            table.add(f"{name}, {errno.errorcode[number]}", str(wrong), [str(tried), str(told)], "", "0", not wrong)
    table.note("Each write is let fail once, and with all later ones. Told: by a warning.")
    table.show()


def losses(directory: Path, count: int, intervals: tuple[int, ...]) -> None:
    """Print the table of what random kills cost."""
    title = f"Mean loss by a random kill, in % of all steps ({lost.STEPS} steps, {lost.SNAPSHOTS} snapshots)"
    table, legs = Table(title, ("max", "min"), ""), Table("Jobs that may run a tenth of the steps", (), "")
    for every in intervals:
        found = 100 * np.array(lost.losses(directory / "run", every=every, kills=count, seed=SEED))
        mean = np.maximum(found, 0.0).mean()
        cells = [f"{found.max():.2f}", f"{found.min():.2f}"]
        case = f"saved every {every} steps, {count} kills"
        table.add(case, f"{mean:.2f}", cells, "", "1", bool(mean <= 1))
        jobs = lost.count_legs(directory / "run", every=every)
        legs.add(f"saved every {every} steps", str(jobs), [], "", "11", jobs <= 11)
    table.note("The mean counts no gains.")
    table.note("Less than 0: a run that goes on has the restart states of its journal, and reverses with fewer steps.")
    table.show()
    legs.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as name:
        places = {part: Path(name) / part for part in ("kills", "damage", "failures", "losses")}
        for path in places.values():
            path.mkdir()
        if quick:
            kills(places["kills"], {"revolve": 200}, ((),))
            damage(places["damage"], 3, 1, PLACES[:1])
            failures(places["failures"], ("revolve",), 500)
            losses(places["losses"], 1, (20,))
            return
        strides = {name: OFTEN if name == "revolve" else SELDOM for name in trouble.SCHEDULES}
        kills(places["kills"], strides, ((), ("torn",), ("SIGTERM",)))
        damage(places["damage"], 10_000, 500, PLACES)
        failures(places["failures"], ("revolve", "hierarchical", "periodic", "store on disk"), 1)
        losses(places["losses"], 300, (5, 10, 20))


if __name__ == "__main__":
    run(main)
