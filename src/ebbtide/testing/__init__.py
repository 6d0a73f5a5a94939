"""What tests of code around Ebbtide need: checkers and contract suites."""

from __future__ import annotations

from ebbtide.testing.gradients import check_grads
from ebbtide.testing.memory import assert_peak_below
from ebbtide.testing.rules import check_rule
from ebbtide.testing.schedules import ScheduleCount, check_schedule
from ebbtide.testing.spaces import check_space
from ebbtide.testing.storage import StorageContract

__all__ = [
    "ScheduleCount",
    "StorageContract",
    "assert_peak_below",
    "check_grads",
    "check_rule",
    "check_schedule",
    "check_space",
]
