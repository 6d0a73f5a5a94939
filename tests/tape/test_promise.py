"""The least budget that a refusal names: of second derivatives, of batches, of functions that hold hardly a thing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, BudgetError, grad, hvp, jvp, value_and_grad, vmap

U = np.linspace(0.2, 1.1, 50_000)
V = np.cos(U)
ROWS = U.reshape(5, -1)


def chain(step: Callable[[Any], Any], count: int = 5) -> Callable[[Any], Any]:
    """Return the sum of what is left after some steps."""

    def f(u: Any) -> Any:
        for _ in range(count):
            u = step(u)
        return np.sum(u)

    return f


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "element": lambda u: u[3] * 2,
    "product": lambda u: np.dot(u, u),
    "scaled": lambda u: np.sum(u * 0.5),
    "sine": lambda u: np.sum(np.sin(u)),
    "maximum": lambda u: np.sum(np.maximum(u * 0.9, 0.5 * u * u)),
    "normed": lambda u: np.sum(u / np.sqrt(np.sum(u * u))),
    "angle": lambda u: np.sum(np.arctan2(u, 1 + u * u)),
    "sines": chain(np.sin),
    "quotients": chain(lambda u: u / (1 + u * u)),
    "neighbors": chain(lambda u: u - 0.1 * u * (np.roll(u, -1) - np.roll(u, 1))),
    "spread": chain(lambda u: u * np.std(u)),
    "logarithms": chain(lambda u: np.log(1 + u)),
}
# Each derivative with a budget, and the function alone on the same arguments.
DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "grad": (lambda f, budget: grad(f, budget=budget)(U), lambda f: f(U)),
    "value_and_grad": (lambda f, budget: value_and_grad(f, budget=budget)(U)[1], lambda f: f(U)),
    "hvp": (lambda f, budget: hvp(f, budget=budget)(U, V), lambda f: jvp(f, (U,), (V,))),
    "jvp of grad": (lambda f, budget: jvp(grad(f, budget=budget), (U,), (V,))[1], lambda f: jvp(f, (U,), (V,))),
    "vmap of grad": (lambda f, budget: vmap(grad(f, budget=budget))(ROWS), lambda f: vmap(f)(ROWS)),
}


@pytest.mark.parametrize(("derivative", "name"), list(product(DERIVATIVES, FUNCTIONS)))
def test_the_least_is_never_passed(derivative: str, name: str) -> None:
    """At the number of bytes that a refusal names the call runs, with the same bits, and takes no more."""
    run, function = DERIVATIVES[derivative]
    f = FUNCTIONS[name]
    with pytest.raises(BudgetError) as caught:
        run(f, Budget(memory=1))
    least = caught.value.least
    with pytest.raises(BudgetError) as caught:
        run(f, Budget(memory=least - 1))
    assert caught.value.least == least
    expected, found = run(f, None), list[Any]()
    alone = peak_bytes(lambda: function(f))
    assert peak_bytes(lambda: found.append(run(f, Budget(memory=least)))) - alone <= least
    assert found[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_least_of_nested_gradients(name: str) -> None:
    """The inner one is refused first, as what comes after it is not known; what the last refusal names does."""
    f = FUNCTIONS[name]
    run = lambda memory: grad(lambda u: np.sum(grad(f)(u) * V), budget=None if memory is None else Budget(memory))(U)
    least, refusals = 1, 0
    while refusals < 4:
        try:
            run(least)
            break
        except BudgetError as error:
            least, refusals = error.least, refusals + 1
    expected, found = run(None), list[Any]()
    alone = peak_bytes(lambda: f(U))
    assert peak_bytes(lambda: found.append(run(least))) - alone <= least
    assert found[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("argnums", [0, (0, 1)])
def test_products_are_in_memory_of_the_caller(argnums: Any) -> None:
    """A product is no array that was given, nor one with another: also where the Hessian hands on the vector."""
    f = lambda u, v: 0.5 * np.sum(u * u) + 0.5 * np.sum(v * v)
    vector = V if argnums == 0 else (V, V)
    found = hvp(f, argnums)(U, U + 1, vector)
    arrays = [found] if argnums == 0 else list(found)
    for k, array in enumerate(arrays):
        assert array.tobytes() == V.tobytes()
        assert array.flags.owndata
        assert array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (U, V, *arrays[:k]))
