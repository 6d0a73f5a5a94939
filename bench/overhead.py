"""
What the library itself costs: chains of 2000 operations on arrays so small that NumPy's own work hardly shows.

The same program is run by ours, by HIPS autograd, by torch in eager mode (float64 tensors, all of its cost from the
array to the gradient included), and by hand in plain NumPy, which keeps what its sweep needs in a list. Time is
forward and reverse together, for each operation. Bars: 0.4 of autograd's time and 0.7 of torch's.

Source: the chains of autograd's `benchmarks/bench_core.py`, with more kinds of operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import MISSING, Table, alternate, generator, installed, median_of, ratio, run
from ebbtide import grad

RUNS = 15
OPERATIONS = 2000
AUTOGRAD, TORCH = 0.4, 0.7


def numbers(m: Any, x: Any, y: Any, count: int) -> Any:
    """Functions of one array, and arithmetic with numbers: four operations a turn."""
    for _ in range(count // 4):
        x = m.sin(x)
        x = x * 1.01
        x = m.tanh(x)
        x = x + 0.1
    return m.sum(x * y)


def arrays(m: Any, x: Any, y: Any, count: int) -> Any:
    """Arithmetic of two arrays that are both differentiated: three operations a turn."""
    for _ in range(count // 3):
        x = x * y + m.cos(x)
    return m.sum(x)


def numbers_by_hand(x: Any, y: Any, count: int) -> Any:
    """Return the gradients of `numbers`."""
    kept = []
    for _ in range(count // 4):
        kept.append(x)
        x = np.tanh(np.sin(x) * 1.01)
        kept.append(x)
        x = x + 0.1
    gx, gy = y * np.ones_like(x), x
    for k in range(len(kept) - 1, 0, -2):
        out = kept[k]
        gx = gx * (1 - out * out) * 1.01 * np.cos(kept[k - 1])
    return gx, gy


def arrays_by_hand(x: Any, y: Any, count: int) -> Any:
    """Return the gradients of `arrays`."""
    kept = []
    for _ in range(count // 3):
        kept.append(x)
        x = x * y + np.cos(x)
    gx, gy = np.ones_like(x), np.zeros_like(y)
    for x in reversed(kept):
        gy = gy + gx * x
        gx = gx * (y - np.sin(x))
    return gx, gy


def calls_of(chain: Any, by_hand: Any, x: Any, y: Any, count: int) -> dict[str, Callable[[], Any]]:
    """Return the gradient of a chain, by each who can take it."""
    ours = grad(lambda x, y: chain(np, x, y, count), (0, 1))
    calls = {"ours": lambda: ours(x, y), "by hand": lambda: by_hand(x, y, count)}
    if installed("autograd"):
        import autograd
        import autograd.numpy as anp

        theirs = autograd.grad(lambda x, y: chain(anp, x, y, count), (0, 1))
        calls["autograd"] = lambda: theirs(x, y)
    if installed("torch"):
        import torch

        def of_torch() -> Any:
            a, b = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
            chain(torch, a, b, count).backward()
            return a.grad.numpy(), b.grad.numpy()

        calls["torch"] = of_torch
    return calls


def check(calls: dict[str, Callable[[], Any]]) -> None:
    """Raise if not all compute the same."""
    wanted = calls["by hand"]()
    for name, call in calls.items():
        for a, b in zip(call(), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-300, err_msg=name)


def main(quick: bool = False) -> None:
    """Print the table."""
    count, runs = (120, 2) if quick else (OPERATIONS, RUNS)
    peers = ("autograd", "ours / autograd", "torch", "ours / torch")
    table = Table(f"Microseconds for each operation of a chain of {count}, median of {runs} runs", peers)
    rng = generator()
    for shape in ((), (10,)):
        x, y = np.asarray(rng.uniform(0.1, 0.9, shape)), np.asarray(rng.uniform(0.3, 0.6, shape))
        for chain, by_hand in ((numbers, numbers_by_hand), (arrays, arrays_by_hand)):
            calls = calls_of(chain, by_hand, x, y, count)
            check(calls)
            times = alternate(calls, runs)
            scale = 1e6 / count
            found = {name: ratio(times, "ours", name) for name in ("autograd", "torch") if name in times}
            bars = {"autograd": AUTOGRAD, "torch": TORCH}
            cells = []
            for name in bars:
                cells += [median_of(times, name, scale), str(found[name]) if name in found else MISSING]
            met = all(found[name].median <= bars[name] for name in found) if found else None
            case = f"{chain.__name__}, {'0-d' if not shape else f'{shape[0]} elements'}"
            bar = f"{AUTOGRAD} of autograd, {TORCH} of torch"
            table.add(case, median_of(times, "ours", scale), cells, median_of(times, "by hand", scale), bar, met)
    table.note("In brackets the range of the ratios over the runs: the noise.")
    table.show()


if __name__ == "__main__":
    run(main)
