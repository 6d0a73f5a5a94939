"""
The time loop of a function that is traced: one equation of its program, or one forward and one in reverse.

The steps are not traced, whatever their number: the program calls `timeloop`. The first step runs once on arrays without
data, to find of what types the results are, and which arrays from outside it uses: these are operands of the equation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.constants import PYTHON_NUMBERS
from ebbtide.arrays.containers import flatten, is_array, unflatten
from ebbtide.arrays.context import Context, current
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError
from ebbtide.loop.given import LoopCall, pull_back
from ebbtide.loop.options import Options
from ebbtide.loop.steps import Stepper, check_types, frozen
from ebbtide.program.equation import ObjectType, Variable
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.program.tracing import trace_leaves
from ebbtide.tape.joint import JointRule, record_joint
from ebbtide.tape.linear_region import split
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.region import Bypass, Region
from ebbtide.tape.tangent import TangentTrace

_HELD = ObjectType("for the reverse sweep")


def symbolic_trace(context: Context) -> SymbolicTrace | None:
    """Return the trace of the function that is traced here; None if none is."""
    capture = context.capture
    # What a program runs (`Given`) is not traced, whatever is around the program.
    while isinstance(capture, (Bypass, Tape)):
        capture = capture.around
    return capture if isinstance(capture, SymbolicTrace) else None


@final
@dataclass(frozen=True, slots=True)
class _Results:
    """
    What a loop returns, and what it takes from outside.

    Args:
        kinds: Types of the leaves of the final state and the outputs.
        numbers: Which of them are Python numbers.
        count: How many leaves the state has.
        structure: That of the outputs; None without outputs.
        statics: The arrays from outside that a step uses.
    """

    kinds: list[ArrayType]
    numbers: list[bool]
    count: int
    structure: Any
    statics: list[TracedArray]


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
    rows, tree = _rows_of(inputs)
    results = _find_results(step, leaves, structure, length, inputs, options)
    levels = _Levels(trace)
    operands = [*leaves, *rows, *results.statics]
    pairs = [levels.pair(operand) for operand in operands]
    if not any(_is_variable(trace, x) for pair in pairs for x in pair):
        return None
    nodes = [levels.node(operand) for operand in operands]
    call = LoopCall(
        timeloop, step, structure, None if tree is not None else frozen(inputs), tree, options,
        tuple(results.statics), levels.all, current().level,
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


def _computed(levels: _Levels, call: LoopCall, params: Any, results: _Results, nodes: list[Any]) -> list[Any]:
    """Record a loop that no gradient is taken of; return the leaves of its results."""
    return _split(levels, levels.trace.call(call.run, "timeloop", params, _variables(results, params)), results)


def _recorded(levels: _Levels, call: LoopCall, params: Any, results: _Results, nodes: list[Any]) -> list[Any]:
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
        [Variable(_HELD, "part"), *_variables(results, params)],
    )  # fmt: skip
    outputs = _split(levels, found, results)
    parents = list(dict.fromkeys(active))
    keep = [*params.get("inputs", ()), *params.get("static", ())]
    rule = _TracedLoopRule(levels, held, active, [parents.index(node) for node in active], keep, "tangents" in params)
    shown = [value if is_array(value) else 0 for value in outputs]
    traced = record_joint(tape, rule, tuple(parents), shown)
    return [t if is_array(v) else v for t, v in zip(traced, outputs, strict=True)]


def _variables(results: _Results, params: Any) -> list[Variable]:
    """Return new variables for the results, and for the tangents that follow them."""
    pairs = zip(results.kinds, results.numbers, strict=True)
    found = [Variable(kind, "part", is_number=is_number) for kind, is_number in pairs]
    tangents = [kind for kind in results.kinds if kind.dtype.kind in "fc"] if "tangents" in params else []
    return found + [Variable(kind, "part") for kind in tangents]


def _split(levels: _Levels, found: list[Any], results: _Results) -> list[Any]:
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


def _find_results(
    step: Callable[..., Any], leaves: list[Any], structure: Any, length: int, inputs: Any, options: Options
) -> _Results:
    """Run the first step without data, until what it returns is of the kind of what it was given."""
    if options.outputs and options.until is not None:
        raise TraceError(
            f"The time loop called at {user_line()} is in a traced function and has until= and outputs: how many there "
            "will be is known when the program runs. Leave outputs= out, or put jit around the step instead."
        )
    if any(isinstance(leaf, np.random.Generator) for leaf in leaves):
        raise TraceError(
            f"The time loop called at {user_line()} is in a traced function and has a random generator in its state, "
            "which no program can return. Put jit around the step instead, or draw the numbers outside and pass them "
            "as inputs=."
        )
    symbolic = [type(leaf) is TracedArray or isinstance(leaf, (np.ndarray, np.generic)) and is_array(leaf)
                for leaf in leaves]  # fmt: skip
    while True:
        outputs, output_structure, statics = _run_first(step, leaves, symbolic, structure, inputs, options)
        state, emitted = outputs[: len(leaves)], outputs[len(leaves) :]
        after = [was or type(value) is Variable and not value.is_number for was, value in zip(symbolic, state)]
        if after == symbolic:
            break
        symbolic = after
    kinds = [type_of(x.type if type(x) is Variable else x) for x in state]
    rows = [type_of(x.type if type(x) is Variable else x) for x in emitted]
    numbers = [not known and type(x) in PYTHON_NUMBERS for known, x in zip(symbolic, state, strict=True)]
    stacks = [ArrayType((length, *kind.shape), kind.dtype) for kind in rows]
    return _Results(kinds + stacks, numbers + [False] * len(rows), len(leaves), output_structure, statics)


def _run_first(
    step: Callable[..., Any], leaves: list[Any], symbolic: list[bool], structure: Any, inputs: Any, options: Options
) -> tuple[list[Any], Any, list[TracedArray]]:
    """Return what the first step gives, as variables and known values, the structure of its output, and its statics."""
    stepper = Stepper(step, structure, inputs, options.outputs, None)
    x, x_structure = _first_input(inputs)
    given = [k for k, leaf in enumerate(leaves) if symbolic[k]] 
    rows = [k for k, leaf in enumerate(x) if type(leaf) is TracedArray]

    def run(arrays: list[Any]) -> list[Any]:
        # Copies: a step may write into what it is given.
        arrays = [array.copy() for array in arrays]
        state = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        for number, array in zip(given, arrays, strict=False):
            state[number] = array
        row = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in x]
        for number, array in zip(rows, arrays[len(given) :], strict=True):
            row[number] = array
        if options.until is not None:
            with suppress(TraceError):  # it may ask for values: all that is wanted here is which arrays it uses
                options.until(unflatten(structure, [s.copy() if type(s) is TracedArray else s for s in state]))
        after, output = stepper.call(0, state, row, x_structure)
        check_types(0, leaves, after)
        return after + output

    kinds = [type_of(leaves[k]) for k in given] + [type_of(x[k]) for k in rows]
    names = [f"state{k}" for k in given] + [f"input{k}" for k in rows]
    program, statics = trace_leaves(run, kinds, names, "step")
    return list(program.outputs), stepper.output_structure, statics


def _first_input(inputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of the input of the first step, and their structure."""
    if inputs is None or callable(inputs):
        return [0], None
    if isinstance(inputs, TracedArray):
        kind = ArrayType(inputs.shape[1:], inputs.dtype)
        return [TracedArray(inputs._trace, None, kind)], flatten(0)[1]
    return flatten(inputs[0])
