"""Bounds: what those with a budget may hold, and what they do hold while they rest."""

from __future__ import annotations

from typing import final

from ebbtide.quota import Quota


@final
class Bound:
    """
    What an account with a budget, or a time loop with one of its own, may hold.

    It binds while its owner is at work. A pullback that waits for its call binds nobody; what it holds counts for it
    again when it is called, whatever others have come to hold since.

    Args:
        memory: The bytes.
        quota: The disk; None for no bound.
        budget: The bytes of the budget whose rest *memory* is; None if it is all of one.

    Attributes:
        limit: The bytes that its ledger may hold while the owner is at work.
        held: The bytes that the owner holds at rest.
        lenders: Numbers of those among its lenders that may give up some of these meanwhile.

    Memory:
        Holds five numbers.
    """

    __slots__ = ("__weakref__", "budget", "held", "lenders", "limit", "memory", "quota")

    def __init__(self, memory: int, quota: Quota | None, budget: int | None = None) -> None:
        self.memory, self.quota, self.budget = memory, quota, memory if budget is None else budget
        self.limit = self.held = 0
        self.lenders = range(0)
