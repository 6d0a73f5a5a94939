"""
Which spiral is a point on? A small network, trained by all ranks of an MPI run; then many networks, some on each.

All ranks draw the same batches and take their rows of them; a step adds up loss and gradient in one message of one flat
vector, so the training is that of one process. An ensemble is divided by its members: they train without a message, and
one adds up what they predict.

    mpiexec -n 4 python examples/data_parallel.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ebbtide import jit, mpi, nn, ravel_tree, value_and_grad, vmap
from ebbtide.optimize import Optimizer, adam

HIDDEN = 24
BATCH = 96


def spirals(count: int) -> tuple[Any, Any]:
    """Return points (count, 2) on two spirals with some noise, and which spiral each is on, 0 or 1."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 2
    angle = 3.0 * np.pi * np.sqrt(random.uniform(0.05, 1.0, count))
    along = np.stack([np.cos(angle + np.pi * labels), np.sin(angle + np.pi * labels)], 1)
    return along * (angle / 9.0)[:, None] + 0.02 * random.standard_normal((count, 2)), labels


def initial(seed: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return the parameters of a network as one vector, and the function that makes layers of it."""
    random = np.random.default_rng(seed)
    sizes = ((2, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2))
    return ravel_tree([(random.standard_normal(s) * np.sqrt(2.0 / s[0]), np.zeros(s[1])) for s in sizes])


def logits(layers: Any, points: Any) -> Any:
    """Return the logits (rows, 2) of points (rows, 2)."""
    for weights, bias in layers[:-1]:
        points = np.tanh(nn.dense(points, weights, bias))
    return nn.dense(points, *layers[-1])


def loss_of(unravel: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the summed loss of some points as a function of a vector of parameters."""
    return lambda flat, points, labels: len(points) * nn.cross_entropy(logits(unravel(flat), points), labels)


def train(comm: Any, points: Any, labels: Any, steps: int, optimizer: Optimizer) -> tuple[Any, list[float]]:
    """
    Train one network with the rows of all ranks.

    Args:
        comm: The communicator; each rank calls this with the same arguments.
        points: Shape (rows, 2), on each rank.
        labels: Shape (rows,).
        steps: How many batches.
        optimizer: What steps are made of gradients.

    Returns:
        The parameters, the same bits on all ranks, and the loss before each step.
    """
    flat, unravel = initial(seed=1)
    gradient = jit(value_and_grad(loss_of(unravel)))
    state, losses = optimizer.init(flat), []
    random = np.random.default_rng(2)  # the same on all ranks
    for _ in range(steps):
        rows = random.choice(len(points), BATCH, replace=False)[comm.rank :: comm.size]
        value, slope = gradient(flat, points[rows], labels[rows])
        mean = mpi.allreduce(np.append(slope, value), comm) / BATCH  # the one message of a step
        flat, state = optimizer.step(flat, mean[:-1], state)
        losses.append(float(mean[-1]))
    return flat, losses


def train_many(comm: Any, points: Any, labels: Any, steps: int, networks: int, optimizer: Optimizer) -> Any:
    """Return the mean probabilities (rows, 2) of networks, of which each rank trains some, each on its own batches."""
    mine = range(comm.rank, networks, comm.size)
    unravel = initial(0)[1]
    loss = loss_of(unravel)

    def step(flat: Any, state: Any, points: Any, labels: Any) -> Any:
        return optimizer.step(flat, value_and_grad(loss)(flat, points, labels)[1] / BATCH, state)

    flats = np.stack([initial(member)[0] for member in mine])
    states = vmap(optimizer.init)(flats)
    together = jit(vmap(step))
    randoms = [np.random.default_rng([3, member]) for member in mine]
    for _ in range(steps):
        rows = np.stack([random.choice(len(points), BATCH, replace=False) for random in randoms])
        flats, states = together(flats, states, points[rows], labels[rows])
    shares = vmap(lambda flat: nn.softmax(logits(unravel(flat), points)))(flats)
    return mpi.allreduce(np.sum(shares, 0), comm) / networks


def main() -> int:
    """Train, and print on the first rank how many points are right."""
    parser = argparse.ArgumentParser(description="Training on many ranks.")
    parser.add_argument("--steps", type=int, default=1500, help="number of steps (default: %(default)s)")
    parser.add_argument("--networks", type=int, default=8, help="networks of the ensemble (default: %(default)s)")
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    if arguments.networks < comm.size:
        parser.error(f"--networks {arguments.networks}: at least one for each of {comm.size} ranks")
    points, labels = spirals(600)
    with mpi.distributed(comm):
        flat, losses = train(comm, points, labels, arguments.steps, adam(1e-2))
        shares = train_many(comm, points, labels, arguments.steps, arguments.networks, adam(1e-2))
    right = np.mean(np.argmax(logits(initial(1)[1](flat), points), 1) == labels)
    together = np.mean(np.argmax(shares, 1) == labels)
    if comm.rank == 0:
        print(f"{comm.size} ranks: loss {losses[0]:.3f} to {losses[-1]:.3f}, {right:.1%} of the points right")
        print(f"{arguments.networks} networks on their own: {together:.1%} by their mean")
    return 0 if right > 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
