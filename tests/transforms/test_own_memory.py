"""Results of transforms inside of others: what is written into one is seen where it is in plain NumPy, nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import checkpoint, elementwise_grad, grad, hvp, jacobian, jit, jvp, linearize, vjp, vmap

X = np.array([1.0, 2.0, 3.0])

# Two arrays that are made of the argument.
INSIDE = {
    "a pullback of the identity": lambda x: (vjp(lambda z: z, x)[1](x)[0], x),
    "one of a transposition": lambda x: (vjp(lambda z: z.T, x)[1](x)[0], x),
    "those of a sum": lambda x: vjp(lambda a, b: a + b, x, x)[1](x),
    "two gradients": lambda x: grad(lambda a, b: np.sum(np.sin(a + b)), argnums=(0, 1))(x, x),
    "two pullbacks": lambda x: [vjp(lambda z: z, x)[1](x)[0] for _ in range(2)],
    "elementwise derivatives": lambda x: (elementwise_grad(lambda z: z * x)(x), x),
    "a Jacobian": lambda x: (jacobian(lambda z: z * x)(x)[0], x),
    "two pushes": lambda x: [linearize(lambda z: z, x)[1](x) for _ in range(2)],
    "a product": lambda x: (hvp(lambda z: 0.5 * np.sum(z * z))(x, x), x),
    "members as they are": vmap(lambda z: (z, z)),
    "members and an argument": lambda x: (vmap(lambda z: z)(x), x),
    "members of two axes": lambda x: (vmap(lambda z: z[::-1])(x.reshape(1, 3))[0], x),
    "the same for all members": lambda x: (vmap(lambda z, y: y, in_axes=(0, None))(x, x)[0], x),
    "a program": jit(lambda x: (x + 1.0, x + 1.0)),
}  # fmt: skip
OUTSIDE = {
    "gradient": lambda f: grad(f)(X),
    "tangent": lambda f: np.array([jvp(f, (X,), (row,))[1] for row in np.eye(3)]),
    "linear": lambda f: np.array([linearize(f, X)[1](row) for row in np.eye(3)]),
    "program": lambda f: jit(grad(f))(X),
    "checkpoint": lambda f: grad(checkpoint(f))(X),
    "members": lambda f: vmap(grad(f))(np.stack([X, X]))[1],
}


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("inside", INSIDE)
def test_writes_into_results_of_transforms(inside, outside):
    """The derivative is that of the function on plain arrays."""
    def f(x):
        one, other = INSIDE[inside](x * 1.0)
        one[0] = one[0] * 5.0
        return np.sum(one * one) + np.sum(other * other)

    steps = 1e-6 * np.eye(3)
    expected = [(f(X + step) - f(X - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(OUTSIDE[outside](f), expected, rtol=1e-6)
