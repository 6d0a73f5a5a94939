"""Lenders: those who hold what they could do without, time loops and programs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, final


@final
class Lender(weakref.ref[Any]):
    """A weak reference to one who holds what it could do without, with its *number* in the order in which they came."""

    __slots__ = ("number",)

    number: int


def is_at_work(lender: Lender) -> bool:
    """Return whether a lender runs or sweeps its steps now."""
    found = lender()
    return found is not None and found.is_at_work


def lent_by(lenders: Iterable[Lender]) -> int:
    """Return the bytes that lenders could give up."""
    known = [one() for one in lenders]
    return sum([lender.sheddable for lender in known if lender is not None])
