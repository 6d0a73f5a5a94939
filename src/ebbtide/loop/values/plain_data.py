"""Short texts of plain data: numbers, texts, and containers with nothing else in them, of whatever size."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from itertools import chain
from typing import Any, cast, final

import numpy as np

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
"""Classes of values that their `repr` tells."""

_KINDS = frozenset(PLAIN)
_CONTAINERS = (tuple, list, dict, set, frozenset)
# Containers in containers are followed so far; what is deeper may never end.
_DEPTH = 16
# Integers of more bits are written in hexadecimal digits: Python refuses more than 4300 decimal ones.
_LONG = 1024


def digest(text: str) -> str:
    """Return 16 hexadecimal digits that tell a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


@final
class PlainData:
    """
    Tells plain data.

    Whether a value is plain, and its text, depend on nothing but what it holds: neither on what is shared in it nor
    on the order in which values are met.

    Memory:
        A reference to each container that was met, and its text.

    Example:
        >>> data = PlainData()
        >>> data.text(1.0), data.text(print)
        ('float 1.0', None)
        >>> data.text([1, (2.0, "a")]) == data.text([1, (2.0, "b")])
        False
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # By address, which means something as long as the container lives: that, its text, and how deep it is.
        self._known: dict[int, tuple[Any, str | None, int]] = {}

    def text(self, value: Any) -> str | None:
        """Return a text of a value; None if it is no plain one, or too deep."""
        if type(value) not in _CONTAINERS:
            return _text_of_one(value)
        try:
            return self._read(value, _DEPTH)[0]
        except _TooDeepError:
            return None

    def _read(self, value: Any, room: int) -> tuple[str | None, int]:
        """Return text and depth of a container."""
        known = self._known.get(id(value))
        if known is None:
            if not room:
                raise _TooDeepError
            known = self._known[id(value)] = value, *self._made(value, room)
        return known[1:]

    def _made(self, value: Any, room: int) -> tuple[str | None, int]:
        kind = type(value)
        held = [*chain.from_iterable(cast("dict[Any, Any]", value).items())] if kind is dict else value
        is_set = kind is set or kind is frozenset
        if _KINDS.issuperset(map(type, held)):
            with suppress(ValueError):  # an integer of more digits than Python writes
                # As most large ones: without a text for each.
                return f"{kind.__name__} {digest(repr(sorted(map(repr, held)) if is_set else value))}", 1
        texts, depth = list[str](), 0
        for one in held:
            text, below = self._read(one, room - 1) if type(one) in _CONTAINERS else (_text_of_one(one), 0)
            if text is None:
                return None, 0
            texts.append(text)
            depth = max(depth, below)
        if depth >= _DEPTH:
            return None, 0
        return f"{kind.__name__} {digest(chr(0).join(sorted(texts) if is_set else texts))}", depth + 1


class _TooDeepError(Exception):
    """Containers are nested too deeply."""


def _text_of_one(value: Any) -> str | None:
    if type(value) is int and value.bit_length() > _LONG:
        return f"int {value:#x}"
    if type(value) in _KINDS:
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.generic) and value.dtype.names is None and not value.dtype.hasobject:
        return f"{value.dtype} {value!r}"
    return None
