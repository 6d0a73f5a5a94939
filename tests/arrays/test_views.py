# ruff: noqa: D103, PLW2901 - the programs speak by their names, and write into rows as users do
"""Views of traced arrays are NumPy's: what is written through one is seen by all that share its memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebbtide import StaleViewError, TraceError, grad, jvp, vjp
from ebbtide.testing import check_grads

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {}


def program(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Note a program of an array of shape (4, 5), which it may change, and one of shape (5,)."""
    PROGRAMS[function.__name__] = function
    return function


@program
def slice_added(u, a):
    u[1:-1] += a
    return u


@program
def neighbors(u, a):
    left, right = u[:-2], u[2:]
    u[1:-1] = (left + right) / 2
    return u * left[0] * right[-1]


@program
def neighbors_of_a_row(u, a):
    row = u[0]
    left, right = row[:-2], row[2:]
    row[1:-1] = (left + right) / 2
    return u * a


@program
def row_to_row(u, a):
    u[0] = u[1]
    u[1] *= a
    return u


@program
def named_view(u, a):
    v = u[1:3]
    v += 1
    v *= a
    return u * u


@program
def view_of_view(u, a):
    u[2:][0] = 9
    u[1:][1:][:, ::2][0] *= a[::2]
    return u * u


@program
def rows(u, a):
    for row in u:
        row *= 2
        row[1] = row[0] * a[0]
    return u


@program
def base_seen_by_view(u, a):
    v, w = u[1], u[:, 1]
    u[1, 1] = a[0] * a[1]
    u *= 2
    return np.sum(v * v) + np.sum(w)


@program
def view_before_and_after(u, a):
    v = u[1]
    before = v * 1
    u[1] = a
    return before * v


@program
def transposed(u, a):
    u.T[1] = u[:, 2] * 2
    np.transpose(u)[0, 1:] += a[1:4]
    u.T[2:, ::2][:, 0] *= 3
    return u


@program
def reshaped(u, a):
    flat = u.reshape(-1)
    flat[3:8] = a
    u.reshape(2, 10)[1, ::3] *= 2
    flat.reshape(5, 4)[0] += flat[16:]
    return u


@program
def raveled(u, a):
    u.ravel()[::3] = 1.5
    u.T.ravel()[0] = 100  # a copy: nobody sees it
    u[0, ::-1].ravel()[0] = 100
    np.ravel(u[:, 1])[0] = 100
    u.T.ravel("F")[1] = 1.25
    u.flatten()[1] = 100
    return u * a


@program
def written_through_flat(u, a):
    u.flat[3] = a[0] * 2
    u.T.flat[1:3] *= 3  # also where NumPy's reshape would copy
    part = u[:, ::2].flat
    part[4:] += a[0]
    u[1:, 1:].flat = a[1]
    return u * part[-1]


@program
def axes_moved(u, a):
    np.swapaxes(u, 0, 1)[0] *= 2
    np.moveaxis(u.reshape(2, 2, 5), -1, 0)[1, 0] = u[0, :2]
    np.expand_dims(u, 1)[:, 0, 2] = u[:, 3] ** 2
    np.squeeze(u[None])[0, 0] = a[1]
    return u


@program
def flipped(u, a):
    np.flip(u)[0, 0] = a[0]
    u[::-1][:2] = u[:2] * 2
    np.fliplr(u)[:, 0] += 1
    return u


@program
def overlapping(u, a):
    u[1:] = u[:-1]
    u[0, :-1] = u[0, 1:]
    u[::-1] = u
    u[:, 1:] += u[:, :-1]
    return u * a


@program
def masked(u, a):
    u[u > 0.1] *= 2
    u[u < -0.5] = a[0]
    mask = np.array([True, False, True, True])
    u[mask] = u[mask] * a
    return u


@program
def indexed(u, a):
    u[[0, 2]] = a
    u[np.array([1, 1, 3])] = u[:3] * 2  # of two values for one row the last wins
    u[[0, 0], [1, 1]] += a[:2]  # and here too: this is no sum
    u[1, [0, 1, 0]] = a[2:]
    return u


@program
def fancy_copies(u, a):
    v = u[[0, 1]]
    v *= 5
    w = u[u[:, 0] > -9]
    w += a
    return u + v[0] + w[1]


@program
def slice_written_by_index(u, a):
    v = u[1:3]
    u[np.array([0, 1])] = v
    return u * a


@program
def numbers_are_values(u, a):
    total = u[0, 0]
    kept = total
    total += 1
    total *= a[0]
    return u * total * kept


@program
def arrays_are_shared(u, a):
    v = w = a * 2
    v += u[0]
    return v * w


@program
def without_axes(u, a):
    point = u[1, 1:2].reshape(())
    same = point
    point += a[0]
    point[...] = point * 2
    u[2, 2, ...] += 1
    return u * same


@program
def made_and_filled(u, a):
    out = np.zeros_like(u)
    out[0] = a
    out[1:] = u[:-1] * out[0]
    made = np.empty((2, 5), like=u)
    made[...] = out[:2]
    made[0].fill(2.0)
    return out[2:] * made


@program
def copied_first(u, a):
    v = u.copy()
    w = copy.deepcopy(u[0])
    v *= 2
    w[1] = 3
    return u * v * w


@program
def swapped(u, a):
    u[0], u[1] = u[1] * 1, u[0] * 1
    x, y = u[2], u[3]
    u[2], u[3] = y, x  # both become row 3, as they are views
    return u * a


@program
def stored_with_out(u, a):
    np.multiply(u, 2, out=u)
    np.add(u[1], a, out=u[2])
    np.copyto(u[3], a)
    return u


def arguments() -> tuple[Any, Any]:
    random = np.random.default_rng(11)
    return random.uniform(-1, 1, (4, 5)), random.uniform(0.5, 1.5, 5)


def on_plain_arrays(run: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a program by NumPy, on copies."""
    return np.array(run(*[a.copy() for a in args]))


@pytest.mark.parametrize("run", PROGRAMS.values(), ids=PROGRAMS)
def test_program(run):
    """A program of views and writes has NumPy's value to the last bit, in both modes, and changes no argument."""
    u, a = arguments()
    expected = on_plain_arrays(run, u, a)
    for value in (vjp(run, u, a)[0], jvp(run, (u, a), (u, a))[0]):
        assert value.tobytes() == expected.tobytes()
        assert value.shape == expected.shape
    assert all(np.array_equal(x, y) for x, y in zip((u, a), arguments(), strict=True))


@pytest.mark.parametrize("run", PROGRAMS.values(), ids=PROGRAMS)
def test_derivatives_of_program(run):
    """The derivatives of a program of views and writes are those of finite differences, to second order."""
    check_grads(lambda u, a: run(u * 1, a * 1), *arguments())


@pytest.mark.parametrize("run", PROGRAMS.values(), ids=PROGRAMS)
def test_gradient_when_the_argument_is_written(run):
    """A program that writes into its argument itself has the gradient with respect to what it was given."""
    u, a = arguments()
    direct = grad(lambda u, a: np.sum(run(u, a) * 1.5), (0, 1))(u, a)
    copied = grad(lambda u, a: np.sum(run(u * 1, a * 1) * 1.5), (0, 1))(u, a)
    assert all(np.array_equal(x, y) for x, y in zip(direct, copied, strict=True))


# ----------------------------------------------------------------------------------------------
# Random programs

Step = Callable[[list[Any], Any], None]


def random_program(seed: int, length: int = 8) -> Callable[..., Any]:
    """Return a random sequence of views, reads and writes of an array of shape (4, 5)."""
    random = np.random.default_rng(seed)
    steps: list[Step] = []
    # The same choices are made for plain and for traced arrays: they follow from shapes, which are tracked here.
    plain = [np.zeros((4, 5))]
    for _ in range(length):
        step = choose(random, plain)
        step(plain, np.zeros(5))
        steps.append(step)

    def run(u: Any, a: Any) -> Any:
        names = [u]
        for step in steps:
            step(names, a)
        return sum((np.sum(np.sin(x * (k + 1))) for k, x in enumerate(names)), start=np.sum(u))

    return run


def choose(random: np.random.Generator, names: list[Any]) -> Step:
    """Return a random step that can be done with these arrays."""
    k = int(random.integers(len(names)))
    shape = names[k].shape
    action = int(random.integers(7))
    if action < 3:
        view = choose_view(random, shape)
        return lambda names, a: names.append(view(names[k]))
    index = choose_index(random, shape)
    same = [j for j, x in enumerate(names) if x.shape == shape]
    j = int(random.choice(same))
    factor = float(np.round(random.uniform(-1.5, 1.5), 2))
    if action == 3:
        return lambda names, a: names.__setitem__(k, names[k].__iadd__(factor * a[1]))
    if action == 4:
        return lambda names, a: names[k].__setitem__(index, names[j][index] * factor + a[0])
    if action == 5:
        return lambda names, a: names[k].__setitem__(index, names[j][index])
    return lambda names, a: names.append(names[k] * a[2] + factor)


def choose_view(random: np.random.Generator, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return a random function from an array of a shape to a view of it, or a copy where NumPy makes one."""
    size = math.prod(shape)
    choices: list[Callable[[Any], Any]] = [
        lambda x: x[...],
        lambda x: x.T,
        lambda x: x.reshape(-1),
        lambda x: x.reshape((1, size, 1)),
        lambda x: x[None],
        np.squeeze,
        np.flip,
        lambda x: x.ravel(),
    ]
    if shape and shape[0] > 1:
        choices += [lambda x: x[1:], lambda x: x[::-1], lambda x: x[::2], lambda x: x[:-1]]
    if len(shape) > 1:
        choices += [lambda x: x[:1], lambda x: x[0], lambda x: np.swapaxes(x, 0, -1), lambda x: x[:, -1]]
        choices += [lambda x: np.moveaxis(x, 0, -1)]
    return choices[int(random.integers(len(choices)))]


def choose_index(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Return a random index of an array of a shape: basic, boolean, or numbers that may repeat."""
    if not shape or not shape[0]:
        return Ellipsis
    size = shape[0]
    numbers = random.integers(-size, size, 3)
    rows, elements = random.random(size) < 0.5, random.random(shape) < 0.5
    choices = [Ellipsis, slice(None, None, 2), slice(1, None), rows, numbers, elements]
    return choices[int(random.integers(len(choices)))]


@pytest.mark.parametrize("block", range(20))
def test_random_programs(block):
    """Random sequences of views, reads and writes have NumPy's value to the last bit and right derivatives."""
    u, a = arguments()
    for seed in range(10 * block, 10 * block + 10):
        run = random_program(seed)
        expected = on_plain_arrays(run, u, a)
        assert vjp(run, u, a)[0] == expected, seed
        assert jvp(run, (u, a), (u, a))[0] == expected, seed
        try:
            check_grads(lambda u, a, run=run: run(u * 1, a * 1), u, a, order=1 + (seed % 10 == 0))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# ----------------------------------------------------------------------------------------------
# What cannot be followed


def test_stale_view_names_both_lines():
    """A view whose base was written inside a trace that has ended is an error that names both lines."""

    def f(u):
        view = u[1:3]  # taken

        def inner(w):
            u[0] = w * 2  # written
            return np.sum(u)

        value = grad(inner)(3.0)
        return np.sum(view) + value

    with pytest.raises(StaleViewError) as caught:
        grad(f)(np.ones(4))
    first = f.__code__.co_firstlineno
    assert f"{__file__}:{first + 1} is used" in str(caught.value)
    assert f"written at {__file__}:{first + 4}" in str(caught.value)


def test_write_never_fails_because_a_view_exists():
    """Views of all kinds may be alive, and their base is written all the same."""

    def f(u):
        views = [u[1:], u.T, u[0], np.diagonal(u), np.broadcast_to(u, (2, 4, 5)), u.reshape(-1), u.real, iter(u)]
        u[...] = u * 2
        u += 1
        return np.sum(u), len(views)

    assert np.array_equal(grad(lambda u: f(u)[0])(np.ones((4, 5))), np.full((4, 5), 2.0))


READ_ONLY = {"diagonal": np.diagonal, "broadcast_to": lambda u: np.broadcast_to(u, (2, 3, 3))}


@pytest.mark.parametrize("view", READ_ONLY.values(), ids=READ_ONLY)
def test_read_only_views(view):
    """A view that NumPy makes read-only cannot be written, and its base's changes are seen in it."""

    def write(u):
        view(u)[0] = 1.0
        return np.sum(u)

    with pytest.raises(TraceError, match="read-only"):
        grad(write)(np.ones((3, 3)))

    def read(u):
        v = view(u)
        u *= 3
        return v

    expected = view(np.full((3, 3), 3.0))
    assert np.array_equal(vjp(read, np.ones((3, 3)))[0], expected)
    assert np.array_equal(jvp(read, (np.ones((3, 3)),), (np.ones((3, 3)),))[1], expected)


def test_returned_view_has_the_present_value():
    """A view that a function returns after its base was written is of what was written."""

    def run(u):
        row, flat = u[1], u.reshape(-1)
        u *= u
        flat[4] = 0.0
        return row, flat

    x = np.arange(6.0).reshape(2, 3)
    expected = run(x.copy())
    for value in (vjp(run, x)[0], jvp(run, (x,), (x,))[0]):
        assert all(np.array_equal(a, b) for a, b in zip(value, expected, strict=True))
    check_grads(lambda u: run(u * 1), x)


def test_parts_of_complex_arrays_are_views():
    """Real and imaginary parts are views, which write through to the complex array."""

    def run(z):
        z.real[0] = 7
        z.imag[1:] *= 2
        return z * z

    z = np.arange(1.0, 4.0) + 2j
    expected = run(z.copy())
    assert np.array_equal(vjp(run, z)[0], expected)
    check_grads(lambda z: run(z * 1), z)


def test_parts_of_complex_arrays_are_set():
    """Real and imaginary parts are set as attributes are."""

    def run(z):
        z.real = 3.0
        z.imag *= z.imag
        return z * z

    z = np.arange(1.0, 4.0) + 2j
    assert np.array_equal(vjp(run, z)[0], run(z.copy()))
    check_grads(lambda z: run(z * 1), z)


def test_real_part_of_real_array_is_itself():
    """The real part of a real array shares its memory."""

    def run(u):
        u.real[0] = 5
        return u * u

    assert np.array_equal(grad(lambda u: np.sum(run(u)))(np.ones(3)), [0.0, 2.0, 2.0])
