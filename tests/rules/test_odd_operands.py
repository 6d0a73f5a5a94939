"""Every function with a rule, of arrays that lie otherwise in memory or are of rarer dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest
from tests.scale import sample

from ebbtide import grad, vjp
from ebbtide.arrays.array_type import type_of

from .example import callable_of
from .examples import BY_VALUES, cases, label


def strided(x: Any) -> Any:
    """Return an array with gaps between its elements."""
    wide = np.zeros((*x.shape, 2), x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


def backwards(x: Any) -> Any:
    """Return an array whose elements lie in the opposite order."""
    turned = tuple([slice(None, None, -1)] * x.ndim)
    return np.array(x[turned])[turned]


def read_only(x: Any) -> Any:
    """Return an array that cannot be written."""
    x = np.array(x)
    x.flags.writeable = False
    return x


def swapped(x: Any) -> Any:
    """Return an array whose bytes are in the order of other machines."""
    return x.astype(x.dtype.newbyteorder(">"))


WAYS = {
    "strided": strided, "backwards": backwards, "read only": read_only, "big-endian": swapped,
    "half": lambda x: x.astype(np.float16), "extended": lambda x: x.astype(np.longdouble),
}  # fmt: skip
# Half precision has 11 bits, and rules add up some roundings.
RTOL = {"half": 0.1, "extended": 1e-9}
SMOOTH = [(*case, way) for case in cases(smooth=True) for way in WAYS]


def named(case: Any) -> str:
    """Return the name of a case."""
    return f"{label(case[:2])}-{case[2]}"


def pulled(f: Any, operands: list[Any]) -> tuple[list[Any], Any]:
    """Return the values of a function, and its pullback of cotangents of ones."""
    value, pullback = vjp(f, *operands)
    return value, pullback([np.ones_like(v) for v in value])


@pytest.mark.parametrize("case", sample(SMOOTH, 11), ids=named)
def test_odd_operands(case):
    """
    Values have NumPy's bits, cotangents the types of the operands and the values that ordinary operands have.

    Where NumPy or SciPy raises, the same is raised on traced arrays.
    """
    key, example, way = case
    usual = [np.asarray(x) for x in example.operands(np.float64)]
    odd = [WAYS[way](x) for x in usual]

    def f(*xs):
        leaves = optree.tree_leaves(example.call(callable_of(key), list(xs)))
        return [x for x in leaves if type_of(x).dtype.kind in "fc"]

    try:
        expected = f(*odd)
    except Exception as error:
        if way not in RTOL:
            raise
        with pytest.raises(type(error)):  # NumPy and SciPy have no such dtype here: an error, and no other result
            pulled(f, odd)
        return
    before = [x.tobytes() for x in odd]
    value, cotangents = pulled(f, odd)
    native = [(v.dtype.newbyteorder("="), v.shape) for v in expected]
    assert [(v.dtype.newbyteorder("="), v.shape) for v in value] == native
    for found, wanted in zip(value, expected, strict=True):  # extended precision has bytes that mean nothing
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found.real), np.signbit(wanted.real))
    assert [(c.dtype, c.shape) for c in cotangents] == [(x.dtype, x.shape) for x in odd]
    assert [x.tobytes() for x in odd] == before
    if key in BY_VALUES and way == "half":
        return
    for found, wanted in zip(cotangents, pulled(f, usual)[1], strict=True):
        largest = np.max(np.abs(wanted), initial=1e-3)
        np.testing.assert_allclose(found.astype(float), wanted, rtol=RTOL.get(way, 1e-12),
                                   atol=RTOL.get(way, 1e-12) * largest)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_the_absolute_value_of_the_smallest_numbers(dtype):
    """NumPy's quotient by a subnormal number overflows, and the slope is there all the same; at 0 it is 0."""
    info = np.finfo(dtype)
    x = np.array([info.smallest_subnormal, info.tiny / 8, 1j * info.tiny / 4, info.tiny, 0, 3 + 4j]).astype(dtype)
    with np.errstate(all="raise", under="ignore"):
        slope = grad(lambda x: np.sum(np.abs(x)))(x)
    assert slope.dtype == dtype
    np.testing.assert_allclose(slope, [1, 1, -1j, 1, 0, 0.6 - 0.8j], rtol=8 * info.eps)
