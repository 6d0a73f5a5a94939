"""What a function holds in torch's graph: each value until its last use, though torch's engine holds its arguments."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.torch.chains import CHAINS, layers, power, rotation

import ebbtide
from ebbtide import jit, trace

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from ebbtide.torch import function  # noqa: E402 - after the test whether there is torch

MATRIX = rotation(200)
FUNCTIONS = {
    **CHAINS,
    "jitted power": (jit(power), 1),
    "jitted layers": (jit(layers), CHAINS["layers"][1]),
    "program of power": (trace(power, MATRIX), 1),
}


def reverse_peak(f, args, held):
    """Return how far NumPy's memory grows in the reverse run."""
    tracemalloc.start()
    try:
        result = f(*args)
        seed = torch.ones_like(result) if held else None
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result.sum().backward() if seed is None else result.backward(seed)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reverse_run_takes_few_arrays(name, held):
    """The reverse run of 16 products takes at most four arrays beside what the forward run left, in torch's engine."""
    f, count = FUNCTIONS[name]
    args = [torch.tensor(MATRIX, requires_grad=True) for _ in range(count)]
    reverse_peak(function(f), args, held)
    for x in args:
        x.grad = None
    assert reverse_peak(function(f), args, held) <= 4 * MATRIX.nbytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of resident memory is reset through /proc")
def test_resident_memory_of_the_reverse_run():
    """Also with what torch allocates it is at most four arrays, and no more than torch's own operations take."""
    # Arrays are then mapped one by one, and given back to the system when they are freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.torch.chains"],
        env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    ours, theirs, ours_of_layers, theirs_of_layers = [[*map(float, x.split())] for x in run.stdout.splitlines()]
    assert max(ours + ours_of_layers) <= 4.0
    assert min(theirs + theirs_of_layers) >= 1.5, "the measure sees nothing"


def noted(refs):
    """Return a sine whose saved values are noted as weak references."""

    def sine(x):
        y = np.sin(x)
        refs.append(weakref.ref(y))
        return y

    return ebbtide.primitive(sine, vjp=(lambda g, x: g * np.cos(x),))


def alive(refs):
    """Return how many of the noted values there are."""
    return sum(reference() is not None for reference in refs)


def test_cotangent_dies_at_its_last_use():
    """The cotangent that torch's operation after ours made is gone when the second operation is pulled back."""
    refs, dead = [], []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            array = np.full(g.shape, 2.0)
            refs.append(weakref.ref(array))
            return torch.from_numpy(array)

    def rule(g, x):
        dead.append(refs[0]() is None)
        return g * np.cos(x)

    sine = ebbtide.primitive(lambda x: np.sin(x * 1.0), vjp=(rule,))
    x = torch.ones(5, dtype=torch.float64, requires_grad=True)
    Doubled.apply(function(lambda x: sine(sine(sine(x))))(x)).sum().backward()
    assert dead == [False, True, True]


def test_saved_values_die_in_the_reverse_run():
    """Each saved value is gone before the next operation is pulled back, while result and graph are still there."""
    refs, counts = [], []
    sine = noted(refs)
    mark = ebbtide.primitive(lambda x: x * 1.0, vjp=(lambda g: (counts.append(alive(refs)), g)[1],))

    def f(x):
        for _ in range(6):
            x = mark(sine(x))
        return x

    x = torch.ones(5, dtype=torch.float64, requires_grad=True)
    refs.clear()
    result = function(f)(x * 1.0)
    held = alive(refs)
    result.sum().backward()
    assert held <= 6
    assert counts == sorted(counts, reverse=True)
    assert alive(refs) == 0
    assert result.grad_fn is not None


def test_nothing_is_kept_without_a_gradient():
    """Where torch does not record, intermediates die at their last use."""
    refs = []
    sine = noted(refs)
    f = function(lambda x: sine(sine(sine(x))))
    x = torch.ones(5, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        result = f(x)
    assert alive(refs) == 1
    del result
    assert alive(refs) == 0


USES = {
    "dropped": lambda f, x: f(x) and None,
    "backward": lambda f, x: f(x).backward(),
    "twice": lambda f, x: [torch.autograd.grad(y, x, retain_graph=k < 1) for y in [f(x)] for k in range(2)] and None,
    "gradient": lambda f, x: torch.autograd.grad(torch.autograd.grad(f(x), x, create_graph=True)[0].sum(), x) and None,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("error", [False, True])
def test_no_collector_is_needed(use, error):
    """When the result is dropped, all saved values and arguments are dead without the collector; after errors, too."""
    refs, fail = [], [error]
    sine = noted(refs)

    def fails(g, x):
        if fail[0]:
            raise ZeroDivisionError
        return g * x

    rough = ebbtide.primitive(lambda x: x * x / 2, vjp=(fails,))
    f = function(lambda x: np.sum(sine(rough(sine(x)))), create_graph=use == "gradient")

    def call():
        x = torch.ones(5, dtype=torch.float64, requires_grad=True)
        refs.append(weakref.ref(x))
        try:
            USES[use](f, x)
        except ZeroDivisionError:
            return use != "dropped"
        return use == "dropped" or not error

    gc.collect()
    gc.disable()
    try:
        assert call()
        assert len(refs) >= 3
        assert alive(refs) == 0
    finally:
        gc.enable()
