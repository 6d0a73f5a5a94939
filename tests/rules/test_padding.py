"""Borders of all modes: NumPy's values, and derivatives with respect to the array and to values of the border."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import grad, jit, timeloop, vjp, vmap
from ebbtide.arrays.views import bottom
from ebbtide.schedules import Revolve
from ebbtide.testing import check_grads

V, M = np.random.default_rng(3).standard_normal(5), np.random.default_rng(4).standard_normal((3, 4))
CALLS = [
    (M, ((2, 1), (0, 3)), "linear_ramp", {"end_values": ((1.0, 2.0), (3.0, 4.0))}),
    (V, 3, "linear_ramp", {}),
    *[(M, ((1, 2), (2, 0)), mode, {}) for mode in ("mean", "median", "maximum", "minimum")],
    *[(M, 2, mode, {"stat_length": ((1, 2), (3, 9))}) for mode in ("mean", "median", "maximum", "minimum")],
    (M, {-1: (1, 2)}, "reflect", {"reflect_type": "odd"}),
    (M, {0: 7}, "symmetric", {"reflect_type": "odd"}),
    (V, (13, 4), "reflect", {"reflect_type": "odd"}),
    (V, (3, 17), "symmetric", {"reflect_type": "odd"}),
    (V[:2], (0, 7), "reflect", {"reflect_type": "odd"}),
    (V[:1], 2, "reflect", {"reflect_type": "odd"}),
    (V[:1], 2, "symmetric", {}),
    (M, [[1], [2]], "edge", {}),
    (M[:0], ((0, 0), (1, 1)), "constant", {"constant_values": 2.0}),
]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_modes(call):
    """Each mode has NumPy's bits and the derivative of what it repeats, computes or reflects."""
    x, widths, mode, options = call
    f = lambda x: np.pad(x, widths, mode, **options)
    for dtype in (np.float32, np.float64, np.complex128):
        expected = np.pad(x.astype(dtype), widths, mode, **options)
        value, pullback = vjp(f, x.astype(dtype))
        assert (value.dtype, value.shape, value.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        assert pullback(value)[0].dtype == dtype
    check_grads(f, x, order=2)


FORMS = [
    lambda v: v[0], lambda v: (v[0], 2.0), lambda v: v[:2], lambda v: [[v[0]], [v[1]]], lambda v: v[:4].reshape(2, 2),
    lambda v: ((v[0], 1.0), v[1:3]),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
@pytest.mark.parametrize("name", ["constant_values", "end_values"])
def test_values_of_the_border(form, name):
    """Values of the border may be traced, one for all, for each end, for each axis, or for each end of each axis."""
    mode = "constant" if name == "constant_values" else "linear_ramp"
    f = lambda x, v: np.pad(x, ((1, 2), (2, 0)), mode, **{name: form(v)})
    assert vjp(f, M, V)[0].tobytes() == f(M, V).tobytes()
    check_grads(f, M, V)


def test_transforms():
    """Programs and batches pad what they are given."""
    f = lambda x, v: np.sum(np.pad(x, 2, constant_values=v) ** 3) + np.sum(np.pad(x, 9, "reflect", reflect_type="odd"))
    expected = grad(f, (0, 1))(M, 0.5)
    for one, other in zip(jit(grad(f, (0, 1)))(M, 0.5), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)
    for one, other in zip(vmap(grad(f, (0, 1)), (0, None))(np.stack([M, 2 * M]), 0.5), expected, strict=True):
        np.testing.assert_allclose(one[0], other, rtol=1e-13)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.pad(x[:0], 1, "mean"),
        lambda x: np.pad(x, 1, "maximum", stat_length=0),
        lambda x: np.pad(x, 1, "edge", constant_values=1.0),
        lambda x: np.pad(x, ((1, 1), (2, 2), (3, 3))),
    ],
)
def test_refused_as_in_numpy(call):
    """What NumPy cannot pad is its error."""
    for f in (call, lambda x: vjp(call, x)):
        with pytest.raises(ValueError):
            f(M)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "call",
    [
        *(lambda x, mode=mode: np.pad(x, ((1, 1), (2, 0)), mode) for mode in ("reflect", "wrap", "edge", "mean")),
        lambda x: np.pad(x, 1, "linear_ramp"),
        lambda x: np.pad(x, 1, constant_values=2.0),
        lambda x: np.pad(x, 2, "symmetric", reflect_type="odd"),
        lambda x: np.pad(np.reshape(x, (2, 2, -1)), 1, "reflect"),
        lambda x: np.take(x, [1, 0, 1], axis=1),
        lambda x: np.take(np.reshape(x, (2, 2, -1)), [[1, 0], [1, 1]], axis=1),
        lambda x: np.compress([True, False, True], x, axis=1),
    ],
)
def test_what_is_taken_lies_as_numpy_has_it(call, order):
    """The order of axes in memory is NumPy's, with which sums of a taped step have the bits of a plain one."""
    x = np.array(np.linspace(0.1, 0.9, 24).reshape(4, 6), order=order)
    strides = []

    def f(x):
        y = call(x)
        strides.append(bottom(y).strides)
        return np.sum(y)

    grad(f)(x)
    assert strides == [call(x).strides]


def test_a_loop_whose_step_pads_runs_again_with_the_same_bits():
    """Steps that are run again on a tape have the bits of those that were run without."""
    c = np.linspace(0.5, 1, 8)[:, None]
    step = lambda u, i: np.pad(u * c, 1, mode="reflect").sum(0)[1:-1] * 0.3 + 0.1
    u = np.linspace(0.2, 1.1, 4096)
    found = [grad(lambda u, s=s: np.sum(timeloop(step, u, 8, schedule=s)))(u) for s in (Revolve(1), None)]
    assert found[0].tobytes() == found[1].tobytes()
