from __future__ import annotations

import functools
import gc
import sys
import tracemalloc
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from ebbtide import CotangentError, TraceError, grad, hvp, jvp, stop_gradient, value_and_grad, vjp

Point = namedtuple("Point", "x y")


def weighted(*args):
    """Return a sum in which argument k has the gradient k + 1."""
    return sum((k + 1) * np.sum(a) for k, a in enumerate(args))


# Which arguments.


def test_argnums():
    """`argnums` chooses arguments by number, several in the order asked for, negative ones from the end."""
    args = (np.ones(2), np.ones(3), 1.0)
    assert np.array_equal(grad(weighted)(*args), [1, 1])
    assert np.array_equal(grad(weighted, 1)(*args), [2, 2, 2])
    assert grad(weighted, -1)(*args) == 3.0
    c, a = grad(weighted, (2, 0))(*args)
    assert c == 3.0
    assert np.array_equal(a, [1, 1])
    (only,) = grad(weighted, [1])(*args)
    assert np.array_equal(only, [2, 2, 2])


@pytest.mark.parametrize("argnums", [3, -4, (0, 3)])
def test_argnums_out_of_range(argnums):
    """An argument that was not passed is an error with the numbers, before the function runs."""
    calls = []
    with pytest.raises(TypeError, match="3 positional"):
        grad(lambda *args: calls.append(1), argnums)(1.0, 2.0, 3.0)
    assert calls == []


@pytest.mark.parametrize("argnums", [(0, 0), (1, 0, -2)])
def test_argnums_twice(argnums):
    """An argument that is asked for twice is an error: each of the two would have a part of the gradient."""
    for transform in (grad, hvp):
        with pytest.raises(TypeError, match="twice"):
            transform(lambda x, y: x * y, argnums)(2.0, 3.0, (1.0, 1.0))


def test_argnums_of_numpy():
    """A NumPy integer is a number like another."""
    assert grad(lambda x, y: x * y, np.int64(1))(2.0, 3.0) == 2.0
    assert hvp(lambda x, y: x * y**2, np.int64(1))(2.0, 3.0, 1.0) == 4.0


def test_keywords_are_constants():
    """Keyword arguments are passed on and not differentiated; defaults hold."""
    def f(x, *, scale=3.0, power=1):
        return np.sum(scale * x**power)

    assert np.array_equal(grad(f)(np.ones(2)), [3.0, 3.0])
    assert np.array_equal(grad(f)(np.ones(2), scale=2.0, power=2), [4.0, 4.0])


def test_other_arguments_are_passed_as_they_are():
    """What is not differentiated reaches the function as the same object."""
    class Thing:
        value = 2.0

    thing, integers = Thing(), np.arange(3)

    def f(x, t, k):
        assert t is thing
        assert k is integers
        return np.sum(x * k) * t.value

    assert np.array_equal(grad(f)(np.ones(3), thing, integers), [0.0, 2.0, 4.0])


def test_names_survive():
    """The derivative of a function has its name and docstring."""
    def objective(x):
        """Return x."""
        return x

    for transform in (grad, value_and_grad):
        assert transform(objective).__name__ == "objective"
        assert transform(objective).__doc__ == "Return x."
    assert grad(functools.partial(lambda a, b: a * b, 3.0))(2.0) == 3.0


# What may go in.


@pytest.mark.parametrize(
    ("value", "cast"),
    [
        (3, r"float\(3\)"),
        (True, r"float\(True\)"),
        (np.int32(3), r"float\(3\)"),
        (np.arange(3), r"x\.astype\(float\)"),
        (np.ones(2, bool), r"x\.astype\(float\)"),
        ({"w": [np.ones(2), np.arange(2)]}, r"argument 0\['w'\]\[1\].*x\.astype\(float\)"),
    ],
)
@pytest.mark.parametrize("transform", ["grad", "value_and_grad", "vjp", "jvp"])
def test_integers_have_no_gradient(transform, value, cast):
    """An integer argument is a TypeError that says which and gives the cast to write."""
    calls = {
        "grad": lambda: grad(lambda x: 1.0)(value),
        "value_and_grad": lambda: value_and_grad(lambda x: 1.0)(value),
        "vjp": lambda: vjp(lambda x: 1.0, value),
        "jvp": lambda: jvp(lambda x: 1.0, (value,), (value,)),
    }
    with pytest.raises(TypeError, match=cast):
        calls[transform]()


@pytest.mark.parametrize("value", ["text", object(), np.array(["a"]), np.array([None])])
def test_what_is_no_number_has_no_gradient(value):
    """An argument that is no number is a TypeError that says what it is."""
    with pytest.raises(TypeError, match=type(value).__name__):
        grad(lambda x: 1.0)(value)


@pytest.mark.parametrize(
    "value",
    [2.0, *[t(2.0) for t in (np.float64, np.float32, np.float16, np.longdouble, np.array)], np.array(2.0, np.float32)],
    ids=lambda v: f"{type(v).__name__}-{getattr(v, 'dtype', 'float')}",
)
def test_numbers(value):
    """A number in gives a number out, of its dtype; a 0-d array a 0-d array, and the value is that of f."""
    def f(x):
        return x * x * x + np.exp(x) - 1 / x

    result, gradient = value_and_grad(f)(value)
    expected = 12.0 + np.exp(2.0) + 0.25
    assert float(gradient) == pytest.approx(expected, rel=1e-2 if gradient.dtype == np.float16 else 1e-6)
    assert gradient.dtype == getattr(value, "dtype", np.float64)
    assert isinstance(gradient, np.ndarray if isinstance(value, np.ndarray) else np.generic)
    assert np.shape(gradient) == ()
    assert result == f(value)
    assert result.dtype == np.asarray(f(value)).dtype


def test_subclasses_and_layouts():
    """Read-only, Fortran-ordered, strided and big-endian inputs have gradients of their shape and dtype."""
    base = np.arange(24.0).reshape(4, 6)
    frozen = base.copy()
    frozen.flags.writeable = False
    for x in (np.asfortranarray(base), base[::2, ::-1], base.T, frozen, base.astype(">f8"), base[:0]):
        gradient = grad(lambda x: np.sum(x * x))(x)
        assert gradient.shape == x.shape
        assert gradient.dtype == x.dtype
        assert np.array_equal(gradient, 2 * x)


# Containers.


def test_containers():
    """The gradient has the structure of its argument: dicts, lists, tuples, named tuples and None."""
    tree = {
        "list": [np.ones(2), 3.0],
        "tuple": (np.float32(2.0), {"deep": np.ones((1, 2))}),
        "point": Point(np.ones(3), None),
        "ordered": OrderedDict(b=np.ones(1), a=2.0),
        "none": None,
        "empty": [],
    }

    def f(t):
        assert isinstance(t["point"], Point)
        assert t["none"] is None
        total = np.sum(t["list"][0]) * 2 + t["list"][1] * t["list"][1] + np.sum(t["tuple"][1]["deep"]) * 5
        return total + np.sum(t["point"].x * t["ordered"]["a"]) + t["tuple"][0] * 4 + np.sum(t["ordered"]["b"])

    g = grad(f)(tree)
    assert list(g) == list(tree)
    assert np.array_equal(g["list"][0], [2, 2])
    assert g["list"][1] == 6.0
    assert isinstance(g["tuple"], tuple)
    assert g["tuple"][0] == 4
    assert g["tuple"][0].dtype == np.float32
    assert np.array_equal(g["tuple"][1]["deep"], [[5, 5]])
    assert isinstance(g["point"], Point)
    assert np.array_equal(g["point"].x, [2, 2, 2])
    assert g["point"].y is None
    assert isinstance(g["ordered"], OrderedDict)
    assert list(g["ordered"]) == ["b", "a"]
    assert g["ordered"]["a"] == 3.0
    assert g["none"] is None
    assert g["empty"] == []


def allocations(count):
    """Return calls into the library and peak bytes of a gradient with respect to a list of arrays, per array."""
    parameters = [np.ones(2) for _ in range(count)]

    def f(parameters):
        total = 0.0
        for p in parameters:
            total = total + np.sum(p * 2.0)
        return total

    call = grad(f)
    call(parameters[:2])
    gc.collect()  # the interpreter keeps freed tuples for the next to come, unseen by tracemalloc
    tracemalloc.start()
    call(parameters)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    calls = 0

    def count_calls(frame, event, arg):
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count_calls)
    try:
        call(parameters)
    finally:
        sys.setprofile(None)
    return calls / count, peak / count


def test_containers_cost_the_same_for_each_leaf():
    """With eight times as many leaves each leaf takes no more calls, and no more bytes: nothing is container-sized."""
    calls, nbytes = allocations(400)
    more_calls, more_bytes = allocations(3200)
    assert more_calls <= calls
    assert more_bytes <= 1.1 * nbytes


def test_no_zeros_of_the_size_of_the_container():
    """Using one leaf of a large container at a time takes the gradients and a leaf, never the container twice."""
    parameters = [np.ones(50_000) for _ in range(40)]
    whole = sum(p.nbytes for p in parameters)

    def f(parameters):
        return sum(np.sum(p * 2.0) for p in parameters)

    tracemalloc.start()
    grad(f)(parameters)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 1.08 * whole


def test_container_shared_leaf():
    """One array at two places of a container has a gradient at each."""
    x = np.ones(3)
    g = grad(lambda t: np.sum(t[0] * 2.0) + np.sum(t[1] * 5.0))([x, x])
    assert np.array_equal(g, [[2, 2, 2], [5, 5, 5]])


# What comes out.


def test_no_dependence():
    """Without a dependence the gradient is zeros of the type of the input."""
    x = {"a": np.ones((2, 1), np.float32), "b": 2.0, "c": np.complex64(1j), "d": np.array(1.0)}
    constants = (lambda x: 3.0, lambda x: np.float32(1))
    for f in (*constants, lambda x: np.sum(np.floor(x["a"])), lambda x: stop_gradient(x["b"])):
        value, g = value_and_grad(f)(x)
        assert [(v.dtype, np.shape(v), np.any(v)) for v in g.values()] == [
            (np.float32, (2, 1), False),
            (np.float64, (), False),
            (np.complex64, (), False),
            (np.float64, (), False),
        ]
        assert isinstance(g["d"], np.ndarray)
        assert value == f(x)


@pytest.mark.parametrize("f", [lambda x: x, lambda x: x[:1], lambda x: x[:, None] * x, lambda x: x[:0]])
def test_output_that_is_no_scalar(f):
    """A gradient of an array is a TypeError that gives the shape and names vjp and jacobian."""
    shape = f(np.ones(3)).shape
    with pytest.raises(TypeError, match=r"vjp.*jacobian") as caught:
        grad(f)(np.ones(3))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("f", [lambda x: (x, x), lambda x: [], lambda x: None, lambda x: {"a": x, "b": x}])
def test_output_that_is_no_value(f):
    """A gradient of several values, or none, is a TypeError."""
    with pytest.raises(TypeError, match="scalar"):
        grad(f)(1.0)


@pytest.mark.parametrize(
    ("output", "named"),
    [
        ("text", r"returned 'text' of type str"),
        (b"raw", r"of type bytes"),
        (np.array(["a"]), r"an array of dtype <U1"),
        (np.array([None]), r"an array of dtype object"),
        (print, r"of type builtin_function_or_method"),
    ],
    ids=["str", "bytes", "array of str", "array of objects", "function"],
)
def test_output_that_is_no_array(output, named):
    """An output that is no array and no number is a TypeError that says what it is, where, and what is allowed."""
    for run in (
        lambda: grad(lambda x: output)(1.0),
        lambda: value_and_grad(lambda x: (output, x), has_aux=True)(1.0),
        lambda: vjp(lambda x: output, 1.0),
        lambda: jvp(lambda x: output, (1.0,), (1.0,)),
    ):
        with pytest.raises(TypeError, match=rf"{named}\. .*arrays, numbers, and containers"):
            run()
    for run in (
        lambda: vjp(lambda x: (x, {"log": output}), 1.0),
        lambda: jvp(lambda x: (x, {"log": output}), (1.0,), (1.0,)),
    ):
        with pytest.raises(TypeError, match=rf"{named} at \[1\]\['log'\]\. .*has_aux=True"):
            run()


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (lambda x: None, r"returned None \(is a `return` missing\?\)"),
        (lambda x: [x], "returned a list of 1"),
        (lambda x: (x, "text"), "returned a tuple of 2"),
        (lambda x: {}, "returned a dict of 0"),
    ],
    ids=["None", "list", "tuple", "dict"],
)
def test_gradient_of_a_container(output, named):
    """A gradient of None or of a container is a TypeError that says what was returned and what to return."""
    with pytest.raises(TypeError, match=rf"{named}.*has_aux=True.*vjp"):
        grad(output)(1.0)
    with pytest.raises(TypeError, match=named):
        value_and_grad(lambda x: (output(x), "aux"), has_aux=True)(1.0)


def test_auxiliary_output_may_be_anything():
    """What is given back beside the value, and constants among outputs, need no derivative."""
    aux = {"log": "text", "none": None}
    assert grad(lambda x: (x * 2, aux), has_aux=True)(1.0) == (2.0, aux)
    value, pullback = vjp(lambda x: (x, 3, True, None, np.arange(2)), 1.0)
    assert value[1:4] == (3, True, None)
    assert pullback((2.0, 0, 0, None, np.zeros(2, int))) == (2.0,)


def test_output_that_is_complex():
    """A gradient of a complex value is a TypeError that says what to take of it."""
    with pytest.raises(TypeError, match=r"np\.real"):
        grad(lambda x: x * 1j)(1.0)


def test_values_have_the_bits_of_the_function():
    """The value beside a gradient, of vjp and of jvp, is bit for bit that of the function, with its type."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((30, 20)).astype(np.float32)
    w = rng.standard_normal((20, 10)).astype(np.float32)

    def f(x):
        h = np.tanh(x @ w) / 3
        h[1:] += h[:-1] ** 2
        return np.mean(h * np.where(h > 0, h, 0.1 * h), axis=0)

    plain = f(x)
    value, _ = vjp(f, x)
    assert np.array_equal(value, plain)
    assert value.dtype == plain.dtype
    assert type(value) is type(plain)
    value, _ = jvp(f, (x,), (x,))
    assert np.array_equal(value, plain)
    assert value.dtype == plain.dtype
    scalar, _ = value_and_grad(lambda x: np.sum(f(x)))(x)
    assert scalar == np.sum(plain)
    assert type(scalar) is np.float32


def test_aux():
    """Auxiliary output is any container, plain, of the values when f returned, in memory of its own."""
    x = np.linspace(0, 1, 4)

    def f(x):
        h = np.sin(x)
        return np.sum(h), {"h": h, "view": h[1:], "x": x, "text": "yes", "number": 3, "sum": np.sum(h), "none": None}

    (value, aux), gradient = value_and_grad(f, has_aux=True)(x)
    other, same = grad(f, has_aux=True)(x)
    assert np.array_equal(other, gradient)
    assert value == np.sum(np.sin(x))
    assert np.array_equal(gradient, np.cos(x))
    assert aux["text"] == same["text"] == "yes"
    assert aux["number"] == 3
    assert aux["none"] is None
    assert type(aux["h"]) is type(aux["view"]) is np.ndarray
    assert aux["sum"] == value
    assert np.array_equal(aux["h"], np.sin(x))
    assert np.array_equal(aux["view"], np.sin(x)[1:])
    assert not np.shares_memory(aux["x"], x)
    assert not np.shares_memory(aux["h"], aux["view"])
    assert not np.shares_memory(aux["h"], gradient)


def test_aux_of_a_nested_gradient():
    """In a gradient of a gradient the auxiliary output of the inner one is traced by the outer: it has a derivative."""
    def inner(x):
        return np.sum(x**3), x * 5.0

    def outer(x):
        g, aux = grad(inner, has_aux=True)(x)
        return np.sum(g) + np.sum(aux)

    x = np.array([1.0, 2.0])
    assert np.allclose(grad(outer)(x), 6 * x + 5)


@pytest.mark.parametrize("result", [1.0, (1.0,), (1.0, 2.0, 3.0), [1.0, 2.0]])
def test_aux_that_is_missing(result):
    """With has_aux=True a function that returns no pair is a TypeError that says what to return."""
    with pytest.raises(TypeError, match="tuple"):
        grad(lambda x: result, has_aux=True)(1.0)


def test_vjp_of_containers():
    """A pullback takes a cotangent of the structure of the value and gives one of each argument."""
    def f(a, t):
        return {"p": a * t["u"], "q": [np.sum(t["v"])], "constant": 3.0}

    a, t = np.arange(3.0), {"u": np.ones(3), "v": np.ones(2)}
    value, pullback = vjp(f, a, t)
    assert value["constant"] == 3.0
    da, dt = pullback({"p": np.array([1.0, 2.0, 3.0]), "q": [np.float64(4.0)], "constant": 7.0})
    assert np.array_equal(da, [1, 2, 3])
    assert np.array_equal(dt["u"], [0, 2, 6])
    assert np.array_equal(dt["v"], [4, 4])


# Complex numbers.


def test_complex_convention():
    """The gradient of a real function of z = x + iy is df/dx - i df/dy: 2 - 4i for |z|^2 at 1 + 2i."""
    for f in (lambda z: np.abs(z) ** 2, lambda z: np.real(z * np.conj(z)), lambda z: np.real(z) ** 2 + np.imag(z) ** 2):
        assert grad(f)(1 + 2j) == pytest.approx(2 - 4j, rel=1e-15)
        assert grad(lambda z, f=f: np.sum(f(z)))(np.array([1 + 2j, 3.0]))[1] == pytest.approx(6.0, rel=1e-15)


def test_complex_inside():
    """A real argument of a computation in complex numbers has a real gradient."""
    x = np.linspace(0.1, 1, 5)
    gradient = grad(lambda x: np.sum(np.real(np.exp(1j * x) * (1 + 2j))))(x)
    assert gradient.dtype == np.float64
    assert np.allclose(gradient, -np.sin(x) - 2 * np.cos(x), rtol=1e-14)


def test_holomorphic_function_by_its_parts():
    """The pullback of a holomorphic function multiplies by its derivative, without a conjugate; jvp as well."""
    z, g = np.array([1 + 2j, 0.5 - 1j]), np.array([2 - 1j, 1j])
    _, pullback = vjp(lambda z: np.exp(z) * z, z)
    derivative = np.exp(z) * z + np.exp(z)
    assert np.allclose(pullback(g)[0], g * derivative, rtol=1e-14)
    assert np.allclose(jvp(lambda z: np.exp(z) * z, (z,), (g,))[1], g * derivative, rtol=1e-14)


# Forward mode, and the two modes together.


def mixed(x, w):
    """Use a bit of everything."""
    h = np.tanh(x @ w)
    h[0] = h[1] * 2.0
    left, right = h[:-1], h[1:]
    return {"a": np.sum(left * right, axis=0), "b": np.max(h), "c": np.concatenate([h.ravel(), x[0]])}


def test_dot_product():
    """<u, J v> = <J^T u, v> for the two modes of the same function."""
    rng = np.random.default_rng(4)
    x, w, dx, dw = [rng.standard_normal(s) for s in ((4, 3), (3, 5), (4, 3), (3, 5))]
    value, tangent = jvp(mixed, (x, w), (dx, dw))
    same, pullback = vjp(mixed, x, w)
    cotangent = {k: rng.standard_normal(np.shape(v)) for k, v in value.items()}
    gx, gw = pullback(cotangent)
    left = sum(np.sum(cotangent[k] * tangent[k]) for k in value)
    assert left == pytest.approx(np.sum(gx * dx) + np.sum(gw * dw), rel=1e-13)
    assert all(np.array_equal(value[k], same[k]) for k in value)
    assert all(np.shape(tangent[k]) == np.shape(value[k]) for k in value)


def test_jvp_of_constants_and_types():
    """Tangents have the structure, shape and dtype of the value; outputs that do not depend have zeros."""
    x = np.ones(3, np.float32)
    value, tangent = jvp(lambda x: (x * 2, 3.0, np.ones(2), x.astype(np.float64)), (x,), (x,))
    assert [np.asarray(t).dtype for t in tangent] == [np.float32, np.float64, np.float64, np.float64]
    assert [np.shape(t) for t in tangent] == [(3,), (), (2,), (3,)]
    assert tangent[1] == 0.0
    assert np.array_equal(tangent[0], 2 * x)
    assert np.array_equal(value[0], 2 * x)


@pytest.mark.parametrize(
    ("tangents", "message"),
    [
        ((np.ones(4),), r"A tangent of type float64\[4\] was given for an argument of type float64\[3\]"),
        ((np.array(["1", "2", "3"]),), "U1"),
        ((np.ones(3) * 1j,), "complex128"),
        (([np.ones(3)],), "structure"),
        ((np.ones(3), np.ones(3)), "1 arguments and 2"),
    ],
)
def test_wrong_tangents(tangents, message):
    """A tangent of another number, structure, shape or field is an error that says which."""
    with pytest.raises(CotangentError, match=message):
        jvp(np.sin, (np.ones(3),), tangents)


def test_jvp_keeps_nothing():
    """Forward mode holds a tangent beside each value that is alive: a chain of 50 takes no more than one of 2."""
    x = np.ones(50_000)

    def peak(steps):
        def f(x):
            for _ in range(steps):
                x = np.sin(x)
            return x

        tracemalloc.start()
        jvp(f, (x,), (x,))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    peak(1)
    assert peak(50) <= peak(2) + 16384


# Derivatives of derivatives.


def poly(x):
    """Return a polynomial of three variables."""
    return x[0] ** 2 * x[1] + np.sin(x[0] * x[2]) + x[1] * x[2] ** 3


def test_orders():
    """Nested gradients are the derivatives to third order, of numbers and of arrays."""
    f = lambda x: x**4 + np.exp(2 * x)
    x = 0.7
    assert grad(f)(x) == pytest.approx(4 * x**3 + 2 * np.exp(2 * x), rel=1e-14)
    assert grad(grad(f))(x) == pytest.approx(12 * x**2 + 4 * np.exp(2 * x), rel=1e-14)
    assert grad(grad(grad(f)))(x) == pytest.approx(24 * x + 8 * np.exp(2 * x), rel=1e-14)
    total = lambda g: lambda x: np.sum(g(x))
    array = np.array([0.3, 0.7])
    third = grad(total(grad(total(grad(total(f))))))(array)
    assert np.allclose(third, 24 * array + 8 * np.exp(2 * array), rtol=1e-14)


def hessian_of_poly(x):
    """Return the Hessian by hand."""
    a, b, c = x
    s, co = np.sin(a * c), np.cos(a * c)
    return np.array(
        [
            [2 * b - c * c * s, 2 * a, co - a * c * s],
            [2 * a, 0.0, 3 * c * c],
            [co - a * c * s, 3 * c * c, 6 * b * c - a * a * s],
        ]
    )


def test_four_ways_to_a_hessian():
    """Reverse and forward mode over each other give the same rows of the Hessian."""
    x = np.array([0.4, 1.2, -0.7])
    expected = hessian_of_poly(x)
    basis = np.eye(3)
    ways = {
        "reverse over reverse": lambda v: grad(lambda y: np.sum(grad(poly)(y) * v))(x),
        "forward over reverse": lambda v: jvp(grad(poly), (x,), (v,))[1],
        "reverse over forward": lambda v: grad(lambda y: jvp(poly, (y,), (v,))[1])(x),
        "pullback of gradient": lambda v: vjp(grad(poly), x)[1](v)[0],
    }
    for name, way in ways.items():
        assert np.allclose([way(v) for v in basis], expected, rtol=1e-13, atol=1e-14), name
    twice = [[jvp(lambda y, v=v: jvp(poly, (y,), (v,))[1], (x,), (u,))[1] for v in basis] for u in basis]
    assert np.allclose(twice, expected, rtol=1e-13, atol=1e-14)


def test_no_confusion_of_perturbations():
    """d/dx (x d/dy (x + y)) is 1 in every mixture of the modes, and inner variables are no outer ones."""
    def derivative(f, mode):
        return grad(f) if mode == "reverse" else lambda x: jvp(f, (x,), (1.0,))[1]

    for outer in ("reverse", "forward"):
        for inner in ("reverse", "forward"):
            assert derivative(lambda x: x * derivative(lambda y: x + y, inner)(1.0), outer)(1.0) == 1.0
            assert derivative(lambda x: x * derivative(lambda y: x * y, inner)(2.0), outer)(3.0) == 6.0
            nested = derivative(lambda x: derivative(lambda y: x * y * y, inner)(x * x), outer)
            assert nested(2.0) == 24.0  # d/dx 2 x^3


def test_inner_gradient_with_respect_to_a_closed_over_value():
    """A gradient inside may close over traced values of all levels around."""
    def f(x):
        return grad(lambda y: grad(lambda z: x * y**2 * z**3)(y))(x)

    # d/dz: 3 x y^2 z^2 at z = y: 3 x y^4; d/dy: 12 x y^3 at y = x: 12 x^4; but the inner derivative is taken at z = y.
    assert grad(f)(1.5) == pytest.approx(48 * 1.5**3, rel=1e-14)


def test_views_and_writes_in_second_order():
    """In-place style has derivatives of all orders."""
    def f(x):
        u = x * 1.0
        u[1:-1] += u[2:] * u[:-2]
        v = u[1:3]
        v *= u[:2]
        return np.sum(u**2)

    x = np.linspace(0.5, 1.5, 5)
    v = np.array([1.0, -1.0, 0.5, 2.0, 0.3])
    eps = 1e-6
    difference = (grad(f)(x + eps * v) - grad(f)(x - eps * v)) / (2 * eps)
    assert np.allclose(jvp(grad(f), (x,), (v,))[1], difference, rtol=1e-7)
    assert np.allclose(grad(lambda y: np.sum(grad(f)(y) * v))(x), difference, rtol=1e-7)


# What must not happen.


def test_escaped_array():
    """A traced array that is used after its function returned is an error that names the line and the remedy."""
    kept = []

    def f(x):
        kept.append(x * 2.0)
        return np.sum(kept[0])

    grad(f)(np.ones(2))
    with pytest.raises(TraceError, match=r"had returned.*has_aux=True") as caught:
        kept[0] + 1.0
    assert __file__ in str(caught.value)
    with pytest.raises(TraceError):
        np.sin(kept[0])
    kept.clear()
    jvp(lambda x: kept.append(x * 2.0), (np.ones(2),), (np.ones(2),))
    with pytest.raises(TraceError, match="had returned"):
        kept[0] * 2.0


def test_escaped_array_in_another_gradient():
    """An escaped array is found inside of another gradient too."""
    kept = []
    grad(lambda x: kept.append(x) or np.sum(x))(np.ones(2))
    with pytest.raises(TraceError, match="had returned"):
        grad(lambda y: np.sum(y * kept[0]))(np.ones(2))


def test_arrays_that_numpy_would_unpack():
    """What would lose the derivative is an error that names the call to use."""
    with pytest.raises(TraceError, match=r"ebbtide\.numpy\.array"):
        grad(lambda x: np.sum(np.array([x, x])))(1.0)
    with pytest.raises(TraceError, match="stop_gradient"):
        grad(lambda x: float(x) * x)(1.0)
    with pytest.raises(TraceError, match=r"np\.zeros_like"):
        grad(lambda x: np.sum(np.add(x, 1.0, out=np.zeros(2))))(np.ones(2))

    def into_plain(index):
        def f(x):
            y = np.zeros(2)
            y[index] = x[index]
            return np.sum(y)

        return f

    with pytest.raises(TraceError, match=r"np\.zeros"):
        grad(into_plain(slice(1)))(np.ones(2))
    # Of a single element NumPy makes a ValueError, with ours as its cause.
    with pytest.raises(ValueError, match="sequence") as caught:
        grad(into_plain(0))(np.ones(2))
    assert isinstance(caught.value.__cause__, TraceError)


def test_stop_gradient():
    """stop_gradient is a plain copy at all levels: its derivative is zero."""
    x = np.ones(3)
    copy = stop_gradient(x)
    assert type(copy) is np.ndarray
    assert not np.shares_memory(copy, x)
    assert grad(lambda x: x * stop_gradient(x))(3.0) == 3.0
    assert grad(grad(lambda x: stop_gradient(x**3) * x))(3.0) == 0.0
    assert jvp(lambda x: x * stop_gradient(x), (3.0,), (1.0,))[1] == 3.0


def test_stop_gradient_of_containers():
    """In a container all leaves lose their derivatives, and what is no array stays what it is."""
    given = {"a": np.ones(3), "b": (2.0, None, "text")}

    def f(x):
        stopped = stop_gradient({**given, "a": [x, x[1:]]})
        assert stopped["b"] == given["b"]
        return np.sum(x * stopped["a"][0]) + np.sum(stopped["a"][1])

    assert np.array_equal(grad(f)(np.arange(3.0)), np.arange(3.0))
    copy = stop_gradient(given)
    assert not np.shares_memory(copy["a"], given["a"])


def test_python_control_flow():
    """Branches and loops on values take the path of the plain function."""
    def f(x):
        while x < 100:
            x = x * x if x > 2 else x + 1
        return x

    x = 1.5
    assert grad(f)(x) == pytest.approx(4 * (x + 1) ** 3 * 2 if f(x) < 0 else 8 * (x + 1) ** 7, rel=1e-13)
