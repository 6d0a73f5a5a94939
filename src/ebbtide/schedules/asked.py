"""What schedules are asked about loops: numbers of steps, sizes and costs that they can answer for."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ebbtide.errors import ScheduleError
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position
from ebbtide.schedules.records import plain_integer
from ebbtide.schedules.snapshots import TIERS


def steps_of(steps: int) -> int:
    """
    Return the number of steps of a loop as Python's own integer.

    Raises:
        ScheduleError: It is no whole number, or negative.

    Example:
        >>> import numpy as np
        >>> steps_of(np.int64(7))
        7
    """
    plain = plain_integer(steps, "The number of steps of a loop")
    if plain < 0:
        raise ScheduleError(f"The number of steps of a loop cannot be {plain}. Give a whole number of at least 0.")
    return plain


def steps_of_time(steps: int, costs: Costs) -> int:
    """
    Return the number of steps of a loop whose time is asked for.

    Raises:
        ScheduleError: It is no number of steps, or the costs are none.
    """
    check_costs(costs, "a loop")
    return steps_of(steps)


def steps_and_sizes(steps: int, tier: str, restart: Any, saved: Any) -> tuple[int, Any, Any]:
    """
    Return the number of steps of a loop whose peak in a tier is asked for, and the sizes, as Python's own numbers.

    Raises:
        ScheduleError: It is no number of steps, there is no such tier, or a size is negative, infinite or no number.
    """
    if tier not in TIERS:
        raise ScheduleError(f"There is no tier {tier!r}. Give one of {TIERS}.")
    return steps_of(steps), _size_of(restart, "a restart state"), _size_of(saved, "what a step saves")


def _size_of(size: Any, what: str) -> Any:
    is_number = isinstance(size, (int, float, np.integer, np.floating)) and not isinstance(size, bool)
    if not is_number or not 0 <= size < inf:
        raise ScheduleError(f"The size of {what} cannot be {size!r}. Give a number of at least 0.")
    if not isinstance(size, np.generic):
        return size
    plain: Any = int if isinstance(size, np.integer) else float
    return plain(size)


def check_costs(costs: object, whose: str) -> None:
    """Raise a `ScheduleError` for costs that are none."""
    if not isinstance(costs, Costs):
        raise ScheduleError(f"The costs of {whose} cannot be {costs!r}. Give Costs.")


def check_position(position: object) -> None:
    """Raise a `ScheduleError` for a position that is none."""
    if not isinstance(position, Position):
        raise ScheduleError(f"{position!r} is no position of a loop. Give a Position, as Position(steps=10).")
