"""
Containers of arrays: any nesting that optree knows, and the checks of what can be differentiated.

Vectors of registered types are containers too, each of one array: what takes a container apart and puts it together
sees arrays only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import numpy as np
import optree

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.misuse import refuse_class
from ebbtide.arrays.spaces import SPACES, VectorKind, advice
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import TracedVector, is_vector, lowered, vector_of

_NAMESPACE = "ebbtide"
# The structure of an array by itself, which time steps take apart and put together each time.
_LEAF = optree.tree_structure(cast("Any", 0.0), namespace=_NAMESPACE)

# Of longer structures messages show the beginning: a list in the place of an array has a star for each number.
_MOST_SHOWN = 160


@final
class VectorNode:
    """A vector in a container, traced or not: its array, which is the leaf, and its kind, a part of the structure."""

    __slots__ = ("array", "kind")

    def __init__(self, array: Any, kind: VectorKind | None) -> None:
        self.array = array
        self.kind = kind


def _taken_apart(node: Any) -> tuple[Any, Any, Any]:
    """Return the leaf of a vector, its kind, and a path entry that messages leave out."""
    return (node.array,), node.kind, (None,)


def _put_together(kind: Any, children: Any) -> Any:
    return vector_of(kind, children[0])


optree.register_pytree_node(cast("Any", VectorNode), _taken_apart, _put_together, namespace=_NAMESPACE)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a container and its structure; the leaf of a vector is its packed array."""
    if type(tree) is np.ndarray or type(tree) is TracedArray:
        return [tree], _LEAF
    leaves, structure = optree.tree_flatten(tree, namespace=_NAMESPACE)
    if SPACES and any(map(is_vector, leaves)):
        nodes = [VectorNode(*lowered(leaf)) if is_vector(leaf) else leaf for leaf in leaves]
        leaves, structure = optree.tree_flatten(optree.tree_unflatten(structure, nodes), namespace=_NAMESPACE)
    return leaves, structure


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Return the container of this structure with these leaves."""
    if structure is _LEAF:
        (leaf,) = leaves
        return leaf
    return optree.tree_unflatten(structure, leaves)


def objects_in(tree: Any) -> list[Any]:
    """Return the leaves of a container as the user gave them, vectors whole."""
    return optree.tree_leaves(tree, namespace=_NAMESPACE)


def has_vectors(tree: Any) -> bool:
    """Return whether there are vectors of registered types in a container, traced or not."""
    return bool(SPACES) and any(map(is_vector, objects_in(tree)))


def map_vectors(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a container with *change* of each traced vector in its place."""
    return _changed(lambda leaf: change(leaf) if type(leaf) is TracedVector else leaf, tree)


def map_plain_vectors(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a container with *change* of the array of each vector of the user's in its place."""

    def changed(leaf: Any) -> Any:
        array, kind = (leaf, None) if type(leaf) is TracedVector else lowered(leaf)
        return leaf if kind is None else vector_of(kind, change(array))

    return _changed(changed, tree)


def _changed(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return a container with *change* of each leaf, vectors whole, if there are vectors in it."""
    if not has_vectors(tree):
        return tree
    leaves, structure = optree.tree_flatten(tree, namespace=_NAMESPACE)
    return optree.tree_unflatten(structure, list(map(change, leaves)))


def check_vectors(tree: Any) -> None:
    """
    Do nothing if the vectors in a container are what they are packed and unpacked to.

    Raises:
        ValueError: One is not.
    """
    if SPACES:
        for leaf in objects_in(tree):
            if type(leaf) in SPACES:
                SPACES[type(leaf)].check(leaf)


def form_of(structure: Any) -> str:
    """
    Return a structure as messages write it: with * for an array or number, and the kind of a vector for a vector.

    Example:
        >>> form_of(flatten({"a": 1.0, "b": [2.0, 3.0]})[1]), form_of(flatten(np.ones(3))[1])
        ("{'a': *, 'b': [*, *]}", '* (one array or number)')
    """
    text = re.sub(r"^PyTreeSpec\((.*?)(, NoneIsLeaf)?(, namespace='\w*')?\)$", r"\1", str(structure), flags=re.DOTALL)
    text = re.sub(r"CustomTreeNode\(VectorNode\[(.*?)\], \[\*\]\)", r"\1", text, flags=re.DOTALL)
    if text == "*":
        return "* (one array or number)"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({structure.num_leaves} arrays or numbers)"


def paths_of(structure: Any) -> list[str]:
    """Return for each leaf how to reach it, such as `[0]['weights']`."""
    paths = optree.treespec_paths(structure)
    return ["".join(f"[{key!r}]" for key in path if key is not None) for path in paths]


def is_array(value: Any) -> bool:
    """Return whether a leaf is an array or a number that can be traced."""
    return isinstance(value, (np.ndarray, np.generic, TracedArray, float, complex)) and np.dtype(
        getattr(value, "dtype", type(value))
    ).kind in "fc"


def as_operand(value: Any) -> Any:
    """Return an operand as an array; NumPy takes lists, too."""
    return value if type(value) is TracedArray else np.asarray(value)


def frozen_leaf(leaf: Any) -> Any:
    """Return a leaf as it is now: what is written later into a traced array does not change it."""
    return leaf.frozen() if type(leaf) is TracedArray else leaf


def copied_leaf(leaf: Any) -> Any:
    """Return a copy of an array: a function may write into its arguments, and may return them."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else frozen_leaf(leaf)


def apart(tree: Any) -> Any:
    """Return a container of arrays that share no memory with those in *tree*, nor with each other."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [copied_leaf(leaf) for leaf in leaves])


def is_differentiable(value: Any) -> bool:
    """Return whether a leaf is an array or a NumPy number that can have a derivative: a Python number is a constant."""
    return type(value) not in (float, complex) and is_array(value)


def as_value(leaf: Any, place: str) -> Any:
    """
    Return a leaf of an argument as an array or NumPy scalar that can be differentiated.

    Args:
        leaf: The leaf.
        place: What it is, for the message: `argument 0['weights']`.

    Raises:
        TypeError: It is an integer, a boolean, or no number at all.
        TraceError: It is a masked array or a matrix.
    """
    discrete = isinstance(leaf, (np.ndarray, TracedArray)) and leaf.dtype.kind in "iub"
    others = ", or choose other argnums" if place.startswith("argument") else ""  # controls have none
    if isinstance(leaf, TracedArray) and not discrete:
        return leaf.frozen()
    if discrete or isinstance(leaf, (bool, int, np.integer, np.bool_)):
        write = f"float({leaf})" if isinstance(leaf, (bool, int, np.generic)) else "x.astype(float)"
        raise TypeError(
            f"Cannot differentiate with respect to {place}: it is of type "
            f"{getattr(leaf, 'dtype', type(leaf).__name__)}, and only floating-point and complex values have "
            f"derivatives. Write {write}{others}."
        )
    if isinstance(leaf, float):
        return np.float64(leaf)
    if isinstance(leaf, complex):
        return np.complex128(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fc":
        if type(leaf) is not np.ndarray:
            refuse_class(type(leaf), f"Cannot differentiate with respect to {place}")
        return np.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
    raise TypeError(
        f"Cannot differentiate with respect to {place}: it is a {type(leaf).__name__}. Arguments are arrays, "
        f"numbers, and containers of them; choose other argnums, or pass it by a closure.{advice(leaf)}"
    )


def output_type(leaf: Any, transform: str, place: str) -> ArrayType:
    """
    Return the type of a leaf of the output of a function.

    Args:
        leaf: The leaf.
        transform: Who took the derivative, for the message: `vjp`.
        place: Where in the output the leaf is: `[0]['weights']`; empty if it is the output itself.

    Raises:
        TypeError: It is neither an array of numbers nor a number.
    """
    if isinstance(leaf, (np.ndarray, np.generic, TracedArray, bool, int, float, complex)):
        kind = type_of(leaf)
        if kind.dtype.kind in "fciub":
            return kind
        found = f"an array of dtype {kind.dtype}"
        more = ""
    else:
        found, more = f"{leaf!r:.40} of type {type(leaf).__name__}", advice(leaf)
    raise TypeError(
        f"{transform} was given a function that returned {found}{f' at {place}' if place else ''}. The outputs of a "
        "function are arrays, numbers, and containers of them: leave the rest out, or give it to the caller by "
        f"has_aux=True of grad and value_and_grad.{more}"
    )


def output_types(leaves: Sequence[Any], structure: Any, transform: str) -> list[ArrayType]:
    """Return the types of the leaves of the output of a function; see `output_type`."""
    return [output_type(x, transform, place) for x, place in zip(leaves, paths_of(structure), strict=True)]


def single_output(leaves: Sequence[Any], structure: Any, transform: str) -> Any:
    """
    Return the output of a function that returns no container.

    Raises:
        TypeError: It is a container, or None.
    """
    container = structure.type
    if container is None:
        return leaves[0]
    if container is VectorNode:
        raise TypeError(
            f"{transform} was given a function that returned a vector. It needs one real number: return "
            "ebbtide.inner(x, y) or another functional of it, or use vjp."
        )
    name = "None (is a `return` missing?)" if container is type(None) else f"a {container.__name__} of {len(leaves)}"
    raise TypeError(
        f"{transform} was given a function that returned {name}. It needs one real number, as a scalar or an array "
        "without axes: return that alone, with has_aux=True as (number, anything else), or use vjp or jacobian for "
        "several outputs."
    )
