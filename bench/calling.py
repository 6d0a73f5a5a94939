"""
What a reverse run takes beside what the forward run left, however it is called.

Two chains of 16 products: `a = a @ a`, and 16 layers `x = x @ W` whose gradients are all kept. A call keeps its
arguments until it returns, in Python and in torch's engine; so does every wrapper. Bar: four arrays in all, of which
one is the cotangent. By hand: the sweep in plain NumPy with `+=`, whose cotangent has a name.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Table, apart, generator, in_units, resident, run
from ebbtide import jit, vjp

DEPTH, SIZE, BAR = 16, 400, 4.0
# Arrays are then mapped one by one, and given back to the system when they are freed.
MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def power(a: Any) -> Any:
    """Square a matrix again and again."""
    for _ in range(DEPTH):
        a = a @ a
    return a


def layers(x: Any, *weights: Any) -> Any:
    """Multiply by one matrix after the other."""
    for w in weights:
        x = x @ w
    return x


CHAINS: dict[str, tuple[Callable[..., Any], int]] = {"a = a @ a": (power, 1), "x = x @ W": (layers, 1 + DEPTH)}


def power_by_hand(a: Any) -> Callable[[Any], Any]:
    """Return the sweep of `power`."""
    saved = []
    for _ in range(DEPTH):
        saved.append(a)
        a = a @ a

    def sweep(g: Any) -> Any:
        while saved:
            a = saved.pop()
            found = g @ a.T
            found += a.T @ g
            g = found
        return g

    return sweep


def layers_by_hand(x: Any, *weights: Any) -> Callable[[Any], Any]:
    """Return the sweep of `layers`."""
    saved = []
    for w in weights:
        saved.append(x)
        x = x @ w

    def sweep(g: Any) -> Any:
        found = []
        for w in reversed(weights):
            found.append(saved.pop().T @ g)
            g = g @ w.T
        return [g, *reversed(found)]

    return sweep


BY_HAND = {"a = a @ a": power_by_hand, "x = x @ W": layers_by_hand}


def passing(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper."""

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    return wrapper


class Passing(ContextDecorator):
    """A context that does nothing."""

    def __enter__(self) -> Passing:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def profiled(f: Callable[..., Any], g: Callable[[], Any]) -> Any:
    """Call under a profile function."""
    sys.setprofile(lambda *_: None)
    try:
        return f(g())
    finally:
        sys.setprofile(None)


def in_thread(f: Callable[..., Any], g: Callable[[], Any]) -> Any:
    """Call in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(f, g()).result()


CALLS: dict[str, Callable[..., Any]] = {
    "direct": lambda f, g: f(g()),
    "three wrappers": lambda f, g: passing(passing(passing(f)))(g()),
    "partial": lambda f, g: functools.partial(f, g())(),
    "map": lambda f, g: next(map(f, [g()])),
    "operator.call": lambda f, g: operator.call(f, g()),
    "ContextDecorator": lambda f, g: Passing()(f)(g()),
    "thread pool": in_thread,
    "setprofile": profiled,
    "given away": lambda f, g: f.pull([g()]),
}


def extra(make: Callable[..., Any], call: Callable[..., Any], args: list[Any]) -> int:
    """Return how far memory grows in a reverse run, called a second time."""
    peak = 0
    tracemalloc.start()
    try:
        for _ in range(2):
            sweep = make(*args)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            found = call(sweep, lambda: np.ones_like(args[0]))
            peak = tracemalloc.get_traced_memory()[1] - before
            del found, sweep
    finally:
        tracemalloc.stop()
    return peak


def grown(chain: str, how: str, size: int) -> int | None:
    """Return how far the process grows in torch's reverse run, the second time."""
    import torch

    from ebbtide.torch import function

    f, count = CHAINS[chain]
    f = {"ours": function(f), "jitted": function(jit(f)), "torch": f, "naive": naive(torch, chain)}[how]
    args = [torch.tensor(matrix(size), requires_grad=True) for _ in range(count)]
    extra = 0
    for _ in range(2):
        for x in args:
            x.grad = None
        result = f(*args)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = resident()
        result.backward(torch.ones_like(result))
        peak = resident("VmHWM")
        del result
        if before is None or peak is None:
            return None
        extra = peak - before
    return extra


def naive(torch: Any, chain: str) -> Callable[..., Any]:
    """Return a chain as one torch Function in the way of its manual: saved tensors, and arguments with names."""

    class Chain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, *weights: Any) -> Any:
            saved = []
            for k in range(DEPTH):
                saved.append(x)
                x = x @ (weights[k] if weights else x)
            ctx.save_for_backward(*saved, *weights)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            saved, weights = ctx.saved_tensors[:DEPTH], ctx.saved_tensors[DEPTH:]
            found = []
            for k in reversed(range(DEPTH)):
                x = saved[k]
                if weights:
                    found.append(x.T @ g)
                    g = g @ weights[k].T
                else:
                    g = g @ x.T + x.T @ g
            return (g, *reversed(found))

    return Chain.apply


def matrix(size: int) -> Any:
    """Return a matrix whose powers neither grow nor vanish."""
    return np.linalg.qr(generator().standard_normal((size, size)))[0]


def main(quick: bool = False) -> None:
    """Print the tables."""
    size = 40 if quick else SIZE
    in_python(size)
    in_torch(size)


def in_python(size: int) -> None:
    """Print the table of the ways to call."""
    given = matrix(size)
    table = Table(f"Reverse run of {DEPTH} products of {size} x {size}: peak less what there was before, in arrays", ())
    for chain, (f, count) in CHAINS.items():
        args = [given] * count
        hand = in_units(extra(BY_HAND[chain], CALLS["direct"], args), given.nbytes)
        for kind, function in (("", f), (", jitted", jit(f))):
            for name, call in CALLS.items():
                peak = extra(lambda *args, f=function: vjp(f, *args)[1], call, args)
                # Lists, frames and accumulators take some KiB.
                met = peak <= BAR * given.nbytes + 32768
                table.add(f"{chain}{kind}: {name}", in_units(peak, given.nbytes), [], hand, f"{BAR}", met)
    table.show()


def in_torch(size: int) -> None:
    """Print the table of torch's engine."""
    given = matrix(size)
    head = ("torch's operations", "a torch Function")
    table = Table(f"The same in torch's engine, resident memory, in arrays of {size} x {size}", head)
    for chain in CHAINS:
        hand = in_units(extra(BY_HAND[chain], CALLS["direct"], [given] * CHAINS[chain][1]), given.nbytes)
        cells = {
            how: apart("torch", "bench.calling:grown", environment=MAPPED, chain=chain, how=how, size=size)
            for how in ("ours", "jitted", "torch", "naive")
        }
        peers = [in_units(cells[how], given.nbytes, "torch") for how in ("torch", "naive")]
        for kind, how in (("", "ours"), (", jitted", "jitted")):
            found = cells[how]
            met = None if found is None else found <= (BAR + 0.05) * given.nbytes
            table.add(chain + kind, in_units(found, given.nbytes, "torch"), peers, hand, f"{BAR}", met)
    table.note("Resident memory has pages that the interpreter takes meanwhile: 0.05 arrays are allowed for them.")
    table.show()


if __name__ == "__main__":
    run(main)
