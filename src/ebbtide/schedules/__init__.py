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
from ebbtide.schedules.base import Schedule
from ebbtide.schedules.costs import Costs
from ebbtide.schedules.position import Position, Snapshot
from ebbtide.schedules.revolve import Revolve
from ebbtide.schedules.store_all import StoreAll

__all__ = [
    "Action",
    "Copy",
    "Costs",
    "Delete",
    "EndForward",
    "EndReverse",
    "Forward",
    "Move",
    "Position",
    "Reverse",
    "Revolve",
    "Schedule",
    "Snapshot",
    "StoreAll",
    "action_from_json",
    "action_to_json",
]
