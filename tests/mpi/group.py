"""The ranks that check something together, and what their checks need."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from mpi4py import MPI

from ebbtide.mpi.waiting import wait


@final
class Group:
    """The ranks of a communicator. They wait asleep: there may be more of them than cores."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size

    @property
    def up(self) -> int:
        """The next rank on the ring."""
        return (self.rank + 1) % self.size

    @property
    def down(self) -> int:
        """The rank before on the ring."""
        return (self.rank - 1) % self.size

    def random(self, shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
        """Return numbers that differ from rank to rank."""
        generator = np.random.default_rng([seed, self.rank])
        real = generator.standard_normal(shape)
        if np.issubdtype(dtype, np.complexfloating):
            return (real + 1j * generator.standard_normal(shape)).astype(dtype)
        return real.astype(dtype)

    def sum(self, array: Any, op: Any = MPI.SUM) -> np.ndarray:
        """Return the sum of the arrays of all ranks."""
        mine = np.ascontiguousarray(array)
        result = np.empty_like(mine)
        wait([self.comm.Iallreduce(mine, result, op)])
        return result

    def inner(self, x: Any, y: Any) -> complex:
        """Return the product, without a conjugate, of arrays over all ranks; None counts as nothing."""
        mine = 0.0 if x is None or y is None else np.sum(np.asarray(x, complex) * np.asarray(y, complex))
        return complex(self.sum(np.array([complex(mine)]))[0])

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all ranks, one in each row."""
        rows = np.zeros((self.size, *array.shape), array.dtype)
        rows[self.rank] = array
        return self.sum(rows)

    @property
    def world(self) -> int:
        """The rank in the world of the first one."""
        return int(self.comm.group.Translate_ranks([0], MPI.COMM_WORLD.group)[0])

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Make a directory for all ranks, which is empty and goes when all have left the block."""
        made = tempfile.mkdtemp(prefix="ranks-") if self.rank == 0 else None
        path = Path(self.comm.bcast(made))
        try:
            yield path
            self.meet()
        finally:
            if self.rank == 0:
                shutil.rmtree(path, ignore_errors=True)

    def meet(self) -> None:
        """Wait until all ranks are here."""
        wait([self.comm.Ibarrier()])


@contextmanager
def refused(kind: Any, text: str) -> Iterator[None]:
    """Do nothing if the block raises an error with a text in it (pytest takes each rank 0.3 s to import)."""
    raised: BaseException | None = None
    try:
        yield
    except kind as error:
        raised = error
    assert raised is not None, f"No {kind} was raised."
    assert text in str(raised), raised
