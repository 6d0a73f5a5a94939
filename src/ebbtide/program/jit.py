"""`jit`: a function traced at its first call, whose later calls run in memory that was planned then."""

from __future__ import annotations

import importlib.util
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, final

from ebbtide.arrays.containers import flatten, paths_of, unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.functions import check_function, numbers_of_arguments
from ebbtide.arrays.location import user_line
from ebbtide.arrays.primitive import innermost
from ebbtide.budget import Budget, check_budget
from ebbtide.errors import TraceError
from ebbtide.machine import Chain
from ebbtide.program.aliases import AliasedProgram
from ebbtide.program.arguments import (
    difference_of_kinds,
    form_of,
    form_of_results,
    is_dynamic,
    kind_of_arguments,
    leaves_of,
    name_of_leaf,
)
from ebbtide.program.blocks import Blocks
from ebbtide.program.costs import loops_of
from ebbtide.program.planned import PlannedProgram, strides_of
from ebbtide.program.reference import Executable
from ebbtide.program.surroundings import Surroundings, ignored_parameters, pattern_of, plain_value, refuse_random
from ebbtide.program.tracing import name_of, trace_leaves

_MANY = 8
_FORMS = 4  # of arguments, tried before their kind is looked up
_EXECUTORS = ("reference", "machine", "numba")


def jit(
    f: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    budget: Budget | None = None,
    executor: str = "reference",
    threads: int | None = None,
) -> Jitted:
    """
    Return *f* as a function that is traced once for each kind of arguments, and then runs in planned memory.

    Args:
        f: A function of arrays, numbers and containers of them; gradients and Hessian products of a function, too.
            Arrays and floating-point numbers are traced: Python code that asks for their values is an error. What else
            there is among the arguments (integers, texts, functions) is taken as it is: another value is another
            trace.
        static_argnums: Positional arguments, counted from the first, whose numbers are taken as they are, too.
        donate_argnums: Positional arguments whose arrays the caller gives up: results are made in their memory, where
            that can be, and *f* may write into them. A time step that is given its state needs no memory for the
            new one.
        budget: The bytes of memory that a run may take above its arguments, results included. Values are computed again
            for it as far as needed, with the same bits; see `program(...).predict()`. Programs have no use for a disk.
            It bounds a call, and the forward and reverse programs of a derivative of *f* together.
        executor: Who runs the programs: "reference" is NumPy source; "machine" runs stretches of equations by a
            compiled interpreter of NumPy's own loops, elementwise operations that follow each other in pieces that
            stay in the cache: the same bits, in less memory and time; and a `vmap` in *f*, member by member, in the
            memory of one. "numba" is the machine with long chains on large arrays compiled as loops by Numba, once in a
            process, which takes a second for each: several times as fast where these are simple operations. Where
            Ebbtide was installed without a C compiler, both warn and are the reference.
        threads: How many threads run the members of a `vmap` with the machine, with the same bits. By default as many
            as there are cores for this process, or one where that would not pay.

    Returns:
        A function with the arguments and results of *f*, and its bits; products may differ in rounding. Differentiated,
        it is a forward and a reverse program, or one of values and tangents, planned as well; what it adds to a
        cotangent is summed first, so that sums may differ in rounding, too.

    Raises:
        TraceError: *f* asks for a value, writes into an argument that is not donated, or is given or finds a random
            generator.
        TypeError: `static_argnums` or `donate_argnums` are no numbers from 0 on, an argument cannot be compared with
            those of before, or one that is donated cannot be written or shares memory with another one.
        ValueError: The budget has a disk, there is no such executor, or no number of threads from 1 on.
        ImportError: Numba was asked for, and is not installed.
        BudgetError: From the call: no way to run the function was found that takes so few bytes; with the least.

    Memory:
        One block for all kinds of arguments, of the largest size that `program(...).arena_nbytes` says, from the first
        call on until the function is dropped or `clear` is called, and one more for each call at the same time. No
        value inside of it is allocated again. Between a forward run and its pullback the saved values.

    Example:
        >>> import numpy as np
        >>> from ebbtide import grad
        >>> slope = jit(grad(lambda x: np.sum(np.sin(x))))
        >>> slope(np.zeros(2))
        array([1., 1.])
    """
    check_function(f, "jit")
    static = numbers_of_arguments("static_argnums", static_argnums, negative=False)
    donated = numbers_of_arguments("donate_argnums", donate_argnums, negative=False)
    check_budget(budget)
    if executor not in _EXECUTORS:
        raise ValueError(f"executor={executor!r}: there are {', '.join(map(repr, _EXECUTORS))}.")
    if executor == "numba" and importlib.util.find_spec("numba") is None:
        raise ImportError(
            "jit was given executor='numba', and Numba is not installed. Install it (`pip install ebbtide[numba]`), or "
            "write executor='machine', which has the same bits."
        )
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads={threads!r}: give a number from 1 on, or None for as many as pay.")
    if executor != "reference" and Chain is None:
        warnings.warn(
            "The machine was not built, as there was no C compiler when Ebbtide was installed; programs run as NumPy "
            "source. Install a C compiler and Ebbtide again, or write executor='reference'.",
            stacklevel=2,
        )
        executor = "reference"
    if budget is not None and budget.disk:
        raise ValueError(
            f"jit was given {budget}, and a program has no use for a disk: it computes values again instead. Write "
            f"Budget(memory={budget.memory})."
        )
    return Jitted(f, static, donated, None if budget is None else budget.memory, executor, threads)


@final
@dataclass(frozen=True, slots=True)
class _Known:
    """
    A trace: the program with what it was planned for.

    Args:
        planned: The program.
        executable: The program as it is run on plain arrays of this kind.
        derived: The program where it is differentiated; None if the function runs as it stands there.
        surroundings: What the function reached when it was traced.
        captured: Which of the traced arrays among them are inputs.
        pattern: Which of the traced arrays are the same.
        structure: That of the results.
        single: Whether they are one array and no container.
        dynamic: Numbers of the leaves of the arguments that are inputs.
        given: Form of the arguments, by which they are known in a tenth of the time; None if they have none.
        made: Form of the results, which puts them together in a tenth of the time; None where only `unflatten` can.
    """

    planned: PlannedProgram
    executable: Executable
    derived: AliasedProgram | None
    surroundings: Surroundings
    captured: tuple[int, ...]
    pattern: tuple[int, ...]
    structure: Any
    single: bool
    dynamic: tuple[int, ...]
    given: Any
    made: Any

    def fits(self) -> bool:
        """Return whether what the function reaches is as it was when it was traced."""
        if self.surroundings.changed() is not None:
            return False
        return not self.pattern or self.pattern == pattern_of(self.surroundings.traced())


@final
class Jitted:
    """
    A function that `jit` returned.

    Args:
        f: The function.
        static: Numbers of the arguments that are taken as they are.
        donated: Numbers of the arguments whose memory may be used.
        limit: The bytes that a run may take; None for no budget.
        executor: Who runs the programs.
        threads: How many threads run members; None for as many as pay.
    """

    # Whoever wraps a function copies what is in its `__dict__`: there is its name, and nothing of ours.
    __slots__ = (
        "__dict__", "__weakref__", "_blocks", "_donated", "_f", "_ignored", "_known", "_limit", "_misses", "_opaque",
        "_recent", "_static", "reasons",
    )  # fmt: skip

    def __init__(
        self, f: Callable[..., Any], static: tuple[int, ...], donated: tuple[int, ...], limit: int | None,
        executor: str, threads: int | None = None,
    ) -> None:  # fmt: skip
        update_wrapper(self, f, updated=())
        self._donated = donated
        self._f = f
        self._static = static
        self._limit = limit
        self._blocks = Blocks(chained=executor != "reference", compiled=executor == "numba", threads=threads)
        weakref.finalize(self, self._blocks.retire).atexit = False
        self._known: dict[Any, list[_Known]] = {}
        # Those of the last calls whose arguments have forms.
        self._recent: list[_Known] = []
        # Kinds of arguments for which the function finds traced arrays in places that are not looked at.
        self._opaque: set[Any] = set()
        self._ignored, self._misses = ignored_parameters(f), 0
        self.reasons: list[str] = []

    @property
    def made_from(self) -> tuple[Any, ...]:
        """The function, and what `jit` was told: the executor last."""
        return self._f, self._static, self._donated, self._limit, self._blocks.executor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: see `jit`."""
        known, values = self._look_up(args, kwargs)
        if known is None:
            return self._as_it_stands(args, kwargs)
        if innermost(tuple(values)) is None:
            if known.planned.donated:
                known.planned.check_donated(values)
            del args, kwargs
            results = known.executable.run(values)
        elif known.derived is not None:
            if not known.surroundings.is_watched:
                known.surroundings.watch(None)
            self._bind()
            results = known.derived.apply(values)
        else:
            return self._as_it_stands(args, kwargs)
        if known.single:
            return results[0]
        return unflatten(known.structure, results) if known.made is None else known.made.container(results)

    def _bind(self) -> bool:
        """Hand the budget on to a function that is traced around this one; return whether there is one."""
        trace = current().follower
        if trace is not None and self._limit is not None:
            trace.bound(Budget(memory=self._limit))
        return trace is not None

    def _as_it_stands(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function itself, where what it meets cannot be planned for."""
        if not self._bind() and self._limit is not None:
            raise TraceError(
                f"{name_of(self._f)} was given a budget by jit and is called on traced arrays at {user_line()}, where "
                "it runs as it stands, as it has a time loop or a solver, or meets arrays that cannot be told: what it "
                "takes is not known beforehand. Put jit(..., budget=) around the derivative, or give the budget to the "
                "derivative or to the loop."
            )
        return self._f(*args, **kwargs)

    def program(self, *args: Any, **kwargs: Any) -> Executable:
        """
        Return the planned program for arguments, without running it.

        Raises:
            TypeError: It cannot be planned for what the arguments, or arrays around the function, are.
        """
        known, _ = self._look_up(args, kwargs)
        if known is None:
            raise TypeError("The program of a function is planned for plain arrays, and these are traced.")
        return known.executable

    def reversed(self, *args: Any, argnums: int | Sequence[int] = 0) -> tuple[Executable, Executable]:
        """
        Return the forward and the reverse program of the function, without running them.

        Args:
            *args: Arguments, as for a call.
            argnums: Which of them are differentiated.

        Returns:
            (from the arguments to the results and the saved values, from these and the cotangents of the results to
            the cotangents of the arguments).

        Raises:
            TypeError: They cannot be planned: nothing depends on these arguments, a rule asks for values, or the
                function runs as it stands where it is differentiated.
        """
        known, values = self._look_up(args, {})
        wanted = leaves_of(args, numbers_of_arguments("argnums", argnums, negative=False))
        if known is not None and known.derived is not None:
            active = tuple([place for place, number in enumerate(known.dynamic) if number in wanted])
            found = known.derived.core.reversed_for(active, values)
            if found is not None:
                return found.executables_of(found.first)
        raise TypeError(f"There is no reverse program of {name_of(self._f)} for argnums={argnums!r}.")

    def clear(self) -> None:
        """Forget all traces, and give back their memory."""
        self._known.clear()
        self._recent.clear()
        self._opaque.clear()
        self._blocks.drop()

    def _look_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Known | None, list[Any]]:
        """Return the trace for arguments and its inputs; None where what they meet cannot be planned for."""
        args = self._looked_at(args)
        known, leaves = (None, []) if kwargs or not self._recent else self._recognized(args)
        if known is None:
            leaves, key = kind_of_arguments(args, kwargs, self._static)
            known = None if key is None else self._find(key, leaves, args, kwargs)
            if known is None:
                return None, []
            if known.given is not None and not any(known is one for one in self._recent):
                self._recent = [known, *self._recent][:_FORMS]
        values = [leaves[number] for number in known.dynamic]
        if known.captured:
            traced = known.surroundings.traced()
            values += [traced[number] for number in known.captured]
        return known, values

    def _recognized(self, args: tuple[Any, ...]) -> tuple[_Known | None, list[Any]]:
        """Return the trace for arguments whose form is remembered, and their leaves."""
        for known in self._recent:
            leaves = known.given.leaves(args)
            if leaves is not None and known.fits():
                return known, leaves
        return None, []

    def _looked_at(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with zeros for the integers that the function ignores, such as the number of a time step."""
        if not self._ignored:
            return args
        return tuple([0 if n in self._ignored and type(arg) is int else arg for n, arg in enumerate(args)])

    def _find(self, key: Any, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Known | None:
        """Return the trace for arguments; None if what they meet cannot be planned for."""
        if key in self._opaque:
            return None
        for known in self._known.get(key, ()):
            if known.fits():
                return known
        return self._traced(key, leaves, args, kwargs)

    def _traced(self, key: Any, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Known | None:
        """Trace the function and plan its memory; None if it meets what cannot be planned for."""
        refuse_random(leaves, f"An argument of {name_of(self._f)}")
        surroundings = Surroundings(self._f)
        around = surroundings.traced()
        if any(plain_value(array) is None for array in around):
            return None
        structure = flatten((args, kwargs))[1]
        fixed = leaves_of(args, self._static)
        dynamic = tuple([number for number, leaf in enumerate(leaves) if number not in fixed and is_dynamic(leaf)])
        paths = paths_of(structure)
        names = [name_of_leaf(self._f, paths[number]) for number in dynamic]
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
        given = leaves_of(args, self._donated)
        donated = tuple([place for place, number in enumerate(dynamic) if number in given])
        traced = trace_leaves(on_leaves, values, names, name_of(self._f), donated, by_members=self._blocks.chained)
        numbers = {id(array): number for number, array in reversed(list(enumerate(around)))}
        if any(id(array) not in numbers for array in traced.captured):
            self._opaque.add(key)
            self._recent.clear()
            return None
        self._note_miss(key)
        captured = tuple([numbers[id(array)] for array in traced.captured])
        limits = [limit for limit in (self._limit, traced.limit) if limit is not None]
        strides = strides_of([*values, *traced.captured])
        surroundings.watch(traced.program)
        planned = PlannedProgram(traced.owned(strides), self._blocks, donated, min(limits, default=None))
        executable = planned.planned(strides, donated)
        # What a loop holds is known when it runs: it is differentiated where it keeps to the budget of who asks.
        derived = None if loops_of(traced.program) else AliasedProgram(planned, strides)
        known = _Known(
            planned, executable, derived, surroundings, captured, pattern_of(around),
            found[0], found[0].type is None, dynamic,
            None if kwargs or self._static else form_of(args, leaves), form_of_results(found[0]),
        )  # fmt: skip
        # One for plain arrays around the function, one for arrays that are differentiated.
        self._known[key], dropped = [known, *(old := self._known.get(key, []))][:2], old[1:]
        self._recent = [one for one in self._recent if not any(one is other for other in dropped)]
        return known

    def _note_miss(self, key: Any) -> None:
        """Remember why the function is traced again, and warn where that happens too often."""
        old = self._known.get(key)
        if old:
            self.reasons.append(old[0].surroundings.reason())
        elif self._known:
            self.reasons.append(difference_of_kinds(next(reversed(self._known)), key))
        self._misses += 1
        if self._misses == _MANY:
            warnings.warn(
                f"{name_of(self._f)} was traced {_MANY} times, the last time at {user_line()}, because "
                f"{self.reasons[-1]}. Each trace takes milliseconds and memory of its own: call it with arrays of few "
                "shapes, and pass what changes as floats or arrays.",
                stacklevel=5,
            )
