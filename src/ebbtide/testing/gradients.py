"""Derivatives against finite differences, and forward mode against reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import flatten, paths_of, unflatten
from ebbtide.arrays.functions import check_function
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp

# Directions and cotangents are drawn from this seed, so that a failure can be repeated.
SEED = 20170204


def check_grads(
    f: Callable[..., Any],
    *args: Any,
    order: int = 2,
    modes: Sequence[str] = ("fwd", "rev"),
    eps: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """
    Check the derivatives of *f* at one point, up to an order.

    Forward mode is compared with central finite differences along a random direction, reverse mode with them by way
    of a random cotangent, and forward with reverse by the dot-product test `<w, J t> = <J* w, t>`, which has no
    truncation error and so a much smaller tolerance. The derivatives are then checked as functions of their own.

    Args:
        f: A function of arrays and containers of arrays that returns arrays or a container of them. Of complex
            arguments too: the cotangent of z for a real f is df/dx - i df/dy.
        *args: Its arguments: floating-point or complex arrays and numbers, of any shape, and containers of them.
        order: Highest order of derivative that is checked.
        modes: Which modes to check, of "fwd" and "rev".
        eps: Step of the finite differences; by default the cube root of the precision of the arguments.
        rtol: Tolerance relative to the largest element of a derivative; by default 1e-6, and 1e-2 with float32.
        atol: Absolute tolerance; by default that of *rtol*.

    Raises:
        AssertionError: Two derivatives differ, or one has not the dtype and shape that it has to have. The message
            has the order, the mode, the place and both numbers.
        TypeError: An argument is no floating-point or complex number, or *f* returns none: there is nothing to check.
        ValueError: A mode is unknown, or *order* is no whole number of at least 1.

    Memory:
        Some copies of the arguments, and what the derivatives of *f* take.

    Example:
        >>> import numpy as np
        >>> check_grads(lambda x: np.sin(x) * x, np.array([0.5, 2.0]))
    """
    if isinstance(modes, str) or not modes or set(modes) - {"fwd", "rev"}:
        raise ValueError(f"modes={modes!r}: give a tuple of 'fwd', 'rev' or both, as ('rev',).")
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or order < 1:
        raise ValueError(f"order={order!r}: give a whole number of at least 1.")
    check_function(f, "check_grads")
    leaves, structure = flatten(args)
    if not leaves or any(type_of(leaf).dtype.kind not in "fc" for leaf in leaves):
        raise TypeError(
            f"check_grads needs arguments of floating-point or complex numbers, not {args!r:.80}. Write 3.0 for 3, and "
            "close over what is not differentiated."
        )
    precision = max(float(np.finfo(type_of(leaf).dtype).eps) for leaf in leaves)
    rtol = (1e-6 if precision < 1e-10 else 1e-2) if rtol is None else rtol
    limits = {
        "eps": precision ** (1 / 3) if eps is None else eps,
        "rtol": rtol,
        "atol": rtol if atol is None else atol,
        # The sums of a dot product round differently in the two modes, and nothing else does.
        "exact": 1e4 * precision,
    }

    def function(*point: Any) -> list[Any]:
        # A function may write into its arguments, which are run again.
        own = [np.array(x) if isinstance(x, np.ndarray) else x for x in point]
        outputs = _differentiable(f(*unflatten(structure, own)))
        if not outputs:
            raise TypeError("The function returns no floating-point or complex number, so there is nothing to check.")
        return outputs

    _check(function, leaves, order, tuple(modes), limits, "", paths_of(structure))


def _check(
    f: Callable[..., list[Any]],
    point: list[Any],
    order: int,
    modes: tuple[str, ...],
    limits: dict[str, float],
    name: str,
    places: list[str],
) -> None:
    """Check the derivatives of a function from some arrays to a list of arrays."""
    random = np.random.default_rng(SEED + order)
    direction = [drawn_like(leaf, random) for leaf in point]
    outputs = f(*point)
    cotangent = [drawn_like(output, random) for output in outputs]
    expected = _differences(f, point, direction, limits["eps"])
    tangents: list[Any] = []
    if "fwd" in modes:
        tangents = jvp(f, point, direction)[1]
        for k, (tangent, output, number) in enumerate(zip(tangents, outputs, expected, strict=True)):
            compare_types(tangent, output, f"{name}jvp: the tangent of output {k}")
            compare(tangent, number, limits, f"{name}jvp: output {k} along a random direction")
    if "rev" in modes:
        gradients = vjp(f, *point)[1](cotangent)
        for gradient, leaf, place in zip(gradients, point, places, strict=True):
            compare_types(gradient, leaf, f"{name}vjp: the cotangent of argument {place}")
        reverse = pairing(gradients, direction)
        scale = pairing_scale(cotangent, expected) + pairing_scale(gradients, direction)
        bound = {**limits, "atol": limits["atol"] + limits["rtol"] * scale}
        compare(reverse, pairing(cotangent, expected), bound, f"{name}vjp: a random cotangent with the direction")
        if tangents:
            bound = {**limits, "rtol": 0.0, "atol": limits["exact"] * (1.0 + scale)}
            compare(reverse, pairing(cotangent, tangents), bound, f"{name}vjp against jvp, the dot-product test")
    if order > 1:
        further = {"fwd": partial(_forward, f, direction), "rev": partial(_reverse, f, cotangent)}
        for mode in modes:
            label = f"{name}{'jvp' if mode == 'fwd' else 'vjp'}, then "
            _check(further[mode], point, order - 1, modes, limits, label, places)


def _forward(f: Callable[..., list[Any]], direction: list[Any], *point: Any) -> list[Any]:
    """Return the derivative of *f* along a direction, as a function of the point."""
    return jvp(f, point, direction)[1]


def _reverse(f: Callable[..., list[Any]], cotangent: list[Any], *point: Any) -> list[Any]:
    """Return the pullback of a cotangent by *f*, as a function of the point."""
    return list(vjp(f, *point)[1](cotangent))


def _differentiable(outputs: Any) -> list[Any]:
    """Return those outputs of a function that are no integers, booleans or other constants."""
    return [x for x in flatten(outputs)[0] if x is not None and type_of(x).dtype.kind in "fc"]


def drawn_like(value: Any, random: np.random.Generator) -> Any:
    """Return random numbers of the type of a value; complex ones for a complex value."""
    kind = type_of(value)
    drawn = random.standard_normal(kind.shape)
    if kind.dtype.kind == "c":
        drawn = drawn + 1j * random.standard_normal(kind.shape)
    drawn = np.asarray(drawn, kind.dtype)
    return drawn if isinstance(value, np.ndarray) else drawn[()]


def _differences(f: Callable[..., list[Any]], point: list[Any], direction: list[Any], eps: float) -> list[Any]:
    """Return the central finite difference of each output along a direction."""
    ahead = f(*[_moved(x, eps, t) for x, t in zip(point, direction, strict=True)])
    behind = f(*[_moved(x, -eps, t) for x, t in zip(point, direction, strict=True)])
    return [(precise(a) - precise(b)) / (2 * eps) for a, b in zip(ahead, behind, strict=True)]


def _moved(x: Any, step: float, direction: Any) -> Any:
    """Return x + step * direction in the dtype of x."""
    return x + direction * step


def precise(x: Any) -> Any:
    """Return a copy in double precision: of arrays that the next run of the function might write, too."""
    return np.array(x, np.result_type(type_of(x).dtype, np.float64))


def pairing(cotangents: Any, tangents: Any) -> float:
    """Return the change of a real function with these cotangents along these tangents."""
    pairs = zip(cotangents, tangents, strict=True)
    return float(sum(np.real(np.sum(precise(g) * precise(t))) for g, t in pairs))


def pairing_scale(cotangents: Any, tangents: Any) -> float:
    """Return the sum of the magnitudes of the terms of a pairing, to which its rounding error is relative."""
    pairs = zip(cotangents, tangents, strict=True)
    return float(sum(np.sum(np.abs(precise(g) * precise(t))) for g, t in pairs))


def compare_types(derivative: Any, value: Any, what: str) -> None:
    """Raise unless a derivative has the shape and dtype of what it is the derivative of."""
    if type_of(derivative) != type_of(value):
        raise AssertionError(f"{what} is of type {type_of(derivative)}, and has to be of type {type_of(value)}.")


def compare(found: Any, expected: Any, limits: dict[str, float], what: str) -> None:
    """Raise unless two derivatives agree; nan and infinities agree with nothing."""
    found, expected = precise(found), precise(expected)
    if not found.size:
        return
    limit = limits["atol"] + limits["rtol"] * float(np.max(np.abs(expected)))
    error = np.abs(found - expected)
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error))), error.shape)
    if not error[worst] <= limit:
        raise AssertionError(
            f"{what}: the derivative is {found[worst]}, and {expected[worst]} was expected, at index "
            f"{tuple([int(k) for k in worst])}. They differ by {error[worst]:.3g}; the tolerance is {limit:.3g}."
        )
