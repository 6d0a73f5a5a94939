"""Arrays that are changed between their recording and their use are an error, never a wrong gradient."""

from __future__ import annotations

import contextlib
import inspect
import re

import numpy as np
import pytest

import ebbtide
from ebbtide import MutationError, grad, primitive, timeloop, value_and_grad, vjp
from ebbtide.schedules import Mixed, StoreAll

SIZES = [5, 40_000]


def line_in(function, text):
    """Return file:line of the line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)
    return f"{__file__}:{next(start + k for k, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_plain_operand(n, dtype):
    """A plain operand that changes is an error with its name, shape and dtype, operation, line, and what to do."""
    c = np.ones(n, dtype)

    def f(x):
        return x * c  # used

    _, pullback = vjp(f, np.ones(n, dtype))
    c[n // 2] = 3
    place = line_in(f, "# used")
    message = f"array c of shape ({n},) and dtype {np.dtype(dtype)} was changed after multiply at {place}"
    with pytest.raises(MutationError, match=re.escape(message)):
        pullback(np.ones(n, dtype))


FIELD = np.ones(3)


def test_array_of_a_module():
    """An array of a module has its name there; one that no variable of a running function has is told by its type."""
    _, pullback = vjp(lambda x: x * FIELD, np.ones(3))
    FIELD[1] += 1
    with pytest.raises(MutationError, match=r"The array FIELD of shape \(3,\)"):
        pullback(np.ones(3))
    parts = [np.ones(3)]
    _, pullback = vjp(lambda x: x * parts[0], np.ones(3))
    parts[0][1] = 3
    with pytest.raises(MutationError, match=r"The array of shape \(3,\) and dtype float64 was"):
        pullback(np.ones(3))


@pytest.mark.parametrize("n", SIZES)
def test_argument(n):
    """The arrays that the caller passed are read again in the sweep, so they must not change before it."""
    x = np.ones(n)
    _, pullback = vjp(np.sin, x)
    x += 1.0
    with pytest.raises(MutationError, match="sin"):
        pullback(np.ones(n))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("view", [lambda v: v, lambda v: v[1:], lambda v: v[::-1], lambda v: v.reshape(1, -1)])
def test_returned_value(n, view):
    """The value that vjp returns, and views of it, belong to the tape too until the pullback was called."""
    value, pullback = vjp(np.exp, np.zeros(n))
    view(value)[...] = 7.0
    with pytest.raises(MutationError, match="exp"):
        pullback(np.ones(n))


def test_returned_view_of_a_saved_value():
    """Also where only a view of the saved value was returned, or it lies deep in a container."""
    value, pullback = vjp(lambda x: {"a": [np.exp(x)[2:4], np.sum(x)]}, np.zeros(6))
    value["a"][0][0] = 7.0
    with pytest.raises(MutationError, match="exp"):
        pullback({"a": [np.ones(2), 1.0]})


def test_returned_inner_value():
    """An intermediate value that is returned beside the result is guarded as well."""

    def f(x):
        h = np.sin(x)
        return np.sum(h * h), h

    (_, h), pullback = vjp(f, np.ones(4))
    h[0] = 0.0
    with pytest.raises(MutationError, match="multiply"):
        pullback((1.0, np.zeros(4)))


def test_array_changed_inside_of_the_function():
    """A plain array that the function itself changes after it was used is found by the gradient."""
    c = np.ones(4)

    def f(x):
        y = x * c
        c[0] = 5.0
        return np.sum(y * y)

    with pytest.raises(MutationError, match="multiply"):
        grad(f)(np.ones(4))


def test_aux_is_no_alias():
    """Auxiliary output is a copy: writing it changes nothing."""
    keep = {}

    def f(x):
        h = np.exp(x)
        keep["h"] = ebbtide.stop_gradient(h)
        keep["h"][...] = 0.0
        return np.sum(h), h

    (_, aux), gradient = value_and_grad(f, has_aux=True)(np.zeros(3))
    assert np.array_equal(gradient, np.ones(3))
    assert np.array_equal(aux, np.ones(3))


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base[2:],
        lambda base: base[::2],
        lambda base: base[::-1],
        lambda base: base.reshape(4, 3).T,
        lambda base: np.broadcast_to(base[:, None], (12, 3)),
        lambda base: base.reshape(3, 4)[:, 1:3],
        lambda base: base[6],
        lambda base: base[6:7].reshape(()),
    ],
    ids=["slice", "stride", "reversed", "transposed", "broadcast", "block", "scalar", "0-d"],
)
def test_view_of_a_changed_base(make):
    """A saved view is guarded against writes into its base, and only against those that it sees."""
    base = np.arange(12.0)
    view = make(base)
    x = np.ones(np.shape(view))
    seed = np.ones(np.shape(view))
    _, pullback = vjp(lambda x: x * view, x)
    base[6] = -1.0
    if isinstance(view, np.ndarray):
        with pytest.raises(MutationError, match="multiply"):
            pullback(seed)
    else:
        assert pullback(seed)[0] == 6.0  # a NumPy scalar is a copy
    view = make(base := np.arange(12.0))
    _, pullback = vjp(lambda x: x * view, x)
    assert np.array_equal(pullback(seed)[0], view)


def test_write_beside_a_view_is_no_alarm():
    """A write into a part of the base that the saved view does not show changes no gradient and is none."""
    base = np.arange(12.0)
    _, pullback = vjp(lambda x: x * base[2:5], np.ones(3))
    base[8] = 99.0
    assert np.array_equal(pullback(np.ones(3))[0], [2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda x, c: x + c, 1.0),
        (lambda x, c: x - c, 1.0),
        (lambda x, c: np.concatenate([x, c])[:4], 1.0),
        (lambda x, c: np.where(c > 2, x, c), 0.0),
        (np.maximum, 0.5),
        (lambda x, c: x.reshape(c.shape), 1.0),
    ],
    ids=["sum", "difference", "concatenate", "where", "maximum", "shape"],
)
def test_no_false_alarm(use, expected):
    """An array that no rule saves may change at will: the gradient is that of its value when it was used."""
    c = np.ones(4)
    _, pullback = vjp(lambda x: use(x, c), np.ones(4))
    c[...] = 77.0
    assert np.array_equal(pullback(np.ones(4))[0], np.full(4, expected))


def test_argument_that_is_not_saved():
    """An argument of which nothing is saved may change before the sweep."""
    x = np.ones(4)
    _, pullback = vjp(lambda x: np.sum(x * 3.0), x)
    x[...] = 5.0
    assert np.array_equal(pullback(1.0)[0], np.full(4, 3.0))


def test_change_that_is_undone():
    """An array with its old content is the same array."""
    c = np.ones(4)
    _, pullback = vjp(lambda x: x * c, np.ones(4))
    c[0] = 2.0
    c[0] = 1.0
    assert np.array_equal(pullback(np.ones(4))[0], np.ones(4))


def test_mask_of_the_user():
    """Conditions and indices are copied when they are used: they may change."""
    mask = np.array([True, False, True])
    index = np.array([0, 2])
    _, pullback = vjp(lambda x: np.where(mask, x, 0.0) + np.sum(x[index]) + np.sum(x[mask]), np.ones(3))
    mask[...] = False
    index[...] = 1
    assert np.array_equal(pullback(np.ones(3))[0], [7.0, 0.0, 7.0])


def test_operand_of_a_user_primitive():
    """Values that a user's rule names are guarded like those of NumPy's operations."""
    c = np.ones(3)
    product = ebbtide.primitive(lambda x, y: x * y, vjp=(lambda g, y: g * y, lambda g, x: g * x))
    _, pullback = vjp(lambda x: product(x, c), np.ones(3))
    c[1] = 2.0
    with pytest.raises(MutationError, match="lambda"):
        pullback(np.ones(3))


def test_output_of_a_user_primitive():
    """A user's function may keep what it returned; if its rule saves the output, a change is found."""
    kept = []

    def fun(x):
        kept.append(np.exp(x))
        return kept[-1]

    op = ebbtide.primitive(fun, vjp=(lambda g, out: g * out,))
    _, pullback = vjp(lambda x: op(x) * 1.0, np.zeros(3))
    kept[-1][0] = 9.0
    with pytest.raises(MutationError, match="fun"):
        pullback(np.ones(3))


def test_argument_of_a_checkpoint():
    """Arguments and closed-over arrays of a checkpointed function must be the same when it runs again."""
    c = np.ones(3)
    _, pullback = vjp(ebbtide.checkpoint(lambda u: np.sin(u) * c), np.ones(3))
    c[0] = 2.0
    with pytest.raises((MutationError, ebbtide.DeterminismError)):
        pullback(np.ones(3))
    x = np.ones(3)
    _, pullback = vjp(ebbtide.checkpoint(np.sin), x)
    x[0] = 2.0
    with pytest.raises((MutationError, ebbtide.DeterminismError)):
        pullback(np.ones(3))


def test_guard_under_a_budget(tmp_path):
    """What was paged to disk is the value as it was used: it may change in memory, and the gradient is right."""
    arrays = [np.full(20_000, float(k)) for k in range(1, 11)]

    def f(x):
        for c in arrays:
            x = np.sin(x * c)
        return np.sum(x)

    x = np.linspace(0, 1, 20_000)
    expected = grad(f)(x)
    budget = ebbtide.Budget(6 * x.nbytes, "1 GiB", tmp_path)
    _, pullback = vjp(f, x, budget=budget)
    arrays[0][...] = 0.0
    # The array of the caller is kept by reference; a copy on disk would do as well.
    with contextlib.suppress(MutationError):
        assert np.array_equal(pullback(1.0)[0], expected)


def test_guard_in_second_order():
    """A plain operand between two levels of derivatives is guarded too."""
    c = np.ones(3)
    _, pullback = vjp(lambda x: grad(lambda u: np.sum(u**3))(x) * c, np.ones(3))
    c[0] = 2.0
    with pytest.raises(MutationError, match="multiply"):
        pullback(np.ones(3))


@pytest.mark.parametrize("schedule", [StoreAll(), StoreAll("disk"), Mixed(3)], ids=str)
def test_a_function_of_the_users_with_one_array_for_all_results(schedule):
    """What it writes into a result that was saved before is an error, whatever its arguments were made of."""
    results = np.zeros(4)
    doubled = primitive(lambda x: np.multiply(x, 2.0, out=results), vjp=(lambda g: 2.0 * g,))

    def stepped(x):
        return np.sum(timeloop(lambda u, i: u + 0.1 * np.sin(doubled(u)), x, 5, schedule=schedule))

    def after_another(x):
        return np.sum(np.sin(doubled(x * 2.0))) * np.sum(np.sin(doubled(x * 3.0)))

    for f in (stepped, after_another):
        with pytest.raises(MutationError, match="changed after sin"):
            grad(f)(np.arange(4.0))
