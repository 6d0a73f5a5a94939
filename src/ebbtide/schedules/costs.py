"""What steps and transfers cost: the numbers by which schedules are chosen and compared."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, final

import numpy as np

from ebbtide.errors import ScheduleError

# So that what all steps and transfers of a loop cost together is a finite number.
_MOST = 1e290


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """
    The costs of one step and of one transfer to or from disk, all in one unit: seconds, or forward steps.

    Args:
        forward: Running one step.
        reverse: Reversing one step.
        write: Writing one snapshot to disk.
        read: Reading one snapshot from disk.
        write_exposed: The part of `write` that is not hidden where transfers are made behind steps.
        read_exposed: That of `read`.
        prompt: Whether writes do not wait for the disk. Then entries of 4 MiB and more are written at once, and all of
            that is exposed, whatever it is for one snapshot.

    Raises:
        ScheduleError: A cost is negative, more than 1e290 or not a number, or `forward` is 0.

    Example:
        >>> Costs(write=2, read=2)
        Costs(forward=1.0, reverse=1.0, write=2, read=2)
    """

    forward: float = 1.0
    reverse: float = 1.0
    write: float = 0.0
    read: float = 0.0
    write_exposed: float = field(default=0.0, repr=False)
    read_exposed: float = field(default=0.0, repr=False)
    prompt: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        names = [one.name for one in fields(self)]
        for name in names:
            value: Any = getattr(self, name)
            if type(value) in (int, float, bool):
                continue
            if not isinstance(value, (int, float, np.integer, np.floating)):
                raise ScheduleError(f"The cost {name} cannot be {value!r}. Give a number.")
            # Not `item`: of an extended float that is one, which JSON does not know.
            plain: Any = int if isinstance(value, np.integer) else float
            object.__setattr__(self, name, plain(value))
        wrong = [name for name in names if not 0 <= getattr(self, name) <= _MOST]
        if wrong or self.forward == 0:
            raise ScheduleError(
                f"{self} are no costs: {', '.join(wrong) or 'forward'} is out of range. Give numbers from 0 to "
                f"{_MOST:g}, and more than 0 for forward."
            )

    def time(self, *, forward: int, reverse: int = 0, writes: int = 0, reads: int = 0) -> float:
        """
        Return the cost of steps and transfers one after the other.

        Args:
            forward: The number of forward steps.
            reverse: The number of steps reversed.
            writes: The number of snapshots written to disk.
            reads: The number of snapshots read from disk.

        Example:
            >>> Costs(write=2, read=2).time(forward=3797, writes=10, reads=15)
            3847.0
        """
        return self.forward * forward + self.reverse * reverse + self.write * writes + self.read * reads
