"""`check_rule` passes what is right, and says of each defect of a rule what it is."""

from __future__ import annotations

import numpy as np
import pytest
from tests import fields

from ebbtide import jit, primitive
from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.kinds import linear
from ebbtide.arrays.primitive import FRESH, PASSED
from ebbtide.testing import check_rule
from ebbtide.testing.operations import operations_of

X = np.array([0.5, -1.25, 2.0])
Y = np.array([1.5, 0.75, -0.5])


def product(x, y):
    """Multiply."""
    return x * y


RULES = {"vjp": (lambda g, y: g * y, lambda g, x: g * x), "jvp": (lambda t, y: t * y, lambda t, x: t * x)}


def cube(x):
    """Return the third power."""
    return x**3


def exponential(x):
    """Return the exponential; NumPy's own has a parameter `out`."""
    return np.exp(x)


def net(w, x):
    """Return what a small net gives."""
    return np.sum(np.tanh(x @ w["a"]) * w["b"]) + np.max(x)


RIGHT = {
    "both modes": (primitive(product, **RULES), (X, Y)),
    "reverse only": (primitive(product, RULES["vjp"]), (X, Y)),
    "forward only": (primitive(product, jvp=RULES["jvp"]), (X, Y)),
    "one operand": (primitive(product, (lambda g, y: g * y, None), (lambda t, y: t * y, None)), (X, 3)),
    "single": (primitive(cube, lambda g, x: g * 3 * x**2, lambda t, x: t * 3 * x**2), (X.astype(np.float32),)),
    "complex": (primitive(cube, lambda g, x: g * 3 * x**2, lambda t, x: t * 3 * x**2), (X + 1j,)),
    "output": (primitive(exponential, lambda g, out: g * out), (X,)),
    "members": (primitive(product, **RULES, batch=lambda mapped, x, y: x * y), (X, Y)),
    "far": (primitive(cube, lambda g, x: g * 3 * x**2), (X * 1e12,)),
    "far, forward only": (primitive(product, jvp=RULES["jvp"]), (X * 1e9, Y * 1e12)),
    "numbers": (primitive(cube, lambda g, x: g * 3 * x**2), (np.float64(2.0),)),
    "vectors": (lambda v, w: fields.sine(fields.product(v, w)), (fields.random_field(0), fields.random_field(1))),
    "containers": (net, ({"a": X.reshape(3, 1), "b": Y[:1]}, np.outer(Y, X))),
    "a ufunc": (np.arctan2, (X, Y)),
    "a program": (jit(lambda x: np.sin(x) * x), (X,)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_rules(name):
    """Right rules pass, of one mode or of both, of users and of the house."""
    function, args = RIGHT[name]
    check_rule(function, *args)


def spoils(g, x):
    """Write the result into the cotangent."""
    return np.multiply(g, 2 * x, out=g)


def clears(g, x):
    """Write into what it saves."""
    x *= 2
    return g * x


def doubles(x):
    """Write into its argument."""
    x *= 2
    return x * 1.0



def square(x):
    """Return the square."""
    return x * x


def negative(x):
    """Return the other sign."""
    return -x


def each(x):
    """Do for all members what is done for one."""
    return x + 0


WRONG = {
    "dtype": (primitive(square, lambda g, x: (g * 2 * x).astype(np.float64)), "float64.*has to be of type float32"),
    "shape": (primitive(square, lambda g, x: np.sum(g * 2 * x)), "cotangent that square returns for operand 0"),
    "number": (primitive(square, lambda g, x: g * x), "vjp against finite differences: the derivative is"),
    "sign": (primitive(square, lambda g, x: g * 2 * x, lambda t, x: -2 * t * x), "vjp against jvp, the dot-product"),
    "tangent": (primitive(square, jvp=lambda t, x: t * x), "jvp against finite differences"),
    "abs": (primitive(square, lambda g, x: g * 2 * np.abs(x)), "vjp against finite differences"),
    "needless": (primitive(negative, lambda g, x: -g + np.zeros(x.shape, x.dtype)), "saves 'x' for the cotangent"),
    "needless output": (primitive(square, lambda g, x, out: g * 2 * x), "saves 'out' for the cotangent of operand 0"),
    "spoils": (primitive(square, spoils), "operand 0 writes into its cotangent or into a saved value"),
    "clears": (primitive(square, clears), "operand 0 writes into its cotangent or into a saved value"),
    "doubles": (primitive(doubles, lambda g: g * 2), "doubles changed an argument"),
    "members": (
        primitive(square, lambda g, x: g * 2 * x, batch=lambda mapped, x: x[::-1] ** 2),
        "square under vmap, member 0",
    ),
    "members of a rule": (
        primitive(square, lambda g, x: g * (2 if isinstance(x, np.ndarray) else 3) * x, batch=lambda mapped, x: x**2),
        "square: vjp under vmap, member 0",
    ),
    "type": (
        linear(np.negative, lambda g, kind: -g, infer=lambda kind: ArrayType(kind.shape, np.dtype(float)), batch=each),
        "What negative says without data",
    ),
    "ownership": (
        linear(lambda x: x + 0, lambda g, kind: g, infer=lambda kind: kind, batch=each, result=FRESH, name="same"),
        "same returns for operand 0 is declared fresh",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules(name):
    """What is wrong with a rule is said, with the operation and the operand."""
    function, message = WRONG[name]
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match=message):
        check_rule(function, X.astype(np.float32).copy())


def test_what_is_passed_on_is_not_fresh():
    """A rule that may pass on its cotangent says so, and is right."""
    copied = linear(lambda x: x + 0, lambda g, kind: g, infer=lambda kind: kind, batch=each, result=PASSED, name="same")
    check_rule(copied, X)


def test_nothing_to_check():
    """A function without operations on its arguments has no rule that could be checked."""
    with pytest.raises(ValueError, match="does no operation on its arguments"):
        check_rule(lambda x: 1.0, X)


def test_operations():
    """The operations of a function are listed in their order, with operands, parameters and results."""
    first, second = operations_of(lambda x: np.sum(np.sin(x), axis=0), [X])
    assert (first.primitive.name, second.primitive.name) == ("sin", "sum")
    assert first.values[0] is X
    assert np.array_equal(second.values[0], first.out)
    assert second.params["axis"] == (0,)
    assert second.out == np.sum(np.sin(X))
