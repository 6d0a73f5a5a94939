"""What has no rule says so, with the user's line and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import RuleMissingError, TraceError, grad, jvp, primitive
from ebbtide.testing import check_grads


def into_plain(x):
    """Write into a plain array."""
    target = np.zeros((3, 4))
    np.copyto(target, x)
    return target


# (function of an array of shape (3, 4), what the message says)
REFUSED = (
    (lambda x: np.setxor1d(x[0], x[1]), r"no derivative rule for numpy\.setxor1d.*ebbtide\.primitive"),
    (np.arctan2.accumulate, r"no derivative rule for arctan2\.accumulate"),
    (lambda x: np.linalg.qr(x.T, "complete")[0], r"4 x 3 matrices with mode='complete'.*mode='reduced'"),
    (lambda x: np.linalg.pinv(x, np.array([1e-9, 1e-8])), r"rcond= has to be a number"),
    (lambda x: np.sort(x, order="a"), r"np\.sort.*'order'.*stop_gradient"),
    (lambda x: np.unwrap(np.ones(3), period=x[0, 1]), r"np\.zeros_like\(x\)"),
    (lambda x: np.histogram(x, "auto", weights=x + x), r"np\.histogram with weights="),
    (lambda x: np.setdiff1d(x[0], x[1])[0], r"no derivative rule for numpy\.setdiff1d"),
    (lambda x: np.cross(x, x), r"vectors of 3 elements"),
    (lambda x: np.convolve(x[0], x[1], "wide"), r"mode='wide'"),
    (lambda x: np.interp(0.3, [0.0, 1.0], [1.0, 2.0], period=x[0, 1]), r"cannot become a plain one"),
    (lambda x: np.multiply.at(x * 1j, [0, 0], 2.0), r"np\.multiply\.at of complex numbers"),
    (lambda x: np.choose(x[0], [x[1]] * 4), r"np\.choose wants integers"),
    (lambda x: np.einsum(",".join(["ij"] * 9), *[x] * 9), r"more than 8 traced operands"),
    (lambda x: np.pad(x, 1, "empty"), r"mode='empty'"),
    (lambda x: np.pad(x, 1, lambda *args: None), r"np\.pad.*has no derivative rule"),
    (lambda x: np.pad(np.ones(3), 1, constant_values=np.sum(x)), r"cannot become a plain one"),
    (lambda x: np.reshape(x, -1, order="A"), r"order='C' or order='F'"),
    (lambda x: np.ravel(x, order="K"), r"order='C' or order='F'"),
    (lambda x: np.sin(x, where=x > 0), r"np\.where\(condition"),
    (lambda x: x[x], r"stop_gradient\(index\)"),
    (into_plain, r"np\.zeros_like\(x\)"),
)


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_refusal(function, message, mode):
    """A function or an argument without a rule raises an error that says what to do instead."""
    x = np.arange(12.0).reshape(3, 4)
    run = {"rev": lambda: grad(lambda x: np.sum(function(x)))(x), "fwd": lambda: jvp(function, (x,), (x,))}[mode]
    with pytest.raises(TraceError, match=message) as caught:
        run()
    assert "test_refusals.py:" in str(caught.value)
    assert isinstance(caught.value, RuleMissingError) == ("no derivative rule for" in message)


def test_wrong_shapes_raise_as_in_numpy():
    """Operands that do not fit together are ValueErrors, as in NumPy."""
    for function in (
        lambda x: np.reshape(x, (5, 5)),
        lambda x: np.concatenate([x, x[0]]),
        lambda x: np.stack([x, x[0]]),
        lambda x: np.split(x, 2)[0],
        lambda x: np.squeeze(x, 0),
        lambda x: x + np.ones(5),
        lambda x: np.tensordot(x, x, 1),
        lambda x: np.diag(x[None]),
        lambda x: np.max(x, where=x > 0),
        lambda x: np.block([x, [x]]),
        lambda x: np.block([[x], x]),
    ):
        with pytest.raises(ValueError):
            grad(lambda x, function=function: np.sum(function(x)))(np.ones((3, 4)))


def wrong(factor):
    """Return a function whose derivatives are those of another one."""
    return primitive(
        lambda x: x**3, vjp=(lambda g, x: g * 3 * x**2 * factor[1],), jvp=(lambda t, x: t * 3 * x**2 * factor[0],)
    )


@pytest.mark.parametrize(
    ("factor", "modes", "message"),
    [
        ((1.001, 1.0), ("fwd", "rev"), r"^jvp: output 0"),
        ((1.0, 1.001), ("fwd", "rev"), r"^vjp: a random cotangent"),
        ((1.0, 1.001), ("rev",), r"^vjp: a random cotangent"),
        ((1.0, 1.0 + 1e-8), ("fwd", "rev"), r"^vjp against jvp"),
    ],
)
def test_check_grads_finds_wrong_derivatives(factor, modes, message):
    """A derivative that is wrong in one mode is found, with both numbers; the dot-product test finds the smallest."""
    with pytest.raises(AssertionError, match=message) as caught:
        check_grads(wrong(factor), np.array([1.0, 2.0]), modes=modes)
    assert "the tolerance is" in str(caught.value)


def test_check_grads_finds_wrong_second_order():
    """An error that first order does not see is found at second order, and is said to be of it."""
    squares = primitive(lambda x: x**2, vjp=(lambda g, x: g * hidden(x),), jvp=(lambda t, x: t * hidden(x),))
    hidden = primitive(lambda x: 2 * x, vjp=(lambda g: g * 3,), jvp=(lambda t: t * 3,))
    check_grads(squares, 2.0, order=1)
    with pytest.raises(AssertionError, match=r"^jvp, then jvp: output 0"):
        check_grads(squares, 2.0)
    with pytest.raises(ValueError, match="modes="):
        check_grads(squares, 2.0, modes=("forward",))
