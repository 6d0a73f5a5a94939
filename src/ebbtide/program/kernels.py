"""
How equations are written as NumPy calls that put their result into memory that is there already.

What has no such call is left to NumPy, which allocates the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ebbtide.program.equation import Equation
from ebbtide.program.layout import Layout, is_power_of_number, ufunc_of

# Bytes of a result up to which an operation is short: it takes about as long as NumPy's reading of a number.
_SHORT = 4096


@final
@dataclass(frozen=True, slots=True)
class Kernel:
    """
    A way to compute an equation into given memory.

    Args:
        write: `write(out, *arguments)`, given texts, returns the statements.
        over: Numbers of the arguments that may be in the very memory of the result.
        lowered: Whether only the machine can.
    """

    write: Callable[..., list[str]]
    over: tuple[int, ...] = ()
    lowered: bool = False


def kernel_of(equation: Equation) -> Kernel | None:
    """Return how an equation is computed into memory; None where NumPy has to allocate."""
    ufunc = ufunc_of(equation)
    if ufunc is not None:
        name = ufunc_text(ufunc)
        if name is None or is_power_of_number(equation):
            # An array to the power of a number has ways of its own in NumPy.
            return None
        over = tuple(range(len(equation.arguments)))
        return Kernel(lambda out, *arguments: [f"{name}({', '.join(arguments)}, out={out})"], over)
    if equation.name == "chain":
        # Only its last operation writes, so it may do so over any operand. How the call reads, the source knows.
        return Kernel(lambda out, *arguments: [], tuple(range(len(equation.arguments))))
    if equation.primitive is None and equation.name not in _OURS:
        return None
    make = _MADE.get(equation.name)
    return _FIXED.get(equation.name) if make is None else make(equation)


def kernel_in(layout: Layout, equation: Equation) -> Kernel | None:
    """Return the kernel of an equation of a program whose layout this is; once for all copies."""
    if equation not in layout.kernels:
        layout.kernels[equation] = kernel_of(equation)
    return layout.kernels[equation]


def ufunc_text(ufunc: np.ufunc) -> str | None:
    """Return how a program names a ufunc; None if it is neither NumPy's nor SciPy's."""
    for module, prefix in ((np, "np"), (sys.modules.get("scipy.special"), "scipy.special")):
        if getattr(module, ufunc.__name__, None) is ufunc:
            return f"{prefix}.{ufunc.__name__}"
    return None


def number_text(argument: Any, equation: Equation) -> str | None:
    """
    Return how a number is written as an array, once for all runs: NumPy takes 0.3 us to make one of it at each.

    None where it stays in the text: where the operation takes longer than that, has operands of several types, may do
    something else with an array, or where the number overflows in the type of the operation.
    """
    output = equation.output
    dtype = output.type.dtype
    if not isinstance(argument, float) or equation.name == "power" or not output.type.shape or output.nbytes > _SHORT:
        return None
    if dtype.kind not in "fc" or any(v.type.dtype != dtype for v in equation.inputs):
        return None
    with np.errstate(all="ignore"):
        size = abs(dtype.type(argument))
    kept = argument == 0.0 or np.finfo(dtype).tiny <= size < np.inf
    return f"np.array({float(argument)!r}, {dtype.char!r})" if kept else None


def _reduction(equation: Equation) -> Kernel | None:
    params = equation.params
    if set(params) - {"axis", "keepdims"} or any(x is not True for x in equation.arguments[1:]):
        return None
    call = "np.add.reduce" if equation.name == "sum" else f"np.{equation.name}"
    rest = f"axis={params['axis']}, keepdims={params['keepdims']}"
    return Kernel(lambda out, x, where=None: [f"{call}({x}, {rest}, out={out})"])


def _moved(out: str, x: str) -> list[str]:
    """Return the statement that copies an array to another one, if that is not its own place."""
    return [] if x == out else [f"np.copyto({out}, {x})"]


def _copy(equation: Equation) -> Kernel | None:
    return Kernel(_moved, (0,)) if equation.params["order"] == "C" else None


def _setitem(equation: Equation) -> Kernel | None:
    index = index_text(equation.params["index"])
    if index is None:
        return None
    return Kernel(lambda out, base, value: [*_moved(out, base), f"{out}[{index}] = {value}"], (0,))


def _scatter(equation: Equation) -> Kernel | None:
    index = index_text(equation.params["index"])
    if index is None:
        return None
    return Kernel(lambda out, g: [f"{out}.fill(0)", f"{out}[{index}] = {g}"])


def _add_scatter(equation: Equation) -> Kernel:
    given = equation.params["index"]
    # An element is an array, too.
    index = index_text(given if any(part is Ellipsis for part in given) else (*given, ...))
    unsigned = [index_text(zeros) for zeros in equation.params["unsigned"]]

    def write(out: str, total: str, part: str) -> list[str]:
        if total == out:
            return [f"{out}[{index}] += {part}", *[f"{out}[{zeros}] += 0" for zeros in unsigned]]
        if unsigned:  # no other element is -0.0, and 0 may be added to all
            return [f"np.add({total}, 0, out={out})", f"np.add({total}[{index}], {part}, out={out}[{index}])"]
        return [*_moved(out, total), f"{out}[{index}] += {part}"]

    return Kernel(write, (0,))


def index_text(index: Sequence[Any], name: Callable[[Any], str] | None = None) -> str | None:
    """Return an index as text; None if there are arrays in it, for which there is no *name*."""
    parts: list[str] = []
    for part in index:
        if isinstance(part, np.ndarray):
            if name is None:
                return None
            parts.append(name(part))
        elif type(part) is slice:
            ends = ["" if end is None else str(int(end)) for end in (part.start, part.stop)]
            parts.append(":".join(ends if part.step is None else [*ends, str(int(part.step))]))
        else:
            parts.append("..." if part is Ellipsis else "None" if part is None else str(int(part)))
    return ", ".join(parts) or "()"


def moves_of_roll(equation: Equation) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Return where the parts of an array that is rolled go, and where they come from."""
    shape = equation.output.type.shape
    shifts = [0] * len(shape)
    for shift, axis in zip(equation.params["shift"], equation.params["axis"], strict=True):
        shifts[axis] = (shifts[axis] + shift) % shape[axis] if shape[axis] else 0
    # Along each axis that moves: what stays within, and what comes in at the other end.
    choices = [
        [(slice(s, None), slice(None, n - s)), (slice(None, s), slice(n - s, None))] if s else [(slice(None),) * 2]
        for s, n in zip(shifts, shape, strict=True)
    ]
    return [(tuple([to for to, _ in chosen]), tuple([of for _, of in chosen])) for chosen in product(*choices)]


def _roll(equation: Equation) -> Kernel:
    moves = moves_of_roll(equation)
    return Kernel(lambda out, x: [f"{out}[{index_text(to)}] = {x}[{index_text(of)}]" for to, of in moves])


def _pad(equation: Equation) -> Kernel:
    kind = equation.arguments[0].type
    inner = ", ".join(f"{a}:{a + n}" for (a, _), n in zip(equation.params["widths"], kind.shape, strict=True))
    value = equation.params["values"]
    return Kernel(lambda out, x: [f"{out}.fill({value})", f"{out}[{inner}] = {x}"])


def _concatenate(equation: Equation) -> Kernel:
    axis = equation.params["axis"]
    return Kernel(lambda out, *arrays: [f"np.concatenate(({', '.join(arrays)},), axis={axis}, out={out})"])


def view_text(equation: Equation, x: str) -> str | None:
    """Return how a view is taken of an array; None where the operation has no text of its own."""
    params = equation.params
    match equation.name:
        case "reshape":
            return f"np.reshape({x}, {params['shape']}, order={params['order']!r})"
        case "transpose":
            return f"np.transpose({x}, {params['axes']})"
        case "getitem":
            index = index_text(params["index"])
            return None if index is None else f"{x}[{index}]"
        case "broadcast_to":
            return f"np.broadcast_to({x}, {params['shape']})"
        case "real" | "imag":
            return f"{x}.{equation.name}"
        case _:
            return None


def allocation_text(equation: Equation, arguments: Sequence[str], dtype: str) -> str | None:
    """Return how the memory is made in which a kernel then works, where no call of NumPy makes it with the result."""
    match equation.name:
        case "setitem" | "put":
            return f"np.array({arguments[0]}, order='K')"
        case "scatter" | "add_at" | "room":
            return f"np.empty({equation.output.type.shape}, {dtype})"
        case _:
            return None


def expression_text(equation: Equation, arguments: Sequence[str], name: Callable[[Any], str]) -> str | None:
    """
    Return the call of NumPy that an equation is; None where it has no other text than that of its function.

    Args:
        equation: The equation.
        arguments: The texts of its arguments.
        name: Returns the text of any other value.
    """
    params = equation.params
    match equation.name:
        case "getitem":
            return f"{arguments[0]}[{index_text(params['index'], name)}]"
        case "small_product":
            return f"small_product({', '.join(arguments)})"
        case "gather":
            return f"{arguments[0]}[{', '.join(arguments[1:])}]"
        case "where" if equation.primitive is not None:
            return f"np.where({', '.join(arguments)})"
        case "astype":
            return f"{arguments[0]}.astype({name(params['dtype'])})"
        case "_cast":
            return f"{arguments[0]}.astype({arguments[1]})"
        case "copy":
            return f"np.array({arguments[0]}, order={params['order']!r})"
        case "concatenate":
            return f"np.concatenate(({', '.join(arguments)},), axis={params['axis']})"
        case "roll":
            return f"np.roll({arguments[0]}, {params['shift']}, {params['axis']})"
        case "pad":
            return f"np.pad({arguments[0]}, {params['widths']}, constant_values={name(params['values'])})"
        case _:
            return view_text(equation, arguments[0]) if arguments else None


# Functions of the library that are no primitives: passes make equations of them.
_OURS = frozenset({"add_product", "add_scatter", "filled", "result", "room", "small_product"})
# One for all equations of a name; and those that an equation's parameters are in.
_FIXED: Mapping[str, Kernel] = MappingProxyType({
    "matmul": Kernel(lambda out, x, y: [f"np.matmul({x}, {y}, out={out})"]),
    "small_product": Kernel(lambda out, x, y: [f"small_product({x}, {y}, {out})"]),
    "add_product": Kernel(lambda out, total, a, b: [*_moved(out, total), f"add_product({out}, {a}, {b})"], (0,)),
    "where": Kernel(lambda out, holds, x, y: [*_moved(out, y), f"np.copyto({out}, {x}, where={holds})"], (2,)),
    "astype": Kernel(lambda out, x: [f"np.copyto({out}, {x}, casting='unsafe')"]),
    "add_at": Kernel(lambda out, g, *where: [f"{out}.fill(0)", f"np.add.at({out}, ({', '.join(where)},), {g})"]),
    "put": Kernel(lambda out, base, x, *where: [*_moved(out, base), f"{out}[{', '.join(where)}] = {x}"], (0,)),
    "room": Kernel(lambda out: []),
    "filled": Kernel(lambda out, whole, number, home: _moved(out, home), (2,)),
    "result": Kernel(_moved, (0,)),
})  # fmt: skip
_MADE: Mapping[str, Callable[[Equation], Kernel | None]] = MappingProxyType({
    "sum": _reduction,
    "mean": _reduction,
    "max": _reduction,
    "min": _reduction,
    "prod": _reduction,
    "copy": _copy,
    "setitem": _setitem,
    "scatter": _scatter,
    "roll": _roll,
    "pad": _pad,
    "concatenate": _concatenate,
    "add_scatter": _add_scatter,
})  # fmt: skip
