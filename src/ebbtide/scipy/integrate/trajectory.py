"""
Solutions of ordinary differential equations, and their derivatives by solutions of others.

A solution y(t) of y' = f(t, y, p) has tangents that satisfy s' = (df/dy) s + (df/dp) dp, forwards in time, and
cotangents that satisfy l' = -(df/dy)^T l, backwards. Both are solved with the method and tolerances of the solution
itself, so that a derivative is as exact as these tolerances, and no more: it is that of the equation, and not that of
the steps which the solver took. Derivatives in the two modes agree to tolerances, too.

Source: Pontryagin et al., The Mathematical Theory of Optimal Processes (1962); Chen et al., arXiv:1806.07366, app. B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.primitive import FRESH, Primitive, Pull
from ebbtide.arrays.reach import arrays_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.rules.originals import is_traced
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp

_DOUBLE = np.dtype(np.float64)
# Vectors that the derivatives of a right-hand side take, which is not known before it runs: 9 of `sin(y) - k * y`.
_OF_SLOPE = 12
# `solver(func)` returns `solve(y0, times, args)`, which returns an array with one state a time.
Solver = Callable[[Callable[..., Any]], Callable[[Any, Any, Any], Any]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """
    An equation and the arguments of its solution, of which those that are traced are in one vector.

    The vector has the numbers of the traced arrays in *args*, then the first state if it is traced, then the times.

    Args:
        func: The right-hand side, `func(t, y, *args)`.
        solve: Solves it on plain arrays.
        solver: Makes the same for other equations.
        leaves: What is in *args*; None for what is in the vector.
        structure: How that is nested.
        kinds: The types of the arrays in *args* that are in the vector.
        y0: The first state; None if it is in the vector.
        times: The times; None if they are.
        shape: (number of times, number of components of the state).
        takes: Vectors of the size of the state, and matrices of its square, that the solver has at a time.
    """

    func: Callable[..., Any]
    solve: Callable[..., Any]
    solver: Solver
    leaves: tuple[Any, ...]
    structure: Any
    kinds: tuple[ArrayType, ...]
    y0: Any
    times: Any
    shape: tuple[int, int]
    takes: tuple[int, int]

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """The plain arrays that it keeps alive, those that the right-hand side reaches among them."""
        return tuple(arrays_of([self.func, self.leaves, self.y0, self.times]))

    def split(self, vector: Any) -> tuple[Any, Any, Any]:
        """Return what belongs to args, to the first state, and to the times; None where it is not in the vector."""
        (count, size), parameters = self.shape, sum(prod(kind.shape) for kind in self.kinds)
        y0 = None if self.y0 is not None else vector[parameters : parameters + size]
        return vector[:parameters], y0, None if self.times is not None else vector[vector.shape[0] - count :]

    def when(self, vector: Any) -> Any:
        """Return the times."""
        return self.split(vector)[2] if self.times is None else self.times

    def args(self, parameters: Any) -> tuple[Any, ...]:
        """Return what the function takes."""
        parts, start = [], 0
        for kind in self.kinds:
            stop = start + prod(kind.shape)
            parts.append(np.reshape(parameters[start:stop], kind.shape)[()].astype(kind.dtype))
            start = stop
        rest = iter(parts)
        return unflatten(self.structure, [next(rest) if leaf is None else leaf for leaf in self.leaves])

    def slope(self, t: Any, y: Any, parameters: Any) -> Any:
        """Return the right-hand side."""
        result = self.func(t, y, *self.args(parameters))
        if isinstance(result, (list, tuple)):
            result = np.stack([np.reshape(part, ()) for part in result])
        return np.reshape(result, (self.shape[1],))

    def again(self, func: Callable[..., Any], y0: Any, times: Any, *args: Any) -> Any:
        """Return the solution of another equation, by the same method."""
        return trajectory(func, self.solver(func), self.solver, y0, times, args, self.takes)

    @property
    def scratch(self) -> int:
        """The bytes that the solver takes for a moment, with a dozen vectors for derivatives of the right-hand side."""
        size, (vectors, matrices) = self.shape[1], self.takes
        return size * (vectors + _OF_SLOPE + matrices * size) * _DOUBLE.itemsize


def trajectory(
    func: Callable[..., Any], solve: Any, solver: Solver, y0: Any, times: Any, args: tuple[Any, ...],
    takes: tuple[int, int],
) -> Any:  # fmt: skip
    """
    Return the states at some times, of which the first is that of *y0*.

    Args:
        func: The right-hand side, `func(t, y, *args)`.
        solve: `solve(y0, times, args)` solves it on plain arrays.
        solver: `solver(func)` makes such a function for another equation.
        y0: The first state, a vector of double precision.
        times: The times, a vector of double precision.
        args: What *func* takes; arrays in it, also in containers, have derivatives.
        takes: See `Flow`.

    Returns:
        An array (times, components).
    """
    if not is_traced(y0, times, args):
        return solve(y0, times, args)
    leaves, structure = flatten(args)
    traced = [leaf for leaf in leaves if type(leaf) is TracedArray]
    kinds = tuple([type_of(leaf) for leaf in traced])
    for kind in kinds:
        if kind.dtype.kind != "f":
            raise refusal(f"An argument of a differential equation is {kind}, and derivatives are by real arrays.")
    flow = Flow(
        func, solve, solver, tuple([_unless_traced(leaf) for leaf in leaves]), structure, kinds, _unless_traced(y0),
        _unless_traced(times), (np.shape(times)[0], np.shape(y0)[0]), takes,
    )  # fmt: skip
    ends = [x for x in (y0, times) if type(x) is TracedArray]
    vector = np.concatenate([np.reshape(x, (-1,)).astype(_DOUBLE) for x in (*traced, *ends)])
    return _trajectory.bind((vector,), {"flow": flow})


def _unless_traced(value: Any) -> Any:
    return None if type(value) is TracedArray else value


def _run(vector: Any, flow: Flow) -> Any:
    parameters, y0, _ = flow.split(vector)
    return flow.solve(flow.y0 if y0 is None else y0, flow.when(vector), flow.args(parameters))


def _pull(g: Any, kind: ArrayType, params: dict[str, Any], vector: Any, out: Any) -> Any:
    """Return the cotangent of the vector: backwards from one time to the one before, starting anew from the states."""
    flow: Flow = params["flow"]
    count, size = flow.shape
    parameters, times = flow.split(vector)[0], flow.when(vector)

    def backwards(t: Any, state: Any, parameters: Any) -> Any:
        slope, pullback = vjp(lambda y, p: flow.slope(t, y, p), state[:size], parameters)
        by_state, by_parameters = pullback(state[size : 2 * size])
        return np.concatenate([slope, np.negative(by_state), np.negative(by_parameters)])

    adjoint, total = np.zeros(size), np.zeros(parameters.shape[0])
    by_times: list[Any] = []
    for now, before in pairwise(reversed(range(count))):
        adjoint = adjoint + g[now]
        by_times.append(np.dot(g[now], flow.slope(times[now], out[now], parameters)))
        start = np.concatenate([out[now], adjoint, total])
        ends = np.stack([times[now], times[before]])
        state = flow.again(backwards, start, ends, parameters)[1]
        adjoint, total = state[size : 2 * size], state[2 * size :]
    by_times.append(np.negative(np.dot(adjoint, flow.slope(times[0], out[0], parameters))))
    parts = [total]
    if flow.y0 is None:
        parts.append(adjoint + g[0])
    if flow.times is None:
        parts.append(np.stack(by_times[::-1]))
    return np.concatenate(parts)


def _push(tangents: list[Any], values: Any, out: Any, params: dict[str, Any], kept: Any) -> Any:
    """Return the tangents of the states, by one solution forwards; a time that moves takes its state along."""
    flow: Flow = params["flow"]
    count, size = flow.shape
    vector = values[0]
    parameters, times = flow.split(vector)[0], flow.when(vector)
    direction, along_y0, along_times = flow.split(tangents[0])

    def forwards(t: Any, state: Any, parameters: Any, direction: Any) -> Any:
        pair = (state[:size], parameters), (state[size:], direction)
        return np.concatenate(jvp(lambda y, p: flow.slope(t, y, p), *pair))

    def solved(along: Any) -> Any:
        return flow.again(forwards, np.concatenate([out[0], along]), times, parameters, direction)[:, size:]

    along_y0 = np.zeros(size) if along_y0 is None else along_y0
    if along_times is None:
        return solved(along_y0)
    slopes = np.stack([flow.slope(times[k], out[k], parameters) for k in range(count)])
    return solved(along_y0 - slopes[0] * along_times[0]) + slopes * along_times[:, None]


_PULL = Pull(_pull, ("vector", "out"), FRESH, temporaries=4)
_trajectory = Primitive(
    _run,
    name="trajectory",
    operands=("vector",),
    pull=lambda k: _PULL,
    push=_push,
    infer=lambda kind, flow: ArrayType(flow.shape, _DOUBLE),
    scratch=lambda params, kind: params["flow"].scratch,
    batch=lambda values, mapped, params, size: by_members(
        "trajectory", _trajectory.bind, values, mapped, params, size, ArrayType(params["flow"].shape, _DOUBLE)
    ),
)


def vector_of_numbers(values: Any) -> Any:
    """Return a vector of double precision, of an array or a sequence of numbers, traced or not."""
    if isinstance(values, Sequence):
        values = np.stack([np.reshape(value, ()) for value in values])
    return np.reshape(values, (-1,)).astype(_DOUBLE)
