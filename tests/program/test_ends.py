"""What follows a small product is done with it, in place, and its bits stay those of one operation after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebbtide import grad, jit, nn, vmap
from ebbtide.machine import HAS_SMALL_PRODUCTS, Machine, SmallProduct, small_product
from ebbtide.program.stretches import find_stretches

pytestmark = pytest.mark.skipif(
    not HAS_SMALL_PRODUCTS, reason="the processor has no AVX2, or has AVX-512 for which BLAS has such products itself"
)
# A vector has 8 floats, or 4 doubles.
COLUMNS = [(letter, n) for letter in "fd" for n in (8, 9, 10, 12, 15, 16, 17, 20, 23, 24, 25, 48)]
COLUMNS += [("d", n) for n in (4, 5, 7)]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0]


@pytest.mark.parametrize(("letter", "columns"), COLUMNS)
def test_a_step_has_the_bits_of_three(letter, columns):
    """For all ends of rows and columns, long sums, zeros of both signs, and what is no number."""
    random, item = np.random.default_rng(columns), np.dtype(letter).itemsize
    for rows, inner in ((1, 1), (2, 0), (3, 5), (6, 9), (13, 4), (16, 3), (5, 256), (7, 257), (2, 600)):
        x, y = [random.standard_normal(shape).astype(letter) for shape in ((rows, inner), (inner, columns))]
        added = random.standard_normal(columns).astype(letter)
        added[::4] = np.resize(SPECIAL, added[::4].shape)
        x[rows // 2] = 0.0
        for least in (0.0, -0.0, 0.5, np.nan):
            around, number = np.full((rows, columns + 2), 7, letter), np.array(least, letter)
            with np.errstate(all="ignore"):
                total = small_product(x, y) + added
                larger = np.maximum(total, number)
            arrays = x, y, around[:, 1:-1], added, number
            operands = [(k, 0, letter, one.strides) for k, one in enumerate(arrays[:3])]
            more = (3, 0, letter, (0, item)), (4, 0, letter, (0, 0))
            for end, given, expected in (("add", more[:1], total), ("add, maximum", more, larger)):
                Machine(SmallProduct((rows, inner, columns), tuple(operands), end, given))(*arrays[: 3 + len(given)])
                assert around[:, 1:-1].tobytes() == expected.tobytes(), (rows, inner, end, least)
                assert np.all(around[:, [0, -1]] == 7)


def test_what_no_step_does_is_refused():
    """A result of fewer columns than a vector has, operands of other types, with gaps, or too few of them."""
    each = (0, 0, "d", (64, 8)), (1, 0, "d", (64, 8)), (2, 0, "d", (64, 8))
    row, number = (3, 0, "d", (0, 8)), (4, 0, "d", (0, 0))
    SmallProduct((8, 8, 8), each, "add, maximum", (row, number))
    for sizes, end, more in (
        ((8, 8, 3), "add", (row,)),
        ((8, 8, 8), "add", ((3, 0, "f", (0, 4)),)),
        ((8, 8, 8), "add", ((3, 0, "d", (8, 0)),)),
        ((8, 8, 8), "add", ((3, 0, "d", (64, 8)),)),
        ((8, 8, 8), "add", (row, number)),
        ((8, 8, 8), "add, maximum", (row,)),
        ((8, 8, 8), "add, maximum", (row, row)),
    ):
        with pytest.raises(ValueError, match="after a small product"):
            SmallProduct(sizes, each, end, more)


def ends_of(program: Any) -> list[str]:
    """Return what the small products of a program do after them."""
    return [
        "".join(action.arguments[2:3])
        for stretch in find_stretches(program.program, program.layout, program.memory)
        for action, _ in stretch.actions
        if action.kind == "SmallProduct"
    ]


def with_first_row(x: Any) -> Any:
    """Return what cannot be written where rows are still to be read."""
    return nn.relu(x + x[0])


CASES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "a layer": (lambda x, w, b: nn.relu(x @ w + b), ["add, maximum"]),
    "without the larger": (lambda x, w, b: x @ w + b, ["add"]),
    "another number": (lambda x, w, b: np.maximum(x @ w + b, 0.25), ["add, maximum"]),
    "two layers": (lambda x, w, b: nn.relu(nn.relu(x @ w + b) @ w.T + b), ["add, maximum", "add, maximum"]),
    "more follows": (lambda x, w, b: np.tanh(x @ w + b), [""]),
    "the product is needed": (lambda x, w, b: np.sum(x @ w, 0) + nn.relu(x @ w + b), [""]),
    "one column": (lambda x, w, b: nn.relu(x @ w + b[:1]), [""]),
    "few columns": (lambda x, w, b: nn.relu(x @ w[:, :3] + b[:3]), [""]),
    "a number": (lambda x, w, b: nn.relu(x @ w + 0.5), [""]),
    "backwards": (lambda x, w, b: nn.relu(x @ w + b[::-1]), [""]),
    "its own first row": (lambda x, w, b: with_first_row(x @ w) @ w, [""]),
    "the smaller": (lambda x, w, b: np.minimum(x @ w + b, 0.0), [""]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_programs(case, dtype):
    """Which products have an end, and that the bits of both executors are those of NumPy and the small product."""
    f, expected = CASES[case]
    random = np.random.default_rng(0)
    x, w, b = [random.standard_normal(shape).astype(dtype) for shape in ((30, 12), (12, 12), (12,))]
    planned = jit(f, executor="machine")
    found = planned(x, w, b)
    assert ends_of(planned.program(x, w, b)) == expected
    assert found.tobytes() == np.asarray(jit(f, executor="reference")(x, w, b)).tobytes()
    np.testing.assert_allclose(found, f(x, w, b), rtol=1e-5 if dtype is np.float32 else 1e-12, atol=1e-6)


def test_members_and_gradients():
    """Layers of many networks, each with its own parameters, have ends, and gradients the bits of the reference."""
    random = np.random.default_rng(1)

    def loss(w: Any, b: Any, x: Any) -> Any:
        return np.sum(nn.relu(nn.relu(x @ w + b) @ w + b) ** 2)

    w, b, x = [random.standard_normal(shape).astype(np.float32) for shape in ((5, 16, 16), (5, 16), (5, 20, 16))]
    f = vmap(grad(loss, argnums=(0, 1)))
    planned = jit(f, executor="machine", threads=2)
    found, alone = planned(w, b, x), jit(grad(loss, argnums=(0, 1)), executor="reference")
    # In the second layer the derivative of the square goes on with the larger number.
    assert planned.program(w, b, x).source.count("'add, maximum'") == 1
    for k in range(5):
        assert [one[k].tobytes() for one in found] == [one.tobytes() for one in alone(w[k], b[k], x[k])]


def test_failures():
    """What overflows in a sum after a product is said, with the product's name and the sum's."""
    x, w, b = np.full((20, 9), 1e38, np.float32), np.eye(9, dtype=np.float32), np.full(9, 3e38, np.float32)
    planned = jit(lambda x, w, b: x @ w + b, executor="machine")
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow encountered in matmul, add"):
        planned(x, w, b)
    with np.errstate(over="ignore"):
        assert np.isinf(planned(x, w, b)).all()
