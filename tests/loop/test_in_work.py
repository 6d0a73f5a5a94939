"""What is told of the step in work, and what a bound leaves out for a loop, while others give up what they can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.bound import Bound
from ebbtide.ledger import SAVED, SNAPSHOTS, Ledger
from ebbtide.loop.holding import held
from ebbtide.loop.holding.held import Beyond
from ebbtide.loop.holding.in_work import InWork


class Holder:
    """A loop that holds saved values or snapshots, and can give all up; the code around it has paged some bytes."""

    def __init__(self, ledger: Ledger, nbytes: int, kind: str = SAVED) -> None:
        self.ledger, self.sheddable, self.is_at_work, self.kind = ledger, nbytes, False, kind
        self.outer = SimpleNamespace(pager=SimpleNamespace(paged=0))
        self.stepper = SimpleNamespace(region=SimpleNamespace(outer=self.outer))
        ledger.add(kind, nbytes)
        ledger.lend(self)

    def shed(self, nbytes: int) -> int:
        """Give up as much as it is asked for."""
        freed = min(nbytes, self.sheddable)
        self.sheddable -= freed
        self.ledger.add(self.kind, -freed)
        return freed


def fail(ledger: Ledger, mine: Holder) -> None:
    """Give up some bytes, of which the code around has paged a few, and fail."""
    ledger.add(SAVED, -30)
    mine.outer.pager.paged += 5
    raise OSError("full")


def kept_since(ledger: Ledger, in_work: InWork, rule: Any) -> int:
    """The bytes that the step in work saved."""
    return sum(ledger.kept_since(in_work.since(rule)))


@pytest.mark.parametrize("kind", [SAVED, SNAPSHOTS])
def test_what_other_loops_give_up_is_no_part_of_what_a_step_saves(kind: str) -> None:
    """A step of 2.3 MB beside a loop that gave up as much while it ran was taken for one of 0.1 MB."""
    ledger = Ledger(watched=True)
    other, mine = Holder(ledger, 300, kind), Holder(ledger, 50, kind)
    in_work = InWork(ledger)
    in_work.begin(None, bounded=False)
    with in_work.running(mine):
        ledger.add(kind, 400)
        assert ledger.relieve(320) == 320
        with in_work.giving_up(mine):
            ledger.add(kind, -10)
    assert (other.sheddable, mine.sheddable) == (0, 30)
    # What the loop itself gives up it tells; here it gave up 20 bytes that nobody was told of.
    assert kept_since(ledger, in_work, mine) == 400 - 20
    assert in_work.kept == 400 - 20


def test_what_goes_to_disk_and_what_fails_is_no_part_of_it_either() -> None:
    """Pages of the code around, and a storage that fails while the loop gives up; the next step begins anew."""
    ledger = Ledger(watched=True)
    mine, in_work = Holder(ledger, 300), InWork(ledger)
    in_work.begin(mine.outer.pager, bounded=False)
    with in_work.running(mine):
        ledger.add(SAVED, 400)
        ledger.add(SAVED, -70)
        mine.outer.pager.paged += 70
        with pytest.raises(OSError, match="full"), in_work.giving_up(mine):
            fail(ledger, mine)
    assert kept_since(ledger, in_work, mine) == 400
    in_work.begin(mine.outer.pager, bounded=False)
    assert kept_since(ledger, in_work, mine) == 0


def test_the_most_that_is_held_since_a_step_began() -> None:
    """It is told once of each step, and the peak of the call stays what it was."""
    ledger = Ledger(watched=True)
    ledger.add(SAVED, 900)
    ledger.add(SAVED, -800)
    in_work = InWork(ledger)
    in_work.begin(None, bounded=True)
    ledger.add(SAVED, 50)
    ledger.add(SAVED, -20)
    assert (in_work.most_held(), ledger.peak, in_work.most_held()) == (150, 900, 0)


def test_a_bound_follows_what_a_loop_at_work_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter takes for steps is free when they are gone: a budget that a refusal named was refused."""
    rule = SimpleNamespace(beyond=100)
    monkeypatch.setattr(held, "beyond_now", lambda rule: rule.beyond)
    ledger = Ledger(watched=True)
    beyond = Beyond(ledger)
    with ledger.within(Bound(1000, None)):
        beyond.changed(rule)  # a loop that rests has nothing left out
        with beyond.left_out(rule, 7):
            assert ledger.limit == 1000 - 107
            rule.beyond = 60
            beyond.changed(rule)
            assert (ledger.limit, ledger.left_out) == (1000 - 67, 67)
        assert (ledger.limit, ledger.left_out) == (1000, 0)
