"""Writing into traced arrays as into NumPy's: `out=`, indices, views of views, `ufunc.at`; equal, or an error."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from scipy import special
from tests.measure import peak_bytes

from ebbtide import RuleMissingError, TraceError, grad, hvp, jit, jvp, vjp, vmap
from ebbtide.arrays.views import bottom
from ebbtide.testing import check_grads

WRITES: dict[str, Any] = {
    "out of a ufunc": lambda u, x: np.add(x, x[0], out=u),
    "out by place": lambda u, x: np.exp(u, u),
    "out of fewer axes": lambda u, x: np.add(x[0], 1, out=u),
    "out of a part": lambda u, x: np.add(x[0], u[1], out=u[0]),
    "out that overlaps": lambda u, x: np.add(u[1:], u[:-1], out=u[1:]),
    "out backwards": lambda u, x: np.negative(u[::-1], out=u),
    "out of sum": lambda u, x: np.sum(x, axis=0, out=u[0]),
    "out of a method": lambda u, x: x.mean(axis=0, out=u[1]),
    "out of reduce": lambda u, x: np.add.reduce(x, axis=0, out=u[2]),
    "out of cumsum": lambda u, x: np.cumsum(x, axis=1, out=u),
    "out of matmul": lambda u, x: np.matmul(x, x.T, out=u[:, :3]),
    "out of clip": lambda u, x: np.clip(x, -0.51, 0.52, out=u),
    "out of concatenate": lambda u, x: np.concatenate([x[:1], u[1:]], out=u),
    "out of take": lambda u, x: np.take(x, [1, 0, 2], axis=0, out=u),
    "out of take by place": lambda u, x: np.take(x, [1, 0, 5], 0, u, "clip"),
    "out of choose by place": lambda u, x: np.choose([0, 1, 0, 1], [x, -x], u),
    "out of compress by place": lambda u, x: np.compress([True, False, True], x, 0, u[1:]),
    "out of trace": lambda u, x: np.trace(x, 0, 0, 1, None, u[0, 0, ...]),
    "out of dot": lambda u, x: np.dot(x, np.ones((4, 4)), u),
    "out of outer": lambda u, x: np.outer(x[:, 0], x[0], u),
    "out of an inverse transform": lambda u, x: np.fft.irfft(x[:, :3], 4, out=u),
    "out of stack": lambda u, x: np.stack([x[0], x[1]], out=u[:2]),
    "out of median": lambda u, x: np.median(x, 0, u[1]),
    "out of a sum in another dtype": lambda u, x: np.sum(x, 0, np.float64, u[2]),
    "out of multi_dot": lambda u, x: np.linalg.multi_dot([x, x.T, x], out=u),
    "out of einsum": lambda u, x: np.einsum("ij->j", x, out=u[0]),
    "two outs": lambda u, x: np.modf(x, out=(u, np.zeros_like(u))),
    "where of divide": lambda u, x: np.divide(x, np.where(u > 0, u, 0), out=u, where=u > 0),
    "where of sqrt": lambda u, x: np.sqrt(x, out=u, where=x[0] > 0.2) if np.all(x[:, x[0] > 0.2] > 0) else None,
    "overlapping slices": lambda u, x: u.__setitem__(slice(1, None), u[:-1]),
    "overlapping sums": lambda u, x: u[1:].__iadd__(u[:-1]),
    "rows exchanged": lambda u, x: u.__setitem__([0, 1], u[[1, 0]]),
    "masked sum": lambda u, x: u.__setitem__(u > 0, u[u > 0] + x[u > 0]),
    "slices of slices": lambda u, x: u[::2][1:][:, ::-1][..., 1:].__setitem__(Ellipsis, x[1:2, 1:]),
    "rows of a transpose": lambda u, x: u.T[1:3][:, ::-1][0].__iadd__(x[:, 2]),
    "transpose": lambda u, x: u.T.__setitem__(1, x[:, 0]),
    "reshaped": lambda u, x: u.reshape(-1)[::2].__imul__(x.ravel()[:6]),
    "raveled copy": lambda u, x: np.ravel(u.T).__setitem__(slice(1, 4), x[0, :3]),
    "flat": lambda u, x: u.flat.__setitem__(slice(3, 7), x.ravel()[:4]),
    "flat of a transpose": lambda u, x: u.T.flat.__setitem__([0, 5], x[0, :2]),
    "flat with few values": lambda u, x: setattr(u, "flat", x[0, :3]),
    "flat with many values": lambda u, x: setattr(u, "flat", np.concatenate([x, x])),
    "flat with values in rows": lambda u, x: setattr(u.T, "flat", x[:2, :2].T),
    "flat with no values": lambda u, x: setattr(u, "flat", x[0, :0]),
    "flat with plain values": lambda u, x: setattr(u, "flat", [1.0, 2.0]),
    "places of flat with few values": lambda u, x: u.T.flat.__setitem__([0, 2, 5], x[0, :2]),
    "a mask of flat with few values": lambda u, x: u.flat.__setitem__((u > 0).ravel(), x[0, :2]),
    "a place of flat": lambda u, x: u.flat.__setitem__(3, x[0, 0]),
    "a part of flat is a copy": lambda u, x: u.flat[:3].__setitem__(0, x[0, 0]),
    "put": lambda u, x: u.put([1, -1, 1], x[0]),
    "place": lambda u, x: np.place(u, u > 0, x[0, :2]),
    "putmask": lambda u, x: np.putmask(u, u < -0.3, x),
    "copyto": lambda u, x: np.copyto(u, x[1], where=x > 0),
    "along an axis": lambda u, x: np.put_along_axis(u, np.argmax(u, axis=1)[:, None], x[:, :1], 1),
    "diagonal": lambda u, x: np.fill_diagonal(u[:, :3], x[0, :3]),
    "add.at": lambda u, x: np.add.at(u, ([0, 0, 1], [1, 1, 2]), x[0, :3]),
    "subtract.at of a view": lambda u, x: np.subtract.at(u[1:], (slice(None), [1, 1]), x[1:, :2]),
    "multiply.at": lambda u, x: np.multiply.at(u, [0, 2], x[:2]),
    "multiply.at of a place twice": lambda u, x: np.multiply.at(u, ([0, 1, 0, 0], [1, 1, 1, 2]), x[0]),
    "divide.at of rows of a view": lambda u, x: np.divide.at(u.T[::2], [1, 1], x[:2, :3]),
    "maximum.at": lambda u, x: np.maximum.at(u, (slice(None), [0, 0, 2]), x[:, :3]),
    "minimum.at of a number": lambda u, x: np.minimum.at(u, [[0, 1], [1, 0]], 0.25),
    "fmax.at": lambda u, x: np.fmax.at(u[0], [3, 1, 3], x[1, :3]),
    "exp.at of a place twice": lambda u, x: np.exp.at(u, (0, [1, 1, 2])),
    "hypot.at of a mask": lambda u, x: np.hypot.at(u, u > 0, x[0, 0]),
    "at nowhere": lambda u, x: np.power.at(u, (np.zeros(0, int),), 2.0),
    "erf.at": lambda u, x: special.erf.at(u, [1, 1]),
    "sort": lambda u, x: u.sort(axis=0),
    "nan_to_num": lambda u, x: np.nan_to_num(u[1], copy=False, nan=2.0) if np.put(u, [4, 6], np.nan) is None else u,
    "fill": lambda u, x: u.fill(x[0, 0]),
    "element": lambda u, x: u[np.newaxis, ..., 0][0].__setitem__(1, x[1, 1]),
}


def operands() -> tuple[Any, Any]:
    """Return two arrays without ties."""
    rng = np.random.default_rng(5)
    return rng.standard_normal((3, 4)), rng.standard_normal((3, 4))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_are_numpys(write):
    """Each way to write gives NumPy's bits in both modes, returns what NumPy returns, and has the right derivative."""
    u, x = operands()
    expected = np.copy(u)
    returned = write(expected, x)

    def run(u, x):
        u = np.copy(u)
        before, made = u, write(u, x)
        assert made is None if returned is None else made is u or returned is not expected
        assert u is before
        return u

    assert vjp(run, u, x)[0].tobytes() == expected.tobytes()
    assert jvp(run, (u, x), (u, x))[0].tobytes() == expected.tobytes()
    check_grads(run, u, x, order=1)


# Where the elements have to be counted.
KNOWN_MASKS = {"where of sqrt", "masked sum", "a mask of flat with few values", "place", "hypot.at of a mask"}


@pytest.mark.parametrize("name", WRITES)
def test_writes_in_programs(name):
    """Each way to write is in programs and batches what it is in the function, also where a mask is traced."""
    u, x = operands()

    def run(u, x):
        u = np.copy(u)
        WRITES[name](u, x)
        return u

    if name in KNOWN_MASKS:
        with pytest.raises(TraceError, match=r"How many elements a traced mask|indices that are known here"):
            jit(run)(u, x)
        return
    slope = grad(lambda u, x: np.sum(np.sin(run(u, x))), argnums=(0, 1))
    for executor in ("reference", "machine"):
        assert jit(run, executor=executor)(u, x).tobytes() == run(u, x).tobytes()
        for found, expected in zip(jit(slope, executor=executor)(u, x), slope(u, x), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(vmap(run)(u[None], x[None])[0], run(u, x), rtol=1e-14)


OTHERS = {
    "divide": lambda x, n: np.divide(1.0, x, out=np.zeros_like(x), where=x != 0),
    "log": lambda x, n: np.log(x, out=2 * x, where=x > 0),
    "floor_divide": lambda x, n: x * np.floor_divide(7, n, out=np.zeros_like(n), where=n != 0),
    "into more rows": lambda x, n: np.sqrt(x, out=np.zeros((2, 3), x.dtype, like=x), where=x > 0),
    "into a number": lambda x, n: np.divide(x, x[0], out=x + 1, where=x[0] != 0),
    "putmask": lambda x, n: (u := x * 2, np.putmask(u, n, [5.0, 6.0]))[0],
    "place": lambda x, n: (u := x * 2, np.place(u, n, x[2:]))[0],
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_others_than_a_traced_mask_chooses(function, dtype):
    """They stay as they are, have no derivative of the operation, and no warning, in programs and batches."""
    x, n = np.array([0.0, -2.0, 3.0], dtype), np.array([0, 2, 3])
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = function(x, n)
    slope = grad(lambda x: np.sum(function(x, n)))
    with np.errstate(all="raise"):
        for executor in ("reference", "machine"):
            found = jit(function, executor=executor)(x, n)
            assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
        for found in (jit(slope)(x), vmap(slope)(x[None])[0], jit(vmap(slope), executor="machine")(x[None])[0]):
            assert found.dtype == dtype
            np.testing.assert_allclose(found, slope(x), rtol=1e-6)


def test_an_array_without_axes_stays_one():
    """All names of an array without axes have what operators write into it, however often they do."""

    def run(x):
        a = np.copy(x)
        b, part = a, a[...]
        a *= 2.0
        a += x
        a /= 3.0
        return b * part**1.7

    for x in (np.array(1.3), np.array(0.7, np.float32), np.array(0.3 + 0.4j)):
        value, pullback = vjp(run, x)
        assert value == run(x) == jvp(run, (x,), (x,))[0]
        slope = 2.7 * x**1.7
        np.testing.assert_allclose(pullback(np.ones_like(value))[0], slope, rtol=1e-6)
        np.testing.assert_allclose(vmap(run)(np.stack([x, x])), [value, value], rtol=1e-6)
        np.testing.assert_allclose(jit(run)(x), value, rtol=1e-6)
        of_program = jit(lambda x: vjp(run, x)[1](np.ones_like(x))[0])
        np.testing.assert_allclose(of_program(x), slope, rtol=1e-6)
        np.testing.assert_allclose(vmap(of_program)(np.stack([x, x])), [slope, slope], rtol=1e-6)


def test_arrays_without_axes_are_told_from_numbers():
    """A sum that is written into an array of one element has all of it, and a number has other values elsewhere."""

    def add(to, x):
        to += x

    def run(x):
        first, by_choice, part = np.zeros_like(x[0, ...]), np.where(x[0] > 0, x[0], x[1]), np.copy(x)[1, ...]
        a = b = np.sum(x)
        for k in range(3):
            add(first, x[k])
            add(by_choice, x[k])
            add(part, x[k])
            a += x[k]
        return np.stack([first, by_choice, part, a, b])

    x = np.array([0.3, 0.9, 0.5])
    expected = run(x)
    np.testing.assert_allclose(expected, [1.7, 2.0, 2.6, 3.4, 1.7])
    for found in (vjp(run, x)[0], jvp(run, (x,), (x,))[0], jit(run)(x), jit(run, executor="machine")(x)):
        np.testing.assert_allclose(found, expected)
    for function in (vmap(run), jit(vmap(run))):
        np.testing.assert_allclose(function(np.stack([x, 2 * x])), [expected, 2 * expected])


def _swap(a):
    a[0], a[1] = a[1], a[0]


def _carry(a):
    before = a[0]
    for k in (1, 2):
        before, a[k] = a[k], before
    return before


def _swap_by_place(a):
    i = np.argmax(a)
    t = a[i]
    a[i] = a[0]
    a[0] = t


def _change_row(a):
    rows = np.outer(a, a)
    r = rows[np.argmax(a)]
    r *= 2.0
    t = rows[np.argmax(a), 0]
    rows *= 3.0
    return rows + t


def _change_sorted(a):
    i = np.argsort(a)
    smallest, ordered = a[i[0]], a[i]
    a[i[0]] = 7.0
    return smallest * ordered


def _change_all(a):
    x, *others = a
    np.sin(a, out=a)
    return x * others[1]


def _add_to_another(a):
    t, u = a[0], a[1]
    t += u
    return t


@pytest.mark.parametrize(
    "change", [_swap, _carry, _swap_by_place, _change_row, _change_sorted, _change_all, _add_to_another]
)
def test_a_single_element_is_a_number(change):
    """What is read from a single place does not follow later writes, in programs and in batches neither."""

    def run(x):
        a = np.copy(x)
        found = change(a)
        return a if found is None else a * found

    def slope(x):
        value, pullback = vjp(run, x)
        return value, pullback(np.cos(value))[0]

    x = np.array([0.3, 0.9, 0.5])
    expected = slope(x)
    assert np.array_equal(expected[0], run(x))
    check_grads(run, x, order=1)
    members = np.stack([2 * x, x])
    for found in (jit(slope)(x), jit(slope, executor="machine")(x)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14)
    for function in (vmap(slope), jit(vmap(slope)), jit(vmap(slope), executor="machine")):
        for one, other in zip(function(members), expected, strict=True):
            np.testing.assert_allclose(one[1], other, rtol=1e-14)
    np.testing.assert_allclose(vmap(run)(members)[1], expected[0], rtol=1e-14)


def test_real_and_imaginary_parts_are_written():
    """Parts of complex numbers are written without touching the other part, also if that is infinite."""
    z = np.array([1 + np.inf * 1j, np.nan - 2j, 3 + 4j])

    def run(z, x):
        z = np.copy(z)
        z.real = x
        z.imag[1:] *= 2
        return z

    expected = run(z, np.arange(3.0))
    assert vjp(run, z, np.arange(3.0))[0].tobytes() == expected.tobytes()
    check_grads(run, np.array([1 + 2j, 3 - 1j, 2j]), np.arange(3.0))


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda u, x: np.add(x, 1, out=np.zeros((3, 4))), TraceError, r"np\.zeros_like\(x\)"),
        (lambda u, x: np.add(x, 1, out=u[0]), ValueError, r"shape \(3, 4\) into out= of shape \(4,\)"),
        (lambda u, x: np.sum(x, axis=0, out=u), ValueError, r"shape \(4,\) into out= of shape \(3, 4\)"),
        (lambda u, x: np.multiply(x, 1j, out=u), TypeError, "complex128 into out= of float64"),
        (lambda u, x: np.sum(x, 0, out=np.zeros_like(u[0], np.float32)), TypeError, "float64 into out= of float32"),
        (lambda u, x: np.copyto(u, x * 1j), TypeError, "same_kind"),
        (lambda u, x: np.sin(x, where=x > 0), TraceError, r"np\.where\(condition"),
        (lambda u, x: np.sin(x, out=np.zeros(4), where=x > 0), TraceError, r"np\.zeros_like\(x\)"),
        (lambda u, x: np.add.at(np.zeros(3), [0], x[0, 0]), TraceError, r"np\.zeros_like\(x\)"),
        (lambda u, x: np.multiply.at(u * 1j, [1, 1], 2.0), TraceError, "of complex numbers"),
        (lambda u, x: np.exp.at(np.zeros(3), x[0, :1]), TraceError, r"np\.zeros_like\(x\)"),
        (lambda u, x: np.arctan2.reduceat(u, [1, 2]), RuleMissingError, r"no derivative rule for arctan2\.reduceat"),
        (lambda u, x: special.modstruve.at(u, [1], 2.0), RuleMissingError, r"for modstruve\.at"),
        (lambda u, x: np.place(u, u > 9, x) or np.put(u, [99], x), IndexError, "out of bounds"),
        (lambda u, x: np.broadcast_to(u[0], (3, 4)).fill(1.0), TraceError, "read-only"),
    ],
)
def test_refused_writes(write, error, message):
    """What cannot be written, or what NumPy refuses, is an error."""
    with pytest.raises(error, match=message):
        vjp(lambda u, x: write(np.copy(u), x), *operands())


def test_places_that_are_not_known():
    """In a program the indices of `ufunc.at` are constants: of others it is not known which place they name twice."""

    def f(x, places):
        y = np.copy(x)
        np.multiply.at(y, places, 3.0)
        return np.sum(y * y)

    x, places = np.arange(1.0, 6.0), np.array([0, 0, 2])
    np.testing.assert_array_equal(jit(grad(lambda x: f(x, places)))(x), [162.0, 4.0, 54.0, 8.0, 10.0])
    with pytest.raises(TraceError, match="indices that are known here"):
        jit(grad(f))(x, places)


def test_plain_results_go_into_plain_arrays():
    """A comparison of traced arrays has no derivative, and its result may be written into a plain array."""
    mask, places = np.zeros(3, bool), np.zeros((), np.intp)

    def f(x):
        np.greater(x, 0, out=mask)
        np.argmax(x, out=places)
        return np.sum(x * mask)

    np.testing.assert_array_equal(grad(f)(np.array([1.0, -2.0, 3.0])), [1.0, 0.0, 1.0])
    assert (mask.tolist(), int(places)) == ([True, False, True], 2)


def rows(x):
    """Write an array row by row."""
    y = np.zeros_like(x)
    for i in range(len(x)):
        y[i] = np.sin(x[i])
    return np.sum(y)


def parts(x):
    """Read an array slice by slice."""
    total = 0.0
    for i in range(len(x)):
        total = total + np.sum(np.sin(x[i]))
    return total


def chained(x):
    """Fill an array from its own rows."""
    y = np.zeros_like(x)
    for i in range(len(x)):
        y[i] = np.cos(x[i]) * y[i - 1] + x[i]
    return np.sum(y)


# The gradient, and for an array that is written its cotangent; of the rows that a product takes, one copy, and cosines.
@pytest.mark.parametrize(("f", "units"), [(rows, 2), (parts, 1), (chained, 4)])
@pytest.mark.parametrize("count", [20, 200])
def test_loops_over_rows_take_a_buffer_in_all(f, units, count):
    """However many rows are written or read one by one, the gradient takes the same few arrays."""
    x = np.random.default_rng(0).standard_normal((count, 400_000 // count))
    gradient = grad(f)
    if f is not chained:
        np.testing.assert_array_equal(gradient(x), np.cos(x))
    assert peak_bytes(lambda: gradient(x)) < (units + 0.3) * x.nbytes


@pytest.mark.parametrize(("name", "units"), [("hvp", 5), ("vmap of grad", 4), ("vmap of hvp", 7)])
def test_parts_with_tangents_and_members_do_not_keep_their_array(name, units):
    """However often parts of an array are read and written, a derivative of a gradient does not keep it each time."""

    def f(x):
        y = np.copy(x)
        for i in range(40):
            y[100 * i : 100 * i + 100] = np.cos(y[100 * i + 100 : 100 * i + 200])
        return np.sum(y * y)

    product = hvp(f)
    call = {
        "hvp": lambda x: product(x, x),
        "vmap of grad": lambda x: vmap(grad(f))(x[None])[0],
        "vmap of hvp": lambda x: vmap(product)(x[None], x[None])[0],
    }[name]
    alone = {"hvp": lambda x: jvp(f, (x,), (x,)), "vmap of grad": lambda x: vmap(f)(x[None]),
             "vmap of hvp": lambda x: vmap(lambda x: jvp(f, (x,), (x,)))(x[None])}[name]  # fmt: skip
    x = np.linspace(0.2, 1.1, 50_000)
    expected = grad(f)(x) if name == "vmap of grad" else product(x, x)
    np.testing.assert_array_equal(call(x), expected)
    assert peak_bytes(lambda: call(x)) - peak_bytes(lambda: alone(x)) < units * x.nbytes


def test_writes_through_views_copy_the_array_once():
    """On a tape an array that is filled through its views stays where its first write has put it."""
    places: set[int] = set()

    def f(x):
        y = np.zeros_like(x)
        for i in range(len(x)):
            y[i] += x[i]
            row = y[i:][0]
            row[1:] *= 2.0
            row[:1] = x[i, :1]
            places.add(bottom(y).ctypes.data)
        return np.sum(y * y)

    x = np.random.default_rng(3).standard_normal((5, 3))
    grad(f)(x)
    assert len(places) == 1
    check_grads(f, x)


def test_saved_parts_do_not_follow_writes():
    """A row that is saved while its array is being filled keeps its value, through views, and written again or not."""

    def f(x):
        y = np.zeros_like(x)
        first, second = y[0], y[1:2]
        total = 0.0
        for i in range(len(x)):
            y[i] = x[i] * 2
            total = total + np.sum(first * second) + np.sum(second * y[i])
            first[...] = first + x[i]
            second *= y[0]
        return total + np.sum(y * y)

    x = np.random.default_rng(2).standard_normal((4, 3))
    assert vjp(f, x)[0] == f(x)
    check_grads(f, x)


def calls_of(f: Any, *args: Any) -> list[Any]:
    """Return the names of all functions that a call calls, those in C too."""
    names: list[Any] = []

    def watch(frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            names.append(frame.f_code.co_name if event == "call" else arg.__name__)

    sys.setprofile(watch)
    try:
        f(*args)
    finally:
        sys.setprofile(None)
    return names


def test_slices_accumulate_as_views():
    """Cotangents of any index without repetitions are added into views; only repeated places need add.at."""
    x = np.arange(12.0).reshape(3, 4)
    slices = grad(lambda x: np.sum(x[0]) + np.sum(x[1:, ::2] ** 2) + x[2, 3] + np.sum(x[x > 4]))
    assert "at" not in calls_of(slices, x)
    assert "at" in calls_of(grad(lambda x: np.sum(x[[0, 1, 1]])), x)


@pytest.mark.parametrize("container", [list, tuple, lambda items: dict(enumerate(items))])
def test_work_for_each_parameter_is_constant(container):
    """The gradient for n arrays in a container makes the same number of calls for each, however many there are."""

    def f(parameters):
        values = parameters.values() if isinstance(parameters, dict) else parameters
        return sum(np.sum(p * p) for p in values)

    counts = []
    for n in (100, 800):
        parameters = container([np.ones(3) * k for k in range(n)])
        gradient = grad(f)
        gradient(parameters)
        counts.append(len(calls_of(gradient, parameters)) / n)
    assert counts[1] < 1.05 * counts[0]
