"""Tensors as NumPy arrays and arrays as tensors, of the same memory."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

# By name: without the extra, checkers would take this package for torch.
torch: Any = importlib.import_module("torch")


def array_of(tensor: Any, what: str) -> Any:
    """
    Return a read-only array of the elements of a tensor, in its memory unless that is conjugated or negated lazily.

    Args:
        tensor: The tensor.
        what: Beginning of the message: who was given it.

    Raises:
        TypeError: NumPy has no such array.
    """
    kind = f"{what} a tensor of {tensor.dtype}, {tensor.layout} on {tensor.device}"
    if tensor.device.type != "cpu":
        raise TypeError(f"{kind}. NumPy's arrays are on the CPU: pass tensor.cpu().")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{kind}. NumPy's arrays are dense: pass tensor.to_dense().")
    try:
        array = tensor.detach().resolve_conj().resolve_neg().numpy()
    except TypeError as error:
        raise TypeError(f"{kind}, a dtype that NumPy does not have. Pass tensor.to(torch.float32).") from error
    except RuntimeError as error:
        raise TypeError(f"{kind}, which stands for others and has no elements of its own: {error}") from error
    # What torch does not see must not happen: it keeps count of the changes of a tensor.
    array.flags.writeable = False
    return array


def tensors_of(values: list[Any], others: Sequence[Any], name: str) -> list[Any]:
    """
    Return the outputs of a function as tensors.

    Args:
        values: Arrays and numbers; the list is emptied.
        others: Arrays whose memory belongs to tensors. What overlaps them or an output before it is copied, as torch
            would not know that to change one tensor changes another.
        name: Of the function, for messages.

    Raises:
        TypeError: Torch has no such tensor.
    """
    taken = list(others)
    values.reverse()
    tensors = []
    while values:
        array = np.asarray(values.pop())
        if any(np.may_share_memory(array, other) for other in taken):
            array = np.array(array)
        tensors.append(tensor_of(array, f"{name} returned"))
        taken.append(array)
    return tensors


def tensor_of(array: Any, what: str) -> Any:
    """
    Return a tensor of an array, in its memory unless that is read-only or lies as torch's never does.

    Raises:
        TypeError: Torch has no such tensor; *what* says where the array comes from.
    """
    in_order = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    if not (in_order and array.dtype.isnative and array.flags.writeable):
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise TypeError(
            f"{what} an array of {array.dtype}, which torch has no tensors of. Return array.astype(float)."
        ) from error


def cotangent_of(tensor: Any) -> Any:
    """Return a cotangent of torch as an array, conjugated if it is complex; None for None."""
    if tensor is None:
        return None
    return array_of(tensor.detach().conj() if tensor.is_complex() else tensor, "The reverse run was given")


def gradient_of(array: Any) -> Any:
    """Return a cotangent of Ebbtide as a tensor, conjugated in place if it is complex."""
    if array.dtype.kind == "c":
        np.conjugate(array, array)
    return tensor_of(array, "The reverse run found")
