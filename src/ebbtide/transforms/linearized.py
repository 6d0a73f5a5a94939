"""`linearize`: a function at a point, and its derivative there as a linear function that can be called many times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import owner_of
from ebbtide.arrays.containers import frozen_leaf, unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.functions import check_function
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget, format_bytes
from ebbtide.errors import BudgetError, ReleasedValueError
from ebbtide.tape.account import Account, account
from ebbtide.tape.holders import pageable_bytes
from ebbtide.tape.linear import LinearProgram, LinearTape
from ebbtide.tape.node import Node
from ebbtide.tape.pager import Pager
from ebbtide.tape.pages import STORAGE_BYTES
from ebbtide.tape.tangent import TangentTrace
from ebbtide.transforms.forward import Point, run_duals, zero_tangent

# What the interpreter takes for a pushforward beside what is counted, as tracemalloc sees it: 7 to 18 KiB measured of
# functions of 1 to 200 operations, in pushes, too. And what it takes for what is on disk.
_RESERVE, _RESERVE_ON_DISK = 20 * 1024, 28 * 1024


def linearize(f: Callable[..., Any], *primals: Any, budget: Budget | None = None) -> tuple[Any, Pushforward]:
    """
    Run *f* and return its value and the pushforward of tangents, which runs the linear part only.

    Args:
        f: A function of arrays and containers of arrays.
        *primals: Its arguments, all differentiated.
        budget: The bytes that the pushforward may hold; the tangents beside the values of *f* come on top, as in `jvp`.

    Returns:
        (value, pushforward). `pushforward(*tangents)`, with a tangent for each argument, returns the bits that
        `jvp` returns, and can be called any number of times.

    Raises:
        TypeError: An input is no floating-point number, or an output is no array and no number.
        BudgetError: The budget is too small; says the least that would do.
        TraceError: *f* takes a derivative of a time loop that has a budget of its own; use `jvp`.

    Memory:
        The derivatives of all operations at this point, until the pushforward is freed or dropped. Of a time loop those
        of as many of its first steps as its schedule keeps saved values of, or as the budget has room for, and two
        states, with a budget some more; the other steps, and what is checkpointed, run again for each call. Where *f*
        takes a derivative of a time loop, or a derivative is taken of the pushforward, all its steps.

    Source:
        Griewank and Walther, Evaluating Derivatives (2008), chapters 3 and 6: the linearized evaluation procedure.

    Example:
        >>> import numpy as np
        >>> value, pushforward = linearize(np.sin, 0.0)
        >>> pushforward(2.0), pushforward(3.0)
        (np.float64(2.0), np.float64(3.0))
    """
    check_function(f, "linearize")
    point = Point(primals)
    with account(budget) as acct:
        acct.exclude(point.values)
        acct.exclude_reached(f)
        if acct.pager is not None:
            reserve = _reserve(acct.pager)
            acct.pager.unplanned = lambda made, saved: reserve
        linear = LinearTape(current().level + 1, acct.ledger, acct.pager)
        # Zeros that take no memory: the steps of a loop may close over them as long as the pushforward is there.
        leaves = [linear.leaf(np.broadcast_to(np.zeros((), kind.dtype), kind.shape)) for kind in point.kinds]
        trace = TangentTrace(linear.level + 1, linear)
        try:
            values, derivatives, structure = run_duals(f, point, leaves, trace, acct, "linearize")
        finally:
            linear.close()
        inputs = [leaf._node for leaf in leaves]
        found = [zero_tangent(v) if t is None else t for v, t in zip(values, derivatives, strict=True)]
        roots = [t._node if type(t) is TracedArray and t._trace is linear else None for t in found]
        fixed = [_plain(linear, t) if node is None else None for t, node in zip(found, roots, strict=True)]
        program = LinearProgram(inputs, roots, acct.pager)
        _check_budget(acct, program, roots)
        acct.keep_open()
    return unflatten(structure, values), Pushforward(program, point, fixed, structure, acct)


def _reserve(pager: Pager) -> int:
    """Return what the interpreter takes for a pushforward, in bytes."""
    return _RESERVE_ON_DISK if pager.on_disk else _RESERVE


def _plain(linear: LinearTape, tangent: Any) -> Any:
    """Return a tangent that depends on no input."""
    return tangent._value if type(tangent) is TracedArray and tangent._trace is linear else tangent


def _own(tangent: Any, taken: set[int]) -> Any:
    """Return a tangent in memory that is no argument's and no other result's: those in *taken*, which is extended."""
    if type(tangent) is not np.ndarray:
        return frozen_leaf(tangent)
    owner = id(owner_of(tangent))
    if owner in taken or not tangent.flags.writeable:
        return np.array(tangent)
    taken.add(owner)
    return tangent


def _check_budget(acct: Account, program: LinearProgram, roots: list[Any]) -> None:
    """Raise if what the pushforward would hold passes the budget, or what a push reads back from disk."""
    pager, budget = acct.pager, acct.budget
    if pager is None or budget is None or (limit := pager.ledger.limit) is None:
        return
    ledger = pager.ledger
    needed = ledger.live if pager.passed is None else ledger.peak
    if pager.on_disk:
        bare = program.most_loaded + _unpageable(pager, [root for root in roots if root is not None])
        needed = bare if pager.passed is None else max(needed, bare)
    needed += _reserve(pager)
    if pager.passed is None and needed <= limit:
        return
    budget = replace(budget, memory=ledger.binding(budget.memory))
    least = needed - limit + budget.memory
    place = "It would be passed in a push." if pager.passed is None else f"It was passed by {pager.passed}."
    raise BudgetError(
        f"The budget of {budget} is too small: the derivatives that the pushforward keeps take {least} bytes "
        f"({format_bytes(least)}) of memory. {place} Give at least {least} bytes of memory, let it page with disk=, or "
        "use jvp, which keeps nothing.",
        least,
    )


def _unpageable(pager: Pager, roots: list[Node]) -> int:
    """Return the bytes that stay in memory in a push with all on disk that can be, those of the storage included."""
    ledger, pages = pager.ledger, pager.pages
    there, _ = pageable_bytes(roots, ledger.holds, pager.disk.left)
    storage = STORAGE_BYTES if pages is None else STORAGE_BYTES - pages.storage_nbytes - pages.buffer_nbytes
    return ledger.live - there - ledger.lent + storage


@final
class Pushforward:
    """
    Takes tangents of the arguments of a function to the tangents of its outputs.

    Memory:
        The derivatives of all operations, until it is freed or dropped.
    """

    __slots__ = ("__weakref__", "_account", "_consumer", "_fixed", "_point", "_program", "_structure")

    def __init__(
        self, program: LinearProgram, point: Point, fixed: list[Any], structure: Any, account_: Account
    ) -> None:
        self._program: LinearProgram | None = program
        self._consumer = ""
        point.values = []
        self._point = point
        self._fixed = fixed
        self._structure = structure
        self._account = account_

    def __call__(self, *tangents: Any) -> Any:
        """
        Return the tangent of the value of the function.

        Args:
            *tangents: For each argument a container of its structure, shapes and dtypes.

        Raises:
            CotangentError: A tangent has another structure, shape or kind of dtype than its argument.
            ReleasedValueError: The pushforward was freed.
            MutationError: An array that the function used has been changed since.
            DeterminismError: A step of a time loop gave another result when it was run again.

        Memory:
            The tangents between the arguments and the outputs, and the result, which is the caller's.
        """
        program = self._program
        if program is None:
            raise ReleasedValueError(f"The saved values of this pushforward are gone: {self._consumer} gave them up.")
        directions = self._point.directions(tangents, "The pushforward")
        taken = {id(owner_of(t)) for t in directions if type(t) is np.ndarray}
        with self._account.at_work():
            found = program.push(directions)
        pairs = zip(found, self._fixed, strict=True)
        # A tangent that depends on nothing is copied: what the caller does to it is not seen by the next call.
        result = [np.array(fixed)[()] if t is None else _own(t, taken) for t, fixed in pairs]
        return unflatten(self._structure, result)

    def free(self) -> None:
        """Let go of all saved values; a later call raises."""
        if self._program is not None:
            self._consumer = f"free() at {user_line()}"
            self._program = None
            self._account.close()
