"""Chains of products of matrices; run by itself, it prints the resident memory that their reverse runs take."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DEPTH = 16


def power(a: Any) -> Any:
    """Square a matrix again and again."""
    for _ in range(DEPTH):
        a = a @ a
    return a


def layers(x: Any, *weights: Any) -> Any:
    """Multiply by one matrix after the other; each has a gradient."""
    for w in weights:
        x = x @ w
    return x


CHAINS = {"power": (power, 1), "layers": (layers, 1 + DEPTH)}


def rotation(size: int) -> np.ndarray:
    """Return a matrix whose powers neither grow nor vanish."""
    return np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))[0]


def status(field: str) -> int:
    """Return the resident bytes of this process, or with VmHWM their peak since it was reset."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def resident_peak(f: Callable[..., Any], count: int, matrix: np.ndarray, held: bool) -> float:
    """Return how far the process grows in torch's reverse run, in arrays; the second time, when all code is there."""
    torch: Any = importlib.import_module("torch")
    args = [torch.tensor(matrix, requires_grad=True) for _ in range(count)]
    grown = 0
    for _ in range(2):
        for x in args:
            x.grad = None
        result = f(*args)
        seed = torch.ones_like(result) if held else None
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = status("VmRSS")
        result.sum().backward() if seed is None else result.backward(seed)
        grown = status("VmHWM") - before
        del result
    return grown / matrix.nbytes


if __name__ == "__main__":
    function = importlib.import_module("ebbtide.torch").function
    for chain, number in CHAINS.values():
        for call in (function(chain), chain):
            print(*[resident_peak(call, number, rotation(320), inside) for inside in (False, True)])
