"""What the code of a function reaches: what it closes over, and what it looks up by name."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ebbtide.arrays.traced import TracedArray

# Where packages are installed; to ask takes 0.1 ms.
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
# No more objects are looked at for arrays.
_MOST_REACHED = 2000


def closed_over(function: FunctionType) -> Iterator[Any]:
    """
    Yield the values of a function's closure.

    Example:
        >>> def scaled(k):
        ...     return lambda x: k * x
        >>> list(closed_over(scaled(3)))
        [3]
    """
    empty = CellType()  # that of a variable without a value yet
    yield from (cell.cell_contents for cell in function.__closure__ or () if cell != empty)


def looked_up(function: FunctionType, is_library: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """
    Yield names and values of what a function, or code within it, finds in its module, and by that in other modules.

    Args:
        function: The function.
        is_library: Says of a module's name whether what is in that module does not matter.

    Example:
        >>> [name for name, _ in looked_up(closed_over, is_installed)]
        ['CellType']
    """
    names = sorted(set(names_of(function.__code__)))
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
            yield name, value
            if isinstance(value, ModuleType) and not is_library(value.__name__):
                yield from ((inner, vars(value)[inner]) for inner in names if inner in vars(value))


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the names that code, or code within it, looks up in its module or as attributes."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from names_of(value)


def is_installed(module: str | None) -> bool:
    """Return whether a module is one of Python, Ebbtide or an installed package."""
    package = (module or "").partition(".")[0]
    if package == "ebbtide" or (package in sys.stdlib_module_names and package != "__main__"):
        return True
    path = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return path.startswith(_INSTALLED)


def arrays_of(step: Any) -> list[np.ndarray]:
    """
    Return the plain arrays that a function reaches by closure, globals, defaults, attributes and containers.

    Args:
        step: A function, method, `functools.partial` or an object that can be called.

    Memory:
        The list; beyond 2000 objects no more are looked at.

    Example:
        >>> a, b = np.zeros(2), np.ones(3)
        >>> [array.shape for array in arrays_of(lambda x, scale=b: x * a)]
        [(3,), (2,)]
    """
    found: list[np.ndarray] = []
    seen: dict[int, Any] = {}
    waiting = [step]
    while waiting and len(seen) < _MOST_REACHED:
        value = waiting.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            if isinstance(value, np.ndarray):
                found.append(value)
            else:
                waiting += _parts_of(value)
    return found


def _parts_of(value: Any) -> list[Any]:
    """Return what a function, a container or an object of the user's holds."""
    if isinstance(value, FunctionType):
        named = [item for _, item in looked_up(value, is_installed)]
        return [*closed_over(value), *named, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    held = None if isinstance(value, (type, ModuleType, TracedArray)) else getattr(value, "__dict__", None)
    return list(held.values()) if isinstance(held, dict) else []
