"""Programs as Python: a function that puts values where the plan has them, readable, and a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ebbtide.program.chains import Links
from ebbtide.program.equation import Equation, Variable
from ebbtide.program.kernels import allocation_text, expression_text, number_text, ufunc_text, view_text
from ebbtide.program.layout import Layout, ufunc_of
from ebbtide.program.literals import Literals
from ebbtide.program.memory import Memory
from ebbtide.program.names import find_drops, find_freed, identifiers, names_needed, with_drops
from ebbtide.program.placed import PlacedMembers
from ebbtide.program.program import Program
from ebbtide.program.stretches import BLOCK, Stretch
from ebbtide.program.text import name_variables
from ebbtide.tape.joint import part

_SIGNS = MappingProxyType({"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**"})
_HEADER = '''"""{title}: generated from {file}."""

import numpy as np
{imports}
ARENA_BYTES = {nbytes}
{definitions}

def place(memory, offset, dtype, shape, strides):
    """Return an array in the block of memory."""
    return np.ndarray(shape, dtype, memory, offset, strides)

'''
_FUNCTIONS = '''
def lay_out{name}(memory):
    """Return the arrays of `run{name}` in {block}."""
{arrays}
    return ({names})


def run{name}(values, arrays, constants):
    """Return the results {of} for a list of inputs, which is emptied."""
    # After each line: the type of its result; bytes that are held, the inputs apart; where it comes from.
{body}'''


@final
class Source:
    """
    The source of a program.

    Args:
        program: The program.
        layout: How its values lie.
        memory: Where they are.
        stretches: What the machine does.
        poisoned: Whether bytes of the block are filled with 255 (nan, -1, True) as soon as no value is in them: for
            tests, since a plan that is wrong shows then.
        around: The texts of the program around, if this is that of one member.
    """

    def __init__(
        self,
        program: Program,
        layout: Layout,
        memory: Memory,
        stretches: Sequence[Stretch] = (),
        *,
        poisoned: bool = False,
        around: Literals | None = None,
    ) -> None:
        self._program = program
        self._layout = layout
        self._memory = memory
        self._names = identifiers(name_variables(program), () if around is None else around.definitions)
        self.drops = find_drops(program, layout, memory)
        self._freed = find_freed(program, memory) if poisoned else [[] for _ in program.equations]
        # Numbers of equations in a stretch, up to the last one; the values that Python has names for.
        self._inside = {place: stretch for stretch in stretches for place in stretch.places}
        self._named = names_needed(program, layout, memory, stretches)
        self._literals = Literals(self._names, around)
        self._arrays: dict[str, str] = {}
        # The functions of programs of members.
        self._inner: list[str] = []
        self._lines = self._write()
        self.constants = self._literals.constants

    @property
    def text(self) -> str:
        """The file."""
        code = next((eq.where.code for eq in self._program.equations if eq.where.code is not None), None)
        definitions = "".join(f"{name} = {text}\n" for name, text in self._literals.definitions.items())
        body = "\n".join([self.functions(""), *self._inner])
        if "scipy.special." in definitions + body:
            self._literals.imports["import scipy.special"] = None
        header = _HEADER.format(
            title=self._program.name,
            file="a function" if code is None else Path(code.co_filename).name,
            imports="".join(f"{line}\n" for line in _joined(self._literals.imports)),
            nbytes=self._memory.nbytes,
            definitions=definitions,
        )
        return header + body

    def functions(self, name: str) -> str:
        """Return the two functions of the program, with a name that tells them from others."""
        return _FUNCTIONS.format(
            name=name,
            block="a row of the workspace" if name else "a block of ARENA_BYTES bytes",
            of="of one member" if name else "",
            arrays="\n".join(f"    {line}" for line in self._laid_out()) or "    del memory",
            names="".join(f"{name}, " for name in self._arrays),
            body="".join(f"    {line}\n" for line in self._lines),
        ).replace("results  for", "results for")

    def _laid_out(self) -> list[str]:
        """Return the lines that make the arrays of `run`: one for all values that lie in the same place."""
        first: dict[str, str] = {}
        pairs = [(name, first.setdefault(text, name), text) for name, text in self._arrays.items()]
        return [f"{name} = {text if same == name else same}" for name, same, text in pairs]

    def _write(self) -> list[str]:
        body: list[tuple[str, str]] = []
        # What is set with np.errstate where the statement before stands.
        around: tuple[Any, ...] = ()
        held = [f"{nbytes:,}" for nbytes in self._memory.held]
        kinds = max((len(f"{equation.output.type}") for equation in self._program.equations), default=0)
        digits = max(map(len, held), default=0)
        for place, equation in enumerate(self._program.equations):
            stretch = self._inside.get(place)
            if stretch is not None and place != stretch.places[-1]:
                continue
            statements = self._statements(equation) if stretch is None else self._stretch(stretch)
            places = range(place, place + 1) if stretch is None else stretch.places
            ending = [v for number in places for v in self.drops[number] if v in self._named]
            statements = with_drops(statements, [self._names[variable] for variable in ending])
            statements += [self._poison(variable) for number in places for variable in self._freed[number]]
            kind = f"{equation.output.type}" if stretch is None else f"{len(stretch.actions)} steps"
            now = held[place] if stretch is None else f"{stretch.held:,}"
            comment = f"{kind:<{kinds}}  {now:>{digits}}  {equation.where.short_line}"
            if statements and equation.errors != around:
                around = equation.errors
                if around:
                    body.append((f"with np.errstate({', '.join(f'{kind}={how!r}' for kind, how in around)}):", ""))
            inside = "    " if around else ""
            body += [(inside + text, comment if number == 0 else "") for number, text in enumerate(statements)]
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
        lines.append(f"return [{', '.join(self._literals.value(output) for output in self._program.outputs)}]")
        return lines

    def _poison(self, variable: Variable) -> str:
        """Return the statement that overwrites the place of a value."""
        start, name = self._memory.buffers[variable].offset, f"free_{self._names[variable]}"
        self._arrays[name] = f"place(memory, {start}, 'u1', ({variable.nbytes},), (1,))"
        return f"{name}.fill(255)"

    def _stretch(self, stretch: Stretch) -> list[str]:
        """Return the statements that do a stretch: memory and views first, then the machine, then numbers."""
        before, after = [], []
        for place in stretch.places:
            equation = self._program.equations[place]
            output, name = equation.output, self._names[equation.output]
            if output in self._layout.bases or output not in self._named:
                before += self._statements(equation) if output in self._named else []
                continue
            buffer, given_up = self._memory.buffers[output], self._memory.given_up.get(output)
            if not buffer.apart:
                self._arrays[name] = self._in_block(output)
            else:
                before.append(f"{name} = {self._fresh(output) if given_up is None else self._names[given_up]}")
            if not output.type.shape:
                after.append(f"{name} = {name}[()]")
        return [*before, f"{self._machine(stretch)}({', '.join(map(self._buffer, stretch.buffers))})", *after]

    def _buffer(self, buffer: Any) -> str:
        """Return a buffer of the machine as text."""
        if buffer is BLOCK:
            self._arrays["block"] = "memory"
            return "block"
        if type(buffer) is tuple:
            return f"np.asarray({self._names[buffer[0]]}, {buffer[1]!r})"
        if isinstance(buffer, np.ndarray) and not buffer.shape and buffer.dtype.kind in "biufc" and np.isfinite(buffer):
            text = f"np.array({self._literals.value(buffer.item())}, {buffer.dtype.char!r})"
            return self._literals.defined("number", text)
        given = self._memory.buffers.keys() | set(self._program.inputs)
        if type(buffer) is Variable and buffer not in given and buffer.type.shape:
            # How NumPy lays the result of a function out may depend on sizes, and the machine goes by strides.
            self._literals.imports["from ebbtide.program.rooms import lying"] = None
            return f"lying({self._names[buffer]}, {self._layout.strides[buffer]})"
        return self._literals.value(buffer)

    def _machine(self, stretch: Stretch) -> str:
        """Return the name of a machine, which is made once."""
        lines = []
        for action, equation in stretch.actions:
            self._literals.imports[f"from ebbtide.machine import {action.kind}"] = None
            arguments = ", ".join(map(self._argument, action.placed(stretch.number)))
            lines.append(f"    {action.kind}({arguments}),  # {equation.name}  {equation.where.short_line}\n")
        self._literals.imports["from ebbtide.machine import Machine"] = None
        last = f"    workspace={stretch.workspace},\n"
        return self._literals.define("stretch", f"Machine(\n{''.join(lines)}{last})")

    def _argument(self, argument: Any) -> str:
        """Return what a step takes as text."""
        if isinstance(argument, np.ufunc):
            return ufunc_text(argument) or ""
        if type(argument) is tuple:
            return f"({', '.join(map(self._argument, argument))}{',' if len(argument) == 1 else ''})"
        return repr(argument)

    def _in_block(self, variable: Variable) -> str:
        """Return the array of a value in the block."""
        offset, strides = self._memory.buffers[variable].offset, self._layout.strides[variable]
        return f"place(memory, {offset}, {self._dtype(variable)}, {variable.type.shape}, {strides})"

    def _statements(self, equation: Equation) -> list[str]:
        """Return the statements that compute an equation."""
        output = equation.output
        name = self._names[output]
        if isinstance(equation.function, PlacedMembers):
            return [f"{name} = {self._members(equation, equation.function)}"]
        if equation.name == "small_product":
            self._literals.imports["from ebbtide.machine import small_product"] = None
        buffer = self._memory.buffers.get(output)
        if buffer is not None:
            given_up = self._memory.given_up.get(output)
            if buffer.apart and given_up is None:
                return self._allocated(equation, name)
            arguments = [self._shared(argument, equation) for argument in equation.arguments]
            statements = self._memory.kernels[output].write(name, *arguments)
            if equation.name == "add_product":
                self._literals.imports["from ebbtide.rules.products import add_product"] = None
            if isinstance(equation.function, Links):
                statements = [f"{self._chain(equation.function)}({', '.join([*arguments, name])})"]
            if buffer.apart and given_up is not None:
                return [f"{name} = {self._names[given_up]}", *statements]
            self._arrays[name] = self._in_block(output)
            return statements
        if output in self._layout.bases:
            if output not in self._named:
                return []
            (source,) = equation.inputs
            text = view_text(equation, self._names[source]) or self._call(equation)
            if self._memory.is_inside(self._layout.bases[output]):
                self._arrays[name] = text
                return []
            return [f"{name} = {text}"]
        return [f"{name} = {self._expression(equation)}"]

    def _chain(self, function: Links) -> str:
        """Return the name of a chain, which is made once."""
        self._literals.imports["from ebbtide.machine import Chain"] = None
        lines = [f"{function.links[-1].registers[-1] + 1},"]
        for link in function.links:
            name = ufunc_text(link.ufunc) or ""
            lines.append(f"({', '.join([name, repr(link.types), *map(str, link.registers)])}),  # {link.where}")
        return self._literals.define("fused", "Chain(\n" + "".join(f"    {line}\n" for line in lines) + ")")

    def _members(self, equation: Equation, placed: PlacedMembers) -> str:
        """Return the call that runs the members: one machine for all, or the functions of one member."""
        params, value = equation.params, self._literals.value
        stretch = placed.stretch
        if stretch is not None:
            self._literals.imports["from ebbtide.program.each import run_members"] = None
            buffers = self._buffers_of_all(placed, stretch, params)
            texts = f"({', '.join(text for text, _ in buffers)},)", f"({', '.join(f'{n}' for _, n in buffers)},)"
            size, threads = placed.members.size, placed.threads
            return f"run_members({self._machine(stretch)}, {texts[0]}, {texts[1]}, {size}, {threads})"
        self._literals.imports["from ebbtide.program.each import each_member"] = None
        name = f"_{self._names[equation.output]}"
        source = Source(placed.program, placed.layout, placed.memory, placed.stretches, around=self._literals)
        self._inner.append(source.functions(name))
        operands = [value(params[key]) for key in ("each", "into", "shared", "space")]
        return f"each_member(run{name}, lay_out{name}, {', '.join(operands)}, constants)"

    def _buffers_of_all(
        self, placed: PlacedMembers, stretch: Stretch, params: dict[str, Any]
    ) -> list[tuple[str, int]]:  # fmt: skip
        """Return each buffer of a machine as text, for all members, and how far apart they are in it."""
        operands = dict(zip(placed.program.inputs, (*params["each"], *params["into"], *params["shared"]), strict=True))
        own = set(placed.program.inputs[: len(params["each"]) + len(params["into"])])
        memory = placed.memory
        places = {memory.buffers[x]: x for x in placed.program.inputs if x in memory.buffers}
        found = []
        for buffer in stretch.buffers:
            if buffer is BLOCK:
                found.append((self._literals.value(params["space"]), placed.space.shape[1]))
                continue
            letter = buffer[1] if type(buffer) is tuple else None
            inside = buffer[0] if type(buffer) is tuple else buffer
            if type(inside) is not Variable:
                found.append((self._buffer(inside), 0))
                continue
            given = inside if inside in operands else places[memory.buffers[inside]]
            text, kind = self._literals.value(operands[given]), given.type
            if given not in own and not kind.shape:
                text = f"np.asarray({text}, {letter or kind.dtype.char!r})"
            found.append((text, self._stride(operands[given]) if given in own else 0))
        return found

    def _stride(self, operand: Any) -> int:
        """Return how far apart members are in an operand."""
        return self._layout.strides[operand][0] if type(operand) is Variable else np.asarray(operand).strides[0]

    def _fresh(self, variable: Variable) -> str:
        """Return the memory that NumPy gives to an array that lies as a value does."""
        shape, strides = variable.type.shape, self._layout.strides[variable]
        order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
        text = f"np.empty({tuple([shape[axis] for axis in order])}, {self._dtype(variable)})"
        back = tuple([order.index(axis) for axis in range(len(shape))])
        return text if list(back) == sorted(back) else f"{text}.transpose{back}"

    def _allocated(self, equation: Equation, name: str) -> list[str]:
        """Return the statements that compute a value in memory of its own."""
        arguments = [self._literals.value(argument) for argument in equation.arguments]
        if isinstance(equation.function, Links):
            run = f"{self._chain(equation.function)}({', '.join([*arguments, name])})"
            return [f"{name} = {self._fresh(equation.output)}", run]
        memory = allocation_text(equation, arguments, self._dtype(equation.output))
        if memory is None:
            return [f"{name} = {self._expression(equation)}"]
        if 0 in self._memory.kernels[equation.output].over:
            arguments[0] = name  # the copy is there
        return [f"{name} = {memory}", *self._memory.kernels[equation.output].write(name, *arguments)]

    def _shared(self, argument: Any, equation: Equation) -> str:
        """Return an argument as text: by the name of the result where nothing has to be copied into that."""
        buffers = self._memory.buffers
        same = type(argument) is Variable and argument in buffers and buffers[argument] is buffers[equation.output]
        if ufunc_of(equation) is not None:
            return self._operand(argument, equation)
        return self._names[equation.output] if same else self._literals.value(argument)

    def _operand(self, argument: Any, equation: Equation) -> str:
        """Return an operand of a ufunc as text: a number that is read by a short operation as an array."""
        text = number_text(argument, equation)
        return self._literals.value(argument) if text is None else self._literals.defined("number", text)

    def _expression(self, equation: Equation) -> str:
        """Return an expression for a result that NumPy allocates."""
        arguments = [self._literals.value(argument) for argument in equation.arguments]
        if equation.function is part:
            return f"{arguments[0]}[{arguments[1]}]"
        sign = _SIGNS.get(equation.name)
        if sign is not None and getattr(equation.function, "__module__", "") == "_operator":
            return " ".join([_as_operand(arguments[0]), sign, _as_operand(arguments[1])])
        ufunc = ufunc_of(equation)
        name = None if ufunc is None else ufunc_text(ufunc)
        if name is None:
            return self._call(equation)
        return f"{name}({', '.join([self._operand(argument, equation) for argument in equation.arguments])})"

    def _call(self, equation: Equation) -> str:
        arguments = [self._literals.value(argument) for argument in equation.arguments]
        text = expression_text(equation, arguments, self._literals.value)
        if text is not None:
            return text
        arguments += [f"{key}={self._literals.value(value)}" for key, value in equation.params.items()]
        return f"{self._literals.function(equation.function)}({', '.join(arguments)})"

    def _dtype(self, variable: Variable) -> str:
        return repr(variable.type.dtype.str)


def _as_operand(text: str) -> str:
    """Return an operand of a sign: in brackets what binds less than `**`, as a negative number does."""
    return f"({text})" if text.startswith("-") else text


def _joined(imports: Iterable[str]) -> list[str]:
    """Return lines that import, one for each module."""
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        module, _, name = line.partition(" import ")
        names.setdefault(module, []).extend([name] if name else [])
    return [f"{module} import {', '.join(found)}" if found else module for module, found in names.items()]
