"""How a source names what is no variable: numbers as they are read, functions by import, the rest as constants."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Variable

# Kinds of NumPy scalars that a text says to the last bit.
_SCALARS = "biuf"


@final
class Literals:
    """
    The texts of values.

    Args:
        names: Those of the variables.
        around: The texts of a program around it, to whose file it belongs.

    Memory:
        By reference what no text says: arrays, and functions that cannot be imported.
    """

    def __init__(self, names: Mapping[Variable, str], around: Literals | None = None) -> None:
        self._names = names
        # Those of all programs of the file; the constants by what they are.
        self._taken = {*names.values()} if around is None else around._taken | {*names.values()}
        self._known: dict[int, str] = {} if around is None else around._known
        # What is handed over to each run; the lines that import; and the names that are defined once, with their texts.
        self.constants: list[Any] = [] if around is None else around.constants
        self.imports: dict[str, None] = {} if around is None else around.imports
        self.definitions: dict[str, str] = {} if around is None else around.definitions

    def value(self, value: Any) -> str:
        """Return an argument or output as text."""
        if type(value) is Variable:
            return self._names[value]
        if type(value) in (tuple, list):
            inside = ", ".join(self.value(part) for part in value)
            return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
        if type(value) in (bool, int, str, type(None)) or (type(value) in (float, complex) and np.isfinite(value)):
            return repr(value)
        if type(value) is slice:
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if isinstance(value, np.dtype):
            return self.defined("constant", f"np.dtype({value.str!r})")
        if type(value) is ArrayType:
            self.imports["from ebbtide.arrays.array_type import ArrayType"] = None
            return self.defined("constant", f"ArrayType({value.shape}, np.dtype({value.dtype.str!r}))")
        if type(value) is float or (isinstance(value, np.generic) and value.dtype.kind in _SCALARS):
            return self.defined("constant", _scalar(value))
        return "..." if value is Ellipsis else self._constant(value)

    def function(self, function: Callable[..., Any]) -> str:
        """Return how a function is named: one of NumPy's, one that is imported, or a constant."""
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        owner = getattr(function, "__self__", None)
        if isinstance(owner, np.ufunc) and getattr(np, owner.__name__, None) is owner:
            return f"np.{owner.__name__}.{function.__name__}"
        if module is not None and name.isidentifier():
            if getattr(np, name, None) is function:
                return f"np.{name}"
            # Of a program that was started as a file, another one cannot import.
            if module != "__main__" and getattr(importlib.import_module(module), name, None) is function:
                self.imports[f"import {module}"] = None
                return f"{module}.{name}"
        return self._constant(function)

    def defined(self, kind: str, text: str) -> str:
        """Return the name that stands for a text, which is evaluated once; a new one begins with *kind*."""
        known = next((name for name, one in self.definitions.items() if one == text), None)
        return self.define(kind, text) if known is None else known

    def define(self, kind: str, text: str) -> str:
        """Return a new name, which begins with *kind*, that stands for a text."""
        name = f"{kind}_{len(self.definitions) + 1}"
        while name in self._taken:
            name += "_"
        self.definitions[name] = text
        return name

    def _constant(self, value: Any) -> str:
        """Return how a value is named that no text says: it is handed over."""
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = f"constants[{len(self.constants)}]"
            self.constants.append(value)
        return found


def _scalar(value: Any) -> str:
    """Return a number as text, with the sign of nan."""
    if isinstance(value, np.generic) and np.isfinite(value):
        return repr(value)
    kind = "float" if type(value) is float else f"np.{type(value).__name__}"
    sign = "-" if np.isnan(value) and math.copysign(1.0, value) < 0 else ""
    return f"{sign}{kind}({str(value)!r})"
