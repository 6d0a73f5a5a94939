"""Saved values that need care: guarded against changes by the user, counted, or paged to disk."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.location import describe_array
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom, unwritten
from ebbtide.errors import MutationError, ReleasedValueError
from ebbtide.storage.checksum import compute_crc32c, compute_crc32c_of_values

# Smaller values are not worth a file.
LEAST_PAGE = 1 << 14
# Copies of small parts of an array take no more than this part of its bytes: rows of a loop may overlap.
_COPIED = 4


def checksum(value: Any) -> int:
    """Return the crc32c of an array of any level of tracing; 0 for what cannot change."""
    array = bottom(value)
    return compute_crc32c(array) if isinstance(array, np.ndarray) else 0


def checksum_of_result(value: Any) -> int:
    """Return the crc32c of the elements of an array or a number, however they lie in memory; 0 for anything else."""
    array = np.asarray(bottom(value))
    return 0 if array.dtype.hasobject else compute_crc32c_of_values(array)


@final
class SavedValue:
    """
    A saved value with what has to be known of it.

    Args:
        value: The array; None while it is on disk.
        crc: Its crc32c when it was saved if the user can reach it, else None.

    Attributes:
        page: Where it is on disk: called, it gives the array back. None while it is in memory.
        dropped: Whether the array was given up.
        size: What stands for the array in the ledger where only the bytes are counted.
        type: Type or form of what the ledger counts.

    Memory:
        Holds the array until the last node that saves it is consumed.
    """

    __slots__ = ("__weakref__", "crc", "dropped", "page", "size", "type", "value")

    def __init__(self, value: Any, crc: int | None) -> None:
        self.value: Any = value
        self.crc = crc
        self.page: Any = None
        self.dropped = False
        self.size: Any = None
        self.type: Any = None

    def give_up(self, meters: list[Any]) -> None:
        """Forget the array for good; meters have it count as long as this stands for it."""
        for meter in meters:
            meter.miss(self, [owner_of(part) for part in parts_of(self.value)])
        self.value, self.dropped = None, True

    def open(self, node: Any) -> Any:
        """
        Return the array for its use by *node*.

        Raises:
            MutationError: The user changed the array since it was saved.
            ReleasedValueError: The array was given up.
        """
        if self.page is not None:
            self.value = self.page(self)
        if self.dropped:
            raise ReleasedValueError(f"The saved value of {node.name} at {node.line} was given up.")
        if self.crc is not None and checksum(self.value) != self.crc:
            raise MutationError(
                f"The {describe_array(bottom(self.value))} was changed after {node.name} at {node.line} had "
                "used it, so its gradient would be wrong. Do not change arrays in place between the forward run and "
                "the reverse sweep, or give the operation a copy."
            )
        return self.value


def guarded(value: Any) -> Any:
    """Return a saved value that is checked for changes when it is used; scalars cannot change."""
    if isinstance(bottom(value), np.ndarray):
        return SavedValue(value, checksum(value))
    return value


def saved_operand(operand: TracedArray, value: Any) -> Any:
    """Return the value of an operand in the form in which it can be saved: with a guard if the user can reach it."""
    sharing = operand._sharing
    if sharing is None:
        return value
    value = unwritten(sharing, value)
    return guarded(value) if sharing.reachable else value


def parts_of(value: Any) -> list[np.ndarray]:
    """Return the plain arrays that a value of any level of tracing consists of, tangents included."""
    if isinstance(value, np.ndarray):
        return [value]
    if type(value) is TracedArray:
        tangent = value._node
        return parts_of(value._value) + (parts_of(tangent) if type(tangent) in (np.ndarray, TracedArray) else [])
    return []


@final
class Size:
    """Stands for an array of which only the bytes are kept."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@final
class Sizes:
    """
    Finds what stands for arrays: one size for all views of an array, or of one and its tangent.

    Memory:
        A weak reference and a number for each array that lives.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[list[weakref.ref[Any]], Size]] = {}

    def find(self, owners: list[Any]) -> Size:
        """Return what stands for arrays that own their memory."""
        key = tuple([id(owner) for owner in owners])
        known = self._known.get(key)
        if known is None or any(one() is not owner for one, owner in zip(known[0], owners, strict=True)):
            if len(self._known) >= 64 and not len(self._known) & (len(self._known) - 1):
                self._known = {k: v for k, v in self._known.items() if all(one() is not None for one in v[0])}
            nbytes = sum({id(owner): owner.nbytes for owner in owners}.values())
            known = self._known[key] = [weakref.ref(owner) for owner in owners], Size(nbytes)
        return known[1]


@final
class Slivers:
    """
    Finds small parts of large arrays, which are copied when they are saved.

    Too small for a page, each would keep all of its array in memory, though that may be on disk.

    Memory:
        A weak reference and a number for each array that lives.
    """

    __slots__ = ("_copied",)

    def __init__(self) -> None:
        self._copied: dict[int, tuple[weakref.ref[Any], int]] = {}

    def take(self, part: np.ndarray, owner: np.ndarray) -> bool:
        """Return whether a *part* of the array *owner* is to be copied, and note that it is."""
        if part.nbytes >= LEAST_PAGE or owner.nbytes < LEAST_PAGE:
            return False
        if len(self._copied) >= 64 and not len(self._copied) & (len(self._copied) - 1):
            self._copied = {k: v for k, v in self._copied.items() if v[0]() is not None}
        known = self._copied.get(id(owner))
        before = known[1] if known is not None and known[0]() is owner else 0
        if _COPIED * (before + part.nbytes) > owner.nbytes:
            return False
        self._copied[id(owner)] = weakref.ref(owner), before + part.nbytes
        return True


def bytes_of(value: Any) -> int:
    """Return the bytes that a saved value, or an array, keeps alive."""
    if type(value) is SavedValue:
        return value.size.nbytes if value.size else sum(owner_of(part).nbytes for part in parts_of(value.value))
    return owner_of(value).nbytes


def value_of(value: Any) -> Any:
    """Return the array of a saved value, or an array itself; None for what is not in memory."""
    return value.value if type(value) is SavedValue else value


def opened(values: Iterable[Any], node: Any) -> list[Any]:
    """Return the arrays of saved values, as *node* takes them: read from disk, and unchanged."""
    return [value.open(node) if type(value) is SavedValue else value for value in values]


def key_of(value: Any) -> int:
    """Return what tells the memory of a saved value, or of an array, from other memory."""
    if type(value) is SavedValue:
        if value.size:
            return id(value.size)
        value = parts_of(value.value)[0]
    return id(owner_of(value))


def guard_shared(roots: list[Any], returned: list[Any]) -> None:
    """
    Guard the saved values that share memory with arrays that a function returns to the user.

    Args:
        roots: Nodes of the outputs.
        returned: The values that go to the user.
    """
    owners = {id(owner_of(bottom(value))) for value in returned if isinstance(bottom(value), np.ndarray)}
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen or node.saved is None:
            continue
        seen.add(id(node))
        stack.extend(node.parents)
        inside = getattr(node.signature, "inside", None)
        if inside is not None:
            stack.extend(inside())  # of a time loop: the nodes of its steps
        if any(_owner(value) in owners for value in node.saved):
            node.saved = tuple([_guard(value) if _owner(value) in owners else value for value in node.saved])


def _owner(value: Any) -> int:
    array = bottom(value_of(value))
    return id(owner_of(array)) if isinstance(array, np.ndarray) else 0


def _guard(value: Any) -> Any:
    if type(value) is not SavedValue:
        return guarded(value)
    if value.crc is None:
        value.crc = checksum(value.value)
    return value
