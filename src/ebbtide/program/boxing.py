"""Which equations are computed as one, box by box: those that move parts of large arrays, with what is around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from ebbtide.machine import MOST_LINKS, MOST_OPERANDS, MOST_VALUES
from ebbtide.program.boxes import Boxed, boxes_of, linked, size_of
from ebbtide.program.chains import ufunc_loop_of
from ebbtide.program.costs import SIMPLE
from ebbtide.program.equation import Equation, Variable, stand_in
from ebbtide.program.layout import Layout, ufunc_of
from ebbtide.program.lifetimes import outputs_of, users_of
from ebbtide.program.orders import order_of
from ebbtide.program.program import Program, with_instead
from ebbtide.program.windows import MOVES, VIEWS, Link, summed_axes

# Smaller arrays stay in the cache of a processor between two equations.
_LARGE = 1 << 17
# Equations of which one is made, and boxes: what makes them goes through all equations for each box.
_MOST_EQUATIONS, _MOST_BOXES = 96, 128
# What an operation costs for an element: simple ones as much as an array that is written and read, others (see `costs`)
# many times that, so that they are not done twice.
_ARRAY, _FUNCTION = 1, 20
_MOST_SUMMED, _SPREAD = 4, 64


def box_equations(program: Program, layout: Layout, donated: Iterable[Variable] = ()) -> Program:
    """
    Return a program in which equations that move parts of large arrays are one with those around them.

    Args:
        program: The program.
        layout: How its values lie; the values that are left lie as they did.
        donated: Inputs whose memory it may use: what is last written into one is written there.
    """
    instead: dict[int, Equation | None] = {}
    for members in _clusters(program, layout, frozenset(donated)):
        one = _boxed(program, members, layout)
        if one is not None:
            instead.update(dict.fromkeys(members, None))
            instead[members[-1]] = one
    return with_instead(program, instead, "box_equations") if instead else program


def _clusters(program: Program, layout: Layout, donated: frozenset[Variable]) -> list[list[int]]:
    """Return numbers of equations that only the last of them needs, of which some move elements."""
    users, outputs = users_of(program), set(outputs_of(program))
    clusters: dict[int, list[int]] = {}
    root_of: dict[int, int] = {}
    for place in reversed(range(len(program.equations))):
        equation = program.equations[place]
        output = equation.output
        kind = _kind_of(equation, layout)
        if kind is None:
            continue
        roots = {root_of.get(user) for user in users[output]}
        root = roots.pop() if len(roots) == 1 and output not in outputs else None
        if root is not None:
            first = program.equations[root]
            # What is much smaller is spread out, and would be computed for each element again.
            spread = kind == "made" and _SPREAD * prod(output.type.shape) < prod(first.output.type.shape)
            if spread or equation.errors != first.errors or len(clusters[root]) >= _MOST_EQUATIONS:
                root = None
        if root is None:
            target = equation.arguments[0]  # an array where it does not depend on the arguments
            in_place = equation.name == "setitem" and type(target) is Variable and target in donated
            if kind == "view" or in_place or output.nbytes < _LARGE:
                continue
        root_of[place] = place if root is None else root
        clusters.setdefault(root_of[place], []).insert(0, place)
    return [
        members
        for members in clusters.values()
        if any(program.equations[place].name in MOVES for place in members)
        and sum(program.equations[place].output not in layout.bases for place in members) > 1
    ]


def _kind_of(equation: Equation, layout: Layout) -> str | None:
    """Return whether an equation can be read through a window as a view, or as one that computes; else None."""
    name, params = equation.name, equation.params
    ours = equation.primitive is not None
    if "index" in params and any(hasattr(part, "dtype") and part.ndim for part in params["index"]):
        return None
    if ours and name in VIEWS and equation.output.type.shape:
        return "view" if name != "reshape" or _is_thin(equation) else None
    if equation.output in layout.bases:
        return None
    if not equation.output.type.shape or not equation.output.nbytes:
        return None
    if name in MOVES and (ours or name == "add_scatter"):
        return "made" if _can_move(equation, layout) else None
    # The bits of complex numbers depend on how they lie, see `Layout.is_free_of_order`; those of powers on whether one
    # exponent is read for many numbers.
    if name == "power" and type(equation.arguments[1]) is Variable:
        return None
    if any(x.type.dtype.kind == "c" for x in equation.inputs):
        return None
    return "made" if ufunc_of(equation) is not None and ufunc_loop_of(equation) is not None else None


def _is_thin(equation: Equation) -> bool:
    """Return whether a reshape only drops and adds axes of one element."""
    source = np.shape(stand_in(equation.arguments[0]))  # of a variable or of an array that the program has
    return [n for n in source if n != 1] == [n for n in equation.output.type.shape if n != 1]


def _can_move(equation: Equation, layout: Layout) -> bool:
    """Return whether an equation that moves elements reads through windows."""
    name, params = equation.name, equation.params
    if name in ("setitem", "scatter", "add_scatter"):
        parts = params["index"]
        return all(part is not None and (type(part) is not slice or part.step in (None, 1)) for part in parts)
    if name == "where":
        return getattr(equation.arguments[0], "type", None) is not None and equation.arguments[0].type.dtype.char == "?"
    if name == "sum":
        return _is_plain_sum(equation, layout)
    return True


def _is_plain_sum(equation: Equation, layout: Layout) -> bool:
    """Return whether a sum adds few elements, one after the other."""
    x, params, out = equation.arguments[0], equation.params, equation.output
    if type(x) is not Variable or len(equation.arguments) > 1 or set(params) - {"axis", "dtype", "keepdims"}:
        return False
    axes = summed_axes(equation)
    if len(axes) != 1 or not 0 < x.type.shape[axes[0]] <= _MOST_SUMMED or x.type.dtype != out.type.dtype:
        return False
    if x.type.dtype.char not in "fd" or any(step < 0 for step in layout.strides[x]):
        return False
    into = list(layout.strides[out])
    if params["keepdims"]:
        into[axes[0]] = 0
    else:
        into.insert(axes[0], 0)
    ordered = order_of(x.type.shape, layout.strides[x], tuple(into))
    return ordered is not None and ordered[2][-1] != 0


def _boxed(program: Program, members: Sequence[int], layout: Layout) -> Equation | None:
    """Return equations as one; None where the machine cannot do that, or it takes longer."""
    equations = tuple([program.equations[place] for place in members])
    made = {equation.output for equation in equations}
    operands = tuple(dict.fromkeys(v for equation in equations for v in equation.inputs if v not in made))
    function = Boxed(operands, equations)
    before = sum(_cost(e.name) * e.output.nbytes for e in equations if e.output not in layout.bases)
    before += sum(_ARRAY * e.output.nbytes for e in equations[:-1] if e.output not in layout.bases)
    last, after = equations[-1], 0
    try:
        for count, box in enumerate(boxes_of(function)):
            links = [term for term in box.terms if type(term) is Link]
            names = [link.operation if isinstance(link.operation, str) else link.operation.__name__ for link in links]
            after += size_of(box) * last.output.type.dtype.itemsize * sum(map(_cost, names))
            reads, steps = linked(box)
            pieces = max([register for step in steps for register in step[2:]]) - len(reads)
            small = len(reads) < MOST_OPERANDS and pieces <= MOST_VALUES and len(steps) <= MOST_LINKS
            if count >= _MOST_BOXES or not small or after > before:
                return None
    except ValueError:
        return None
    return Equation(None, function, "boxes", operands, {}, last.output, last.where, last.errors, last.again)


def _cost(name: str) -> int:
    return 1 if name in SIMPLE or name in MOVES or name in ("cast", "move") else _FUNCTION
