"""
One array of 1000 x 1000 that is used k times: the sum over i of np.sum(h c_i), with k from 2 to 1000.

The contributions of the uses are added into one array as the sweep meets them: two units, whatever k is, of which one
is h itself. By hand: h and the gradient. Bar: 2.2 units (of the record of 1000 uses, 1.1 MB, too).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.measure import Table, apart, generator, in_units, installed, jax_peak, peak_bytes, resident_peak, run
from ebbtide import grad

SIZE = 1000
USES = (2, 10, 100, 1000)
UNITS = 2.2


def uses_of(m: Any, x: Any, constants: list[float]) -> Any:
    """Return the sum over all uses."""
    h = x * 1.0
    total = 0.0
    for c in constants:
        total = total + m.sum(h * c)
    return total


def numbers(uses: int) -> list[float]:
    """Return the constants."""
    return generator(1).standard_normal(uses).tolist()


def by_hand(x: Any, constants: list[float]) -> Any:
    """Return the gradient; the value is computed as a user would, with one temporary."""
    h = x * 1.0
    for c in constants:
        np.sum(h * c)
    del h
    g = np.zeros_like(x)
    for c in constants:
        g += c
    return g


def torch_peak(size: int, uses: int) -> int | None:
    """Return how far torch's process grows."""
    import torch

    def call(x: Any) -> None:
        uses_of(torch, x, numbers(uses)).backward()

    def given(size: int) -> Any:
        return torch.tensor(generator().standard_normal((size, size)), requires_grad=True)

    large = given(size)
    return resident_peak(lambda: call(given(32)), lambda: call(large))


def jax_plan(size: int, uses: int) -> int:
    """Return the bytes that XLA plans."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    return jax_peak(jax.grad(lambda x: uses_of(jnp, x, numbers(uses))), generator().standard_normal((size, size)))


def main(quick: bool = False) -> None:
    """Print the table."""
    size = 50 if quick else SIZE
    x = generator().standard_normal((size, size))
    peers = ("autograd", "torch (resident)", "JAX jit (planned)")
    table = Table(f"Peak of k uses of {size} x {size}, in arrays", peers)
    for uses in (2, 10) if quick else USES:
        constants = numbers(uses)
        ours = grad(lambda x, constants=constants: uses_of(np, x, constants))
        np.testing.assert_allclose(ours(x), by_hand(x, constants), rtol=1e-9, atol=1e-9)
        peak = peak_bytes(lambda ours=ours: ours(x))
        found = None
        if installed("autograd"):
            import autograd
            import autograd.numpy as anp

            theirs = autograd.grad(lambda x, constants=constants: uses_of(anp, x, constants))
            found = peak_bytes(lambda theirs=theirs: theirs(x))
        cells = [in_units(found, x.nbytes, "autograd")]
        for peer, function in (("torch", "torch_peak"), ("jax", "jax_plan")):
            cells.append(in_units(apart(peer, f"bench.fanout:{function}", size=size, uses=uses), x.nbytes, peer))
        hand = in_units(peak_bytes(lambda constants=constants: by_hand(x, constants)), x.nbytes)
        table.add(f"k = {uses}", in_units(peak, x.nbytes), cells, hand, f"{UNITS}", peak <= UNITS * x.nbytes)
    table.show()


if __name__ == "__main__":
    run(main)
