"""
A chain of 100 relus, h <- np.maximum(h, 0.0), on 1000 x 1000 float64.

Of each relu the sweep needs to know only where it was active: one byte an element, 12.5 units in all. By hand: these
masks, the array, and the product in flight. Bar: 14.6 units.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.measure import Table, apart, generator, in_units, installed, jax_peak, peak_bytes, resident_peak, run
from ebbtide import grad

SIZE, STEPS = 1000, 100
UNITS = 14.6


def chain(relu: Any, total: Any, h: Any, steps: int) -> Any:
    """Return the sum after *steps* relus."""
    for _ in range(steps):
        h = relu(h)
    return total(h)


def by_hand(h: Any, steps: int) -> Any:
    """Return the gradient from boolean masks."""
    masks = []
    for _ in range(steps):
        masks.append(h > 0)
        h = np.maximum(h, 0.0)
    g = np.ones_like(h)
    del h
    while masks:
        g *= masks.pop()
    return g


def torch_peak(size: int, steps: int) -> int | None:
    """Return how far torch's process grows."""
    import torch

    def given(size: int) -> Any:
        return torch.tensor(generator().standard_normal((size, size)), requires_grad=True)

    large = given(size)
    return resident_peak(
        lambda: chain(torch.relu, torch.sum, given(32), steps).backward(),
        lambda: chain(torch.relu, torch.sum, large, steps).backward(),
    )


def jax_plan(size: int, steps: int) -> int:
    """Return the bytes that XLA plans; it sees that a relu of a relu is the same relu."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    given = generator().standard_normal((size, size))
    return jax_peak(jax.grad(lambda h: chain(lambda h: jnp.maximum(h, 0.0), jnp.sum, h, steps)), given)


def main(quick: bool = False) -> None:
    """Print the table."""
    size, steps = (50, 5) if quick else (SIZE, STEPS)
    x = generator().standard_normal((size, size))
    peers = ("autograd", "torch (resident)", "JAX jit (planned)")
    table = Table(f"Peak of {steps} relus of {size} x {size}, in arrays", peers)
    ours = grad(lambda h: chain(lambda h: np.maximum(h, 0.0), np.sum, h, steps))
    # At 0 the slopes of both sides share, in each of the relus.
    positive = x > 0
    np.testing.assert_array_equal(ours(x)[positive], by_hand(x, steps)[positive])
    peak = peak_bytes(lambda: ours(x))
    found = None
    if installed("autograd"):
        import autograd
        import autograd.numpy as anp

        theirs = autograd.grad(lambda h: chain(lambda h: anp.maximum(h, 0.0), anp.sum, h, steps))
        found = peak_bytes(lambda: theirs(x))
    cells = [in_units(found, x.nbytes, "autograd")]
    for peer, function in (("torch", "torch_peak"), ("jax", "jax_plan")):
        cells.append(in_units(apart(peer, f"bench.relu:{function}", size=size, steps=steps), x.nbytes, peer))
    hand = in_units(peak_bytes(lambda: by_hand(x, steps)), x.nbytes)
    table.add("wrt the input", in_units(peak, x.nbytes), cells, hand, f"{UNITS}", peak <= UNITS * x.nbytes)
    table.show()


if __name__ == "__main__":
    run(main)
