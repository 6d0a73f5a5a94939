"""Handlers of NumPy functions: what they refuse, what they let through, and that none is replaced."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import TraceError, grad
from ebbtide.arrays.registry import HANDLERS, register
from ebbtide.rules.answers import answer, refusal


def test_unknown_arguments_are_refused():
    """An argument that a handler has no parameter for is an error that names function, argument, line and remedy."""
    with pytest.raises(TraceError, match=r"np\.roll .*'shifts'.*stop_gradient\(x\)") as caught:
        grad(lambda x: np.sum(HANDLERS[np.roll](x, shifts=1)))(np.ones(3))
    assert f"At {__file__}:" in str(caught.value)
    assert caught.value.__cause__ is None


def test_errors_from_inside_are_not_hidden():
    """A TypeError from the work of a handler is not taken for one about its arguments."""
    with pytest.raises(TypeError) as caught:
        grad(lambda x: np.sum(np.roll(x, None)))(np.ones(3))
    assert not isinstance(caught.value, TraceError)


def test_a_handler_is_never_replaced():
    """A second handler for a function is an error, and the first one stays."""
    before = HANDLERS[np.roll]
    with pytest.raises(ValueError, match="rule for roll already"):
        answer(np.roll, lambda a: a)
    with pytest.raises(ValueError, match="never replaced"):
        register((np.sin,), np.cos)
    assert HANDLERS[np.roll] is before
    assert before.__name__ == "roll"


def test_refusal_has_the_line():
    """A refusal begins with the line of the user."""
    error = refusal("no.")
    assert isinstance(error, TraceError)
    assert str(error).startswith(f"At {__file__}:")
    assert str(error).endswith(": no.")
