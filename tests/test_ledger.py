"""The ledger asks those who hold what they could do without, in the order in which they came."""

from __future__ import annotations

from functools import partial

from ebbtide.bound import Bound
from ebbtide.ledger import SAVED, SNAPSHOTS, Ledger


class Holder:
    """Holds snapshots, of which it can give up some."""

    def __init__(self, ledger: Ledger, nbytes: int, sheddable: int) -> None:
        self.ledger, self.sheddable, self.is_at_work = ledger, sheddable, False
        ledger.add(SNAPSHOTS, nbytes)
        ledger.lend(self)

    def shed(self, nbytes: int) -> int:
        """Give up as much as it is asked for, if it can."""
        freed = min(nbytes, self.sheddable)
        self.sheddable -= freed
        self.ledger.add(SNAPSHOTS, -freed)
        return freed


def test_the_oldest_is_asked_first_and_those_that_died_never() -> None:
    """It stops when it has enough, and says how much it got."""
    ledger = Ledger(watched=True)
    first, gone, last = [Holder(ledger, 100, 60) for _ in range(3)]
    del gone
    assert (ledger.lent, ledger.relieve(80)) == (120, 80)
    assert (first.sheddable, last.sheddable) == (0, 40)
    assert (ledger.given_up, ledger.relieve(80), ledger.live) == (80, 40, 180)


def test_those_at_work_are_asked_before_the_others_the_youngest_first() -> None:
    """Unless somebody says who is asked, and in which order."""
    ledger = Ledger(watched=True)
    rests, around, inside, later = [Holder(ledger, 100, 60) for _ in range(4)]
    around.is_at_work = inside.is_at_work = True
    assert ledger.relieve(130) == 130
    assert (rests.sheddable, around.sheddable, inside.sheddable, later.sheddable) == (50, 0, 0, 60)
    assert ledger.relieve(70, ledger.lenders) == 70
    assert (rests.sheddable, later.sheddable) == (0, 40)


def test_lenders_before_and_since_a_mark() -> None:
    """Also when the last one from before is dismissed after it."""
    ledger = Ledger(watched=True)
    first, before = Holder(ledger, 10, 5), Holder(ledger, 10, 5)
    mark = ledger.mark()
    since = [Holder(ledger, 10, 5), Holder(ledger, 10, 5)]
    ledger.lenders[:] = [one for one in ledger.lenders if one() is not before]
    assert [one() for one in ledger.lenders_before(mark)] == [first]
    assert [one() for one in ledger.lenders_since(mark)] == since[::-1]


def test_what_was_kept_since_a_mark_is_without_snapshots_that_may_go() -> None:
    """What was saved counts as a whole: a schedule is better than what is left when all has gone."""
    ledger = Ledger(watched=True)
    before = Holder(ledger, 100, 60)
    mark = ledger.mark()
    inner = Holder(ledger, 40, 30)
    ledger.add(SAVED, 7)
    assert ledger.kept_since(mark) == (7, 10)
    inner.shed(30)
    assert ledger.kept_since(mark) == (7, 10)
    assert before.sheddable == 60


def test_only_lenders_from_before_are_heard() -> None:
    """Whoever measures knows what goes and came before, by kind, and takes what goes of its own for its own."""
    ledger = Ledger(watched=True)
    before = Holder(ledger, 100, 60)
    with ledger.hearing() as heard:
        inner = Holder(ledger, 40, 30)
        assert ledger.relieve(70, [one for one in ledger.lenders if one() is inner]) == 30
        assert heard[SNAPSHOTS] == 0
        assert ledger.relieve(20) == 20
        assert (heard[SNAPSHOTS], before.sheddable) == (20, 40)


def test_bounds_begin_and_end_in_any_order() -> None:
    """The smallest bound of those at work is the limit, and there is none when the last of them has ended."""
    ledger, narrow, wide = Ledger(), Bound(40, None), Bound(100, None)
    first, second = ledger.within(narrow), ledger.within(wide)
    seen = []
    for change in (first.__enter__, second.__enter__, partial(first.__exit__, *[None] * 3)):
        change()
        seen.append(ledger.limit)
    second.__exit__(None, None, None)
    assert [*seen, ledger.limit] == [40, 40, 100, None]


def test_what_is_given_up_at_rest_is_not_held_when_work_goes_on() -> None:
    """A bound leaves its owner the bytes that it gave up while it rested, whatever others hold by then."""
    ledger, bound = Ledger(), Bound(40, None)
    with ledger.within(bound):
        lender = Holder(ledger, 30, 30)
    with ledger.beside(5):
        ledger.leave_out(2)
        ledger.add(SAVED, 1000)
        assert ledger.relieve(20) == 20
        assert (bound.held, lender.sheddable) == (10, 10)
        with ledger.within(bound):
            assert ledger.limit == 1000 + 40
        ledger.leave_out(-2)
    assert ledger.limit is None
