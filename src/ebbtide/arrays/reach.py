"""What the code of a function reaches: what it closes over, and what it looks up by name."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec, resolve_name
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, final

import numpy as np

from ebbtide.arrays.traced import TracedArray

# Where packages are installed; to ask takes 0.1 ms.
_INSTALLED = tuple([sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")])
# No more objects are looked at for arrays.
_MOST_REACHED = 2000
# Numbers and texts: no ways to arrays.
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


def closed_over(function: FunctionType) -> Iterator[Any]:
    """
    Yield the values of a function's closure.

    Example:
        >>> def scaled(k):
        ...     return lambda x: k * x
        >>> list(closed_over(scaled(3)))
        [3]
    """
    yield from (value for _, value in named_cells(function))


def named_cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a function's closure."""
    empty = CellType()  # that of a variable without a value yet
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield from ((name, cell.cell_contents) for name, cell in cells if cell != empty)


def named_globals(function: FunctionType) -> list[tuple[str, Any]]:
    """
    Return names and values of what a function, or code within it, finds in its module.

    Example:
        >>> [name for name, _ in named_globals(named_cells)]
        ['CellType']
    """
    return named_in(function.__globals__, names_of(function.__code__))


def named_in(values: Mapping[str, Any], names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return those names by which there is a value, in the order of the alphabet, with that."""
    return [(name, values[name]) for name in sorted(set(names)) if name in values]


def looked_up(function: FunctionType, is_library: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """
    Yield names and values of what a function, or code within it, finds in its module, and by that in other modules.

    Args:
        function: The function.
        is_library: Says of a module's name whether what is in that module does not matter.
    """
    names = sorted(set(names_of(function.__code__)))  # a set of them takes four times as much
    found = named_in(function.__globals__, names)
    yield from found
    waiting, seen = [value for _, value in found if isinstance(value, ModuleType)], set[int]()
    while waiting:
        module = waiting.pop()
        if id(module) not in seen and not is_library(module.__name__):
            seen.add(id(module))
            inside = named_in(vars(module), names)
            yield from inside
            waiting += [value for _, value in inside if isinstance(value, ModuleType)]


def imported_by(function: FunctionType, is_library: Callable[[str], bool]) -> list[ModuleType]:
    """
    Return the modules that a function imports in its code; they are loaded, as they would be when it runs.

    Args:
        function: The function.
        is_library: Says of a module's name whether what is in that module does not matter.
    """
    found = dict[str, ModuleType]()
    package = function.__globals__.get("__package__")
    for level, name, parts in set(_imports_of(function.__code__)):
        with suppress(ImportError, ValueError):
            whole = resolve_name("." * level + name, package) if level else name
            spec = None if is_library(whole) else find_spec(whole.partition(".")[0])
            place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
            if place and not place.startswith(_INSTALLED):
                # Of a package also modules in it that it does not import itself, as `from` does.
                for one in (whole, *[f"{whole}.{part}" for part in parts if part != "*"]):
                    if one == whole or _is_module_of(found[whole], one):
                        found[one] = import_module(one)
    return [found[name] for name in sorted(found)]


def _is_module_of(package: ModuleType, name: str) -> bool:
    """Return whether a name from a package is that of a module in it, and of nothing else that the package has."""
    held = vars(package).get(name.rpartition(".")[2])
    known = hasattr(package, "__path__") and (held is None or held is sys.modules.get(name))
    return known and find_spec(name) is not None


def _imports_of(code: CodeType) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield level, name and what is imported from there of each import in code, or in code within it."""
    before = deque[Any](maxlen=2)  # an import takes two constants
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            yield before[0].argval, one.argval, before[1].argval or ()
        if one.opname != "EXTENDED_ARG":  # which a name beyond the 255th has before it
            before.append(one)
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _imports_of(value)


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the names that code, or code within it, looks up in its module or as attributes."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from names_of(value)


def _is_of_scipy(module: str) -> bool:
    """Return whether a module is one of SciPy, or of ours that have its names."""
    return f"{module}.".startswith(("scipy.", "ebbtide.scipy."))


def _is_apart(module: str) -> bool:
    """Return whether a module is one of SciPy or of ours, whose names lead to nothing of the user's."""
    ours = f"{module}.".startswith("ebbtide.") and not f"{module}.".startswith("ebbtide.demo.")
    return ours or _is_of_scipy(module)


def module_of(value: Any) -> str:
    """
    Return the name of the module that a class or function says it is of; empty if it says none.

    Classes of Cython's have a descriptor in its place, for their functions.

    Example:
        >>> module_of(int), module_of(3)
        ('builtins', '')
    """
    found = getattr(value, "__module__", None)
    return found if isinstance(found, str) else ""


def is_cython(value: Any) -> bool:
    """Return whether a value is a function that Cython has compiled."""
    return type(value).__name__ in ("cython_function_or_method", "fused_cython_function")


def is_of_python(module: str | None) -> bool:
    """Return whether a module is one of Python's own."""
    package = (module or "").partition(".")[0]
    return package in sys.stdlib_module_names and package != "__main__"


def is_installed(module: str | None) -> bool:
    """Return whether a module is one of Python, Ebbtide or an installed package."""
    if is_of_python(module) or (module or "").partition(".")[0] == "ebbtide":
        return True
    path = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return path.startswith(_INSTALLED)


def arrays_of(step: Any, *, traced: bool = False) -> list[np.ndarray]:
    """
    Return the plain arrays that a function reaches by closure, globals, defaults, attributes and containers.

    Args:
        step: A function, method, `functools.partial` or an object that can be called.
        traced: Whether those that traced arrays are made of are among them.

    Memory:
        The list; beyond 2000 objects no more are looked at.

    Example:
        >>> a, b = np.zeros(2), np.ones(3)
        >>> [array.shape for array in arrays_of((lambda a: lambda x, scale=b: x * a)(a))]
        [(3,), (2,)]
    """
    return [value for value in _reached(step, traced) if isinstance(value, np.ndarray)]


def traced_of(step: Any) -> list[TracedArray]:
    """Return the traced arrays that a function reaches, as `arrays_of` finds plain ones."""
    return [value for value in _reached(step, False) if type(value) is TracedArray]


def reaches_complex(step: Any) -> bool:
    """
    Return whether a function reaches a complex number of Python's, as `arrays_of` reaches arrays, or in its code.

    Example:
        >>> reaches_complex(lambda x: 1j * x), reaches_complex(lambda x: x + 1)
        (True, False)
    """
    return any(
        type(value) is complex or (isinstance(value, FunctionType) and _writes_complex(value.__code__))
        for value in _reached(step, False)
    )


def _writes_complex(code: CodeType) -> bool:
    """Return whether code, or code within it, has a complex number, or makes one."""
    inside = [value for value in code.co_consts if isinstance(value, CodeType)]
    known = complex in map(type, code.co_consts) or not {"complex", "cmath"}.isdisjoint(code.co_names)
    return known or any(map(_writes_complex, inside))


def _reached(step: Any, traced: bool) -> Iterator[Any]:
    """Yield what a function reaches, itself first; for *traced* see `arrays_of`."""
    seen: dict[int, Any] = {}
    waiting = [step]
    while waiting and len(seen) < _MOST_REACHED:
        value = waiting.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            yield value
            if traced and isinstance(value, TracedArray):
                waiting += [value._value, value._node]
            elif not isinstance(value, np.ndarray):
                waiting += _parts_of(value)


def _parts_of(value: Any) -> list[Any]:
    """Return what a function, a container or an object of the user's holds."""
    if isinstance(value, FunctionType):
        # By names a function of SciPy's, or `grad`, reaches all of the library: 2000 objects, before anything of the
        # user's. By those of `timeloop` a gradient looked at some 600 at each call, and took 40 KB for that.
        is_apart = _is_apart(str(value.__globals__.get("__name__")))
        named = [] if is_apart else [item for _, item in looked_up(value, is_installed)]
        return [*closed_over(value), *named, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (tuple, list, dict)):
        # A table of numbers takes a multiple of a small budget if it is copied.
        held = value.values() if isinstance(value, dict) else value
        return [*deque((part for part in held if type(part) not in _PLAIN), maxlen=_MOST_REACHED)]
    if isinstance(value, (type, ModuleType, TracedArray)):
        return []
    held = getattr(value, "__dict__", None)
    return [*(held.values() if isinstance(held, dict) else ()), *_in_slots(value)]


def _in_slots(value: Any) -> list[Any]:
    """Return what is in the slots of an object; those of libraries reach functions of libraries, and all by these."""
    kind = type(value)
    if is_installed(module_of(kind)) and not _is_of_scipy(module_of(kind)):
        return []
    found: list[Any] = []
    for base in kind.__mro__:
        for item in vars(base).values() if "__slots__" in vars(base) else ():
            if isinstance(item, MemberDescriptorType):
                with suppress(AttributeError):  # it may have no value
                    found.append(item.__get__(value))
    return found


def bound_now(function: Any, swap: Callable[[TracedArray], Any] = lambda array: array) -> Any:
    """
    Return a function that closes over what it closes over now, whatever its variables stand for later.

    So do the functions that it closes over. Variables that one of them assigns to (`nonlocal`) stay shared.

    Args:
        function: The function; what is no function is returned as it is.
        swap: Gives what stands in the place of an array that is traced.

    Example:
        >>> def scales(bind):
        ...     return [scale(1) for scale in [bind(lambda x: k * x) for k in range(3)]]
        >>> scales(lambda f: f), scales(bound_now)
        ([2, 2, 2], [0, 1, 2])
    """
    functions: dict[int, FunctionType] = {}
    waiting = [function]
    while waiting:
        value = waiting.pop()
        if type(value) is FunctionType and id(value) not in functions:
            functions[id(value)] = value
            waiting += closed_over(value)
        elif type(value) is partial:
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif type(value) is MethodType:
            waiting.append(value.__func__)
    assigned = {id(cell) for value in functions.values() for cell in _assigned_cells(value)}
    return _Binder(assigned, swap).bound(function)


def _assigned_cells(function: FunctionType) -> list[CellType]:
    """Return the cells of a function's closure that its code, or code within it, assigns to."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    names = _assigned_names(function.__code__) if cells else frozenset()
    return [cell for name, cell in cells.items() if name in names]


def _assigned_names(code: CodeType) -> frozenset[str]:
    """Return the variables from around that code, or code within it, assigns to."""
    written = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inside = [_assigned_names(value) for value in code.co_consts if isinstance(value, CodeType)]
    return frozenset(written.intersection(code.co_freevars)).union(*inside)


@final
class _Binder:
    """
    Copies functions with their closures.

    Args:
        shared: Addresses of cells that are not copied.
        swap: Gives what stands in the place of an array that is traced.
    """

    __slots__ = ("_cells", "_functions", "_shared", "_swap")

    def __init__(self, shared: set[int], swap: Callable[[TracedArray], Any]) -> None:
        self._shared = shared
        self._swap = swap
        self._functions: dict[int, FunctionType] = {}
        self._cells: dict[int, CellType] = {}

    def bound(self, value: Any) -> Any:
        """Return a value with functions that have cells of their own."""
        if type(value) is TracedArray:
            return self._swap(value)
        if type(value) is partial:
            keywords = {name: self.bound(part) for name, part in value.keywords.items()}
            return partial(self.bound(value.func), *[self.bound(part) for part in value.args], **keywords)
        if type(value) is MethodType:
            return MethodType(self.bound(value.__func__), value.__self__)
        if type(value) is not FunctionType or not (value.__closure__ or value.__defaults__):
            return value
        if id(value) not in self._functions:
            self._functions[id(value)] = self._copied(value)
        return self._functions[id(value)]

    def _copied(self, function: FunctionType) -> FunctionType:
        own = function.__closure__ or ()
        fresh = [cell for cell in own if id(cell) not in self._shared and id(cell) not in self._cells]
        self._cells.update((id(cell), CellType()) for cell in fresh)
        cells = tuple([self._cells.get(id(cell), cell) for cell in own])
        copy = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        # Before what it closes over is looked at, that function itself among it.
        self._functions[id(function)] = copy
        copy.__defaults__ = function.__defaults__ and tuple([self.bound(value) for value in function.__defaults__])
        copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
        copy.__dict__.update(function.__dict__)
        for cell in fresh:
            if cell != CellType():  # that of a variable without a value yet
                self._cells[id(cell)].cell_contents = self.bound(cell.cell_contents)
        return copy
