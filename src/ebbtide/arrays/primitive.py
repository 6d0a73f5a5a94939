"""
Primitives: operations with derivative rules, and what a rule is made of.

A primitive says for each operand how its cotangent follows from that of the result (a `Pull`), and which
values that needs: operands, the output, or small things kept for the purpose (masks). For each set of
active operands the needs are worked out once into a `Signature`: what to save, which saved values each
pull takes, and after which pull each of them is released.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.context import current_or_none
from ebbtide.arrays.misuse import no_operand, refuse_class, refuse_objects
from ebbtide.arrays.spaces import SPACES
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import RuleMissingError

# Who owns what a rule returns. FRESH: a new array, ours to add into. PASSED: the cotangent itself, a view
# of it, or a new array; the sweep looks which. BORROWED: memory of somebody else; never written.
FRESH, PASSED, BORROWED = "fresh", "passed", "borrowed"
# Of the code of a function with *args or **kwargs.
_MORE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


@final
@dataclass(frozen=True, slots=True)
class Pull:
    """
    How the cotangent of one operand follows from the cotangent of the result.

    Args:
        rule: `rule(g, type, params, *saved)` returns the cotangent of an operand of this type.
        needs: Names of the saved values: operands, `out`, or kept values.
        result: FRESH, PASSED or BORROWED.
        derivative: For elementwise operations `derivative(*saved)`, by which the cotangent is multiplied;
            such pulls can be done in blocks and in place.
        scaled: Whether it is `derivative(g, *saved)` instead, which returns the product.
        accumulate: `accumulate(target, g, params, *saved)` adds the cotangent into an owned array and
            returns True, or returns False where it cannot.
        accumulates: `accumulates(type, out, *saved)` returns, judging by the types of operand, result and saved values,
            whether it can; None for always.
        temporaries: How many arrays of the size of the larger of cotangent and operand the rule takes for a moment.
        trusted: Whether the rule is elementwise and always returns the type of the operand, so that nobody need look.
        last: Whether to do this pull after the others, because it may use up the cotangent.
        consume: `consume(g, params)` makes the result in the memory of the cotangent, where the sweep owns that and
            this is its last use.
        along: `along(type, params)` returns the axes along which elements of the operand have to do with each other;
            cotangent and saved values have these, whole or of one element, and are broadcast along others. Such pulls
            are done in blocks of rows.
    """

    rule: Callable[..., Any]
    needs: tuple[str, ...] = ()
    result: str = FRESH
    derivative: Callable[..., Any] | None = None
    scaled: bool = False
    accumulate: Callable[..., bool] | None = None
    accumulates: Callable[..., bool] | None = None
    last: bool = False
    consume: Callable[..., Any] | None = None
    temporaries: int = 0
    trusted: bool = False
    along: Callable[[ArrayType, Any], tuple[int, ...]] | None = None


@final
class Signature:
    """
    What a primitive saves and does for one set of active operands.

    It holds nothing of the primitive that would lead back to it: one that is made in a function goes at its last use.

    Args:
        primitive: The primitive.
        active: Numbers of the active operands.

    Attributes:
        name: That of the primitive, as are `function`, `infer` and `aliases`.
        along: The axes along which elements have to do with each other in kept values, as `Pull.along` returns them;
            None where these are elementwise. All axes, if nobody says which.

    Memory:
        A few tuples; cached by the primitive.
    """

    __slots__ = (
        "active", "aliases", "along", "function", "infer", "keeps", "local", "name", "pulls", "saves", "simple",
        "turned",
    )  # fmt: skip

    def __init__(self, primitive: Primitive, active: tuple[int, ...]) -> None:
        self.name, self.function, self.infer = primitive.name, primitive.function, primitive.infer
        self.aliases = primitive.aliases
        rules = [(k, primitive.pull(k)) for k in active]
        rules = sorted(((k, rule) for k, rule in rules if rule is not None), key=lambda pair: pair[1].last)
        self.active = tuple([k for k, _ in rules])
        needed = list(dict.fromkeys(name for _, rule in rules for name in rule.needs))
        kept = [name for name in needed if name in primitive.keep]
        self.keeps = tuple([
            (primitive.keep[name], tuple([primitive.position(n) for n in needs_of(primitive.keep[name])]))
            for name in kept
        ])
        order = [name for name in needed if name not in primitive.keep] + kept
        # Saved values by position: number of the operand, or -1 for the output; kept values follow.
        self.saves = tuple([primitive.position(name) for name in order if name not in primitive.keep])
        uses = [tuple([order.index(name) for name in rule.needs]) for _, rule in rules]
        pairs = [(rule, used) for (_, rule), used in zip(rules, uses, strict=True)]
        self.pulls = _with_releases(pairs)
        # The same the other way round, of two that may be; see `ordered`.
        free = len(pairs) == 2 and not any(rule.last for rule, _ in pairs)
        self.turned = _with_releases(pairs[::-1]) if free else None
        # What the hot paths ask: whether all pulls are elementwise, and whether at most one value is saved.
        self.local = bool(rules) and all(rule.trusted for _, rule in rules)
        self.simple = len(self.saves) <= 1 and not self.keeps
        self.along = None if self.local or primitive.masks else (len(rules) == 1 and rules[0][1].along) or _all_axes

    def ordered(self, parents: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """
        Return the pulls in the order in which they are done, and the nodes of the operands in that order.

        The cotangent of a leaf stays until the end in any case. Pulled first, it lets go of what it alone takes before
        the other one is made: of `x @ w` that is x.
        """
        if self.turned is not None and parents[1].signature is None and parents[0].signature is not None:
            return self.turned, parents[::-1]
        return self.pulls, parents


def _all_axes(kind: ArrayType, params: Any) -> tuple[int, ...]:
    return (*range(kind.ndim),)


def _with_releases(pulls: list[tuple[Pull, tuple[int, ...]]]) -> tuple[tuple[Pull, Any, tuple[int, ...]], ...]:
    """Return pulls with the saved values that each takes, and those that no later one takes."""
    last = {s: n for n, (_, used) in enumerate(pulls) for s in used}
    return tuple([(pull, used, tuple([s for s in used if last[s] == n])) for n, (pull, used) in enumerate(pulls)])


@final
class Primitive:
    """
    An operation and how it is differentiated.

    Args:
        function: Computes it on plain arrays: `function(*operands, **params)`.
        name: What messages and tables call it.
        operands: Names of the operands, by which rules ask for them; None for any number, which are then
            named `operand0`, `operand1`, and so on.
        pull: `pull(k)` returns the Pull of operand k, or None where the derivative is zero.
        push: `push(tangents, values, out, params, kept)` returns the tangent of the output; tangents of
            inactive operands are None; `kept(name)` computes a kept value.
        infer: `infer(*types, **params)` returns the type of the output without data.
        keep: Functions of operands or `out` that make the small values that rules need (masks).
        masks: Whether these are made element by element, as those of elementwise operations are in any case.
        aliases: Whether the output may share memory with an operand.
        put: For views, `put(base, params, view)` returns the base with the view written back.
        batch: `batch(operands, mapped, params, size)` does the operation for *size* members at once: operand k has them
            on its first axis where `mapped[k]`, and else is the same for all; so has the result. None to do it for one
            member after the other.
        composite: Whether the function is made of operations that have rules: these stand in a program in its place,
            where they are planned, merged and chained with others.
        scratch: `scratch(params, *types)` returns the bytes that the function itself takes for a moment, beside its
            result; None for less than a block of 128 KiB.
        runs_user_code: Whether its rules may do what asks the context which traces there are, such as a time loop.
            They are run beneath the trace that calls them, as they get what its arrays are made of.

    Memory:
        Holds no array.
    """

    __slots__ = (
        "_cache", "aliases", "batch", "composite", "function", "infer", "keep", "masks", "name", "operands",
        "pull", "push", "put", "runs_user_code", "scratch",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        operands: tuple[str, ...] | None,
        pull: Callable[[int], Pull | None],
        push: Callable[..., Any] | None = None,
        infer: Callable[..., ArrayType] | None = None,
        keep: Mapping[str, Callable[..., Any]] | None = None,
        aliases: bool = False,
        put: Callable[..., Any] | None = None,
        batch: Callable[..., Any] | None = None,
        composite: bool = False,
        scratch: Callable[..., float] | None = None,
        runs_user_code: bool = False,
        masks: bool = False,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.operands = operands
        self.pull = pull
        self.push = push
        self.infer = infer
        self.keep = keep or {}
        self.aliases = aliases
        self.put = put
        self.batch = batch
        self.composite = composite
        self.scratch = scratch
        self.runs_user_code, self.masks = runs_user_code, masks
        self._cache: dict[int, Signature] = {}

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"

    def position(self, name: str) -> int:
        """Return the number of the operand called *name*, or -1 for the output."""
        if name == "out":
            return -1
        if self.operands is None:
            return int(name.removeprefix("operand"))
        return self.operands.index(name)

    def signature(self, active: int, count: int) -> Signature:
        """
        Return the signature for a set of active operands.

        Args:
            active: Bit k is set if operand k is active.
            count: Number of operands.
        """
        found = self._cache.get(active)
        if found is None:
            found = Signature(self, tuple([k for k in range(count) if active >> k & 1]))
            if count <= 4:  # of many operands there are too many subsets to keep
                self._cache[active] = found
        return found

    def bind(self, operands: tuple[Any, ...], params: dict[str, Any] | None = None) -> Any:
        """
        Do the operation in the innermost trace that an operand belongs to.

        Args:
            operands: Traced or plain arrays, or scalars.
            params: What the operation needs beside its operands; not differentiated.

        Returns:
            A traced array, or what `function` returns if no operand is traced.
        """
        trace = innermost(operands)
        if trace is None:
            return self.function(*operands, **params) if params else self.function(*operands)
        return trace.process(self, operands, params)

    def __call__(self, *operands: Any) -> Any:
        """Do the operation on operands without parameters."""
        return self.bind(operands)


def innermost(operands: tuple[Any, ...]) -> Any:
    """
    Return the trace that has to process these operands; None if all are plain.

    A region (a time step, a checkpointed function) claims the operations on arrays of the tapes around it,
    so that these tapes do not grow with the number of steps.
    """
    trace = None
    for operand in operands:
        if type(operand) is TracedArray:
            theirs = operand._trace
            if trace is None or (theirs is not trace and theirs.level > trace.level):
                trace = theirs
    if trace is not None:
        context = current_or_none()
        if context is not None:
            capture = context.capture
            if capture is not None and capture is not trace and capture.covers(trace):
                return _around_tangents(capture) if getattr(trace, "is_linear", False) else capture
    return trace


def _around_tangents(capture: Any) -> Any:
    """Return the region that takes operations on tangents: those that are inside of it know nothing of these."""
    region = capture
    while region is not None and not getattr(region, "is_linear", False):
        region = getattr(region, "around", None)
    return capture if region is None else region


def inside(region: Any, value: Any) -> Any:
    """Return a value as a region has it, which may claim arrays of its trace; as it is where there is no region."""
    if region is None or type(value) is not TracedArray or not region.covers(value._trace):
        return value
    return region.lift(value)


def first_met(region: Any, array: TracedArray) -> TracedArray:
    """Return an array from outside of a region as that met it first, where it runs again; any other as it is now."""
    find = getattr(region, "first_met", None)
    return array.frozen() if find is None else find(array)


def made_outside(value: Any, level: int) -> Any:
    """
    Return a value of a trace of this level, without the constants of traces inside of it.

    A region makes them of what it lifts, also where that is done for a trace that it is inside of.
    """
    while type(value) is TracedArray and value._trace.level > level and value._node is None:
        value = value._value
    return value


def constant_like(operand: TracedArray, value: Any) -> Any:
    """Return *value* as an array that can take traced values, in the trace that *operand* has here."""
    return innermost((operand,)).constant(value)


def needs_of(rule: Any, skip: int = 0) -> tuple[str, ...]:
    """Return the names of the values that a derivative expression takes, read off its parameters."""
    if type(rule) is FunctionType and not vars(rule):
        code = rule.__code__
        if not (code.co_flags & _MORE or code.co_kwonlyargcount):
            return code.co_varnames[skip : code.co_argcount]  # a twentieth of the time that a signature takes
    return tuple(inspect.signature(rule).parameters)[skip:] if callable(rule) else ()


def plain(operand: Any) -> Any:
    """Return an operand that is not traced in a form with a shape and a dtype or as a Python scalar."""
    if isinstance(operand, (np.ndarray, np.generic, TracedArray, bool, int, float, complex, ArrayType)):
        refuse_class(type(operand))
        refuse_objects(operand, "An operand")
        return operand
    known = type(operand) in SPACES
    speaks = known or hasattr(operand, "__array_ufunc__") or hasattr(operand, "__array_function__")
    made = None if speaks else np.asarray(operand)
    if made is not None and not made.dtype.hasobject:
        return made
    raise no_operand(operand, known=known)


def matched(value: Any, kind: ArrayType) -> Any:
    """
    Return a derivative value in the dtype of the value that it belongs to.

    A real operand of a complex operation has the real part as its cotangent; all else is a cast.
    """
    if value.dtype == kind.dtype:
        return value
    if value.dtype.kind == "c" and kind.dtype.kind != "c":
        value = np.real(value)
    return value if value.dtype == kind.dtype else value.astype(kind.dtype)


def unbroadcast(value: Any, kind: ArrayType) -> Any:
    """Return *value* summed over the axes along which an operand of type *kind* was broadcast."""
    shape = value.shape
    if shape == kind.shape:
        return value if value.dtype is kind.dtype else matched(value, kind)
    extra = len(shape) - len(kind.shape)
    ones = [extra + k for k, n in enumerate(kind.shape) if n == 1 and shape[extra + k] != 1]
    axes = (*range(extra), *ones)
    return matched(np.reshape(np.sum(value, axis=axes, keepdims=True), kind.shape), kind)


def broadcast_type(function: Callable[..., Any], *kinds: ArrayType) -> ArrayType:
    """Return the type of an elementwise operation: shapes broadcast, the dtype as the ufunc has it."""
    with np.errstate(all="ignore"):
        dtype = np.asarray(function(*[np.ones((), k.dtype) for k in kinds])).dtype
    return ArrayType(np.broadcast_shapes(*[k.shape for k in kinds]), dtype)


def missing(name: str, mode: str) -> RuleMissingError:
    """Return the error for a primitive without a rule in one mode."""
    return RuleMissingError(
        f"The operation {name} has no {mode} rule. Give ebbtide.primitive({name}, {mode}=...) one for each "
        "differentiable parameter."
    )


def promoted(tangents: list[Any], out: Any) -> Any:
    """Return the sum of the tangent contributions in the type of the output; None without any."""
    total = None
    for tangent in tangents:
        total = tangent if total is None else total + tangent
    if total is None:
        return None
    kind = type_of(out)
    if total.shape != kind.shape:
        total = np.broadcast_to(total, kind.shape)
    return matched(total, kind)
