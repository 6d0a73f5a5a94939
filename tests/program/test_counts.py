"""Results that are no floating-point numbers, of loops, checkpointed functions and programs in batches in programs."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import checkpoint, grad, hvp, jit, jvp, timeloop, vmap

U = np.random.default_rng(0).random((6, 3))
N = np.arange(6)


def counted(u, n):
    """A loop with a counter in its state, which begins elsewhere for each member."""
    u, count = timeloop(lambda s, i: (s[0] * 0.5, s[1] + 1), (u, n), 3)
    return np.sum(u**2) * count


def emitted(u, n):
    """A loop with integers as outputs."""
    u, places = timeloop(lambda u, i: (u * 0.5, np.argmax(u) + n), u, 3, outputs=True)
    return np.sum(u**2) * np.sum(places)


def checkpointed(u, n):
    """A checkpointed function with an integer that differs, one that does not, and a mask."""
    v, place, three, mask = checkpoint(lambda u: (np.sin(u), np.argmax(u) + n, 3, u > 0.5))(u)
    return np.sum(np.where(mask, v, 0)) * place * three


def programmed(u, n):
    """A program in the program."""
    v, place, mask = jit(lambda u, n: (np.sin(u), np.argmin(u) + n, u > 0.4))(u, n)
    return np.sum(np.where(mask, v, v * v)) * place


WAYS = {
    "value": vmap,
    "gradient inside": lambda f: vmap(grad(f)),
    "gradient around": lambda f: lambda u, n: grad(lambda u: np.sum(vmap(f)(u, n)))(u),
    "tangent": lambda f: vmap(lambda u, n: jvp(lambda u: f(u, n), (u,), (u,))[1]),
    "second": lambda f: vmap(lambda u, n: hvp(lambda u: f(u, n))(u, u)),
    "batch of batches": lambda f: vmap(vmap(grad(f), (None, 0)), (0, None)),
}


@pytest.mark.parametrize("executor", ["reference", "machine"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", [counted, emitted, checkpointed, programmed])
def test_each_member_has_its_own(f, way, executor):
    """Whatever the order of derivatives and batches, programs give what the same call gives without one."""
    g = WAYS[way](f)
    expected = g(U, N)
    if way == "gradient inside":
        np.testing.assert_allclose(expected, [grad(f)(u, n) for u, n in zip(U, N, strict=True)], rtol=1e-14)
    np.testing.assert_array_equal(jit(g, executor=executor)(U, N), expected)
