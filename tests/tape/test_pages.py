"""Paging outside of time loops: a thread writes behind and reads ahead, in a buffer that is part of the budget."""

from __future__ import annotations

import numpy as np
import pytest
from tests.measure import find_least, peak_bytes

from ebbtide import Budget, BudgetError, grad, profile, vjp
from ebbtide.ledger import BUFFERS, KINDS
from ebbtide.storage import Disk, pipeline
from ebbtide.tape import pages

SIZE, STEPS = 50_000, 60
UNIT = 8 * SIZE


def chain(x):
    """A chain that saves a value in each step."""
    for _ in range(STEPS):
        x = np.sin(x) + 0.01
    return np.sum(x)


@pytest.fixture
def jobs(monkeypatch):
    """What is handed to the thread: whether each job writes."""
    seen = []
    submit = pipeline.Worker.submit
    monkeypatch.setattr(pipeline.Worker, "submit", lambda me, job: seen.append(job.writes) or submit(me, job))
    return seen


def test_values_are_written_behind_and_read_ahead(tmp_path, jobs):
    """Under 20 of 60 units most values go through the thread, both ways, within the budget and with the same bits."""
    x = np.linspace(0, 1, SIZE)
    alone = peak_bytes(lambda: chain(x))
    call = grad(chain, budget=Budget(20 * UNIT, disk="1 GiB", directory=tmp_path))
    expected = grad(chain)(x)
    assert peak_bytes(lambda: call(x)) - alone <= 20 * UNIT
    jobs.clear()
    assert np.array_equal(call(x), expected)
    assert jobs.count(True) >= 30
    assert jobs.count(False) >= 30
    assert list(tmp_path.iterdir()) == []


def test_the_buffer_is_in_the_account(tmp_path):
    """The ledger counts two units of buffer and the storage while there is paging, and none afterwards."""
    x = np.linspace(0, 1, SIZE)
    with profile() as p:
        grad(chain, budget=Budget(20 * UNIT, disk="1 GiB", directory=tmp_path))(x)
    buffers = [held[KINDS.index(BUFFERS)] for _, held, _ in p.timeline.points]
    assert max(buffers) == pages._VALUES * UNIT + pages.STORAGE_BYTES
    assert buffers[-1] == 0


@pytest.mark.parametrize("units", [4, 8, 15])
def test_a_small_budget_has_no_buffer(tmp_path, jobs, units):
    """Where two units are more than an eighth of the budget, each value is worth more in memory."""
    x = np.linspace(0, 1, SIZE)
    assert np.array_equal(grad(chain, budget=Budget(units * UNIT, disk="1 GiB", directory=tmp_path))(x), grad(chain)(x))
    assert jobs == []


def test_the_buffer_is_given_up_where_room_is_needed(tmp_path, jobs, monkeypatch):
    """An operation that needs nearly the whole budget gets the bytes of the buffer too, and the bits are the same."""

    def wide(x):
        """A chain, and after it an operation whose saved value and cotangent fill the budget that is given below."""
        return np.sum(np.sin(np.concatenate([x * chain(x)] * 9)))

    x = np.linspace(0, 1, SIZE)
    with pytest.raises(BudgetError) as caught:
        grad(wide, budget=Budget(4 * UNIT, disk="1 GiB", directory=tmp_path))(x)
    least = caught.value.least
    assert least > 16 * UNIT
    jobs.clear()
    given_up = []
    give_up = pages.Pages.give_up
    monkeypatch.setattr(pages.Pages, "give_up", lambda me: given_up.append(me.buffer_nbytes) or give_up(me))
    alone = peak_bytes(lambda: wide(x))
    call = grad(wide, budget=Budget(least, disk="1 GiB", directory=tmp_path))
    assert peak_bytes(lambda: call(x)) - alone <= least
    assert jobs
    assert given_up == [2 * UNIT]
    assert np.array_equal(call(x), grad(wide)(x))


def test_values_that_nobody_needs_leave_the_disk(tmp_path, monkeypatch):
    """What was paged and is not needed any more is not read, and the others are found behind it."""
    x = np.linspace(0, 1, SIZE)

    def forked(x):
        """Two chains of which one is forgotten."""
        y = chain(x)
        chain(2 * x)
        return y

    deleted = []
    delete = Disk.delete
    monkeypatch.setattr(Disk, "delete", lambda me, key: deleted.append(key) or delete(me, key))
    call = grad(forked, budget=Budget(20 * UNIT, disk="1 GiB", directory=tmp_path))
    assert np.array_equal(call(x), grad(forked)(x))
    # Each page once: those that were read, and those of the other chain.
    assert len(deleted) == len(set(deleted)) > STEPS


def test_pages_that_nobody_needs_take_none_of_those_that_a_pullback_needs_again(tmp_path):
    """Without a buffer they stay on disk as long as a pullback does, each of whose sweeps finds its own there."""
    x = np.linspace(0, 1, SIZE)

    def forked(x):
        """Two chains of which the first is forgotten."""
        chain(2 * x)
        return chain(x)

    _, pull = vjp(forked, x, retain=True, budget=Budget(10 * UNIT, disk="1 GiB", directory=tmp_path))
    expected = grad(chain)(x)
    for _ in range(3):
        assert np.array_equal(pull(1.0)[0], expected)
    pull.free()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("units", [0.5, 2, 10, 30])
@pytest.mark.parametrize("pulls", [1, 3])
def test_a_disk_that_is_too_small_is_told_as_a_want_of_memory(tmp_path, units, pulls):
    """
    What the disk of a budget has no room for stays in memory, and the least that is named does, at the first try.

    It was an error of the storage, whatever memory was given; and a pullback that is kept, which reads back what it has
    there, passed 10 units by as much again once the disk was full.
    """
    x, found = np.linspace(0, 1, SIZE), []

    def call(memory):
        found.clear()
        budget = Budget(memory, int(units * UNIT), tmp_path)
        if pulls == 1:
            found.append(grad(chain, budget=budget)(x))
            return
        _, pull = vjp(chain, x, retain=True, budget=budget)
        for _ in range(pulls):
            found[:] = [pull(1.0)[0]]
        pull.free()

    with pytest.raises(BudgetError, match="or more of disk than") as caught:
        call(4 * UNIT)
    least = caught.value.least
    del caught  # with the pullback
    assert list(tmp_path.iterdir()) == []
    assert (STEPS - units) * UNIT < least <= (STEPS + 6 - int(units)) * UNIT
    expected, alone = grad(chain)(x).tobytes(), peak_bytes(lambda: chain(x))
    for memory in (least, int(1.2 * least)):
        # Of pulls the gradient of the one before is the caller's.
        assert peak_bytes(lambda memory=memory: call(memory)) - alone <= memory + (pulls > 1) * UNIT
        assert found[0].tobytes() == expected
    assert list(tmp_path.iterdir()) == []


def spread(x):
    """Repeat a few numbers, by an index array of the size of the result."""
    return 0.5 * x + 0.01 * np.repeat(np.sum(x.reshape(-1, 50), axis=1), 50)


@pytest.mark.parametrize("step", [lambda x: np.clip(x * 1.01, 0.1, 0.9), spread])
def test_what_an_operation_makes_has_room_before_it_is_made(tmp_path, step):
    """An array between both bounds beside their masks, and a result that is larger than what it is read from."""

    def f(x):
        for _ in range(6):
            x = step(x) + 0.001 * x * x
        return np.sum(x * x)

    x = np.linspace(0.2, 1.1, SIZE)
    alone, expected = peak_bytes(lambda: f(x)), grad(f)(x)
    with pytest.raises(BudgetError) as refused:
        grad(f, budget=Budget(1, disk="1 GiB", directory=tmp_path))(x)
    for memory in (refused.value.least, int(refused.value.least * 1.1)):
        call = grad(f, budget=Budget(memory, disk="1 GiB", directory=tmp_path))
        assert np.array_equal(call(x), expected)
        assert peak_bytes(lambda call=call: call(x)) - alone <= memory


LAYOUTS = {
    "backwards": lambda y: y[::-1],
    "rows backwards": lambda y: y.reshape(500, 100)[::-1],
    "transposed backwards": lambda y: y.reshape(500, 100)[::-1].T,
    "transposed with gaps": lambda y: y.reshape(500, 100).T[::2],
    "backwards with gaps": lambda y: y[::-2],
    "a part, repeated": lambda y: np.broadcast_to(y[: SIZE // 20], (19, SIZE // 20)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_that_are_guarded_come_back_as_they_lay(tmp_path, name):
    """What the user can reach is no other array after it was on disk, wherever its elements lie in memory."""

    def f(x):
        returned = []
        for _ in range(6):
            part = LAYOUTS[name](np.sin(x))
            x = np.sin(x) + 0.01 * np.sum(np.cos(part) * part)
            returned.append(part)
        return np.sum(x), returned

    def pulled(budget):
        with profile() as p:
            value, pullback = vjp(f, np.linspace(0, 1, SIZE), budget=budget)
            return pullback((1.0, value[1]))[0], p

    expected, _ = pulled(None)
    with pytest.raises(BudgetError) as caught:
        pulled(Budget(1, "1 GiB", tmp_path))
    found, p = pulled(Budget(caught.value.least, "1 GiB", tmp_path))
    assert found.tobytes() == expected.tobytes()
    assert p.bytes_read > 0


def test_cotangents_of_the_caller_are_not_in_the_budget():
    """Nor are they taken for what fills it: with disk a pullback runs at a least in which they have no room."""

    def f(x):
        y, returned = np.sin(x), []
        for _ in range(6):
            rows = np.broadcast_to(y, (3, SIZE))
            returned.append(rows)
            y = np.sin(y * 1.1) + 0.01
            y = y + 0.01 * np.sum(np.sin(rows) * rows)
        return np.sum(y), returned

    x, given = np.linspace(0, 1, SIZE), [np.ones((3, SIZE)) for _ in range(6)]
    pulled = lambda budget: vjp(f, x, budget=budget)[1]((1.0, given))[0]
    least = find_least(lambda memory: pulled(Budget(memory, disk="1 GiB")))
    assert least < 18 * UNIT
    expected, found = pulled(None), []
    assert peak_bytes(lambda: found.append(pulled(Budget(least, disk="1 GiB")))) - peak_bytes(lambda: f(x)) <= least
    assert found[0].tobytes() == expected.tobytes()
