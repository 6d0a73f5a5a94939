"""A pullback is used once, or as often as it was asked to be."""

from __future__ import annotations

import sys
import weakref

import numpy as np
import pytest

import ebbtide
from ebbtide import ReleasedValueError, grad, vjp


def here():
    """Return file and line of the caller."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def f(x, y):
    """Use two arrays in several ways."""
    h = np.sin(x) * y
    return h[1:] * h[:-1], np.sum(np.exp(h))


def arguments():
    """Return arguments of f and a cotangent of its value."""
    x, y = np.linspace(0, 1, 8), np.linspace(1, 2, 8)
    return (x, y), (np.linspace(1, 3, 7), 2.0)


def test_second_call_names_who_consumed():
    """The second call of a pullback names the line of the first, and says how to have two."""
    args, seed = arguments()
    _, pullback = vjp(f, *args)
    pullback(seed); line = here()  # noqa: E702 - the line of the call
    with pytest.raises(ReleasedValueError, match="retain=True") as caught:
        pullback(seed)
    assert line in str(caught.value)


@pytest.mark.parametrize("function", [np.sin, lambda x: x, lambda x: np.sum(x) * 2.0, lambda x: 3.0 * np.ones(2)])
def test_second_call_of_any_function(function):
    """A pullback is single-use whatever it was made of, so that a caller finds out at the first try."""
    value, pullback = vjp(function, np.ones(2))
    pullback(np.ones(np.shape(value)))
    with pytest.raises(ReleasedValueError):
        pullback(np.ones(np.shape(value)))


@pytest.mark.parametrize("function", [np.sin, lambda x: x, lambda x: 3.0 * np.ones(2)])
def test_freed_pullback(function):
    """A pullback that was freed names the line of free()."""
    _, pullback = vjp(function, np.ones(2))
    pullback.free(); line = here()  # noqa: E702 - the line of the call
    with pytest.raises(ReleasedValueError, match="free") as caught:
        pullback(np.ones(2))
    assert line in str(caught.value)
    pullback.free()


def test_free_lets_saved_values_go():
    """After free() no saved value is alive, also of a pullback that retains."""
    refs = []

    def noted(x):
        y = np.sin(x)
        refs.append(weakref.ref(y))
        return y

    sine = ebbtide.primitive(noted, vjp=(lambda g, x: g * np.cos(x),))
    for retain in (False, True):
        refs.clear()
        _, pullback = vjp(lambda x: np.sum(sine(sine(sine(x)))), np.ones(4), retain=retain)
        assert sum(r() is not None for r in refs) == 2
        pullback.free()
        assert [r() for r in refs] == [None] * 3


def test_retained_pullback_has_the_same_bits():
    """A retained pullback gives the same bits each time, as a single-use one and as the gradient."""
    args, seed = arguments()
    _, pullback = vjp(f, *args, retain=True)
    first, second = pullback(seed), pullback(seed)
    single = vjp(f, *args)[1](seed)
    for a, b, c in zip(first, second, single, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)
        assert not np.shares_memory(a, b)


def test_retained_pullback_is_linear():
    """A pullback of other cotangents is that of their sum, as the map is linear."""
    args, seed = arguments()
    _, pullback = vjp(f, *args, retain=True)
    zero = pullback((np.zeros(7), 0.0))
    assert all(np.array_equal(z, np.zeros(8)) for z in zero)
    one, other = pullback((seed[0], 0.0)), pullback((np.zeros(7), seed[1]))
    for a, b, c in zip(one, other, pullback(seed), strict=True):
        assert np.allclose(a + b, c, rtol=1e-14)


def test_retained_pullback_with_checkpoints_and_loops():
    """What is run again in the sweep is run again in each sweep."""
    def g(x):
        y = ebbtide.checkpoint(lambda u: np.sin(np.exp(u)))(x)
        return ebbtide.timeloop(lambda u, _: np.sin(u) * x, y, 5, schedule=ebbtide.schedules.Revolve(2))

    x = np.linspace(0, 1, 5)
    _, pullback = vjp(g, x, retain=True)
    results = [pullback(np.ones(5))[0] for _ in range(3)]
    expected = grad(lambda x: np.sum(g(x)))(x)
    assert all(np.array_equal(r, expected) for r in results)


def test_wrong_cotangents():
    """A cotangent of another structure, shape or field is an error that says which, and consumes nothing."""
    args, seed = arguments()
    _, pullback = vjp(f, *args)
    wrong = [
        (seed[0], "structure"),
        ([seed[0], 2.0], "structure"),
        ((np.ones(8), 2.0), r"float64\[8\].*float64\[7\]"),
        ((seed[0], np.ones(1)), r"float64\[1\]"),
        ((seed[0] * 1j, 2.0), "complex128"),
    ]
    for cotangent, message in wrong:
        with pytest.raises(ebbtide.CotangentError, match=message):
            pullback(cotangent)
    expected = vjp(f, *args)[1](seed)
    assert all(np.array_equal(a, b) for a, b in zip(pullback(seed), expected, strict=True))


class StopError(Exception):
    """What the tests raise."""


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
@pytest.mark.parametrize("retain", [False, True])
def test_exception_in_the_sweep(error, retain):
    """After an exception in a rule a single-use pullback is used up, and says so; a retained one is as before."""
    fail = [True]

    def rule(g, x):
        if fail[0]:
            raise error
        return g * np.cos(x)

    sine = ebbtide.primitive(lambda x: np.sin(x * 1.0), vjp=(rule,))
    x = np.linspace(0, 1, 6)
    _, pullback = vjp(lambda x: np.exp(sine(x * 2.0)), x, retain=retain)
    with pytest.raises(error):
        pullback(np.ones(6))
    fail[0] = False
    if retain:
        expected = vjp(lambda x: np.exp(np.sin(x * 2.0)), x)[1](np.ones(6))[0]
        assert np.array_equal(pullback(np.ones(6))[0], expected)
    else:
        with pytest.raises(ReleasedValueError):
            pullback(np.ones(6))


def test_consumed_pullback_holds_no_array():
    """A pullback that was called or freed keeps neither arguments nor value alive."""
    for end in ("call", "free"):
        x = np.linspace(0, 1, 6)
        value, pullback = vjp(lambda x: np.exp(np.sin(x) * 2.0), x)
        refs = [weakref.ref(x), weakref.ref(value)]
        if end == "call":
            pullback(np.ones(6))
        else:
            pullback.free()
        del x, value
        assert [r() is None for r in refs] == [True, True], end


def test_files_of_a_failed_pullback(tmp_path):
    """A single-use pullback whose sweep failed has no file any more, though it is still there."""
    def rule(g):
        raise StopError

    mark = ebbtide.primitive(lambda x: x, vjp=(rule,))

    def wave(x):
        for k in range(30):
            x = np.sin(mark(x) if k == 10 else x)
        return np.sum(x)

    x = np.linspace(0, 1, 20_000)
    _, pullback = vjp(wave, x, budget=ebbtide.Budget(8 * x.nbytes, "1 GiB", tmp_path))
    assert list(tmp_path.iterdir()) != []
    with pytest.raises(StopError):
        pullback(1.0)
    assert list(tmp_path.iterdir()) == []


def test_pullback_inside_of_a_gradient():
    """A pullback made and called within a traced function is differentiated through."""
    def g(x):
        _, pullback = vjp(lambda u: u**3, x)
        return np.sum(pullback(x)[0])  # 3 x^2 * x

    x = np.array([1.0, 2.0])
    assert np.allclose(grad(g)(x), 9 * x**2, rtol=1e-15)


def test_pullback_of_no_dependence():
    """Arguments that the value does not depend on have zeros of their own type as cotangents."""
    _, pullback = vjp(lambda x, y: y * 2.0, np.ones((2, 3), np.float32), np.float64(1.0))
    x, y = pullback(1.0)
    assert (x.dtype, x.shape, x.any()) == (np.float32, (2, 3), False)
    assert y == 2.0
