"""What is no function, and what are no numbers of arguments, is refused where it was given, with what it is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ebbtide as eb
from ebbtide.testing import check_grads, check_rule

X = np.array([0.3, 1.2])
# Each taker of a function, as a function of what it is given.
TAKERS = {
    "check_grads": lambda f: check_grads(f, X),
    "check_rule": lambda f: check_rule(f, X),
    "checkpoint": eb.checkpoint,
    "deriv": eb.deriv,
    "elementwise_grad": eb.elementwise_grad,
    "gauss_newton_product": eb.gauss_newton_product,
    "grad": eb.grad,
    "hessian": eb.hessian,
    "hvp": eb.hvp,
    "jacobian": eb.jacobian,
    "jit": eb.jit,
    "jvp": lambda f: eb.jvp(f, (X,), (X,)),
    "linearize": lambda f: eb.linearize(f, X),
    "loss=": lambda f: eb.gauss_newton_product(np.sin, f),
    "on_plan=": eb.profile,
    "primitive": eb.primitive,
    "print_saved": lambda f: eb.print_saved(f, X),
    "saved_values": lambda f: eb.saved_values(f, X),
    "trace": lambda f: eb.trace(f, X),
    "value_and_grad": eb.value_and_grad,
    "vjp": lambda f: eb.vjp(f, X),
    "vjp= of <lambda>": lambda f: eb.primitive(lambda x: x, vjp=(f,)),
    "vmap": eb.vmap,
}
ARGNUMS = (eb.grad, eb.value_and_grad, eb.elementwise_grad, eb.jacobian, eb.hessian)


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("given", "what"), [(3, "int, 3,"), ("sin", "str, 'sin',"), (X, r"ndarray of shape \(2,\)")])
def test_what_is_no_function(taker: str, given: Any, what: str):
    """Each names itself, what it was given, and the user's line, before anything is called."""
    with pytest.raises(TypeError, match=rf"^{taker} takes a function .* type {what} at .*test_functions"):
        TAKERS[taker](given)


@pytest.mark.parametrize("argnums", ["0", None, 1.5, True, [None], ["0"], {0.0}])
def test_numbers_of_arguments(argnums: Any):
    """They are whole numbers, one or several; of NumPy, too."""
    for call in (
        *(lambda of=of: of(np.sum, argnums=argnums)(X) for of in ARGNUMS),
        lambda: eb.hvp(np.sum, argnums=argnums)(X, X),
        lambda: eb.saved_values(np.sum, X, argnums=argnums or "0"),
        lambda: eb.jit(np.sum, static_argnums=argnums),
        lambda: eb.jit(np.sum, donate_argnums=argnums),
    ):
        with pytest.raises(TypeError, match=r"argnums=.*: give the numbers of positional arguments, 0 for the first"):
            call()
    with pytest.raises(TypeError, match=r"argnum=.*: give the number of one positional argument"):
        eb.deriv(np.sin, argnums if argnums is not True else [0])(0.5)


def test_numbers_of_arguments_of_numpy():
    """A number of NumPy is one, alone or among several."""
    alone = eb.grad(np.sum)(X)
    assert np.array_equal(eb.grad(np.sum, np.int64(0))(X), alone)
    assert np.array_equal(eb.grad(np.sum, np.array([-1]))(X)[0], alone)
    assert np.array_equal(eb.jit(np.negative, donate_argnums=np.int64(0))(X.copy()), -X)
    assert eb.deriv(np.sin, np.int64(-1))(0.0) == 1.0


@pytest.mark.parametrize("product", [eb.hvp, eb.gauss_newton_product])
def test_products_without_a_vector(product: Any):
    """A product takes the arguments and a vector; without one it says so, and takes no argument for it."""
    for given in ((), (X,)):
        with pytest.raises(TypeError, match=rf"{product.__name__} was called with {len(given)} .* after them, the vec"):
            product(np.sum)(*given)


def test_arguments_of_jvp_are_tuples():
    """An array is no tuple of arguments, as many as it has rows."""
    for primals, tangents, name in ((X, X, "primals"), ((X,), X, "tangents"), (0.5, (1.0,), "primals")):
        with pytest.raises(TypeError, match=rf"jvp takes a tuple of {name}.*Write jvp\(f, \(x,\), \(v,\)\)"):
            eb.jvp(np.sum, primals, tangents)  # pyright: ignore[reportArgumentType]


def test_derivative_by_text():
    """What `deriv` cannot differentiate is named, as by the others."""
    with pytest.raises(TypeError, match="Cannot differentiate with respect to argument 0: it is a str"):
        eb.deriv(np.sin)("0")


def test_what_cannot_be_traced():
    """`trace` names the argument that is no array."""
    for wrong, place in (("a", ""), (object(), ""), ({"w": [X, "a"]}, "['w'][1]")):
        with pytest.raises(TypeError, match=rf"trace cannot take its arguments\[0\]{re.escape(place)}: it is a "):
            eb.trace(lambda x: x, wrong)


def test_a_cotangent_for_each_array():
    """`pull` takes as many as the value has arrays, in a list; nothing is consumed by a wrong one."""
    pullback = eb.vjp(np.sin, X)[1]
    for wrong in (None, 3, [], [X, X], (X,)):
        with pytest.raises(eb.CotangentError, match="each of the 1 arrays of the value, and was given"):
            pullback.pull(wrong)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(pullback.pull([X])[0], np.cos(X) * X)
