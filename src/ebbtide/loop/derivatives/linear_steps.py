"""Steps of a linearized time loop whose derivatives are kept, and the form of the tangents that they give."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.location import user_line
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import Ledger
from ebbtide.loop.values.state import owned
from ebbtide.schedules import Mixed, Schedule, StoreAll
from ebbtide.tape.linear import LinearProgram


@final
class KeptStep:
    """
    The derivatives of one step.

    Args:
        program: Takes the tangents of the active leaves of the state, then static ones, to those of state and output.
        active: Which leaves of the state have tangents.
        statics: Addresses of the nodes of the static tangents.
        known: Addresses of the arrays that steps before it hold.

    Attributes:
        owners: Addresses of the arrays that it holds and no step before it does.
        nbytes: What these take, and its record.
    """

    __slots__ = ("active", "nbytes", "owners", "program", "statics")

    def __init__(self, program: LinearProgram, active: list[int], statics: list[int], known: Collection[int]) -> None:
        self.program = program
        self.active = active
        self.statics = statics
        new = {id(array): array.nbytes for array in program.arrays() if id(array) not in known}
        self.owners = frozenset(new)
        self.nbytes = sum(new.values()) + program.record_bytes

    def push(self, state: list[Any], given: dict[int, Any]) -> list[Any]:
        """Return the tangents of the new state and the output."""
        return self.program.push([state[k] for k in self.active] + [given[key] for key in self.statics])


@final
@dataclass(frozen=True, slots=True)
class RestartState:
    """
    A state of a loop from which steps can run again.

    Args:
        first: The step there.
        state: The leaves of the state before it.
        nbytes: What these take.
        read: Of the inputs of the steps before it, the sum of their checksums.
        emitted: Of their outputs.
    """

    first: int
    state: list[Any]
    nbytes: int
    read: int
    emitted: int


def limit_of(ledger: Ledger, budget: Budget | None, state: int) -> int | None:
    """
    Return the bytes that may be held in all while a loop is linearized; None for no bound.

    Args:
        ledger: The account.
        budget: The loop's own.
        state: The bytes of its state, from which steps run again.

    Raises:
        BudgetError: That alone passes the loop's own budget.
    """
    if budget is None:
        return ledger.limit
    if state > budget.memory:
        raise BudgetError(
            f"At {user_line()}: the budget of {budget} is too small: a time loop that is linearized keeps a state, "
            f"{state} bytes ({format_bytes(state)}), from which its steps run again. Give at least {state} bytes.",
            state,
        )
    return ledger.live + budget.memory if ledger.limit is None else min(ledger.limit, ledger.live + budget.memory)


def contiguous(tangent: Any) -> Any:
    """Return a tangent of the state as it enters a step, in the layout in which it does in forward mode."""
    return tangent if type(tangent) is np.ndarray and tangent.flags.c_contiguous else owned(tangent)


def whole(tangent: Any, kind: ArrayType) -> Any:
    """Return a tangent of a result; zeros for one that depends on nothing."""
    return np.zeros(kind.shape, kind.dtype)[()] if tangent is None else tangent


def stacked_rows(rows: Sequence[Any], kind: ArrayType) -> Any:
    """Return the tangents of an output of all steps."""
    return np.stack([np.zeros(kind.shape[1:], kind.dtype) if row is None else row for row in rows])


def most_kept(schedule: Schedule | None, steps: int) -> int:
    """Return of how many steps a schedule keeps saved values in memory when its forward sweep ends, at most."""
    if schedule is None or schedule == StoreAll():
        return steps
    if isinstance(schedule, Mixed):
        return (schedule.units - schedule.restart) // schedule.saved
    return 0
