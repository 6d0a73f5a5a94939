"""
Implicit functions: what solves a system of equations, as a function of what the equations are made from.

For F(x, p) = 0 the derivative of x along p is -A⁻¹ ∂F/∂p with A = ∂F/∂x: one linear solve in each mode, whatever the
solver did to find x. The derivative of that solve is another one, and so on to any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import by_members
from ebbtide.arrays.context import current, entered, outside
from ebbtide.arrays.primitive import Primitive, Pull, innermost, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.scipy.closure import detached, here
from ebbtide.tape.forms import form_of
from ebbtide.tape.joint import JointRule, record_joint
from ebbtide.tape.node import Node
from ebbtide.tape.record import Tape
from ebbtide.tape.saved import guarded, opened, saved_operand
from ebbtide.transforms.forward import jvp
from ebbtide.transforms.pullback import vjp

# A linear solve takes about so many vectors, if it is one by Krylov's method.
VECTORS = 40
# And so many the derivative of the equations, with so many of the size of the operands where these are larger.
_VECTORS_BESIDE, _OF_LARGER = 8, 4
# Where there is none, as of the right-hand side alone: the solution, and a copy of that side.
_VECTORS_OF_SOLUTION = 2
# A small solve, by elimination, takes no more than this: measured 186 KB at 64 unknowns.
_OVERHEAD = 208 << 10


class System(ABC):
    """Equations for an array x, made from operands: `residual(x, *operands)` is zero."""

    __slots__ = ()

    # Whether the residual is A x - b, with the first operand b, and A made from the others.
    is_linear = False
    # Whether `takes` says what SciPy takes, and no function of the user's is in it.
    is_known = False

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """The plain arrays that it keeps beside operands: places of the entries of a matrix, what functions reach."""
        return ()

    @property
    @abstractmethod
    def level(self) -> int:
        """That of the context that its functions were made in, whose traces they know."""

    @abstractmethod
    def fixed(self, operands: Sequence[Any]) -> AbstractContextManager[Callable[[Any], Any]]:
        """
        Give the residual as a function of x, of the shape of x, by operations that have derivatives.

        These are taken inside of the block too.
        """

    def residual(self, x: Any, *operands: Any) -> Any:
        """Return what is to be zero."""
        with self.fixed(operands) as residual:
            return residual(x)

    @abstractmethod
    def solve(self, start: Sequence[Any], operands: Sequence[Any]) -> Any:
        """
        Return x for plain arrays, in memory of its own.

        Args:
            start: What only the solver takes: where it begins.
            operands: The operands.
        """

    @abstractmethod
    def infer(self, start: Sequence[ArrayType], operands: Sequence[ArrayType]) -> ArrayType:
        """Return the type of x."""

    def takes(self, nbytes: int, operands: Sequence[Any], active: Sequence[int]) -> int:
        """
        Return the bytes that the cotangents of operands take at most, these included, beside that of x.

        Args:
            nbytes: Those of x.
            operands: The operands.
            active: Numbers of those whose cotangents are asked for.
        """
        return solve_nbytes(VECTORS, nbytes, operands, active)

    @property
    @abstractmethod
    def slope(self) -> LinearSystem:
        """
        The linear system A v = b with the derivative of the residual with respect to x.

        Its operands are b and the operands of this system without the first if this is linear; else b, x and all of
        them.
        """


class LinearSystem(System):
    """Linear equations: A x = b."""

    __slots__ = ()

    is_linear = True

    @abstractmethod
    def apply(self, x: Any, *operands: Any) -> Any:
        """Return A x, where A is made from all operands but b."""

    @property
    @abstractmethod
    def transposed(self) -> LinearSystem:
        """The system of the transposed matrix, of the same operands."""

    @property
    def slope(self) -> LinearSystem:
        """The system itself."""
        return self

    @contextmanager
    def fixed(self, operands: Sequence[Any]) -> Iterator[Callable[[Any], Any]]:
        """Give A x - b."""
        yield lambda x: self.apply(x, *operands[1:]) - operands[0]


def solve_nbytes(vectors: int, nbytes: int, operands: Sequence[Any], active: Sequence[int]) -> int:
    """
    Return the bytes of a linear solve, with what one derivative of the equations takes beside it; see `System.takes`.

    Args:
        vectors: Arrays of the size of x that the solver takes.
        nbytes: Bytes of x.
        operands: The operands.
        active: Numbers of those whose cotangents are asked for: where these are larger than x, as those of a matrix
            are, they are made of arrays as large.
    """
    larger = max(0, sum([type_of(operands[k]).nbytes for k in active]) - nbytes)
    return (vectors + _VECTORS_BESIDE) * nbytes + _OF_LARGER * larger + _OVERHEAD


def solution(system: System, operands: Sequence[Any], start: Sequence[Any] = ()) -> Any:
    """
    Return the solution of a system as a function of its operands.

    Args:
        system: The system.
        operands: Arrays, traced or plain; derivatives of any mode and order are taken with respect to them.
        start: What only the solver takes, and the solution does not depend on.

    Raises:
        SolutionError: In a derivative: the linear system with the slope of the equations has no solution.

    Memory:
        A record keeps the operands and the solution by reference, and nothing of what the solver did.

    Source:
        Griewank and Walther, Evaluating Derivatives (2008), chapter 15: implicit differentiation.
    """
    operands = tuple([here(operand) for operand in operands])
    start = tuple([detached(value) for value in start])
    trace = innermost(operands)
    if type(trace) is Tape and not trace.closed:
        return _on_tape(trace, system, operands, start)
    return _solve(len(start), len(operands), system.is_linear).bind((*start, *operands), {"system": system})


def _cotangents(system: System, g: Any, x: Any, operands: Sequence[Any], active: Sequence[int]) -> Sequence[Any]:
    """
    Return the cotangents of some operands.

    Args:
        system: The system.
        g: The cotangent of x.
        x: The solution; not looked at if the system is linear and only the right-hand side is active.
        operands: All operands; in the place of a right-hand side anything of its type.
        active: Numbers of those that are asked for.
    """
    adjoint = solution(system.slope.transposed, (g, *_point(system, x, operands)))
    if system.is_linear and tuple(active) == (0,):
        return [adjoint]

    def residual(*some: Any) -> Any:
        return system.residual(x, *_with(operands, active, some))

    with entered(level=max(current().level, system.level)):
        return vjp(residual, *[operands[k] for k in active])[1](np.negative(adjoint))


def _point(system: System, x: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the operands of the slope of a system beside the right-hand side."""
    return operands[1:] if system.is_linear else (x, *operands)


def _with(operands: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """Return operands with other values in some places."""
    given = dict(zip(places, values, strict=True))
    return [given.get(k, operand) for k, operand in enumerate(operands)]


def _solve(starts: int, count: int, is_linear: bool) -> Primitive:
    """Return the operation that runs the solver on so many values to start from and operands."""
    needs = tuple([f"operand{starts + k}" for k in range(is_linear, count)])

    def pull(number: int) -> Pull | None:
        active = number - starts

        def rule(g: Any, kind: ArrayType, params: Any, *saved: Any) -> Any:
            x, operands = (g, (g, *saved)) if is_linear and active == 0 else (saved[0], saved[1:])
            operands = (g, *operands) if is_linear and active else operands
            return matched(_cotangents(params["system"], g, x, operands, (active,))[0], kind)

        named = needs if is_linear and active == 0 else ("out", *needs)
        return Pull(rule, named, temporaries=VECTORS) if active >= 0 else None

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        system, operands = params["system"], values[starts:]
        moving = [k for k, tangent in enumerate(tangents[starts:]) if tangent is not None]
        if is_linear and moving == [0]:
            return promoted([solution(system, (tangents[starts], *operands[1:]))], out)

        def residual(*some: Any) -> Any:
            return system.residual(out, *_with(operands, moving, some))

        primals, along = [operands[k] for k in moving], [tangents[starts + k] for k in moving]
        with entered(level=max(current().level, system.level)):
            change = np.negative(jvp(residual, primals, along)[1])
        return promoted([solution(system.slope, (change, *_point(system, out, operands)))], out)

    def solve(*values: Any, system: System) -> Any:
        with outside():
            return system.solve(values[:starts], values[starts:])

    return Primitive(
        solve,
        name="solve",
        operands=None,
        pull=pull,
        push=push,
        infer=lambda *kinds, system: system.infer(kinds[:starts], kinds[starts:]),
        batch=lambda values, mapped, params, size: by_members(
            "solve",
            lambda xs, _: solution(params["system"], xs[starts:], xs[:starts]),
            values, mapped, params, size,
        ),
        runs_user_code=True,
    )  # fmt: skip


def _on_tape(tape: Tape, system: System, operands: Sequence[Any], start: Sequence[Any]) -> Any:
    """Record a solution with one rule for all operands, as they share a solve."""
    operands = [tape.adopt(operand) for operand in operands]
    inside = [type(operand) is TracedArray and operand._trace is tape for operand in operands]
    values = [operand._value if here else operand for operand, here in zip(operands, inside, strict=True)]
    x = solution(system, values, start)
    active = [k for k, is_inside in enumerate(inside) if is_inside and operands[k]._node is not None]
    if not active:
        return TracedArray(tape, None, x)
    parents = list(dict.fromkeys(operands[k]._node for k in active))
    saved = [_kept(operand, value) for operand, value in zip(operands, values, strict=True)][system.is_linear :]
    if active != [0] or not system.is_linear:
        saved = [x, *saved]
    places = [parents.index(operands[k]._node) for k in active]
    rule = _SolutionRule(system, active, places, _needs(system, x, values, active))
    return record_joint(tape, rule, tuple(parents), [x], saved, {"system": system})[0]


def _needs(system: System, x: Any, operands: Sequence[Any], active: Sequence[int]) -> int:
    """Return the bytes that the cotangents of operands take at most, these included, beside that of x."""
    if not any(type(operand) is TracedArray for operand in operands):
        return system.takes(type_of(x).nbytes, operands, active)
    nbytes, whole = type_of(x).nbytes, form_of(x).nbytes
    if system.is_known:
        return system.takes(whole, operands, active)
    # A solve with tangents, or for members, is several of them, one after the other.
    beside = _VECTORS_OF_SOLUTION if system.is_linear and list(active) == [0] else _VECTORS_BESIDE
    return System.takes(system, nbytes, operands, active) + beside * (whole - nbytes)


def _kept(operand: Any, value: Any) -> Any:
    """Return the value of an operand as it is saved: guarded if the user can reach it."""
    if type(operand) is TracedArray:
        return saved_operand(operand, value)
    return guarded(value) if isinstance(value, np.ndarray) else value


@final
class _SolutionRule(JointRule):
    """
    A solution on a tape; its operands, and it, are saved with its node.

    Args:
        system: The system.
        active: Numbers of the active operands.
        places: Numbers of their parents.
        needs: Bytes that their cotangents take at most.
    """

    __slots__ = ("_active", "_needs", "_places", "_system")

    def __init__(self, system: System, active: Sequence[int], places: Sequence[int], needs: int) -> None:
        self._system = system
        self._active = active
        self._places = places
        self._needs = needs

    @property
    def name(self) -> str:
        """What messages call the operation."""
        return "solve"

    @property
    def is_known(self) -> bool:
        """Whether it takes no more than it says."""
        return self._system.is_known

    def needs(self, owned: bool, given: int) -> int:
        """Return the bytes of a solve, and of what one derivative of the equations takes beside it."""
        del owned, given
        return self._needs

    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """Solve with the transposed slope, and pull the result through the residual."""
        saved: Any = node.saved
        if not retain:
            node.saved = None
        values = opened(saved, node)
        del saved
        ((g, _),) = cotangents
        cotangents.clear()
        system = self._system
        x = g if system.is_linear and self._active == [0] else values.pop(0)
        operands = [g, *values] if system.is_linear else values
        found = list(_cotangents(system, g, x, operands, self._active))
        del values, operands, x, g
        for place in self._places:
            yield place, found.pop(0), True
