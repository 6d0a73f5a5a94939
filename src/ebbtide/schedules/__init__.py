"""Schedules: when to store a snapshot, recompute and reverse, as pure functions of plain data."""

from __future__ import annotations

from ebbtide.schedules.actions import (
    Action,
    Copy,
    Delete,
    EndForward,
    EndReverse,
    Forward,
    Move,
    Reverse,
    action_from_json,
    action_to_json,
)
from ebbtide.schedules.adapter import Recorded, from_checkpoint_schedules
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.hierarchical import Hierarchical
from ebbtide.schedules.mixed import Mixed
from ebbtide.schedules.no_reverse import NoReverse
from ebbtide.schedules.online import Online
from ebbtide.schedules.periodic import Periodic
from ebbtide.schedules.position import Position, Snapshot
from ebbtide.schedules.revolve import Revolve
from ebbtide.schedules.store_all import StoreAll
from ebbtide.schedules.written import schedule_from_json, schedule_to_json

__all__ = [
    "Action",
    "Copy",
    "Costs",
    "Delete",
    "EndForward",
    "EndReverse",
    "Forward",
    "Hierarchical",
    "Mixed",
    "Move",
    "NoReverse",
    "Online",
    "Periodic",
    "Position",
    "Recorded",
    "Reverse",
    "Revolve",
    "Schedule",
    "Snapshot",
    "StoreAll",
    "action_from_json",
    "action_to_json",
    "from_checkpoint_schedules",
    "schedule_from_json",
    "schedule_to_json",
]
