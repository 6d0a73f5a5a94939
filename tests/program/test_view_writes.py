"""Writes into views of traced functions go where NumPy's go: into what is shared, and into no copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ebbtide as eb
import ebbtide.numpy as enp

A = np.arange(8.0).reshape(2, 4) + 1.0
WEIGHTS = np.cos(np.arange(8.0)).reshape(2, 4)


def stencil(u: Any) -> Any:
    """Add to the inside of zeros."""
    d = np.zeros_like(u)
    inner = d[:, 1:-1]
    inner += 0.1 * (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2])
    return np.sum(WEIGHTS * (u + d) ** 2)


def whole_view(u: Any) -> Any:
    """Write a row by an ellipsis."""
    d = np.ones_like(u)
    d[0][...] = u[1]
    return np.sum(WEIGHTS * d * u)


def turned(u: Any) -> Any:
    """Write through a transpose."""
    d = np.full_like(u, 2.0)
    t = d.T
    t[1] = u[:, 0] * u[:, 1]
    return np.sum(WEIGHTS * d**2)


def copied_into(u: Any) -> Any:
    """Copy into a row."""
    d = np.zeros_like(u)
    np.copyto(d[1], u[0] * u[1])
    return np.sum(WEIGHTS * d * u)


def added_at(u: Any) -> Any:
    """Add at places of a row."""
    d = np.zeros_like(u)
    np.add.at(d[0], [1, 1, 2], u[1, :3])
    return np.sum(WEIGHTS * d * u)


def rows(u: Any) -> Any:
    """Change row by row."""
    d = np.zeros_like(u)
    first, second = d
    first += u[0] * u[1]
    second += u[0] - u[1]
    return np.sum(WEIGHTS * d**2)


def taken_before(u: Any) -> Any:
    """Read a view that was taken before its base was written."""
    d = np.zeros_like(u)
    v = d[:, 1:3]
    d[:] = u
    return np.sum(v**3)


def given_out(u: Any) -> Any:
    """Compute into a row."""
    d = np.zeros_like(u)
    np.multiply(u[0], u[1], out=d[1])
    return np.sum(WEIGHTS * d * u)


def column(u: Any) -> Any:
    """Change what ravel copied."""
    y = u * 1.0
    w = y[:, 0].ravel()
    w *= u[0, 1]
    return np.sum(WEIGHTS * y)


def turned_and_raveled(u: Any) -> Any:
    """Change what reshape copied, of an argument in C order."""
    y = u * 1.0
    w = y.T.reshape(-1)
    w[3] = 100.0
    return np.sum(WEIGHTS * y * u)


def in_rows(u: Any) -> Any:
    """Change what reshape copied, of an argument in Fortran order."""
    y = u * 1.0
    w = y.reshape(-1)
    w[3] = 100.0
    return np.sum(WEIGHTS * y * u)


def written_whole(u: Any) -> Any:
    """Take a copy of a view that was written whole."""
    y = u * 1.0
    v = y[:, ::2]
    v[...] = u[:, :2] ** 2
    w = v.ravel()
    w *= 3
    return np.sum(WEIGHTS * y)


def as_is(u: Any) -> Any:
    """Change what a cast gives back as it is."""
    y = u * 1.0
    w = y.astype(y.dtype, copy=False)
    w[0] = 2.0
    return np.sum(WEIGHTS * y * u)


def made_contiguous(u: Any) -> Any:
    """Change what lay so already."""
    y = u * 1.0
    w = enp.ascontiguousarray(y)
    w[0] = 2.0
    return np.sum(WEIGHTS * y * u)


def of_other_view(u: Any) -> Any:
    """Take a copy of a view into which a view of another array was written."""
    y = u * 1.0
    v = y[:, ::2]
    v[...] = u[:, :2]
    w = v.ravel()
    w *= 3
    return np.sum(WEIGHTS * y * u)


def zeros_reshaped(u: Any) -> Any:
    """Change zeros through a reshape of them."""
    d = np.zeros_like(u)
    m = d.reshape(4, 2)
    m[1:3] += u[:, :2]
    return np.sum(WEIGHTS * d**2)


def zeros_spread(u: Any) -> Any:
    """Read what is broadcast of zeros after these were written."""
    d = np.zeros_like(u[0])
    wide = np.broadcast_to(d, u.shape)
    d[1:3] = u[1, 1:3]
    return np.sum(WEIGHTS * wide * u)


def turned_and_raveled_back(u: Any) -> Any:
    """Change what ravel takes in the order in which it lies, and what it copies."""
    y = u * 1.0
    w = y.T.ravel(order="F")
    w[3] = u[0, 1]
    z = u * 1.0
    w = z.ravel(order="F")
    w[3] = u[0, 1]
    return np.sum(WEIGHTS * (y + z) ** 2)


def gathered(u: Any) -> Any:
    """Change rows that were gathered, through what reshapes them."""
    y, z = u[[1, 0]], np.take(u, [1, 0, 1], axis=0)
    y.ravel()[:] *= u[0, 1]
    w = z.reshape(-1)
    w += 1.5
    return np.sum(WEIGHTS * y**2) + np.sum(z**2)


def copied_turned(u: Any) -> Any:
    """Change a copy in Fortran order along its memory."""
    y = u.copy("F")
    w = np.ravel(y, "F")
    w *= u[0, 1]
    return np.sum(WEIGHTS * y**2)


BODIES = (
    gathered, copied_turned, of_other_view, zeros_reshaped, zeros_spread, turned_and_raveled_back, stencil, whole_view,
    turned, copied_into, added_at, rows, taken_before, given_out, column, turned_and_raveled,
    in_rows, written_whole, as_is, made_contiguous,
)  # fmt: skip


def finite_differences(f: Callable[[Any], Any], x: Any) -> Any:
    """Return central differences, in arrays that lie as the point does."""
    found = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[place] = 1e-5
        e = np.asarray(e, order="F" if x.flags.f_contiguous else "C")
        found[place] = (f(x + e) - f(x - e)) / 2e-5
    return found


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("body", BODIES)
def test_view_writes(body: Callable[[Any], Any], order: Any) -> None:
    """In programs, batches and derivatives of both, in whatever order the argument lies."""
    x = np.array(A, order=order)
    expected, slope = body(x), finite_differences(body, x)
    for executor in ("reference", "machine"):
        jitted = eb.jit(body, executor=executor)
        np.testing.assert_allclose(jitted(x), expected, rtol=1e-13)
        np.testing.assert_allclose(eb.vjp(jitted, x)[0], expected, rtol=1e-13)
        np.testing.assert_allclose(eb.grad(jitted)(x), slope, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(eb.jit(eb.grad(body), executor=executor)(x), slope, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(eb.grad(body)(x), slope, rtol=1e-7, atol=1e-7)
    if order == "F":
        return  # the members of a batch lie in C order
    batch = np.stack([x, x])
    np.testing.assert_allclose(eb.vmap(body)(batch), [expected] * 2, rtol=1e-13)
    np.testing.assert_allclose(eb.vmap(eb.grad(body))(batch), [slope] * 2, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(eb.jit(eb.vmap(body))(batch), [expected] * 2, rtol=1e-13)
    np.testing.assert_allclose(eb.vmap(eb.vmap(body))(np.stack([batch] * 3)), [[expected] * 2] * 3, rtol=1e-13)


def test_jitted_step_fills_zeros() -> None:
    """A step that fills an array of zeros through a view of it is the same in a program."""

    def step(u: Any, _: Any) -> Any:
        d = np.zeros_like(u)
        inner = d[1:-1]
        inner += 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        return u + d

    u = np.sin(np.arange(6.0))
    plain, jitted = (lambda u, s=s: np.sum(eb.timeloop(s, u, 20) ** 2) for s in (step, eb.jit(step)))
    assert plain(u) == jitted(u)
    assert np.array_equal(eb.grad(plain)(u), eb.grad(jitted)(u))


@pytest.mark.parametrize("executor", ["reference", "machine"])
def test_power_of_a_negative_number(executor: Any) -> None:
    """`-2.0 ** x` in a program's source is not `(-2.0) ** x`."""
    x = np.array([2.0, 3.0, 4.0])
    assert eb.jit(lambda x: (-2.0) ** x, executor=executor)(x).tolist() == [4.0, -8.0, 16.0]
    assert eb.jit(lambda x: (-2) ** x - (-1.5) * x, executor=executor)(x).tolist() == [7.0, -3.5, 22.0]
    slope = eb.grad(lambda x: np.sum((-2.0) ** np.round(x) * x))
    assert eb.jit(slope, executor=executor)(x).tolist() == [4.0, -8.0, 16.0]


@pytest.mark.parametrize("executor", ["reference", "machine"])
def test_lists_as_operands(executor: Any) -> None:
    """A list beside a traced array is an array, as in NumPy."""
    x = np.array([1.0, 2.0, 3.0])

    def f(x: Any) -> Any:
        y = x + [1, 2, 3] + x * (1.0, 2.0, 3.0) + np.maximum(x, [2, 2, 2]) + np.where(x > [1, 1, 1], x, [0.5, 1, 2])
        y[:2] = [5.0, 6.0]
        return np.sum(np.power(x, [2, 1, 2]) * y) + x @ [1.0, 2.0, 3.0]

    assert eb.jit(f, executor=executor)(x) == f(x)
    assert np.array_equal(eb.jit(eb.grad(f), executor=executor)(x), eb.grad(f)(x))
    assert np.array_equal(eb.grad(eb.jit(f, executor=executor))(x), eb.grad(f)(x))


def test_floors_in_place() -> None:
    """What has no derivative may be written in place."""
    x = np.array([[1.0, 2.5], [3.0, 4.5]])

    def f(x: Any) -> Any:
        y = x * 3.0
        y[0] //= 2.0
        z = x * 1.0
        z //= 2.0
        return np.sum(y * x) + np.sum(z * x)

    value, slope = eb.value_and_grad(f)(x)
    assert value == f(x) == eb.jit(f)(x)
    np.testing.assert_allclose(slope, finite_differences(f, x), rtol=1e-7)


def test_reshape_of_a_number_is_a_copy() -> None:
    """A NumPy scalar does not change with an array that was made of it."""

    def f(x: Any) -> Any:
        y = np.reshape(x, (1,))
        y[0] = 5.0
        return np.sum(y) + 3 * x

    for x in (2.0, np.float64(2.0)):
        assert eb.value_and_grad(f)(x) == (f(np.float64(2.0)), 3.0)


@pytest.mark.parametrize("order", ["C", "F", "K"])
def test_arrays_like_another_lie_as_it_does(order: Any) -> None:
    """In all modes, as a sum goes along memory, and a reshape copies what lies otherwise."""
    x = np.asfortranarray(A)

    def f(x: Any) -> Any:
        made = [np.zeros_like(x, order=order), np.ones_like(x.T, order=order), np.full_like(x, 2.0, order=order)]
        for one in made:
            one.reshape(-1)[1] = 3.0
        return np.sum(made[0] * x), np.sum(made[1] * x.T), np.sum(made[2] * x)

    expected = f(x)
    assert eb.vjp(f, x)[0] == expected
    for executor in ("reference", "machine"):
        assert eb.jit(f, executor=executor)(x) == expected
