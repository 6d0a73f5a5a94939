"""The structure of inputs as short texts: which containers, where a None is in them, and their static metadata."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any, final

from optree import PyTreeSpec

from ebbtide.arrays.spaces import VectorKind
from ebbtide.loop.values.code import digest_structure
from ebbtide.loop.values.code_parts import is_data
from ebbtide.loop.values.plain_data import PlainData

# Of no more objects it is kept what was read of them.
_MOST = 64


@final
class Structures:
    """
    Tells structures of inputs, each time that one is read.

    Numbers, texts, arrays and containers may be changed in place, so they are read each time. Another object, or a
    class, is read when it is met first: what it notes for itself later, as a memo, makes it no other one.

    Args:
        reads_classes: Whether the code of classes counts, for texts that are compared in another process; else their
            names alone do.

    Memory:
        Short texts of at most 64 objects, which are not kept alive.

    Example:
        >>> from ebbtide.arrays.containers import flatten
        >>> tell = lambda x: Structures().tell(flatten(x)[1])
        >>> tell({"add": 1.0, "sub": None}) == tell({"add": None, "sub": 1.0})
        False
        >>> tell((1.0, 2.0)) == tell((3.0, 4.0)), tell(1.0)
        (True, '')
    """

    __slots__ = ("_known", "_reads_classes")

    def __init__(self, *, reads_classes: bool = False) -> None:
        self._reads_classes = reads_classes
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}  # by address, as objects may have no hash

    def tell(self, structure: Any) -> str:
        """Return the text of the structure that `flatten` gave; of a leaf by itself it is empty."""
        return "" if structure.is_leaf() else self._text(structure.__getstate__())

    def tell_leaf(self, leaf: Any) -> str | None:
        """Return the text of a leaf that is a structure, as a loop over values and tangents has them; else None."""
        return self.tell(leaf) if type(leaf) is PyTreeSpec else None

    def _text(self, value: Any) -> str:
        text = PlainData().text(value)
        if text is not None:
            return text
        if type(value) is tuple:
            return f"({', '.join([self._text(one) for one in value])})"
        if isinstance(value, VectorKind):
            return repr(value)  # which is the same in each process, and it is made anew for each vector
        if is_data(value):
            return digest_structure(value)
        if isinstance(value, type) and not self._reads_classes:
            return f"{value.__module__} {value.__qualname__}"
        return self._text_of_object(value)

    def _text_of_object(self, value: Any) -> str:
        known = self._known.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        text = digest_structure(value)
        if len(self._known) >= _MOST:
            self._known.clear()
        with suppress(TypeError):  # some have no weak references, and are read each time
            self._known[id(value)] = weakref.ref(value), text
        return text
