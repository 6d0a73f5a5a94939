"""The entries of a tape."""

from __future__ import annotations

from typing import Any, final

from ebbtide.arrays.location import line_of


@final
class Node:
    """
    One entry of a tape: an operation, its parents and its saved values.

    Args:
        number: Grows along the tape, so that descending numbers are a reverse order.
        signature: What to save and to do; None for a leaf; or a joint rule for several outputs.
        parents: Nodes of the active operands, in the order of the pulls; None once consumed.
        saved: Saved values; None once consumed.
        params: Parameters of the operation.
        kind: Shape and dtype of the output, its `type`; a list of them for several outputs.
        code: Code object of the user's line.
        instruction: The instruction in it.

    Memory:
        About 300 bytes and the saved values, until the sweep passes.
    """

    __slots__ = ("__weakref__", "code", "instruction", "number", "params", "parents", "saved", "signature", "type")

    def __init__(
        self,
        number: int,
        signature: Any,
        parents: tuple[Node, ...] | None,
        saved: tuple[Any, ...] | None,
        params: Any,
        kind: Any,
        code: Any = None,
        instruction: int = 0,
    ) -> None:
        self.number = number
        self.signature = signature
        self.parents = parents
        self.saved = saved
        self.params = params
        self.type = kind
        self.code = code
        self.instruction = instruction

    @property
    def name(self) -> str:
        """Name of the operation."""
        if self.signature is None:
            return "an input"
        return self.signature.name

    @property
    def line(self) -> str:
        """File and line of the user's program."""
        return line_of(self.code, self.instruction)


@final
class Projection:
    """The rule of a node that stands for one output of an operation with several; see the sweep."""

    name = "an output"


PROJECTION = Projection()


def nodes_before(results: list[Node | None]) -> list[Node]:
    """Return all nodes that results depend on, those of the results among them."""
    found: dict[int, Node] = {}
    waiting = [node for node in results if node is not None]
    while waiting:
        node = waiting.pop()
        if node.number not in found:
            found[node.number] = node
            waiting.extend(node.parents or ())
    return list(found.values())
