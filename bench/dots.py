"""
A chain of 100 products z <- x z of 1000 x 1000 matrices, float64: the gradient with respect to x, and to z.

The gradient with respect to x needs the 100 factors z and nothing else; that with respect to z needs x, which lives
anyway. By hand: 100 kept products less the last, the gradient, the cotangent and the product in flight. Bars: 102.1
and 2.2 units, one unit being a matrix, and 1.05 of the time of the same sweep with `np.dot` and `+=`.

Source: HIPS/autograd issue 219, with both gradients in place of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import (
    Table,
    alternate,
    apart,
    generator,
    in_units,
    installed,
    jax_peak,
    median_of,
    peak_bytes,
    ratio,
    resident_peak,
    run,
)  # fmt: skip
from ebbtide import grad

SIZE, STEPS = 1000, 100
# The time of a dot does not depend on their number, the noise on how long a run takes.
TIMED_STEPS, RUNS = 20, 9
UNITS = (102.1, 2.2)
SLOWER = 1.05
NAMES = ("left", "right")


def chain(m: Any, x: Any, z: Any, steps: int) -> Any:
    """Return the sum of x^steps z."""
    dot = m.matmul if m.__name__ == "torch" else m.dot
    for _ in range(steps):
        z = dot(x, z)
    return m.sum(z)


def matrices(size: int) -> tuple[Any, Any]:
    """Return x, whose powers neither grow nor vanish, and z."""
    rng = generator()
    return np.linalg.qr(rng.standard_normal((size, size)))[0], rng.standard_normal((size, size))


def left_by_hand(x: Any, z: Any, steps: int) -> Any:
    """Return the gradient with respect to x, with `np.dot` and `+=`."""
    kept = []
    for _ in range(steps):
        kept.append(z)
        z = np.dot(x, z)
    g, gx = np.ones_like(z), np.zeros_like(x)
    del z
    while kept:
        gx += np.dot(g, kept.pop().T)
        if kept:
            g = np.dot(x.T, g)
    return gx


def right_by_hand(x: Any, z: Any, steps: int) -> Any:
    """Return the gradient with respect to z."""
    for _ in range(steps):
        z = np.dot(x, z)
    g = np.ones_like(z)
    del z
    for _ in range(steps):
        g = np.dot(x.T, g)
    return g


def torch_peak(size: int, steps: int, side: int) -> int | None:
    """Return how far torch's process grows."""
    import torch

    def call(size: int) -> None:
        pair = [torch.tensor(a) for a in matrices(size)]
        pair[side].requires_grad_()
        chain(torch, *pair, steps).backward()

    given = [torch.tensor(a) for a in matrices(size)]
    given[side].requires_grad_()
    return resident_peak(lambda: call(64), lambda: chain(torch, *given, steps).backward())


def jax_plan(size: int, steps: int, side: int) -> int:
    """Return the bytes that XLA plans."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    return jax_peak(jax.grad(lambda x, z: chain(jnp, x, z, steps), side), *matrices(size))


def calls_of(side: int, x: Any, z: Any, steps: int) -> dict[str, Callable[[], Any]]:
    """Return the gradient, by each who can take it in this process."""
    ours, by_hand = grad(lambda x, z: chain(np, x, z, steps), side), (left_by_hand, right_by_hand)[side]
    calls = {"ours": lambda: ours(x, z), "by hand": lambda: by_hand(x, z, steps)}
    if installed("autograd"):
        import autograd
        import autograd.numpy as anp

        theirs = autograd.grad(lambda x, z: chain(anp, x, z, steps), side)
        calls["autograd"] = lambda: theirs(x, z)
    return calls


def main(quick: bool = False) -> None:
    """Print the tables of bytes and of time."""
    size, steps, runs = (40, 5, 2) if quick else (SIZE, STEPS, RUNS)
    x, z = matrices(size)
    peers = ("autograd", "torch (resident)", "JAX jit (planned)")
    table = Table(f"Peak of {steps} dots of {size} x {size}, in matrices", peers)
    for side in (0, 1):
        calls = calls_of(side, x, z, steps)
        np.testing.assert_allclose(calls["ours"](), calls["by hand"](), rtol=1e-9, atol=1e-9)
        peaks = {name: peak_bytes(call) for name, call in calls.items()}
        cells = [in_units(peaks.get("autograd"), x.nbytes, "autograd")]
        for peer, function in (("torch", "torch_peak"), ("jax", "jax_plan")):
            found = apart(peer, f"bench.dots:{function}", size=size, steps=steps, side=side)
            cells.append(in_units(found, x.nbytes, peer))
        ours, hand = in_units(peaks["ours"], x.nbytes), in_units(peaks["by hand"], x.nbytes)
        met = peaks["ours"] <= UNITS[side] * x.nbytes
        table.add(f"{NAMES[side]} factor", ours, cells, hand, f"{UNITS[side]}", met)
    table.show()
    times_of(size, min(steps, TIMED_STEPS), runs)


def times_of(size: int, steps: int, runs: int) -> None:
    """Print the table of time."""
    x, z = matrices(size)
    table = Table(f"Seconds of {steps} dots of {size} x {size}, median of {runs} runs", ("ours / by hand", "autograd"))
    for side in (0, 1):
        calls = calls_of(side, x, z, steps)
        times = alternate({name: calls[name] for name in ("ours", "by hand")}, runs)
        times |= alternate({"autograd": calls["autograd"]}, 1) if "autograd" in calls else {}
        found = ratio(times, "ours", "by hand")
        cells = [str(found), median_of(times, "autograd", 1)]
        limit = median_of(times, "by hand", 1)
        bar = f"{SLOWER} of by hand"
        table.add(f"{NAMES[side]} factor", median_of(times, "ours", 1), cells, limit, bar, found.median <= SLOWER)
    table.note("In brackets the range of the ratios over the runs: the noise. By hand: `np.dot` and `+=`.")
    table.show()


if __name__ == "__main__":
    run(main)
