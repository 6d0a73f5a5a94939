"""
What a traced function takes from around it: what is in its closure, its module, and the objects that are there.

A program has them as they were when the function was traced. Before each run it is asked whether they still are.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import objects_in
from ebbtide.arrays.reach import is_installed, module_of, names_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.program.contents import Content, contents_of, find_written, has_folded
from ebbtide.program.program import Program
from ebbtide.tape.record import Tape
from ebbtide.tape.tangent import TangentTrace

_CONTAINERS = (list, dict, tuple)
# Functions of functions of functions: whoever goes deeper, goes deep.
_DEPTH = 6
# With these a function can look at its variables without naming them.
_BY_TEXT = frozenset({"locals", "vars", "eval", "exec", "dir"})

_CONSTANTS = frozenset({int, float, complex, bool, str})
# No name stands for it.
_NOTHING = object()

_Name = tuple[str, Callable[[], Any]]


@final
class Surroundings:
    """
    The objects that a function reaches by name.

    Args:
        f: The function.
        traced: Whether arrays that are traced count; else names of them may stand for others.

    Raises:
        TraceError: There is a random generator among them.

    Memory:
        The dictionaries in which names are looked up. References to what they stand for; weak ones to those that
        allow it.
    """

    __slots__ = ("_contents", "_found", "is_watched")

    def __init__(self, f: Callable[..., Any], *, traced: bool = True) -> None:
        # What their arrays held, where the program is asked for that, and whether it is.
        self._contents: list[Content] = []
        self.is_watched = False
        self._found: list[tuple[str, Callable[[], Any], list[Any], Any, Any]] = []
        for name, look in _names_behind(getattr(f, "__name__", "the function"), [f], _DEPTH, {}):
            parts = _parts(look())
            refuse_random(parts, f"{name}, which the function finds around it,")
            if traced or not any(type(part) is TracedArray for part in parts):
                self._found.append((name, look, [_reference(part) for part in parts], *_at_a_glance(look())))

    def watch(self, program: Program | None) -> None:
        """
        Ask from now on what the arrays hold, too, if a *program* has something in it that may have been made of them.

        Args:
            program: The program; None for one that is still to be made.
        """
        parts = [(name, part) for name, look, *_ in self._found for part in _parts(look()) if type(part) is np.ndarray]
        if program is None or has_folded(program, [array for _, array in parts]):
            self._contents, self.is_watched = contents_of(parts), True

    def reason(self) -> str:
        """Return what is not as it was, in words."""
        written = find_written(self._contents)
        if written is not None:
            return f"the array {written} was changed in place"
        return f"the name {self.changed() or 'of an array'} stands for another object"

    def changed(self) -> str | None:
        """Return the first name that stands for another object, or an array that holds something else; or None."""
        for name, look, known, weak, strong in self._found:
            try:
                value = look()
            except (KeyError, ValueError, AttributeError, StopIteration):
                return name
            # Nearly always: the rest takes four times as long.
            if value is strong or (weak is not None and value is not None and weak() is value):
                continue
            parts = _parts(value)
            if len(parts) != len(known):
                return name
            for part, reference in zip(parts, known, strict=True):
                if type(reference) is _Kind:
                    if type(part) is not TracedArray or plain_value(part) is None or type_of(part) != reference.type:
                        return name
                    continue
                was = reference() if type(reference) is weakref.ref else reference
                # What died is not the None that may be there now.
                if was is not part or (was is None and reference is not None):
                    return name
        return find_written(self._contents) if self._contents else None

    def traced(self) -> list[TracedArray]:
        """Return the arrays among them that are recorded or differentiated, as they are now."""
        return [part for _, look, *_ in self._found for part in _parts(look()) if type(part) is TracedArray]


def plain_value(value: Any) -> Any:
    """Return what is beneath the derivatives that programs are planned for; None where there is another trace."""
    while type(value) is TracedArray:
        trace = value.present()._trace
        if type(trace) is not Tape and not (type(trace) is TangentTrace and trace.linear is None):
            return None
        value = value._value
    return value


def pattern_of(arrays: Sequence[TracedArray]) -> tuple[int, ...]:
    """Return for each of some traced arrays the number of the first that is the same."""
    keys = [id(array._value if array._node is None else array._node) for array in arrays]
    return tuple([keys.index(key) for key in keys])


def ignored_parameters(f: Callable[..., Any]) -> frozenset[int]:
    """
    Return the numbers of the positional parameters that a function never looks at.

    Example:
        >>> ignored_parameters(lambda u, i: 2 * u)
        frozenset({1})
    """
    code = getattr(f, "__code__", None)
    if not isinstance(f, FunctionType) or code is None or _BY_TEXT.intersection(code.co_names):
        return frozenset()
    used = set(code.co_cellvars)
    for instruction in dis.get_instructions(code):
        used.update(instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argrepr,))
    return frozenset(n for n, name in enumerate(code.co_varnames[: code.co_argcount]) if name not in used)


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


@final
@dataclass(frozen=True, slots=True)
class _Kind:
    """Stands for an array that is an input of the program, of which only the type is of interest."""

    type: ArrayType


def _reference(value: Any) -> Any:
    """Return a reference by which an object can be told; numbers and texts are their own."""
    if type(value) is TracedArray:
        return _Kind(type_of(value))
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def _at_a_glance(value: Any) -> tuple[Any, Any]:
    """Return what tells at once that a name stands for what it did: a weak reference, or the object itself."""
    if type(value) in _CONTAINERS or type(value) is TracedArray:
        constant = type(value) is tuple and all(part is None or type(part) in _CONSTANTS for part in value)
        return None, value if constant else _NOTHING
    reference = _reference(value)
    return (reference, _NOTHING) if type(reference) is weakref.ref else (None, value)


def _names_in_function(f: Any, depth: int, seen: dict[Any, Any]) -> Iterator[_Name]:
    """Yield the names that a function finds in its closure and its module, and those that lie behind them."""
    if isinstance(f, partial):
        yield from _names_behind("the function", [f.func, *f.args, *f.keywords.values()], depth, seen)
        return
    if isinstance(f, MethodType):
        yield from _names_behind(type(f.__self__).__name__, [f.__self__], depth, seen, _mentioned(f.__func__))
        f = f.__func__
    if not isinstance(f, FunctionType) or id(f) in seen or depth == 0:
        return
    seen[id(f)] = f
    looks = [(name, _cell(cell)) for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)]
    names = _mentioned(f)
    looks += [(name, _entry(f.__globals__, name)) for name in names if name in f.__globals__]
    for name, look in looks:
        try:
            value = look()
        except ValueError:
            continue  # a name that has no value yet
        if isinstance(value, ModuleType):
            if not is_installed(value.__name__):
                inner = [one for one in names if one in vars(value)]
                yield from _looked_at(name, vars(value), inner, depth, seen)
        elif not isinstance(value, type):
            yield name, look
            yield from _names_behind(name, _parts(value), depth, seen, names)


def _mentioned(f: Any) -> list[str]:
    """Return the names that a function looks up, in its module or as attributes."""
    # A library looks nothing up that changes, but what it closes over is its user's: `grad(f)` is such a function.
    if not isinstance(f, FunctionType) or is_installed(f.__globals__.get("__name__")):
        return []
    return list(dict.fromkeys(names_of(f.__code__)))


def _names_behind(
    name: str, values: Iterable[Any], depth: int, seen: dict[Any, Any], mentioned: Sequence[str] = ()
) -> Iterator[_Name]:
    """Yield the names that functions and objects of the user's bring with them, and those *mentioned* of classes."""
    for value in values:
        if isinstance(value, FunctionType | MethodType | partial):
            yield from _names_in_function(value, depth - 1, seen)
        elif depth > 0 and _has_attributes(value):
            if id(value) not in seen:
                seen[id(value)] = value
                yield from _looked_at(name, vars(value), list(vars(value)), depth, seen, mentioned)
                yield from _names_in_function(getattr(value, "__wrapped__", None), depth - 1, seen)
            yield from _names_of_class(name, value, ["__call__", *mentioned], depth, seen)


def _looked_at(
    owner: str,
    held: dict[str, Any],
    names: Sequence[str],
    depth: int,
    seen: dict[Any, Any],
    mentioned: Sequence[str] = (),
) -> Iterator[_Name]:
    """Yield names of an object or module, and those that lie behind them."""
    for name in names:
        if not isinstance(held[name], ModuleType | type):
            yield f"{owner}.{name}", _entry(held, name)
            yield from _names_behind(f"{owner}.{name}", _parts(held[name]), depth - 1, seen, mentioned)


def _names_of_class(
    owner: str, value: Any, names: Sequence[str], depth: int, seen: dict[Any, Any]
) -> Iterator[_Name]:
    """Yield the names that are found of an object in its class, such as methods, and those that lie behind them."""
    for name in names:
        look = _of_class(type(value), name)
        if name in vars(value) or look is None or (id(value), name) in seen:
            continue
        seen[id(value), name] = value
        yield f"{owner}.{name}", look
        held = look()
        function = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
        yield from _names_of_class(owner, value, _mentioned(function), depth, seen)
        yield from _names_behind(f"{owner}.{name}", _parts(function), depth, seen)


def _of_class(kind: type, name: str) -> Callable[[], Any] | None:
    """Return what looks a name up in a class and those that it is derived from; None if none of the user's has it."""

    def look() -> Any:
        return next(vars(one)[name] for one in kind.__mro__ if name in vars(one))

    owner = next((one for one in kind.__mro__ if name in vars(one)), None)
    if owner is None or is_installed(module_of(owner)) or isinstance(look(), ModuleType | type):
        return None
    return look


def _has_attributes(value: Any) -> bool:
    """Return whether a value is an object with attributes, of a class of the user's or of none in particular."""
    if isinstance(value, ModuleType | type) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return type(value) is SimpleNamespace or hasattr(value, "__wrapped__") or not is_installed(module_of(type(value)))


def _cell(cell: CellType) -> Callable[[], Any]:
    return lambda: cell.cell_contents


def _entry(holder: dict[str, Any], name: str) -> Callable[[], Any]:
    return lambda: holder[name]
