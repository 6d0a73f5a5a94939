"""Operations that users define, with their own rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of, read_only, type_of, with_shape
from ebbtide.arrays.context import current_or_none, outside
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import BORROWED, Primitive, Pull, innermost, missing, needs_of, promoted
from ebbtide.arrays.spaces import SPACES, VectorKind, advice
from ebbtide.arrays.vectors import is_vector, lowered, operand, vector_of
from ebbtide.arrays.whole import Whole, done_alone
from ebbtide.errors import CotangentError, TraceError

Rule = Callable[..., Any]


def primitive(
    fun: Callable[..., Any],
    vjp: Sequence[Rule | None] | Rule | None = None,
    jvp: Sequence[Rule | None] | Rule | None = None,
    output: str = "out",
    batch: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """
    Return *fun* as one operation with rules of its own.

    Args:
        fun: Computes the operation on plain arrays, and vectors of registered types, and returns one of them.
        vjp: For each parameter of *fun* the rule of its cotangent, or None where it has no derivative. The first
            parameter of a rule is the cotangent of the result; the others are names of parameters of *fun* or
            *output*, and are what the rule saves. A rule returns the shape and dtype of its parameter, for a
            vector a vector of its form.
        jvp: For each parameter of *fun* the rule of the tangent of the result, which has its shape and dtype; the
            first parameter of the rule is the tangent of that parameter, the others as in *vjp*.
        output: What rules call the result; choose another name for a *fun* with a parameter `out`.
        batch: What `vmap` does for all members at once: `batch(mapped, *args)` returns an array with the results of the
            members on its first axis; argument k has them on its first axis where `mapped[k]`, else it is the same for
            all. *vjp* and *jvp* are then functions of NumPy, done for all members at once, too. None to call *fun* and
            its rules for one member after the other.

    Returns:
        A function with the parameters of *fun* that records this operation when a derivative is taken.

    Raises:
        TypeError: There is not one rule for each parameter, or one is no function, or asks for a value that there is
            not.

    Memory:
        A recorded call keeps exactly the values that the rules of its active operands name. A vector that *fun*
        returns is copied, and so is what a rule returns, but for what it was given: solvers return the same one
        each time.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> cube = primitive(lambda x: x**3, vjp=(lambda g, x: g * 3 * x**2,))
        >>> grad(cube)(2.0)
        np.float64(12.0)
    """
    check_function(fun, "primitive")
    if batch is not None:
        check_function(batch, "batch=", "batch(mapped, *args)")
    signature = inspect.signature(fun)
    names = tuple(signature.parameters)
    name = getattr(fun, "__name__", "function")
    if output in names:
        raise TypeError(
            f"{name} has a parameter {output!r}, by which its rules would ask for its result. Give the result another "
            "name with output=, for example output='result'."
        )
    rules = None if vjp is None else _rules(vjp, names, name, "vjp")
    pushes = _rules(jvp, names, name, "jvp")
    for rule in pushes:
        _named(rule, names, output, name)
    run = _single(fun, name, signature)
    push = _push(None if jvp is None else pushes, names, output, name, batch is None)
    arrays, vectors = (
        _declare(run, rules, push, names, output, name, of_vectors, batch) for of_vectors in (False, True)
    )
    operation = _Operation(run, arrays, vectors)

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return operation.bind(tuple([bound.arguments[n] for n in names]))

    return call


@final
class _Operation:
    """
    An operation whose operands or result may be vectors.

    Args:
        run: Its function.
        arrays: The operation of arrays alone.
        vectors: The operation with vectors, on their packed arrays.
    """

    __slots__ = ("arrays", "run", "vectors")

    def __init__(self, run: Any, arrays: Primitive, vectors: Primitive) -> None:
        self.run = run
        self.arrays = arrays
        self.vectors = vectors

    def bind(self, operands: tuple[Any, ...]) -> Any:
        """Do the operation on arrays, numbers and vectors, traced or plain."""
        if not SPACES:
            return self.arrays.bind(operands)
        pairs = [operand(value) for value in operands]
        # Of a list: a tuple of a generator is cut to size, and the interpreter keeps those that it cut.
        bare = tuple([array for array, _ in pairs])
        if innermost(bare) is None:
            return self.run(*operands)
        kinds = Kinds(tuple([kind for _, kind in pairs]))
        if not any(kinds.operands):
            try:
                return self.arrays.bind(bare)
            except _MadeVector as made:
                # Nothing is recorded as yet, and the function need not run again.
                kinds.made = made.vector
        result = self.vectors.bind(bare, {"kinds": kinds})
        return result if kinds.result is None else vector_of(kinds.result, result)


@final
class _MadeVector(Exception):  # noqa: N818 - no error
    """A function of arrays returned a vector."""

    def __init__(self, vector: Any) -> None:
        super().__init__()
        self.vector = vector


@final
class Kinds:
    """
    What the operands and the result of one call of a user's operation are, beside their numbers.

    Args:
        operands: The kind of each vector among the operands; None for the others.
    """

    __slots__ = ("made", "operands", "result")

    def __init__(self, operands: tuple[VectorKind | None, ...]) -> None:
        self.operands = operands
        self.made: Any = None  # what the function has returned already, until it is taken
        self.result: VectorKind | None = None  # known when the function has run

    def whole(self, values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
        """
        Return values as users see them: operands by number, or the result as -1, where they are vectors.

        A vector may share the memory of its array, and that may be what is saved: it cannot be written.
        """
        kinds = [self.result if k < 0 else self.operands[k] for k in positions]
        return [v if kind is None else vector_of(kind, read_only(v)) for v, kind in zip(values, kinds, strict=True)]


def _declare(
    run: Any, rules: list[Rule | None] | None, push: Any, names: tuple[str, ...], output: str, name: str, vectors: bool,
    batch: Any,
) -> Primitive:  # fmt: skip
    """Return the primitive of a user's function, for calls with vectors or without."""
    alone = batch is None
    pulls = [None if r is None else _pull(r, k, names, output, name, vectors, alone) for k, r in enumerate(rules or ())]

    def pull(k: int) -> Pull | None:
        if rules is None:
            raise missing(name, "vjp")
        return pulls[k]

    def only_arrays(*args: Any) -> Any:
        result = run(*args)
        if is_vector(result):
            raise _MadeVector(result)
        return result

    def with_vectors(*args: Any, kinds: Kinds) -> Any:
        made, kinds.made = kinds.made, None
        return _copied(run(*kinds.whole(args, range(len(args)))) if made is None else made, args, kinds)

    return Primitive(
        with_vectors if vectors else only_arrays,
        name=name,
        operands=tuple([_internal(n, output) for n in names]),
        pull=pull,
        push=push,
        aliases=not vectors,  # nobody knows what a user's function returns, unless that is copied
        batch=_refuse_members(name) if vectors else None if batch is None else _of_members(batch, name),
        runs_user_code=True,
    )


def _refuse_members(name: str) -> Callable[..., Any]:
    def refuse(values: Any, mapped: Any, params: Any, size: int) -> Any:
        raise TraceError(
            f"{name}, called at {user_line()}, takes or gives vectors of registered types, which have no members for "
            "vmap. Call it in a loop, or write it for arrays."
        )

    return refuse


def _of_members(batch: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the batch rule of a user's function, with a check of what it returns."""

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        result = batch(mapped, *values)
        array = with_shape(result)
        if not array.shape or array.shape[0] != size:
            raise TraceError(
                f"The batch rule of {name} returned an array of shape {tuple(array.shape)} for {size} members. It "
                "returns their results on the first axis."
            )
        return array

    return of_members


def _apply(
    rule: Rule, k: int, kinds: Kinds, kind: ArrayType, positions: tuple[int, ...], who: str, t: Any, *saved: Any
) -> Any:
    """Return what the tangent of operand k adds to that of the result, an array of type *kind*."""
    term = rule(*kinds.whole((t,), (k,)), *kinds.whole(saved, positions))
    term = _numbers(term, kinds.result, who, "a tangent")
    found = _apart(term, (t, *saved)) if hasattr(term, "dtype") else np.asarray(term)
    if found.shape != kind.shape or found.dtype.kind not in ("fciub" if kind.dtype.kind == "c" else "fiub"):
        raise CotangentError(
            f"{who} returned {found.dtype}{list(found.shape)} as the tangent of a result of type {kind}. A tangent has "
            "the shape and dtype of the result: broadcast and cast in the rule."
        )
    return found


def _term(rule: Rule, tangent: Any, saved: list[Any], name: str, alone: bool) -> Any:
    """
    Return what a tangent adds to that of the result.

    Where the linear operations on tangents are recorded, the rule is one of them.
    """
    if getattr(innermost((tangent,)), "is_linear", False):
        return Whole(rule, name, alone).bind((tangent, *saved))
    return done_alone(rule, name, (tangent, *saved)) if alone else rule(tangent, *saved)


def _single(fun: Callable[..., Any], name: str, signature: inspect.Signature) -> Callable[..., Any]:
    """Return *fun* as a function of its parameters in order, with a check that it returns one array."""
    places = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in places or inspect.Parameter.VAR_KEYWORD in places:
        raise TypeError(f"{name}{signature} takes any number of arguments, and each needs a rule: name them.")
    pairs = zip(signature.parameters, places, strict=True)
    keywords = tuple([n for n, place in pairs if place is inspect.Parameter.KEYWORD_ONLY])
    count = len(places) - len(keywords)

    def checked(*args: Any) -> Any:
        with outside():
            result = fun(*args[:count], **dict(zip(keywords, args[count:], strict=True))) if keywords else fun(*args)
        if isinstance(result, (tuple, list, dict)):
            raise TypeError(f"{name} returned a {type(result).__name__}; a primitive returns one array.")
        if is_vector(result) or hasattr(result, "dtype"):
            return result
        array = np.asarray(result)
        if array.dtype.hasobject:
            found = type(result).__name__
            raise TypeError(f"{name} returned a {found}; a primitive returns one array or vector.{advice(result)}")
        return array[()]

    return checked


def _copied(result: Any, args: tuple[Any, ...], kinds: Kinds) -> Any:
    """Return a copy of what a function returned, packed: solvers return the same vector each time, or views of it."""
    array, kinds.result = lowered(result)
    array = np.asarray(array)
    context = current_or_none()
    pager = None if context is None or context.tape is None else context.tape.pager
    if pager is not None:
        vectors = [arg for arg, kind in zip(args, kinds.operands, strict=True) if kind is not None]
        pager.reserve(array.nbytes + sum(vector.nbytes for vector in vectors))
    return np.array(array) if array.ndim else array[()]


def _apart(result: Any, given: Sequence[Any]) -> Any:
    """Return what a rule returned for some arrays, in memory that its next call does not write: solvers have one."""
    if not isinstance(result, np.ndarray) or not result.flags.writeable:
        return result
    owner = owner_of(result)
    passed = any(owner_of(array) is owner for array in given if isinstance(array, np.ndarray))
    return result if passed else np.array(result)


def _rules(given: Any, names: tuple[str, ...], name: str, mode: str) -> list[Rule | None]:
    """Return one rule for each parameter."""
    rules: list[Rule | None] = list(given) if isinstance(given, (tuple, list)) else [given]
    if given is None:
        return [None] * len(names)
    for rule in rules:
        if rule is not None:
            check_function(rule, f"{mode}= of {name}", "for each parameter")
    if len(rules) != len(names):
        raise TypeError(
            f"{name} has {len(names)} parameters {names} and {len(rules)} {mode} rules. Give one for each, None for "
            "those without a derivative."
        )
    return rules


def _named(rule: Any, names: tuple[str, ...], output: str, name: str) -> tuple[str, ...]:
    """Return the names of the values that a rule saves."""
    needs = needs_of(rule, 1)
    for need in needs:
        if need not in names and need != output:
            raise TypeError(
                f"A rule of {name} asks for {need!r}, which is neither a parameter {names} nor the result "
                f"{output!r}. The first parameter of a rule is the cotangent, the others are values to save."
            )
    return tuple([_internal(need, output) for need in needs])


def _internal(name: str, output: str) -> str:
    """Return what a primitive calls a value: its result is `out`, so a parameter of that name needs another."""
    return "out" if name == output else "(out)" if name == "out" else name


def _pull(rule: Rule, k: int, names: tuple[str, ...], output: str, name: str, of_vectors: bool, alone: bool) -> Pull:
    needs = _named(rule, names, output, name)
    positions = _positions(rule, names)

    def of_arrays(*given: Any) -> Any:
        return _apart(rule(*given), given)

    def apply(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
        if params is None:
            return done_alone(of_arrays, name, (g, *saved)) if alone else of_arrays(g, *saved)
        kinds = params["kinds"]
        wanted = kinds.operands[k], f"The vjp rule of {name} for {names[k]!r}", "a cotangent"
        # No name for the vector that the rule returns: it dies before its numbers are copied.
        numbers = _numbers(rule(*kinds.whole((g,), (-1,)), *kinds.whole(saved, positions)), *wanted)
        return _apart(numbers, (g, *saved))

    # What it unpacks and packs: the cotangent, the saved vectors, and the result as a vector and as its array.
    return Pull(apply, needs, BORROWED, temporaries=3 + len(needs) if of_vectors else 0)


def _push(
    rules: list[Rule | None] | None, names: tuple[str, ...], output: str, name: str, alone: bool
) -> Callable[..., Any]:
    """Return the rule of tangents of a user's function."""

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        if rules is None:
            raise missing(name, "jvp")
        kinds = Kinds((None,) * len(names)) if params is None else params["kinds"]
        known = dict(zip(names, values, strict=True)) | {output: out}
        terms = []
        for k, (tangent, rule) in enumerate(zip(tangents, rules, strict=True)):
            if tangent is not None and rule is not None:
                who = f"The jvp rule of {name} for {names[k]!r}"
                apply = partial(_apply, rule, k, kinds, type_of(out), _positions(rule, names), who)
                terms.append(_term(apply, tangent, [known[n] for n in needs_of(rule, 1)], name, alone))
        return promoted(terms, out)

    return push


def _positions(rule: Rule, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of the operands that a rule asks for; -1 for the result."""
    return tuple([names.index(need) if need in names else -1 for need in needs_of(rule, 1)])


def _numbers(result: Any, kind: VectorKind | None, who: str, what: str) -> Any:
    """Return what a rule returned as an array, after a check that it is a vector where one is due."""
    array, found = lowered(result)
    if found == kind:
        return array
    given = found or f"a {type(result).__name__}"
    wanted = "an array or a number" if kind is None else f"a vector {kind!r}"
    raise CotangentError(f"{who} returned {given}, and {what} of {wanted} is one like it.{advice(result)}")
