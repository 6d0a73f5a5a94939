"""What a function would keep for its reverse sweep, before anybody asks for a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from ebbtide.arrays.functions import check_function
from ebbtide.budget import format_bytes
from ebbtide.entry import SavedEntry
from ebbtide.ledger import BUFFERS, SNAPSHOTS
from ebbtide.profiling.lines import lines_of
from ebbtide.profiling.loops import LoopReport
from ebbtide.profiling.report import profile
from ebbtide.transforms.products import chosen_of
from ebbtide.transforms.pullback import vjp
from ebbtide.transforms.reverse import argument_numbers

# A printed table fits on a screen.
_MOST_LINES = 40


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValues:
    """
    What is held between the forward run of a function and its reverse sweep.

    Args:
        entries: What each line of the program holds, the largest first: operation, place, reason, shape, dtype, number
            of arrays and their bytes. The reason is an operand by its number, the output, a mask, or, of an operation
            with several outputs, an argument of it.
        snapshots: Bytes of the restart states of time loops in memory, which are in no entry.
        buffers: Bytes of buffers of files, and of packed vectors.
        loops: The plan of each time loop, and what was measured of its forward run.
        measured_bytes: What was allocated after the run and not before it, by `tracemalloc`, without the value.

    Memory:
        One entry for each line that saves, and the plans; no array.
    """

    entries: tuple[SavedEntry, ...]
    snapshots: int
    buffers: int
    loops: tuple[LoopReport, ...]
    measured_bytes: int

    @property
    def nbytes(self) -> int:
        """The bytes of all of it, by the library's own count."""
        return sum(entry.bytes for entry in self.entries) + self.snapshots + self.buffers

    def __str__(self) -> str:
        measured = format_bytes(self.measured_bytes)
        lines = [f"{format_bytes(self.nbytes):>12}  saved for the reverse sweep; measured: {measured}"]
        if self.snapshots:
            lines.append(f"{format_bytes(self.snapshots):>12}  of that in snapshots of time loops")
        if self.buffers:
            lines.append(f"{format_bytes(self.buffers):>12}  of that in buffers")
        lines += [f"        loop  {loop.line}" for loop in self.loops]
        return "\n".join([*lines, "", *lines_of(list(self.entries), _MOST_LINES)])


def saved_values(
    f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] | None = None, **kwargs: Any
) -> SavedValues:
    """
    Run *f* forward as `vjp` does, and return what it saves: which line, which operation, why, and how many bytes.

    Args:
        f: A function of arrays and containers of arrays.
        *args: Its arguments. Their memory is the caller's: operations that save them hold no byte more, and are not
            listed.
        argnums: Which of them are differentiated; None for all.
        **kwargs: More arguments of *f*, not differentiated.

    Returns:
        What is held after the run. Printed it is a table.

    Raises:
        TypeError: An argument that is differentiated is no floating-point number.

    Memory:
        As `vjp`, until it returns; `tracemalloc` runs beside it.

    Example:
        >>> import numpy as np
        >>> found = saved_values(lambda x: np.sum(np.exp(np.sin(x))), np.ones(1000))
        >>> [(entry.operation, entry.reason, entry.bytes) for entry in found.entries]
        [('exp', 'output', 8000)]
    """
    check_function(f, "saved_values")
    numbers = argument_numbers(range(len(args)) if argnums is None else argnums, args)
    chosen, point = chosen_of(f, numbers, args, kwargs), [args[k] for k in numbers]
    with profile() as measured:
        value, pullback = vjp(chosen, *point)
        del value
        entries, kinds, nbytes = measured.now()
        pullback.free()
    return SavedValues(
        entries=tuple(entries),
        snapshots=kinds[SNAPSHOTS],
        buffers=kinds[BUFFERS],
        loops=tuple(measured.loops),
        measured_bytes=nbytes,
    )


def print_saved(
    f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] | None = None, **kwargs: Any
) -> None:
    """
    Run *f* forward and print what it saves for the reverse sweep, line by line; `saved_values` returns it as data.

    Args:
        f: A function of arrays and containers of arrays.
        *args: Its arguments.
        argnums: Which of them are differentiated; None for all.
        **kwargs: More arguments of *f*, not differentiated.

    Raises:
        TypeError: An argument that is differentiated is no floating-point number.

    Memory:
        As `saved_values`.

    Example:
        >>> import numpy as np
        >>> print_saved(lambda x: np.sum(np.sin(np.sin(x))), np.ones(1000))  # doctest: +ELLIPSIS
             7.8 KiB  saved for the reverse sweep; measured: ...
        <BLANKLINE>
               bytes    count  dtype      shape            operation    reason     place
             7.8 KiB        1  float64    1000             sin          operand 0  ...
    """
    check_function(f, "print_saved")
    print(saved_values(f, *args, argnums=argnums, **kwargs))  # noqa: T201 - what it is for
