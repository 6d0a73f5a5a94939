"""The blocks of memory in which programs run."""

from __future__ import annotations

from typing import Any, final

import numpy as np


@final
class Block:
    """
    One block of memory, with the arrays that programs have laid out in it.

    Memory:
        As much as the largest program so far took that ran in it.
    """

    __slots__ = ("memory", "views")

    def __init__(self) -> None:
        self.memory: np.ndarray = np.empty(0, np.uint8)
        # By what stands for the program, which in its own place would be in a cycle.
        self.views: dict[Any, tuple[Any, ...]] = {}

    def grow(self, nbytes: int) -> None:
        """Let the block be of a size; what is in it is lost."""
        self.views.clear()
        # The old one goes before the new one comes.
        self.memory = np.empty(0, np.uint8)
        self.memory = np.empty(nbytes, np.uint8)


@final
class Blocks:
    """
    What the programs of one function share: blocks, one for each run at the same time, and who runs them.

    Args:
        chained: Whether elementwise equations that follow each other are done by the compiled `Chain`.
        compiled: Whether stretches of them are compiled by Numba.
        threads: How many threads run the members of a batch; None for as many as there are cores, where that pays.

    Memory:
        The blocks, until they are dropped or retired.
    """

    __slots__ = ("_is_retired", "_spare", "chained", "compiled", "threads")

    def __init__(self, *, chained: bool = False, compiled: bool = False, threads: int | None = None) -> None:
        self.chained = chained
        self.compiled = compiled
        self.threads = threads
        self._spare: list[Block] = []
        self._is_retired = False

    @property
    def executor(self) -> str:
        """What `jit` was told of who runs the programs, as a text."""
        name = "numba" if self.compiled else "machine" if self.chained else "reference"
        return name if self.threads is None else f"{name} with threads={self.threads}"

    def take(self) -> Block:
        """Return a block that nobody runs in; without `give` it is gone with its last name."""
        try:
            return self._spare.pop()
        except IndexError:
            return Block()

    def give(self, block: Block) -> None:
        """Have a block back."""
        if not self._is_retired:
            self._spare.append(block)

    def forget(self, program: Any) -> None:
        """Forget the arrays of a program that is gone."""
        for block in self._spare:
            block.views.pop(program, None)

    def drop(self) -> None:
        """Let all blocks go that nobody runs in."""
        self._spare.clear()

    def retire(self) -> None:
        """
        Keep no block from now on: the function is gone.

        What it has put on a tape runs once more and brings its own. If that kept the block, a function that is made
        anew in each time step would leave one for each step that is held, 10 states each of a maximum of 8 rows.
        """
        self._is_retired = True
        self.drop()
