"""
The entries of a journal: places in a sweep, and their way to the arrays that a storage keeps and back.

An entry is the JSON of its fields, as bytes, and then its arrays. Each repeats the fingerprint of its run, so that none
is ever taken for one of another run.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, final

import numpy as np

FORMAT = "7"
"""What entries say, and what their checksums are of: another one where either changes."""
# Code of another program differs in hundreds of names.
_MOST_SHOWN = 20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """
    Arrays with holes, and what their owner needs to make leaves of them.

    Args:
        arrays: Any shapes and dtypes without Python objects; None for a hole.
        forms: Anything that JSON knows; tuples come back as lists.
    """

    arrays: Sequence[np.ndarray | None]
    forms: Any = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """
    A place in the forward sweep, its end included.

    Args:
        step: The number of steps done.
        state: The state after them.
        outputs: The outputs so far.
        ran: How many steps were run in all, by all processes.
        statics: For each static value met so far the first step that used it, a checksum, and the number of its node.
        nodes: How many nodes the tape around had when the loop began.
        inputs: How many inputs were read, and their running checksum.
        changed: Names by which the steps found what they changed, and code of later loops does, too.
        left: What is there by names that the steps of this loop changed; see `Changes.left`.
    """

    step: int
    state: Leaves
    outputs: Leaves
    ran: int
    statics: tuple[tuple[int, int, int], ...] = ()
    nodes: int = 0
    inputs: tuple[int, int] = (0, 0)
    changed: tuple[str, ...] = ()
    left: tuple[tuple[int, str, str], ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Reverse:
    """
    A place in the reverse sweep.

    Args:
        end: The steps from here on are reversed.
        cotangent: The cotangent of the state before step `end`.
        statics: The sums for static values.
        inputs: The cotangents of inputs so far.
        ran: How many steps were run in all, by all processes.
        incoming: A checksum of the cotangents that the sweep started from.
        differentiated: Which leaves of inputs have a derivative.
        start: Checksums of the leaves of the state before step `end`, which the steps that run again lead to; none
            where they were not at hand.
        met: The static values of the forward sweep, as `Forward.statics` has them at its end.
        read: The inputs of the forward sweep, as `Forward.inputs` has them at its end.
    """

    end: int
    cotangent: Leaves
    statics: Leaves
    inputs: Leaves
    ran: int
    incoming: int
    differentiated: str = ""
    start: tuple[Any, ...] = ()
    met: tuple[tuple[int, int, int], ...] = ()
    read: tuple[int, int] = (0, 0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """A restart state."""

    state: Leaves


@final
@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """
    What the run is, which every entry says.

    Args:
        named: What its code finds by names, for the message where it differs.
        first: A checksum of the state after the first step; None where the entry was lost, and is not the first one.
    """

    named: tuple[tuple[str, str], ...] = ()
    first: int | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """
    The schedule that was chosen.

    Args:
        schedule: Its JSON.
        alone: `Sizes.measured_alone` of the loop, for which it was chosen.
    """

    schedule: Mapping[str, Any]
    alone: tuple[int, int, int, int]


KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {"begin": Begin, "forward": Forward, "final": Forward, "anchor": Anchor, "reverse": Reverse, "plan": Planned}
)
"""What an entry of each name holds."""


def encode(fingerprint: Mapping[str, str], record: Any) -> list[np.ndarray]:
    """Return what is stored of a record: the bytes of its JSON, and its arrays, without copies."""
    arrays: list[np.ndarray] = []
    head: dict[str, Any] = {"fingerprint": dict(fingerprint), "fields": {}, "leaves": {}}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Leaves):
            packed = [None if array is None else _pack(np.asarray(array)) for array in value.arrays]
            arrays += [pair[0] for pair in packed if pair is not None]
            head["leaves"][field.name] = value.forms, [None if pair is None else pair[1] for pair in packed]
        else:
            head["fields"][field.name] = value
    text = json.dumps(head, default=operator.index).encode()
    return [np.frombuffer(text, np.uint8), *arrays]


def decode(arrays: list[np.ndarray], name: str) -> tuple[dict[str, str], Any]:
    """Return the fingerprint and the record that `encode` was given, of the kind of a name."""
    head = json.loads(arrays[0].tobytes())
    rest = iter(arrays[1:])
    values = {field: _tuples(value) for field, value in head["fields"].items()}
    for field, (forms, rows) in head["leaves"].items():
        values[field] = Leaves([None if row is None else _unpack(next(rest), row) for row in rows], forms)
    return head["fingerprint"], KINDS[name](**values)


def _tuples(value: Any) -> Any:
    return tuple([_tuples(one) for one in value]) if isinstance(value, list) else value


def _pack(array: np.ndarray) -> tuple[np.ndarray, Any]:
    """
    Return an array in C order and how it lay in memory, on which the rounding of sums and products depends.

    What was broadcast is stored once. Of gaps between elements nothing is kept.
    """
    if array.flags.c_contiguous:
        return array, []
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    packed = array.transpose(axes)
    turned = [stride < 0 for stride in packed.strides]
    shape = packed.shape
    repeated = [stride == 0 and length > 1 for stride, length in zip(packed.strides, shape, strict=True)]
    packed = packed[tuple([slice(None, None, -1) if flip else slice(None) for flip in turned])]
    packed = packed[tuple([slice(0, 1) if once else slice(None) for once in repeated])]
    return packed, [axes, turned, shape if any(repeated) else None]


def _unpack(packed: np.ndarray, row: Any) -> np.ndarray:
    if not row:
        return packed
    axes, turned, shape = row
    array = packed if shape is None else np.broadcast_to(packed, tuple(shape))
    array = array[tuple([slice(None, None, -1) if flip else slice(None) for flip in turned])]
    return array.transpose(np.argsort(axes))


def shown(now: Sequence[tuple[str, str]], then: Sequence[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what code finds by names now and then as lines of a message, where both are known and they differ."""
    both: list[dict[str, str]] = []
    for named in (now, then) if now and then else ((), ()):
        texts: dict[str, list[str]] = {}
        for name, text in sorted(set(named)):
            texts.setdefault(f"{name} in the code", []).append(text)
        both.append({line: ", ".join(found) for line, found in texts.items()})
    names = [name for name in both[0] | both[1] if both[0].get(name) != both[1].get(name)][:_MOST_SHOWN]
    first, second = ({name: one[name] for name in names if name in one} for one in both)
    return first, second


def step_of(key: str) -> int:
    """Return the step of an entry, with which its key ends."""
    return int(key.rpartition("/")[2])


def least_gap(steps: Sequence[int]) -> int:
    """Return the fewest steps from one restart state to the next, of which the first is the beginning."""
    return int(np.diff([0, *steps]).min())
