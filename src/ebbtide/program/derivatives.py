"""
Programs of derivatives: a program that is followed on symbols, by a tape or by forward mode.

The reverse sweep of a program is recorded on a tape of symbols, and split off (see `split`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, final

from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.ledger import Ledger
from ebbtide.program.check import passed
from ebbtide.program.equation import Variable
from ebbtide.program.following import follow
from ebbtide.program.layout import packed_strides
from ebbtide.program.program import Program
from ebbtide.program.results import own_constants
from ebbtide.program.simplify import merge_common, remove_dead, skip_identities
from ebbtide.program.split import FEW, Split, split_sweep
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.program.tracing import claiming
from ebbtide.tape.record import Tape
from ebbtide.tape.sweep import sweep
from ebbtide.tape.tangent import TangentTrace


@final
class Reversal:
    """
    A program on a tape of symbols, from which its reverse sweeps are taken.

    Args:
        program: The program.
        active: Numbers of the inputs with respect to which it is differentiated.
        strides: Of each input.
        few: Of how many simple operations large values are that the reverse program computes again.

    Raises:
        TraceError: A rule asks for a value.

    Attributes:
        inputs: Numbers of the active inputs.
        constants: Numbers of the results that a tape would hold as constants.

    Memory:
        Equations, no data.
    """

    __slots__ = (
        "_count", "_few", "_leaves", "_lock", "_nodes", "_results", "_tape", "_trace", "constants", "inputs",
        "program", "strides",
    )  # fmt: skip

    def __init__(
        self, program: Program, active: Sequence[int], strides: Sequence[tuple[int, ...]], few: int = FEW
    ) -> None:
        self.program = program
        self._few = few
        # Sweeps are taken one at a time: each leaves its equations in the trace until it is split off.
        self._lock = threading.RLock()
        self.inputs = tuple(active)
        self.strides = tuple(strides)
        self._trace = trace = SymbolicTrace(current().level)
        self._tape = tape = Tape(trace.level + 1, Ledger())
        arrays: list[Any] = [trace.symbol(x, lies) for x, lies in zip(program.inputs, strides, strict=True)]
        for number in active:
            arrays[number] = tape.leaf(arrays[number], reachable=False)
        self._leaves = [arrays[number]._node for number in active]
        try:
            with claiming(trace), entered(level=tape.level, tape=tape, traces=(tape,)):
                results = follow(program, arrays, trace)
        finally:
            tape.close()
        on_tape = [type(result) is TracedArray and result._trace is tape for result in results]
        self._nodes = [x.present()._node if on else None for x, on in zip(results, on_tape, strict=True)]
        # What the derivative cannot see: on the tape, but without a node.
        self.constants = [n for n, on in enumerate(on_tape) if on and self._nodes[n] is None]
        outputs = [trace.entry(x) if type(x) is TracedArray else x for x in results]
        found = own_constants(replace(program, outputs=tuple(outputs), equations=tuple(trace.equations)))
        self._results, trace.equations[:] = found.outputs, found.equations
        self._count = len(trace.equations)

    @property
    def results(self) -> tuple[int, ...]:
        """Numbers of the results that depend on the active inputs."""
        return tuple([number for number, node in enumerate(self._nodes) if node is not None])

    def split(self, given: tuple[int, ...], held: Collection[Variable] = ()) -> Split:
        """
        Return the program and its reverse sweep from those of the results whose cotangents are given.

        Args:
            given: Numbers of these results.
            held: The values that are saved, where the program has been run already.
        """
        with self._lock:
            return self._split(given, held)

    def _split(self, given: tuple[int, ...], held: Collection[Variable]) -> Split:
        """See `split`."""
        trace, tape = self._trace, self._tape
        trace.forget(self._count)
        nodes: list[Any] = [self._nodes[number] for number in given]
        cotangents = [Variable(node.type, f"cotangent{number}") for node, number in zip(nodes, given, strict=True)]
        symbols = [trace.symbol(variable, packed_strides(variable.type)) for variable in cotangents]
        seeds = [(node, symbol, False) for node, symbol in zip(nodes, symbols, strict=True)]
        with claiming(trace), entered(level=tape.level):
            found = [value for value, _ in sweep(tape, seeds, self._leaves, retain=True)]
        outputs = [trace.entry(value) if type(value) is TracedArray else value for value in found]
        forward, reverse = trace.equations[: self._count], trace.equations[self._count :]
        program = replace(self.program, outputs=self._results, equations=tuple(forward))
        return split_sweep(program, self.strides, given, cotangents, outputs, reverse, self._few, held)


def push_forward(program: Program, active: Sequence[int], strides: Sequence[tuple[int, ...]]) -> Program:
    """
    Return the program of values and tangents.

    Args:
        program: The program.
        active: Numbers of the inputs that have tangents.
        strides: Of each input.

    Returns:
        From the inputs and the tangents of the active ones to the results and their tangents, None where there is none.

    Raises:
        TraceError: A rule asks for a value.
    """
    trace = SymbolicTrace(current().level)
    tangent_trace = TangentTrace(trace.level + 1)
    tangents = [Variable(program.inputs[number].type, f"tangent_{program.inputs[number].name}") for number in active]
    arrays: list[Any] = [trace.symbol(x, lies) for x, lies in zip(program.inputs, strides, strict=True)]
    for number, tangent in zip(active, tangents, strict=True):
        symbol = trace.symbol(tangent, packed_strides(tangent.type))
        arrays[number] = TracedArray(tangent_trace, symbol, arrays[number])
    with claiming(trace), entered(level=tangent_trace.level, tangent=tangent_trace, traces=(tangent_trace,)):
        results = follow(program, arrays, trace)
    duals = [type(x) is TracedArray and x.present()._trace is tangent_trace for x in results]
    values = [trace.entry(x) if type(x) is TracedArray else x for x in results]
    pushed = [x._node if dual else None for x, dual in zip(results, duals, strict=True)]
    pushed = [trace.entry(x) if type(x) is TracedArray else x for x in pushed]
    found = Program(
        f"{program.name}_forward", (*program.inputs, *tangents), (*values, *pushed), tuple(trace.equations)
    )
    return own_constants(passed(found, remove_dead, skip_identities, merge_common))
