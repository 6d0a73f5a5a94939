"""Vectors of registered types: derivatives, ownership, memory, and the errors of their spaces."""

from __future__ import annotations

import copy
import doctest
import gc
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optree
import pytest
from tests.fields import Field, Tensor, pack, product, random_field, same_bits, sine, spread, unpack, velocity
from tests.measure import peak_bytes

from ebbtide import (
    Budget,
    BudgetError,
    CotangentError,
    MutationError,
    TraceError,
    axpy,
    checkpoint,
    grad,
    inner,
    jvp,
    primitive,
    register_space,
    stop_gradient,
    timeloop,
    value_and_grad,
    vjp,
)
from ebbtide.testing import check_grads, check_space

V, W = random_field(1), random_field(2)


def numbers(field):
    """Return all numbers of a field."""
    return pack(field)[0]


def energy(v):
    """A function of a vector with operations of all sorts, of which the derivative is known by differences only."""
    x = product(sine(v), 0.5 * v + v * 2.0 - v / 4.0)
    return inner(x, axpy(-0.3, v, W)) + np.sum(velocity(x) ** 3)


# Derivatives.


def test_all_orders_and_modes():
    """Derivatives of vectors agree with differences, forward with reverse, and so do those of them, in any mixture."""
    check_grads(energy, V, order=2)


def test_containers_of_vectors_and_arrays():
    """Vectors are leaves of containers beside arrays and numbers, of arguments and of results."""

    def f(parameters, k):
        v, scale = parameters["v"], parameters["scale"]
        x = axpy(k[0], product(v, v), spread(np.sin(scale), v))
        return {"x": [x, -x], "mean": velocity(x) * k, "energy": inner(x, v)}

    check_grads(f, {"v": V, "scale": np.linspace(0.1, 1.0, 4)}, np.array([0.3, 0.5, 0.7, 0.9]), order=2)


def test_numbers_times_vectors():
    """Traced and plain numbers multiply vectors from both sides, and have derivatives."""

    def f(c, v):
        return inner(c * v + v * c - v / c + np.float64(2.0) * v - (-v) + (+v), W - sine(v))

    check_grads(f, np.float64(1.7), V, order=2)
    check_grads(lambda c, v: f(np.sum(c), v), np.array([0.7, 0.6]), V, order=1)


def test_gradient_has_the_type_and_form():
    """A gradient is a vector of the type and form of its argument, and the value has the bits of the plain run."""
    value, gradient = value_and_grad(energy)(V)
    assert type(gradient) is Field
    assert (gradient.u.shape, gradient.p.shape) == (V.u.shape, V.p.shape)
    assert value == energy(V)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_other_dtypes(dtype):
    """The dtype stays: float32 stays float32, also times a float64 number; complex vectors have complex gradients."""
    v = random_field(4, dtype=dtype)
    gradient = grad(lambda v: np.real(inner(v, np.float64(0.5) * v)))(v)
    assert gradient.u.dtype == gradient.p.dtype == dtype
    assert np.allclose(numbers(gradient), numbers(v).conj(), rtol=1e-6)


def test_pullbacks_take_vectors():
    """A pullback takes vectors as cotangents and gives vectors; retained, it gives the same bits again."""
    (x, mean), pullback = vjp(lambda v, w: (product(v, w), velocity(v)), V, W, retain=True)
    assert same_bits(x, product(V, W))
    first, again = pullback((W, mean)), pullback((W, mean))
    assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))
    assert np.allclose(numbers(first[1]), numbers(product(W, V)), rtol=1e-15)


def test_tangents_are_vectors():
    """`jvp` takes and gives vectors as tangents; what depends on nothing has a tangent of zeros."""
    (x, constant), (tangent, zero) = jvp(lambda v: (sine(v), W), (V,), (W,))
    assert same_bits(x, sine(V))
    assert np.array_equal(numbers(tangent), np.cos(numbers(V)) * numbers(W))
    assert same_bits(constant, W)
    assert not numbers(zero).any()


def test_argument_without_effect():
    """The gradient of what a function does not depend on is a vector of zeros."""
    gradient = grad(lambda v, x: x**2)(V, 3.0)
    assert type(gradient) is Field
    assert not numbers(gradient).any()


def test_checkpointed():
    """A checkpointed function of vectors has the derivatives of the plain one, with closures over vectors too."""

    def f(wrap):
        def g(v, k):
            body = wrap(lambda x: product(sine(x), v) + k * W)
            return inner(body(body(v)), W)

        return grad(g, argnums=(0, 1))(V, np.float64(0.7))

    (a, k), (b, k_again) = f(lambda body: body), f(checkpoint)
    assert np.allclose(numbers(a), numbers(b), rtol=1e-14)
    assert np.isclose(k, k_again, rtol=1e-14)


@pytest.mark.parametrize("transform", [grad, lambda f: lambda t: jvp(f, (t,), (t,))[1]], ids=["grad", "jvp"])
def test_operators_in_a_checkpointed_function(transform):
    """In both runs of a checkpointed function vectors among its arguments are traced: their type needs no operators."""
    constant, factor = Tensor(np.array([0.3, 0.5])), np.float64(1.5)
    ones = primitive(lambda t: Tensor(np.ones_like(t.data)), vjp=(None,), jvp=(None,))

    def f(t):
        body = checkpoint(lambda x, c: (x * 0.5 - c * 2.0 + t / factor) * inner(t, c * factor))
        return inner(body(t, constant), ones(t))

    def by_hand(x):
        return np.sum((x * 0.5 - constant.data * 2.0 + x / factor) * np.dot(x, constant.data * factor))

    x = np.array([0.9, 0.4])
    found = transform(f)(Tensor(x))
    assert np.allclose(getattr(found, "data", found), transform(by_hand)(x), rtol=1e-14)


def test_values_of_traced_vectors():
    """`stop_gradient` gives the plain vector, in memory of its own; an auxiliary output is plain too."""
    seen = []

    def f(v):
        seen.append(stop_gradient(sine(v)))
        return inner(v, seen[0]), {"v": sine(v)}

    gradient, aux = grad(f, has_aux=True)(V)
    assert same_bits(gradient, sine(V))
    assert same_bits(aux["v"], sine(V))
    assert same_bits(seen[0], sine(V))


def test_vectors_as_the_functions_of_an_operation_see_them():
    """The functions of an operation are given vectors of the type itself, in all modes without an outer trace."""
    seen = []

    def see(*values):
        seen.extend(map(type, values))
        return values[0]

    twice = primitive(
        lambda v: see(2.0 * v), vjp=(lambda g, v, out: 2.0 * see(g, v, out),), jvp=(lambda t: 2.0 * see(t),)
    )
    grad(lambda v: inner(twice(v), W))(V)
    jvp(twice, (V,), (W,))
    assert len(seen) == 6
    assert set(seen) == {Field}


def test_copies_of_a_traced_vector():
    """A traced vector is never changed, so it is its own copy; `+=` makes a new one for that name alone."""

    def f(v):
        x = copy.deepcopy(copy.copy(v))
        y = x
        y += v
        return inner(x, y)

    assert np.allclose(numbers(grad(f)(V)), 4 * numbers(V), rtol=1e-15)


# Ownership.


def test_fan_out():
    """A vector used many times has the sum of all cotangents; nobody's vector is written."""
    before = numbers(V), numbers(W)

    def f(v):
        total = v + v
        for _ in range(5):
            total = total + v + product(v, W)
        return inner(total, W)

    gradient = grad(f)(V)
    assert np.allclose(numbers(gradient), numbers(W) * (7 + 5 * numbers(W)), rtol=1e-14)
    assert np.array_equal(before[0], numbers(V))
    assert np.array_equal(before[1], numbers(W))


def test_fan_out_adds_in_place():
    """A vector used 50 times takes the memory of one sum, not of 50 cotangents."""
    big = Tensor(np.ones(100_000))
    peak = peak_bytes(lambda: grad(lambda t: sum(inner(t, big) for _ in range(50)))(big))
    assert peak <= 4.2 * big.data.nbytes


def test_gradient_belongs_to_the_caller():
    """Two gradients, the argument and the cotangent share no memory, whatever `pack` and `unpack` share."""
    x, w = Tensor(np.arange(3.0)), Tensor(np.ones(3))
    _, pullback = vjp(lambda t: (t, t + t), x, retain=True)
    vectors = [x, w, *pullback((w, w)), *pullback((w, w)), grad(lambda t: inner(t, w))(x)]
    owners = [v.data if v.data.base is None else v.data.base for v in vectors]
    assert len({id(owner) for owner in owners}) == len(vectors)
    assert all(v.data.flags.writeable for v in vectors)


def test_solver_that_returns_the_same_vector_each_time():
    """An operation may return one vector of its own again and again with new numbers: each result is what it was."""
    work = Tensor(np.zeros(3))

    def solve(t):
        np.multiply(t.data, t.data, out=work.data)
        return work

    square = primitive(solve, vjp=(lambda g, t: Tensor(2 * g.data * t.data),))
    x = Tensor(np.array([1.0, 2.0, 0.5]))
    gradient = grad(lambda t: inner(square(square(square(t))), Tensor(np.ones(3))))(x)
    assert np.allclose(gradient.data, 8 * x.data**7, rtol=1e-14)


def test_operands_cannot_be_written():
    """A vector that shares memory with what is saved cannot be written in an operation: NumPy says so."""

    def spoil(t):
        t.data *= 2.0
        return t

    bad = primitive(spoil, vjp=(lambda g: g,))
    with pytest.raises(ValueError, match="read-only"):
        grad(lambda t: inner(bad(sum_of(t, t)), t))(Tensor(np.ones(3)))


def sum_of(x, y):
    """X + y, also of plain vectors without operators."""
    return axpy(1.0, x, y)


def test_mutation_of_a_saved_vector():
    """A vector whose memory is saved must not change before the sweep; one that packs by copying may."""
    x = Tensor(np.ones(3))
    value, pullback = vjp(lambda t: inner(t, t), x)
    x.data[1] = 7.0
    with pytest.raises(MutationError, match="changed after"):
        pullback(value)
    v = random_field(1)
    _, pullback = vjp(lambda f: inner(f, f), v)
    v.u[0, 0] = 7.0
    assert same_bits(pullback(1.0)[0], 2.0 * V)


def test_mutation_of_a_constant():
    """So must a plain vector that an operation was given beside a traced one."""
    constant = Tensor(np.ones(3))

    def f(t):
        x = inner(t, constant)
        constant.data[0] += 1.0
        return x

    with pytest.raises(MutationError, match="changed after"):
        grad(f)(Tensor(np.ones(3)))


# Memory.


def test_argument_dies_at_its_last_use():
    """What an argument is packed to dies with its last use, and a function of arrays that makes a vector runs once."""
    calls = []

    def make(a):
        calls.append(a)
        return Tensor(2.0 * a)

    ref = []

    def rule(g):
        gc.collect()
        assert [r() for r in ref] == [None]
        return 2.0 * g.data

    made = primitive(make, vjp=(rule,))

    def f(a, v):
        ref.append(weakref.ref(v._array._value))
        return inner(made(a), made(a)) + np.sum(velocity(v))

    grad(f, argnums=(0, 1))(np.ones(3), random_field(1))
    assert len(calls) == 2


def test_saved_vectors_die_one_by_one():
    """The sweep lets go of a saved vector before the operation after its last use."""
    alive = []

    def rule(g, v):
        alive.append(sum(ref() is not None for ref in refs))
        return Tensor(g.data * v.data)

    refs = []

    op = primitive(lambda v: Tensor(v.data * 2.0), vjp=(rule,))

    def chain(v):
        for _ in range(5):
            v = op(v)
            refs.append(weakref.ref(v._array._value))
        return inner(v, Tensor(np.ones(3)))

    grad(chain)(Tensor(np.ones(3)))
    # Of the five results the last is not saved; each rule still has the one that it was given.
    assert alive == [4, 3, 2, 1, 0]


def test_saved_vectors_die_at_their_last_use():
    """A chain holds one saved vector for each operation and no copies of them."""
    big = random_field(1, rows=20_000)

    def chain(v):
        for _ in range(10):
            v = sine(v)
        return inner(v, constant)

    constant = random_field(2, rows=20_000)
    peak = peak_bytes(lambda: grad(chain)(big))
    # Ten saved operands and the constant; the cotangent; its vector, that of the operand, its cosine, the product of
    # these, and the product packed.
    assert peak <= (11 + 1 + 5) * big.nbytes + 50_000


def test_constants_are_kept_once():
    """A plain vector that many operations save is kept once, though it is packed each time."""
    big, constant = random_field(1, rows=20_000), random_field(2, rows=20_000)

    def chain(v):
        for _ in range(30):
            v = product(v, constant)
        return inner(v, constant)

    assert peak_bytes(lambda: grad(chain)(big)) <= 8.1 * big.nbytes


@pytest.mark.parametrize("later", [-0.0, -2.0, np.nan])
def test_constants_that_change_between_two_uses(later):
    """A plain vector that is written between two operations has for each the bits that it had then: -0.0 is not 0.0."""
    signed = primitive(
        lambda v, x: np.copysign(x, v.u), vjp=(None, lambda g, v, x: g * np.copysign(1.0, v.u) * np.sign(x))
    )

    def f(x):
        constant = Field(np.zeros((2, 2)), np.zeros(1))
        first = np.sum(signed(constant, x))
        constant.u[0] = later
        return first + 2.0 * np.sum(signed(constant, x))

    second = np.copysign(2.0, later)
    assert grad(f)(np.ones((2, 2))).tolist() == [[1.0 + second] * 2, [3.0] * 2]


def test_vectors_given_to_operations_are_not_kept():
    """The vectors that functions and rules are given die with the call: what is kept is packed."""
    refs = []

    def seen(v):
        refs.append(weakref.ref(v))
        return sine(v)

    op = primitive(seen, vjp=(lambda g, v: product(g, refs.append(weakref.ref(v)) or v),))
    value, pullback = vjp(lambda v: inner(op(sine(v)), W), V)
    assert [ref() for ref in refs] == [None]
    pullback(value)
    assert [ref() for ref in refs] == [None, None]
    gc.collect()
    assert gc.collect() == 0


@pytest.mark.parametrize("disk", [0, 1 << 30])
@pytest.mark.parametrize("units", [10, 13, 20])
def test_budget(units, disk):
    """A budget holds, or the call is refused with bytes at which it runs; bits are those without a budget."""
    big = random_field(1, rows=20_000)

    def chain(v):
        for _ in range(10):
            v = sine(v)
        return inner(v, v)

    alone = peak_bytes(lambda: chain(big))
    expected = grad(chain)(big)
    budget = Budget(memory=units * big.nbytes, disk=disk)
    found = []
    try:
        peak = peak_bytes(lambda: found.append(grad(chain, budget=budget)(big)))
    except BudgetError as error:
        budget = Budget(memory=error.least, disk=disk)
        peak = peak_bytes(lambda: found.append(grad(chain, budget=budget)(big)))
    assert peak - alone <= budget.memory <= 20 * big.nbytes
    assert same_bits(found[0], expected)


# The contract.


@pytest.mark.parametrize(
    ("type_", "examples"), [(Field, [V, random_field(3, rows=5, dtype=np.complex64)]), (Tensor, [Tensor(np.ones(4))])]
)
def test_contract(type_, examples):
    """The spaces of these tests keep to the contract."""
    check_space(type_, examples)


def make_space(**functions):
    """Return a new type, registered with these functions instead of right ones."""

    class Made:
        def __init__(self, data):
            self.data = data

    right = {"pack": lambda v: (v.data, ()), "unpack": lambda array, form: Made(array)}
    register_space(Made, **(right | functions))
    return Made


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"pack": lambda v: (v.data[:-1], len(v.data))}, "comes back as"),
        ({"pack": lambda v: (v.data * 1.5, ())}, "come back changed"),
        ({"pack": lambda v: (v.data, (1.0 * float(v.data.sum()),))}, "comes back as"),
        ({"pack": lambda v: (v.data, object())}, "not equal to itself|comes back as"),
        ({"pack": lambda v: (v.data, v)}, "comes back as"),
    ],
)
def test_contract_finds(functions, message):
    """`check_space` finds functions that lose numbers, change them, or put them into the form."""
    made = make_space(**functions)
    with pytest.raises(AssertionError, match=message):
        check_space(made, [made(np.arange(3.0))])


def test_contract_of_boundary_values():
    """`check_space` finds an `unpack` that puts some numbers right: its transpose is missing."""
    made = make_space()

    def constrained(array, form):
        array = array.copy()
        array[0] = 0.0
        return bad(array)

    bad = make_space(unpack=constrained)
    with pytest.raises(AssertionError, match="1 of 3 numbers of Made come back changed"):
        check_space(bad, [bad(np.arange(3.0))])
    check_space(made, [made(np.arange(3.0))])


def test_a_contract_is_of_a_type_and_of_a_list():
    """One vector in the place of a list, and what is no type, is an error that says what to give."""
    made = make_space()
    for wrong in (made(np.arange(3.0)), None):
        with pytest.raises(TypeError, match=r"no vectors of Made\. Give a list of them"):
            check_space(made, wrong)
    with pytest.raises(TypeError, match=r"no type of vectors\. Give the class"):
        check_space(made(np.arange(3.0)), [])
    with pytest.raises(AssertionError, match="int is not registered"):
        check_space(int, [1])


OPTIMIZED = """
import numpy as np
from ebbtide import register_space
from ebbtide.testing import check_space
class Halved:
    def __init__(self, data):
        self.data = data
register_space(Halved, pack=lambda v: (v.data, ()), unpack=lambda array, form: Halved(array / 2))
try:
    check_space(Halved, [Halved(np.ones(3))])
except AssertionError as error:
    print(error)
"""


def test_contract_without_assertions():
    """`check_space` finds the same where Python leaves `assert` out."""
    done = subprocess.run([sys.executable, "-O", "-c", OPTIMIZED], capture_output=True, text=True, check=True)
    assert "3 of 3 numbers of Halved come back changed" in done.stdout


# Errors.


def test_unregistered_type():
    """A vector of a type that is not registered is an error that says how to register it, wherever it is."""

    class Stranger:
        pass

    make = primitive(lambda x: Stranger(), vjp=(lambda g: g,))
    with pytest.raises(TypeError, match=r"argument 0\['s'\].*register it with ebbtide.register_space"):
        grad(lambda s: 1.0)({"s": Stranger()})
    with pytest.raises(TypeError, match=r"returned .*Stranger.*register_space"):
        vjp(lambda x: Stranger(), 1.0)
    with pytest.raises(TypeError, match=r"returned a Stranger.*register_space"):
        grad(make)(1.0)


def test_dataclass_that_is_no_container():
    """A dataclass that optree does not know is an error with what to write; with that it is a state and an argument."""

    @dataclass
    class Plain:
        u: np.ndarray

    @optree.dataclasses.dataclass(namespace="")
    class Known:
        u: np.ndarray

    f = lambda s: timeloop(lambda s, i: type(s)(s.u * 2.0), s, 3)
    for call in (lambda: f(Plain(np.ones(2))), lambda: grad(lambda s: np.sum(s.u))(Plain(np.ones(2)))):
        with pytest.raises(TypeError, match=r'Plain .*write @optree\.dataclasses\.dataclass\(namespace=""\) in place'):
            call()
    assert grad(lambda s: np.sum(f(s).u))(Known(np.ones(2))).u.tolist() == [8.0, 8.0]


def test_subclass_of_a_registered_type():
    """A subclass is a type of its own: `unpack` would give the base."""

    class Tracer(Field):
        __slots__ = ()

    with pytest.raises(TypeError, match="Field is a registered type of vectors, and its subclass Tracer is not"):
        grad(lambda v: inner(v, v))(Tracer(V.u, V.p))


@pytest.mark.parametrize("type_", [np.ndarray, float, tuple, dict, bool, np.float32])
def test_types_that_need_no_space(type_):
    """Arrays, numbers and containers cannot be registered."""
    with pytest.raises(TypeError, match="takes apart by itself"):
        register_space(type_, pack=pack, unpack=unpack)


def test_registering():
    """A type is registered once; what is no type is refused."""
    with pytest.raises(ValueError, match="Field is registered already"):
        register_space(Field, pack=pack, unpack=unpack)
    with pytest.raises(TypeError, match="takes a class"):
        register_space(V, pack=pack, unpack=unpack)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"pack": lambda v: v.data}, "pack of the vector type Made returned ndarray"),
        ({"pack": lambda v: (v.data.astype(int), ())}, "returned int64"),
        ({"pack": lambda v: ([v.data], ())}, "returned list"),
        ({"pack": lambda v: (v.data, [3])}, "which has no hash"),
        ({"unpack": lambda array, form: array}, "unpack of the vector type Made returned a ndarray"),
    ],
)
def test_functions_that_return_something_else(functions, message):
    """A `pack` or `unpack` that returns something else is an error that says what is due."""
    made = make_space(**functions)
    with pytest.raises(TypeError, match=message):
        grad(lambda v: inner(v, v))(made(np.arange(3.0)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda v: (v.data[1:], ()), r"float64\[3\] was unpacked, packed again, and came back as float64\[2\]"),
        (lambda v: (v.data + 1.0, ()), "with other numbers"),
        (lambda v: (v.data[1:], len(v.data)), "the form 4 came back as 3"),
    ],
)
@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_functions_that_do_not_fit_together(transform, wrong, message):
    """A vector that comes back changed from `pack` and `unpack` is refused: its gradient would be wrong."""
    made = make_space(pack=wrong)
    v = made(np.arange(4.0))
    with pytest.raises(ValueError, match=f"do not fit together: .*{message}"):
        grad(lambda w: inner(w, w))(v) if transform == "grad" else jvp(lambda w: w, (v,), (v,))


def test_numpy_on_a_traced_vector():
    """A NumPy function of a traced vector says where it was called and what to do instead."""
    for call in (np.sum, np.sin, np.asarray, lambda v: np.stack([v]), lambda v: np.add(v, 1.0, out=np.zeros(3))):
        with pytest.raises(TraceError, match=r"traced vector of type Field.*ebbtide\.primitive"):
            grad(lambda v, call=call: inner(v, v) + call(v))(V)


def test_attributes_of_a_traced_vector():
    """What a vector has and a traced one has not is an error that says how to get at it."""
    with pytest.raises(AttributeError, match=r"no attribute 'u'.*stop_gradient"):
        grad(lambda v: np.sum(v.u))(V)


@pytest.mark.parametrize(
    "call",
    [
        lambda v: v * v,
        lambda v: v + 1.0,
        lambda v: 1.0 / v,
        lambda v: np.ones(3) * v,
        lambda v: velocity(v) * v,
        lambda v: axpy(v, v, v),
        lambda v: axpy(1.0, v, 2.0),
        lambda v: inner(v, np.ones(3)),
        lambda v: v + Tensor(np.ones(22)),
        lambda v: inner(v, random_field(1, rows=4)),
        lambda v: v + random_field(1, dtype=np.float32),
        lambda v: v * 1j,
    ],
)
def test_operands_that_do_not_fit(call):
    """Vectors are added to vectors of their space and multiplied by numbers; all else is a TypeError."""
    with pytest.raises(TypeError):
        grad(lambda v: inner(v, v) + inner(call(v), v))(V)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (numbers, r"vjp rule of f for 'v' returned a ndarray.*a vector Field"),
        (lambda g: random_field(1, rows=5), r"returned Field\[\(\(5, 4\), \(4, 5\)\)\]"),
        (lambda g: Tensor(np.ones(3)), r"returned Tensor"),
        (lambda g: None, "returned a NoneType"),
    ],
)
def test_rules_that_return_something_else(rule, message):
    """A rule returns a vector of the space and form of its operand."""

    def f(v):
        return 1.0 * v

    op = primitive(f, vjp=(rule,))
    with pytest.raises(CotangentError, match=message):
        grad(lambda v: inner(op(v), W))(V)


def test_cotangent_of_another_form():
    """A cotangent or tangent of another form is refused, and both forms are shown."""
    _, pullback = vjp(sine, V)
    with pytest.raises(CotangentError, match=r"Field\[\(\(5, 4\), .*Field\[\(\(3, 4\), "):
        pullback(random_field(1, rows=5))
    with pytest.raises(CotangentError, match="tangent of argument 0"):
        jvp(sine, (V,), (random_field(1, rows=5),))


def test_gradient_of_a_vector_valued_function():
    """`grad` of a function that returns a vector says what to return instead."""
    with pytest.raises(TypeError, match=r"returned a vector.*ebbtide\.inner"):
        grad(sine)(V)


def test_page():
    """The sessions of docs/spaces.md run as they are printed."""
    found = doctest.testfile(str(Path(__file__).parents[2] / "docs" / "spaces.md"), module_relative=False)
    assert found.attempted >= 15
    assert found.failed == 0


def test_missing_rule():
    """An operation without a rule says which rule is missing, for vectors as for arrays."""
    bare = primitive(lambda v: 2.0 * v)
    with pytest.raises(TraceError, match="has no vjp rule"):
        grad(lambda v: inner(bare(v), W))(V)
    with pytest.raises(TraceError, match="has no jvp rule"):
        jvp(bare, (V,), (V,))
