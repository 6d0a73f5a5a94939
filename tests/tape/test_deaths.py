"""Every saved value, at every operation: it is dead before the operation after its last use starts."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.tape.programs import ROWS, make_program

from ebbtide import grad, vjp
from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.primitive import Signature
from ebbtide.tape.saved import SavedValue


class Census:
    """
    Looks, whenever the sweep begins an operation, which saved values are there that no later operation uses.

    The rules of the recorded nodes are replaced by ones that report and then do the same.
    """

    def __init__(self, pullback, lent):
        # Owner of the memory of a saved value -> the last operation that uses it, by descending numbers.
        self.values = {}
        self.started = []
        self.late = []
        self.nodes = 0
        outside = {id(owner_of(array)) for array in lent}
        last = {}
        stack, seen = [node for node in pullback._roots if node is not None], set()
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            stack.extend(node.parents)
            for value in node.saved:
                array = value.value if type(value) is SavedValue else value
                if isinstance(array, np.ndarray) and id(owner_of(array)) not in outside:
                    owner = owner_of(array)
                    last[id(owner)] = weakref.ref(owner), min(node.number, last.get(id(owner), (None, node.number))[1])
            if type(node.signature) is Signature and node.signature.pulls:
                self.nodes += 1
                node.signature = self.reporting(node.signature, node.number)
        self.values = list(last.values())

    def reporting(self, signature, number):
        """Return a signature that does the same and reports."""
        made = object.__new__(Signature)
        for name in Signature.__slots__:
            setattr(made, name, getattr(signature, name))
        made.pulls = self.reported(signature.pulls, number)
        made.turned = signature.turned and self.reported(signature.turned, number)
        return made

    def reported(self, pulls, number):
        """Return pulls that do the same and report."""
        return tuple(
            (
                dataclasses.replace(
                    pull,
                    **{
                        name: self.report(getattr(pull, name), number)
                        for name in ("rule", "derivative", "accumulate")
                        if getattr(pull, name) is not None
                    },
                ),
                *rest,
            )
            for pull, *rest in pulls
        )

    def report(self, function, number):
        """Return a rule that reports before it runs."""

        def reporting(*args):
            if not self.started or self.started[-1] != number:
                self.started.append(number)
                alive = [use for reference, use in self.values if use > number and reference() is not None]
                self.late += [f"operation {number} starts with a value of {use}" for use in alive]
            return function(*args)

        return reporting


def mlp(x, *weights):
    """Layers with a bias, an activation that is used twice, and a mean."""
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        h = x @ w + b
        x = np.maximum(h, 0.1 * h) + np.tanh(h)
    return np.mean((x - 0.5) ** 2)


def rnn(h, w, v, b):
    """A recurrent net, whose state is used by the next step and by the output."""
    total = 0.0
    for _ in range(8):
        h = np.tanh(h @ w + b)
        total = total + np.sum(np.logaddexp(h @ v, 0.0))
    return total


def stencil(u, rate):
    """Burgers' equation by differences, in place."""
    for _ in range(6):
        flux = 0.5 * u * u
        u[1:-1] += rate * (u[2:] - 2 * u[1:-1] + u[:-2])
        u[1:-1] -= 0.1 * (flux[2:] - flux[:-2])
        u[0] = u[-1] * np.exp(-u[1])
    return np.sum(u**3)


def dots(x, z):
    """Multiply from the left again and again."""
    for _ in range(10):
        z = np.dot(x, z)
    return np.sum(z * z)


def elementwise(x, y):
    """Operations that save an operand, their result, both, a mask, and nothing."""
    for _ in range(4):
        x = np.sin(x) * np.exp(-y * y) + np.maximum(x, y)
        y = -np.sqrt(1.0 + y * y) / (2.0 + x)
        x, y = np.where(x > y, x, 0.5 * y), y - 1.0
    return x * y


def arrays(*shapes):
    """Return arrays of normal numbers."""
    rng = np.random.default_rng(len(shapes))
    return [0.3 * rng.standard_normal(shape) for shape in shapes]


# Small arrays go through the sweep's quick way, large ones through blocks and BLAS.
PROGRAMS = {
    "mlp": (mlp, lambda n: arrays((n, n), (n, n), (n,), (n, n), (n,), (n, 3), (3,))),
    "rnn": (rnn, lambda n: arrays((n, n), (n, n), (n, 2), (n,))),
    "stencil": (stencil, lambda n: arrays((n * n,), ())),
    "dots": (dots, lambda n: arrays((n, n), (n, n))),
    "elementwise": (elementwise, lambda n: arrays((n, n), (n, n))),
    "broadcast": (elementwise, lambda n: arrays((n, n), (n, 1))),
}


def census_of(f, args):
    """Run a pullback under a census; return it after some checks of the census itself."""
    value, pullback = vjp(f, *args)
    census = Census(pullback, args)
    cotangent = np.ones_like(value)
    del value
    gc.disable()
    try:
        found = pullback(cotangent)
    finally:
        gc.enable()
    expected = vjp(f, *args)[1](cotangent)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert census.started == sorted(census.started, reverse=True)
    assert [reference for reference, _ in census.values if reference() is not None] == []
    return census


@pytest.mark.parametrize("size", [6, 200])
@pytest.mark.parametrize("name", PROGRAMS)
def test_saved_values_die_at_their_last_use(name, size):
    """No saved value of any operation is there when the operation after its last use starts."""
    f, make = PROGRAMS[name]
    census = census_of(f, make(size))
    assert census.late == []
    assert len(census.values) >= 6, "the census sees nothing"
    assert len(census.started) >= 0.6 * census.nodes


@pytest.mark.parametrize("columns", [3, 400])
@pytest.mark.parametrize("seed", range(50))
def test_saved_values_of_random_programs(seed, columns):
    """Nor in random programs of operations of all kinds."""
    rng = np.random.default_rng(seed)
    choices = [(int(k) % 7, int(a), int(b), int(w)) for k, a, b, w in rng.integers(0, 200, (12, 4))]
    census = census_of(make_program(choices), arrays((ROWS, columns)))
    assert census.late == []
    assert len(census.values) >= 4


def test_the_census_sees_what_lives_too_long():
    """A value that somebody else keeps is reported at the operation after its last use, and at all that follow."""
    (x,) = arrays((5,))
    value, pullback = vjp(lambda x: np.exp(np.sin(np.sin(np.sin(x) * 2.0) * 2.0)), x)
    census = Census(pullback, [x, value])
    kept = [reference() for reference, _ in census.values]
    pullback(np.ones(5))
    assert len(kept) == 2
    # The sines are the operations 2, 4 and 6; the products between them save nothing.
    expected = [f"operation {n} starts with a value of {use}" for n in (5, 4, 3, 2) for use in (6, 4) if use > n]
    assert census.late == expected


@pytest.mark.parametrize("left", [False, True])
def test_the_cotangent_of_a_leaf_comes_first(left):
    """In a chain of layers what a weight's pull takes is gone before the next cotangent is made, on either side."""
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((1000, 100)), [rng.standard_normal((100, 100)) for _ in range(8)]

    def chain(weights):
        y = x.T if left else x
        for w in weights:
            y = w @ y if left else y @ w
        return np.sum(y)

    gradient = grad(chain)
    gradient(weights)
    # Seven values between the layers, of which one is gone where there are two cotangents; and eight gradients.
    assert peak_bytes(lambda: gradient(weights)) < 8.1 * x.nbytes + 2 * weights[0].nbytes
