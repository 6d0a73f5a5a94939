"""What ranks state of the programs that the pages and the examples show; each check is run by on_ranks.py."""

from __future__ import annotations

import importlib.util
import io
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from group import Group
from mpi4py import MPI

from ebbtide.optimize import adam

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mpi.md"
STEPS = 12


def program_of_page(number: int) -> str:
    """Return one of the programs of the page about many ranks."""
    return PAGE.read_text(encoding="utf-8").split("```python\n")[number].partition("```")[0]


def run(program: str, group: Group) -> str:
    """Run a program on the ranks of a group, and return what this one printed."""
    said = io.StringIO()
    program = program.replace("comm = MPI.COMM_WORLD", "comm = ranks")
    with redirect_stdout(said):
        exec(compile(program, str(PAGE), "exec"), {"__name__": "page", "ranks": group.comm})  # noqa: S102 - ours
    return said.getvalue()


def check_page(group: Group) -> None:
    """The first program of the page runs, and compares its derivative with a difference itself."""
    assert run(program_of_page(1), group).startswith("value ") == (group.rank == 0)


def check_job(group: Group) -> None:
    """The job of the page leaves the slope of each rank and nothing on the disks."""
    program = program_of_page(2)
    assert program.startswith("# job.py")
    with group.directory() as directory:
        local, shared = directory / "local", directory / "scratch"
        if group.rank == 0:
            local.mkdir()
            shared.mkdir()
        group.meet()
        said = run(program.replace("/local", str(local)).replace("/scratch/me", str(shared)), group)
        group.meet()
        assert said == ""
        assert sorted(path.name for path in shared.iterdir()) == [f"slope{rank}.npy" for rank in range(group.size)]
        assert list(local.iterdir()) == []
        slopes = [np.load(shared / f"slope{rank}.npy") for rank in range(group.size)]
        expected = np.sin(np.arange(1000.0 * group.size))
        for _ in range(400):  # the matrix A of a step is symmetric: the slope of |A^200 u|^2 is 2 A^400 u
            expected += 0.2 * (np.append(expected[1:], 0.0) - 2.0 * expected + np.append(0.0, expected[:-1]))
        np.testing.assert_allclose(np.concatenate(slopes), 2.0 * expected, rtol=1e-10, atol=1e-13)


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


def example(name: str) -> Any:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def check_training(group: Group) -> None:
    """Ranks that add up flat gradients, one message a step, train as one process; an ensemble sends one in all."""
    program = example("data_parallel")
    points, labels = program.spirals(200)
    counted = Counted(group.comm)
    flat, losses = program.train(counted, points, labels, STEPS, adam(1e-2))
    assert counted.calls == ["Iallreduce"] * STEPS, counted.calls
    assert all(np.array_equal(flat, other) for other in group.rows(flat))
    counted = Counted(group.comm)
    shares = program.train_many(counted, points, labels, STEPS, 3, adam(1e-2))
    assert counted.calls == ["Iallreduce"], counted.calls
    if group.rank:
        return
    alone, expected = program.train(MPI.COMM_SELF, points, labels, STEPS, adam(1e-2))
    np.testing.assert_allclose(losses, expected, rtol=1e-11)
    np.testing.assert_allclose(flat, alone, rtol=1e-8, atol=1e-10)
    expected = program.train_many(MPI.COMM_SELF, points, labels, STEPS, 3, adam(1e-2))
    np.testing.assert_allclose(shares, expected, rtol=1e-10)
