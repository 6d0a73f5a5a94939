"""Calls of a program whose reverse sweep is an equation too: the first equation holds what the second one takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.context import current
from ebbtide.arrays.primitive import innermost
from ebbtide.arrays.traced import TracedArray
from ebbtide.program.calls import Call, Held, Pushed, apart, hold, joined, named, unnamed
from ebbtide.program.equation import OBJECT, Checking, Equation, Variable
from ebbtide.program.symbolic import SymbolicTrace
from ebbtide.tape.linear_region import split
from ebbtide.tape.tangent import TangentTrace


def is_symbolic(operands: Iterable[Any]) -> bool:
    """Return whether a function is traced here, and operands depend on its symbols, at whatever depth."""
    trace = current().follower
    return trace is not None and any(_reaches(trace, operand) for operand in operands)


def _reaches(trace: SymbolicTrace, operand: Any) -> bool:
    while type(operand) is TracedArray:
        theirs = operand.present()._trace
        if theirs is trace or trace.covers(theirs):
            # Of a symbol that is known the value stands there.
            return theirs is not trace or type(operand._node) is Variable
        if type(operand._node) is TracedArray and _reaches(trace, operand._node):
            return True
        operand = operand._value
    return False


def only_forward(symbols: SymbolicTrace, values: Iterable[Any]) -> tuple[bool, TangentTrace | None]:
    """Return whether values are symbols, with tangents of one forward mode at most, and that forward mode."""
    found: TangentTrace | None = None
    for value in values:
        if _is_symbol(symbols, value):
            continue
        trace = value._trace
        if type(trace) is not TangentTrace or trace.linear is not None or trace.closed or found not in (None, trace):
            return False, None
        if not _is_symbol(symbols, value._value) or not _is_symbol(symbols, value._node):
            return False, None
        found = trace
    return True, found


def _is_symbol(symbols: SymbolicTrace, value: Any) -> bool:
    """Return whether a value has no trace but that of the function that is traced, and those around it."""
    if type(value) is not TracedArray:
        return True
    # What a region is given it takes from what it runs in.
    return value._trace is symbols or (symbols.covers(value._trace) and innermost((value,)) is symbols)


def variables(call: Call) -> list[Variable]:
    """Return new variables for the results of a call."""
    return [Variable(kind, "part", is_number=n) for kind, n in zip(call.kinds, call.numbers, strict=True)]


def duals(trace: TangentTrace, call: Call, values: Sequence[Any], tangents: Iterable[Any]) -> list[Any]:
    """Return the results of a call, of which those that can have one have a tangent."""
    rest = iter(tangents)
    pairs = zip(values, call.kinds, strict=False)
    return [TracedArray(trace, next(rest), value) if kind.dtype.kind in "fc" else value for value, kind in pairs]


@final
class Running(Checking):
    """
    A call as the function of an equation.

    Args:
        call: The call.
    """

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self, **params: Any) -> tuple[Any, ...]:
        """Return the results."""
        operands = self.call.operands(params)
        params.clear()
        return apart(self.call.run(list(operands)), operands)

    def checked(self, params: dict[str, Any]) -> Any:
        """See `Checking.checked`."""
        return self.call.checked(self.call.operands(dict(params)))

    def alone(self, params: dict[str, Any]) -> tuple[Any, str, dict[str, Any]]:
        """See `Checking.alone`."""
        return self, self.call.name, params


@final
class Saving(Checking):
    """
    A call as the function of an equation that keeps what the reverse sweep needs.

    Args:
        call: The call.
        places: For each operand its place among those whose cotangents are wanted, or None.
        dual: Whether operands have tangents.
    """

    __slots__ = ("_places", "call", "dual")

    def __init__(self, call: Call, places: Sequence[int | None], *, dual: bool) -> None:
        self.call = call
        self.dual = dual
        self._places = tuple(places)

    @property
    def active(self) -> list[int]:
        """Numbers of the operands whose cotangents are wanted."""
        return [self._places.index(place) for place in range(len(set(self._places) - {None}))]

    def __call__(self, **params: Any) -> tuple[Any, ...]:
        """
        Return what the reverse sweep needs, and the results with their tangents.

        Memory:
            See `hold`.
        """
        operands, tangents = self._taken(params)
        params.clear()
        held, found = hold(self.call, self._places, list(operands), tangents)
        return held, *apart(found, operands + tangents)

    def checked(self, params: dict[str, Any]) -> Any:
        """See `Checking.checked`."""
        return self.call.checked(self._taken(dict(params))[0])

    def alone(self, params: dict[str, Any]) -> tuple[Any, str, dict[str, Any]]:
        """See `Checking.alone`: nothing is held."""
        return Running(self.call), self.call.name, self.call.params(self._taken(dict(params))[0])

    def _taken(self, params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return operands and tangents."""
        return unnamed(self.call, params, "tangents") if self.dual else (self.call.operands(params), [])

    def equation(self, symbols: SymbolicTrace, operands: list[Any], tangents: list[Any]) -> list[Any]:
        """Record it; return what is held, and the results with their tangents, as symbols."""
        call = self.call
        outputs = variables(Pushed(call) if self.dual else call)
        params = named(call, operands, "tangents", tangents) if self.dual else call.params(operands)
        return symbols.call(self, f"{call.name}_saving", params, [Variable(OBJECT, "part"), *outputs])


@final
class HeldSymbol:
    """
    What a call on a tape holds, in a function that is traced.

    Args:
        symbols: The trace of the function.
        trace: The forward mode that values and cotangents are of, or None.
        saving: The equation's function.
        values: The operands, which may have tangents.

    Attributes:
        results: Those of the call, with their tangents.
    """

    __slots__ = ("_held", "_keep", "_kinds", "_name", "_symbols", "_trace", "results")

    def __init__(
        self, symbols: SymbolicTrace, trace: TangentTrace | None, saving: Saving, values: Sequence[Any]
    ) -> None:
        call = saving.call
        pairs = [(value, None) if trace is None else split(trace, value) for value in values]
        primals = [value for value, _ in pairs]
        tangents = [] if trace is None else [tangent for _, tangent in pairs]
        self._held, *found = saving.equation(symbols, primals, tangents)
        # What the sweep uses by reference.
        self._keep = [x for x in (*call.takes(primals), *call.takes(tangents)) if x is not None]
        self._kinds = [type_of(primals[number]) for number in saving.active] * (1 if trace is None else 2)
        self._name = call.name
        self._symbols = symbols
        self._trace = trace
        self.results = found if trace is None else duals(trace, call, found, found[len(call.kinds) :])

    def takes(self, cotangents: list[Any]) -> bool:
        """Return whether cotangents have no derivatives but those that are held."""
        fits, trace = only_forward(self._symbols, cotangents)
        return fits and trace in (None, self._trace)

    def pull(self, cotangents: list[Any], retain: bool) -> list[Any]:
        """Record the reverse sweep."""
        trace = self._trace
        pairs = [(g, None) if trace is None else split(trace, g) for g in cotangents]
        values, tangents = [value for value, _ in pairs], [] if trace is None else [tangent for _, tangent in pairs]
        found = reverse_equation(
            self._symbols, self._name, self._held, self._kinds, values, tangents, self._keep, retain
        )
        count = len(found) // 2
        return found if trace is None else joined(trace, found[:count], found[count:])


def reverse_equation(
    symbols: SymbolicTrace,
    name: str,
    held: Any,
    kinds: Sequence[Any],
    cotangents: list[Any],
    tangents: list[Any],
    keep: Sequence[Any],
    retain: bool,
) -> list[Any]:
    """Record `pull_back` of a call of this name; return its results, of these types."""
    params: dict[str, Any] = {"held": held, "cotangents": cotangents}
    if tangents:
        params["tangents"] = tangents
    if keep:
        params["keep"] = list(keep)
    if retain:
        params["retain"] = True
    return symbols.call(pull_back, f"{name}_reverse", params, [Variable(kind, "part") for kind in kinds])


def lent_to(equation: Equation) -> list[Variable]:
    """Return the values that a reverse sweep uses by reference: in the memory in which the call has met them."""
    kept = equation.params.get("keep", ()) if equation.function is pull_back else ()
    return [variable for variable in kept if type(variable) is Variable]


def pull_back(
    *,
    held: Held,
    cotangents: Sequence[Any],
    tangents: Sequence[Any] = (),
    keep: Sequence[Any] = (),
    retain: bool = False,
) -> tuple[Any, ...]:
    """
    Run the reverse sweep of a call.

    Args:
        held: What `Saving` returned first.
        cotangents: For each result its cotangent, or None.
        tangents: For each of them its tangent, or None; empty if no derivative is taken along.
        keep: What the sweep uses by reference, so that the program keeps it until now.
        retain: Whether there is another sweep to come.

    Returns:
        The cotangents of the operands that are active; their tangents follow, if any derivative is taken along.
    """
    del keep
    return apart(held.pull(cotangents, tangents, retain=retain), [*cotangents, *tangents])
