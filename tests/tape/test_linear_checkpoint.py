"""Checkpointed functions within linearized ones: what they keep, and what they refuse."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ebbtide import DeterminismError, MutationError, checkpoint, jvp, linearize

X = np.linspace(0.2, 1.3, 20_000)


def deep(x):
    """Many operations, whose derivatives take twenty times as much as x."""
    for _ in range(20):
        x = np.sin(x) * 1.01
    return x


def held(f):
    """Return a pushforward and the bytes that it holds."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pushforward = linearize(f, X)[1]
        return pushforward, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_only_the_arguments_are_kept():
    """The pushforward of a checkpointed function holds no array of its own, and gives the bits of forward mode."""
    kept, plain = held(checkpoint(deep)), held(deep)
    assert plain[1] > 19 * X.nbytes
    assert kept[1] < X.nbytes / 4
    for v in (X, np.cos(X), X):
        assert kept[0](v).tobytes() == jvp(deep, (X,), (v,))[1].tobytes()


def test_what_depends_on_nothing_runs_once():
    """A checkpointed function of constants is no part of the pushforward."""
    calls = []

    @checkpoint
    def constant(c):
        calls.append(1)
        return c * 2.0, "text"

    value, pushforward = linearize(lambda x: x * constant(3.0)[0], X[:4])
    np.testing.assert_array_equal(value, X[:4] * 6.0)
    np.testing.assert_array_equal(pushforward(X[:4]), X[:4] * 6.0)
    assert calls == [1]


def test_another_result_is_an_error():
    """A function whose values differ when it runs again is named, and told what it may depend on."""
    scale = [1.0]

    def fickle(x):
        return x * scale[0]

    _, pushforward = linearize(checkpoint(fickle), X[:4])
    np.testing.assert_array_equal(pushforward(X[:4]), X[:4])
    scale[0] = 2.0
    with pytest.raises(DeterminismError, match=r"checkpoint\(fickle\) gave another result"):
        pushforward(X[:4])


def test_a_changed_argument_is_an_error():
    """An argument that the caller changed after the point is found when the function runs again."""
    x = X[:4].copy()
    _, pushforward = linearize(checkpoint(deep), x)
    x[0] = 7.0
    with pytest.raises(MutationError, match=r"checkpoint\(deep\)"):
        pushforward(X[:4])
