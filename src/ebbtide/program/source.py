"""Programs as Python: a function that puts values where the plan has them, readable, and a file of its own."""

from __future__ import annotations

import importlib
import keyword
import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ebbtide.program.equation import Equation, Variable
from ebbtide.program.kernels import ufunc_text, view_text
from ebbtide.program.layout import Layout, ufunc_of
from ebbtide.program.memory import Memory
from ebbtide.program.program import Program
from ebbtide.program.text import name_variables

_SIGNS = MappingProxyType({"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**"})
_HEADER = '''"""{title}: generated from {file}."""

import numpy as np
{imports}
ARENA_BYTES = {nbytes}


def place(memory, offset, dtype, shape, strides):
    """Return an array in the block of memory."""
    return np.ndarray(shape, dtype, memory, offset, strides)


def lay_out(memory):
    """Return the arrays of `run` in a block of ARENA_BYTES bytes."""
{arrays}
    return ({names})


def run(values, arrays, constants):
    """Return the results for a list of inputs, which is emptied."""
'''


@final
class Source:
    """
    The source of a program.

    Args:
        program: The program.
        layout: How its values lie.
        memory: Where they are.
    """

    def __init__(self, program: Program, layout: Layout, memory: Memory) -> None:
        self._program = program
        self._layout = layout
        self._memory = memory
        self._names = _identifiers(name_variables(program))
        self._views: dict[Variable, list[Variable]] = {}
        for view, base in layout.bases.items():
            self._views.setdefault(base, []).append(view)
        self.constants: list[Any] = []
        self._constant_names: dict[int, str] = {}
        self._imports: dict[str, None] = {}
        self._arrays: dict[str, str] = {}
        self.text = self._write()

    def _write(self) -> str:
        body: list[tuple[str, str]] = []
        for place, equation in enumerate(self._program.equations):
            statements = self._statements(equation)
            dying = self._dying(place, equation)
            if dying:
                statements.append(f"del {', '.join(dying)}")
            where, _, line = equation.line.rpartition(":")
            comment = f"{equation.output.type}  {Path(where).name}:{line}"
            body += [(text, comment if number == 0 else "") for number, text in enumerate(statements)]
        given = [self._names[variable] for variable in self._program.inputs]
        unused = [self._names[v] for v in self._program.inputs if self._memory.ends[v] < 0]
        lines = []
        if given:
            lines.append(f"{', '.join(given)}{',' if len(given) == 1 else ''} = values")
        lines.append("values.clear()")
        if unused:
            lines.append(f"del {', '.join(unused)}")
        if self._arrays:
            lines.append(f"{', '.join(self._arrays)}{',' if len(self._arrays) == 1 else ''} = arrays")
        width = min(88, max((len(text) for text, _ in body), default=0))
        lines += [f"{text:<{width}}  # {comment}" if comment else text for text, comment in body]
        lines.append(f"return [{', '.join(self._value(output) for output in self._program.outputs)}]")
        code = next((eq.where[0] for eq in self._program.equations if eq.where[0] is not None), None)
        header = _HEADER.format(
            title=self._program.name,
            file="a function" if code is None else Path(code.co_filename).name,
            imports="".join(f"{line}\n" for line in sorted(self._imports)),
            nbytes=self._memory.nbytes,
            arrays="\n".join(f"    {name} = {text}" for name, text in self._arrays.items()) or "    del memory",
            names="".join(f"{name}, " for name in self._arrays),
        )
        return header + "".join(f"    {line}\n" for line in lines)

    def _dying(self, place: int, equation: Equation) -> list[str]:
        """Return the names that an equation is the last to use, of what is not in the block."""
        found = []
        for variable in dict.fromkeys((*equation.inputs, equation.output)):
            base = self._layout.base(variable)
            # A view dies with its base: no later than that, and the base with its last view.
            if self._memory.ends[base] == place and not self._is_inside(base):
                found += [self._names[v] for v in (base, *self._views.get(base, ()))]
        return list(dict.fromkeys(found))

    def _is_inside(self, variable: Variable) -> bool:
        """Return whether a value is in the block."""
        buffer = self._memory.buffers.get(variable)
        return buffer is not None and not buffer.apart

    def _statements(self, equation: Equation) -> list[str]:
        """Return the statements that compute an equation."""
        output = equation.output
        name = self._names[output]
        buffer = self._memory.buffers.get(output)
        if buffer is not None:
            given_up = self._memory.given_up.get(output)
            if buffer.apart and given_up is None:
                return [f"{name} = {self._expression(equation)}"]
            arguments = [self._shared(argument, equation) for argument in equation.arguments]
            statements = self._memory.kernels[output].write(name, *arguments)
            if equation.name == "add_product":
                self._imports["from ebbtide.rules.products import add_product"] = None
            if any("scipy.special." in text for text in statements):
                self._imports["import scipy.special"] = None
            if buffer.apart and given_up is not None:
                return [f"{name} = {self._names[given_up]}", *statements]
            self._arrays[name] = (
                f"place(memory, {buffer.offset}, {self._dtype(output)}, {output.type.shape}, "
                f"{self._layout.strides[output]})"
            )
            return statements
        if output in self._layout.bases:
            (source,) = equation.inputs
            text = view_text(equation, self._names[source]) or self._call(equation)
            if self._is_inside(self._layout.bases[output]):
                self._arrays[name] = text
                return []
            return [f"{name} = {text}"]
        return [f"{name} = {self._expression(equation)}"]

    def _shared(self, argument: Any, equation: Equation) -> str:
        """Return an argument as text: by the name of the result where nothing has to be copied into that."""
        buffers = self._memory.buffers
        same = type(argument) is Variable and argument in buffers and buffers[argument] is buffers[equation.output]
        return self._names[equation.output] if same and ufunc_of(equation) is None else self._value(argument)

    def _expression(self, equation: Equation) -> str:
        """Return an expression for a result that NumPy allocates."""
        arguments = [self._value(argument) for argument in equation.arguments]
        sign = _SIGNS.get(equation.name)
        if sign is not None and getattr(equation.function, "__module__", "") == "_operator":
            return f"{arguments[0]} {sign} {arguments[1]}"
        ufunc = ufunc_of(equation)
        name = None if ufunc is None else ufunc_text(ufunc)
        if name is None:
            return self._call(equation)
        if name.startswith("scipy"):
            self._imports["import scipy.special"] = None
        return f"{name}({', '.join(arguments)})"

    def _call(self, equation: Equation) -> str:
        arguments = [self._value(argument) for argument in equation.arguments]
        arguments += [f"{key}={self._value(value)}" for key, value in equation.params.items()]
        return f"{self._function(equation.function)}({', '.join(arguments)})"

    def _function(self, function: Callable[..., Any]) -> str:
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        if module is not None and name.isidentifier():
            if getattr(np, name, None) is function:
                return f"np.{name}"
            if getattr(importlib.import_module(module), name, None) is function:
                self._imports[f"import {module}"] = None
                return f"{module}.{name}"
        return self._constant(function)

    def _value(self, value: Any) -> str:
        """Return an argument or output as text."""
        if type(value) is Variable:
            return self._names[value]
        if type(value) in (tuple, list):
            inside = ", ".join(self._value(part) for part in value)
            return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
        if type(value) in (float, complex) and not np.isfinite(value):
            return self._constant(value)
        if type(value) in (bool, int, float, complex, str, type(None)):
            return repr(value)
        if type(value) is slice:
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        return "..." if value is Ellipsis else self._constant(value)

    def _constant(self, value: Any) -> str:
        """Return how a value is named that no text says: it is handed over."""
        found = self._constant_names.get(id(value))
        if found is None:
            found = self._constant_names[id(value)] = f"constants[{len(self.constants)}]"
            self.constants.append(value)
        return found

    def _dtype(self, variable: Variable) -> str:
        return repr(variable.type.dtype.str)


def _identifiers(names: dict[Variable, str]) -> dict[Variable, str]:
    """Return names that Python takes, each once."""
    taken = {"np", "scipy", "values", "arrays", "constants", "memory", "place", "lay_out", "run", "ebbtide",
             "add_product"}  # fmt: skip
    found: dict[Variable, str] = {}
    for variable, name in names.items():
        text = re.sub(r"\W+", "_", name).strip("_") or "value"
        while text in taken or keyword.iskeyword(text) or text[0].isdigit():
            text = f"{text}_" if not text[0].isdigit() else f"value_{text}"
        taken.add(text)
        found[variable] = text
    return found
