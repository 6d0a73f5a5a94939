"""Of how many arrays a value consists that has a tangent beside it, or one part for each member of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.abstract import AbstractTrace, abstract_array
from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import BatchTrace
from ebbtide.arrays.context import current
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.tangent import TangentTrace


@final
@dataclass(frozen=True, slots=True)
class Form:
    """
    What a value consists of that a trace around the tape has made of arrays.

    Args:
        trace: Forward mode, or a batch.
        value: Type or form of the value; None of a batch, of whose members there is one array.
        beside: Type or form of the tangent, or of the array of all members.
    """

    trace: Any
    value: Any
    beside: Any

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that it consists of."""
        return (0 if self.value is None else self.value.nbytes) + self.beside.nbytes


def form_of(value: Any) -> Any:
    """Return the type of an array or its form, a number itself, and None of what is neither."""
    if type(value) is TracedArray:
        trace, beside = value._trace, value._node
        if beside is None or not has_arrays(trace):
            return form_of(value._value)
        return Form(trace, None if type(trace) is BatchTrace else form_of(value._value), form_of(beside))
    if isinstance(value, (np.ndarray, ArrayType)):
        return ArrayType(value.shape, value.dtype)
    return value if isinstance(value, (np.generic, int, float, complex)) else None


def has_arrays(trace: Any) -> bool:
    """Return whether what a trace keeps with a value are arrays, which operations come with at once."""
    return type(trace) is BatchTrace or (type(trace) is TangentTrace and trace.linear is None)


def form_here(kind: ArrayType) -> Any:
    """Return what a value of a type may consist of that is computed here, within all traces that are around."""
    return _within(kind, [trace for trace in current().traces if has_arrays(trace)])


def like(kind: ArrayType, *forms: Any) -> Any:
    """Return what a value of a type consists of that is made of values of these forms, or types."""
    traces: dict[int, Any] = {}
    waiting = [form for form in forms if type(form) is Form]
    while waiting:
        form = waiting.pop()
        traces[id(form.trace)] = form.trace
        waiting += [part for part in (form.value, form.beside) if type(part) is Form]
    return _within(kind, sorted(traces.values(), key=lambda trace: trace.level))


def _within(kind: ArrayType, traces: list[Any]) -> Any:
    """Return the form of a type within traces, the innermost last."""
    if not traces:
        return kind
    *around, trace = traces
    if type(trace) is BatchTrace:
        return Form(trace, None, _within(ArrayType((trace.size, *kind.shape), kind.dtype), around))
    part = _within(kind, around)
    return Form(trace, part, part)


def ones_of(form: Any) -> Any:
    """Return ones of a type or a form: a tangent, or all members, are ones as well; also for a number."""
    if type(form) is not Form:
        kind = type_of(form)
        return np.ones(kind.shape, kind.dtype)
    if form.value is None:
        return form.trace.members(ones_of(form.beside))
    return TracedArray(form.trace, ones_of(form.beside), ones_of(form.value))


def abstract_form(form: Any, trace: AbstractTrace) -> Any:
    """Return a value without data of a type or a form; numbers as they are."""
    if type(form) is ArrayType:
        return abstract_array(form.shape, form.dtype, trace)
    if type(form) is not Form:
        return form
    beside = abstract_form(form.beside, trace)
    if form.value is None:
        return form.trace.members(beside)
    return TracedArray(form.trace, beside, abstract_form(form.value, trace))


def arrays_of_form(value: Any) -> list[TracedArray]:
    """Return the arrays without data that an abstract value consists of."""
    if type(value) is not TracedArray:
        return []
    if type(value._trace) is AbstractTrace:
        return [value]
    return arrays_of_form(value._value) + arrays_of_form(value._node)
