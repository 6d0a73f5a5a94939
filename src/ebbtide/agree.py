"""The one place where the processes of a run come to the same decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar
from zlib import crc32

from ebbtide.arrays.context import current
from ebbtide.arrays.location import user_line
from ebbtide.errors import ScheduleError

T = TypeVar("T")


def agree(value: T) -> T:
    """
    Return the value on which all processes of the run decide; in one process the given one.

    What a process measures (seconds, free bytes) or meets (a full disk, a lost slot) differs from process to process.
    A decision made from it must not: processes that follow different schedules wait for each other forever. So every
    such value passes through here before anything is decided from it, at the same place of the program in all
    processes, also in those that have nothing to report. Values that all processes compute alike need not.

    Args:
        value: What this process measured or met: a number or a boolean, or a tuple of such, and stated so that more is
            worse (bytes taken and not bytes free, "failed" and not "worked"). Then the largest over all processes is
            the one that each of them can live with.

    Returns:
        The agreed value, of the type of the given one.

    Memory:
        Nothing.

    Example:
        >>> agree(0.25), agree((2048, False))
        (0.25, (2048, False))
    """
    ranks = current().ranks
    return value if ranks is None else ranks.agree(value)


def find_spread(values: Sequence[float]) -> list[float]:
    """
    Return for each of some numbers how far apart are the largest and the least that a process of the run gives for it.

    Example:
        >>> find_spread([2.0, 3.5])
        [0.0, 0.0]
    """
    most = agree((*values, *[-value for value in values]))
    return [largest + negated for largest, negated in zip(most[: len(values)], most[len(values) :], strict=True)]


def check_alike(owner: str, facts: dict[str, str]) -> None:
    """
    Raise on all processes of the run unless each of them calls something in the same way.

    Args:
        owner: What is called.
        facts: Names of what has to be alike, and what this process gives for each.

    Raises:
        ScheduleError: They differ; says in what, and what this process gives.

    Example:
        >>> check_alike("time loop", {"the number of steps": "12"})
    """
    ranks = current().ranks
    if ranks is None:
        return
    ranks.watch.loops += 1
    pairs = zip(facts.items(), find_spread([crc32(text.encode()) for text in facts.values()]), strict=True)
    if differing := [f"{name} is {text} here" for (name, text), spread in pairs if spread]:
        raise ScheduleError(
            f"The ranks do not call the {owner} at {user_line()} alike: {', '.join(differing)}, and something else on "
            "another rank, so that they would wait for each other. Call the same with the same arguments on all ranks."
        )


def is_alone() -> bool:
    """
    Return whether this process may go another way than the one that was agreed on.

    Alone it does without what it lost, and gives up what it has no room for. With others it cannot: they would have to
    hear of it before each action, and that costs each action a message to all of them. So the run ends there, with an
    error, and is resumed.

    Example:
        >>> is_alone()
        True
    """
    return current().ranks is None


def own_communicator() -> Any:
    """Return the communicator of this process alone, by which its files are named; None where there is one process."""
    ranks = current().ranks
    return None if ranks is None else ranks.own
