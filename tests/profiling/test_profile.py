from __future__ import annotations

import time
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from tests.measure import peak_bytes

import ebbtide
from ebbtide import Budget, BudgetError, checkpoint, grad, profile, timeloop, vjp
from ebbtide.arrays.context import current_or_none
from ebbtide.budget import format_bytes

N = 50_000
UNIT = N * 8


def wave(x):
    """Save an array in each of twenty operations."""
    for _ in range(20):
        x = np.sin(x)
    return np.sum(x)


def held_by(f, *args):
    """Return the profile of a forward run and the bytes that are held after it, by tracemalloc."""
    tracemalloc.start()
    try:
        with profile() as p:
            before = tracemalloc.get_traced_memory()[0]
            value, pullback = vjp(f, *args)
            del value
            after = tracemalloc.get_traced_memory()[0]
            pullback.free()
    finally:
        tracemalloc.stop()
    return p, after - before


def line_of(function, offset):
    """Return file:line of a line of a function."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno + offset}"


def net(weights, x):
    """Apply a net with masks, outputs and operands to save."""
    for w in weights:
        x = np.maximum(x @ w, 0.0)
        x = np.tanh(x) * x
    return np.sum(x)


def square_and_cosine(h):
    """Save one array for two operations."""
    return np.sum(h * h) + np.sum(np.cos(h))


def neighbours(h):
    """Save two views of one array."""
    return np.sum(h[1:] * h[:-1])


FUNCTIONS = {
    "sines": (lambda x: np.sum(np.sin(np.sin(np.sin(x * 2.0)))), (np.linspace(0, 1, N),)),
    "outputs": (lambda x: np.sum(np.exp(np.tanh(np.sqrt(x)))), (np.linspace(1, 2, N),)),
    "masks": (lambda x: np.sum(np.maximum(np.maximum(x * 2.0, 0.1), 0.2)), (np.linspace(0, 1, N),)),
    "shared": (lambda x: square_and_cosine(np.sin(x)), (np.linspace(0, 1, N),)),
    "views": (lambda x: neighbours(np.sin(x)), (np.linspace(0, 1, N),)),
    "float32": (lambda x: np.sum(np.sin(np.exp(x))), (np.linspace(0, 1, 2 * N).astype(np.float32),)),
    "net": (net, ([np.eye(200)] * 4, np.ones((200, 200)))),
    "indices": (lambda x: np.sum((x * 2.0)[np.arange(N)[::-1] * 1]), (np.ones(N),)),
    "conditions": (lambda x: np.sum(np.where(x > 0.3, x * 2.0, x)), (np.linspace(0, 1, N),)),
    "nothing": (lambda x: np.sum(x * 3.0), (np.ones(N),)),
    "checkpoint": (
        lambda x: np.sum(checkpoint(lambda u: np.sin(np.exp(u)))(np.sin(checkpoint(np.exp)(x * 1.0)))),
        (np.linspace(0, 1, N),),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_saved_is_what_is_held(name):
    """The bytes of all entries are what tracemalloc finds after the forward run, to 1% and the record."""
    p, held = held_by(*FUNCTIONS[name][:1], *FUNCTIONS[name][1])
    total = sum(entry.bytes for entry in p.saved)
    assert abs(held - total) <= 0.01 * held + 16384, [(e.operation, e.reason, e.bytes) for e in p.saved]


def test_entries():
    """An entry has the bytes, number, dtype, shape, operation, line and reason of what a line saves, largest first."""
    x = np.linspace(0.5, 1, N)
    mask_source = x.astype(np.float32)

    def f(x, y):
        h = np.sin(x * 2.0)
        for _ in range(3):
            h = np.exp(h) * 0.1
        m = np.maximum(y, 0.7)
        return np.sum(h) + np.sum(m)

    with profile() as p:
        vjp(f, x, mask_source)
    entries = {entry.operation: entry for entry in p.saved}
    assert [entry.bytes for entry in p.saved] == sorted((entry.bytes for entry in p.saved), reverse=True)
    exp, sin, maximum = entries["exp"], entries["sin"], entries["maximum"]
    assert (exp.bytes, exp.count, exp.dtype, exp.shape, exp.reason) == (3 * UNIT, 3, "float64", (N,), "output")
    assert (sin.bytes, sin.count, sin.dtype, sin.shape, sin.reason) == (UNIT, 1, "float64", (N,), "operand 0")
    assert (maximum.bytes, maximum.dtype, maximum.reason) == (N, "int8", "mask")
    assert exp.location == line_of(f, 3)
    assert sin.location == line_of(f, 1)
    assert maximum.location == line_of(f, 4)


def test_one_context_measures_many_blocks():
    """`profile()` that is kept measures each block in which it is used, one after another and in each other."""
    measuring, x = profile(), np.linspace(0, 1, N)
    found = []
    for _ in range(2):
        with measuring as p:
            grad(wave)(x)
        found.append((p.saved, p.held_bytes))
    assert found[0] == found[1] != ([], 0)
    with measuring as outer:
        with measuring as inner:
            grad(wave)(x)
        assert inner.held_bytes == found[0][1]
    assert outer is not inner
    with pytest.raises(ZeroDivisionError), measuring:
        raise ZeroDivisionError
    assert not tracemalloc.is_tracing()


def test_a_function_of_no_plan_is_refused():
    """What cannot be called with a plan is told before anything runs."""
    with pytest.raises(TypeError, match=r"on_plan= at .* cannot be called as on_plan\(plan\) \(too many"):
        profile(lambda: None)  # pyright: ignore[reportArgumentType]


def test_what_the_caller_holds_is_not_saved():
    """Arguments belong to the caller: an operation that saves them keeps no byte more."""
    with profile() as p:
        _ = grad(lambda x: np.sum(np.sin(x)))(np.ones(N))
    assert p.saved == []


def test_peak_is_measured_from_outside():
    """`peak_bytes` is the peak of tracemalloc in the block less what there was, whether or not it ran before."""
    x = np.linspace(0, 1, N)

    grad(wave)(x)
    with profile() as p:
        grad(wave)(x)
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        ballast = np.ones(40 * N)
        del ballast
        small = np.ones(N)
        with profile() as q:
            grad(wave)(x)
        assert tracemalloc.is_tracing()
        del small
    finally:
        tracemalloc.stop()
    for measured in (p, q):
        assert 20 * UNIT <= measured.peak_bytes <= 21 * UNIT
        # The first argument of sin is the caller's; 19 are saved.
        assert 19 * UNIT <= measured.held_bytes <= 21 * UNIT
        assert measured.predicted_peak_bytes == measured.held_bytes


def test_paging_is_counted(tmp_path):
    """What was written to disk is counted, and the budget that bound it is kept for the picture."""
    x = np.linspace(0, 1, N)

    with profile() as p:
        grad(wave, budget=Budget(8 * UNIT, "1 GiB", tmp_path))(x)
    assert 11 * UNIT <= p.bytes_written <= 15 * UNIT
    assert 11 <= p.disk_writes == p.disk_reads <= 15
    assert f"to disk, in {p.disk_writes} parts" in str(p)
    assert f"from disk, in {p.disk_reads} parts" in str(p)
    assert p.held_bytes <= 9 * UNIT  # a new value is counted before an old one is paged for it
    with profile() as p:
        grad(wave)(x)
    assert (p.bytes_written, p.disk_writes, p.disk_reads, p.disk_seconds) == (0, 0, 0, 0)


STORAGES = {
    "own": lambda directory: None,
    "memory": lambda directory: ebbtide.storage.Memory(),
    "disk": ebbtide.storage.Disk,
    "tiered": lambda directory: ebbtide.storage.Tiered(5 * UNIT, ebbtide.storage.Disk(directory)),
}


@pytest.mark.parametrize("name", STORAGES)
def test_transfers_of_a_loop(name, tmp_path):
    """Snapshots that are written to disk and read there are counted, and the time that the sweeps waited."""
    schedule = ebbtide.schedules.StoreAll("disk")

    def f(u):
        run = ebbtide.timeloop(lambda u, _: np.sin(u), u, 10, schedule=schedule, storage=storage)
        return np.sum(run)

    storage, start = STORAGES[name](tmp_path), time.perf_counter()
    with profile() as p:
        grad(f)(np.linspace(0, 1, N))
    # Beside what nine steps saved, a loop's own disk has the initial state, and a buffer that the last ones come from.
    writes, reads = {"own": (10, 6), "memory": (0, 0), "disk": (9, 9), "tiered": (4, 4)}[name]
    assert p.disk_writes == writes
    assert reads <= p.disk_reads <= (9 if name == "own" else reads)
    assert p.disk_reads * UNIT <= p.bytes_read <= p.disk_reads * (UNIT + 4096)
    assert p.disk_writes * UNIT <= p.bytes_written <= p.disk_writes * (UNIT + 4096)
    assert (p.disk_seconds > 0) == (p.disk_writes > 0)
    assert p.disk_seconds < time.perf_counter() - start


def test_steps_of_a_loop():
    """Steps run forward and predicted are those of the schedule, and the plan is there."""
    x = np.linspace(0, 1, 100)

    def f(x):
        return np.sum(ebbtide.timeloop(lambda u, _: np.sin(u), x, 10, schedule=ebbtide.schedules.Revolve(3)))

    calls = []
    with profile() as p:
        grad(lambda x: calls.append(1) or f(x))(x)
    assert p.steps_forward == p.predicted_steps_forward > 10
    assert len(p.loops) == 1
    with profile() as p:
        grad(np.sin)(1.0)
    assert (p.steps_forward, p.predicted_steps_forward, p.loops) == (0, 0, [])


def test_printed_profile():
    """A printed profile has the peak, the steps, what was written, and a line for each entry with its place."""
    x = np.linspace(0, 1, N)

    def f(x):
        return np.sum(np.exp(np.sin(x * 2.0).reshape(100, -1)))

    with profile() as p:
        grad(f)(x)
    text = str(p)
    lines = text.splitlines()
    assert lines[0].split()[:2] == ["peak", f"{p.peak_bytes / 2**20:.1f}"]
    assert any("exp" in line and "100x500" in line and "output" in line and line_of(f, 1) in line for line in lines)
    assert any("sin" in line and "390.6 KiB" in line and "operand 0" in line for line in lines)
    assert max(map(len, lines)) <= 100 + len(line_of(f, 1))
    assert "Traceback" not in text


def test_printed_profile_of_many_lines():
    """More than twenty entries are cut, and the number of those left out is said."""
    x = np.ones(10) * 0.5

    def f(x):
        total = 0.0
        for k in range(1, 31):
            total = total + np.sum(np.sin((x * 2.0)[: 10 - k % 10].reshape(-1, 1) * np.ones((1, k))))
        return total

    with profile() as p:
        vjp(f, x)
    assert len(p.saved) == 60  # of each product the constant, and of each sine its operand
    assert "... and 40 more lines" in str(p)


def test_profile_of_an_exception():
    """A block that raises has its profile, and leaves neither context nor tracemalloc behind."""
    x = np.linspace(0, 1, N)

    def f(x):
        y = np.sin(np.sin(x * 1.0))
        raise KeyboardInterrupt(y.shape)

    with pytest.raises(KeyboardInterrupt), profile() as p:
        grad(f)(x)
    assert p.peak_bytes >= 2 * UNIT
    assert len(p.saved) == 1
    assert current_or_none() is None
    assert not tracemalloc.is_tracing()


def test_profile_changes_no_bit():
    """A gradient in a profile has the bits of one outside."""
    x = np.linspace(0, 1, 200 * 200).reshape(200, 200)
    weights = [np.eye(200) * 0.5] * 3
    plain = grad(net)(weights, x)
    with profile():
        watched = grad(net)(weights, x)
    assert all(np.array_equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_profile_in_a_profile():
    """An inner profile has its own numbers; the outer one goes on after it."""
    x = np.linspace(0, 1, N)
    f = lambda x: np.sum(np.sin(x * 1.0))
    with profile() as outer:
        grad(f)(x)
        with profile() as inner:
            grad(f)(x)
        grad(f)(x)
    assert sum(e.bytes for e in inner.saved) == UNIT
    assert [e.count for e in inner.saved] == [1]
    assert [e.count for e in outer.saved] == [2]


def test_a_profile_within_a_budget_has_what_is_left_of_it():
    """What is held before counts for what is done in the block, which is refused as it would be without a profile."""
    x, least = np.linspace(0, 1, N), []

    def long(u):
        for _ in range(8):
            u = np.sin(u)
        return np.sum(u)

    for block in (nullcontext, profile):

        def f(u, block=block):
            u = np.cos(long(u * 1.0) + u)
            with block():
                inside = grad(long)(x * 2.0)
            return np.sum(u) + np.sum(inside)

        with pytest.raises(BudgetError) as caught:
            grad(f, budget=Budget(14 * UNIT))(x)
        least.append(caught.value.least)
    assert least[0] == least[1]


def test_a_loop_in_a_profile_within_a_budget_counts_after_the_block():
    """Its snapshots are held until it is swept, and what comes after the block has less."""
    x = np.linspace(0, 1, N)

    def f(u, block):
        with block():
            y = timeloop(lambda v, i: np.sin(v), u * 1.0, 30)
        for _ in range(6):
            y = np.sin(y)
        return np.sum(y)

    alone, found = peak_bytes(lambda: f(x, nullcontext)), []
    bounded = grad(lambda u: f(u, profile), budget=Budget(12 * UNIT))
    assert peak_bytes(lambda: found.append(bounded(x))) - alone <= 12 * UNIT
    assert np.array_equal(found[0], grad(lambda u: f(u, nullcontext))(x))


def test_the_disk_of_a_budget_around_a_profile_bounds_what_is_paged_in_it(tmp_path):
    """A budget of its own in the block has no more disk than is left of the one around."""
    x = np.linspace(0, 1, N)

    def f(u):
        with profile():
            inside = grad(wave, budget=Budget(8 * UNIT, "1 GiB", tmp_path))(x)
        return np.sum(u * inside)

    with pytest.raises(BudgetError, match=f"or more of disk than {format_bytes(2 * UNIT)}"):
        grad(f, budget=Budget(20 * UNIT, 2 * UNIT, tmp_path))(x)


def test_timeline_is_thinned():
    """The timeline of a long run has at most 4096 points, and its largest is the peak that the ledger saw."""
    x = np.ones(3000)

    def f(x):
        for _ in range(6000):
            x = np.sin(x)
        return np.sum(x)

    with profile() as p:
        grad(f)(x)
    points = p.timeline.points
    assert 1000 <= len(points) <= 4096
    assert max(sum(held) for _, held, _ in points) >= 0.999 * p.held_bytes
    # Of each kind the most is known exactly: the last sine's value, its cotangent and what that becomes.
    assert 6000 * x.nbytes <= p.held_by_kind["saved values"] <= p.held_bytes
    assert x.nbytes <= p.held_by_kind["cotangents"] <= 3 * x.nbytes
    assert p.held_by_kind["snapshots"] == p.held_by_kind["I/O buffers"] == 0
    assert "of cotangents" in str(p)
    assert "of snapshots" not in str(p)
    assert [phase for _, _, phase in points] == sorted((phase for _, _, phase in points))
    times = [time for time, _, _ in points]
    assert times == sorted(times)
    assert {phase for _, _, phase in points} == {"forward", "reverse"}
