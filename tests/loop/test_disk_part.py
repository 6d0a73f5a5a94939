"""What a loop has of the disk of a budget, and the plan that it goes on with."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide import Budget, BudgetError
from ebbtide.ledger import Ledger
from ebbtide.loop.holding import replan
from ebbtide.loop.holding.disk_part import DiskPart
from ebbtide.loop.holding.replan import choose_again, of_known_length
from ebbtide.loop.planning.plan import Sizes
from ebbtide.quota import Quota
from ebbtide.schedules import Costs, Online, Position, Snapshot, StoreAll

MIB = 2**20
NARROW = Sizes(state=MIB, saved=2 * MIB, sweep=4 * MIB, gradients=0, stored=MIB + 4096, nodes=4096)
WIDE = NARROW.widened(20 * MIB, 23 * MIB, 20 * MIB)
COSTS = Costs(forward=1.0, reverse=2.0, write=0.1, read=0.1)


def planned(part: DiskPart, memory: int, sizes: Sizes = NARROW, **options: Any) -> Any:
    """The plan of forty steps."""
    known: dict[str, Any] = {"schedule": None, "held": 0, "costs": COSTS}
    return part.choose(40, sizes, memory=memory, **(known | options))


class Lender:
    """A loop that has the disk, and gives it up in two parts."""

    def __init__(self, quota: Quota) -> None:
        self.part, self.asked = Quota(None, quota), 0
        self.part.promised = 80 * MIB
        quota.lenders.append(weakref.ref(self))

    def give_up(self) -> bool:
        """Give up a half."""
        self.asked += 1
        self.part.promised = max(0, self.part.promised - 40 * MIB)
        return self.asked <= 2


def test_a_plan_is_made_for_what_others_leave() -> None:
    """Of 100 MiB that another loop was promised 80 of there are 20 for a plan, and none of what the disk lacks."""
    ledger = Ledger(watched=True)
    ledger.quota = Quota(100 * MIB)
    lender, part = Lender(ledger.quota), DiskPart(ledger, Budget(2**30, 100 * MIB), is_own=False)
    assert part.left == 20 * MIB
    part.lacks = 15 * MIB
    assert part.left == 5 * MIB
    memory = NARROW.fixed + NARROW.restart // 2  # no room for one state
    assert 0 < planned(part, memory).predicted_disk_bytes <= 5 * MIB
    with pytest.raises(BudgetError):
        planned(part, memory, reserve=4 * MIB)
    assert lender.asked == 0


class Bare:
    """A loop of which a part of the disk knows its plan and its snapshots, or a storage that has allocated bytes."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def return_space(self) -> None:
        """Of these bytes none is free."""


def test_what_a_loop_has_of_the_disk_is_its_own_until_it_is_dismissed() -> None:
    """What was promised and what is stored count once; what the loop does not use goes back, and all in the end."""
    ledger, calls = Ledger(watched=True), list[str]()
    ledger.quota = Quota(100 * MIB)
    part = DiskPart(ledger, Budget(2**30, 100 * MIB), is_own=False)
    snapshots = SimpleNamespace(are_theirs=False, unreserve=lambda: calls.append("unreserved"))
    plan, room = SimpleNamespace(predicted_disk_bytes=30 * MIB), SimpleNamespace(stale=False)
    loop, storage = Bare(snapshots=snapshots, plan=plan, room=room), Bare(allocated=20 * MIB)
    part.snapshots.add(storage)
    part.enlist(loop)
    assert (ledger.quota.left, part.left) == (70 * MIB, 100 * MIB)
    assert part.has_room(80 * MIB)
    assert not part.has_room(80 * MIB + 1)
    part.lacks = 1
    assert not part.has_room(1)
    assert part.give_up()
    assert (ledger.quota.left, calls, room.stale) == (80 * MIB, ["unreserved"], True)
    snapshots.are_theirs = True
    part.promise(loop)
    assert ledger.quota.left == 80 * MIB
    snapshots.are_theirs = False
    part.promise(loop)
    storage.allocated = 0
    other, dead = Bare(), Bare()
    ledger.quota.lenders += [weakref.ref(other), weakref.ref(dead)]
    del dead
    part.dismiss()
    assert (ledger.quota.left, [one() for one in ledger.quota.lenders]) == (100 * MIB, [other])


def test_others_give_up_disk_where_there_is_no_plan() -> None:
    """A first plan that needs the disk of another loop gets it, and is refused once there is no more."""
    ledger = Ledger(watched=True)
    ledger.quota = Quota(80 * MIB)
    lender, part = Lender(ledger.quota), DiskPart(ledger, Budget(2**30, 80 * MIB), is_own=False)
    known = {"schedule": None, "held": 0, "costs": COSTS}
    memory = NARROW.fixed + NARROW.restart // 2  # no room for one state
    with pytest.raises(BudgetError):
        part.choose(40, NARROW, memory=memory, **known)
    plan = part.choose_first(40, NARROW, memory=memory, **known)
    assert plan.predicted_disk_bytes <= part.left
    assert lender.asked == 1
    with pytest.raises(BudgetError):
        part.choose_first(40, NARROW, memory=NARROW.fixed // 2, **known)
    assert lender.asked == 3


def test_a_budget_of_a_loop_is_within_that_around() -> None:
    """A loop's own budget says how much disk it has, as far as the call around has as much."""
    ledger = Ledger(watched=True)
    assert DiskPart(ledger, None, is_own=False).left == 0
    assert DiskPart(ledger, Budget(MIB, 7 * MIB), is_own=False).left == 7 * MIB
    ledger.quota = Quota(5 * MIB)
    assert DiskPart(ledger, Budget(MIB, 3 * MIB), is_own=True).left == 3 * MIB
    assert DiskPart(ledger, Budget(MIB, 9 * MIB), is_own=True).left == 5 * MIB


def loop_at(position: Position, plan: Any, part: DiskPart, **room: Any) -> Any:
    """What a plan is chosen from: a loop that has run forty steps."""
    known = {"disk": part, "spare": SimpleNamespace(grown=False), "planned": None}
    return SimpleNamespace(plan=plan, position=position, ran=40, records={}, room=SimpleNamespace(**(known | room)))


@pytest.mark.parametrize("memory", [9, 26, 60])
def test_a_wide_step_is_planned_in_memory_or_on_disk(memory: int) -> None:
    """Where what a step saves fits it is planned with that; where not, as at first, with disk left for its pages."""
    ledger = Ledger(watched=True)
    ledger.quota = Quota(100 * MIB)
    part = DiskPart(ledger, Budget(2**30, 100 * MIB), is_own=False)
    plan = planned(part, 2**30, WIDE, schedule=StoreAll())
    position = Position(steps=40, state=40, forward_ended=True, snapshots=(Snapshot(0, "restart", "disk"),))
    pages = SimpleNamespace(nbytes=18 * MIB)
    wide = SimpleNamespace(tape=SimpleNamespace(pager=SimpleNamespace(pages=pages)))
    part.learn(wide)
    assert (part.reserve_for([]), part.reserve_for([wide])) == (18 * MIB, 0)
    loop = loop_at(position, plan, part, planned=NARROW, spare=SimpleNamespace(grown=True))
    found = choose_again(loop, memory * MIB, 0, 0)
    assert found.predicted_peak_bytes <= memory * MIB
    assert found.sizes == (NARROW if memory == 9 else WIDE)
    if memory == 9:
        assert found.predicted_disk_bytes <= (100 - 18) * MIB
    assert found.predicted_steps_forward == 40 + found.schedule.forward_steps_left(position)
    with pytest.raises(BudgetError):
        choose_again(loop, 3 * MIB, 0, 0)


def test_a_loop_whose_steps_have_grown_keeps_its_initial_state() -> None:
    """Once a step saved more than planned there is room for one more state, where there is a plan beside it."""
    ledger = Ledger(watched=True)
    part = DiskPart(ledger, Budget(2**30), is_own=False)
    position = Position(steps=40, state=40, forward_ended=True, snapshots=(Snapshot(0),))
    plan = planned(part, 2**30, schedule=StoreAll())
    loops = {grown: loop_at(position, plan, part, spare=SimpleNamespace(grown=grown)) for grown in (False, True)}
    peaks = [
        choose_again(loops[grown], memory, 0, 0).predicted_peak_bytes
        for memory in (20 * MIB, NARROW.fixed + NARROW.restart) for grown in (False, True)
    ]  # fmt: skip
    assert peaks[1] <= 20 * MIB - NARROW.restart < peaks[0] <= 20 * MIB
    assert peaks[2] == peaks[3] <= NARROW.fixed + NARROW.restart


def test_the_plan_of_a_loop_that_ended_has_its_length() -> None:
    """What was run counts, and what is left to be run from where the loop ended."""
    part = DiskPart(Ledger(watched=True), None, is_own=False)
    plan = planned(part, 2**30, schedule=Online(3), open=True).with_measuring(2, 5.0)
    position = Position(steps=12, state=12, forward_ended=True, snapshots=(Snapshot(0), Snapshot(4), Snapshot(8)))
    loop = loop_at(position, plan, part)
    loop.ran = 14
    found = of_known_length(loop)
    assert found.steps == 12
    assert found.predicted_steps_forward == 14 + plan.schedule.forward_steps_left(position)
    assert found.predicted_time == found.predicted_steps_forward - 2 + 2 * 12 + plan.measuring_time


def test_all_processes_plan_again_if_one_could_give_up_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is a thing that all do together: one that had nothing to give up would leave the others waiting."""
    tried, freed, ledger = list[int](), iter([1, 0]), Ledger(watched=True)

    def choose(rule: Any, memory: int | None, others: int, kept: int) -> Any:
        tried.append(others + kept)
        raise BudgetError("nothing fits", 1)

    monkeypatch.setattr(replan, "counted_bytes", lambda rule: 0)
    monkeypatch.setattr(replan, "beyond_now", lambda rule: 0)
    monkeypatch.setattr(replan, "unrecorded_bytes", lambda rule: 0)
    monkeypatch.setattr(replan, "give_up_on_disk", lambda rule, kind: False)
    monkeypatch.setattr(replan, "page_outside", lambda rule: False)
    monkeypatch.setattr(replan, "choose_again", choose)
    monkeypatch.setattr(replan, "agree", lambda nbytes: next(freed))
    with pytest.raises(BudgetError):
        replan.choose_beside(object(), ledger, 0, 0)
    assert len(tried) == 2
