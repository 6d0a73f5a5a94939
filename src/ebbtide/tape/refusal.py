"""The error of an operation for which there is no room, whatever is paged to disk."""

from __future__ import annotations

from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError
from ebbtide.ledger import Ledger
from ebbtide.tape.node import Node


def refusal(ledger: Ledger, budget: Budget, node: Node, need: int, advice: str = "") -> BudgetError:
    """
    Return the error for an operation that needs more bytes than there can be.

    Args:
        ledger: The account, in which there is a bound.
        budget: The budget.
        node: The operation.
        need: The bytes that it needs beside those that are held.
        advice: What else than memory would help.
    """
    assert ledger.limit is not None
    least = ledger.live + need - ledger.limit + ledger.binding(budget.memory)
    return BudgetError(
        f"{node.name} at {node.line} needs {need} bytes beside {ledger.live} that cannot be paged to disk, more than "
        f"the {ledger.limit} of the budget. Give at least {least} bytes ({format_bytes(least)}) of memory{advice}.",
        least,
    )
