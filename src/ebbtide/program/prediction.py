"""What a planned program will hold, known before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ebbtide.program.costs import loops_of, weighed
from ebbtide.program.ladder import Rung
from ebbtide.program.memory import Memory
from ebbtide.program.text import name_variables


@final
@dataclass(frozen=True, slots=True)
class Held:
    """
    A value that is held at the peak.

    Args:
        name: Its name in the text of the program.
        nbytes: Its bytes.
        line: File and line of the user's program that computes it.
    """

    name: str
    nbytes: int
    line: str


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """
    What a program will hold.

    Args:
        peak_bytes: The most bytes at the same time, inputs apart and results included.
        arena_bytes: Those of them that are one block, which stays for the next run.
        name: The value that is computed at the peak; empty if nothing is.
        held: The values that are held then, the largest first.
        again: How many equations are computed again, so that less is held.
        products: How many of these are products of matrices.
        extra_work: What they cost, as a part of the cost of the program without them.
        unknown: What holds more while the program runs, with the user's lines: time loops, by their own schedules.
    """

    peak_bytes: int
    arena_bytes: int
    name: str
    held: tuple[Held, ...]
    again: int = 0
    products: int = 0
    extra_work: float = 0.0
    unknown: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.peak_bytes:,} bytes at the peak, where {self.name or 'nothing'} is computed:"]
        lines += [f"  {value.nbytes:>14,}  {value.name:<24} {value.line}" for value in self.held]
        rest = self.peak_bytes - sum(value.nbytes for value in self.held)
        if rest:
            lines.append(f"  {rest:>14,}  of the block of {self.arena_bytes:,} bytes, not in use")
        lines += [f"  {'and what':>14}  {name:<24} {line} holds by its own schedule" for name, line in self.unknown]
        if self.again:
            lines.append(
                f"{self.again:,} equations are computed again, {self.products:,} of them products of matrices: "
                f"{self.extra_work:.0%} more work"
            )
        return "\n".join(lines)


def predict(rung: Rung, memory: Memory) -> Prediction:
    """Return what a program will hold that runs in this way and has this plan."""
    program, layout = rung.program, rung.layout
    if not program.equations:
        return Prediction(memory.nbytes, memory.nbytes, "", ())
    place = max(range(len(memory.held)), key=memory.held.__getitem__)
    names = name_variables(program)
    found: dict[int, Held] = {}
    for number, equation in enumerate(program.equations[: place + 1]):
        output = equation.output
        buffer = memory.buffers.get(output)
        if output in layout.bases or (memory.ends.get(output, -1) < place and number != place):
            continue
        # Of values in the same memory, the last one is there.
        key = id(output) if buffer is None else id(buffer)
        nbytes = output.nbytes if buffer is None else buffer.nbytes
        found[key] = Held(names[output], nbytes, equation.line)
    moment = weighed(program.equations[place], layout)[1]
    if moment:
        found[0] = Held("copies inside of NumPy", moment, program.equations[place].line)
    held = sorted(found.values(), key=lambda value: -value.nbytes)
    at = names[program.equations[place].output]
    unknown = tuple([(names[equation.output], equation.line) for equation in loops_of(program)])
    return Prediction(
        memory.held[place], memory.nbytes, at, tuple(held), rung.again, rung.products,
        rung.extra_work, unknown,
    )  # fmt: skip
