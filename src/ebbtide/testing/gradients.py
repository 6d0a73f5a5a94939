"""Derivatives against finite differences, and forward mode against reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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

# Derivatives and arguments below have a size of their own; those above are of the order of one.
_SMALL = 1e-2


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
        eps: Step of the finite differences; by default the cube root of the precision of the arguments, times the size
            of an argument in which that is lost, and tried once more times that of the smallest where that differs.
        rtol: Tolerance relative to the largest element of a derivative; by default 1e-6, and 1e-2 with float32.
        atol: Absolute tolerance; by default that of *rtol*, for a small derivative, of which the differences tell the
            size, times that.

    Raises:
        AssertionError: Two derivatives differ, or one has not the dtype and shape that it has to have. The message
            has the order, the mode, the place and both numbers.
        TypeError: An argument is no floating-point or complex number, or *f* returns none: there is nothing to check.
        ValueError: A mode is unknown, *order* is no whole number of at least 1, *eps* no number above 0, or a tolerance
            no finite one of at least 0.

    Memory:
        Some copies of the arguments, and what the derivatives of *f* take.

    Example:
        >>> import numpy as np
        >>> check_grads(lambda x: np.sin(x) * x, np.array([0.5, 2.0]))
    """
    _check_options(order, modes, eps, {"rtol": rtol, "atol": atol})
    check_function(f, "check_grads")
    leaves, structure = flatten(args)
    if not leaves or not all(map(_is_floating, leaves)):
        raise TypeError(
            f"check_grads needs arguments of floating-point or complex numbers, not {args!r:.80}. Write 3.0 for 3, and "
            "close over what is not differentiated."
        )
    precision = max(float(np.finfo(type_of(leaf).dtype).eps) for leaf in leaves)
    limits = {
        "eps": precision ** (1 / 3) if eps is None else eps,
        "rtol": (1e-6 if precision < 1e-10 else 1e-2) if rtol is None else rtol,
        # The sums of a dot product round differently in the two modes, and nothing else does.
        "exact": 1e4 * precision,
        "precision": precision,
    }
    if atol is not None:
        limits["atol"] = atol

    def function(*point: Any) -> list[Any]:
        # A function may write into its arguments, which are run again.
        own = [np.array(x) if isinstance(x, np.ndarray) else x for x in point]
        outputs = _differentiable(f(*unflatten(structure, own)))
        if not outputs:
            raise TypeError("The function returns no floating-point or complex number, so there is nothing to check.")
        return outputs

    _check_by_steps(function, leaves, order, tuple(modes), limits, paths_of(structure), fixed=eps is not None)


def _check_options(order: Any, modes: Any, eps: Any, tolerances: dict[str, Any]) -> None:
    """Raise for what no check can be made with, or what would let all pass."""
    known = isinstance(modes, Collection) and all(mode in ("fwd", "rev") for mode in modes)
    if isinstance(modes, str) or not known or len(modes) == 0:
        raise ValueError(f"modes={modes!r}: give a tuple of 'fwd', 'rev' or both, as ('rev',).")
    if isinstance(order, bool) or not isinstance(order, (int, np.integer)) or order < 1:
        raise ValueError(f"order={order!r}: give a whole number of at least 1.")
    if eps is not None and not (_is_number(eps) and 0 < eps < np.inf):
        raise ValueError(f"eps={eps!r}: give a number above 0, or None.")
    for name, tolerance in tolerances.items():
        if tolerance is not None and not (_is_number(tolerance) and 0 <= tolerance < np.inf):
            raise ValueError(f"{name}={tolerance!r}: give a finite number of at least 0, or None.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_floating(value: Any) -> bool:
    """Return whether a leaf is an array or a number of floats, real or complex, and no text or object."""
    return isinstance(value, (float, complex)) or getattr(getattr(value, "dtype", None), "kind", None) in ("f", "c")


class _TooShortError(Exception):
    """Of a step so short the differences tell nothing."""


def _check_by_steps(
    f: Callable[..., list[Any]],
    point: list[Any],
    order: int,
    modes: tuple[str, ...],
    limits: dict[str, float],
    places: list[str],
    *,
    fixed: bool,
) -> None:
    """Check derivatives by steps of the order of one, as far as they are not *fixed* by those that fit the point."""
    lengths = [1.0 if fixed else length_of(leaf, limits["eps"]) for leaf in point]
    try:
        _check(f, point, lengths, order, modes, limits, "", places)
    except AssertionError as error:
        size = min([size for size in map(_size_of, point) if size > 0], default=1.0)
        # Near zero the domain may be small, as that of a logarithm, and far away a step is rounded: or neither.
        if fixed or max(lengths) > 1.0 or _SMALL <= size <= 1e-6 * limits["eps"] / limits["precision"]:
            raise
        other = {**limits, "eps": limits["eps"] * 2.0 ** round(np.log2(size)), "told": 1.0}
        try:
            _check(f, point, lengths, order, modes, other, "", places)
        except _TooShortError:
            raise error from None
        except AssertionError:
            if size > 1.0:
                raise error from None
            raise


def _check(
    f: Callable[..., list[Any]],
    point: list[Any],
    lengths: list[float],
    order: int,
    modes: tuple[str, ...],
    limits: dict[str, float],
    name: str,
    places: list[str],
) -> None:
    """Check the derivatives of a function from some arrays to a list of arrays."""
    random = np.random.default_rng(SEED + order)
    direction = [stretched(drawn_like(leaf, random), length) for leaf, length in zip(point, lengths, strict=True)]
    outputs = f(*point)
    cotangent = [drawn_like(output, random) for output in outputs]
    expected = _differences(f, point, direction, limits["eps"])
    _check_told(outputs, expected, limits, name)
    own = _own_limits(f, point, direction, limits, outputs, expected)
    tangents: list[Any] = []
    if "fwd" in modes:
        tangents = jvp(f, point, direction)[1]
        for k, (tangent, output, number) in enumerate(zip(tangents, outputs, expected, strict=True)):
            compare_types(tangent, output, f"{name}jvp: the tangent of output {k}")
            compare(tangent, number, {**limits, "atol": sum(own[k])}, f"{name}jvp: output {k} along a random direction")
    if "rev" in modes:
        gradients = vjp(f, *point)[1](cotangent)
        for gradient, leaf, place in zip(gradients, point, places, strict=True):
            compare_types(gradient, leaf, f"{name}vjp: the cotangent of argument {place}")
        reverse = pairing(gradients, direction)
        scale = pairing_scale(cotangent, expected) + pairing_scale(gradients, direction)
        rounding = sum([loss * float(np.sum(np.abs(g))) for (_, loss), g in zip(own, cotangent, strict=True)])
        bound = {**limits, "atol": max([size for size, _ in own]) + rounding + limits["rtol"] * scale}
        compare(reverse, pairing(cotangent, expected), bound, f"{name}vjp: a random cotangent with the direction")
        if tangents:
            bound = {**limits, "rtol": 0.0, "atol": limits["exact"] * (1.0 + scale)}
            compare(reverse, pairing(cotangent, tangents), bound, f"{name}vjp against jvp, the dot-product test")
    if order > 1:
        further = {"fwd": partial(_forward, f, direction), "rev": partial(_reverse, f, cotangent)}
        for mode in modes:
            label = f"{name}{'jvp' if mode == 'fwd' else 'vjp'}, then "
            _check(further[mode], point, lengths, order - 1, modes, limits, label, places)


def _check_told(outputs: list[Any], expected: list[Any], limits: dict[str, float], name: str) -> None:
    """Raise where differences tell nothing: the function is not finite there, or they are rounding only."""
    for k, (output, number) in enumerate(zip(outputs, expected, strict=True)):
        if np.all(np.isfinite(precise(output))) and not np.all(np.isfinite(number)):
            raise AssertionError(
                f"{name}output {k} is finite, and not beside the point: the step leaves the domain. Give a shorter "
                f"one, as eps={limits['eps'] / 100:.1g}, or another point."
            )
        if "told" in limits and _rounding(output, limits) > limits["rtol"] * _size_of(number):
            raise _TooShortError


def _rounding(output: Any, limits: dict[str, float]) -> float:
    """Return a bound of what the rounding of an output makes in a difference."""
    return 4 * limits["precision"] * _size_of(precise(output)) / limits["eps"]


def _own_limits(
    f: Callable[..., list[Any]],
    point: list[Any],
    direction: list[Any],
    limits: dict[str, float],
    outputs: list[Any],
    expected: list[Any],
) -> list[tuple[float, float]]:
    """
    Return the absolute tolerance of each output, in two parts: what is allowed, and the rounding of its differences.

    A small derivative is its own measure, if shorter steps tell nearly the same; else it may be nothing but rounding,
    or what is left of a longer series.
    """
    if "atol" in limits:
        return [(limits["atol"], 0.0)] * len(expected)
    rtol, sizes = limits["rtol"], [_size_of(number) for number in expected]
    found = [(rtol, 0.0)] * len(expected)
    if not any(0 < size < _SMALL for size in sizes):
        return found
    shorter = [_differences(f, point, direction, limits["eps"] / part) for part in (2, 4)]
    for k, size in enumerate(sizes):
        loss = max([_size_of(one[k] - expected[k]) for one in shorter])
        loss = max(4 * loss, _rounding(outputs[k], limits))
        if 0 < size < _SMALL and loss < 0.1 * size:
            found[k] = (rtol * size, loss)
    return found


def _forward(f: Callable[..., list[Any]], direction: list[Any], *point: Any) -> list[Any]:
    """Return the derivative of *f* along a direction, as a function of the point."""
    return jvp(f, point, direction)[1]


def _reverse(f: Callable[..., list[Any]], cotangent: list[Any], *point: Any) -> list[Any]:
    """Return the pullback of a cotangent by *f*, as a function of the point."""
    return list(vjp(f, *point)[1](cotangent))


def _differentiable(outputs: Any) -> list[Any]:
    """Return those outputs of a function that are no integers, booleans or other constants."""
    return [x for x in flatten(outputs)[0] if _is_floating(x)]


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
    # A step that leaves the domain is told by what comes out.
    with np.errstate(all="ignore"):
        ahead = f(*[_moved(x, eps, t) for x, t in zip(point, direction, strict=True)])
        behind = f(*[_moved(x, -eps, t) for x, t in zip(point, direction, strict=True)])
        return [(precise(a) - precise(b)) / (2 * eps) for a, b in zip(ahead, behind, strict=True)]


def _moved(x: Any, step: float, direction: Any) -> Any:
    """Return x + step * direction in the dtype of x."""
    return x + direction * step


def length_of(x: Any, eps: float) -> float:
    """Return by how much longer a step has to be than at 1, for an array in which it is lost there: a power of two."""
    size = _size_of(x)
    lost = size * float(np.finfo(type_of(x).dtype).eps) > 1e-2 * eps
    return 2.0 ** round(np.log2(size)) if lost and np.isfinite(size) else 1.0


def _size_of(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def stretched(direction: Any, length: float) -> Any:
    """Return a direction that is longer by a power of two, of the same type."""
    return direction if length == 1.0 else direction * type_of(direction).dtype.type(length)


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
    # Beside an infinite one that is expected, the limit is infinite, too.
    if not error[worst] <= limit or error[worst] == np.inf:
        raise AssertionError(
            f"{what}: the derivative is {found[worst]}, and {expected[worst]} was expected, at index "
            f"{tuple([int(k) for k in worst])}. They differ by {error[worst]:.3g}; the tolerance is {limit:.3g}."
        )
