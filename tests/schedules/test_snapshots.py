from __future__ import annotations

import json
import pickle
import random
import tracemalloc

import pytest

from ebbtide.schedules import Delete, Forward, Move, Position, Snapshot, StoreAll
from ebbtide.schedules.snapshots import CHUNK, Stack, add, find_place, remove, shared


def make(steps):
    """Snapshots of these steps, of all kinds and tiers."""
    return tuple(Snapshot(step, ("restart", "saved")[step % 2], ("memory", "disk")[step // 2 % 2]) for step in steps)


@pytest.mark.parametrize("many", [CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 7])
def test_many_snapshots_are_as_their_tuple(many):
    """Chunks of snapshots have the length, items, order, equality, hash, text and pickle of the tuple of them."""
    whole = make(range(0, 3 * many, 3))
    held = shared(whole)
    assert isinstance(held, Stack)
    assert len(held) == many
    assert tuple(held) == whole
    assert [held[place] for place in range(-many, many)] == [*whole, *whole]
    assert held[5:-3:2] == whole[5:-3:2]
    assert tuple(reversed(held)) == whole[::-1]
    assert (held == whole) is (whole == held) is True
    assert held != whole[:-1]
    assert held != shared((*whole[:-1], Snapshot(3 * many)))
    assert hash(held) == hash(whole)
    assert repr(held) == repr(whole)
    assert pickle.loads(pickle.dumps(held)) == held
    for wrong in (many, -many - 1):
        with pytest.raises(IndexError, match=str(wrong)):
            held[wrong]
    assert [find_place(held, step) for step in (0, 1, 3, 3 * many - 3, 3 * many)] == [0, 1, 1, many - 1, many]


def test_changes_are_as_those_of_a_tuple():
    """Snapshots that are added and removed anywhere leave what a tuple would have, and the old ones as they are."""
    chance = random.Random(1)
    held, whole, turn = shared(make(range(0, 2800, 4))), make(range(0, 2800, 4)), 0
    while whole:
        grows = turn < 400 or (turn < 600 and chance.random() < 0.5)
        before, step = (held, whole), chance.choice((chance.randrange(3000), 3000 + turn))
        place = find_place(held, step)
        assert place == sum(one.step < step for one in whole)
        if not grows:
            place = chance.choice((len(whole) - 1, chance.randrange(len(whole))))
            held, whole = remove(held, place), whole[:place] + whole[place + 1 :]
        elif place == len(whole) or whole[place].step != step:
            held, whole = add(held, place, Snapshot(step)), (*whole[:place], Snapshot(step), *whole[place:])
        assert len(held) == len(whole)
        if turn % 20 == 0 or len(whole) < 3:
            assert tuple(held) == whole
            assert tuple(before[0]) == before[1]
            assert held[1:40] == whole[1:40]
        turn += 1
    assert held == ()
    assert turn > 1500


def test_positions_with_many_snapshots():
    """They compare, hash, and go to pickle and to JSON as those with few; snapshots come from any sequence."""
    whole = make(range(2 * CHUNK))
    position = Position(steps=5000, state=4000, snapshots=list(whole))
    assert position == Position(steps=5000, state=4000, snapshots=whole)
    grown = position.after(Forward(start=4000, stop=4001, snapshot=True))
    assert grown.snapshots == (*whole, Snapshot(4000))
    assert grown.on_disk == CHUNK
    assert grown.after(Delete(step=7)).snapshots == (*whole[:7], *whole[8:], Snapshot(4000))
    back = grown.after(Move(step=4000))
    assert back == position
    assert hash(back) == hash(position)
    assert pickle.loads(pickle.dumps(grown)) == grown
    assert Position.from_json(json.loads(json.dumps(grown.to_json()))) == grown


def test_positions_share_their_snapshots():
    """A position after an action takes a few chunks' bytes at most, however many snapshots there are."""
    schedule, position = StoreAll("disk"), Position(steps=20_000)
    for _ in range(10_000):
        position = position.after(schedule.next_action(position))
    later = []
    tracemalloc.start()
    try:
        for _ in range(200):
            position = position.after(schedule.next_action(position))
            later.append(position)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(position.snapshots) == 10_200
    assert taken / len(later) < 8 * CHUNK + 1000
