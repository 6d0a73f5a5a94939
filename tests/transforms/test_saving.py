"""What `print_saved` says, against what tracemalloc finds."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import ebbtide
from ebbtide import checkpoint, grad, print_saved, profile, saved_values, vjp

# Arrays that are large beside the objects around them.
N = 800_000
UNIT = 8 * N
X = np.linspace(0.1, 1, N)


def net(weights, x):
    """Apply a net with masks, outputs and operands to save."""
    for w in weights:
        x = np.maximum(x @ w, 0.0)
        x = np.tanh(x) * x
    return np.sum(x)


def shared(x):
    """Save one array for two operations, and two views of another."""
    h, k = np.sin(x), np.cos(x)
    return np.sum(h * h) + np.sum(np.cos(h)) + np.sum(k[1:] * k[:-1])


def dropped(x):
    """Compute what the result does not depend on."""
    np.exp(np.sin(x))
    return np.sum(np.exp(np.sin(x)))


def looped(schedule):
    """Return a function with a time loop under a schedule."""
    step = lambda u, _: np.sin(np.exp(-u))
    return lambda x: np.sum(ebbtide.timeloop(step, x, 12, schedule=schedule))


FUNCTIONS = {
    "sines": (lambda x: np.sum(np.sin(np.sin(np.sin(x * 2.0)))), X),
    "shared": (shared, X),
    "dropped": (dropped, X),
    "net": (net, [np.eye(500)] * 4, np.ones((500, 500))),
    "float32": (lambda x: np.sum(np.sin(np.exp(x))), X.astype(np.float32)),
    "complex": (lambda z: np.sum(np.abs(np.exp(z * 1j))), X + 0j),
    "conditions": (lambda x: np.sum(np.where(x > 0.3, x * 2.0, x)), X),
    "indices": (lambda x: np.sum((x * 2.0)[np.arange(N)[::-1] * 1]), X),
    "checkpoint": (lambda x: np.sum(checkpoint(lambda u: np.sin(np.exp(u)))(np.sin(x))), X),
    "snapshots": (looped(ebbtide.schedules.Revolve(4)), X),
    "all steps": (looped(ebbtide.schedules.StoreAll()), X),
    "gradient": (grad(lambda x: np.sum(np.sin(np.exp(x)))), X),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sum_is_what_is_held(name):
    """The bytes of all entries and snapshots are what tracemalloc finds after the forward run, to 1%."""
    f, *args = FUNCTIONS[name]
    found = saved_values(f, *args)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        value, pullback = vjp(f, *args)
        del value
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    del pullback
    assert abs(found.nbytes - held) <= 0.01 * held, str(found)
    assert abs(found.measured_bytes - held) <= 0.01 * held
    assert found.nbytes == sum(entry.bytes for entry in found.entries) + found.snapshots + found.buffers


def test_entries_say_why_and_where():
    """An entry has the operation, the reason, the number of arrays and the user's line; what died is in none."""
    found = saved_values(dropped, X)
    line = dropped.__code__.co_firstlineno + 3
    [entry] = found.entries
    assert (entry.operation, entry.reason, entry.count, entry.bytes) == ("exp", "output", 1, UNIT)
    assert entry.location == f"{__file__}:{line}"
    assert (entry.shape, entry.dtype) == ((N,), "float64")


def test_arguments_that_are_differentiated():
    """Only what the chosen arguments need is saved, and the caller's arrays are nobody's bytes."""
    f = lambda x, y, scale: np.sum((x * 1.0) * (y * 1.0) * scale)
    x, y = np.ones(1000), np.ones(1000)
    assert [e.reason for e in saved_values(f, x, y, argnums=0, scale=2.0).entries] == ["operand 1"]
    assert saved_values(f, x, y, scale=2).nbytes == 16_000
    assert saved_values(lambda x: np.sum(np.sin(x)), x).entries == ()


def test_plan_of_a_loop(capsys):
    """A time loop is shown with its schedule, its steps of those planned, and its snapshots."""
    f, x = FUNCTIONS["snapshots"]
    found = saved_values(f, x)
    [loop] = found.loops
    with profile() as whole:
        grad(f)(x)
    steps = whole.steps_forward
    assert (loop.steps_forward, loop.plan.predicted_steps_forward) == (12, steps)
    assert found.snapshots == 4 * UNIT
    print_saved(f, x)
    shown = capsys.readouterr().out
    assert f"{4 * UNIT / 2**20:.1f} MiB  of that in snapshots of time loops" in shown
    assert f"loop  Revolve(snapshots=4): 12 of {steps} steps" in shown


def test_nothing_is_left():
    """After the call, or an error in it, neither tracemalloc runs nor anything is held."""

    def fails(x):
        raise KeyError(np.sin(x).shape)

    with pytest.raises(KeyError):
        saved_values(fails, X)
    with pytest.raises(TypeError, match="argument 5"):
        saved_values(fails, X, argnums=5)
    assert not tracemalloc.is_tracing()
