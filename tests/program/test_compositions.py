"""Transforms in each other, in every order: each gives what it gives for the plain function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.scale import sample

from ebbtide import checkpoint, grad, hvp, jit, jvp, timeloop, vjp, vmap

WEIGHTS = np.array([0.3, -0.7, 1.1])
POINT = np.array([0.4, -0.2, 0.9])

Function = Callable[[Any], Any]


def step(x: Any) -> Any:
    """The function that is transformed: each result depends on two arguments."""
    return np.sin(x) * WEIGHTS + 0.2 * x * x[::-1]


def gradient(f: Function) -> Function:
    """The gradient of a number that depends on all results."""
    return grad(lambda x: np.sum(np.cos(f(x))))


def pulled(f: Function) -> Function:
    """A cotangent that depends on the argument, pulled back through a function that does, too."""
    return lambda x: vjp(lambda y: f(y) * (x * x), x)[1](np.cos(x))[0]


def pushed(f: Function) -> Function:
    """A tangent that depends on the argument, pushed through a function that does, too."""
    return lambda x: jvp(lambda y: f(y) * (x * x), (x,), (np.cos(x),))[1]


def curved(f: Function) -> Function:
    """The Hessian of a number, times a vector that depends on the argument."""
    return lambda x: hvp(lambda x: np.sum(f(x) * WEIGHTS))(x, np.cos(x))


def stepped(f: Function) -> Function:
    """A time loop whose steps use the argument from outside, too, and its square."""
    return lambda x: timeloop(lambda s, i: 0.5 * f(s) + 0.1 * x + 0.2 * (x * x), x, 3)


def written_out(f: Function) -> Function:
    """The same steps in Python."""
    def run(x: Any) -> Any:
        s = x
        for _ in range(3):
            s = 0.5 * f(s) + 0.1 * x + 0.2 * (x * x)
        return s

    return run


def mapped(f: Function) -> Function:
    """Two members."""
    return lambda x: np.sum(vmap(f)(np.stack([x, 0.5 * x])), axis=0)


def one_by_one(f: Function) -> Function:
    """The same members in Python."""
    return lambda x: f(x) + f(0.5 * x)


def held(f: Function) -> Function:
    """A checkpointed function that uses the argument from outside, too."""
    return lambda x: checkpoint(lambda y: f(y) * (x * x))(x)


def multiplied(f: Function) -> Function:
    """The same without a checkpoint."""
    return lambda x: f(x) * (x * x)


def unchanged(f: Function) -> Function:
    """What jit makes of values and derivatives."""
    return f


# Each transform, with the same in plain Python where that is something else.
TRANSFORMS = {
    "jit": (jit, unchanged), "grad": (gradient, gradient), "vjp": (pulled, pulled), "jvp": (pushed, pushed),
    "hvp": (curved, curved), "checkpoint": (held, multiplied), "timeloop": (stepped, written_out),
    "vmap": (mapped, one_by_one),
}  # fmt: skip


def composed(names: tuple[str, ...], which: int) -> Function:
    """Return the step under some transforms, the first of them outermost."""
    f: Function = step
    for name in reversed(names):
        f = TRANSFORMS[name][which](f)
    return f


COMPOSITIONS = [names for depth in (1, 2, 3) for names in product(TRANSFORMS, repeat=depth)]
AROUND = {
    "value": unchanged,
    "gradient": gradient,
    "jitted gradient": lambda f: jit(gradient(f)),
    "jitted Hessian": lambda f: jit(curved(f)),
}
PLAIN_AROUND = {"value": unchanged, "gradient": gradient, "jitted gradient": gradient, "jitted Hessian": curved}
# To trace takes ten times as long as to run.
CASES = [
    *((names, kind) for kind in ("value", "gradient") for names in sample(COMPOSITIONS, 5)),
    *((names, kind) for kind in ("jitted gradient", "jitted Hessian") for names in sample(COMPOSITIONS, 29)),
]


@pytest.mark.parametrize(("names", "kind"), CASES, ids=lambda x: x if isinstance(x, str) else ">".join(x))
def test_whatever_is_in_what(names, kind):
    """Each composition runs, at once and again, and gives what plain Python loops give, as do its derivatives."""
    found, expected = AROUND[kind](composed(names, 0)), PLAIN_AROUND[kind](composed(names, 1))
    for point in (POINT, 1.1 * POINT):
        np.testing.assert_allclose(found(point), expected(point), rtol=1e-9, atol=1e-11)
