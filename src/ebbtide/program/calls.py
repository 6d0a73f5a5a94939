"""
Functions of arrays with several results that programs call as they are, such as time loops; and their derivatives.

A derivative of a call is a call again: of values and tangents, of values and cotangents, of all members of a batch. It
runs the function on arrays of forward mode, of a tape or of a batch, so that each order of derivatives is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import BatchTrace, full
from ebbtide.arrays.containers import is_array
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.kinds import zeros_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import ReleasedValueError
from ebbtide.tape.account import account
from ebbtide.tape.linear_region import split
from ebbtide.tape.node import Node
from ebbtide.tape.recording import Recording
from ebbtide.tape.tangent import TangentTrace

_OPERANDS = "operands"


class Call(ABC):
    """
    A function of arrays with several results, without its operands.

    Attributes:
        name: What a program calls it.
        level: That of the context in which it was traced: the traces of its derivatives are inside of that.
        kinds: Types of the results.
        numbers: Which of them are Python numbers.
        rows: Numbers of operands of which those that are the same array are one, as the call sums what they get.
    """

    __slots__ = ()

    name: str
    level: int
    kinds: list[ArrayType]
    numbers: list[bool]
    rows: range

    @abstractmethod
    def run(self, operands: list[Any]) -> list[Any]:
        """Return the results for operands of any trace."""

    @abstractmethod
    def params(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Return operands by name, as a program shows them."""

    @abstractmethod
    def operands(self, params: dict[str, Any]) -> list[Any]:
        """Return the operands that `params` named."""

    @abstractmethod
    def arrays(self) -> list[np.ndarray]:
        """Return the plain arrays that the function finds around it."""

    def takes(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Return those operands that it uses by reference, in its reverse sweep too."""
        return operands

    def checked(self, operands: Sequence[Any]) -> tuple[Call, Sequence[Any]] | None:
        """Return a call with its operands, the same for all derived ones, if a run checks the types of its results."""
        return None

    @contextmanager
    def inside(self) -> Iterator[int]:
        """Run the block inside of all traces that the function knows; it is told the level."""
        level = max(current().level, self.level)
        with entered(level=level):
            yield level


def named(call: Call, operands: Sequence[Any], key: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the operands of a derivative of a call by name: those of the call, and its tangents or cotangents."""
    params = call.params(operands)
    if not params.keys().isdisjoint(("tangents", "cotangents")):
        params = {_OPERANDS: list(operands)}
    return params | {key: list(values)}


def unnamed(call: Call, params: dict[str, Any], key: str) -> tuple[list[Any], list[Any]]:
    """Return what `named` was given; *params* is emptied."""
    values = list(params.pop(key))
    operands = params.pop(_OPERANDS) if _OPERANDS in params else call.operands(params)
    params.clear()
    return list(operands), values


class Derived(Call):
    """A call that runs another one, whose operands are its first ones."""

    __slots__ = ("_call", "level", "name")

    rows = range(0)

    def __init__(self, call: Call) -> None:
        self._call = call
        self.name = call.name
        self.level = call.level

    def arrays(self) -> list[np.ndarray]:
        """See `Call.arrays`."""
        return self._call.arrays()

    def checked(self, operands: Sequence[Any]) -> tuple[Call, Sequence[Any]] | None:
        """See `Call.checked`."""
        return self._call.checked(operands)


@final
class Pushed(Derived):
    """
    A call in forward mode: its operands are those of the call, and after them for each its tangent or None.

    Args:
        call: The call. The tangents of all results that can have one follow its results.
    """

    __slots__ = ("kinds", "numbers")

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        tangents = [kind for kind in call.kinds if kind.dtype.kind in "fc"]
        self.kinds = [*call.kinds, *tangents]
        self.numbers = [*call.numbers, *[False] * len(tangents)]

    def run(self, operands: list[Any]) -> list[Any]:
        """See `Call.run`."""
        count = len(operands) // 2
        primals, tangents = operands[:count], operands[count:]
        operands.clear()
        with self._call.inside() as level:
            trace = TangentTrace(level + 1)
            with forward(trace):
                return parts(trace, self._call.run(joined(trace, primals, tangents)))

    def params(self, operands: Sequence[Any]) -> dict[str, Any]:
        """See `Call.params`."""
        count = len(operands) // 2
        return named(self._call, operands[:count], "tangents", operands[count:])

    def operands(self, params: dict[str, Any]) -> list[Any]:
        """See `Call.operands`."""
        primals, tangents = unnamed(self._call, params, "tangents")
        return primals + tangents


@final
class Pulled(Derived):
    """
    A call in reverse mode: its operands are those of the call, and after them for each result its cotangent or None.

    Args:
        call: The call.
        places: For each operand of the call its place among those whose cotangents are the results, or None.
        kinds: Types of the results.

    Memory:
        That of a recording of the call, while it runs.
    """

    __slots__ = ("_places", "kinds", "numbers")

    def __init__(self, call: Call, places: Sequence[int | None], kinds: Sequence[ArrayType]) -> None:
        super().__init__(call)
        self._places = tuple(places)
        self.name = f"{call.name}_vjp"
        self.kinds = list(kinds)
        self.numbers = [False] * len(self.kinds)

    def run(self, operands: list[Any]) -> list[Any]:
        """See `Call.run`."""
        count = len(operands) - len(self._call.kinds)
        primals, cotangents = operands[:count], operands[count:]
        operands.clear()
        held = hold(self._call, self._places, primals)[0]
        return held.pull(cotangents)

    def params(self, operands: Sequence[Any]) -> dict[str, Any]:
        """See `Call.params`."""
        count = len(operands) - len(self._call.kinds)
        return named(self._call, operands[:count], "cotangents", operands[count:])

    def operands(self, params: dict[str, Any]) -> list[Any]:
        """See `Call.operands`."""
        primals, cotangents = unnamed(self._call, params, "cotangents")
        return primals + cotangents


@final
class Batched(Derived):
    """
    A call for all members of a batch: of its results all but Python integers have the members on their first axis.

    Args:
        call: The call of one member.
        mapped: Which operands have the members on their first axis.
        size: Number of members.

    Attributes:
        of_members: Which results have the members on their first axis.
    """

    __slots__ = ("_mapped", "_size", "kinds", "numbers", "of_members")

    def __init__(self, call: Call, mapped: Sequence[bool], size: int) -> None:
        super().__init__(call)
        self._mapped = tuple(mapped)
        self._size = size
        pairs = list(zip(call.kinds, call.numbers, strict=True))
        self.of_members = [not number or kind.dtype.kind in "fc" for kind, number in pairs]
        self.kinds = [
            ArrayType((size, *kind.shape), kind.dtype) if wanted else kind
            for kind, wanted in zip(call.kinds, self.of_members, strict=True)
        ]
        self.numbers = [not wanted for wanted in self.of_members]

    def run(self, operands: list[Any]) -> list[Any]:
        """See `Call.run`."""
        with self._call.inside():
            trace = BatchTrace(0, self._size)
            pairs = zip(operands, self._mapped, strict=True)
            given = [trace.members(x) if is_mapped else x for x, is_mapped in pairs]
            operands.clear()
            trace.closed = True  # but in the block
            with trace.above():
                found = self._call.run(given)
                pairs = [trace.split(value) for value in found]
        results = zip(pairs, self.of_members, strict=True)
        found = [full(*pair, self._size) if wanted else pair[0] for pair, wanted in results]
        return [np.array(value) if isinstance(value, np.ndarray) else value for value in found]

    def params(self, operands: Sequence[Any]) -> dict[str, Any]:
        """See `Call.params`."""
        return self._call.params(operands)

    def operands(self, params: dict[str, Any]) -> list[Any]:
        """See `Call.operands`."""
        return self._call.operands(params)


@final
class Held:
    """
    What a call holds for its reverse sweep.

    Args:
        recording: The call on a tape.
        nodes: Of its results.
        trace: The forward mode that its values are of; None where they have no tangents.

    Memory:
        What the tape saved, until it is pulled back, or dropped.
    """

    __slots__ = ("_nodes", "_recording", "_trace")

    def __init__(self, recording: Recording, nodes: list[Node | None], trace: TangentTrace | None) -> None:
        self._recording: Recording | None = recording
        self._nodes = nodes
        self._trace = trace

    def pull(self, cotangents: Sequence[Any], tangents: Sequence[Any] = (), *, retain: bool = False) -> list[Any]:
        """
        Run the reverse sweep.

        Args:
            cotangents: For each result its cotangent, or None.
            tangents: For each of them its tangent, or None; empty if no derivative is taken along.
            retain: Whether there is another sweep to come.

        Returns:
            The cotangents of the operands that are active; their tangents follow, if any derivative is taken along.

        Raises:
            ReleasedValueError: It was pulled back before.
        """
        recording, nodes, trace = self._take(retain)
        with forward(trace):
            pairs = zip(nodes, map(_numpy, joined(trace, cotangents, tangents)), strict=True)
            seeds = [(node, g, False) for node, g in pairs if node is not None and g is not None]
            del nodes, pairs, cotangents
            try:
                (gradients,) = recording.gradients(seeds, retain=retain)
            finally:
                if not retain:
                    recording.account.close()
            return parts(trace, gradients)

    def _take(self, retain: bool) -> tuple[Recording, list[Node | None], TangentTrace | None]:
        """Return the recording, the nodes of its results, and the forward mode; let them go if not retained."""
        recording, nodes = self._recording, self._nodes
        if recording is None:
            raise ReleasedValueError("The time loop was swept before, and what its sweep needs is gone.")
        if not retain:
            self._recording, self._nodes = None, []
        return recording, nodes, self._trace


def hold(
    call: Call, places: Sequence[int | None], operands: list[Any], tangents: Sequence[Any] = ()
) -> tuple[Held, list[Any]]:
    """
    Run a call, and keep what its reverse sweep needs.

    Args:
        call: The call.
        places: For each operand its place among those whose cotangents are wanted, or None.
        operands: Its operands; the list is emptied.
        tangents: For each of them its tangent, or None; empty if no derivative is taken along.

    Returns:
        (what the reverse sweep needs, the results); the tangents of the results follow, if there are any.

    Memory:
        What a tape saves of the call, until it is pulled back or dropped.
    """
    given = list(operands)
    operands.clear()

    def run(active: list[Any]) -> list[Any]:
        pairs = zip(places, given, strict=True)
        return call.run([x if place is None else active[place] for place, x in pairs])

    with call.inside() as level:
        trace = TangentTrace(level + 1) if tangents else None
        with forward(trace), account(None) as acct:
            given[:] = joined(trace, given, tangents)
            # Of an operand that is there several times the last is as good as the first.
            wanted = {place: x for place, x in zip(places, given, strict=True) if place is not None}
            recording = Recording(run, ([wanted[place] for place in range(len(wanted))],), {}, (0,), acct)
            del wanted
            given.clear()
            roots = recording.roots()
            acct.keep_open()
            return Held(recording, [node for node, _ in roots], trace), parts(trace, [value for _, value in roots])


def apart(results: list[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return results as a program takes them: in C order, and none in the memory of an operand or another result."""
    taken = [operand for operand in operands if type(operand) is np.ndarray]
    for number, result in enumerate(results):
        if type(result) is np.ndarray:
            if not result.flags.c_contiguous or any(np.may_share_memory(result, other) for other in taken):
                results[number] = np.array(result, order="C")
            taken.append(results[number])
    return tuple(results)


@contextmanager
def forward(trace: TangentTrace | None) -> Iterator[None]:
    """Run the block in forward mode, also after the first time; as it is where there is none."""
    if trace is None:
        yield
        return
    level = max(current().level, trace.level)
    with entered(level=level, tangent=trace, traces=(*current().traces, trace)):
        trace.closed = False
        try:
            yield
        finally:
            trace.closed = True


def joined(trace: TangentTrace | None, values: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return values joined with their tangents."""
    if trace is None or not tangents:
        return list(values)
    pairs = zip(values, tangents, strict=True)
    return [x if t is None else TracedArray(trace, _numpy(t), _numpy(x)) for x, t in pairs]


def _numpy(value: Any) -> Any:
    """Return a Python number, as programs have them, as NumPy's: to loops a tangent that is a float is none."""
    return np.asarray(value)[()] if type(value) in (float, complex) else value


def parts(trace: TangentTrace | None, values: Sequence[Any]) -> list[Any]:
    """Return values, and after them the tangents of those that can have one."""
    if trace is None:
        return list(values)
    pairs = [split(trace, value) for value in values]
    tangents = [zeros_like(value) if tangent is None else tangent for value, tangent in pairs if is_array(value)]
    return [*[value for value, _ in pairs], *tangents]
