"""
Five LeNet-5 side by side, 44,426 parameters each, on digits of 28 x 28 points in batches of 128, with Adam.

Ours is written for one net and is `jit(vmap(step))` with the machine; beside it JAX's jit(vmap), and torch, one net
after the other; then five threads of the user's, each of which trains a net of its own. Bar: not slower than both, and
nothing is allocated in the steady state.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bench.ensembles import COLUMNS, RATE, check_alike, digits, steady_state
from bench.measure import Table, alternate, gains, generator, installed, median_of, run
from ebbtide import grad, jit, nn, optimize, ravel_tree, vmap

# What a step allocates does not depend on the batch: so many images are watched for so many steps.
NETS, BATCH, FEW, STEADY = 5, 128, 8, 600
SHAPES = (
    ((5, 5, 1, 6), (6,)), ((5, 5, 6, 16), (16,)), ((256, 120), (120,)), ((120, 84), (84,)), ((84, 10), (10,)),
)  # fmt: skip


def start() -> list[Any]:
    """Return the parameters of one net: kernels and biases, of convolutions and of dense layers."""
    random = generator(1)
    return [
        ((random.standard_normal(w) * np.sqrt(2 / np.prod(w[:-1]))).astype(np.float32), np.zeros(b, np.float32))
        for w, b in SHAPES
    ]


def logits(layers: Any, x: Any) -> Any:
    """Return the logits of images (rows, 28, 28, 1)."""
    first, second, *dense = layers
    x = nn.max_pool2d(nn.relu(nn.conv2d(x, *first)))
    x = nn.max_pool2d(nn.relu(nn.conv2d(x, *second)))
    x = np.reshape(x, (len(x), -1))
    for w, b in dense[:-1]:
        x = nn.relu(nn.dense(x, w, b))
    return nn.dense(x, *dense[-1])


def ours(nets: int) -> tuple[Any, Any]:
    """Return our step of all nets on their images and labels, and the parameters after it."""
    flat, unravel = ravel_tree(start())
    optimizer = optimize.adam(RATE)

    def loss(flat: Any, x: Any, labels: Any) -> Any:
        return nn.cross_entropy(logits(unravel(flat), x), labels)

    def step(flat: Any, state: Any, x: Any, labels: Any) -> Any:
        return optimizer.step(flat, grad(loss)(flat, x, labels), state)

    advance = jit(vmap(step), donate_argnums=(0, 1), executor="machine")
    many = np.stack([flat] * nets)
    now = [many, vmap(optimizer.init)(many)]

    def do(x: Any, labels: Any) -> None:
        now[0], now[1] = advance(now[0], now[1], x, labels)

    return do, lambda: now[0]


def jax_step(nets: int) -> tuple[Any, Any]:
    """Return JAX's step of all nets."""
    import jax
    import jax.numpy as jnp

    flat, unravel = ravel_tree(start())

    def pool(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def loss(flat: Any, x: Any, labels: Any) -> Any:
        first, second, *dense = unravel(flat)
        for w, b in (first, second):
            form = ("NHWC", "HWIO", "NHWC")
            x = pool(jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=form) + b))
        x = x.reshape(len(x), -1)
        for w, b in dense[:-1]:
            x = jax.nn.relu(x @ w + b)
        logarithms = jax.nn.log_softmax(x @ dense[-1][0] + dense[-1][1])
        return -jnp.mean(jnp.take_along_axis(logarithms, labels[:, None], 1))

    def step(x: Any, m: Any, v: Any, count: Any, images: Any, labels: Any) -> Any:
        g = jax.grad(loss)(x, images, labels)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        root = jnp.sqrt(1 - 0.999**count)
        return x - RATE * root / (1 - 0.9**count) * m / (jnp.sqrt(v) + 1e-8 * root), m, v

    together = jax.jit(jax.vmap(step, (0, 0, 0, None, 0, 0)), donate_argnums=(0, 1, 2))
    many = jnp.stack([flat] * nets)
    now = [many, jnp.zeros_like(many), jnp.zeros_like(many), 0]

    def do(x: Any, labels: Any) -> None:
        now[3] += 1
        now[:3] = together(*now[:3], np.float32(now[3]), x, labels.astype(np.int32))
        now[0].block_until_ready()

    return do, lambda: np.asarray(now[0])


def torch_step(nets: int) -> tuple[Any, Any]:
    """Return torch's step, one net after the other."""
    import torch

    def form(w: Any) -> Any:
        return np.ascontiguousarray(w.transpose(3, 2, 0, 1)) if w.ndim == 4 else w

    all_nets = [[torch.tensor(form(a), requires_grad=True) for pair in start() for a in pair] for _ in range(nets)]
    optimizers = [torch.optim.Adam(one, lr=RATE) for one in all_nets]
    functional = torch.nn.functional

    def do(x: Any, labels: Any) -> None:
        for params, optimizer, images, classes in zip(all_nets, optimizers, x, labels, strict=True):
            z = torch.from_numpy(images).permute(0, 3, 1, 2)
            for k in (0, 2):
                z = functional.max_pool2d(torch.relu(functional.conv2d(z, params[k], params[k + 1])), 2)
            z = z.permute(0, 2, 3, 1).flatten(1)
            for k in (4, 6):
                z = torch.relu(z @ params[k] + params[k + 1])
            optimizer.zero_grad()
            functional.cross_entropy(z @ params[8] + params[9], torch.from_numpy(classes)).backward()
            optimizer.step()

    def parameters() -> Any:
        found = [[a.detach().numpy() for a in one] for one in all_nets]
        return np.stack([np.concatenate([(a.transpose(2, 3, 1, 0) if a.ndim == 4 else a).ravel() for a in one])
                         for one in found])  # fmt: skip

    return do, parameters


def in_threads(make: Callable[[int], tuple[Any, Any]], nets: int, pool: ThreadPoolExecutor) -> tuple[Any, Any]:
    """Return the step of nets each of which a thread trains, and their parameters."""
    each = [make(1) for _ in range(nets)]

    def do(x: Any, labels: Any) -> None:
        parts = [(one, slice(k, k + 1)) for k, (one, _) in enumerate(each)]
        for done in [pool.submit(one, x[part], labels[part]) for one, part in parts]:
            done.result()

    return do, lambda: np.concatenate([parameters() for _, parameters in each])


def compared(table: Table, case: str, everyone: dict[str, Any], batch: tuple[Any, Any], runs: int) -> None:
    """Add the row of a case."""
    check_alike(everyone, [batch] * 2)
    with threadpool_limits(1, "blas"):
        times = alternate({name: (lambda do=do: do(*batch)) for name, (do, _) in everyone.items()}, runs)
    cells, met = gains(times, "ours", {"jax": 1.0, "torch": 1.0})
    table.add(case, median_of(times, "ours", 1e3), cells, "", ">= 1", all(met) if len(met) == 2 else None)


def main(quick: bool = False) -> None:
    """Print the tables."""
    nets, batch, runs = (2, 4, 1) if quick else (NETS, BATCH, 9)
    images, labels = digits(28 * 28, quick)
    rows = generator(3).integers(0, len(images), (nets, batch))
    x, classes = images[rows].reshape(nets, batch, 28, 28, 1), labels[rows]
    makers = {"ours": ours}
    makers |= {"jax": jax_step} if installed("jax") else {}
    makers |= {"torch": torch_step} if installed("torch") else {}
    table = Table(f"A step of {nets} LeNet-5, batch {batch}: ms, medians", ("JAX jit(vmap)", "torch, one by one"), "")
    side_by_side = {name: make(nets) for name, make in makers.items()}
    compared(table, "side by side", side_by_side, (x, classes), runs)
    with ThreadPoolExecutor(nets) as pool:
        apart = {name: in_threads(make, nets, pool) for name, make in makers.items()}
        compared(table, "a thread for each", apart, (x, classes), runs)
    table.show()
    steps = 2 if quick else STEADY
    memory = Table(f"Net bytes of a steady state of {steps} steps", COLUMNS)
    do, some, their = ours(nets)[0], x[:, :FEW], classes[:, :FEW]
    found = steady_state(lambda k: do(some, their), steps, 2 if quick else 2 * STEADY)
    bar = "0; < 5 faults; 0 collections"
    memory.add(f"side by side, batch {FEW}", f"{found.net}", list(found.cells), "0", bar, found.met)
    memory.show()


if __name__ == "__main__":
    run(main)
