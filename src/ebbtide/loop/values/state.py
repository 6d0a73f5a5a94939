"""
The state of a time loop: leaves that the loop owns, their bytes, and their way into a storage.

A leaf is an array, a number, a record of an array of structures, a random generator, or, while derivatives of
derivatives are taken, a traced array of an outer trace. Duals (value and tangent) are stored as two arrays, members of
a batch and records as one array, generators as the bytes of their state; arrays of an outer tape are kept as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import frozen_leaf
from ebbtide.arrays.location import user_line
from ebbtide.arrays.spaces import advice
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.loop.values.generators import pack_generator, packed_nbytes, unpack_generator
from ebbtide.program.equation import Variable
from ebbtide.storage import compute_crc32c_of_values
from ebbtide.tape.node import Node

CHANGEABLE = (np.ndarray, np.void, np.random.Generator)
"""Leaves in which a step may change something; a record, `np.void`, is a view of the array that it was taken of."""
_NUMBERS = (bool, int, float, complex, np.generic)
# Numbers of Python's, and beside complex ones those in whose place they stay what they are.
_WITHOUT_DERIVATIVE = MappingProxyType[type, tuple[type, ...]]({float: (bool, int, float), complex: ()})
# A number that a snapshot keeps alive, its form and its place in two lists; 90 to 104 bytes measured.
NUMBER_BYTES = 112


def owned(value: Any, place: str = "the state") -> Any:
    """
    Return a leaf as the loop hands it to a step: C-contiguous memory, or a generator, that only the loop has.

    Raises:
        TypeError: The leaf is neither an array nor a number, nor a random generator in its place; or it is an array of
            a class that computes in its own way.
    """
    if isinstance(value, (np.ndarray, np.void)):
        refuse_objects(value, place)
        if isinstance(value, np.void):
            return value.copy()
        refuse_class(value, place)
        return np.array(value, order="C", copy=True, subok=False)
    if type(value) is TracedArray:
        value.present()
        node = value._node
        if type(node) is Variable:
            return value.copy()  # of a program: where it lies is for the plan to say
        kept = node if node is None or isinstance(node, Node) else owned(node)
        return TracedArray(value._trace, kept, owned(value._value))
    if isinstance(value, (*_NUMBERS, ArrayType)):  # the type of the members of a batch
        return value
    if isinstance(value, np.random.Generator) and place != "the output":
        return unpack_generator(*pack_generator(value))
    raise TypeError(
        f"A leaf of {place} is a {type(value).__name__} (the time loop is called at {user_line()}). A state is a "
        "container of arrays, numbers and random generators (np.random.Generator), an output one of arrays and "
        f"numbers; keep other objects outside of them, by a closure.{advice(value)}"
    )


def native(leaves: list[Any]) -> list[Any]:
    """
    Return leaves of the user's in the byte order of the machine, in which steps return what they compute.

    An array of a file may have the other one; records stay as they are.
    """
    for k, leaf in enumerate(leaves):
        # The property of a traced array would be a call for each step.
        dtype = getattr(leaf._value if type(leaf) is TracedArray else leaf, "dtype", None)
        if dtype is not None and not dtype.isnative and dtype.kind != "V":
            leaves[k] = leaf.astype(dtype.newbyteorder("="))
    return leaves


def refuse_objects(value: Any, place: str) -> None:
    """
    Do nothing for an array of numbers or of records of them.

    Raises:
        TypeError: It has Python objects.
    """
    if value.dtype.hasobject:
        raise TypeError(
            f"A leaf of {place} has the dtype {value.dtype} (the time loop is called at {user_line()}); states and "
            "inputs are numeric arrays. Give an array of numbers."
        )


def refuse_class(value: Any, place: str = "the state") -> None:
    """
    Do nothing if what steps are given of a leaf, a plain array, computes as the leaf does.

    Raises:
        TypeError: It is an array of a class that computes in its own way.
    """
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray and _means_more(type(value)):
        raise TypeError(
            f"A leaf of {place} is a {type(value).__name__}, whose operations are not those of plain arrays, which "
            f"is what steps are given (the time loop is called at {user_line()}): they would silently compute "
            "something else. Give np.asarray of it (of a masked array its data and its mask, as two leaves)."
        )


def _means_more(kind: type) -> bool:
    """Return whether a subclass of arrays computes in its own way, as masked arrays and matrices do; memmaps do not."""
    names = "__array_ufunc__", "__array_function__", "__add__", "__mul__"
    return any(getattr(kind, name) is not getattr(np.ndarray, name) for name in names)


def writable(value: Any, trace: Any) -> Any:
    """Return a leaf such that a step can write values of *trace* into it."""
    if trace is None or not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return value
    return trace.constant(value)


def begun(leaf: Any, trace: Any) -> Any:
    """Return a leaf of the user's initial state as a loop of its own has it; see `writable`."""
    if type(leaf) is not TracedArray:
        return writable(owned(leaf), trace)
    # A copy of a number would be an array, whose dtype stays the same.
    return leaf.frozen() if isinstance(bottom(leaf.present()), np.generic) else leaf.copy()


def alike(old: Any, new: Any) -> Any:
    """
    Return a leaf without axes as an array if the one before was an array, else as a number.

    A number of Python's in the place of one of NumPy's becomes one of the same precision. It has no derivative, and the
    step may have made it of what has one: Python computes `1j * x`, where x is a float of NumPy's, and `abs` of that.
    """
    is_number = type(old) in (bool, int, float) or isinstance(old, (np.ndarray, np.generic, TracedArray))
    if type(new) in _WITHOUT_DERIVATIVE and is_number and type(old) not in _WITHOUT_DERIVATIVE[type(new)]:
        new = _of_numpy(old, new)
    if np.ndim(new):
        return new
    before, after = bottom(old), bottom(new)
    if isinstance(before, np.ndarray) and isinstance(after, np.generic):
        return np.copy(new) if type(new) is TracedArray else np.asarray(new)
    # What a program or a batch has without axes may be both.
    return new[()] if isinstance(after, np.ndarray) and not isinstance(before, (np.ndarray, ArrayType)) else new


def _of_numpy(old: Any, new: Any) -> Any:
    """Return a number of Python's as one of NumPy's, of the precision of the leaf before."""
    before = getattr(old, "dtype", None)
    real = np.empty((), before).real.dtype if before is not None and before.kind in "fc" else np.dtype(float)
    return np.result_type(real, new).type(new)


def settled(value: Any, taken: set[int]) -> Any:
    """
    Return a leaf that a taped step returned, copied only if its memory could be that of another.

    Args:
        value: The value of the leaf, which nobody can write if it is fresh.
        taken: Addresses of arrays of other leaves; extended.
    """
    if isinstance(value, np.ndarray):
        if value.base is not None or not value.flags.c_contiguous or id(value) in taken:
            value = np.array(value, order="C")
        taken.add(id(value))
        return value
    return owned(value)


def count_numbers(leaves: list[Any]) -> int:
    """Return how many leaves are numbers and no arrays."""
    return sum(isinstance(leaf, _NUMBERS) and not isinstance(leaf, np.void) for leaf in leaves)


def bytes_of(leaves: list[Any]) -> int:
    """Return the bytes of a state: of its arrays and generators, and what the interpreter takes for its numbers."""
    numbers = NUMBER_BYTES * count_numbers(leaves)
    generators = sum(packed_nbytes(leaf) for leaf in leaves if isinstance(leaf, np.random.Generator))
    arrays = [leaf for leaf in leaves if not isinstance(leaf, np.random.Generator)]
    return numbers + generators + sum(sum(array.nbytes for array in _lower(leaf)[0]) for leaf in arrays)


def layout_of(array: np.ndarray) -> str:
    """
    Return how an array lies in memory, on which the rounding of sums and products depends; empty for C order.

    Example:
        >>> layout_of(np.zeros((2, 3))), layout_of(np.zeros((2, 3)).T)
        ('', ' with strides [8, 24]')
    """
    if array.flags.c_contiguous:
        return ""
    # Along an axis of one element there is no way to go.
    return f" with strides {[stride for stride, n in zip(array.strides, array.shape, strict=True) if n > 1]}"


def checksums_of(leaves: list[Any]) -> list[Any]:
    """Return for each leaf what tells whether it is the same: checksums of its arrays, or the number itself."""
    found: list[Any] = []
    for leaf in leaves:
        arrays, _ = _lower(_off_tapes(leaf))
        value = bottom(leaf)
        if not arrays and isinstance(value, (np.ndarray, np.generic)):
            arrays = [np.asarray(value)]  # of a number and an array without axes the same
        for array in arrays:
            refuse_objects(array, "the inputs")
        checks = [compute_crc32c_of_values(array) for array in arrays]
        found.append(checks[0] if len(checks) == 1 else tuple(checks) if checks else repr(value))
    return found


def _off_tapes(leaf: Any) -> Any:
    """Return the value of an array of an outer tape: a step that runs again in a region of that has it on none."""
    while type(leaf) is TracedArray and isinstance(leaf.present()._node, Node):
        leaf = leaf._value
    return leaf


@final
@dataclass(frozen=True, slots=True)
class Packed:
    """
    A state in the form in which it is stored.

    Args:
        arrays: The plain arrays in it.
        forms: How to build each leaf from them.
    """

    arrays: list[np.ndarray]
    forms: list[Any]


def pack(leaves: list[Any]) -> Packed:
    """Return a state as plain arrays and the forms of its leaves; nothing is copied."""
    arrays: list[np.ndarray] = []
    forms = []
    for leaf in leaves:
        parts, form = _lower(leaf)
        arrays += parts
        forms.append(form)
    return Packed(arrays, forms)


def unpack(arrays: list[np.ndarray], forms: list[Any]) -> list[Any]:
    """Return the leaves of a packed state."""
    rest = iter(arrays)
    return [_raise(form, rest) for form in forms]


def _lower(leaf: Any) -> tuple[list[np.ndarray], Any]:
    """Return the plain arrays of a leaf, and how `_raise` makes it of them, such as ("dual", trace, tangent, value)."""
    if isinstance(leaf, np.ndarray):
        return [leaf], "array"
    if isinstance(leaf, np.void):
        return [np.asarray(leaf)], ("record",)
    if isinstance(leaf, np.random.Generator):
        packed, form = pack_generator(leaf)
        return [packed], ("generator", form)
    if type(leaf) is TracedArray and leaf._node is not None and not isinstance(leaf._node, Node):
        tangents, tangent_form = _lower(leaf._node)
        values, value_form = _lower(leaf._value)
        return tangents + values, ("dual", leaf._trace, tangent_form, value_form)
    if type(leaf) is TracedArray and leaf._node is None:
        values, value_form = _lower(leaf._value)
        return values, ("constant", leaf._trace, value_form)
    # Frozen: the step may write into the array that it is given.
    return [], ("kept", frozen_leaf(leaf))


def _raise(form: Any, arrays: Any) -> Any:
    if form == "array":
        return next(arrays)
    if form[0] == "record":
        return next(arrays)[()]
    if form[0] == "generator":
        return unpack_generator(next(arrays), form[1])
    if form[0] == "dual":
        tangent = _raise(form[2], arrays)
        return TracedArray(form[1], tangent, _raise(form[3], arrays))
    if form[0] == "constant":
        return TracedArray(form[1], None, _raise(form[2], arrays))
    return form[1].frozen() if type(form[1]) is TracedArray else form[1]
