from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest

from ebbtide import Budget, BudgetError, grad, hvp, profile, timeloop
from ebbtide.optimize import Control, ReducedFunctional
from ebbtide.schedules import Revolve, StoreAll

from .models import CELLS, PLACES, TRUTH, heat, misfit, nonlinear

U = np.cos(PLACES) * np.sin(PLACES)
DIRECTION = np.sin(5.0 * PLACES)
OBSERVED = heat(TRUTH, 0.5)


def bits(value):
    """Return what two results with the same bits, types and structure have in common."""
    if isinstance(value, tuple):
        return tuple(bits(x) for x in value)
    if isinstance(value, dict):
        return tuple((key, bits(x)) for key, x in value.items())
    return type(value).__name__, np.asarray(value).dtype, np.asarray(value).tobytes()


def inverse(**kwargs):
    """The functional of initial state and diffusivity of the heat equation."""
    return ReducedFunctional(partial(misfit, observed=OBSERVED, **kwargs), [Control(U), Control(0.4)])


def chain():
    """The functional of state and coefficient of the explicit nonlinear chain."""
    return ReducedFunctional(nonlinear, [Control(U), Control(1.3)])


MODELS = {
    "chain": chain,
    "heat": inverse,
    "heat, Revolve": partial(inverse, schedule=Revolve(3)),
    "heat, StoreAll": partial(inverse, schedule=StoreAll()),
}
POINTS = ([U, 0.4], [2.0 * U + 0.1, 0.25], [TRUTH, 0.5])
ALONG = [DIRECTION, 0.3]
CALLS = {
    "value": lambda J, m: J.value(m),
    "derivative": lambda J, m: J.derivative(m),
    "both": lambda J, m: J.value_and_derivative(m),
    "hessian": lambda J, m: J.hessian(m, ALONG),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_call_leaves_anything_behind(make):
    """Any order of calls at any controls gives the bits of a fresh object: pyadjoint's D1 to D4, D7, D10, #263."""
    order = np.random.default_rng(7).permutation(2 * len(CALLS) * len(POINTS))
    functional = make()
    fresh = {(name, k): bits(call(make(), POINTS[k])) for name, call in CALLS.items() for k in range(len(POINTS))}
    cases = list(fresh) * 2
    for number in order:
        name, k = cases[number]
        assert bits(CALLS[name](functional, POINTS[k])) == fresh[name, k], (name, k)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_derivatives_are_right_at_new_controls(make):
    """Derivative and Hessian action agree with central differences at controls that the object was not made with."""
    functional = make()
    for u, k in POINTS[1:]:
        e = 1e-5
        far, near = ([u + s * e * DIRECTION, k + s * e * 0.3] for s in (1, -1))
        slope_u, slope_k = functional.derivative([u, k])
        slope = slope_u @ DIRECTION + slope_k * 0.3
        expected = (functional.value(far) - functional.value(near)) / (2 * e)
        np.testing.assert_allclose(slope, expected, rtol=1e-7, atol=1e-7)
        bend_u, bend_k = functional.hessian([u, k], ALONG)
        ahead, behind = functional.derivative(far), functional.derivative(near)
        np.testing.assert_allclose(bend_u, (ahead[0] - behind[0]) / (2 * e), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(bend_k, (ahead[1] - behind[1]) / (2 * e), rtol=1e-6)


def test_value_and_derivative_are_those_of_grad():
    """The methods add nothing to `grad`: the same bits, for one control and for several."""
    functional = chain()
    expected = grad(nonlinear, argnums=(0, 1))(U, 1.3)
    assert bits(functional.derivative([U, 1.3])) == bits(expected)
    value, derivative = functional.value_and_derivative([U, 1.3])
    assert bits(value) == bits(functional.value([U, 1.3])) == bits(nonlinear(U, 1.3))
    assert bits(derivative) == bits(expected)
    single = ReducedFunctional(lambda u: nonlinear(u, 1.3), Control(U))
    assert bits(single.derivative(U)) == bits(expected[0])


def test_schedules_do_not_change_a_bit():
    """Value, derivative and Hessian action have the same bits under every schedule, at every point."""
    for call in CALLS.values():
        for m in POINTS:
            plain = bits(call(inverse(schedule=StoreAll()), m))
            assert plain == bits(call(inverse(schedule=Revolve(2)), m)) == bits(call(inverse(), m))


def test_a_control_that_changes_is_never_stale():
    """After the array of a control is written, calls see what they are given, and the start is new: firedrake#5082."""
    u = U.copy()
    functional = ReducedFunctional(lambda v: nonlinear(v, 1.3), Control(u))
    before = bits(functional.derivative(U))
    u *= 3.0
    assert bits(functional.derivative(U)) == before
    assert np.array_equal(functional.start(), 3.0 * U)
    assert bits(functional.derivative(u)) == bits(grad(nonlinear)(3.0 * U, 1.3)) != before


def test_functionals_of_one_model_do_not_meet():
    """Two functionals with the same controls, called in turns, give what each gives alone: pyadjoint's D5."""
    u, k = Control(U), Control(0.4)
    first = ReducedFunctional(partial(misfit, observed=OBSERVED), [u, k])
    second = ReducedFunctional(lambda k, u: np.sum(heat(u, k)[-1] ** 3), [k, u])
    alone = bits(first.derivative([U, 0.4])), bits(second.derivative([0.4, U]))
    for _ in range(2):
        assert (bits(first.derivative([U, 0.4])), bits(second.derivative([0.4, U]))) == alone


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("at", [0, 7, 14, 19])
def test_an_interrupted_call_is_forgotten(at, error):
    """An exception in the forward run, or where steps run again, leaves the next calls right: pyadjoint's D6."""
    count = 0
    limit = -1

    def f(u):
        def step(v, _):
            nonlocal count
            if count == limit:
                raise error
            count += 1
            return v + 0.1 * np.sin(v)

        return np.sum(timeloop(step, u, 12, schedule=Revolve(2)) ** 2)

    functional = ReducedFunctional(f, Control(U))
    expected = bits(functional.derivative(U))
    assert count > 20  # so that the later places are in the reverse sweep
    count, limit = 0, at
    with pytest.raises(error):
        functional.derivative(U)
    limit = -1
    assert bits(functional.derivative(U)) == expected
    assert bits(functional.value(U)) == bits(f(U))


def test_arguments_and_results_are_nobody_elses():
    """A functional that writes into its argument leaves *m* alone, and a written gradient spoils no later one."""

    def f(u):
        u[1:] *= u[:-1]
        return np.sum(u)

    m = np.arange(1.0, 5.0)
    functional = ReducedFunctional(f, Control(m, riesz=2.0))
    for call in (functional.value, functional.derivative, partial(functional.hessian, direction=np.ones(4))):
        first = call(m)
        kept = bits(first)
        if isinstance(first, np.ndarray):
            first[:] = np.nan
        assert bits(call(m)) == kept
        assert np.array_equal(m, np.arange(1.0, 5.0))


@pytest.mark.parametrize(
    ("f", "lie"),
    [
        (np.sum, lambda m: np.asfortranarray(m.reshape(60, 50))),
        (lambda m: np.sum(m @ m.T), lambda m: m.reshape(60, 50)[1:, ::-1].T),
        (lambda m: m @ m, lambda m: m[::3]),
    ],
)
def test_all_calls_compute_with_arrays_that_lie_the_same(f, lie):
    """However *m* lies in memory, sums and products of all calls have one rounding."""
    for seed in range(5):
        m = lie(np.random.default_rng(seed).standard_normal(3000))
        functional = ReducedFunctional(lambda m: f(m * 1.0 if f is np.sum else m), Control(m))
        both = functional.value_and_derivative(m)
        assert bits(functional.value(m)) == bits(both[0])
        assert bits(functional.derivative(m)) == bits(both[1])
        assert bits(functional.value(np.copy(m, order="K"))) == bits(both[0])


def test_containers_keep_their_structure_and_dtypes():
    """Derivative and Hessian action have structure, shapes and dtypes of each control: float32 stays float32."""
    first = {"w": np.ones((2, 3), np.float32), "b": [np.zeros(3, np.float32), 0.5]}
    second = (np.array(2.0), np.ones(2, complex))
    functional = ReducedFunctional(
        lambda a, b: np.sum(np.tanh(a["w"] + a["b"][0]) * a["b"][1]) * b[0] ** 2 + np.sum(np.abs(b[1]) ** 2),
        (Control(first), Control(second)),
    )
    m = (first, second)
    for found in (functional.derivative(m), functional.derivative(m, riesz=True), functional.hessian(m, m)):
        assert isinstance(found, tuple)
        assert found[0]["w"].shape == (2, 3)
        kinds = [x.dtype.char for x in (found[0]["w"], found[0]["b"][0], found[0]["b"][1], *found[1])]
        assert kinds == ["f", "f", "d", "d", "D"]
        assert isinstance(found[1][0], np.ndarray)
    single = ReducedFunctional(lambda u: np.sum(np.sin(u)), Control(np.ones(3, np.float32)))
    assert single.value(np.ones(3, np.float32)).dtype == np.float32


def test_riesz_gives_gradients_of_each_control():
    """With riesz=True each control's own inner product is used, for derivatives and for actions of the Hessian."""
    weights = np.linspace(1.0, 2.0, CELLS)
    functional = ReducedFunctional(nonlinear, [Control(U, weights), Control(1.3, lambda c: c / 10.0)])
    m = [U, 1.3]
    for call in (functional.derivative, partial(functional.hessian, direction=ALONG)):
        (c_u, c_k), (g_u, g_k) = call(m), call(m, riesz=True)
        assert np.array_equal(g_u, c_u / weights)
        assert g_k == c_k / 10.0


def test_hessian_is_symmetric():
    """The products e . H d and d . H e are equal, to rounding."""
    functional, other = inverse(), [np.cos(7.0 * PLACES), -0.2]
    h_d, h_e = functional.hessian([U, 0.4], ALONG), functional.hessian([U, 0.4], other)
    e_h_d = h_d[0] @ other[0] + h_d[1] * other[1]
    np.testing.assert_allclose(e_h_d, h_e[0] @ ALONG[0] + h_e[1] * ALONG[1], rtol=1e-12)


def test_a_functional_can_be_differentiated_again():
    """`value` is plain code to the transforms: its `grad` is the derivative."""
    functional = ReducedFunctional(lambda u: nonlinear(u, 1.3), Control(U))
    assert bits(grad(functional.value)(U)) == bits(functional.derivative(U))


def test_the_budget_is_passed_on():
    """A budget bounds derivative and Hessian action without changing a bit; too small a one says the least."""
    u = np.cos(np.linspace(0.0, 3.0, 4000))

    def f(v):
        return np.sum(timeloop(lambda w, _: w + 0.1 * np.sin(w) * np.cos(w), v, 60) ** 2)

    plain = ReducedFunctional(f, Control(u))
    tight = ReducedFunctional(f, Control(u), budget=Budget("600 KiB"))
    for call in (lambda J: J.derivative(u), lambda J: J.hessian(u, u)):
        with profile() as p:
            found = call(tight)
        assert p.steps_forward > 60
        assert bits(found) == bits(call(plain))
    for call in (lambda J: J.derivative(u), lambda J: J.hessian(u, u)):
        with pytest.raises(BudgetError) as caught:
            call(ReducedFunctional(f, Control(u), budget=Budget("1 KiB")))
        call(ReducedFunctional(f, Control(u), budget=Budget(caught.value.least)))


def test_memory_is_the_same_after_many_calls():
    """Nothing grows with the number of calls, without the collector, which finds nothing: pyadjoint's M3, M5, M9."""
    u = np.cos(np.linspace(0.0, 3.0, 20_000))
    functional = ReducedFunctional(lambda v, c: np.sum(timeloop(lambda w, _: w * np.cos(c * w), v, 5) ** 2),
                                   [Control(u), Control(1.3)])  # fmt: skip
    calls = [
        functional.value, functional.derivative, lambda m: functional.hessian(m, m),
        functional.value_and_derivative, partial(functional.derivative, riesz=True),
    ]  # fmt: skip
    gc.disable()
    try:
        for call in calls:
            call([u, 1.3])
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(4):
            for call in calls:
                call([u, 1.0 + number])
        assert gc.collect() == 0
        # Twenty calls leave less than one array, which is what one of them would hold by holding anything.
        assert tracemalloc.get_traced_memory()[0] - before < u.nbytes / 2
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    ("m", "error", "text"),
    [
        (U, ValueError, "a ndarray, and there are 2 controls"),
        ([U], ValueError, "1 values, and there are 2 controls"),
        ([U[1:], 0.4], ValueError, r"m\[0\] is of type float64\[15\], and its control of type float64\[16\]"),
        ([U, np.array([0.4])], ValueError, r"m\[1\]"),
        ([[U], 0.4], ValueError, "structure"),
        ([U.astype(np.float32), 0.4], TypeError, r"float32.*x.astype\('float64'\)"),
        ([U, 1], TypeError, r"m\[1\].*float\(1\)"),
    ],
)
def test_controls_of_another_type_are_refused(m, error, text):
    """A value that is not of the type of its control is an error that names it, for every method."""
    functional = chain()
    calls = (functional.value, functional.derivative, functional.value_and_derivative)
    for call in (*calls, lambda x: functional.hessian(x, ALONG)):
        with pytest.raises(error, match=text):
            call(m)
    with pytest.raises(error, match=text.replace("m\\[", "direction\\[")):
        functional.hessian([U, 0.4], m)


NO_NUMBERS = {
    "array": lambda u: u,
    "complex": lambda u: np.sum(u) * 1j,
    "nothing": lambda u: None,
    "text": lambda u: "a",
    "object": lambda u: np.array(None),
}


@pytest.mark.parametrize("f", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_functional_is_real(f):
    """A function that returns an array or a complex number is refused by every method."""
    functional = ReducedFunctional(f, Control(U))
    for call in (functional.value, functional.derivative, lambda m: functional.hessian(m, m)):
        with pytest.raises(TypeError, match=r"real|scalar|returned"):
            call(U)


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda u: u, r"an array of shape \(16,\)"),
        (lambda u: np.sum(u) * 1j, "a complex number"),
        (lambda u: 1j, "a complex number"),
        (lambda u: u * 1j, "a complex number"),
        (lambda u: None, "None"),
    ],
    ids=["array", "complex", "complex of Python", "complex array", "nothing"],
)
def test_what_a_functional_returns_is_named(f, text):
    """The message about a function that returns no real number says what it returns."""
    with pytest.raises(TypeError, match=f"returns a real number, and this one returns {text}\\. Take a sum"):
        ReducedFunctional(f, Control(U)).value(U)


@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (lambda x: 2.0, np.float64),
        (lambda x: 2, np.int64),
        (lambda x: x, np.float64),
        (lambda x: np.array(2.0, np.float32), np.float32),
        (lambda x: np.linalg.norm(np.reshape(x, 1)), np.float64),
    ],
    ids=["float", "int", "control", "array", "norm"],
)
def test_a_value_is_a_number_of_numpy(f, dtype):
    """Whether a function returns a number of Python or an array without axes, each value is a NumPy number."""
    functional = ReducedFunctional(f, Control(2.0))
    for found in (functional.value(2.0), functional.value_and_derivative(2.0)[0]):
        assert type(found) is dtype
        assert found == 2.0


def test_bad_lists_of_controls_are_refused():
    """No controls, or what is no Control, is told when the functional is made; a caller's list may change later."""
    with pytest.raises(ValueError, match="no controls"):
        ReducedFunctional(nonlinear, [])
    with pytest.raises(TypeError, match="Control 1 is a float"):
        ReducedFunctional(nonlinear, [Control(U), 1.3])
    for wrong in (None, 3, Control):
        with pytest.raises(TypeError, match=r"has no controls in .*write Control"):
            ReducedFunctional(nonlinear, wrong)
    with pytest.raises(TypeError, match="a set, which has no order"):
        ReducedFunctional(nonlinear, {Control(U), Control(1.3)})  # pyright: ignore[reportArgumentType]
    controls = [Control(U), Control(1.3)]
    functional = ReducedFunctional(nonlinear, controls)
    controls.clear()
    assert len(functional.derivative([U, 1.3])) == 2


@pytest.mark.parametrize("wrong", ["l2", "no", None, 1, np.ones(3)], ids=repr)
def test_riesz_of_a_call_is_a_flag(wrong):
    """The name of an inner product is none of a call, where it would count as True, whichever it names."""
    functional: Any = chain()
    m = [U, 1.3]
    for call in (functional.derivative, functional.value_and_derivative, partial(functional.hessian, m)):
        with pytest.raises(TypeError, match="give False for the cotangent, or True for the gradient"):
            call(m, riesz=wrong)
        assert bits(call(m, riesz=np.True_)) == bits(call(m, riesz=True))


def test_what_is_no_functional_is_refused():
    """What cannot be called with a value for each control, and what is no budget, is told when it is made."""
    for wrong in (None, 3, "f"):
        with pytest.raises(TypeError, match=r"ReducedFunctional takes a function .* type"):
            ReducedFunctional(wrong, Control(U))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"cannot be called as f\(m0\) \(missing .*here there are 1"):
        ReducedFunctional(nonlinear, Control(U))
    with pytest.raises(TypeError, match=r"cannot be called as f\(m0, m1\) \(too many"):
        ReducedFunctional(lambda u: np.sum(u**2), [Control(U), Control(1.3)])
    with pytest.raises(TypeError, match=r"budget= takes an ebbtide.Budget, not '64 MiB'"):
        ReducedFunctional(nonlinear, [Control(U), Control(1.3)], "64 MiB")  # pyright: ignore[reportArgumentType]


def test_a_wrapped_function_is_a_functional():
    """What says that it wraps a function may take other arguments than that."""
    product = hvp(lambda u: np.sum(u**3))
    functional = ReducedFunctional(lambda u, v: np.sum(product(u, v)), [Control(U), Control(U)])
    alone = ReducedFunctional(product, [Control(np.array(0.5)), Control(np.array(2.0))])
    assert alone.value([np.array(0.5), np.array(2.0)]) == 6.0
    assert functional.value([U, U]) == pytest.approx(6 * np.sum(U**2))
