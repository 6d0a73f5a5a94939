"""
The time loop of a function that is traced: one equation of its program, or one forward and one in reverse.

The steps are not traced, whatever their number: the program calls `timeloop`. What the loop returns, and which arrays
from outside a step uses, is found with the first step (`outcome`); these arrays are operands of the equation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.containers import flatten, is_array, unflatten
from ebbtide.arrays.context import Context, current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.reach import bound_now
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.given import LoopCall, pull_back
from ebbtide.loop.options import Options
from ebbtide.loop.outcome import Results, find_results
from ebbtide.loop.steps import frozen
from ebbtide.program.equation import OBJECT, Variable
from ebbtide.program.surroundings import Surroundings
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.tape.joint import JointRule, record_joint
from ebbtide.tape.linear_region import split
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Bypass, Region
from ebbtide.tape.tangent import TangentTrace


def symbolic_trace(context: Context) -> SymbolicTrace | None:
    """Return the trace of the function that is traced here; None if none is."""
    capture = context.capture
    # What a program runs (`Given`) is not traced, whatever is around the program.
    while isinstance(capture, (Bypass, Tape)):
        capture = capture.around
    return capture if isinstance(capture, SymbolicTrace) else None


@final
class _Levels:
    """
    The traces between the symbols of a program and the arrays that its function sees: a tape, and forward mode.

    Args:
        trace: The trace of the function.

    Raises:
        TraceError: There are more of them than a loop of a program is differentiated by.
    """

    __slots__ = ("_inside", "all", "region", "tangent", "tape", "trace")

    def __init__(self, trace: SymbolicTrace) -> None:
        self.trace = trace
        context = current()
        self.all = (trace, *self._around(context))
        tapes = {t for t in self.all if type(t) is Tape and t.outer is None}
        tangents = [t for t in context.traces if type(t) is TangentTrace]
        deep = len(tapes) > 1 or len(tangents) > 1 or any(t.linear is not None for t in tangents)
        if deep or (context.tape is not None and context.tangent is not None):
            raise TraceError(
                f"The time loop called at {user_line()} is in a traced function, and differentiated in a way that has "
                "no equations there: more than once in reverse or forward, forward inside of reverse, or linearized. "
                "Its gradients, and its products with Jacobians and Hessians (vjp, jvp, hvp) have. Call jit on the "
                "step, and take this derivative outside of jit."
            )
        self.tape: Tape | None = context.tape
        self.tangent: TangentTrace | None = tangents[0] if tangents else None
        self.region = None if self.tape is None else Region(self.tape)
        self._inside = getattr(context.capture, "inside", None)

    def _around(self, context: Context) -> list[Any]:
        """Return the traces and regions inside of the function that is traced."""
        found: list[Any] = list(context.traces)
        capture = context.capture
        while capture is not None and capture is not self.trace:
            # In a reverse sweep the function whose tape is outside of the region has returned.
            found += [capture, capture.outer]
            capture = capture.around
        return list(dict.fromkeys(found))

    def node(self, array: Any) -> Node | None:
        """Return the node of an operand on the tape."""
        return None if self.region is None else self.region.node(array)

    def pair(self, array: Any) -> tuple[Any, Any]:
        """Return value and tangent of an operand as symbols, or as what is known; the tangent may be None."""
        if self.region is not None:
            array = self.region.value(array)
        elif self._inside is not None:
            array = self._inside(array)
        return (array, None) if self.tangent is None else split(self.tangent, array)

    def joined(self, values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Return values of which those that can have one have a tangent."""
        if self.tangent is None or not tangents:
            return list(values)
        rest = iter(tangents)
        return [TracedArray(self.tangent, next(rest), value) if is_array(value) else value for value in values]


def traced_loop(
    timeloop: Callable[..., Any],
    trace: SymbolicTrace,
    step: Callable[..., Any],
    leaves: list[Any],
    structure: Any,
    length: int,
    inputs: Any,
    options: Options,
) -> Any:
    """
    Record a time loop of a function that is traced.

    Args:
        timeloop: The loop.
        trace: The trace of the function.
        step: The user's step.
        leaves: Leaves of the state.
        structure: Structure of the state.
        length: The number of steps, or the most.
        inputs: The user's inputs.
        options: The other arguments of the loop.

    Returns:
        What the loop returns, as arrays of the trace; None if it depends on nothing that is traced.

    Raises:
        TraceError: The first step asks for values; the number of outputs is not known; or derivatives are taken of the
            loop that have no equation.
    """
    _refuse(leaves, options)
    # The program runs when the variables that the user's functions close over may stand for something else.
    step, options = bound_now(step), replace(options, until=bound_now(options.until))
    inputs = bound_now(inputs) if callable(inputs) else inputs
    rows, tree = _rows_of(inputs)
    results = find_results(step, leaves, structure, length, inputs, options)
    levels = _Levels(trace)
    operands = [*leaves, *rows, *results.statics]
    pairs = [levels.pair(operand) for operand in operands]
    if not any(_is_variable(trace, x) for pair in pairs for x in pair):
        return None
    nodes = [levels.node(operand) for operand in operands]
    given = None if tree is not None else frozen(inputs)
    call = LoopCall(
        timeloop, step, structure, given, tree, options,
        tuple(results.statics), levels.all, current().level,
        tuple([Surroundings(f, traced=False) for f in (step, options.until, given) if callable(f)]),
    )  # fmt: skip
    counts = len(leaves), len(leaves) + len(rows)
    values, tangents = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    params: dict[str, Any] = {"steps": length if options.until is None else None, "state": values[: counts[0]]}
    if rows:
        params["inputs"] = values[counts[0] : counts[1]]
    if results.statics:
        params["static"] = values[counts[1] :]
    if any(tangent is not None for tangent in tangents):
        params["tangents"] = tangents
    recorded = _recorded if any(node is not None for node in nodes) else _computed
    found = recorded(levels, call, params, results, nodes)
    after = unflatten(structure, found[: results.count])
    return (after, unflatten(results.structure, found[results.count :])) if options.outputs else after


def _computed(levels: _Levels, call: LoopCall, params: Any, results: Results, nodes: list[Any]) -> list[Any]:
    """Record a loop that no gradient is taken of; return the leaves of its results."""
    return _split(levels, levels.trace.call(call.run, "timeloop", params, _variables(results, params)), results)


def _recorded(levels: _Levels, call: LoopCall, params: Any, results: Results, nodes: list[Any]) -> list[Any]:
    """Record a loop on a tape, whose reverse sweep is one more equation; return the leaves of its results."""
    tape = levels.tape
    assert tape is not None
    first, last = len(params["state"]), len(params["state"]) + len(params.get("inputs", ()))
    active: list[Node] = []
    places: list[int | None] = []
    for number, node in enumerate(nodes):
        # An array that is several inputs is one operand, whose contributions are summed in the order of the steps.
        known = places[first:number] if first <= number < last else []
        place = next((k for k in known if k is not None and active[k] is node), len(active))
        places.append(None if node is None else place)
        active += [node] if node is not None and place == len(active) else []
    held, *found = levels.trace.call(
        replace(call, places=tuple(places)).run_saving, "timeloop_saving", params,
        [Variable(OBJECT, "part"), *_variables(results, params)],
    )  # fmt: skip
    outputs = _split(levels, found, results)
    parents = list(dict.fromkeys(active))
    # The loop copies its state only.
    keep = [*params.get("inputs", ()), *params.get("static", ())]
    keep += [tangent for tangent in params.get("tangents", ())[first:] if tangent is not None]
    rule = _TracedLoopRule(levels, held, active, [parents.index(node) for node in active], keep, "tangents" in params)
    shown = [value if is_array(value) else 0 for value in outputs]
    traced = record_joint(tape, rule, tuple(parents), shown)
    return [t if is_array(v) else v for t, v in zip(traced, outputs, strict=True)]


def _variables(results: Results, params: Any) -> list[Variable]:
    """Return new variables for the results, and for the tangents that follow them."""
    pairs = zip(results.kinds, results.numbers, strict=True)
    found = [Variable(kind, "part", is_number=is_number) for kind, is_number in pairs]
    tangents = [kind for kind in results.kinds if kind.dtype.kind in "fc"] if "tangents" in params else []
    return found + [Variable(kind, "part") for kind in tangents]


def _split(levels: _Levels, found: list[Any], results: Results) -> list[Any]:
    """Return results with their tangents, given one after the other."""
    count = len(results.kinds)
    return levels.joined(found[:count], found[count:])


@final
class _TracedLoopRule(JointRule):
    """
    A time loop on a tape of symbols.

    Args:
        levels: Its traces.
        held: What its reverse sweep needs.
        active: Nodes of the active operands; their types are taken.
        places: Numbers of their parents.
        keep: What the sweep uses by reference.
        dual: Whether values and cotangents have tangents.
    """

    __slots__ = ("_dual", "_held", "_keep", "_kinds", "_levels", "_places")

    def __init__(
        self, levels: _Levels, held: TracedArray, active: list[Node], places: list[int], keep: list[Any], dual: bool
    ) -> None:
        self._levels = levels
        self._held = held
        self._kinds = [node.type for node in active]
        self._places = places
        self._keep = keep
        self._dual = dual

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return "timeloop"

    @property
    def sheddable(self) -> int:
        """Nothing: symbols take no memory."""
        return 0

    def shed(self, nbytes: int) -> int:
        """Give up nothing."""
        return 0

    def needs(self, owned: bool, given: int) -> int:
        """Nothing."""
        return 0

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Record the reverse sweep."""
        levels = self._levels
        pairs = [(None, None) if pair is None else self._split(pair[0]) for pair in cotangents]
        cotangents.clear()
        params: dict[str, Any] = {"held": self._held, "cotangents": [value for value, _ in pairs]}
        if self._dual:
            params["tangents"] = [tangent for _, tangent in pairs]
        if self._keep:
            params["keep"] = self._keep
        if retain:
            params["retain"] = True
        results = [Variable(kind, "part") for kind in self._kinds * (2 if self._dual else 1)]
        found = levels.trace.call(pull_back, "timeloop_reverse", params, results)
        count = len(self._kinds)
        gradients = levels.joined(found[:count], found[count:])
        for place, gradient in zip(self._places, gradients, strict=True):
            yield place, gradient, False

    def _split(self, cotangent: Any) -> tuple[Any, Any]:
        tangent = self._levels.tangent
        return (cotangent, None) if tangent is None else split(tangent, cotangent)


def _rows_of(inputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of inputs that are operands, with their structure; none where nothing of them is traced."""
    if isinstance(inputs, (TracedArray, list, tuple)):
        leaves, structure = flatten(inputs)
        if any(type(leaf) is TracedArray for leaf in leaves):
            return [leaf.frozen() if type(leaf) is TracedArray else leaf for leaf in leaves], structure
    return [], None


def _is_variable(trace: SymbolicTrace, value: Any) -> bool:
    return type(value) is TracedArray and type(trace.entry(value)) is Variable


def _refuse(leaves: list[Any], options: Options) -> None:
    """Raise for what the equation of a loop cannot be, or would leave out."""
    context = current()
    problem = None
    if options.outputs and options.until is not None:
        problem = "outputs of a number that until= says when the program runs", "Leave outputs= out"
    elif any(isinstance(leaf, np.random.Generator) for leaf in leaves):
        problem = "a random generator in its state, which no program returns", "Draw the numbers outside as inputs="
    elif options.resume is not None or context.resume is not None:
        problem = "a journal (resume=), which would not tell the arrays of two calls apart", "Leave resume= out"
    elif context.budget is not None:
        problem = "a budget from the derivative around it, which ends before the program runs", (
            "Give the budget to the loop itself"
        )
    if problem is not None:
        raise TraceError(
            f"The time loop called at {user_line()} is in a traced function, and has {problem[0]}. {problem[1]}, or "
            "put jit around the step instead of the loop."
        )
