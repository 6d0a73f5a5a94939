"""What a call knows of the calls around it: one immutable record in a `ContextVar`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any, NamedTuple, final

import optree

from ebbtide.arrays.array_type import read_only
from ebbtide.budget import Budget
from ebbtide.ledger import Ledger


class Context(NamedTuple):
    """
    The state of the innermost call of this thread.

    A tuple: to change one takes 1.4 us and a frozen dataclass 4.5, and each time step changes one.

    Args:
        ledger: The account of the outermost call.
        level: Depth of nested traces; an inner trace has the larger one.
        tape: The innermost tape that records, None where nothing is recorded.
        tangent: The innermost forward mode that runs inside of the tape, or without one.
        traces: The traces of all calls around, the innermost last.
        capture: The region (a time step, a checkpointed function) that claims operations on arrays
            of the tapes around it, None outside.
        follower: The trace of a program, whose `node` says where the innermost sweep is; None where none is traced.
        budget: What the innermost call may still hold, None for no bound.
        again: Which run of a checkpointed function this is: a new object for each one in a reverse sweep, else None.
        resume: Where the loops of the call keep their journals; None where they keep none.
        ranks: The processes that run it together; None where there is one.
        derived: Whether forward mode is done by what runs here, which holds more than the function alone.
    """

    ledger: Ledger
    level: int = 0
    tape: Any = None
    tangent: Any = None
    traces: tuple[Any, ...] = ()
    capture: Any = None
    follower: Any = None
    budget: Budget | None = None
    again: object | None = None
    resume: Any = None
    ranks: Any = None
    derived: bool = False


# The only implicit state of the library (DESIGN, invariant 9): reset in `finally` by `entered`.
_CONTEXT: ContextVar[Context | None] = ContextVar("ebbtide", default=None)
current_or_none = _CONTEXT.get


def current() -> Context:
    """Return the context of the innermost call; an empty one outside all calls."""
    return _CONTEXT.get() or Context(Ledger())


def advice_in_thread() -> str:
    """Return what to do for messages about arrays from outside of a region, in a thread that knows of no region."""
    if current_or_none() is not None or current_thread() is main_thread():
        return ""
    return (
        " This is a thread, which does not know the time step or checkpointed function that it may work for: have it "
        "run contextvars.copy_context().run(work, ...), or take such arrays as arguments."
    )


def meet_plain(array: Any) -> None:
    """Tell the region that runs of a plain array from outside that is no operand in it, as an index or a mask."""
    context = current_or_none()
    constancy = None if context is None else getattr(context.capture, "constancy", None)
    if constancy is not None:
        constancy.meet(array)


def value_here(array: Any) -> Any:
    """
    Return the value of a traced array from outside of a region that runs on values, in which it is a plain one.

    It must not be written. None elsewhere, and where it is a traced array of a call around.
    """
    context = current_or_none()
    region: Any = None if context is None else context.capture
    if not getattr(region, "is_plain", False) or not region.covers(array._trace):
        return None
    value = region.lift(array)
    return None if hasattr(value, "_trace") else read_only(value)


def on_values(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """
    Call a function of NumPy's with values in the place of traced arrays; see `value_here`.

    A region that runs on values calls the function itself: it may write such a value into a plain array, which takes
    traced ones where the region is recorded.

    Returns:
        What the function returns; NotImplemented where a traced array has no value, or would be written, or where there
        is none but that of `like=`, which NumPy takes away.
    """
    context = current_or_none()
    if context is None or not getattr(context.capture, "is_plain", False):
        return NotImplemented
    # Without the names: of a tree with a dict optree leaves strings to the interpreter, up to 29 KB.
    given: Any = args, [*kwargs.values()]
    leaves, structure = optree.tree_flatten(given)
    found = [value_here(leaf) if hasattr(leaf, "_trace") else leaf for leaf in leaves]
    if any(value is None for value in found) or all(value is leaf for value, leaf in zip(found, leaves, strict=True)):
        return NotImplemented
    values: Any = optree.tree_unflatten(structure, found)
    try:
        return function(*values[0], **{name: values[1][n] for n, name in enumerate(kwargs)})
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        return NotImplemented  # the rule of the function says what is wrong


def value_trace(context: Context) -> Any:
    """
    Return the innermost trace that values inside of the present tape or region may belong to; None if all are plain.

    An array that is written in place by a step has to be able to take values of this trace.
    """
    for trace in reversed(context.traces):
        if trace is not context.tape and (context.capture is None or not context.capture.covers(trace)):
            return trace
    return None


@final
class Entered:
    """
    The block that `entered` runs.

    Args:
        changes: The fields that are changed.
    """

    __slots__ = ("_changes", "_token")

    def __init__(self, changes: dict[str, Any]) -> None:
        self._changes = changes
        self._token: Token[Context | None]

    def __enter__(self) -> Context:
        changes = self._changes
        fields = [changes.get(name, value) for name, value in zip(Context._fields, current(), strict=True)]
        # `_replace` makes a tuple of unknown length first, and would leave 2,000 of them on the free list of CPython.
        context = Context._make(tuple(fields))
        self._token = _CONTEXT.set(context)
        return context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CONTEXT.reset(self._token)


def entered(**changes: Any) -> Entered:
    """Run the block in the current context with some fields changed."""
    return Entered(changes)


def outside(**changes: Any) -> AbstractContextManager[Any]:
    """Run the block, in which functions are called on plain arrays, outside of all traces; some fields are changed."""
    if current_or_none() is None and not changes:
        return nullcontext()
    return entered(tape=None, tangent=None, traces=(), follower=None, **changes)


@contextmanager
def beneath(trace: Any, **changes: Any) -> Iterator[None]:
    """
    Run the block, which works on what the arrays of a trace are made of, outside of it and of all that is inside of it.

    The region stays, as it claims these arrays too.

    Args:
        trace: The trace.
        **changes: Fields of the context that are changed beside.
    """
    context = current()
    traces = tuple([other for other in context.traces if other.level < trace.level])
    linear = getattr(trace, "linear", None)
    if linear is not None:
        traces = (*traces, linear)  # where the tangents are
    tape = context.tape
    if tape is not None:
        tapes = [other for other in (*traces, tape) if other.level < trace.level and hasattr(other, "is_linear")]
        tape = max(tapes, key=_level, default=None)
        if tape is not None and (tape.is_linear or _runs_region(context, tape)):
            tape = None
    least = 0 if tape is None else tape.level
    modes = [other for other in traces if getattr(other, "is_tangent", False) and other.level > least]
    with entered(tape=tape, tangent=modes[-1] if modes else None, traces=traces, **changes):
        yield


def _level(trace: Any) -> int:
    return trace.level


def _runs_region(context: Context, tape: Any) -> bool:
    """Return whether what runs here is a part of a region of a tape, which is all that the tape is to know of it."""
    return tape is not context.tape and context.capture is not None and context.capture.covers(tape)


@contextmanager
def above(trace: Any, **changes: Any) -> Iterator[None]:
    """
    Run the block with a trace inside of all that are there by now, also after the end of the function it is of.

    Args:
        trace: The trace, whose `level` and `closed` are as they were afterwards.
        **changes: Fields of the context that are changed beside.
    """
    context = current()
    before = trace.level, trace.closed
    trace.level, trace.closed = context.level + 1, False
    try:
        with entered(level=trace.level, traces=(*context.traces, trace), **changes):
            yield
    finally:
        trace.level, trace.closed = before
