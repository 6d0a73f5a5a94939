"""Operations that users define."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from tests.measure import check_leaves_nothing, peak_bytes
from tests.nestings import WAYS, check_ways

import ebbtide
from ebbtide import Budget, CotangentError, RuleMissingError, grad, jvp, linearize, primitive, timeloop, vjp, vmap

X = np.linspace(0.5, 1.5, 5)


def test_rules_take_what_they_name():
    """A rule gets cotangent, parameters and result by the names of its parameters, in any order."""
    got = {}

    def of_x(g, y, out, x):
        got["x"] = x, y, out
        return g * y

    def of_y(cotangent, x):
        got["y"] = x
        return cotangent * x

    product = primitive(lambda x, y: x * y, vjp=(of_x, of_y))
    a, b = grad(lambda x, y: np.sum(product(x, y)), (0, 1))(X, 2 * X)
    assert np.array_equal(a, 2 * X)
    assert np.array_equal(b, X)
    assert [np.array_equal(u, v) for u, v in zip(got["x"], (X, 2 * X, 2 * X * X), strict=True)] == [True] * 3
    assert np.array_equal(got["y"], X)


def test_result_under_another_name():
    """A function that has a parameter `out` says what its rules call the result."""
    def scale(x, out):
        return x * out

    with pytest.raises(TypeError, match="output="):
        primitive(scale, vjp=(lambda g, out: g * out, None))
    op = primitive(
        scale, vjp=(lambda g, out, result, x: g * (out + 0 * result * x), lambda g, x: g * x), output="result"
    )
    a, b = grad(lambda x, y: np.sum(op(x, y)), (0, 1))(X, 3 * X)
    assert np.array_equal(a, 3 * X)
    assert np.array_equal(b, X)
    squared = primitive(scale, vjp=(None, lambda g, out, r: g * r / out), output="r")
    assert np.allclose(grad(lambda y: np.sum(squared(X, y)))(2 * X), X, rtol=1e-15)


def test_rule_that_is_none():
    """A parameter with the rule None has no derivative; what only its rule would need is not kept."""
    op = primitive(lambda x, k: x * k, vjp=(lambda g, k: g * k, None))
    a, b = grad(lambda x, k: np.sum(op(x, k)), (0, 1))(X, 2 * X)
    assert np.array_equal(a, 2 * X)
    assert np.array_equal(b, np.zeros(5))
    assert np.array_equal(grad(lambda x: np.sum(op(x, 3)))(X), np.full(5, 3.0))
    only = primitive(lambda k: k * 2, vjp=(None,))
    assert np.array_equal(grad(lambda x: np.sum(only(x) + x))(X), np.ones(5))


@pytest.mark.parametrize("rules", [(), (lambda g: g,), (lambda g: g,) * 3])
@pytest.mark.parametrize("mode", ["vjp", "jvp"])
def test_number_of_rules(rules, mode):
    """As many rules as parameters are wanted when the operation is defined, and the error counts them."""
    with pytest.raises(TypeError, match=f"2 parameters .* and {len(rules)} {mode} rules"):
        primitive(lambda x, y: x, **{mode: rules})


@pytest.mark.parametrize("mode", ["vjp", "jvp"])
def test_rule_that_asks_for_nothing_known(mode):
    """A rule that names what there is not is an error when the operation is defined, which lists what there is."""
    with pytest.raises(TypeError, match=r"'z'.*\('x', 'y'\).*'out'"):
        primitive(lambda x, y: x, **{mode: (lambda g, z: g, None)})


def test_missing_rules():
    """An operation without a rule for a mode works on plain arrays, and raises where that mode is used."""
    only_reverse = primitive(lambda x: x * x, vjp=(lambda g, x: 2 * g * x,))
    only_forward = primitive(lambda x: x * x, jvp=(lambda t, x: 2 * t * x,))
    assert only_reverse(3.0) == only_forward(3.0) == 9.0
    assert grad(only_reverse)(3.0) == 6.0
    assert jvp(only_forward, (3.0,), (1.0,))[1] == 6.0
    with pytest.raises(RuleMissingError, match="jvp"):
        jvp(only_reverse, (3.0,), (1.0,))
    with pytest.raises(RuleMissingError, match="vjp"):
        grad(only_forward)(3.0)


def test_one_rule_for_one_parameter():
    """A function of one parameter may be given its rule without a tuple."""
    cube = primitive(lambda x: x**3, vjp=lambda g, x: 3 * g * x**2, jvp=lambda t, x: 3 * t * x**2)
    assert grad(cube)(2.0) == 12.0
    assert jvp(cube, (2.0,), (1.0,))[1] == 12.0


def test_keywords_and_defaults():
    """Arguments may be given by keyword and have defaults, as in the function itself."""
    def power(x, n=2, *, offset=0.0):
        return x**n + offset

    op = primitive(power, vjp=(lambda g, x, n: g * n * x ** (n - 1), None, lambda g: g * 1))
    assert grad(op)(3.0) == 6.0
    assert grad(lambda x: op(x, n=3))(2.0) == 12.0
    assert grad(lambda x: op(n=3, x=x, offset=x))(2.0) == 13.0
    assert op.__name__ == "power"


def test_orders():
    """Rules of traceable operations give derivatives of all orders, in both modes and their mixtures."""
    cube = primitive(lambda x: x**3, vjp=(lambda g, x: g * 3 * x**2,), jvp=(lambda t, x: t * 3 * x**2,))
    assert grad(grad(cube))(2.0) == 12.0
    assert grad(grad(grad(cube)))(2.0) == 6.0
    assert jvp(grad(cube), (2.0,), (1.0,))[1] == 12.0
    assert grad(lambda x: jvp(cube, (x,), (1.0,))[1])(2.0) == 12.0


def test_rules_by_the_output_in_second_order():
    """A rule in terms of the output is differentiated through the output."""
    exp = primitive(lambda x: np.exp(1.0 * x), vjp=(lambda g, out: g * out,), jvp=(lambda t, out: t * out,))
    total = lambda f: lambda x: np.sum(f(x))
    assert np.allclose(grad(total(grad(total(exp))))(X), np.exp(X), rtol=1e-15)
    assert np.allclose(grad(total(grad(total(grad(total(exp))))))(X), np.exp(X), rtol=1e-15)
    assert np.allclose(jvp(grad(total(exp)), (X,), (X,))[1], X * np.exp(X), rtol=1e-15)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ((lambda g: g, lambda g: g), {"x": False, "y": False, "out": False}),
        ((lambda g, x: g, lambda g: g), {"x": True, "y": False, "out": False}),
        ((lambda g, y: g, None), {"x": False, "y": True, "out": False}),
        ((None, lambda g, out: g), {"x": False, "y": False, "out": True}),
        ((lambda g, x, y, out: g, None), {"x": True, "y": True, "out": True}),
    ],
)
def test_exactly_the_named_values_are_saved(rules, kept):
    """After the forward run those operands and results are alive that rules name, and no others."""
    refs = {}
    inner = primitive(lambda x, y: x + y, vjp=rules)

    def make(name):
        def fun(v):
            made = v + 1.0
            refs[name] = weakref.ref(made)
            return made

        return primitive(fun, vjp=(lambda g: g,))

    start_x, start_y = make("x"), make("y")

    def watched(x, y):
        out = inner(start_x(x), start_y(y))
        return make("end")(out)

    plain = inner
    outs = []
    recorded = primitive(lambda x, y: outs.append(x + y) or outs[-1], vjp=rules)

    def f(x, y):
        result = np.sum(recorded(start_x(x), start_y(y)))
        refs["out"] = weakref.ref(outs.pop())
        return result

    value, pullback = vjp(f, X, X)
    assert {name: refs[name]() is not None for name in kept} == kept
    pullback(value)
    assert [refs[name]() for name in kept] == [None] * 3
    assert plain is inner
    assert watched is not None


def test_only_active_rules_save():
    """Where a parameter is a constant, what its rule alone names is not kept."""
    product = primitive(lambda x, y: x @ y, vjp=(lambda g, y: g @ y.T, lambda g, x: x.T @ g))
    constant = np.eye(300)

    def f(x):
        for _ in range(20):
            x = product(x, constant)
        return np.sum(x)

    assert peak_bytes(lambda: grad(f)(constant)) <= 3.2 * constant.nbytes


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda g: np.ones(3), r"float64\[3\].*float64\[5\]"),
        (lambda g: g * 1j, "complex128"),
        (lambda g: np.sum(g * 1), r"\[\]"),
        (lambda g: None, "object|None"),
        (lambda g: "text", "U4|str"),
    ],
)
def test_cotangent_of_the_wrong_type(result, message):
    """A rule that returns another shape or field is an error that names operation and line, and gives both types."""
    bad = primitive(lambda x: x * 1.0, vjp=(result,))

    def f(x):
        return np.sum(bad(x))

    with pytest.raises(CotangentError, match=message) as caught:
        grad(f)(X)
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in str(caught.value)


@pytest.mark.parametrize("derivative", [jvp, lambda f, x, t: linearize(f, *x)[1](*t)], ids=["jvp", "linearize"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda t: np.ones(3), r"float64\[3\].*float64\[5\]"),
        (lambda t: t.sum(), r"float64\[\].*float64\[5\]"),  # is not broadcast
        (lambda t: t * 1j, "complex128"),
        (lambda t: None, "object"),
        (lambda t: "text", "U4"),
    ],
)
def test_tangent_of_the_wrong_type(result, message, derivative):
    """A rule that returns another shape or field as a tangent is an error that names it, and gives both types."""

    def bad(x):
        return x * 1.0

    with pytest.raises(CotangentError, match=f"jvp rule of bad for 'x' returned .*{message}"):
        derivative(primitive(bad, jvp=(result,)), (X,), (X,))


def test_cotangents_are_cast():
    """A rule that returns a wider dtype is cast to that of its operand."""
    wide = primitive(lambda x: x * 2, vjp=(lambda g: g.astype(np.float64) * 2,))
    gradient = grad(lambda x: np.sum(wide(x)))(X.astype(np.float32))
    assert gradient.dtype == np.float32
    assert np.array_equal(gradient, np.full(5, 2.0))


def test_function_of_several_results():
    """A function that returns a tuple is no primitive, and the error says so."""
    pair = primitive(lambda x: (x, x), vjp=(lambda g: g,))
    with pytest.raises(TypeError, match="tuple"):
        grad(pair)(1.0)
    with pytest.raises(TypeError, match="tuple"):
        pair(1.0)


def test_function_that_returns_its_argument():
    """A primitive may return its argument or a view of it: nothing is written through it."""
    first = primitive(lambda x: x[:2], vjp=(lambda g, x: np.concatenate([g, 0 * x[2:]]),))

    def f(x):
        y = first(x)
        y += 1.0
        return np.sum(y * y) + np.sum(x)

    x = X.copy()
    gradient = grad(f)(x)
    assert np.array_equal(x, X)
    assert np.allclose(gradient, np.r_[2 * (X[:2] + 1) + 1, 1, 1, 1])


def test_python_numbers_and_integers():
    """Functions and rules may return Python numbers; integer parameters have no derivative and need none."""
    op = primitive(lambda x, n: float(x) ** n, vjp=(lambda g, x, n: float(g * n * x ** (n - 1)), None))
    value, gradient = ebbtide.value_and_grad(op)(2.0, 3)
    assert (value, gradient) == (8.0, 12.0)
    assert type(gradient) is np.float64


# A program is told no types by a user's primitive.
NO_PROGRAM = [name for name in WAYS if "jit" not in name]


def by_a_rule(t, x, loop):
    """The derivative of x sin(x), by a loop that gets all as its state."""
    return loop(lambda a, i: a * 1.0, t * (np.cos(x) * x + np.sin(x)), 2)


def by_a_rule_that_closes_over(t, x, loop):
    """The same, by a step that closes over what is saved."""
    return loop(lambda a, i: a * (np.cos(x) * x + np.sin(x)), t, 1)


def by_a_rule_that_writes(t, x, loop):
    """The same, by a step that writes into its state."""

    def step(a, i):
        a[0] = a[0] * (np.cos(x[0]) * x[0] + np.sin(x[0]))
        a[1:] = a[1:] * (np.cos(x[1:]) * x[1:] + np.sin(x[1:]))
        return a

    return loop(step, t, 1)


@pytest.mark.parametrize("members", [False, True], ids=["member by member", "batch rule"])
@pytest.mark.parametrize("rule", [by_a_rule, by_a_rule_that_closes_over])
def test_time_loop_in_a_rule(rule, members):
    """A rule may run a time loop, as an adjoint solver does, under any other derivatives."""

    def function(loop, x):
        def of_loop(t, x):
            return rule(t, x, loop)

        def value(x):
            return np.sin(loop(lambda a, i: a * 1.0, x, 2)) * x

        batch = (lambda mapped, x: np.sin(x) * x) if members else None
        return np.sum(primitive(value, vjp=(of_loop,), jvp=(of_loop,), batch=batch)(x) ** 2)

    check_ways(function, NO_PROGRAM, rtol=1e-12, atol=1e-14)


def test_time_loop_in_a_rule_that_writes():
    """The step of a loop in a rule may write into its state, whatever derivatives are taken around."""

    def function(loop, x):
        def of_loop(t, x):
            return by_a_rule_that_writes(t, x, loop) if loop is timeloop else by_a_rule(t, x, loop)

        return np.sum(primitive(lambda x: np.sin(x) * x, vjp=(of_loop,), jvp=(of_loop,))(x) ** 2)

    check_ways(function, NO_PROGRAM, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("way", NO_PROGRAM)
def test_any_derivative_is_that_of_the_rules(way):
    """The derivatives of an operation are those of what its function and rules compute."""
    x, direction = np.array([0.4, 0.9]), np.array([0.6, -0.3])

    def slope(t, x):
        return t * (np.cos(x) * x + np.sin(x))

    own = primitive(lambda x: np.sin(x) * x, vjp=(slope,), jvp=(slope,))
    found = WAYS[way](lambda x: np.sum(own(x) ** 2), x, direction)
    wanted = WAYS[way](lambda x: np.sum((np.sin(x) * x) ** 2), x, direction)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_time_loop_in_a_function_is_not_recorded():
    """The function of an operation runs on plain arrays, outside of what is recorded: a loop in it keeps no states."""
    x = np.ones(100_000)
    own = primitive(lambda x: timeloop(lambda a, i: np.sin(a), x, 64), vjp=(lambda g, x: g * x,))
    budget = Budget(memory=4 * x.nbytes)  # a loop that is recorded needs more for one step
    np.testing.assert_array_equal(grad(lambda x: np.sum(own(x)), budget=budget)(x), x)


@pytest.mark.parametrize("way", ["grad", "hvp", "vmap of grad"])
def test_an_operation_that_is_made_in_a_function_goes_with_it(way):
    """Declared where it is used, with rules that close over an array, an operation leaves nothing to the collector."""

    def call(x):
        def f(y):
            own = primitive(lambda v: v * x, vjp=(lambda g: g * x,), jvp=(lambda t: t * x,))
            return np.sum(own(y) ** 2)

        return WAYS[way](f, np.ones_like(x), np.cos(x))

    check_leaves_nothing([call], X)


def summed(of_one):
    """Return functions of an array that use a function of the user's several times."""
    return {
        "sums": lambda x: np.sum(of_one(x) * np.cos(x) + of_one(x * x) * of_one(x)),
        "twice": lambda x: np.sum(of_one(x) * of_one(2.0 * x) + of_one(of_one(x))),
        "steps": lambda x: np.sum(timeloop(lambda u, i: u + 0.1 * of_one(np.sin(u)) * of_one(x), x, 4) ** 2),
    }


MODES = {
    "grad": lambda f, x: grad(f)(x),
    "jvp": lambda f, x: np.array([jvp(f, (x,), (row,))[1] for row in np.eye(x.size)]),
    "linearize": lambda f, x: np.stack([push(row) for push in [linearize(f, x)[1]] for row in np.eye(x.size)]),
    "members": lambda f, x: vmap(grad(f))(np.stack([x, 2.0 * x]))[0],
    "around members": lambda f, x: grad(lambda x: np.sum(vmap(f)(np.stack([x, 2.0 * x]))[0]))(x),
    "tangents of members": lambda f, x: vmap(lambda t: jvp(f, (x,), (t,))[1])(np.eye(x.size)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sums", "twice", "steps"])
def test_rules_that_return_one_array_each_time(name, mode):
    """Of what a rule returned nothing changes when it is called again, as of a solver with one array for results."""
    there, back = np.zeros(4), np.zeros(4)
    doubled = primitive(
        lambda x: 2.0 * x,
        vjp=(lambda g: np.multiply(g, 2.0, out=back),),
        jvp=(lambda t: np.multiply(t, 2.0, out=there),),
    )
    x = np.linspace(0.3, 1.0, 4)
    found, expected = [MODES[mode](summed(f)[name], x) for f in (doubled, lambda x: 2.0 * x)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_results_of_rules_belong_to_the_caller():
    """Derivatives that were returned are those of their call, whatever comes after it."""
    there, back = np.zeros(4), np.zeros(4)
    doubled = primitive(
        lambda x: 2.0 * x,
        vjp=(lambda g: np.multiply(g, 2.0, out=back),),
        jvp=(lambda t: np.multiply(t, 2.0, out=there),),
    )
    x, rows = np.ones(4), np.eye(4)
    assert np.array_equal(np.array([jvp(doubled, (x,), (row,))[1] for row in rows]), 2.0 * rows)
    assert np.array_equal(np.array([vjp(doubled, x)[1](row)[0] for row in rows]), 2.0 * rows)
    both = vjp(lambda x, y: (doubled(x), doubled(y)), x, x)[1]((rows[0], rows[1]))
    assert np.array_equal(np.array(both), 2.0 * rows[:2])


def test_members_of_a_function_with_one_array_for_all_results():
    """Each member of a batch has its own result."""
    results = np.zeros(3)
    doubled = primitive(lambda x: np.multiply(x, 2.0, out=results))
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(vmap(doubled)(x), 2.0 * x)
