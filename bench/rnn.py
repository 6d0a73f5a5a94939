"""
A recurrent net in float32: batch 16, 1024 hidden units, 50 steps of h <- tanh(h W + b), and output weights.

All steps share W, whose gradient is a sum of 50 products of 4 MiB each. By hand with `+=` a product is made and then
added, two such arrays; BLAS adds it to the sum by itself (beta = 1), and one is enough.
Bar: 8 MiB, all gradients float32.

Source: HIPS autograd's `benchmarks/bench_rnn.py`: its shapes, its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import blas

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
    resident_peak,
    run,
)  # fmt: skip
from ebbtide import grad

WIDTH, BATCH, STEPS, RUNS = 1024, 16, 50, 5
MIB = 2**20
BAR = 8


def loss(m: Any, params: Any, x: Any, label: Any, steps: int) -> Any:
    """Return the logistic loss after *steps* steps."""
    w, b, w_out, b_out = params
    dot = m.matmul if m.__name__ == "torch" else m.dot
    h = x
    for _ in range(steps):
        h = m.tanh(dot(h, w) + b)
    logit = dot(h, w_out) + b_out
    return -m.sum(label * logit - (logit + m.log(1 + m.exp(-logit))))


def arrays(width: int) -> tuple[tuple[Any, ...], Any, Any]:
    """Return the parameters, the input and the labels."""
    rng = generator()
    shapes = ((width, width), (width,), (width, 1), (1,), (BATCH, width))
    *params, x = [(0.01 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]
    return tuple(params), x, (rng.random((BATCH, 1)) > 0.5).astype(np.float32)


def by_hand(params: Any, x: Any, label: Any, steps: int, beta: bool) -> list[Any]:
    """Return the gradients from the outputs of tanh alone; with *beta* BLAS adds the products."""
    w, b, w_out, b_out = params
    states = [x]
    for _ in range(steps):
        h = np.matmul(states[-1], w)
        h += b
        states.append(np.tanh(h, out=h))
    logit = np.matmul(h, w_out) + b_out
    g_out = 1 / (1 + np.exp(-logit)) - label
    g_w_out, g_b_out = np.matmul(h.T, g_out), g_out.sum(axis=0)
    g = np.matmul(g_out, w_out.T)
    g_w, g_b = np.zeros_like(w), np.zeros_like(b)
    while len(states) > 1:
        h = states.pop()
        np.multiply(h, h, out=h)
        np.subtract(1, h, out=h)
        g *= h
        g_b += g.sum(axis=0)
        if beta:
            # In Fortran order: the transposed gradient is g^T h.
            blas.sgemm(1.0, g.T, states[-1].T, 1.0, g_w.T, 0, 1, 1)
        else:
            g_w += np.matmul(states[-1].T, g)
        # SciPy's BLAS and NumPy's have threads of their own: to alternate between them is slow.
        g = blas.sgemm(1.0, w.T, g.T, trans_a=1).T if beta else np.matmul(g, w.T)
    return [g_w, g_b, g_w_out, g_b_out]


def torch_peak(width: int, steps: int) -> int | None:
    """Return how far torch's process grows."""
    import torch

    def given(width: int) -> Any:
        params, x, label = arrays(width)
        return [torch.tensor(p, requires_grad=True) for p in params], torch.tensor(x), torch.tensor(label)

    large = given(width)
    return resident_peak(
        lambda: loss(torch, *given(64), steps).backward(),
        lambda: loss(torch, *large, steps).backward(),
    )


def jax_plan(width: int, steps: int) -> int:
    """Return the bytes that XLA plans."""
    import jax
    import jax.numpy as jnp

    return jax_peak(jax.grad(lambda params, x, label: loss(jnp, params, x, label, steps)), *arrays(width))


def calls_of(given: Any, steps: int) -> dict[str, Callable[[], Any]]:
    """Return the gradients, by each who can take them in this process."""
    ours = grad(lambda params, x, label: loss(np, params, x, label, steps))
    calls = {
        "ours": lambda: ours(*given),
        "by hand": lambda: by_hand(*given, steps, False),
        "by hand, beta": lambda: by_hand(*given, steps, True),
    }
    if installed("autograd"):
        import autograd
        import autograd.numpy as anp

        theirs = autograd.grad(lambda params, x, label: loss(anp, params, x, label, steps))
        calls["autograd"] = lambda: theirs(*given)
    return calls


def main(quick: bool = False) -> None:
    """Print the table."""
    width, steps, runs = (32, 4, 2) if quick else (WIDTH, STEPS, RUNS)
    given = arrays(width)
    calls = calls_of(given, steps)
    wanted = calls["by hand"]()
    for call in calls.values():
        for a, b in zip(call(), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-5)
    right = all(g.dtype == np.float32 for g in calls["ours"]())
    peers = ("autograd", "torch (resident)", "JAX jit (planned)", "by hand with +=")
    table = Table(f"Peak of {steps} steps of {width} units, in MiB", peers, "by hand with beta = 1")
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    cells = [in_units(peaks.get("autograd"), MIB, "autograd")]
    for peer, function in (("torch", "torch_peak"), ("jax", "jax_plan")):
        cells.append(in_units(apart(peer, f"bench.rnn:{function}", width=width, steps=steps), MIB, peer))
    cells.append(in_units(peaks["by hand"], MIB))
    limit = in_units(peaks["by hand, beta"], MIB)
    met = right and peaks["ours"] <= BAR * MIB
    table.add("all weights", in_units(peaks["ours"], MIB), cells, limit, f"{BAR}, float32", met)
    times = alternate(calls, runs)
    cells = [median_of(times, "autograd", 1e3), "", "", median_of(times, "by hand", 1e3)]
    table.add("time, ms", median_of(times, "ours", 1e3), cells, median_of(times, "by hand, beta", 1e3), "", None)
    table.show()


if __name__ == "__main__":
    run(main)
