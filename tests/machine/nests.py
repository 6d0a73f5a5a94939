"""What the tests of nests share: random steps, and a compiled step that Python runs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ebbtide.machine import Elementwise
from ebbtide.machine._compiled import Compiled
from ebbtide.machine.nests import NAMES, nest_of

UNARY = (np.negative, np.absolute, np.square, np.sqrt, np.reciprocal)
BINARY = (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum)
COMPARED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
Function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p))


class Interpreted:
    """Makes steps as `compiled` does, of nests that Python runs; `made` counts them."""

    def __init__(self) -> None:
        self.functions: list[Any] = []

    @property
    def made(self) -> int:
        return len(self.functions)

    def __call__(self, *parts: Any) -> Any:
        nest = nest_of(parts)
        run = interpreted(nest.text)

        def call(addresses):
            with np.errstate(all="ignore"):
                run(addresses)

        self.functions.append(Function(call))
        address = ctypes.cast(self.functions[-1], ctypes.c_void_p).value
        places = tuple((view.buffer, view.offset) for view in nest.views)
        return Compiled(tuple(Elementwise(*part) for part in parts), places, address)


def interpreted(text: str) -> Any:
    """Return the function of a nest, as Python runs it."""
    names: dict[str, Any] = {name: getattr(np, name) for name in NAMES}
    names.update(carray=_array_at, sqrt=np.sqrt, choose=lambda condition, one, other: one if condition else other)
    exec(text, names)  # noqa: S102 - our own text
    return names["nest"]


def _array_at(address: int, shape: tuple[int], kind: Any) -> np.ndarray:
    """Return the array at an address."""
    size = np.dtype(kind).itemsize * shape[0]
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind)


def random_part(random: np.random.Generator, shape: tuple[int, ...], length: int) -> tuple[Any, list[np.ndarray]]:
    """
    Return the arguments of a step of random operations, and its buffers, the last of which is the result.

    Operands are of all types that there are casts of, and lie in any order, backwards, with gaps, or are broadcast.
    """
    letter = "fd"[random.integers(2)]
    slow = bool(random.integers(2))  # a nest has choices, or what takes long
    letters = [*[letter] * 3, *random.choice([*"?bhilBHILfd"], 2)]
    buffers = [_drawn(random, one, shape) for one in letters]
    links: list[Any] = []
    pieces, values = len(buffers) + 1, [0, 1, 2]
    for number, one in enumerate(letters[3:], 3):
        if one == letter:
            values.append(number)
        else:
            links.append(("cast", f"{one}->{letter}", number, pieces))
            values.append(pieces)
            pieces += 1
    for count in range(length):
        x, y, z = random.choice(values, 3)
        to = pieces if count < length - 1 else len(buffers)
        kind = random.integers(4)
        usable = [f for f in (*UNARY, *BINARY) if (f in (np.divide, np.sqrt, np.reciprocal)) <= slow]
        usable = [f for f in usable if not (slow and f in (np.maximum, np.minimum))]
        if kind == 0 and not slow and pieces < len(buffers) + 12:
            compare = COMPARED[random.integers(len(COMPARED))]
            links.append((compare, f"{letter}{letter}->?", x, y, pieces + 1))
            links.append(("where", f"?{letter}{letter}->{letter}", pieces + 1, y, z, to))
            pieces += 1
        else:
            operation = usable[random.integers(len(usable))]
            links.append((operation, f"{letter * operation.nin}->{letter}", *(x, y)[: operation.nin], to))
        values = [*values[-4:], to]
        pieces += 1
    # Each operand is read: those that are left are added at last.
    same = {number for number, one in enumerate(letters) if one == letter}
    for number in same - {register for link in links for register in link[2:-1]}:
        links[-1] = (*links[-1][:-1], pieces)
        links.append((np.add, f"{letter}{letter}->{letter}", number, pieces, len(buffers)))
    links = [tuple(int(x) if isinstance(x, np.integer) else x for x in link) for link in links]
    buffers.append(_laid_out(random, np.zeros(shape, letter)))
    operands = tuple((k, 0, x.dtype.char, x.strides) for k, x in enumerate(buffers))
    return (shape, operands, *links), buffers


def _drawn(random: np.random.Generator, letter: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers, some of them zeros."""
    kept = tuple(1 if random.integers(5) == 0 else n for n in shape)
    found = np.round(random.standard_normal(kept) * 2, int(random.integers(3))) + 0.0
    found = np.abs(found).astype(letter) if letter in "?BHIL" else found.astype(letter)
    return np.broadcast_to(_laid_out(random, found), shape)


def _laid_out(random: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Return an array that lies in another order of axes, backwards or with gaps."""
    order = random.permutation(array.ndim)
    gaps = random.integers(1, 3, array.ndim)
    steps = tuple(slice(None, None, int(step * random.choice([1, -1]))) for step in gaps)
    whole = np.zeros([n * step for n, step in zip(np.array(array.shape)[order], gaps, strict=True)], array.dtype)
    found = whole[steps].transpose(np.argsort(order))
    found[...] = array
    return found
