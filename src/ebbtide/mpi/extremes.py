"""The least and the largest of the arrays of all ranks, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.primitive import FRESH, Primitive, Pull
from ebbtide.arrays.views import bottom
from ebbtide.mpi.collectives import Sum
from ebbtide.mpi.exchange import anchored, apart, recorded, traces_of
from ebbtide.mpi.library import library
from ebbtide.mpi.waiting import channel, wait
from ebbtide.tape.communication import require


def extreme(array: Any, comm: Any, op: str) -> Any:
    """
    Return the extreme of the arrays of all ranks.

    Args:
        array: Of the same shape and dtype on all ranks, real.
        comm: The communicator.
        op: "max" or "min".

    Raises:
        ValueError: There is no such operation.
        TypeError: The array is complex.
    """
    if op not in ("max", "min"):
        raise ValueError(f"op={op!r}: there are 'sum', 'max' and 'min'.")
    if type_of(array).dtype.kind == "c":
        raise TypeError(f"The {op} of complex numbers is not defined. Take that of their absolute values.")
    if type_of(array).dtype.kind in "iub":
        return _found(apart(array), comm=comm, op=op)
    result = _EXTREME.bind((anchored(array),), {"comm": comm, "op": op})
    require(result)
    return result


def _found(array: Any, *, comm: Any, op: str) -> np.ndarray:
    mpi = library()
    array = np.asarray(array, order="C")
    result = np.empty(array.shape, array.dtype)
    most, least = (mpi.LOR, mpi.LAND) if array.dtype.kind == "b" else (mpi.MAX, mpi.MIN)
    there = channel(comm)
    wait([there.Iallreduce(array, result, most if op == "max" else least)], there)
    return result


def _share(array: Any, out: Any, comm: Any) -> Any:
    """Return the part of the derivative that this rank has: all, or as much as each of those that are equal."""
    mine = bottom(array)
    if type(mine) is ArrayType:
        raise TypeError("Who has an extreme is asked of values: without them no rank is to wait for the others.")
    here = np.asarray(mine == bottom(out), type_of(array).dtype)
    kind = ArrayType(here.shape, here.dtype)
    return here / np.maximum(Sum(comm, kind, kind).run(here), 1)


def _pull(g: Any, kind: ArrayType, params: Any, array: Any, out: Any) -> Any:
    return recorded(Sum(params["comm"], kind, kind), g) * _share(array, out, params["comm"])


def _push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
    kind = type_of(out)
    term = tangents[0] * _share(values[0], out, params["comm"])
    return recorded(Sum(params["comm"], kind, kind), term, traces_of(out))


_EXTREME = Primitive(
    _found,
    name="extreme of all ranks",
    operands=("array",),
    pull=lambda k: Pull(_pull, needs=("array", "out"), result=FRESH),
    push=_push,
    infer=lambda array, *, comm, op: array,
)
