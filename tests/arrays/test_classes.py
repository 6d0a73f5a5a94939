"""Arrays of classes that compute in their own way: their derivatives would be those of plain arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import TraceError, grad, hvp, jacobian, jit, jvp, linearize, value_and_grad, vjp, vmap
from ebbtide.optimize import Control


def square(x):
    """A functional of a vector or a matrix."""
    return np.sum(x**2)


def written(x, value):
    """The sum of an array into which a value was written."""
    made = 2.0 * x
    made[...] = value
    return np.sum(made * x)


X = np.arange(4.0).reshape(2, 2)
MASKED = np.ma.masked_less(X, 1.0)
KINDS = {
    "masked": (MASKED, r"masked array, whose mask would be lost.*x\.filled\(0\.0\).*np\.where\(mask, 0\.0, y\)"),
    "all there": (np.ma.array(X), "masked array"),
    "matrix": (X.view(np.matrix), r"np\.matrix, whose `\*` is a product of matrices.*np\.asarray\(x\).*`@`"),
}
ARGUMENTS = {
    "grad": grad(square),
    "container": lambda a: value_and_grad(lambda d: square(d["a"][0]))({"a": [a]}),
    "vjp": lambda a: vjp(square, a),
    "cotangent": vjp(np.sin, X, retain=True)[1],
    "jvp": lambda a: jvp(square, (a,), (X,)),
    "tangent": lambda a: jvp(square, (X,), (a,)),
    "hvp": lambda a: hvp(square)(a, X),
    "jacobian": jacobian(np.sin),
    "linearize": lambda a: linearize(square, a),
    "vmap": vmap(np.sin),
    "jit": jit(square),
    "control": Control,
}
OPERANDS = {
    "times": lambda x, a: np.sum(x * a),
    "minus": lambda x, a: np.sum(np.subtract(a, x)),
    "matmul": lambda x, a: np.sum(x @ a),
    "from the left": lambda x, a: np.sum(a @ x),
    "dot": lambda x, a: np.sum(np.dot(a, x)),
    "method": lambda x, a: np.sum(x.dot(a)),
    "where": lambda x, a: np.sum(np.where(X > 1.0, x, a)),
    "condition": lambda x, a: np.sum(np.where(a > 1.0, x, 0.0)),
    "comparison": lambda x, a: np.sum(x * (x > a)),
    "join": lambda x, a: np.sum(np.concatenate([x, a])),
    "einsum": lambda x, a: np.einsum("ij,ij", x, a),
    "write": written,
}


@pytest.mark.parametrize(("array", "message"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("call", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_other_classes(call, array, message):
    """No transform takes a masked array or a matrix for a plain one."""
    with pytest.raises(TraceError, match=message):
        call(array)


@pytest.mark.parametrize(("array", "message"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("f", OPERANDS.values(), ids=OPERANDS)
def test_operands_of_other_classes(f, array, message):
    """Nor does an operation on a traced array, in any mode; the error names the user's line."""
    for call in (lambda g: grad(g)(X), lambda g: jvp(g, (X,), (X,)), lambda g: jit(g)(X)):
        with pytest.raises(TraceError, match=message) as caught:
            call(lambda x: f(x, array))
        assert "test_classes.py:" in str(caught.value)


# Where an array of Python's objects may stand: what is compared has no derivative, and a write takes the numbers.
OF_NUMBERS = [name for name in OPERANDS if name not in ("condition", "comparison", "write")]


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("shape", [(2, 2), (2,), ()], ids=str)
def test_operands_of_objects(name, shape):
    """Where it was no error some results were no arrays, for which nobody was prepared."""
    x = np.arange(4.0).reshape(2, 2) if len(shape) == 2 else np.arange(1.0, 3.0)
    array = np.full(shape, 2.0, dtype=object)
    f = {"where": lambda x, a: np.sum(np.where(x > 1.0, x, a)), "einsum": lambda x, a: np.einsum("...,...", x, a)}
    function = f.get(name, OPERANDS[name])
    if not shape and name in ("matmul", "from the left", "join"):
        x, array = x[:1], np.full(1, 2.0, dtype=object)
    for call in (lambda g: grad(g)(x), lambda g: jvp(g, (x,), (x,)), lambda g: jit(g)(x), lambda g: vmap(g)(x[None])):
        with pytest.raises(TraceError, match=r"is an array of the type object at .*test_classes\.py:.*x\.astype\(flo"):
            call(lambda x: np.sum(function(x, array)))


@pytest.mark.parametrize("product", [lambda x, a: np.sum(x) * a, lambda x, a: a * np.sum(x)], ids=["left", "right"])
def test_one_object_beside_one_number(product):
    """What NumPy makes of both is a float of Python's, which has no dtype."""
    x, one = np.arange(1.0, 3.0), np.array(2.0, dtype=object)
    for call in (lambda g: grad(g)(x), lambda g: jvp(g, (x,), (x,)), lambda g: jit(g)(x), lambda g: vmap(g)(x[None])):
        with pytest.raises(TraceError, match=r"is an array of the type object at .*test_classes\.py:.*x\.astype\(flo"):
            call(lambda x: product(x, one))


def test_what_errors_of_masked_arrays_say_to_write():
    """Filled, and left out by a plain mask, a masked array has the derivative of its own operations."""
    mask = np.ma.getmaskarray(MASKED)

    def f(x):
        return np.sum(np.where(mask, 0.0, x * MASKED.filled(0.0)))

    assert f(X) == np.sum(X * MASKED)
    np.testing.assert_array_equal(grad(f)(X), np.where(mask, 0.0, X))


def test_other_classes_are_plain():
    """Classes that only add to plain arrays are taken as these, and may stay beside traced arrays."""

    class Named(np.ndarray):
        pass

    for array in (X.view(Named), np.rec.array(X)):
        np.testing.assert_array_equal(grad(square)(array), 2.0 * X)
        np.testing.assert_array_equal(grad(lambda x, a=array: np.sum(x * a))(X), X)
    assert grad(lambda x: np.sum(x) * MASKED.sum())(1.0) == 6.0
