"""What the ranks of a group state of time loops and checkpointed functions; each check is run by on_ranks.py."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from group import Group

import ebbtide as eb
from ebbtide import mpi


def loss_of(group: Group, steps: int, dead: bool) -> Callable[..., Any]:
    """Return a functional of a loop of which each step communicates; on some ranks nothing of it is active."""

    def functional(u: Any, k: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            from_below = mpi.sendrecv(u, group.comm, group.up, group.down)
            mean = mpi.allreduce(np.sum(u), group.comm) / group.size
            return u + 0.1 * k * np.sin(from_below) - 0.01 * mean

        start = np.ones(3) * group.rank if dead and group.rank else u
        final = eb.timeloop(step, start, steps)
        return mpi.total(np.sum(final**2), group.comm)

    return functional


def check_loops(group: Group) -> None:
    """Loops that communicate have one gradient whatever the schedule, also where a rank has nothing to derive."""
    u = group.random((3,), np.float64, 8)
    for dead in (False, True):
        functional = loss_of(group, 12, dead)

        def coupled(u: Any, k: Any, f: Any = functional) -> Any:
            return f(u, mpi.replicated(k, group.comm))

        with mpi.distributed(group.comm):
            value, (by_u, by_k) = eb.value_and_grad(coupled, argnums=(0, 1))(u, 0.7)
            for budget in ("56 KiB", "72 KiB", "1 MiB"):
                again, (other_u, other_k) = eb.value_and_grad(coupled, (0, 1), budget=eb.Budget(memory=budget))(u, 0.7)
                np.testing.assert_array_equal(again, value)
                np.testing.assert_array_equal(other_u, by_u)
                np.testing.assert_array_equal(other_k, by_k)
            product = eb.hvp(lambda u: coupled(u, 0.7))(u, np.ones(3))
        h = 1e-5
        slope = (coupled(u, 0.7 + h) - coupled(u, 0.7 - h)) / (2 * h)
        assert np.isclose(by_k, slope, rtol=1e-7), (by_k, slope)
        v = group.random((3,), np.float64, 9)
        slope = (coupled(u + h * v, 0.7) - coupled(u - h * v, 0.7)) / (2 * h)
        assert np.isclose(group.inner(by_u, v).real, slope, rtol=1e-7), dead
        ahead, back = (eb.grad(lambda u: coupled(u, 0.7))(u + s * h) for s in (1, -1))
        np.testing.assert_allclose(product, (ahead - back) / (2 * h), rtol=1e-5, atol=1e-7)


def check_checkpoints(group: Group) -> None:
    """A checkpointed function may communicate, also where its result is not used."""
    def block(x: Any) -> Any:
        return np.sin(mpi.sendrecv(x, group.comm, group.up, group.down))

    def functional(x: Any) -> Any:
        for _ in range(3):
            x = eb.checkpoint(block)(x)
        return np.sum(x**2) if group.rank == 0 else 0.0 * np.sum(x)

    x = group.random((4,), np.float64, 10)
    found = eb.grad(functional)(x)

    def unchecked(x: Any) -> Any:
        final = block(block(block(x)))
        return np.sum(final**2) if group.rank == 0 else np.sum(final) * 0.0

    plain = eb.grad(unchecked)(x)
    np.testing.assert_array_equal(found, plain)
    assert np.any(group.sum(np.abs(found)) > 0)


def check_page(group: Group) -> None:
    """The program of the page about many ranks runs, and compares its derivative with a difference itself."""
    page = Path(__file__).parents[2] / "docs" / "mpi.md"
    program = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(program, str(page), "exec"), {"__name__": "page"})  # noqa: S102 - a page of ours
    assert said.getvalue().startswith("value ") == (group.rank == 0)
