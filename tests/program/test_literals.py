"""Texts that stand for values: read again they are the same, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Variable
from ebbtide.program.literals import Literals

X = Variable(ArrayType((3,), np.dtype(float)), "x")
VALUES = (
    None, True, 3, -7, 10**30, "text", "it's \"quoted\"\n", 0.1, -0.0, 1e-320, 2.5 + 1j, math.inf, -math.inf, math.nan,
    -math.nan, np.float32(0.1), np.float64(-0.0), np.float32(np.inf), np.float64(np.nan), -np.float64(np.nan),
    np.float16(1.5), np.int8(-3), np.uint64(2**64 - 1), np.True_, np.longdouble("0.1"), np.dtype(">f4"),
    ArrayType((2, 3), np.dtype(np.float32)), slice(1, None, -2), (), (1,), [1, (2.0, None)], Ellipsis,
    slice(np.int64(3), 5), complex(math.nan, 1.0), np.complex64(1 + 2j),
)  # fmt: skip


def read(literals, text):
    """Return the value that a text stands for in a source."""
    space = {"np": np, "constants": literals.constants}
    for line in literals.imports:
        exec(line, space)  # noqa: S102 - our own text
    for name, definition in literals.definitions.items():
        space[name] = eval(definition, space)
    return eval(text, space)


def bits(value):
    """Return what tells two values apart: type, and all bits of numbers, the sign of nan too."""
    if isinstance(value, (tuple, list)):
        return type(value), [bits(part) for part in value]
    if isinstance(value, slice):
        return slice, bits([value.start, value.stop, value.step])
    if isinstance(value, (float, complex, np.generic)):
        # Of a long double some bytes are no part of the number.
        return type(value), str(value) if isinstance(value, np.longdouble) else np.asarray(value).tobytes()
    return type(value), value


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values(value):
    """A text gives the value back, of its type and with all bits."""
    literals = Literals({})
    assert bits(read(literals, literals.value(value))) == bits(value)


def test_arrays_are_handed_over():
    """An array has no text: it is a constant of the source, the same one wherever it is named."""
    array, other = np.ones(3), np.ones(3)
    literals = Literals({})
    first, again, second = literals.value(array), literals.value([array]), literals.value(other)
    assert (first, again, second) == ("constants[0]", "[constants[0]]", "constants[1]")
    assert literals.constants[0] is array
    assert literals.constants[1] is other


def test_variables_have_their_names():
    """A variable is its name, also in tuples, and no definition takes one of these names."""
    literals = Literals({X: "constant_1"})
    assert literals.value((X, 2)) == "(constant_1, 2)"
    assert literals.value(np.float32(0.5)) == "constant_1_"
    assert literals.value([np.float32(0.5)]) == "[constant_1_]"
    assert list(literals.definitions) == ["constant_1_"]


def test_functions():
    """A function is named where it is imported from; another one is a constant."""
    literals = Literals({})
    inner = lambda x: x
    assert literals.function(np.sin) == "np.sin"
    assert literals.function(np.add.reduce) == "np.add.reduce"
    text = literals.function(bits)
    assert text.endswith(".bits")
    assert read(literals, text) is bits
    assert read(literals, literals.function(inner)) is inner
    assert literals.constants == [inner]
