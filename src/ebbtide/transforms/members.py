"""`vmap` in a function that is traced to run member by member: one equation, with the program of one member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import flatten, objects_in, paths_of, unflatten
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import is_vector
from ebbtide.budget import Budget
from ebbtide.errors import TraceError
from ebbtide.program.check import passed
from ebbtide.program.equation import Variable, substitute
from ebbtide.program.lifetimes import outputs_of
from ebbtide.program.members import Members
from ebbtide.program.program import Program
from ebbtide.program.simplify import needed, remove_dead
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.program.tracing import Traced, name_argument, name_of, trace_leaves


def record_members(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    axes: Sequence[int | None],
    size: int,
) -> tuple[list[tuple[Any, bool]], Any, list[bool]] | None:
    """
    Record a function of all members as one equation.

    Args:
        f: The function of one member.
        args: Its positional arguments, for all members.
        kwargs: Its other arguments, which are the same for all.
        leaves: Leaves of the positional arguments.
        axes: For each of them the axis with the members; None where it is the same for all.
        size: Number of members.

    Returns:
        (for each leaf of the result the array of all members and True, or what is the same for all of them and False;
        the structure of the result; for each leaf whether it is that of a vector). None where no program is traced
        that is to run member by member, or where one member alone cannot be traced: a rule refuses, or asks for values.
    """
    symbols = _symbols()
    whole = objects_in(args)
    traced_elsewhere = any(type(x) is TracedArray and x.present()._trace is not symbols for x in leaves)
    if symbols is None or not size or traced_elsewhere or any(map(is_vector, whole)):
        return None
    structure = flatten(args)[1]
    places = [number for number, axis in enumerate(axes) if axis is not None]
    each = [_members_first(leaves[number], axes[number]) for number in places]
    paths = paths_of(structure)
    after: list[Any] = []

    def on_leaves(arrays: list[Any]) -> list[Any]:
        inner = current().capture
        # An array that is the same for all can be indexed by what is not.
        given = [inner.constant(x) if isinstance(x, np.ndarray) and x.ndim else x for x in leaves]
        for number, array in zip(places, arrays, strict=True):
            given[number] = array
        result = f(*unflatten(structure, given), **kwargs)
        outputs, found = flatten(result)
        after.extend((found, [is_vector(one) for one in objects_in(result)]))
        return outputs

    try:
        with entered(level=symbols.level + 1):
            kinds = [ArrayType(tuple(x.shape[1:]), x.dtype) for x in each]
            names = [name_argument(f, paths[number]) for number in places]
            traced = trace_leaves(on_leaves, kinds, names, name_of(f))
    except TraceError:
        return None
    found, are_vectors = after
    if any(array._trace is not symbols for array in traced.captured) or any(are_vectors) or _refused(traced.program):
        return None
    if traced.limit is not None:
        symbols.bound(Budget(memory=traced.limit))
    return _recorded(traced, each, len(places), size, symbols), found, are_vectors


def _symbols() -> SymbolicTrace | None:
    """Return the trace in which a `vmap` becomes an equation; None where the batch rules have to do it."""
    context = current()
    symbols = context.capture
    if type(symbols) is not SymbolicTrace or not symbols.by_members:
        return None
    # A derivative around it goes through the rules.
    return symbols if context.tape is None and context.tangent is None and not context.traces else None


def _refused(program: Program) -> bool:
    """Return whether results are no arrays of numbers, or a loop runs though nothing depends on it: see `needed`."""
    no_numbers = any(type(x) is Variable and x.type.dtype.kind not in "fciub" for x in program.outputs)
    return no_numbers or len(needed(program.equations, program.outputs, idle=False)) < len(program.equations)


def _members_first(leaf: Any, axis: int | None) -> Any:
    """Return an array with its members on the first axis."""
    array: Any = leaf.frozen() if type(leaf) is TracedArray else np.asarray(leaf)
    return np.moveaxis(array, axis or 0, 0) if axis else array


def _recorded(
    traced: Traced, each: list[Any], count: int, size: int, symbols: SymbolicTrace
) -> list[tuple[Any, bool]]:
    """Record a member's program; return the results, with whether they differ from member to member."""
    program = traced.program
    captured = zip(program.inputs[count:], traced.captured, strict=True)
    around = {variable: symbols.entry(array) for variable, array in captured}
    own, equations = set(program.inputs[:count]), []
    for equation in program.equations:
        if not own.isdisjoint(equation.inputs):
            own.add(equation.output)
            equations.append(equation)
        else:
            # What does not depend on the member is computed once.
            arguments, params = substitute((equation.arguments, equation.params), lambda x: around.get(x, x))
            symbols.equations.append(replace(equation, arguments=arguments, params=params))
            around[equation.output] = equation.output
    results = [x for x in outputs_of(program) if x in own]
    used = {variable for equation in equations for variable in equation.inputs}
    shared = [variable for variable in around if variable in used]
    inside = replace(program, inputs=(*program.inputs[:count], *shared), outputs=tuple(results))
    inside = passed(replace(inside, equations=tuple(equations)), remove_dead)
    arrays = {variable: _outside(value, symbols) for variable, value in around.items()}
    if results:
        found = Members(inside, size).record(symbols, each, [arrays[variable] for variable in shared])
        arrays.update(zip(results, found, strict=True))
    # What is one value of the program is one array where it is one of the function, which no argument is.
    cells: dict[Any, Any] = {}
    pairs: list[tuple[Any, bool]] = []
    for x, number in zip(program.outputs, traced.memory, strict=True):
        if type(x) is Variable and type(arrays[x]) is TracedArray:
            key = (x, len(pairs) if x in program.inputs else number)
            pairs.append((cells.setdefault(key, arrays[x].frozen()), x in own))
        else:
            pairs.append((arrays[x], x in own) if type(x) is Variable else (x, False))
    return pairs


def _outside(value: Any, symbols: SymbolicTrace) -> Any:
    """Return the array of the trace around that stands for a variable; what is known as it is."""
    return symbols.array(value) if type(value) is Variable else value
