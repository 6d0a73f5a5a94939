"""The bytes that a plan counts with, and how loops share what is left."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.arrays.context import entered
from ebbtide.bound import Bound
from ebbtide.ledger import SAVED, Ledger
from ebbtide.loop.holding import share
from ebbtide.loop.holding.replan import of_known_length
from ebbtide.loop.holding.share import claim, share_of
from ebbtide.loop.holding.spare import Spare, is_in_the_way
from ebbtide.loop.planning.plan import make_plan
from ebbtide.loop.planning.predict import predict, table_bytes
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.schedules import (
    Costs,
    Forward,
    Hierarchical,
    Mixed,
    Position,
    Reverse,
    Revolve,
    Schedule,
    Snapshot,
    StoreAll,
)  # fmt: skip

KIB = 2**10
SIZES = Sizes(state=100 * KIB, saved=300 * KIB, sweep=500 * KIB, gradients=0, stored=104 * KIB)
WIDE = replace(SIZES, saved=2 * SIZES.saved)
COSTS = Costs(forward=1.0, reverse=2.0)


def test_without_what_loops_in_steps_can_do_without() -> None:
    """A step saves, runs in and shows less by what they hold, its sweep takes less, and nothing is passed on."""
    sizes = replace(SIZES, passed_on=100 * KIB, run=350 * KIB, seen=320 * KIB)
    assert sizes.without_lent() == sizes
    lent = replace(sizes, lent=90 * KIB, lent_swept=70 * KIB)
    found = replace(sizes, saved=210 * KIB, run=260 * KIB, seen=230 * KIB, sweep=430 * KIB, passed_on=0)
    assert lent.without_lent() == found


def test_one_more_loop_has_an_equal_share() -> None:
    """Its least, and of what is left and others can give up as much as each of them has, up to all that it can use."""
    least, most = SIZES.fixed + SIZES.restart, SIZES.fixed + SIZES.restart + 9 * SIZES.taped
    assert share_of(SIZES, 10, least - 50, 49, 2) == least
    assert share_of(SIZES, 10, least + 100, 200, 0) == least + 300
    assert share_of(SIZES, 10, least + 100, 200, 2) == least + 100
    assert share_of(SIZES, 10, 2 * most, 0, 0) == most
    assert share_of(SIZES, 10, least, 2 * most, 1) == most
    assert share_of(SIZES, 0, 2 * most, 0, 0) == least
    passed = replace(SIZES, passed_on=100 * KIB)
    assert share_of(passed, 10, 2 * most, 0, 0) == most - 9 * 100 * KIB


class AtRest:
    """A loop that can give up snapshots, and what its last step saved, from which so many steps lead to its end."""

    def __init__(self, ledger: Ledger, outer: Any, snapshots: int, last: int, steps: int) -> None:
        self.ledger, self.sheddable, self.last, self.asked = ledger, snapshots + last, last, 0
        self.stepper = SimpleNamespace(region=SimpleNamespace(outer=outer))
        self.position, self.plan = Position(steps=steps, state=steps, forward_ended=True), SimpleNamespace(sizes=WIDE)
        ledger.add(SAVED, self.sheddable)
        ledger.lend(self)

    def holding(self, bare: bool) -> Any:
        """Nothing beyond the ledger."""
        return SimpleNamespace(beyond=0)

    def shed(self, nbytes: int) -> int:
        """Give up what it is asked for, as far as it has that."""
        self.asked, freed = nbytes, max(0, min(nbytes, self.sheddable))
        self.sheddable -= freed
        self.ledger.add(SAVED, -freed)
        return freed


@pytest.mark.parametrize(
    ("left", "steps", "ranks", "asked"),
    [(0, 65, None, 1000), (0, 66, None, 200), (0, 65, object(), 200), (900, 2, None, 550), (900, 3, None, 0)],
    ids=["it pays", "it does not", "others decide, too", "it pays beside what is left", "it does not beside that"],
)
def test_what_a_last_step_saved_goes_where_that_pays(
    left: int, steps: int, ranks: Any, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more loop asks for its share, if it saves over two of its steps for each, twice as wide, that runs again."""
    ledger, outer = Ledger(watched=True), SimpleNamespace(pager=None)
    monkeypatch.setattr(share, "last_bytes", lambda loop: loop.last)
    monkeypatch.setattr(share, "loops_inside", lambda loop, ledger: [])
    least, region = SIZES.fixed + SIZES.restart, SimpleNamespace(outer=outer)
    loop = AtRest(ledger, outer, 400 * KIB, 1600 * KIB, steps)
    # Beyond its least, in KiB: what is left, and its share of that and of 400 that others can give up, or of 2000.
    rooms = {0: (0, 200, 1000), 900: (900, 650, 1450)}[left]
    runs = [Revolve(1 + room * KIB // SIZES.restart).forward_steps(40) for room in rooms]
    assert runs == {0: [820, 240, 108], 900: [109, 115, 103]}[left]
    with ledger.within(Bound(least + left * KIB, None)), entered(ranks=ranks):
        assert claim(region, ledger, list(ledger.lenders), ledger.live, SIZES, 40) == asked * KIB
    assert loop.asked == asked * KIB


def test_an_initial_state_is_in_the_way_of_what_does_not_fit_beside_it() -> None:
    """Of a sweep a state has to be free; of a step on a tape what it saves, and a state unless the step leaves one."""
    schedule, swept = Mixed(11, restart=2, saved=3), Reverse(start=9, stop=8)
    # Of a sweep of 500 KiB one state is left to a step on a tape, or a byte less than that.
    wide, tight = (replace(SIZES, seen=400 * KIB - SIZES.restart + more) for more in (0, 1))
    assert (wide.idle, tight.idle) == (SIZES.restart, SIZES.restart - 1)

    def position(states: int, saved: int) -> Position:
        there = [*map(Snapshot, range(states)), *[Snapshot(9 - k, "saved") for k in range(saved, 0, -1)]]
        return Position(steps=10, state=9, snapshots=tuple(there), forward_ended=True)

    def found(free: int, action: Any, sizes: Sizes) -> bool:
        at = next(one for one in (position(k, n) for k in range(6) for n in range(4)) if schedule.free(one) == free)
        return is_in_the_way(schedule, sizes, at, action)

    stored, kept = Forward(start=8, stop=9, snapshot=True, kind="saved"), Forward(start=8, stop=9, save=True)
    assert [found(free, swept, wide) for free in (1, 2)] == [True, False]
    assert [found(free, stored, tight) for free in (4, 5)] == [True, False]
    assert [found(free, stored, wide) for free in (2, 3)] == [True, False]
    assert [found(free, kept, tight) for free in (1, 2)] == [True, False]
    assert not found(0, kept, wide)


def test_an_initial_state_stays_sixteen_times() -> None:
    """The last restart state of a schedule of both kinds, within a bound, where one process decides; no other one."""
    rule: Any = SimpleNamespace(
        position=Position(steps=9, state=9, snapshots=(Snapshot(0),), forward_ended=True),
        plan=SimpleNamespace(schedule=Mixed(3)),
        room=SimpleNamespace(bounded=True),
    )
    known = dict(rule.__dict__)
    two = replace(rule.position, snapshots=(Snapshot(0), Snapshot(4)))
    others = [
        {"position": replace(rule.position, reversed=8, state=1)}, {"position": two},
        {"plan": SimpleNamespace(schedule=Revolve(3))}, {"room": SimpleNamespace(bounded=False)},
    ]  # fmt: skip
    spare = Spare()
    for other in others:
        assert not spare.stays(SimpleNamespace(**(known | other)), Snapshot(0))
    assert not spare.stays(rule, Snapshot(0, "saved"))
    with entered(ranks=object()):
        assert not spare.stays(rule, Snapshot(0))
    assert not spare.is_there
    assert [spare.stays(rule, Snapshot(0)) for _ in range(18)] == [True] * 16 + [False] * 2
    assert spare.is_there


@pytest.mark.parametrize(
    ("schedule", "held"),
    [
        (Mixed(3), Mixed(3).peak(200, restart=SIZES.restart, saved=SIZES.taped) - SIZES.taped),
        (Hierarchical(3, 3, Costs(write=2.0, read=2.0)), 3 * (SIZES.restart + SIZES.listed)),
    ],
    ids=repr,
)
def test_a_table_takes_most_while_it_is_made(schedule: Schedule, held: int) -> None:
    """Where states are small, what a schedule takes is that; where they are large, they and what is left of it."""
    small = Sizes(state=8, saved=8, sweep=16, gradients=0, stored=16)
    making, table = (table_bytes(schedule, 200, made=made) for made in (True, False))
    assert predict(schedule, 200, small, COSTS).memory == making
    assert predict(schedule, 200, SIZES, COSTS).memory == table + held > making


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_loop_of_known_length_takes_what_one_of_it_does(tier: Any) -> None:
    """Where all is stored, bytes and time are those of a plan that was made for the steps that there were."""
    sizes, schedule = replace(SIZES, nodes=KIB), StoreAll(tier)
    plans = [make_plan(n, sizes, memory=2**30, disk=2**30, schedule=schedule, costs=COSTS) for n in (40, 12)]
    stored = [Snapshot(step, "saved", "disk") for step in range(11)] if tier == "disk" else []
    saved = (len(stored), 12)
    end = Position(steps=12, state=12, forward_ended=True, saved=saved, snapshots=tuple(stored))
    found = of_known_length(SimpleNamespace(plan=plans[0], position=end, ran=12))
    peaks, disks = [one.predicted_peak_bytes for one in plans], [one.predicted_disk_bytes for one in plans]
    assert peaks[1] < peaks[0]
    assert (found.predicted_peak_bytes, found.predicted_disk_bytes) == (peaks[1], disks[1])
    assert (found.steps, found.predicted_steps_forward) == (12, 12)
