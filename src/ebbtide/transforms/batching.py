"""`vmap`: a function of one member as a function of a batch of members."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import optree

from ebbtide.arrays.array_type import ArrayType, owner_of
from ebbtide.arrays.batched import BatchTrace, full
from ebbtide.arrays.containers import VectorNode, flatten, form_of, objects_in, output_type, paths_of, unflatten
from ebbtide.arrays.functions import check_function, is_whole
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import is_vector
from ebbtide.arrays.views import root_of
from ebbtide.tape.recording import settle
from ebbtide.transforms.members import record_members


def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """
    Return a function that does *f* for all members of a batch at once, in array operations and with no loop over them.

    Args:
        f: A function of arrays and containers of arrays of one member. Views, in-place changes, derivatives, time loops
            and checkpoints in it work; Python code that asks for a value (`if x > 0`) is an error: there is no one
            answer.
        in_axes: For each positional argument the axis along which its arrays have the members, None for an argument
            that is the same for all, or a container that begins as the argument and has those; one number for all.
            Negative ones count from the last axis. Keyword arguments are the same for all members, and plain.
        out_axes: Where the members go in the arrays of the result; None for what is the same for all. One number for
            all, or a container that begins as the result.

    Returns:
        A function with the arguments of *f* whose result has one more axis in each array, in memory of the caller.
        Numbers in the result become arrays.

    Raises:
        ValueError: Arguments have another number of members, or lack the axis; *in_axes* or *out_axes* do not fit.
        TypeError: An argument with members is no array, or a result is neither an array nor a number.
        TraceError: The function asks for a value that members have each their own of.

    Memory:
        What *f* holds, times the number of members where it depends on them: one array for each value. A product with
        an array that is the same for all is one product.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> x = np.array([1.0, 2.0, 3.0])
        >>> vmap(grad(np.sin))(x) - np.cos(x)
        array([0., 0., 0.])
        >>> vmap(np.dot, in_axes=(None, 1), out_axes=1)(np.eye(2), np.ones((2, 3))).shape
        (2, 3)
    """
    check_function(f, "vmap")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten(args)
        leaves = [leaf.frozen() if type(leaf) is TracedArray else leaf for leaf in leaves]
        axes = _of_arguments(in_axes, args)
        size = _count(leaves, axes, structure)
        found = record_members(f, args, kwargs, leaves, axes, size)
        pairs, after, are_vectors = found or _by_rules(f, args, kwargs, leaves, axes, size)
        places = _spread(out_axes, after, "out_axes", "the result has")
        names = paths_of(after)
        owners = {id(owner_of(leaf)) for leaf in leaves if isinstance(leaf, np.ndarray)}
        cells = [weakref.ref(leaf) for leaf in leaves if type(leaf) is TracedArray]
        del leaves, args
        made = []
        while pairs:
            array, is_mapped = pairs.pop(0)
            if are_vectors[len(made)] and places[len(made)] is not None:
                raise TypeError(
                    "vmap was given a function that returned a vector of a registered type, which has no members. Give "
                    "out_axes=None for it, or return arrays."
                )
            made.append(_returned(array, is_mapped, places[len(made)], names[len(made)], size, owners, cells))
        return unflatten(after, made)

    return wrapped


def _by_rules(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, leaves: list[Any], axes: list[int | None], size: int
) -> tuple[list[tuple[Any, bool]], Any, list[bool]]:
    """
    Run a function on all members at once.

    Returns:
        (for each leaf of the result the array of all members and True, or what is the same for all of them and False;
        the structure of the result; for each leaf whether it is that of a vector).
    """
    trace = BatchTrace(0, size)
    triples = zip(objects_in(args), leaves, axes, strict=True)
    traced = [leaf if is_vector(whole) else _given(trace, leaf, axis) for whole, leaf, axis in triples]
    given = unflatten(flatten(args)[1], traced)
    del traced, args
    trace.closed = True  # but in the block
    with trace.above():
        result = f(*given, **kwargs)
        del given
        outputs, after = flatten(result)
        settle(outputs)
        return [trace.split(output) for output in outputs], after, [is_vector(whole) for whole in objects_in(result)]


def _of_arguments(in_axes: Any, args: tuple[Any, ...]) -> list[int | None]:
    """Return the axis of each leaf of the positional arguments, not negative; None where it has no members."""
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ValueError(
            f"in_axes={in_axes!r} is for {len(in_axes)} arguments, and the function was called with {len(args)} "
            "positional ones. Give an axis or None for each; keyword arguments are the same for all members."
        )
    leaves, structure = flatten(args)
    axes = _spread(in_axes, structure, "in_axes", "the arguments have")
    places = paths_of(structure)
    given = zip(objects_in(args), leaves, axes, places, strict=True)
    return [None if axis is None else _checked_axis(whole, leaf, axis, place) for whole, leaf, axis, place in given]


def _checked_axis(whole: Any, leaf: Any, axis: int, place: str) -> int:
    """Return the axis of a leaf, or of the packed array of a vector, counted from the first."""
    name = f"argument {place[1:].replace(']', '', 1)}"
    if is_vector(whole):
        raise TypeError(
            f"vmap cannot take members from {name}, a vector of a registered type, which has no axes. Give it "
            "in_axes=None, or an array."
        )
    is_array = isinstance(leaf, (np.ndarray, TracedArray)) and leaf.dtype.kind in "fciub"
    refuse_class(type(leaf), f"vmap cannot take members from {name}")
    if not is_array and not isinstance(leaf, (np.generic, bool, int, float, complex)):
        found = getattr(leaf, "dtype", type(leaf).__name__)
        raise TypeError(
            f"vmap cannot take members from {name}, which is of type {found}: only arrays of numbers have them. Give "
            "it in_axes=None, which passes it as it is, or by a closure."
        )
    shape = tuple(leaf.shape) if isinstance(leaf, (np.ndarray, TracedArray)) else ()
    ndim = len(shape)
    if not -ndim <= axis < ndim:
        found = f"has the shape {shape}" if ndim else "is a number"
        raise ValueError(
            f"vmap was asked for the members along axis {axis} of {name}, which {found}. Give it another axis in "
            "in_axes, or None if it is the same for all members."
        )
    return axis % ndim


def _count(leaves: list[Any], axes: list[int | None], structure: Any) -> int:
    """Return the number of members."""
    pairs = zip(leaves, axes, paths_of(structure), strict=True)
    lengths = [(int(leaf.shape[axis]), axis, place) for leaf, axis, place in pairs if axis is not None]
    if not lengths:
        raise ValueError(
            "vmap has no members: in_axes is None for all arguments, or there are no arrays. Give an axis for at least "
            "one array, or call the function without vmap."
        )
    if len({length for length, _, _ in lengths}) > 1:
        found = "; ".join(
            f"argument {place[1:].replace(']', '', 1)} has {n} along axis {axis}" for n, axis, place in lengths
        )
        raise ValueError(f"All arguments of vmap have the same number of members, and these differ: {found}.")
    return lengths[0][0]


def _spread(axes: Any, structure: Any, name: str, of: str) -> list[int | None]:
    """
    Return an axis or None for each leaf of a container.

    Args:
        axes: A number or None for all leaves, or a container that begins as this one, of those.
        structure: The structure of the container.
        name: What the user calls *axes*.
        of: What messages call the container, with its verb.

    Raises:
        ValueError: It begins otherwise, or has something else where an axis is due.
    """
    if axes is None or is_whole(axes):
        return [None if axes is None else int(axes)] * structure.num_leaves
    parts = structure.children()
    flatten_once: Any = optree.tree_flatten  # whose types know only some containers
    theirs, axes_structure = flatten_once(
        axes, is_leaf=lambda part: part is not axes, none_is_leaf=True, namespace="ebbtide"
    )
    same = axes_structure.type is structure.type and structure.type not in (None, VectorNode)
    if not same or len(theirs) != len(parts) or axes_structure.entries() != structure.entries():
        raise ValueError(
            f"{name} has {axes!r:.200} where {of} {form_of(structure)}. Give a number or None, or a "
            "container of the same form with those in it."
        )
    found: list[int | None] = []
    for part, below in zip(theirs, parts, strict=True):
        found += _spread(part, below, name, of)
    return found


def _given(trace: BatchTrace, leaf: Any, axis: int | None) -> Any:
    """
    Return a leaf of the arguments as the function gets it.

    An array that is the same for all is traced, too, so that it can be indexed by what is not, as in `table[label]`.
    """
    is_array = type(leaf) is TracedArray or (isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "fciub")
    if not is_array:
        return leaf
    array: Any = leaf if type(leaf) is TracedArray else np.asarray(leaf)
    if axis is None:
        return trace.constant(array)
    return trace.members(np.moveaxis(array, axis, 0) if axis else array)


def _returned(
    array: Any, is_mapped: bool, axis: int | None, place: str, size: int, owners: set[int],
    cells: list[weakref.ref[TracedArray]],
) -> Any:  # fmt: skip
    """
    Return a leaf of the result as the caller gets it.

    Args:
        array: The array of all members, or what is the same for all of them.
        is_mapped: Which of the two it is.
        axis: Where the members go.
        place: Where in the result the leaf is.
        size: Number of members.
        owners: Addresses of the arrays of the arguments.
        cells: The traced arrays of the arguments.
    """
    where = f" at {place}" if place else ""
    if axis is None:
        if is_mapped:
            raise ValueError(
                f"out_axes is None for the result{where}, which differs from member to member. Give the axis that the "
                "members go to."
            )
        return array
    kind = output_type(array, "vmap", place)
    ndim = kind.ndim + (not is_mapped)
    if not -ndim <= axis < ndim:
        of_member = ArrayType(kind.shape[is_mapped:], kind.dtype)
        raise ValueError(
            f"out_axes asks for the members on axis {axis} of the result{where}, which has the type {of_member} for "
            f"each member, and {ndim} axes with theirs."
        )
    array = full(array, is_mapped, size)
    if isinstance(array, np.ndarray) and (not array.flags.writeable or id(owner_of(array)) in owners):
        # What is the same for all members is copied with the members first, as all other results have them.
        array = np.array(array, order="K" if is_mapped else "C")
    else:
        array = _apart(array, is_mapped, cells)
    return np.moveaxis(array, 0, axis % ndim) if axis % ndim else array


def _apart(array: Any, is_mapped: bool, cells: list[weakref.ref[TracedArray]]) -> Any:
    """Return a traced array of all members as one that is no argument; a plain one as it is."""
    if type(array) is TracedArray and (not is_mapped or any(cell() is root_of(array) for cell in cells)):
        return array.frozen()
    return array
