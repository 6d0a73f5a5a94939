"""Schedules as JSON: their names and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from ebbtide.errors import ScheduleError
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.hierarchical import Hierarchical
from ebbtide.schedules.mixed import Mixed
from ebbtide.schedules.no_reverse import NoReverse
from ebbtide.schedules.online import Online
from ebbtide.schedules.periodic import Periodic
from ebbtide.schedules.records import filled, kind_of
from ebbtide.schedules.revolve import Revolve
from ebbtide.schedules.store_all import StoreAll

_KINDS: tuple[type[Schedule], ...] = (Hierarchical, Mixed, NoReverse, Online, Periodic, Revolve, StoreAll)


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """
    Return a schedule as a dict that `json.dumps` can write.

    Args:
        schedule: One of this package that has a few numbers only.

    Raises:
        ScheduleError: It is another one, such as a `Recorded` trace.

    Example:
        >>> schedule_to_json(Mixed(units=12, restart=1, saved=3))
        {'schedule': 'Mixed', 'units': 12, 'restart': 1, 'saved': 3, 'reverse': 0}
    """
    if type(schedule) not in _KINDS:
        known = ", ".join(kind.__name__ for kind in _KINDS)
        raise ScheduleError(f"{schedule} has no form in JSON. Those that have are {known}.")
    values = {
        field.name: getattr(schedule, field.name)
        for field in dataclasses.fields(cast("Any", schedule))
        if field.init
    }
    plain = {n: dataclasses.asdict(value) if isinstance(value, Costs) else value for n, value in values.items()}
    return {"schedule": type(schedule).__name__, **plain}


def schedule_from_json(record: Mapping[str, Any]) -> Schedule:
    """
    Return the schedule that `schedule_to_json` wrote.

    Args:
        record: What `json.loads` returned.

    Raises:
        ScheduleError: The record is of no known schedule, or its fields are not those of the schedule.

    Example:
        >>> schedule_from_json({"schedule": "Revolve", "snapshots": 5})
        Revolve(snapshots=5)
    """
    kind = kind_of(record, "schedule", _KINDS)
    values = {name: value for name, value in record.items() if name != "schedule"}
    if "costs" in values:
        values["costs"] = filled(Costs, cast("Mapping[str, Any]", values["costs"]), record)
    return filled(kind, values, record)
