from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from functools import partial

import numpy as np
import pytest

from ebbtide import Budget, primitive
from ebbtide.optimize import Control, ReducedFunctional, TaylorTest, taylor_remainders, taylor_test
from ebbtide.schedules import Revolve, StoreAll

from .models import CELLS, PLACES, TRUTH, exp, faulty_exp, heat, misfit, nonlinear, rosenbrock

X = np.cos(np.arange(12.0))
D = np.sin(np.arange(12.0) ** 2)
DISTANCES = [2.0**-k for k in range(8, 13)]


def smooth(x):
    """A functional with all derivatives, of any dtype."""
    return np.sum(np.exp(np.sin(x)))


# Each functional with a point and a direction.
CASES = {
    "smooth": (smooth, X, D),
    "rosenbrock": (rosenbrock, X, D),
    "large point": (lambda x: np.sum(np.sin(1e-6 * x)), 1e6 * X, D),
    "small point": (lambda x: np.sum(np.exp(1e6 * x)), 1e-6 * X, D),
    "large direction": (smooth, X, 1e9 * D),
    "zero point": (smooth, np.zeros(12), D),
    "large value": (lambda x: 1e30 * smooth(x), X, D),
    "offset": (lambda x: 1e4 + smooth(x), X, D),
    "container": (
        lambda m: np.sum(np.exp(m["a"])) * m["b"][0] ** 3,
        {"a": X, "b": (2.0,)},
        {"a": D, "b": (0.7,)},
    ),
    "complex": (lambda z: np.sum(np.abs(np.exp(z)) ** 2), X + 1j * D, D - 2j * X),
    "critical point": (lambda x: np.sum(np.cosh(x - X)), X, D),
    "blows up": (lambda x: np.sum(np.log(x)), np.full(12, 0.1), -np.abs(D) * np.arange(12.0)),
}


@pytest.mark.parametrize(("f", "m", "direction"), CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
def test_right_derivatives_pass(f, m, direction):
    """With right derivatives the rates are 1, 2, 3, whatever the scales of point, direction and value."""
    test = taylor_test(f, m, direction)
    assert test.passed, str(test)
    for order in range(3):
        assert test.rate(order) > order + 0.95 or math.isnan(test.rate(order))
    assert len(test.judged(1)) == 3


@pytest.mark.parametrize("degree", [1, 2])
def test_polynomials_have_no_remainder(degree):
    """Where the expansion is exact, its remainder is rounding and is no failure, even at the value 0."""
    for m in (X, np.zeros(12)):
        test = taylor_test(lambda x: np.sum(x**degree) + 0.0, m, D)
        assert test.passed, str(test)
        assert math.isnan(test.rate(2))
        assert "exact" in test.verdict(2)


@pytest.mark.parametrize("schedule", [None, StoreAll(), Revolve(3)], ids=str)
def test_time_loops_pass(schedule):
    """The controls of a time loop (initial state, coefficient, both) have right derivatives under every schedule."""
    observed = heat(TRUTH, 0.5)
    functional = ReducedFunctional(
        partial(misfit, observed=observed, schedule=schedule), [Control(PLACES), Control(0.4)], budget=Budget("1 MiB")
    )
    m = [np.sin(2.0 * PLACES), 0.3]
    for direction in ([np.cos(PLACES), 0.0], [np.zeros(CELLS), 1.0], [np.cos(PLACES), 0.1]):
        assert taylor_test(functional, m, direction).passed
    chain = ReducedFunctional(nonlinear, [Control(PLACES), Control(1.3)])
    assert taylor_test(chain, [np.cos(PLACES), 1.1], [np.sin(PLACES), 0.5]).passed


@pytest.mark.parametrize("error", [1.0, 1e-1, 1e-2, 1e-3, -1e-3])
def test_a_wrong_gradient_has_rate_one(error):
    """A first derivative that is wrong by a part in a thousand or more is told by the rate 1 of order 1."""
    wrong = faulty_exp(error, error)
    test = taylor_test(lambda x: np.sum(wrong(x)), X, D)
    assert test.is_right(0)
    assert not test.is_right(1)
    assert not test.passed
    assert 0.7 < test.rate(1) < 1.3
    assert "FAIL  Taylor order 1" in str(test)


@pytest.mark.parametrize("error", [1.0, 1e-1, 1e-2])
def test_a_wrong_hessian_has_rate_two(error):
    """A wrong Hessian of a right gradient is told by the rate 2 of order 2, and orders 0 and 1 pass."""
    wrong = faulty_exp(0.0, error)
    test = taylor_test(lambda x: np.sum(wrong(x) * X), X, D)
    assert [test.is_right(order) for order in range(3)] == [True, True, False]
    assert 1.9 < test.rate(2) < 2.2
    assert taylor_test(lambda x: np.sum(wrong(x) * X), X, D, order=1).passed


def test_a_wrong_gradient_of_a_quadratic_is_told():
    """Rounding of the value 0 does not hide a wrong derivative."""
    square = primitive(lambda x: x * x, vjp=(lambda g, x: g * 2.0 * x + 1e-3 * g,))
    assert not taylor_test(lambda x: np.sum(square(x)), np.zeros(12), D, order=1).passed


def test_float32_is_tested_or_refused():
    """float32 shows rates where rounding leaves three of them, fails what is wrong, and else asks for float64."""
    x, d = X.astype(np.float32), D.astype(np.float32)
    assert taylor_test(lambda x: np.sum(np.exp(2 * x)), x, d).passed
    assert taylor_test(rosenbrock, x, d, order=1).passed
    wrong = faulty_exp(np.float32(0.02), np.float32(0.0))
    assert not taylor_test(lambda x: np.sum(wrong(x)), x, d, order=1).passed
    with pytest.raises(ValueError, match=r"order 1.*float64 controls and data"):
        taylor_test(lambda x: np.sum(np.float32(1e3) + np.sin(x)), x, d)
    with pytest.raises(ValueError, match=r"order 2.*float64 controls and data"):
        taylor_test(lambda x: np.sum(np.float32(2) + np.exp(x) / np.float32(4)), x, d)


def test_complex64_is_tested():
    """Both parts of complex64 controls are moved; a gradient that forgets the conjugate is told."""
    z = (X + 1j * D).astype(np.complex64)
    assert taylor_test(lambda z: np.sum(np.abs(z) ** 2), z, z[::-1].copy()).passed
    wrong = primitive(lambda z: np.real(z * z), vjp=(lambda g, z: np.conj(2 * g * z),))
    assert not taylor_test(lambda z: np.sum(wrong(z)), z, 1j * z[::-1], order=1).passed


@pytest.mark.parametrize("order", [0, 1, 2])
def test_only_the_derivatives_asked_for_are_computed(order):
    """Order 0 needs no rule at all, order 1 only a vjp, and order 2 both; the result has the orders asked for."""
    calls = []
    watched = primitive(
        exp,
        vjp=(lambda g, out: (calls.append("vjp"), g * out)[1],),
        jvp=(lambda t, out: (calls.append("jvp"), t * out)[1],),
    )
    test = taylor_test(lambda x: np.sum(watched(x)), X, D, order)
    assert test.orders == order + 1
    assert set(calls) == [set(), {"vjp"}, {"vjp", "jvp"}][order]


def test_precisions_side_by_side():
    """Of a functional of float64 and float32 controls the rounding is that of float32, and right derivatives pass."""
    m, direction = [X, X.astype(np.float32)], [D, D.astype(np.float32)]
    functional = ReducedFunctional(lambda a, b: np.sum(np.exp(2 * a)) + np.sum(np.exp(2 * b)), list(map(Control, m)))
    for order in (1, 2):
        test = taylor_test(functional, m, direction, order)
        assert test.passed, str(test)
        assert test.floors[-1] > np.finfo(np.float32).eps * test.value


@pytest.mark.parametrize(
    ("m", "direction", "first"),
    [
        ([1e-3, 1.0], [1.0, 1.0], 0.5e-3),
        ([1.0, 1e-3], [1.0, 1.0], 0.5e-3),
        ([8.0, 1.0], [1.0, 0.5], 1.0),
        ([0.0, 1.0], [1.0, 0.5], 1.0),
        ([0.0, 0.0], [4.0, 1.0], 0.125),
        ([0.0, 0.0], [1.0, 4.0], 0.125),
    ],
)
def test_the_first_distance_suits_all_leaves(m, direction, first):
    """It changes one leaf by half of its size, and the others by less; the direction counts where all are zero."""
    points, along = ([np.array([size]) for size in sizes] for sizes in (m, direction))
    test = taylor_test(lambda x: np.sum(np.exp(x[0])) + np.sum(np.exp(x[1])), points, along)
    assert test.distances[0] == first


def test_distances_begin_where_the_functional_is_finite():
    """The largest distance is the first at which the functional is finite, and so is it at all others."""
    test = taylor_test(lambda x: np.sum(np.where(x > 1.3, np.inf, 1.0) * np.exp(x)), np.ones(1), np.ones(1))
    assert test.distances[0] == 0.25
    assert all(math.isfinite(size) for sizes in test.remainders for size in sizes)
    assert test.passed


def test_rounding_grows_with_the_value():
    """At a distance where the functional is far larger than at the point, so is what may be rounding."""
    test = taylor_test(lambda x: np.sum(np.exp(20.0 * x)), np.ones(1), np.ones(1))
    ratio = math.exp(20.0 * test.distances[0])
    assert ratio > 1e4
    assert test.floors[0] >= 8 * np.finfo(np.float64).eps * test.value * ratio * (1 - 1e-6)
    assert test.passed


def test_slopes_of_float32_are_summed_in_double():
    """The change along a direction that a float32 derivative promises has no rounding error of float32."""
    direction = np.full(10, 1 + 2.0**-23, np.float32)
    test = taylor_test(lambda x: np.sum(x, dtype=np.float64), np.zeros(10, np.float32), direction, 1, [0.5, 0.25])
    assert test.remainders[1] == (0.0, 0.0)


def test_distances_can_be_given():
    """Given distances are used, in their order, and only they."""
    test = taylor_test(smooth, X, D, distances=[1e-1, 1e-2, 1e-3, 1e-4])
    assert test.distances == (1e-1, 1e-2, 1e-3, 1e-4)
    assert test.passed
    for bad in ([], [0.1], [0.1, 0.1], [0.1, 0.2], [0.1, 0.0], [0.1, -0.1]):
        with pytest.raises(ValueError, match="smaller"):
            taylor_test(smooth, X, D, distances=bad)


@pytest.mark.parametrize(
    "distances",
    [[0.1, np.nan], [np.nan, 0.1], [0.2, 0.1, np.nan], [np.inf, 0.1], [0.1], [0.1, 0.2], [0.1, 0.0], 3, "ab", [None, 1],
     [0.1, 0.05j], []],
    ids=str,
)  # fmt: skip
def test_distances_that_do_not_fall(distances):
    """Distances are positive numbers, each smaller than the one before; what is none is told, with all of them."""
    for call in (
        lambda: taylor_test(lambda x: np.sum(x**2), X, D, distances=distances),
        lambda: taylor_remainders(math.exp, 1.0, [1.0], distances),
    ):
        with pytest.raises(ValueError, match=r"distances=.*: give two or more positive numbers") as raised:
            call()
        assert repr(distances) in str(raised.value)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">c16"])
def test_other_orders_of_bytes_are_tested(dtype):
    """Controls keep their order of bytes along the line."""
    x, d = X.astype(dtype), D.astype(dtype)
    f = lambda u: np.sum(np.abs(u) ** 4)
    order = 1 if dtype == ">f4" else 2
    assert taylor_test(f, x, d, order=order).passed
    assert taylor_test(ReducedFunctional(f, Control(x)), x, d, order=order).passed
    assert taylor_test(lambda u: f(u["a"]), {"a": x}, {"a": d}, order=order).passed
    native = X.astype(x.dtype.newbyteorder("="))
    with pytest.raises(TypeError, match=rf"Write x.astype\('{dtype}'\)"):
        taylor_test(ReducedFunctional(f, Control(x)), native, d)


def test_remainders_of_what_is_no_number():
    """Values and derivatives are numbers, the function is one, and an order is one of the expansions."""
    for value, derivatives in (("a", [1.0]), (1.0, 1.0), (1.0, ["a"]), (None, [1.0]), (1.0, None)):
        with pytest.raises(ValueError, match=r"value=.*derivatives=.*: give numbers"):
            taylor_remainders(math.exp, value, derivatives, DISTANCES)
    with pytest.raises(TypeError, match="taylor_remainders takes a function"):
        taylor_remainders(3, 1.0, [1.0], DISTANCES)  # pyright: ignore[reportArgumentType]
    test = taylor_remainders(math.exp, 1.0, [1.0], DISTANCES)
    for order in (2, -1):
        for call in (test.rate, test.rates, test.judged, test.is_right, test.is_known, test.verdict):
            with pytest.raises(ValueError, match=f"There is no order {order} in this test: .* from 0 to 1"):
                call(order)


def test_the_value_is_that_of_the_functional_and_m_is_kept():
    """The test writes into neither *m* nor the direction, and repeats bit for bit."""
    m, direction = X.copy(), D.copy()

    def writing(x):
        x *= 2.0
        return smooth(x)

    first, second = taylor_test(writing, m, direction), taylor_test(writing, m, direction)
    assert first == second
    assert first.value == smooth(2.0 * X)
    assert np.array_equal(m, X)
    assert np.array_equal(direction, D)


@pytest.mark.parametrize(
    ("f", "m", "direction", "text"),
    [
        (lambda x: np.sum(x[1:] ** 2), X, np.eye(12)[0], "does not change along this direction.*Choose"),
        (smooth, X, np.zeros(12), "direction is zero"),
        (smooth, X, np.full(12, np.nan), "not finite.*isfinite"),
        (lambda x: np.sum(x) * np.inf, X, D, "is -?inf at m"),
        (lambda x: np.sum(x) if x[1] == X[1] else np.sum(x) * np.nan, X, D, "not at the distance"),
        (smooth, X, D[1:], r"direction is of type float64\[11\].*float64\[12\]"),
        (smooth, X, (D,), "direction has the structure"),
    ],
)
def test_what_cannot_be_tested_is_refused(f, m, direction, text):
    """A direction or functional that shows nothing is an error that says what to change, never a pass."""
    with pytest.raises(ValueError, match=text):
        taylor_test(f, m, direction)


@pytest.mark.parametrize("order", [-1, 3, True, 1.5])
def test_orders_are_0_1_2(order):
    """Another order is refused."""
    with pytest.raises(ValueError, match="order="):
        taylor_test(smooth, X, D, order)


def test_remainders_of_known_derivatives():
    """`taylor_remainders` has |f - expansion|, and a wrong derivative fails the rate of its order and no lower one."""
    test = taylor_remainders(math.exp, 1.0, [1.0, 1.0], DISTANCES)
    e = DISTANCES[0]
    assert [sizes[0] for sizes in test.remainders] == pytest.approx(
        [math.exp(e) - 1, math.exp(e) - 1 - e, math.exp(e) - 1 - e - e * e / 2], rel=1e-6
    )
    assert test.passed
    for derivatives, wrong in (([1.001, 1.0], 1), ([1.0, 1.01], 2)):
        test = taylor_remainders(math.exp, 1.0, derivatives, DISTANCES)
        assert [test.is_right(order) for order in range(wrong + 1)] == [True] * wrong + [False]


@pytest.mark.parametrize(("floor", "known"), [(None, 1e-12), (2.5e-4, 2.5e-4), (0.5, 0.5), (0.0, 0.0)])
def test_a_floor_can_be_given(floor, known):
    """What may be rounding is as the caller says, by default a part of the value; up to there an order is exact."""
    test = taylor_remainders(math.exp, 1.0, [1.0], [0.02, 0.01], floor)
    assert test.floors == (known, known)
    assert test.is_right(1) == (floor != 0.5)
    assert ("exact" in test.verdict(1)) == (floor == 2.5e-4)
    assert ("unknown" in test.verdict(1)) == (floor == 0.5)
    assert not taylor_remainders(math.exp, 1.0, [1.1], [0.02, 0.01], floor).is_right(1)


def test_too_few_rates_are_no_pass():
    """With rounding up to all but two remainders, and those not explained by the order before, nothing is right."""
    sizes = ((0.4, 0.2, 0.1, 0.05), (0.04, 0.01, 1e-9, 1e-9))
    test = TaylorTest(1.0, (0.4, 0.2, 0.1, 0.05), sizes, (1e-3,) * 4)
    assert [test.is_known(order) for order in range(2)] == [True, False]
    assert not test.passed
    assert "unknown" in test.verdict(1)


def test_rates_on_their_way_up_are_no_failure():
    """Rates that rise to the right one until rounding ends them are unknown: neither a pass nor a wrong derivative."""
    for last, known in ((2.7, False), (2.5, False), (2.01, True)):
        rates = (1.4, 1.9, last)
        sizes = [1.0]
        for rate in rates:
            sizes.append(sizes[-1] / 2**rate)
        distances = tuple(2.0**-k for k in range(5))
        # Rounding from 1e-3 on ends them; without it there would be smaller distances, so they are the last word.
        for after, decided in ((1e-4, known), (sizes[-1] / 2**last, True)):
            remainders = (distances, tuple(e**2 for e in distances), (*sizes, after))
            test = TaylorTest(1.0, distances, remainders, (1e-3,) * 5)
            assert test.rates(2)[:3] == pytest.approx(rates)
            assert (test.is_known(2), test.is_right(2)) == (decided, False)


@pytest.mark.parametrize("slope", [-0.7, -0.1, -0.02, -0.005, -0.001])
def test_a_remainder_that_changes_its_sign_is_no_failure(slope):
    """Near a distance at which a remainder is zero the rates say nothing, and the test goes on to smaller ones."""
    f = lambda x: np.sum(slope * (x - 1) + 10.0 * (x - 1) ** 2 + 1.0)
    test = taylor_test(f, np.ones(1), np.ones(1), order=1)
    assert test.passed, str(test)
    assert len(test.distances) <= 29


def test_few_distances_do_for_a_wrong_derivative():
    """Rates that have settled are not followed on to smaller distances, right or wrong."""
    wrong = faulty_exp(1e-2, 0.0)
    test = taylor_test(lambda x: np.sum(wrong(x)), X, D, order=1)
    assert not test.passed
    assert len(test.distances) == 15


def test_the_result_is_frozen_and_prints_a_table():
    """`print` gives a line for each distance, one on rounding and a verdict for each order."""
    test = taylor_test(smooth, X, D)
    with pytest.raises(FrozenInstanceError):
        test.value = 0.0
    lines = str(test).splitlines()
    assert len(lines) == 1 + len(test.distances) + 1 + 3
    assert lines[0].split() == ["e", "order", "0", "rate", "order", "1", "rate", "order", "2", "rate"]
    assert all(line.startswith("ok") for line in lines[-3:])
    assert f"{test.rates(0)[-1]:.3f}" in lines[len(test.distances)]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("distances", "shown"), [([0.02, 0.01], ["0.02000", "0.01000"]), ([2e-5, 1e-5], ["2.00e-05", "1.00e-05"])]
)
def test_small_distances_keep_their_digits(distances, shown):
    """The table lines up large distances by decimals, and shows small ones by their powers of ten."""
    table = taylor_remainders(math.exp, 1.0, [1.0], distances).table()
    assert [line.split()[0] for line in table.splitlines()] == ["e", *shown]


def test_picture(tmp_path):
    """`plot` writes the remainders of all orders with their rates and the right ones, in the format of the suffix."""
    mpl = pytest.importorskip("matplotlib", reason="a picture needs matplotlib")
    path = tmp_path / "taylor.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        taylor_test(smooth, X, D).plot(path)
    text = path.read_text(encoding="utf-8")
    for wanted in ("order 0: rate 1.00, 1 is right", "order 2: rate", "3 is right", "rounding", "distance"):
        assert wanted in text
    png = tmp_path / "taylor.png"
    taylor_test(lambda x: np.sum(x * x), np.zeros(12), D).plot(str(png))
    assert png.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_the_word_in_a_picture_has_room(tmp_path, monkeypatch, scale):
    """Where rounding is named there are no remainders, and the word is inside of the picture."""
    figures = pytest.importorskip("matplotlib.figure", reason="a picture needs matplotlib")
    drawn = []
    draw = figures.Figure.savefig
    keep = lambda figure, *given, **named: drawn.append(figure) or draw(figure, *given, **named)
    monkeypatch.setattr(figures.Figure, "savefig", keep)
    taylor_test(lambda x: scale * smooth(x), X, D).plot(tmp_path / "taylor.png")
    (axes,) = drawn[0].axes
    word, picture = axes.texts[0].get_window_extent(), axes.get_window_extent()
    assert all(map(picture.containsx, (word.x0, word.x1)))
    assert all(map(picture.containsy, (word.y0, word.y1)))
    for line in axes.lines:
        assert not word.padded(2).count_contains(axes.transData.transform(line.get_xydata()))
