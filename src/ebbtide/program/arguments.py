"""The arguments of a jitted function: what tells their kind, by which a trace is found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from ebbtide.arrays.containers import flatten, unflatten
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.machine import Form
from ebbtide.program.surroundings import plain_value
from ebbtide.program.tracing import name_argument

_NUMBERS = frozenset({float, complex})


def kind_of_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], static: tuple[int, ...]
) -> tuple[list[Any], Any]:
    """
    Return the leaves of arguments, and what tells their kind; None where they cannot be planned for.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        static: Numbers of the positional ones that are taken as they are.
    """
    if not kwargs and not static:
        # To take a container apart takes 2 us.
        found: list[Any] = []
        for arg in args:
            value = arg if type(arg) is np.ndarray else plain_value(arg)
            kind = type(value)
            if kind is np.ndarray:
                found.append((value.shape, value.dtype, value.strides))
            elif kind in _NUMBERS or isinstance(value, np.inexact):
                found.append(kind)
            else:
                break
        else:
            return list(args), tuple(found)
    leaves, structure = flatten((args, kwargs))
    # An array in a file is read as any other one.
    leaves = [np.asarray(leaf) if type(leaf) is np.memmap else leaf for leaf in leaves]
    kinds: list[Any] = []
    for leaf in leaves:
        value = plain_value(leaf) if type(leaf) is TracedArray else leaf
        kind = type(value)
        if kind is np.ndarray:
            kinds.append((value.shape, value.dtype, value.strides))
        elif value is None and leaf is not None:
            return leaves, None
        elif kind in _NUMBERS or isinstance(value, np.inexact):
            kinds.append(kind)
        elif kind.__hash__ is None:
            refuse_class(kind, "A jitted function cannot take one of its arguments")
            raise _refusal(kind)
        else:
            kinds.append((kind, leaf))
    for number in static:
        if number < len(args):
            # By their bytes, which tell -0.0 from 0.0.
            fixed = [leaf for leaf in flatten(args[number])[0] if is_dynamic(leaf)]
            kinds.extend([(type(leaf), np.asarray(leaf).tobytes()) for leaf in fixed])
    return leaves, (structure, *kinds)


def _refusal(kind: type) -> TraceError:
    """Return the error for an argument of a type that is neither planned for nor compared."""
    if issubclass(kind, np.ndarray):
        return TraceError(
            f"A jitted function was given a {kind.__name__}, which is more than an array of numbers: what it does is "
            "not followed. Write np.asarray(x)."
        )
    return TraceError(
        f"A jitted function was given a {kind.__name__}, and what is no array and no number is taken as it is, so it "
        "has to be hashable. Give it in a container of arrays, or as text, a number or a tuple."
    )


def form_of(tree: Any, leaves: Sequence[Any]) -> Any:
    """Return the form of a container with these leaves; None if not only plain arrays and numbers are in it."""
    try:
        form = None if Form is None else Form(tree)
    except TypeError:
        return None
    # Whoever has taught others how a named tuple is taken apart has not taught it.
    found = None if form is None else form.leaves(tree)
    return form if found is not None and list(map(id, found)) == list(map(id, leaves)) else None


def form_of_results(structure: Any) -> Any:
    """Return the form that puts results together; None where their container has to do that itself."""
    if not _is_plain(structure):
        return None
    leaves = [float(number) for number in range(structure.num_leaves)]
    return form_of(unflatten(structure, leaves), leaves)


def _is_plain(structure: Any) -> bool:
    parts = () if structure.is_leaf() else structure.children()
    known = structure.type in (None, tuple, list, dict, type(None)) or optree.is_namedtuple_class(structure.type)
    return known and all(map(_is_plain, parts))


def leaves_of(args: tuple[Any, ...], numbers: tuple[int, ...]) -> set[int]:
    """Return the numbers of the leaves of some of the arguments."""
    found: set[int] = set()
    first = 0
    for number, arg in enumerate(args):
        count = len(flatten(arg)[0])
        if number in numbers:
            found.update(range(first, first + count))
        first += count
    return found


def is_dynamic(leaf: Any) -> bool:
    """Return whether a leaf of the arguments is an input of the program: an array, or a floating-point number."""
    return type(leaf) in _NUMBERS or isinstance(leaf, TracedArray | np.ndarray | np.inexact)


def name_of_leaf(f: Callable[..., Any], path: str) -> str:
    """Return the name of a leaf of ((positional arguments), {keyword arguments})."""
    if path.startswith("[0]"):
        return name_argument(f, path.removeprefix("[0]"))
    return path.removeprefix("[1]['").replace("']", "", 1)


def difference_of_kinds(before: tuple[Any, ...], after: tuple[Any, ...]) -> str:
    """Return in which way two kinds of arguments differ."""
    one, other = [[kind for kind in key if not _is_structure(kind)] for key in (before, after)]
    for number, (old, new) in enumerate(zip(one, other, strict=False)):
        if old != new:
            return f"leaf {number} of the arguments is {_kind(new)} where it was {_kind(old)}"
    return f"the arguments are another container, of {len(other)} leaves where there were {len(one)}"


def _is_structure(kind: Any) -> bool:
    return isinstance(kind, optree.PyTreeSpec)


def _kind(kind: Any) -> str:
    if isinstance(kind, tuple) and len(kind) == 3:
        shape, dtype, strides = kind
        return f"{dtype}{list(shape)} with strides {strides}"
    return f"{kind[1]!r}" if isinstance(kind, tuple) else f"{kind!r}"
