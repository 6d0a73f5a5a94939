"""Arrays without data: what shape and dtype tell is there, and what they do not tell is an error."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import TraceError
from ebbtide.arrays.abstract import abstract_array
from ebbtide.arrays.array_type import ArrayType

ASKED = {
    "bool": bool,
    "if": lambda x: 1 if x > 0 else 2,
    "not": lambda x: not x,
    "and": lambda x: x and 1,
    "in": lambda x: 3.0 in [x],
    "any": lambda x: any(x > 0 for x in x.reshape(1)),
    "int": int,
    "float": float,
    "complex": complex,
    "item": lambda x: x.item(),
    "asarray": np.asarray,
    "text": lambda x: f"{x:.3f}",
    "strides": lambda x: x.strides,
    "flags": lambda x: x.flags,
    "nonzero": np.nonzero,
    "max": lambda x: max(x, 1.0),
}


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "array"])
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_values_are_not_known(ask, shape):
    """What depends on the elements of an abstract array raises, names the line, and says what to do."""
    with pytest.raises(TraceError) as caught:
        ask(abstract_array(shape, np.float64))
    assert "test_abstract.py:" in str(caught.value)
    assert any(advice in str(caught.value) for advice in ("np.where(", "stop_gradient(", "pass it in"))


@pytest.mark.parametrize("ask", [bool, int, lambda kind: f"{kind:.3f}"], ids=["bool", "int", "text"])
def test_types_are_no_numbers(ask):
    """The type of an array is neither true nor false, whatever its size."""
    for shape in ((), (0,), (2, 3)):
        with pytest.raises(TraceError, match="only shape and dtype"):
            ask(ArrayType(shape, np.dtype(np.float32)))


def test_shapes_are_known():
    """Length, iteration over rows, shape and text of an abstract array need no data."""
    x = abstract_array((2, 3), np.float32)
    assert (len(x), x.shape, x.size, x.nbytes, x.dtype) == (2, (2, 3), 6, 24, np.float32)
    assert [row.shape for row in x] == [(3,), (3,)]
    assert f"{x}" == repr(x) == "TracedArray(float32[2, 3])"
    assert f"{ArrayType((2,), np.dtype(bool))}" == "bool[2]"
    with pytest.raises(TypeError, match=r"len\(\) of an array without axes"):
        len(abstract_array((), np.float64))
