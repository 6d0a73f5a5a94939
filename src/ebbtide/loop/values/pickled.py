"""
What objects of Python's own modules hold, also where they are written in C: what pickle would make them again of.

What can be pickled is a value. Locks, threads, files and libraries that were loaded belong to a process, and cannot be:
nothing in them, an address or a number of a process, would be the same in another one.
"""

from __future__ import annotations

import copyreg
import operator
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, Literal, NamedTuple, cast, final

from ebbtide.arrays.reach import is_of_python, module_of

# What is of no process, and yet not looked into: it changes as it is used.
_USED_UP = (Iterator, random.Random)
_PROTOCOL = 4


class Pickled(NamedTuple):
    """
    What an object holds.

    Args:
        attributes: By name.
        others: What has none.
    """

    attributes: Mapping[str, Any]
    others: Sequence[Any] = ()


def state_of(value: Any) -> Pickled:
    """
    Return what an object of a class of Python's own modules holds, or of a class of the user's that inherits from one.

    Of the latter only what the class of Python's says of it, whose attributes have no part in that.

    Args:
        value: The object.

    Returns:
        Nothing of what cannot be pickled, and of what changes as it is used: iterators, files, random generators.

    Memory:
        What is returned.

    Example:
        >>> from string import Template
        >>> from threading import Lock
        >>> state_of(Template("$a")).attributes, state_of(Lock())
        ({'template': '$a'}, Pickled(attributes={}, others=()))
    """
    if issubclass(type(value), _USED_UP):  # to ask the object for its class may be an error, as in archives of NumPy's
        return Pickled({})
    with suppress(Exception):  # of whatever kind: there are many reasons why something cannot be pickled
        return _read(_made_of(value))
    return Pickled({})


def _made_of(value: Any) -> Any:
    """Return what `__reduce__` says: a name; or a function, its arguments, a state, items and pairs."""
    kind = type(value)
    if is_of_python(module_of(kind)):
        _Probe().dump(value)
        return copyreg.dispatch_table.get(kind, operator.methodcaller("__reduce_ex__", _PROTOCOL))(value)
    known = [base for base in kind.__mro__[:-1] if is_of_python(module_of(base))]
    bases: list[Any] = [base for base in known if "__reduce__" in vars(base)]
    return bases[0].__reduce__(value)[:2] if bases else ()


def _read(made: Any) -> Pickled:
    """Take the attributes out of a state: a dictionary, or a pair of one, or None, and that of the slots."""
    if isinstance(made, str):
        return Pickled({}, (made,))
    state, others = made[2] if len(made) > 2 else None, [*made[:2], *[[*more] for more in made[3:] if more]]
    parts: tuple[Any, ...] = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(part is None or isinstance(part, dict) for part in parts):
        return Pickled({name: held for part in parts for name, held in (part or {}).items()}, others)
    return Pickled({}, [*others, state])


@final
class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        """Take bytes."""
        return len(data)


@final
class _Probe(pickle.Pickler):
    """Raises where an object of Python's own, or one in it, cannot be pickled; whatever is of others counts as if."""

    def __init__(self) -> None:
        super().__init__(cast("Any", _Nowhere()), _PROTOCOL)

    def persistent_id(self, obj: Any) -> Literal[0] | None:
        """Return a number for what is not looked into."""
        known = obj if isinstance(obj, (type, FunctionType)) else type(obj)
        return None if is_of_python(module_of(known)) else 0
