"""What NumPy's protocols cannot see of a traced array: an error with the user's line and the call to use."""

from __future__ import annotations

import math
import operator
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from ebbtide import EbbtideError, TraceError, grad, jit, jvp, stop_gradient, value_and_grad


def assign_element(x, dtype=float):
    """Write a traced value into an element of a plain array."""
    plain = np.zeros(3, dtype)
    plain[0] = x[0]
    return np.sum(plain)


def assign_slice(x):
    """Write traced values into a plain array."""
    plain = np.zeros(3)
    plain[:] = x
    return np.sum(plain)


def add_in_place(x):
    """Add traced values to a plain array."""
    plain = np.zeros(3)
    plain += x
    return np.sum(plain)


def set_shape(x):
    """Set a shape."""
    x.shape = (3, 1)
    return np.sum(x)


ARRAY, CONSTANT, LIKE = r"ebbtide\.numpy\.array", r"ebbtide\.stop_gradient\(", r"np\.zeros_like\("
REFUSED = {
    "array": (lambda x: np.sum(np.array([x[0], x[1]])), ARRAY),
    "nested array": (lambda x: np.sum(np.array([[x[0], 1.0], [x[1], 2.0]])), ARRAY),
    "list in a NumPy function": (lambda x: np.sum(np.diag([x[0], x[1]])), ARRAY),
    "concatenation by index": (lambda x: np.sum(np.r_[x[:1], x]), ARRAY),
    "asarray": (lambda x: np.sum(np.asarray(x)), ARRAY),
    "full": (lambda x: np.sum(np.full(3, x[0])), ARRAY),
    "SciPy": (lambda x: np.sum(scipy.linalg.solve(np.eye(3), x)), r"ebbtide\.primitive\(fun, vjp=...\)"),
    "float": (lambda x: float(x[0]), r"float\(ebbtide\.stop_gradient\(x\)\)"),
    "float64": (lambda x: np.float64(x[0]), CONSTANT),
    "complex": (lambda x: complex(x[0]).real, CONSTANT),
    "item": (lambda x: x[0].item(), r"Write x, .*ebbtide\.stop_gradient\(x\)\.item\(\)"),
    "item of": (lambda x: x.item(2), r"Write x\[2\]"),
    "tolist": (lambda x: sum(x.tolist()), r"Write list\(x\)"),
    "math": (lambda x: math.sin(x[0]), r"write np\.sin\(x\)"),
    "slice": (assign_slice, LIKE),
    "complex element": (lambda x: assign_element(x, complex).real, LIKE),
    "in place": (add_in_place, LIKE),
    "out": (lambda x: np.sum(np.dot(np.eye(3), x, out=np.zeros(3))), LIKE),
    "out of ufunc": (lambda x: np.sum(np.sin(x, out=np.zeros(3))), LIKE),
    "shape": (set_shape, r"x = x\.reshape\(\(3, 1\)\)"),
}


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize(("f", "advice"), REFUSED.values(), ids=REFUSED)
def test_what_the_protocols_cannot_see(f, advice, mode):
    """What would lose the derivative raises, names the user's line, and says what to write."""
    x = np.ones(3)
    with pytest.raises(TraceError, match=advice) as caught:
        grad(f)(x) if mode == "rev" else jvp(f, (x,), (x,))
    assert "test_misuse.py:" in str(caught.value)


def test_element_of_plain_array():
    """NumPy makes an error of its own of that for an element of a plain array; ours, with the advice, is its cause."""
    # NumPy asks for float(x), and of any exception that comes out makes this one if the element can be indexed.
    with pytest.raises(ValueError, match="setting an array element with a sequence") as caught:
        grad(assign_element)(np.ones(3))
    assert isinstance(caught.value.__cause__, TraceError)
    assert "np.zeros_like(" in str(caught.value.__cause__)
    assert f"{__file__}:{assign_element.__code__.co_firstlineno + 3}" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tobytes", r"stop_gradient\(x\)\.tobytes"),
        ("byteswap", r"functions of NumPy"),
        ("resize", r"np\.resize\(x\)"),
    ],
)
def test_attributes_that_are_missing(name, advice):
    """An attribute of NumPy's arrays that there is not is an AttributeError with the user's line and advice."""
    with pytest.raises(AttributeError, match=advice) as caught:
        grad(lambda x: getattr(x, name)())(np.ones(3))
    assert "test_misuse.py:" in str(caught.value)


def test_attributes_of_nothing():
    """A name that NumPy's arrays have not either is an ordinary AttributeError, so that `hasattr` works."""
    with pytest.raises(AttributeError, match=r"^'TracedArray' object has no attribute 'grad'$"):
        grad(lambda x: x.grad)(1.0)
    assert grad(lambda x: x * hasattr(x, "toarray") + x * hasattr(x, "sum"))(1.0) == 1.0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x[:1].__iadd__(x), ValueError, r"cannot change the shape \(1,\) to \(3,\)"),
        (lambda x: x.__imul__(1j), TypeError, "cannot turn float64 into complex128"),
        (lambda x: len(x[0]), TypeError, r"len\(\) of an array without axes"),
        (lambda x: list(x[0]), TypeError, "iteration over an array without axes"),
        (lambda x: np.diagonal(x.reshape(1, 3)).fill(1.0), TraceError, "read-only"),
    ],
    ids=["shape", "dtype", "len", "iter", "read-only"],
)
def test_errors_name_the_line(change, error, message):
    """An operation that NumPy refuses too is refused with the user's line."""
    with pytest.raises(error, match=message) as caught:
        grad(lambda x: np.sum(change(x)))(np.ones(3))
    assert f"{__file__}:" in str(caught.value)


class OwnOperators:
    """A type that wants its own operators asked, as it tells NumPy's arrays."""

    __array_ufunc__ = None

    def __eq__(self, other: object) -> Any:
        return "its own", type(other) is not np.ndarray

    def __hash__(self) -> int:
        return 0

    __lt__ = __le__ = __ne__ = __gt__ = __ge__ = __eq__


@pytest.mark.parametrize("transform", [grad, jit], ids=["grad", "jit"])
@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
def test_comparisons_with_what_is_no_number(compare, transform):
    """With None and text they are NumPy's; a type that wants its own operators gets them, and the traced array."""
    plain, found = np.array([1.0, 2.0]), []

    def answer(x: Any, other: Any) -> Any:
        try:
            return compare(x, other)
        except TypeError:
            return "no order"

    others = (None, "text", b"bytes", OwnOperators())
    transform(lambda x: (found.extend([answer(x, other) for other in others]), np.sum(x))[1])(plain)
    for got, other in zip(found, others[:3], strict=False):
        expected = answer(plain, other)
        assert type(got) is type(expected)
        assert np.array_equal(got, expected)
    assert found[3] == ("its own", True)


def test_numbers_without_a_derivative():
    """What has a derivative of zero, or is text, may be taken: truth, whole numbers, and formatted values."""
    texts = []

    def f(x):
        texts.append(f"{x[0]:.2f} {x[1]} {x.sum():6.1e}")
        counts = np.zeros(2, int)
        counts[0] = x[1]
        steps = int(x[1]) + counts[0]
        return x[0] * steps if x[0] > 0 and x[1] else x[1]

    assert np.array_equal(grad(f)(np.array([1.234, 2.9])), [4.0, 0.0])
    assert texts == ["1.23 TracedArray(np.float64(2.9)) 4.1e+00"]


def test_a_copy_by_pickle_is_refused():
    """In forward mode it was a constant: a derivative of zero without a word, and errors of pickle's elsewhere."""

    def f(x):
        return np.sum(pickle.loads(pickle.dumps([x]))[0] ** 2)

    x = np.ones(3)
    for derivative in (grad(f), lambda x: jvp(f, (x,), (x,)), jit(f)):
        with pytest.raises(TraceError, match=r"cannot be pickled \(at .*test_misuse.py:\d+\).*x.copy\(\)"):
            derivative(x)
    assert np.array_equal(grad(lambda x: np.sum(x * pickle.loads(pickle.dumps(stop_gradient(x)))))(x), x)


def test_python_rounds_traced_numbers_as_numpy_does():
    """`round` has no derivative, as `np.round`; it was an error of Python's without a line."""

    def f(x):
        return np.sum(x) * round(x[0], 1) * round(x[1])

    x = np.array([1.26, 2.5, 3.0])
    value, slope = value_and_grad(f)(x)
    assert value == f(x) == np.sum(x) * 1.3 * 2
    assert np.array_equal(slope, np.full(3, 1.3 * 2))
    assert jvp(f, (x,), (x,)) == (value, np.sum(x) * 1.3 * 2)


def test_advice_is_good():
    """What the messages say to write works, and has the right derivative."""

    def f(x):
        made = np.zeros_like(x)
        made[0] = x[0]
        other = np.zeros(3, like=x)
        other += x
        constant = float(stop_gradient(x[0])) + stop_gradient(x).tolist()[1] + stop_gradient(x[2]).item()
        return (
            np.sum(np.stack([x[0], x[1]])) + np.sum(np.broadcast_to(x[0], (3,))) + np.sin(x[1])
            + np.sum(made) + np.sum(other) * constant + sum(list(x))
        )  # fmt: skip

    expected = [1 + 3 + 1 + 3 + 1, 1 + np.cos(1.0) + 3 + 1, 3 + 1]
    np.testing.assert_allclose(grad(f)(np.ones(3)), expected, rtol=1e-15)
    assert issubclass(TraceError, EbbtideError)
