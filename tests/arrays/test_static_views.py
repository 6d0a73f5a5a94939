"""Arrays from outside of a step or a checkpointed function are never written, under whatever name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebbtide import TraceError, checkpoint, grad, timeloop


def through(view: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Return what writes into a view of an array."""

    def write(c: Any, u: Any) -> None:
        view(c)[...] = u[:1]

    return write


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda c, u: c.__setitem__(slice(1, 3), u[1:3]),
    "number": lambda c, u: c.__setitem__(0, 3.0),
    "in place": lambda c, u: c.__iadd__(u),
    "copyto": np.copyto,
    "out": lambda c, u: np.multiply(c, u, out=c),
    "slice": through(lambda c: c[1:3]),
    "slice of a slice": through(lambda c: c[1:][::2]),
    "transpose": through(lambda c: c.T),
    "reshape": through(lambda c: c.reshape(-1, 1)),
    "view of views": through(lambda c: c.reshape(-1, 1).T[:, 1:]),
}


@pytest.mark.parametrize("where", ["timeloop", "checkpoint", "loop in a loop"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_static_values_are_never_written(write: Callable[[Any, Any], Any], where: str) -> None:
    """A write into an array from outside, or into a view of it, is an error: a run again would meet another value."""

    def f(x: Any) -> Any:
        c = x * 1.0

        def step(u: Any, i: int = 0) -> Any:
            write(c, u)
            return u * c

        if where == "timeloop":
            return np.sum(timeloop(step, x, 2) * c)
        if where == "checkpoint":
            return np.sum(checkpoint(step)(x) * c)
        return np.sum(timeloop(lambda u, i: timeloop(step, u, 2), x, 2) * c)

    with pytest.raises(TraceError, match=r"from outside of a step.*test_static_views.py.*copy of it"):
        grad(f)(np.arange(1.0, 6.0))


def test_a_view_of_a_copy_is_written() -> None:
    """What the error asks for works."""

    def f(x: Any) -> Any:
        c = x * 1.0

        def step(u: Any, i: int) -> Any:
            mine = c.copy()
            mine[1:][0] = u[0]
            return u * mine

        return np.sum(timeloop(step, x, 2))

    x = np.arange(1.0, 4.0)
    expected = [(f(x + 1e-6 * d) - f(x - 1e-6 * d)) / 2e-6 for d in np.eye(3)]
    np.testing.assert_allclose(grad(f)(x), expected, rtol=1e-6)
