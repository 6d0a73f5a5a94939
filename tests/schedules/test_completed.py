"""What can be completed is: each position of a loop of three steps, by a search that knows nothing of schedules."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest

from ebbtide.errors import ScheduleError
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Position, Revolve, Snapshot, StoreAll
from ebbtide.testing import check_schedule

STEPS = 3
# Of each schedule how many restart states it may have in memory, how many on disk, and whether it stores saved values.
SCHEDULES = [
    (Revolve(1), {"memory": 1, "disk": 0}),
    (Revolve(2), {"memory": 2, "disk": 0}),
    (Online(2), {"memory": 2, "disk": 0}),
    (Hierarchical(1, 0), {"memory": 1, "disk": 0}),
    (Hierarchical(1, 1), {"memory": 1, "disk": 1}),
    (Hierarchical(0, 2, Costs(write=2, read=2)), {"memory": 0, "disk": 2}),
    (Periodic(2, 1), {"memory": 1, "disk": STEPS}),
    (StoreAll("disk"), {"memory": STEPS, "disk": STEPS}),
    (Mixed(1), {"memory": 1, "disk": 0}),
    (Mixed(3, 1, 2), {"memory": 3, "disk": 0}),
    (Mixed(3, 2, 3), {"memory": 3, "disk": 0}),
]
# Those that are for loops of unknown length.
OPEN = (Online, Periodic, StoreAll)


def positions():
    """All places without saved values at hand: the end, the step of the state, these, EndForward, and what is held."""
    for ended, done, state, *kinds in product(
        (False, True), range(STEPS + 1), (None, *range(STEPS + 1)), *[("", "restart", "saved")] * STEPS
    ):
        if ended or done == 0:
            held = frozenset((step, kind, "memory") for step, kind in enumerate(kinds) if kind)
            yield STEPS - done, state, None, ended, held


def moves(place, may_store):
    """All places to which one action of one step leads; saved values of one step are at hand at a time."""
    end, state, saved, ended, held = place
    if ended and saved == end - 1:
        yield saved, state if state is not None and state < saved else None, None, ended, held
    if not ended and state == STEPS:
        yield end, state, saved, True, held
    for one in held:
        step, kind, _ = one
        yield end, state, saved, ended, held - {one}
        for kept in (held, held - {one}):
            if kind == "restart":
                yield end, step, saved, ended, kept
            elif step < end and saved is None:
                yield end, state, step, ended, kept
    if state is not None and state < end:
        for at_hand in {saved, None}:
            yield end, state + 1, at_hand, ended, held
            if at_hand is None:
                yield end, state + 1, state, ended, held
            for one in product([state], ("restart", "saved"), ("memory", "disk")):
                if all(step != state for step, *_ in held) and may_store(held, one):
                    yield end, state + 1, at_hand, ended, held | {one}


def can_be_completed(place, may_store, known):
    """Whether some actions lead to the end; *known* is what was found of other places."""
    seen, left = {place}, [place]
    while left and place not in known:
        one = left.pop()
        if (one[0] == 0 and one[3]) or known.get(one):
            known[place] = True
        new = set(moves(one, may_store)) - seen
        seen |= new
        left.extend(new)
    return known.setdefault(place, False)


def name_of(one):
    """A schedule by its numbers, and no slots."""
    return "" if isinstance(one, dict) else str(one)


def check_all(schedule, slots, start_at, most):
    """Follow a schedule from the starts at all places that can be completed, in its room; any other is an error."""
    sizes = {"restart": 1, "saved": 0}
    if isinstance(schedule, Mixed):
        sizes = {"restart": schedule.restart, "saved": schedule.saved}

    def may_store(held, new):
        """Whether there is room, and it is of the kind that the schedule stores."""
        used = sum(sizes[kind] for _, kind, tier in held if tier == new[2])
        return used + sizes[new[1]] <= slots[new[2]] and (new[1] == "restart" or isinstance(schedule, Mixed))

    known, completed = {}, 0
    for place in positions():
        kept = tuple([Snapshot(*one) for one in sorted(place[4])])
        start = start_at(place, kept)
        if start is None:
            continue
        ends = STEPS if start.open else None
        check = partial(check_schedule, schedule, start.steps, start=start, ends=ends, slots=slots, sizes=sizes)
        if can_be_completed(place, may_store, known):
            check()
            completed += 1
        else:
            with pytest.raises(ScheduleError):
                check()
    assert completed > most


@pytest.mark.parametrize(("schedule", "slots"), SCHEDULES, ids=name_of)
def test_whatever_can_be_completed_is(schedule, slots):
    """In the room of the schedule, from any place with or without a state in hand; any other is an error."""

    def start_at(place, kept):
        end, state, _, ended, _ = place
        return Position(steps=STEPS, reversed=STEPS - end, state=state, forward_ended=ended, snapshots=kept)

    check_all(schedule, slots, start_at, 300)


@pytest.mark.parametrize(("schedule", "slots"), [one for one in SCHEDULES if type(one[0]) in OPEN], ids=name_of)
def test_whatever_can_be_completed_is_where_the_length_is_not_known(schedule, slots):
    """The same, from each place of the forward sweep of a loop that ends long before it has to."""

    def start_at(place, kept):
        _, state, _, ended, _ = place
        if ended:
            return None
        start = Position(steps=10 * STEPS, state=state, snapshots=kept, open=True)
        return start.ended(STEPS) if state == STEPS else start

    check_all(schedule, slots, start_at, 80)
