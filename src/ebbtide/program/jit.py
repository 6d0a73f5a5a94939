"""`jit`: a function traced at its first call, whose later calls run in memory that was planned then."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, final

import numpy as np
import optree

from ebbtide.arrays.containers import flatten, paths_of, unflatten
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget, check_budget
from ebbtide.program.program import Program
from ebbtide.program.reference import Executable
from ebbtide.program.surroundings import Surroundings, refuse_random
from ebbtide.program.tracing import name_argument, name_of, trace_leaves

_MANY = 8
_NUMBERS = frozenset({float, complex})


def jit(
    f: Callable[..., Any], static_argnums: int | Sequence[int] = (), budget: Budget | None = None
) -> Jitted:
    """
    Return *f* as a function that is traced once for each kind of arguments, and then runs in planned memory.

    Args:
        f: A function of arrays, numbers and containers of them; gradients and Hessian products of a function, too.
            Arrays and floating-point numbers are traced: Python code that asks for their values is an error. What else
            there is among the arguments (integers, texts, functions) is taken as it is: another value is another
            trace.
        static_argnums: Positional arguments, counted from the first, whose numbers are taken as they are, too.
        budget: The bytes of memory that a run may take above its arguments, results included. Values are computed again
            for it as far as needed, with the same bits; see `program(...).predict()`. Programs have no use for a disk.

    Returns:
        A function with the arguments and results of *f*, and its bits; products may differ in rounding. Where it is
        itself differentiated, *f* runs as it stands.

    Raises:
        TraceError: *f* asks for a value, writes into an argument, or is given or finds a random generator.
        TypeError: `static_argnums` are no numbers from 0 on, or an argument cannot be compared with those of before.
        ValueError: The budget has a disk.
        BudgetError: From the call: no way to run the function was found that takes so few bytes; with the least.

    Memory:
        One block for each kind of arguments, of the size that `program(...).arena_nbytes` says, from the first call
        on until the function is dropped or `clear` is called. No value inside of it is allocated again.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> slope = jit(grad(lambda x: np.sum(np.sin(x))))
        >>> slope(np.zeros(2))
        array([1., 1.])
    """
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError(
            f"static_argnums={static_argnums!r}: give the numbers of positional arguments, 0 for the first."
        )
    check_budget(budget)
    if budget is not None and budget.disk:
        raise ValueError(
            f"jit was given {budget}, and a program has no use for a disk: it computes values again instead. Write "
            f"Budget(memory={budget.memory})."
        )
    return Jitted(f, numbers, None if budget is None else budget.memory)


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """
    A trace: the program with what it was planned for.

    Args:
        executable: The program.
        surroundings: What the function reached when it was traced.
        structure: That of the results.
        single: Whether they are one array and no container.
        dynamic: Numbers of the leaves of the arguments that are inputs.
    """

    executable: Executable
    surroundings: Surroundings
    structure: Any
    single: bool
    dynamic: tuple[int, ...]


@final
class Jitted:
    """
    A function that `jit` returned.

    Args:
        f: The function.
        static: Numbers of the arguments that are taken as they are.
        limit: The bytes that a run may take; None for no budget.
    """

    # Whoever wraps a function copies what is in its `__dict__`: there is its name, and nothing of ours.
    __slots__ = ("__dict__", "__weakref__", "_f", "_known", "_limit", "_misses", "_static", "reasons")

    def __init__(self, f: Callable[..., Any], static: tuple[int, ...], limit: int | None = None) -> None:
        update_wrapper(self, f, updated=())
        self._f = f
        self._static = static
        self._limit = limit
        self._known: dict[Any, _Known] = {}
        self._misses = 0
        self.reasons: list[str] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: see `jit`."""
        leaves, key = self._signature(args, kwargs)
        if key is None:
            return self._f(*args, **kwargs)
        known = self._known.get(key)
        if known is None or known.surroundings.changed() is not None:
            known = self._traced(key, leaves, args, kwargs)
            if known is None:
                return self._f(*args, **kwargs)
        values = [leaves[number] for number in known.dynamic]
        del leaves, args, kwargs
        results = known.executable.run(values)
        return results[0] if known.single else unflatten(known.structure, results)

    def program(self, *args: Any, **kwargs: Any) -> Executable:
        """
        Return the planned program for arguments, without running it.

        Raises:
            TypeError: It cannot be planned, as an argument or an array around the function is traced itself.
        """
        leaves, key = self._signature(args, kwargs)
        known = None if key is None else self._known.get(key)
        if key is not None and (known is None or known.surroundings.changed() is not None):
            known = self._traced(key, leaves, args, kwargs)
        if known is None:
            raise TypeError("The program of a function is planned for plain arrays, and these are traced.")
        return known.executable

    def clear(self) -> None:
        """Forget all traces, and give back their memory."""
        self._known.clear()

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Return the leaves of arguments, and what tells their kind; None for the latter where a leaf is traced."""
        if not kwargs and not self._static and all(type(arg) is np.ndarray for arg in args):
            # To take a container apart takes 2 us.
            return list(args), tuple([(arg.shape, arg.dtype, arg.strides) for arg in args])
        leaves, structure = flatten((args, kwargs))
        kinds: list[Any] = []
        for leaf in leaves:
            kind = type(leaf)
            if kind is np.ndarray:
                kinds.append((leaf.shape, leaf.dtype, leaf.strides))
            elif kind is TracedArray:
                return leaves, None
            elif kind in _NUMBERS or isinstance(leaf, np.inexact):
                kinds.append(kind)
            elif kind.__hash__ is None:
                raise TypeError(
                    f"A jitted function was given a {kind.__name__}, and what is no array and no number is taken as it "
                    "is, so it has to be hashable. Give it in a container of arrays, or as text, a number or a tuple."
                )
            else:
                kinds.append((kind, leaf))
        for number in self._static:
            if number < len(args):
                # By their bytes, which tell -0.0 from 0.0.
                fixed = [leaf for leaf in flatten(args[number])[0] if _is_dynamic(leaf)]
                kinds.extend([(type(leaf), np.asarray(leaf).tobytes()) for leaf in fixed])
        return leaves, (structure, *kinds)

    def _traced(self, key: Any, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Known | None:
        """Trace the function and plan its memory; None if it meets traced arrays around it."""
        refuse_random(leaves, f"An argument of {name_of(self._f)}")
        surroundings = Surroundings(self._f)
        if surroundings.has_traced():
            return None
        self._note_miss(key)
        structure = flatten((args, kwargs))[1]
        fixed = self._fixed(args, kwargs)
        dynamic = tuple(number for number, leaf in enumerate(leaves) if number not in fixed and _is_dynamic(leaf))
        paths = paths_of(structure)
        names = [_name(self._f, paths[number]) for number in dynamic]
        found: list[Any] = []

        def on_leaves(arrays: list[Any]) -> list[Any]:
            full = list(leaves)
            for number, array in zip(dynamic, arrays, strict=True):
                full[number] = array
            given, named = unflatten(structure, full)
            outputs, after = flatten(self._f(*given, **named))
            found.append(after)
            return outputs

        values = [leaves[number] for number in dynamic]
        program, captured = trace_leaves(on_leaves, values, names, name_of(self._f))
        if captured:
            return None
        known = _Known(_planned(program, values, self._limit), surroundings, found[0], found[0].type is None, dynamic)
        self._known[key] = known
        return known

    def _fixed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """Return the numbers of the leaves of static arguments."""
        found: set[int] = set()
        first = 0
        for number, arg in enumerate(args):
            count = len(flatten(arg)[0])
            if number in self._static:
                found.update(range(first, first + count))
            first += count
        return found

    def _note_miss(self, key: Any) -> None:
        """Remember why the function is traced again, and warn where that happens too often."""
        old = self._known.get(key)
        if old is not None:
            self.reasons.append(f"the name {old.surroundings.changed()} stands for another object")
        elif self._known:
            self.reasons.append(_difference(next(reversed(self._known)), key))
        self._misses += 1
        if self._misses == _MANY:
            warnings.warn(
                f"{name_of(self._f)} was traced {_MANY} times, the last time at {user_line()}, because "
                f"{self.reasons[-1]}. Each trace takes milliseconds and memory of its own: call it with arrays of few "
                "shapes, and pass numbers that change as floats or arrays.",
                stacklevel=4,
            )


def _is_dynamic(leaf: Any) -> bool:
    return type(leaf) in _NUMBERS or isinstance(leaf, np.ndarray | np.inexact)


def _planned(program: Program, values: Sequence[Any], limit: int | None) -> Executable:
    return Executable(program, [np.asarray(value).strides for value in values], limit)


def _name(f: Callable[..., Any], path: str) -> str:
    """Return the name of a leaf of ((positional arguments), {keyword arguments})."""
    if path.startswith("[0]"):
        return name_argument(f, path.removeprefix("[0]"))
    return path.removeprefix("[1]['").replace("']", "", 1)


def _difference(before: tuple[Any, ...], after: tuple[Any, ...]) -> str:
    """Return in which way two kinds of arguments differ."""
    one, other = [[kind for kind in key if not _is_structure(kind)] for key in (before, after)]
    for number, (old, new) in enumerate(zip(one, other, strict=False)):
        if old != new:
            return f"leaf {number} of the arguments is {_kind(new)} where it was {_kind(old)}"
    return f"the arguments are another container, of {len(other)} leaves where there were {len(one)}"


def _is_structure(kind: Any) -> bool:
    return isinstance(kind, optree.PyTreeSpec)


def _kind(kind: Any) -> str:
    if isinstance(kind, tuple) and len(kind) == 3:
        shape, dtype, strides = kind
        return f"{dtype}{list(shape)} with strides {strides}"
    return f"{kind[1]!r}" if isinstance(kind, tuple) else f"{kind!r}"
