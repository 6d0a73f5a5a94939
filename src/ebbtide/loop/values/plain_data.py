"""Short texts of plain data: numbers, texts, and containers with nothing else in them, of whatever size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice
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
# So many elements, or characters, are read at a time: the text of a list takes some 20 bytes for each.
_BLOCK = 1024
# To read so few elements again takes less than to know their text, of which a table has one for each row.
_SHORT = 16


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
        A reference to each container that was met, and its text, but for short ones without containers in them; while
        one is read, a block of its elements, and of a set the texts of all.

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
            known = value, *self._made(value, room)
            if known[2] > 1 or len(value) > _SHORT or known[1] is None:
                self._known[id(value)] = known
        return known[1:]

    def _made(self, value: Any, room: int) -> tuple[str | None, int]:
        kind = type(value)
        is_set = kind is set or kind is frozenset
        if _KINDS.issuperset(map(type, _held(value))):
            with suppress(ValueError):  # an integer of more digits than Python writes
                # As most large ones: without a text for each.
                return f"{kind.__name__} {digest(repr(sorted(map(repr, value)))) if is_set else _digest_of(value)}", 1
        texts, depth, begin, found = list[str](), 0, "", hashlib.sha256()
        for one in _held(value):
            text, below = self._read(one, room - 1) if type(one) in _CONTAINERS else (_text_of_one(one), 0)
            if text is None:
                return None, 0
            if is_set:
                texts.append(text)
            else:
                found.update((begin + text).encode(errors="surrogatepass"))
            begin, depth = "\0", max(depth, below)
        if depth >= _DEPTH:
            return None, 0
        return f"{kind.__name__} {digest(chr(0).join(sorted(texts))) if is_set else found.hexdigest()[:16]}", depth + 1


def _held(value: Any) -> Iterable[Any]:
    """Return what a container holds, keys and values of a dictionary in turns."""
    return chain.from_iterable(cast("dict[Any, Any]", value).items()) if type(value) is dict else value


def _digest_of(value: Any) -> str:
    """Return the digest of the `repr` of a list, tuple or dictionary, or of a long text, made in blocks."""
    if len(value) <= _BLOCK:
        return digest(repr(value))
    found = hashlib.sha256()
    if type(value) is str:
        for start in range(0, len(value), _BLOCK):
            found.update(value[start : start + _BLOCK].encode(errors="surrogatepass"))
        return found.hexdigest()[:16]
    begin, end = repr(type(value)())
    parts = iter(cast("dict[Any, Any]", value).items() if type(value) is dict else value)
    while block := [*islice(parts, _BLOCK)]:
        text = repr(dict(block) if type(value) is dict else block)
        found.update((begin + text[1:-1]).encode(errors="surrogatepass"))
        begin = ", "
    found.update(end.encode())
    return found.hexdigest()[:16]


class _TooDeepError(Exception):
    """Containers are nested too deeply."""


def _text_of_one(value: Any) -> str | None:
    if type(value) is int and value.bit_length() > _LONG:
        return f"int {value:#x}"
    if type(value) is bytes and len(value) > _BLOCK:
        return f"bytes {hashlib.sha256(value).hexdigest()[:16]}"
    if type(value) is str and len(value) > _BLOCK:
        return f"str {_digest_of(value)}"
    if type(value) in _KINDS:
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.generic) and value.dtype.names is None and not value.dtype.hasobject:
        return f"{value.dtype} {value!r}"
    return None
