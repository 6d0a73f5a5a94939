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
