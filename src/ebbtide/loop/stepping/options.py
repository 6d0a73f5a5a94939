"""How the user wants a time loop to be run, beside what it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from ebbtide.budget import Budget
from ebbtide.schedules import Costs, Schedule
from ebbtide.storage import Storage


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `timeloop` by keyword, but for the inputs; see there."""

    until: Callable[[Any], Any] | None
    max_steps: int | None
    outputs: bool
    schedule: Schedule | None
    costs: Costs | None
    storage: Storage | None
    budget: Budget | None
    resume: str | Path | None
    resume_every: float | None
    verify: bool
    collect_every: int | None
    progress: bool | None

    def as_arguments(self) -> dict[str, Any]:
        """Return them by name, for another loop."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def facts(self, length: int, allowed: Budget | None, resume: object) -> dict[str, str]:
        """
        Return what has to be alike on all ranks, as texts.

        Args:
            length: The number of steps, or its upper bound.
            allowed: The budget that the loop is in.
            resume: Where it keeps a journal; None where it keeps none.
        """
        disk = " with disk" if allowed is not None and allowed.disk else ""
        every = "so many seconds" if isinstance(self.resume_every, float) else f"{self.resume_every}"
        return {
            "the number of steps": f"{'' if self.until is None else 'at most '}{length}",
            "budget=": "None" if allowed is None else f"one{disk}",
            "resume=": "None" if resume is None else f"a directory, with resume_every={every}",
            "schedule=": f"{self.schedule}",
            "costs=": "None" if self.costs is None else "given",
            "storage=": "None" if self.storage is None else f"a {type(self.storage).__name__}",
        }
