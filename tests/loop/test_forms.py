"""Leaves of states that are no arrays of one type in all steps: numbers, arrays without axes, constants, conditions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from ebbtide import MutationError, TraceError, grad, hvp, jit, jvp, linearize, timeloop, vjp, vmap
from ebbtide.schedules import Revolve, StoreAll

X, V = np.array([0.3, 0.7, -0.2, 0.9]), np.array([1.0, -0.5, 0.25, 2.0])
EXECUTORS = ("reference", "machine")


def numbered(first: Any, later: Any) -> Any:
    """A function of a loop with a number in its state that is another one from the third step on."""

    def f(y: Any) -> Any:
        def step(s: Any, i: int) -> Any:
            return s[0] * 0.9, later(s[0]) if i == 2 else s[1]

        u, number = timeloop(step, (y, first), 5)
        return np.sum(np.real(np.sin(u) * number))

    return f


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, np.sum),
        (True, np.sum),
        (1, lambda u: 1.5),
        (np.float32(1.0), np.sum),
        (1.0, lambda u: 1.5j),
        (np.int64(2), lambda u: 2.5),
    ],
    ids=["sum of int", "sum of bool", "float of int", "double of single", "complex of float", "float of NumPy's int"],
)
def test_a_program_refuses_a_number_that_becomes_what_it_is_not_made_for(first: Any, later: Any, executor: str) -> None:
    """Without jit it is another number from there on; a program took an int for it, and its derivative was lost."""
    f = numbered(first, later)
    assert np.isfinite(f(X))
    for call in (jit(f, executor=executor), jit(grad(f), executor=executor)):
        with pytest.raises(TraceError, match=r"ended with .* for a number of its state .*test_forms\.py"):
            call(X)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("first", "later"), [(np.float64(1.0), 2), (1.0, 2), (1.0, np.float32(2.5)), (2 + 0j, 3.0)])
def test_a_program_takes_a_number_that_fits_what_it_is_made_for(first: Any, later: Any, executor: str) -> None:
    """A literal 2 in the place of 2.0 had its bits read as those of a float, which is 1e-322."""
    f = numbered(first, lambda u: later)
    assert jit(f, executor=executor)(X) == f(X)
    assert np.array_equal(jit(grad(f), executor=executor)(X), grad(f)(X))


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (np.array(1), np.sum),
        (np.array(1.0, np.float32), np.sum),
        (np.array(1.0), lambda u: np.sum(u) * (1 + 1j)),
        (np.array(1.0), lambda u: 3),
    ],
    ids=["double of int", "double of single", "complex of double", "int of double"],
)
def test_an_array_without_axes_keeps_its_dtype_in_all_modes(first: Any, later: Any) -> None:
    """It is an array, and no number; on a tape it was taken for one."""
    f = numbered(first, later)
    pushed = (lambda x: jvp(f, (x,), (V,)), lambda x: linearize(f, x), lambda x: hvp(f)(x, V))
    for call in (f, grad(f), jit(grad(f)), *pushed):
        with pytest.raises(TraceError, match=r"Step 2 returned .* for the leaf \[1\] of the state"):
            call(X)


def rooted(x: Any, **options: Any) -> Any:
    """Of a leaf that stays 0, and of outputs that are 0, the root has no derivative."""

    def step(s: Any, i: int) -> Any:
        return (s[0] * 0.9, s[1]), 0.0 * s[1]

    (u, zeros), outputs = timeloop(step, (x, np.zeros(2)), 3, outputs=True, **options)
    return np.sum(u) + np.sum(np.sqrt(zeros)) + np.sum(np.sqrt(outputs))


@pytest.mark.parametrize("schedule", [None, StoreAll()], ids=str)
def test_what_depends_on_nothing_has_no_tangent_in_a_linearized_loop(schedule: Any) -> None:
    """A tangent of zeros came to NaN in a root, where forward mode has a number."""
    with np.errstate(all="ignore"):
        value, tangent = jvp(rooted, (X,), (V,))
        found, push = linearize(lambda x: rooted(x, schedule=schedule), X)
        assert (found, push(V)) == (value, tangent)
        assert np.isfinite(tangent)
        assert np.array_equal(vjp(rooted, X)[1](1.0)[0], np.full(4, 0.9**3))


CONDITIONS = {
    "float": lambda s: float(np.sum(s * s)) < 0.3,
    "math": lambda s: math.sqrt(np.sum(s * s)) < 0.6,
    "item": lambda s: np.sum(s * s).item() < 0.3,
    "asarray": lambda s: bool(np.asarray(s).max() < 0.3),
    "tolist": lambda s: max(s.tolist()) < 0.3,
    "text": lambda s: f"{s[0]:.1f}" == "0.1",
    "array": lambda s: np.all(s < 0.3),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_may_ask_for_values_in_all_modes(name: str) -> None:
    """It looks at the state, and no derivative comes of where a loop ends; forward mode refused it."""

    def f(y: Any, until: Any = CONDITIONS[name]) -> Any:
        return np.sum(timeloop(lambda s, i: s * 0.9 + 0.01 * s * s, y, until=until, max_steps=40) ** 2)

    gradient = grad(f)(X)
    assert jvp(f, (X,), (V,))[1] == pytest.approx(gradient @ V, rel=1e-12)
    assert linearize(f, X)[1](V) == jvp(f, (X,), (V,))[1]
    product = hvp(f)(X, V)
    shift = (grad(f)(X + 1e-5 * V) - grad(f)(X - 1e-5 * V)) / 2e-5
    np.testing.assert_allclose(product, shift, rtol=1e-6)


def test_a_condition_that_writes_is_refused_in_forward_mode() -> None:
    """The state that it is shown cannot be written there either."""

    def writes(s: Any) -> bool:
        s[0] = 2.0
        return False

    def f(y: Any) -> Any:
        return np.sum(timeloop(lambda s, i: s * 0.9, y, until=writes, max_steps=4))

    for call in (lambda: jvp(f, (X,), (V,)), lambda: linearize(f, X), lambda: hvp(f)(X, V), lambda: grad(f)(X)):
        with pytest.raises(MutationError, match="until= changed the state"):
            call()


def test_what_is_no_array_is_told_where_it_is_given() -> None:
    """A text from a traced step, a sparse array for inputs, and a masked array for an output."""
    with pytest.raises(TypeError, match="A leaf of the state is a str"):
        jit(lambda y: timeloop(lambda u, i: "a", y, 3))(X)
    with pytest.raises(TypeError, match=r"inputs= is a csr_array\. Give a sequence"):
        grad(lambda y: np.sum(timeloop(lambda u, a: u * a, y, 3, inputs=scipy.sparse.csr_array(np.eye(3)))))(X)

    def masked(u: Any, i: int) -> Any:
        return u, np.ma.array(np.ones(2))

    with pytest.raises(TypeError, match=r"A leaf of the output is a MaskedArray.*called at .*test_forms\.py:"):
        grad(lambda y: np.sum(timeloop(masked, y, 3, outputs=True, schedule=Revolve(1))[0]))(X)


@pytest.mark.parametrize("kind", [">f8", ">f4", ">c16", ">i4", ">i8", "<f8"])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_constants_of_the_other_byte_order_are_read_as_what_they_are(kind: str, shape: Any, executor: str) -> None:
    """As netCDF and FITS files give them; the machine read 1.0 as 3e-319."""
    weights, x = np.arange(1, 1 + math.prod(shape)).reshape(shape).astype(kind), np.array([0.1, 0.2, 0.3])

    def f(y: Any) -> Any:
        return np.sum(np.real(np.sin(y) * weights)) + np.sum(np.real(weights @ y))

    assert jit(f, executor=executor)(x) == pytest.approx(f(x), rel=1e-14)
    np.testing.assert_allclose(jit(grad(f), executor=executor)(x), grad(f)(x), rtol=1e-13)


@pytest.mark.parametrize("kind", [">f8", ">f4", ">c16"])
@pytest.mark.parametrize("later", ["native", "other"])
def test_states_of_the_other_byte_order_are_those_of_the_machine(kind: str, later: str) -> None:
    """A loop from a field of a file was refused, as steps return another dtype; its gradient has that."""
    x, number = np.linspace(0.3, 0.9, 6).astype(kind), np.arange(3).astype(">i4")

    def f(u: Any, **options: Any) -> Any:
        def step(s: Any, i: int) -> Any:
            u = s[0] + 0.1 * np.sin(s[0])
            return (u if later == "native" else u.astype(kind)), s[1] + 1

        u, n = timeloop(step, (u, number), 7, **options)
        assert u.dtype.isnative
        assert n.dtype == np.int32
        return np.sum(np.real(u * np.conj(u))) + n[0]

    found = grad(lambda u: f(u, schedule=Revolve(2)))(x)
    same = grad(f)(x.astype(x.dtype.newbyteorder("=")))
    assert found.dtype == np.dtype(kind)
    assert f(x) == f(x.astype(x.dtype.newbyteorder("=")))
    for call in (grad(f), jit(grad(f)), lambda u: vmap(grad(f))(np.stack([u, u]))[1]):
        np.testing.assert_allclose(call(x), same, rtol=1e-6)
    np.testing.assert_array_equal(found, same)
    v = np.ones(6, x.dtype)
    np.testing.assert_allclose(jvp(f, (x,), (v,))[1], np.sum(np.real(same)), rtol=1e-5)
    np.testing.assert_allclose(linearize(f, x)[1](v), np.sum(np.real(same)), rtol=1e-5)
    assert hvp(f)(x, v).dtype == x.dtype
