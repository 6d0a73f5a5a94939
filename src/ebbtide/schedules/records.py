"""Records of plain data, such as JSON, each of which names its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, TypeVar, cast

import numpy as np

from ebbtide.errors import ScheduleError

T = TypeVar("T")


def make_plain(one: Any, *names: str) -> None:
    """
    Have Python's own integers in fields of a frozen object, in the place of NumPy's, which JSON does not know.

    Raises:
        ScheduleError: A field is no whole number.
    """
    for name in names:
        value = getattr(one, name)
        if type(value) is not int:
            object.__setattr__(one, name, plain_integer(value, f"The {name} of {type(one).__name__}"))


def plain_integer(value: Any, what: str) -> int:
    """
    Return a whole number as Python's own integer.

    Args:
        value: The number.
        what: What it is, for the message.

    Raises:
        ScheduleError: It is no whole number.
    """
    try:
        plain = None if isinstance(value, bool) else index(value)
    except TypeError:
        plain = None
    if plain is None:
        raise ScheduleError(f"{what} cannot be {value!r}. Give a whole number.")
    return plain


def make_flags(one: Any, *names: str) -> None:
    """
    Have Python's own True and False in fields of a frozen object.

    Raises:
        ScheduleError: A field is neither.
    """
    for name in names:
        value = getattr(one, name)
        if type(value) is bool:
            continue
        if not isinstance(value, np.bool_):
            raise ScheduleError(f"The {name} of {type(one).__name__} cannot be {value!r}. Give True or False.")
        object.__setattr__(one, name, bool(cast("Any", value)))


def kind_of(record: Mapping[str, object], key: str, kinds: Sequence[type[T]]) -> type[T]:
    """
    Return the class that a record names.

    Args:
        record: What `json.loads` returned.
        key: Where it names its class, and what messages call that.
        kinds: The known classes.

    Raises:
        ScheduleError: It names none of them.

    Example:
        >>> kind_of({"number": "float"}, "number", [int, float])
        <class 'float'>
    """
    name = record.get(key) if isinstance(cast("object", record), Mapping) else None
    found = next((kind for kind in kinds if kind.__name__ == name), None)
    if found is None:
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ScheduleError(f"The record {record!r} is of no known {key}. Its {key!r} must be one of {known}.")
    return found


def filled(kind: type[T], values: Mapping[str, Any], record: Mapping[str, object]) -> T:
    """
    Return an object of a dataclass with the values of a record.

    Args:
        kind: The dataclass.
        values: The values of its fields, by name.
        record: The record, for the message.

    Raises:
        ScheduleError: The values are not those of its fields.
    """
    try:
        return cast("Callable[..., T]", kind)(**values)
    except TypeError as error:
        names = ", ".join(field.name for field in dataclasses.fields(cast("Any", kind)) if field.init) or "none"
        raise ScheduleError(
            f"The record {dict(record)} does not fit {kind.__name__}, whose fields are {names}: {error}."
        ) from error


def pair_of(saved: Any) -> tuple[int, int]:
    """Return a range of steps as two of Python's own integers."""
    try:
        first, stop = saved
        return index(first), index(stop)
    except (TypeError, ValueError):
        raise ScheduleError(f"{saved!r} is no range of steps. Give (first, stop), or None.") from None


def flag_of(value: object) -> bool:
    """Return a value that is True or False, and no other."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither True nor False")
    return value
