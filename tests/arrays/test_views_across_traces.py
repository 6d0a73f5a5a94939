"""Views whose base is written inside an inner derivative: each program against the same one without views."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ebbtide import StaleViewError, checkpoint, grad, jvp, value_and_grad, vjp

X = np.array([0.5, 1.2, -0.7, 2.0])

# A derivative of a scalar function of a scalar; the programs below take one inside.
INNER = {
    "grad": lambda f, w: grad(f)(w),
    "value_and_grad": lambda f, w: value_and_grad(f)(w)[1],
    "vjp": lambda f, w: vjp(f, w)[1](1.0)[0],
    "jvp": lambda f, w: jvp(f, (w,), (1.0,))[1],
}
PROGRAMS = {}


def program(pair):
    """Note a function (x, D) -> (with views, without): x has four elements, D takes a derivative."""
    PROGRAMS[pair.__name__] = pair
    return pair


@program
def element_is_a_value(x, D):
    """An element read before is a value, not a view, as in NumPy."""
    u = x * 1
    element, view = u[1], u[1:2]

    def inner(w):
        u[1] = w * w * u[0]
        return element * view[0]

    return D(inner, 3 * x[0]), D(lambda w: w * w * x[0] * x[1], 3 * x[0])


@program
def read_inside(x, D):
    """The base is written inside, and the view from outside is read there."""
    u = x * 1
    view = u[1:3]

    def inner(w):
        u[1] = w * w * u[0]
        return np.sum(view * view)

    return D(inner, x[3]), D(lambda w: (w * w * x[0]) ** 2 + x[2] ** 2, x[3])


@program
def returned(x, D):
    """The view from outside is what the inner function returns."""
    u = x * 1
    view = u[1:2].reshape(())

    def inner(w):
        u[1] = w * w * u[0]
        return view

    return D(inner, x[3]), D(lambda w: w * w * x[0], x[3])


@program
def written_inside(x, D):
    """The inner function writes through a view from outside."""
    u = x * 1
    view, other = u[1:3], u[::-1]

    def inner(w):
        view[0] = w * w * view[1]
        other[3] *= w
        return np.sum(u * u)

    return D(inner, x[3]), D(lambda w: (w * w * x[2]) ** 2 + (x[0] * w) ** 2, x[3])


@program
def written_inside_with_outer_values(x, D):
    """What the inner function writes with values from outside is seen after it."""
    u = x * 1
    view = u[1:3]

    def inner(w):
        view[0] = x[3] * 2
        return w * w * u[1]

    first = D(inner, x[0]) + np.sum(view * view) + np.sum(u)
    second = D(lambda w: w * w * 2 * x[3], x[0]) + 4 * x[3] ** 2 + x[2] ** 2 + x[0] + 2 * x[3] + x[2] + x[3]
    return first, second


@program
def taken_inside(x, D):
    """A view that is taken inside of an array from outside follows what is written outside later."""
    u = x * 1
    kept = []

    def inner(w):
        kept.append(u[1:3])
        return w * u[1] * w

    value = D(inner, x[0])
    u[1] = x[0] ** 3
    return value + np.sum(kept[-1] ** 2), D(lambda w: w * w * x[1], x[0]) + x[0] ** 6 + x[2] ** 2


@program
def views_of_an_outer_buffer(x, D):
    """A buffer like the outer array takes inner values, through views of views."""

    def inner(w):
        z = np.zeros_like(x)
        tail = z[1:]
        pair = tail[:2]
        z[0] = w
        tail[0] = w * w * x[0]
        pair += x[1:3]
        z[:] = z * 2
        pair[1] *= w
        return np.sum(tail * tail) + z[0]

    def plain(w):
        return (2 * (w * w * x[0] + x[1])) ** 2 + (2 * x[2] * w) ** 2 + 2 * w

    return D(inner, x[3]), D(plain, x[3])


@program
def saved_before_it_is_written(x, D):
    """What was saved of a buffer before it is written inside keeps its value."""
    z = np.zeros_like(x)
    z[0] = x[0]
    view = z[0:2]

    def inner(w):
        before = np.sum(z * w * z)
        view[0] = x[1]
        view[1] = w
        return before + np.sum(z * z)

    return D(inner, x[2]), D(lambda w: w * x[0] ** 2 + x[1] ** 2 + w * w, x[2])


@program
def two_levels_inside(x, D):
    """The base is written two derivatives further in."""
    u = x * 1
    view = u[1:3]

    def middle(w):
        def innermost(s):
            view[0] = s * s * w * w
            return np.sum(view)

        return D(innermost, w) * w

    return D(middle, x[0]), D(lambda w: D(lambda s: s * s * w * w, w) * w, x[0])


@program
def written_again_further_in(x, D):
    """The base is written in the inner function, and again in one inside of that."""
    u = x * 1
    view, first = u[1:3], u[:2]

    def middle(w):
        u[1] = w * w
        before = np.sum(view)

        def innermost(s):
            view[1] = s * view[0] * s
            return np.sum(u * u) + first[1]

        return before * D(innermost, w * x[3])

    def plain(w):
        return (w * w + x[2]) * D(lambda s: (s * w * w * s) ** 2, w * x[3])

    return D(middle, x[0]), D(plain, x[0])


@program
def reshaped_and_transposed(x, D):
    """Views by other ways than slices are of what was written inside."""
    u = x * 1
    matrix = u.reshape(2, 2).T
    row = matrix[1]

    def inner(w):
        u[2] = w * w * x[1]
        u[3] = w
        return row.sum() * matrix[0, 1]

    return D(inner, x[0]), D(lambda w: (x[1] + w) * (w * w * x[1]), x[0])


@program
def joined(x, D):
    """A stale view is found among the parts of a list too."""
    u = x * 1
    view = u[1:3]

    def inner(w):
        u[1] = w * w
        return np.sum(np.concatenate([x[:1], view, u[:2]]) ** 2) + np.einsum("i,i->", view, x[:2])

    def plain(w):
        return 2 * (w * w) ** 2 + x[2] ** 2 + 2 * x[0] ** 2 + w * w * x[0] + x[2] * x[1]

    return D(inner, x[3]), D(plain, x[3])


@program
def beside_a_checkpoint(x, D):
    """A checkpointed function inside takes a view of an array from outside, which is written later."""
    u = x * 1
    body = checkpoint(lambda w: np.sum(u[1:3] * w))
    value = D(lambda w: body(w * w), x[0])
    view = u[1:3]
    view *= 2
    return value + np.sum(u), D(lambda w: w * w * (x[1] + x[2]), x[0]) + x[0] + 2 * x[1] + 2 * x[2] + x[3]


@program
def containers(x, D):
    """All views of a container that vjp and jvp return have the values written inside."""

    def run(derive):
        u = x * 1
        view = u[1:3]

        def inner(w):
            u[1] = w * w
            return view, {"whole": u}

        return derive(inner)

    def reverse(inner):
        (view, rest), pullback = vjp(inner, x[0])
        return pullback((x[2:], {"whole": x}))[0] * np.sum(view) * np.sum(rest["whole"])

    def forward(inner):
        (view, rest), (slope, slopes) = jvp(inner, (x[0],), (x[3],))
        return np.sum(slope * x[2:] + np.sum(slopes["whole"] * x)) * np.sum(view) * np.sum(rest["whole"])

    sums = (x[0] ** 2 + x[2]) * (x[0] + x[0] ** 2 + x[2] + x[3])
    expected = 2 * x[0] * sums * ((x[2] + x[1]) + x[3] * (x[2] + 2 * x[1]))
    return run(reverse) + run(forward), expected


@program
def auxiliary(x, D):
    """A view in the auxiliary output has the value written inside, as a constant."""
    u = x * 1
    view = u[1:3]

    def inner(w):
        u[1] = w * w
        return w * x[2], view

    slope, aux = grad(inner, has_aux=True)(x[0])
    return slope * np.sum(aux), x[2] * (x[0] ** 2 + x[2])


@pytest.mark.parametrize("outer", ["fwd", "rev"])
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("run", PROGRAMS.values(), ids=PROGRAMS)
def test_program(run, inner, outer):
    """A derivative of an inner derivative with writes through views is that of the program without them."""

    def derivative(which):
        f = lambda x: run(x, inner)[which]
        return grad(f)(X) if outer == "rev" else [jvp(f, (X,), (e,))[1] for e in np.eye(4)]

    np.testing.assert_allclose(derivative(0), derivative(1), rtol=1e-13, atol=1e-13)
    first, second = vjp(lambda x: run(x, inner), X)[0]
    np.testing.assert_allclose(first, second, rtol=1e-13)


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("use", [np.sin, lambda v: v * v, lambda v: 2 * v, lambda v: v[0], np.sum, lambda v: v + 1])
def test_stale_after_the_inner_function(use, inner):
    """A view that is used after its base was written in a trace that has ended raises, with every operation."""

    def f(x):
        u = x * 1
        view = u[1:3]

        def run(w):
            u[1] = w * x[2]
            return np.sum(u)

        return inner(run, x[0]) + np.sum(use(view))

    with pytest.raises(StaleViewError, match=r"A view taken at .*test_views_across_traces.py:\d+ is used after"):
        grad(f)(X)


def test_views_that_died_are_forgotten():
    """A base remembers few of the views that have died, however many there were, and makes no garbage."""
    counts = []

    def f(x):
        u = x * 1
        kept = u[:2]
        for _ in range(1000):
            u[1:3] *= 1.001
        counts.append(len(u.sharing().views))
        return np.sum(u) + np.sum(kept)

    gc.collect()
    gc.disable()
    try:
        grad(f)(X)
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert counts[0] <= 16
