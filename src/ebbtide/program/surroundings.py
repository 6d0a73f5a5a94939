"""
What a traced function takes from around it: closures, globals and attributes of the object whose method it is.

A program has them as they were when the function was traced. Before each run it is asked whether they still are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, final

import numpy as np

from ebbtide.arrays.containers import objects_in
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError

_CONTAINERS = (list, dict, tuple)
# Functions of functions of functions: whoever goes deeper, goes deep.
_DEPTH = 6


@final
class Surroundings:
    """
    The objects that a function reaches by name.

    Args:
        f: The function.

    Raises:
        TraceError: There is a random generator among them.

    Memory:
        References to the objects; weak ones to those that allow it, so that none is kept alive by a program.
    """

    __slots__ = ("_found",)

    def __init__(self, f: Callable[..., Any]) -> None:
        self._found = []
        for name, look in _names_of(f, _DEPTH, set()):
            parts = _parts(look())
            refuse_random(parts, f"{name}, which the function finds around it,")
            self._found.append((name, look, [_reference(part) for part in parts]))

    def changed(self) -> str | None:
        """Return the first name that stands for another object than it did; None if all are the same."""
        for name, look, known in self._found:
            try:
                parts = _parts(look())
            except (KeyError, ValueError, AttributeError):
                return name
            if len(parts) != len(known):
                return name
            for part, reference in zip(parts, known, strict=True):
                if (reference() if type(reference) is weakref.ref else reference) is not part:
                    return name
        return None

    def has_traced(self) -> bool:
        """Return whether there is an array among them that is recorded or differentiated."""
        return any(type(part) is TracedArray for _, look, _ in self._found for part in _parts(look()))


def refuse_random(values: Iterable[Any], what: str) -> None:
    """
    Refuse random generators: a trace would draw once, and all later runs would have the same numbers.

    Raises:
        TraceError: There is one among the values.
    """
    if any(isinstance(value, np.random.Generator | np.random.RandomState) for value in values):
        raise TraceError(
            f"{what} is a random generator, and a traced function would draw from it only once. Draw the numbers "
            "outside of the function, and pass them as an argument."
        )


def _parts(value: Any) -> list[Any]:
    """Return the objects in a container, or the object itself."""
    return objects_in(value) if type(value) in _CONTAINERS else [value]


def _reference(value: Any) -> Any:
    """Return a reference by which an object can be told; numbers and texts are their own."""
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _names_of(f: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names that a function looks up, each with a function that looks."""
    if isinstance(f, MethodType):
        yield from _attributes(f.__self__)
        f = f.__func__
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
    if not isinstance(f, FunctionType) or id(f) in seen or depth == 0 or _is_installed(f):
        return
    seen.add(id(f))
    cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    looks = [(name, _cell(cell)) for name, cell in cells]
    looks += [(name, _entry(f.__globals__, name)) for name in _global_names(f.__code__) if name in f.__globals__]
    for name, look in looks:
        try:
            value = look()
        except ValueError:
            continue  # a name that has no value yet
        if isinstance(value, ModuleType | type):
            continue
        yield name, look
        for part in _parts(value):
            if isinstance(part, FunctionType | MethodType):
                yield from _names_of(part, depth - 1, seen)


def _is_installed(f: FunctionType) -> bool:
    """Return whether a function is a library's, which does not change from call to call."""
    return "site-packages" in f.__code__.co_filename or f.__module__.partition(".")[0] == "ebbtide"


def _global_names(code: CodeType) -> list[str]:
    """Return the names that code and the code nested in it look up."""
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return list(dict.fromkeys([*code.co_names, *[name for inner in nested for name in _global_names(inner)]]))


def _attributes(owner: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in getattr(owner, "__dict__", {}):
        yield f"{type(owner).__name__}.{name}", _entry(owner.__dict__, name)


def _cell(cell: CellType) -> Callable[[], Any]:
    return lambda: cell.cell_contents


def _entry(holder: dict[str, Any], name: str) -> Callable[[], Any]:
    return lambda: holder[name]
