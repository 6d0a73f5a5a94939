"""
Convolutions and the largest elements of windows as steps of the machine.

A convolution takes memory beside its operands, for a matrix of windows. An equation before it says so, and its result
is planned like any other value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.machine.pieces import piece_of, scratch_of
from ebbtide.program.actions import Action, Operand, Operands
from ebbtide.program.equation import Equation, Variable, kind_of
from ebbtide.program.rooms import room

# What each of the three forms of the sum over images, kernels and results makes, by the name of its operation.
CONVOLUTIONS: Mapping[str, str] = MappingProxyType({
    "conv2d": "results", "conv2d_images": "images", "conv2d_kernels": "kernels",
})  # fmt: skip
POOLINGS: Mapping[str, str] = MappingProxyType({
    "max_pool2d": "largest", "places_of_largest": "places", "spread_to_windows": "spread",
})  # fmt: skip
_CONVOLUTION, _POOLING = "ebbtide.nn.convolution", "ebbtide.nn.pooling"


@final
@dataclass(frozen=True, slots=True)
class Scratched:
    """
    A function whose last operand is memory that it may use.

    Args:
        function: The function without it.
    """

    function: Any

    @property
    def __name__(self) -> str:
        """That of the function."""
        return self.function.__name__

    def __call__(self, *arguments: Any, **params: Any) -> Any:
        """Return the result as NumPy computes it, in memory of its own."""
        return self.function(*arguments[:-1], **params)


def with_scratch(equation: Equation) -> tuple[Equation, Equation] | None:
    """Return the equation of memory that a convolution takes, and the convolution with it; None for others."""
    if equation.name not in CONVOLUTIONS or _module_of(equation) != _CONVOLUTION:
        return None
    images, kernels, count = _shapes(equation)
    kind = equation.output.type
    if kind.dtype.char not in "fd" or 0 in (*images, *kernels, *count):
        return None
    elements = scratch_of(images[0], count, (prod(kernels[:3]), kernels[3]), kind.dtype.itemsize)
    memory = ArrayType((elements,), kind.dtype)
    scratch = Variable(memory, "scratch")
    first = Equation(None, room, "scratch", (), {"kind": memory}, scratch, equation.where, equation.errors)
    taking = replace(
        equation, primitive=None, function=Scratched(equation.function), arguments=(*equation.arguments, scratch)
    )  # fmt: skip
    return first, taking


def _module_of(equation: Equation) -> str:
    """Return where the function of an equation is from: one of a user's may have the name of ours."""
    return getattr(equation.function, "__module__", "")


def multiplications_of(equation: Equation) -> int | None:
    """Return how many products of numbers a convolution is; None of other functions."""
    ours = type(equation.function) is Scratched or _module_of(equation) == _CONVOLUTION
    if not ours or equation.name not in CONVOLUTIONS:
        return None
    images, kernels, count = _shapes(equation)
    return images[0] * prod(count) * prod(kernels)


def moment_of(equation: Equation) -> int | None:
    """Return the bytes that our functions of windows take for a moment, of NumPy; None of other functions."""
    if equation.name in CONVOLUTIONS and _module_of(equation) == _CONVOLUTION:
        return _of_convolution(equation)
    if equation.name not in POOLINGS or _module_of(equation) != _POOLING:
        return None
    params, out = equation.params, equation.output.type
    masks = out.nbytes // out.dtype.itemsize
    x = kind_of(equation.arguments[0])
    buffers = 2 * np.getbufsize() * x.dtype.itemsize  # of what lies with gaps
    if equation.name == "spread_to_windows":
        return prod(x.shape) + buffers
    lines = buffers + (x.nbytes // x.shape[-3] * out.shape[-3] if params["window"][0] > 1 else 0)
    return lines if out.dtype == x.dtype else masks * x.dtype.itemsize + max(lines, masks)


def _of_convolution(equation: Equation) -> int:
    images, kernels, count = _shapes(equation)
    size, area = equation.output.type.dtype.itemsize, prod(kernels[:3])
    around = [sum(pair) for pair in equation.params["padding"]]
    wide = (images[1] + around[0]) * (images[2] + around[1]) * images[3] if any(around) else 0
    many, rows = piece_of(images[0], count[0], count[1] * area * size)
    taken = scratch_of(images[0], count, (area, kernels[3]), size)
    if equation.name != "conv2d_images":
        return size * (taken + many * wide)
    # What the windows of one place get is added with gaps: NumPy does it in buffers.
    return size * (taken + images[0] * wide + 3 * min(np.getbufsize(), many * rows * count[1] * kernels[2]))


def _shapes(equation: Equation) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int]]:
    """Return the shapes of the images and of the kernels of a convolution, and how many windows an image has."""
    first, second, made = *[kind_of(x).shape for x in equation.arguments[:2]], equation.output.type.shape
    images, kernels, results = {
        "results": (first, second, made), "images": (made, second, first), "kernels": (first, made, second),
    }[CONVOLUTIONS[equation.name]]  # fmt: skip
    down, across = results[-3:-1]
    return (prod(images[:-3]), *images[-3:]), kernels, (down, across)


def convolution(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    """Return the step of a convolution with memory; none of one without."""
    if type(equation.function) is not Scratched:
        return None
    images, kernels, count = _shapes(equation)
    (top, _), (left, _) = equation.params["padding"]
    sizes = images, kernels, equation.params["strides"], (top, left), count
    taken = [*[operands.of(x) for x in equation.arguments], operands.of(equation.output)]
    taken = [x if len(x.shape) in (1, 4) else _joined(x) for x in taken]
    return [Action("Convolution", (CONVOLUTIONS[equation.name], *sizes, tuple(taken)))]


def _joined(x: Operand) -> Operand:
    """
    Return images with one axis in front.

    Raises:
        ValueError: They do not lie so.
    """
    front, rest = x.shape[:-3], x.shape[-3:]
    stride = step = prod(rest) * abs(x.strides[-1])
    for n, own in zip(front[::-1], x.strides[-4::-1], strict=True):
        if n != 1 and own != step:
            raise ValueError(f"Images of shape {x.shape} with strides {x.strides} have no one axis in front.")
        step *= n
    return replace(x, shape=(prod(front), *rest), strides=(stride, *x.strides[-3:]))


def pooling(equation: Equation, operands: Operands, given_up: Variable | None) -> list[Action] | None:
    """Return the step of the largest elements of windows, of their places, or of values put there."""
    if _module_of(equation) != _POOLING:
        return None
    kind = POOLINGS[equation.name]
    taken = [_joined(operands.of(x)) for x in equation.arguments[: 2 if kind == "spread" else 1]]
    taken.append(_joined(operands.of(equation.output)))
    images, windows = (taken[-1], taken[0]) if kind == "spread" else (taken[0], taken[-1])
    params = equation.params
    return [
        Action("Pooling", (kind, images.shape, params["window"], params["strides"], windows.shape[1:3], tuple(taken)))
    ]

