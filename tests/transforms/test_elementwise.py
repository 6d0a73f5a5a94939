"""Derivatives element by element, of one number, and of holomorphic functions."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import Budget, BudgetError, deriv, elementwise_grad, grad, jacobian, jit, jvp, value_and_grad, vmap
from ebbtide.testing import check_grads

X = np.linspace(0.25, 1.5, 6)
Z = X + 0.5j * X[::-1]


def test_elements():
    """The derivative of each element by its own is the diagonal of the Jacobian, of any order, jitted and not."""
    f = lambda x: np.sin(x) * x
    np.testing.assert_allclose(elementwise_grad(f)(X), np.diag(jacobian(f)(X)), rtol=1e-14)
    np.testing.assert_allclose(elementwise_grad(elementwise_grad(np.sin))(X), -np.sin(X), rtol=1e-14)
    np.testing.assert_allclose(jit(elementwise_grad(np.tanh))(X), np.cosh(X) ** -2, rtol=1e-14)
    np.testing.assert_allclose(vmap(elementwise_grad(np.exp))(X.reshape(2, 3)), np.exp(X).reshape(2, 3), rtol=1e-14)
    check_grads(elementwise_grad(f), X)


def test_elements_of_several_arguments():
    """Several arguments, containers and numbers have derivatives of their own form and dtype, and of the caller's."""
    first, second = elementwise_grad(lambda x, y, k: x * y**k, (0, -2))(X, X + 1, 2)
    assert np.array_equal(first, (X + 1) ** 2)
    np.testing.assert_allclose(second, 2 * X * (X + 1), rtol=1e-15)
    found = elementwise_grad(lambda p: p["a"] * p["b"])({"a": X, "b": X.astype(np.float32)})
    assert (found["a"].dtype, found["b"].dtype) == (np.float64, np.float32)
    assert type(elementwise_grad(np.sin)(0.5)) is np.float64
    assert np.array_equal(elementwise_grad(lambda x: np.ones(6))(X), np.zeros(6))
    ones = elementwise_grad(lambda x: x)(X)
    ones[:] = 0.0  # memory of ours


def test_what_is_not_elementwise():
    """A result of another shape, or a complex one without a promise, is refused with the types."""
    with pytest.raises(TypeError, match=r"argument of type float64\[6\] gives one of type float64"):
        elementwise_grad(np.sum)(X)
    with pytest.raises(TypeError, match="Broadcast the argument before"):
        elementwise_grad(lambda x, y: x + y, (0, 1))(X, 1.0)
    with pytest.raises(TypeError, match="needs a real result"):
        elementwise_grad(lambda x: x * 1j)(X)
    with pytest.raises(TypeError, match="needs a complex result"):
        elementwise_grad(np.abs, holomorphic=True)(Z)
    with pytest.raises(TypeError, match="needs complex arguments"):
        elementwise_grad(lambda x: x * 1j, holomorphic=True)(X)


def test_one_number():
    """The derivative by one number has the form of the outputs, of any order, and for all numbers of a batch."""
    curve = lambda t: {"circle": np.stack([np.cos(t), np.sin(t)]), "height": t * t}
    found = deriv(curve)(0.5)
    np.testing.assert_allclose(found["circle"], [-np.sin(0.5), np.cos(0.5)], rtol=1e-15)
    assert found["height"] == 1.0
    assert deriv(deriv(lambda t: t**3))(2.0) == 12.0
    np.testing.assert_allclose(vmap(deriv(np.sin))(X), np.cos(X), rtol=1e-15)
    assert deriv(lambda a, t, *, k: a * t**k, 1)(3.0, np.float32(2.0), k=2) == 12.0
    assert deriv(np.exp)(1j) == np.exp(1j)
    assert grad(deriv(lambda t: t**4))(2.0) == 48.0


@pytest.mark.parametrize("value", [X, [1.0, 2.0], None])
def test_several_numbers(value):
    """What is no single number is refused with what to use."""
    with pytest.raises(TypeError, match=r"needs one number as argument 0.*jacobian"):
        deriv(np.sin)(value)


def test_integers_have_no_derivative():
    """An integer is refused, in both modes."""
    for transform in (deriv, elementwise_grad):
        with pytest.raises(TypeError, match=r"float"):
            transform(np.sin)(3)


def test_holomorphic():
    """With the promise of a holomorphic function the gradient is its complex derivative, of any order."""
    f = lambda z: np.sum(np.exp(z) * z**2)
    slope = lambda z: np.exp(z) * (z**2 + 2 * z)
    value, found = value_and_grad(f, holomorphic=True)(Z)
    assert value == f(Z)
    np.testing.assert_allclose(found, slope(Z), rtol=1e-14)
    assert grad(f, holomorphic=True)(Z.astype(np.complex64)).dtype == np.complex64
    np.testing.assert_allclose(elementwise_grad(np.sin, holomorphic=True)(Z), np.cos(Z), rtol=1e-14)
    np.testing.assert_allclose(jacobian(np.sin, holomorphic=True)(Z), np.diag(np.cos(Z)), rtol=1e-14)
    number = Z[1]
    second = grad(grad(lambda z: z**4, holomorphic=True), holomorphic=True)(number)
    np.testing.assert_allclose(second, 12 * number**2, rtol=1e-14)
    # The tangent of a holomorphic function is the derivative times the direction.
    np.testing.assert_allclose(jvp(f, [Z], [Z * 1j])[1], np.sum(slope(Z) * Z * 1j), rtol=1e-14)
    check_grads(grad(f, holomorphic=True), Z)


def test_broken_promises():
    """A real result or a real argument is no holomorphic function's, and a complex one needs the promise."""
    with pytest.raises(TypeError, match="needs a function with a complex output"):
        grad(lambda z: np.sum(np.abs(z)), holomorphic=True)(Z)
    with pytest.raises(TypeError, match=r"needs complex arguments, and one is of type float64\[6\]"):
        grad(lambda z: np.sum(z * 1j), holomorphic=True)(X)
    with pytest.raises(TypeError, match="say holomorphic=True if it is"):
        grad(lambda z: np.sum(z * 1j))(Z)


def test_convention_of_complex_numbers():
    """The gradient of a real function f of z = x + iy is df/dx - i df/dy, and so is its sum with a pullback's."""
    f = lambda z: np.sum(np.real(np.sin(z) * np.conj(z)))
    step = 1e-6
    for k in range(Z.size):
        e = np.eye(Z.size)[k] * step
        dx, dy = ((f(Z + d) - f(Z - d)) / (2 * step) for d in (e, 1j * e))
        np.testing.assert_allclose(grad(f)(Z)[k], dx - 1j * dy, rtol=1e-7, atol=1e-8)


def test_budget():
    """The saved values keep within the budget, which is refused where it is too small."""
    x = np.linspace(0, 1, 10_000)
    f = lambda x: np.sin(np.sin(np.sin(x)))
    assert np.array_equal(elementwise_grad(f, budget=Budget("1 MiB"))(x), elementwise_grad(f)(x))
    with pytest.raises(BudgetError):
        elementwise_grad(f, budget=Budget(100_000))(x)
