"""
Twenty nets of 500,000 parameters each, a hundred times those of `ensembles`, which is where many small nets grow to.

Ours is the same code, `jit(vmap(step))` with the machine; beside it JAX's jit(vmap), and torch.compile of all nets at
once, products of stacks of matrices. Bar: not slower than both, and nothing is allocated in the steady state. The time
of the first step of 200 small nets, with all that is traced and planned for it, is measured with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bench.ensembles import CASES, COLUMNS, RATE, Job, check_alike, digits, jax_step, ours, steady_state
from bench.measure import Table, alternate, gains, generator, installed, median_of, run

SIZES = (784, 512, 192, 10)
NETS, BATCH, FIRST = 20, 128, 0.3
# What a step allocates does not depend on the batch: so many rows are watched for so many steps.
FEW, STEADY = 4, 300


def compiled_step(job: Job) -> tuple[Callable[[Any], None], Callable[[], Any]]:
    """Return torch's step of all nets at once, forward and backward compiled."""
    import torch

    flats, unravel = job.start()
    images, labels = torch.from_numpy(job.images), torch.from_numpy(job.labels)
    layers = zip(*[[a for pair in unravel(one) for a in pair] for one in flats], strict=True)
    params = [torch.tensor(np.stack(some), requires_grad=True) for some in layers]
    optimizer = torch.optim.Adam(params, lr=RATE, fused=True)

    def loss(params: Any, x: Any, classes: Any) -> Any:
        for k in range(0, len(params), 2):
            x = torch.baddbmm(params[k + 1][:, None], x, params[k])
            x = torch.relu(x) if k < len(params) - 2 else x
        # The mean over rows of each net, and the sum over nets: each has its own gradient.
        return torch.nn.functional.cross_entropy(x.flatten(0, 1), classes.flatten()) * job.nets

    compiled = torch.compile(loss)

    def do(rows: Any) -> None:
        row = torch.from_numpy(rows)
        optimizer.zero_grad()
        compiled(params, images[row], labels[row]).backward()
        optimizer.step()

    return do, lambda: np.concatenate([a.detach().numpy().reshape(job.nets, -1) for a in params], axis=1)


def first_step(images: Any, labels: Any, quick: bool) -> float:
    """Return the seconds of the first step of 200 small nets."""
    job = Job(CASES["64-48-32-10"], 2 if quick else 200, 32, images, labels)
    do, _, _ = ours(job, 2)
    rows = job.rows(generator(5))
    start = time.perf_counter()
    do(rows)
    return time.perf_counter() - start


def main(quick: bool = False) -> None:
    """Print the tables."""
    sizes, nets, batch, runs = ((64, 8, 8, 10), 2, 4, 1) if quick else (SIZES, NETS, BATCH, 9)
    job = Job(sizes, nets, batch, *digits(sizes[0], quick))
    mine = ours(job, 2)
    everyone: dict[str, Any] = {"ours": mine[:2]}
    everyone |= {"jax": jax_step(job)} if installed("jax") else {}
    everyone |= {"torch": compiled_step(job)} if installed("torch") else {}
    random = generator(2)
    batches = [job.rows(random) for _ in range(8)]
    check_alike(everyone, [(rows,) for rows in batches[:2]])
    with threadpool_limits(1, "blas"):  # of NumPy and SciPy: nets go to threads, products do not
        times = alternate({name: (lambda do=do: do(batches[0])) for name, (do, _) in everyone.items()}, runs)
    count = sum((a + 1) * b for a, b in pairwise(sizes))
    table = Table(f"A step of {nets} nets of {count:,} parameters: ms", ("JAX jit(vmap)", "torch.compile"), "")
    cells, met = gains(times, "ours", {"jax": 1.0, "torch": 1.0})
    table.add(f"batch {batch}", median_of(times, "ours", 1e3), cells, "", ">= 1", all(met) if len(met) == 2 else None)
    table.show()
    steps, small = 2 if quick else STEADY, Job(sizes, nets, FEW, job.images, job.labels)
    few, rows = ours(small, 2), [small.rows(random) for _ in range(8)]
    memory = Table(f"Net bytes of a steady state of {steps} steps", COLUMNS)
    kept = steady_state(lambda k: few[0](rows[k % 8]), steps, 2 if quick else 2 * STEADY)
    memory.add(f"batch {FEW}", f"{kept.net}", list(kept.cells), "0", "0; < 5 faults; 0 collections", kept.met)
    memory.show()
    seconds = sorted(first_step(*digits(64, quick), quick) for _ in range(3))[1]
    start = Table("The first step of 200 nets: s, median of 3", (), "")
    start.add("64-48-32-10, batch 32", f"{seconds:.3f}", [], "", f"<= {FIRST}", None if quick else seconds <= FIRST)
    start.show()


if __name__ == "__main__":
    run(main)
