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
from typing import Any

import numpy as np
from tests.campaign.damage import PLACES, Damage
from tests.loop import lost, trouble
from tests.loop.kill_run import bound_of, launch

from bench.measure import Table, run

SEED = 20261121
# Other schedules than the first are killed at each fourth event.
OFTEN, SELDOM = 1, 4


def kills(directory: Path, strides: Mapping[str, int]) -> None:
    """Print the table of kills."""
    table = Table("Processes killed twice, by schedule: extra steps per case", ("killed", "wrong"), "mean extra")
    for name, options in (("before", ()), ("within writes", ("torn",)), ("SIGTERM", ("SIGTERM",))):
        for schedule, counts in launch(directory, dict(strides), *options).items():
            extra = counts["extra"] or [0]
            bound, wrong = 2 * bound_of(schedule), len(counts["problems"])
            cells = [str(counts["kills"]), str(wrong)]
            met = max(extra) <= bound and not wrong
            case = f"{schedule}, {name}, {counts['steps']} steps"
            table.add(case, str(max(extra)), cells, f"{np.mean(extra):.1f}", str(bound), met)
    table.note(
        "Ours and bar: the most steps beyond those of an undisturbed run, after two kills. Wrong: other bits, or"
    )
    table.note("a file left behind, or more lost than was run since the last save.")
    table.show()


def damage(directory: Path, flips: int, lengths: int) -> None:
    """Print the table of flipped bytes and cut files."""
    table = Table("Damage to what a kill leaves: wrong gradients", ("tried", "told", "refused"), "")
    for place in PLACES:
        for name in ("bytes changed", "files cut or removed"):
            found = Damage(directory / f"{place}-{name[0]}", place)
            found.flip(flips // len(PLACES) + 1, SEED) if name[0] == "b" else found.cut(lengths)
            counts = [str(count) for count in (found.tried, found.told, found.refused)]
            wrong = len(found.problems)
            table.add(f"{name}, killed at input {place}", str(wrong), counts, "", "0", wrong == 0)
    table.note("What was not told was no part of an entry, or the header of one: it is then not there.")
    table.show()


def failures(directory: Path, stride: int) -> None:
    """Print the table of writes and allocations that fail."""
    table = Table("Writes that fail, in journal and snapshots: wrong gradients", ("tried", "told"), "")
    local = directory / "local"
    local.mkdir()
    for name in ("revolve", "hierarchical", "periodic"):
        expected = trouble.gradient(name, None)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            tried = told = wrong = 0
            for lasting in (False, True):
                at, events = 1, trouble.Events()
                while at == 1 or events.count >= at - stride:
                    events = trouble.Events(at, trouble.fail(number), ("pwrite", "allocate"), lasting=lasting)
                    with warnings.catch_warnings(record=True) as caught, events.installed():
                        warnings.simplefilter("always")
                        found = trouble.gradient(name, directory / "run", local)
                    wrong += found != expected or (directory / "run").exists() or len(caught) > 2
                    tried, told, at = tried + 1, told + bool(caught), at + stride
            table.add(f"{name}, {errno.errorcode[number]}", str(wrong), [str(tried), str(told)], "", "0", not wrong)
    table.note("Each write is let fail once, and with all later ones. Told: by a warning.")
    table.show()


def losses(directory: Path, count: int, intervals: tuple[int, ...]) -> None:
    """Print the table of what random kills cost."""
    steps, slots = lost.STEPS, lost.SNAPSHOTS
    table = Table(
        f"Mean loss by a random kill, in % of all steps ({steps} steps, {slots} snapshots)", ("max", "min"), ""
    )
    legs = Table("Jobs that may run a tenth of the steps", (), "")
    for every in intervals:
        found = 100 * np.array(lost.losses(directory / "run", every=every, kills=count, seed=SEED))
        cells = [f"{found.max():.2f}", f"{found.min():.2f}"]
        case = f"saved every {every} steps, {count} kills"
        table.add(case, f"{found.mean():.2f}", cells, "", "1", bool(found.mean() <= 1))
        jobs = lost.count_legs(directory / "run", every=every)
        legs.add(f"saved every {every} steps", str(jobs), [], "", "11", jobs <= 11)
    table.note("Less than 0: a run that goes on has the restart states of its journal, and reverses with fewer steps.")
    table.show()
    legs.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as name:
        places = {part: Path(name) / part for part in ("kills", "damage", "failures", "losses")}
        for path in places.values():
            path.mkdir()
        often, seldom = (200, 200) if quick else (OFTEN, SELDOM)
        names = ["revolve"] if quick else list(trouble.SCHEDULES)
        kills(places["kills"], {name: often if name == "revolve" else seldom for name in names})
        for place in PLACES:
            for kind in "bf":
                (places["damage"] / f"{place}-{kind}").mkdir()
        damage(places["damage"], *((3, 1) if quick else (10_000, 500)))
        failures(places["failures"], 500 if quick else 1)
        losses(places["losses"], *((1, (20,)) if quick else (300, (5, 10, 20))))


if __name__ == "__main__":
    run(main)
