"""Who owns a cotangent: nothing is written that is not ours, and nothing of ours is handed out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ebbtide
from ebbtide import grad, value_and_grad, vjp

# Larger and smaller than the blocks in which large arrays are worked on.
SIZES = [7, 40_000]
both = ebbtide.primitive(lambda x, y: x + y, vjp=(lambda g: g, lambda g: g))
same = ebbtide.primitive(lambda x: x, vjp=(lambda g: g,))


def alias(x):
    """Use an array under two names."""
    z = x
    return z + x * z


def data(n, count=1):
    """Return arrays of normal numbers."""
    rng = np.random.default_rng(n)
    arrays = [rng.standard_normal(n) for _ in range(count)]
    return arrays[0] if count == 1 else arrays


def assert_apart(*arrays):
    """Fail if two of the arrays share memory, or one is read-only."""
    for a, b in itertools.combinations(arrays, 2):
        assert not np.shares_memory(a, b)


FUNCTIONS = {
    "own cotangent for two operands": (lambda x, y: both(x, y) * 3.0, lambda x, y: (3.0, 3.0)),
    "own cotangent for one operand twice": (lambda x, y: both(x, x) + y, lambda x, y: (2.0, 1.0)),
    "own cotangent used again": (lambda x, y: both(x, y) * x + both(y, x), lambda x, y: (2 * x + y + 1, x + 1)),
    "sum": (lambda x, y: x + y, lambda x, y: (1.0, 1.0)),
    "x + x": (lambda x, y: x + x + y, lambda x, y: (2.0, 1.0)),
    "alias by name": (lambda x, y: alias(x) + y, lambda x, y: (1 + 2 * x, 1.0)),
    "identity": (lambda x, y: same(x) + same(same(y)), lambda x, y: (1.0, 1.0)),
    "identity, then product": (lambda x, y: same(x) * same(x) * y, lambda x, y: (2 * x * y, x * x)),
    "difference": (lambda x, y: x - y, lambda x, y: (1.0, -1.0)),
    "reversed": (lambda x, y: x[::-1] + y[::-1], lambda x, y: (1.0, 1.0)),
    "copy": (lambda x, y: x.copy() + np.positive(y), lambda x, y: (1.0, 1.0)),
    "reshaped": (lambda x, y: (x.reshape(1, -1) + y.reshape(1, -1)).reshape(-1), lambda x, y: (1.0, 1.0)),
    "halves": (
        lambda x, y: np.concatenate([x[: x.size // 2], y[x.size // 2 :]]),
        lambda x, y: (np.arange(x.size) < x.size // 2, np.arange(x.size) >= x.size // 2),
    ),
}


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_arrays_of_their_own(name, n):
    """Gradients alias no input, no seed, no value, not each other, and can be written."""
    f, expected = FUNCTIONS[name]
    x, y = data(n, 2)
    before = x.copy(), y.copy()
    # The seed of a pullback, a sum's broadcast seed, and a cotangent that more than one operation passes on.
    value, pullback = vjp(f, x, y)
    seed = np.ones(n)
    a, b = pullback(seed)
    c, d = grad(lambda x, y: np.sum(f(x, y)), (0, 1))(x, y)
    assert_apart(a, b, c, d, seed, x, y)
    assert_apart(a, b, seed, value)
    for result, want in ((a, 0), (b, 1), (c, 0), (d, 1)):
        assert np.allclose(result, expected(x, y)[want], rtol=1e-13, atol=1e-13)
        assert result.flags.writeable
        assert result.flags.c_contiguous
        assert result.base is None
    assert np.array_equal(seed, np.ones(n))
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_that_is_written_changes_nothing(name, n):
    """What a user writes into gradients and seeds is seen by no other result, also of a retained pullback."""
    f, expected = FUNCTIONS[name]
    x, y = data(n, 2)
    _, pullback = vjp(f, x, y, retain=True)
    seed = np.ones(n)
    first = pullback(seed)
    first[0][...] = np.nan
    seed[...] = 1.0
    assert np.allclose(first[1], expected(x, y)[1], rtol=1e-13, atol=1e-13)
    second = pullback(seed)
    assert np.allclose(second[0], expected(x, y)[0], rtol=1e-13, atol=1e-13)
    first[1][...] = np.nan
    seed[...] = np.nan
    assert np.allclose(second[1], expected(x, y)[1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_read_only_arrays(name, n):
    """Read-only inputs and seeds, and broadcast seeds, are used and not written."""
    f, expected = FUNCTIONS[name]
    x, y = data(n, 2)
    x.flags.writeable = y.flags.writeable = False
    for seed in (np.ones(n), np.broadcast_to(1.0, (n,)), np.ones(2 * n)[::2]):
        seed.flags.writeable = False
        a, b = vjp(f, x, y)[1](seed)
        assert np.allclose(a, expected(x, y)[0], rtol=1e-13, atol=1e-13)
        assert np.allclose(b, expected(x, y)[1], rtol=1e-13, atol=1e-13)
        assert_apart(a, b, seed, x, y)
        assert a.flags.writeable
        assert b.flags.writeable


def test_a_rule_may_keep_what_it_returned():
    """Arrays that a user's rule returned and still holds are never written by later contributions."""
    kept = []

    def rule(g, x):
        kept.append(g * x)
        return kept[-1]

    for n in SIZES:
        kept.clear()
        op = ebbtide.primitive(lambda x: x * x / 2, vjp=(rule,))
        x = data(n)

        def f(x, op=op):
            return np.sum(op(x) * 2.0) + np.sum(op(x)) + np.sum(x * x) + np.sum(op(x) * 3.0)

        grad(f)(x)
        assert len(kept) == 3
        for array, factor in zip(kept, (3.0, 1.0, 2.0), strict=True):
            assert np.allclose(array, factor * x, rtol=1e-13, atol=1e-13)


def test_a_rule_may_return_a_saved_operand():
    """A rule that returns what it saved lends it: the input of the caller is not written."""
    op = ebbtide.primitive(lambda x: np.sum(x * x) / 2, vjp=(lambda g, x: x,))
    for n in SIZES:
        x = data(n)
        before = x.copy()
        gradient = grad(lambda x: op(x) + np.sum(x) + op(x))(x)
        assert np.array_equal(x, before)
        assert np.allclose(gradient, 2 * x + 1, rtol=1e-13, atol=1e-13)
        assert not np.shares_memory(gradient, x)


@pytest.mark.parametrize("shape", [(), (5,), (200, 300)])
@pytest.mark.parametrize("uses", [1, 2, 3, 10, 57])
def test_fan_out_is_summed_as_by_hand(uses, shape):
    """Contributions are added in descending order of the operations, one by one: bit for bit the sum by hand."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal(shape)
    factors = [rng.standard_normal(shape) for _ in range(uses)]

    def f(x):
        h = x * 1.0
        return sum(np.sum(h * c) for c in factors)

    total = factors[-1] * np.ones(shape)
    for c in factors[-2::-1]:
        total = total + c
    assert np.array_equal(grad(f)(x), total)


@pytest.mark.parametrize("shape", [(3, 4), (150, 200)])
def test_mixed_fan_out_is_summed_as_by_hand(shape):
    """Fresh, passed-on and borrowed contributions to one value give the bits of a sum of copies."""
    x = np.random.default_rng(9).standard_normal(shape)

    def f(x):
        h = np.sin(x)
        return np.sum(h * h) + np.sum(h) + np.sum(both(h, h)) + np.sum(h.T) + np.sum(np.exp(h)) + np.sum(h[1:, ::2])

    h = np.sin(x)
    last = np.zeros(shape)
    last[1:, ::2] += 1.0
    total = last + np.exp(h)
    for term in (1.0, 1.0, 1.0, 1.0, h, h):
        total = total + term
    assert np.allclose(grad(f)(x), total * np.cos(x), rtol=4e-16 * 8, atol=1e-15)
    assert np.array_equal(grad(f)(x), grad(f)(x))


def test_outputs_that_are_inputs():
    """A function that returns its arguments, or one value twice, has gradients that alias nothing."""
    x = data(9)
    value, pullback = vjp(lambda x: (x, x, x[2:]), x)
    seeds = (np.ones(9), 2 * np.ones(9), np.ones(7))
    (g,) = pullback(seeds)
    assert np.array_equal(g, np.r_[3.0, 3.0, 4 * np.ones(7)])
    assert_apart(g, *seeds, x)
    assert np.array_equal(seeds[0], np.ones(9))
    assert np.array_equal(value[0], x)


def test_one_seed_for_several_outputs():
    """The same array given as the cotangent of several outputs is read only."""
    seed = np.ones(40_000)
    x = data(40_000)
    a, b = vjp(lambda x, y: (x * 2.0, y, x), x, x)[1]((seed, seed, seed))
    assert np.array_equal(seed, np.ones(40_000))
    assert np.array_equal(a, 3 * seed)
    assert np.array_equal(b, seed)
    assert_apart(a, b, seed, x)


def test_the_same_array_for_two_arguments():
    """One array passed twice has two gradients, each of its own."""
    x = data(12)
    a, b = grad(lambda x, y: np.sum(x * y + x), (0, 1))(x, x)
    assert np.array_equal(a, x + 1)
    assert np.array_equal(b, x)
    assert_apart(a, b, x)


def test_arguments_are_not_changed_by_writes():
    """A function that writes into its argument changes its traced copy and not the caller's array."""
    x = data(6)
    before = x.copy()

    def f(x):
        x[0] = 3.0
        x *= 2.0
        x[1:] += x[:-1]
        np.multiply(x, 2.0, out=x)
        return np.sum(x * x)

    value, gradient = value_and_grad(f)(x)
    assert np.array_equal(x, before)
    plain = before.copy()
    assert value == f(plain)
    assert gradient[0] == 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_gradients_have_the_type_of_their_input(dtype):
    """Contributions of other dtypes are cast: the gradient has the dtype and shape of the input."""
    x = data(5).astype(dtype)
    constants = np.arange(5.0)

    def f(x):
        terms = np.sum(np.abs(x * constants)) + np.sum(np.real(x)) + np.sum(np.abs(x.astype(np.complex128)))
        return terms + np.sum(np.abs(x[None, :] * np.ones((3, 1))))

    gradient = grad(f)(x)
    assert gradient.dtype == dtype
    assert gradient.shape == x.shape
