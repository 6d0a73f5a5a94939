"""Operations with several outputs: one node for the operation, and one for each output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from ebbtide.agree import is_alone
from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import is_differentiable
from ebbtide.arrays.location import user_frame
from ebbtide.arrays.traced import TracedArray
from ebbtide.tape.node import PROJECTION, Node
from ebbtide.tape.record import Tape


@final
@dataclass(frozen=True, slots=True)
class Holding:
    """
    What a joint rule holds.

    Args:
        held: Bytes in the ledger now that are free when `pull` is done.
        beyond: Bytes that it holds and no ledger counts; less those that it sheds, if it sheds all that it can.
        least: Bytes in the ledger, those of others included, without which it could not have been recorded.
        more: Bytes that `pull` takes beyond `needs`, if it sheds all that it can.
    """

    held: int = 0
    beyond: int = 0
    least: int = 0
    more: int = 0


class JointRule(ABC):
    """
    How the cotangents of several outputs become those of the operands, all at once.

    Attributes:
        has_reserve: Whether what it says to need has room for what the interpreter takes in a sweep.
    """

    __slots__ = ()

    has_reserve: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call the operation."""

    @property
    def is_known(self) -> bool:
        """Whether `pull` takes no more than `needs`, as is tested; else what users' functions take is in it, too."""
        return False

    @property
    def sheddable(self) -> int:
        """Bytes that it holds and could do without, at the price of more work."""
        return 0

    @property
    def is_at_work(self) -> bool:
        """Whether what it does is under way."""
        return False

    def shed(self, nbytes: int) -> int:
        """Give up at least *nbytes* bytes if it can; return how many it gave up."""
        del nbytes
        return 0

    def need_less(self) -> bool:
        """Ask `pull` to need less, at the price of more work; return whether it can."""
        return False

    def holding(self, bare: bool) -> Holding:
        """
        Return what it holds until `pull` is done, beside `kept`.

        Args:
            bare: Whether it sheds all that it can.
        """
        del bare
        return Holding()

    @property
    def kept(self) -> Iterable[Any]:
        """What it keeps until `pull` is done, as `hold` counted it."""
        return ()

    @property
    def spare(self) -> Iterable[Any]:
        """Those of the saved values of its node that it gives up where it sheds all that it can."""
        return ()

    @abstractmethod
    def needs(self, owned: bool, given: int) -> int:
        """
        Return the bytes that `pull` takes at most beside what is held before, its results included.

        Args:
            owned: Whether the sweep owns the cotangents that `pull` gets.
            given: The bytes of these if it does; they are part of what is held.
        """

    def hold(self, pager: Any, node: Node) -> None:  # noqa: B027 - most rules account for themselves
        """Let a pager count what the rule keeps."""

    @abstractmethod
    def pull(self, cotangents: list[Any], node: Node, retain: bool) -> Iterable[tuple[int, Any, bool]]:
        """
        Yield the cotangents of the operands.

        Args:
            cotangents: For each output (cotangent, owned), or None where nothing depends on it; the rule
                may take them out of the list.
            node: The node of the operation.
            retain: Whether the rule will be asked again.

        Yields:
            (number of the parent, cotangent, whether the sweep owns it).
        """


def part(outputs: tuple[Any, ...], number: int) -> Any:
    """Return one output of an operation with several; it is no copy, so that to take it again saves nothing."""
    return outputs[number]


def record_joint(
    tape: Tape, rule: JointRule, parents: tuple[Node, ...], outputs: list[Any], saved: Sequence[Any] | None = None,
    params: dict[str, Any] | None = None, required: bool = False,
) -> list[TracedArray]:  # fmt: skip
    """
    Record an operation with several outputs.

    Args:
        tape: Where to record it.
        rule: Its rule.
        parents: Nodes of its active operands, in the order that the rule's pull counts them.
        outputs: Its outputs as plain arrays, or arrays of outer traces.
        saved: Values that its node saves, for `pull` to take from there; None where the rule keeps its own, and the
            user can reach the outputs.
        params: What it was given beside its operands; arrays in there are counted as long as its node lives.
        required: Whether the sweep passes it though nothing depends on it, as where there is communication inside.

    Returns:
        The outputs, traced.
    """
    frame = user_frame()
    where = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
    tape.count += 1
    kinds = [type_of(value) for value in outputs]
    node = Node(tape.count, rule, parents, (), params, kinds, *where)
    if required or (tape.presence is not None and tape.presence[0] in parents):
        tape.required[node.number] = node
    if tape.pager is not None:
        rule.hold(tape.pager, node)
    if saved is not None:
        node.saved = tuple(saved) if tape.pager is None else tape.pager.hold(node, None, saved)
        tape.ledger.saved += plain_bytes(node.saved)
    traced = []
    for position, (value, kind) in enumerate(zip(outputs, kinds, strict=True)):
        tape.count += 1
        projection = Node(tape.count, PROJECTION, (node,), (), position, kind, *where)
        array = TracedArray(tape, projection, value)
        if saved is None:
            array.sharing().reachable = True
        traced.append(array)
    return traced


def record_results(tape: Tape, rule: JointRule, parents: tuple[Node, ...], results: list[Any]) -> list[Any]:
    """
    Record an operation among whose results there may be some without a derivative, as it ran on values.

    Args:
        tape: Where to record it.
        rule: Its rule.
        parents: Nodes of its active operands; see `record_joint`.
        results: All of its results.

    Returns:
        The results, traced; what has no derivative, such as a Python number, as it is: only its place counts.
    """
    outputs = [x if is_differentiable(x) else 0 for x in results]
    # Loops agree on what they have room for when their sweep begins, also on ranks that do not use their results.
    traced = record_joint(tape, rule, parents, outputs, required=not is_alone())
    return [t if is_differentiable(x) else x for t, x in zip(traced, results, strict=True)]


def plain_bytes(saved: Sequence[Any]) -> int:
    """Return the bytes of those saved values that nobody else counts."""
    count = 0
    for value in saved:
        if type(value) is np.ndarray:
            count += value.nbytes
    return count
