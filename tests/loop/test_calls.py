"""How many functions of Python a time loop calls for each step: where steps are small, they are its time."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np

from ebbtide import grad, jit, timeloop
from ebbtide.schedules import StoreAll

U0 = np.linspace(0.1, 1.0, 8)
# Counted with Python 3.11; later versions call fewer, as they have list comprehensions in line.
MOST = 171


def calls(steps: int) -> int:
    """The calls of Python functions in the gradient of a loop over a jitted step, at its third run."""
    advance = jit(lambda u, c: u + c * np.sin(u), donate_argnums=0)

    def loss(u: Any, c: Any) -> Any:
        return np.sum(timeloop(lambda u, i: advance(u, c), u, steps, schedule=StoreAll()))

    gradient, count = grad(loss, (0, 1)), 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    for _ in range(2):
        gradient(U0, 0.5)
    before = sys.getprofile()
    gc.collect()
    gc.disable()  # a collection of what other tests left would call their finalizers
    sys.setprofile(seen)
    try:
        gradient(U0, 0.5)
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def test_step_that_is_one_node_takes_few_calls():
    """A step that is one node of its tape takes so many calls of Python functions, forward and reverse, and no more."""
    assert calls(40) - calls(20) <= 20 * MOST
