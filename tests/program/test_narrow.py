"""Products of which a part is read: made of that part alone, with the numbers that they had."""

from __future__ import annotations

import numpy as np
import pytest
from tests.program.test_tracing import bits

from ebbtide import grad, hvp, jit, jvp, trace, vmap
from ebbtide.program.evaluate import evaluate
from ebbtide.program.narrow import narrow_products

A, B = (np.random.default_rng(k).standard_normal((30, 40)[::step]) for k, step in ((0, 1), (1, -1)))


def used_twice(a, b):
    """Read a part of a product, and all of it."""
    product = a @ b
    return product[:, :3] * np.sum(product)


def of_views(a, b):
    """Two parts of products of one operand, and one of what is computed from another product."""
    return np.sin(a @ b)[:, 2:20] + (np.sin(a) @ b)[:, 2:20] * (np.cos(a) @ b)[:, 2:20]


# What a function gives -> the sizes of its products.
PARTS = {
    "columns": (lambda a, b: (a @ b)[:, 5:9], [(30, 40, 4)]),
    "rows": (lambda a, b: (a @ b)[10:], [(20, 40, 30)]),
    "both": (lambda a, b: np.dot(a, b)[-4:, :20] + 1, [(4, 40, 20)]),
    "an operand from outside": (lambda a, b: (a @ B)[:, :2], [(30, 40, 2)]),
    "products of one operand": (of_views, [(30, 40, 30), (30, 40, 18), (30, 40, 18)]),
    "all but little": (lambda a, b: (a @ b)[:, :29], [(30, 40, 30)]),
    "with gaps": (lambda a, b: (a @ b)[:, ::2], [(30, 40, 30)]),
    "turned round": (lambda a, b: (a @ b)[::-1], [(30, 40, 30)]),
    "a row": (lambda a, b: (a @ b)[2], [(30, 40, 30)]),
    "nothing": (lambda a, b: (a @ b)[:, 3:3], [(30, 40, 30)]),
    "indices": (lambda a, b: (a @ b)[:, [1, 2]], [(30, 40, 30)]),
    "used twice": (used_twice, [(30, 40, 30)]),
    "stacks": (lambda a, b: (np.stack([a, a]) @ b)[:, :, :2], []),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_products(name):
    """A product is narrowed where rows or columns next to each other are read, and nothing else of it."""
    f, sizes = PARTS[name]
    program = trace(f, A, B)
    narrowed = narrow_products(program)
    products = [one for one in narrowed.equations if one.name in ("matmul", "dot") and len(one.output.type.shape) == 2]
    assert sizes == [(one.output.type.shape[0], 40, one.output.type.shape[1]) for one in products]
    (found,), wanted = evaluate(narrowed, [A, B]), f(A, B)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    for executor in ("machine", "reference"):
        np.testing.assert_allclose(jit(f, executor=executor)(A, B), wanted, rtol=1e-12, atol=1e-12)
    if name == "products of one operand":
        assert len([one for one in narrowed.equations if one.name == "getitem"]) == 2  # of b once, which two take


def side_by_side(w, x, h):
    """Arrays side by side times weights, as in recurrent nets, whose letters and ones have no derivatives."""
    for _ in range(3):
        h = np.tanh(np.hstack((x, h, np.ones((len(h), 1), h.dtype))) @ w)
    return np.sum(h**2)


@pytest.mark.parametrize("letter", "fd")
def test_gradients_of_arrays_side_by_side(letter):
    """Of the columns those of the hidden units are computed; all derivatives stay right, to second order."""
    random = np.random.default_rng(3)
    w, x, h = [random.standard_normal(shape).astype(letter) for shape in ((169, 40), (60, 128), (60, 40))]
    w *= 0.1
    of_h = grad(side_by_side, (0, 2))
    planned = jit(of_h).program(w, x, h).program
    shapes = [one.output.type.shape for one in planned.equations if one.name in ("matmul", "small_product")]
    assert (60, 40) in shapes
    assert (60, 169) not in shapes
    near = {"rtol": 1e-4, "atol": 1e-4} if letter == "f" else {"rtol": 1e-10, "atol": 1e-12}
    for one, other in zip(jit(of_h)(w, x, h), of_h(w, x, h), strict=True):
        np.testing.assert_allclose(one, other, **near)
    assert bits(jit(of_h, executor="machine")(w, x, h)) == bits(jit(of_h, executor="reference")(w, x, h))
    both = np.stack([h, 2 * h])
    for one, other in zip(jit(vmap(of_h, (None, None, 0)))(w, x, both)[1], both, strict=True):
        np.testing.assert_allclose(one, of_h(w, x, other)[1], **near)

    def of_w(w):
        return side_by_side(w, x, h)

    tangent = random.standard_normal(w.shape).astype(letter)
    change = jit(lambda w: jvp(of_w, (w,), (tangent,))[1])(w)
    np.testing.assert_allclose(change, np.sum(grad(of_w)(w) * tangent), **near)
    np.testing.assert_allclose(jit(hvp(of_w))(w, tangent), hvp(of_w)(w, tangent), **near)
