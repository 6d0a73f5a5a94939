"""Which operand of a time loop each of its cotangents belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.containers import flatten
from ebbtide.arrays.location import user_line
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import DeterminismError
from ebbtide.loop.planning.sizes import INPUT_BYTES, LINK_BYTES
from ebbtide.loop.values.plain_data import digest
from ebbtide.tape.forms import Form, form_here
from ebbtide.tape.node import Node
from ebbtide.tape.region import Region


@final
class Links:
    """
    The parents of a time loop on the tape around it.

    Args:
        region: The region of the steps.
        nodes: Nodes of the leaves of the initial state on the tape around; None for constants of it.
        inputs: The inputs, as the user gave them.
        statics: Static values: arrays of the tape around by the address of their nodes.

    Memory:
        References to nodes: one for each leaf, and for each element of inputs that are a list of traced arrays.
    """

    __slots__ = ("_inputs", "_line", "_started", "_state", "_whole", "inputs", "parents", "state_count", "statics")

    def __init__(self, region: Region, nodes: list[Node | None], inputs: Any, statics: dict[int, Any]) -> None:
        parents: list[Node] = []
        places: dict[int, int] = {}

        def place(node: Node | None) -> int | None:
            if node is None:
                return None
            if id(node) not in places:
                places[id(node)] = len(parents)
                parents.append(node)
            return places[id(node)]

        self._line = user_line()
        # The step that was swept last, and which leaves of the state it started from may have a derivative.
        self._started: tuple[int, list[bool]] = (-1, [])
        self._state = [place(node) for node in nodes]
        self.state_count = len(nodes)
        # Inputs are one array whose rows go to the steps, or a sequence whose elements do.
        self._whole: tuple[int, ArrayType] | None = None
        self._inputs: list[list[int | None]] | None = None
        if isinstance(inputs, TracedArray):
            whole = place(region.node(inputs))
            self._whole = None if whole is None else (whole, parents[whole].type)
        elif isinstance(inputs, (list, tuple)):
            links = [[place(region.node(leaf)) for leaf in flatten(x)[0]] for x in inputs]
            self._inputs = links if any(k is not None for row in links for k in row) else None
        known = [] if self._whole is None else [self._whole[0]]
        known += [k for row in self._inputs or () for k in row if k is not None]
        self.inputs = {position: number for number, position in enumerate(dict.fromkeys(known))}
        """Which parents are inputs: their own numbers, whatever else has a derivative, in the order of their use."""
        self.statics = {key: place(array._node) for key, array in statics.items()}
        self.parents = tuple(parents)

    def describe_inputs(self) -> str:
        """Return a text that tells which leaves of inputs have a derivative, and which of them share one."""
        if self._inputs is None:
            return "none" if self._whole is None else "the array of all"
        found = [None if k is None else self.inputs[k] for row in self._inputs for k in row]
        count = len(found) - found.count(None)
        return f"{count} of {len(found)} leaves with the digest {digest(repr(found))}"

    def check_step(self, index: int, step: Any, sums: dict[int, Any]) -> None:
        """
        Check what a step depended on that was swept.

        Args:
            index: The step.
            step: What was taped.
            sums: The cotangents of its static values. An argument of what is recorded, and not used there, has none.

        Raises:
            DeterminismError: It used an array from outside that it had not used before; or it gave a leaf of the state
                that has a derivative for a number of Python's, from which the step after it started, and which has
                none.
        """
        if not self.statics.keys() >= sums.keys():
            raise DeterminismError(
                f"Step {index} used an array from outside, when it was run again, that it had not used before. What "
                "a step uses may depend on its state, its input and static values only: a name that it reads from "
                "outside, by closure or otherwise, is bound to the same array until the gradient is there."
            )
        after, self._started = self._started, (index, [*map(bool, step.state_leaves)])
        if after[0] == index + 1:
            for leaf, node in enumerate(step.state_nodes):
                if node is not None and not after[1][leaf]:
                    raise DeterminismError(
                        f"Step {index} of the time loop at {self._line} made the leaf {leaf} of the state a number of "
                        "Python's, which has no derivative, of one of NumPy's that has one, as `abs(1j * x)` and "
                        "`float(x)` do where nothing is recorded. Begin with one of NumPy's in its place, as "
                        "np.float64(0.0), and write np.complex128(1j)."
                    )

    def keep_inputs(self, index: int, pairs: list[Any], collector: Any) -> None:
        """Keep the cotangents of the leaves of one step's input."""
        sums = collector.input_sums
        if self._whole is not None:
            (pair,) = pairs
            position, kind = self._whole
            if pair is None:
                return
            plain = type(pair[0]) is not TracedArray
            if position not in sums:
                sums[position] = np.zeros(kind.shape, kind.dtype) if plain else {}
            elif not plain and isinstance(sums[position], np.ndarray):
                # Later steps, which the sweep has passed, had plain cotangents; this one has a traced one.
                sums[position] = {k: sums[position][k] for k in range(index + 1, kind.shape[0])}
            sums[position][index] = pair[0]
        elif self._inputs is not None:
            for position, pair in zip(self._inputs[index], pairs, strict=True):
                if position is not None and pair is not None:
                    before = sums.get(position)
                    sums[position] = pair[0] if before is None else before + pair[0]

    def give(self, state: list[Any], collector: Any) -> Iterator[tuple[int, Any, bool]]:
        """Yield (number of the parent, cotangent, owned) for all that was collected."""
        for position, pair in zip(self._state, state, strict=True):
            if position is not None and pair is not None:
                yield position, *pair
        for position, total in collector.input_sums.items():
            if isinstance(total, dict) and self._whole is not None:
                kind = self._whole[1]
                zero = np.zeros(kind.shape[1:], kind.dtype)
                # Taken out, so that they are gone when the sweep adds to what it has.
                yield position, np.stack([total.pop(k, zero) for k in range(kind.shape[0])]), False
            else:
                yield position, total, self._whole is not None
        for key, total in collector.static_sums.items():
            position = self.statics[key]
            if position is not None:
                yield position, total, isinstance(total, np.ndarray)


def gradient_nbytes(region: Region, inputs: Any) -> int:
    """
    Return the bytes of the cotangents of inputs: of arrays of the tape around only, and not of those in files.

    Those of the rows of one array are put together in the end: with tangents, or members of a batch, in other memory.

    Args:
        region: The region of the steps.
        inputs: As the user gave them.
    """
    nodes, is_whole = _nodes_of(region, inputs), isinstance(inputs, TracedArray)
    forms = [form_here(kind) for kind in {id(node): node.type for node in nodes}.values()]
    data = sum([form.nbytes * (2 if is_whole and type(form) is Form else 1) for form in forms])
    return data + max(0, len(forms) - 1) * INPUT_BYTES


def count_links(pager: Any, region: Region, inputs: Any) -> None:
    """Count the links of a loop to the elements of its inputs as a part of the record around, whose *pager* it is."""
    if pager is not None:
        pager.overhead.count(max(0, len(_nodes_of(region, inputs)) - 1) * LINK_BYTES)


def _nodes_of(region: Region, inputs: Any) -> list[Node]:
    """Return the nodes of what is traced in inputs: of one array, or of a list's elements."""
    rows = inputs if isinstance(inputs, (list, tuple)) else [inputs] if isinstance(inputs, TracedArray) else []
    nodes = [region.node(leaf) for x in rows for leaf in flatten(x)[0]]
    return [node for node in nodes if node is not None]
