"""Training and ensembles on ranks beside one process; started by `mpiexec` from test_training.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from ebbtide.optimize import adam

WORLD = MPI.COMM_WORLD
STEPS = 12


class Counted:
    """A communicator that counts what is asked of it."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.comm, name)
        if callable(found):
            self.calls.append(name)
        return found


def example() -> Any:
    """Return the example as a module."""
    path = Path(__file__).parents[3] / "examples" / "data_parallel.py"
    spec = importlib.util.spec_from_file_location("data_parallel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Compare all ranks with each of them alone, and count messages."""
    program = example()
    points, labels = program.spirals(200)
    counted = Counted(WORLD)
    flat, losses = program.train(counted, points, labels, STEPS, adam(1e-2))
    assert counted.calls == ["Iallreduce"] * STEPS, counted.calls
    assert all(np.array_equal(flat, other) for other in WORLD.allgather(flat))
    alone, expected = program.train(MPI.COMM_SELF, points, labels, STEPS, adam(1e-2))
    np.testing.assert_allclose(losses, expected, rtol=1e-11)
    np.testing.assert_allclose(flat, alone, rtol=1e-8, atol=1e-10)
    counted = Counted(WORLD)
    shares = program.train_many(counted, points, labels, STEPS, 3, adam(1e-2))
    assert counted.calls == ["Iallreduce"], counted.calls
    expected = program.train_many(MPI.COMM_SELF, points, labels, STEPS, 3, adam(1e-2))
    np.testing.assert_allclose(shares, expected, rtol=1e-10)
    if WORLD.rank == 0:
        print("trained", flush=True)


if __name__ == "__main__":
    main()
