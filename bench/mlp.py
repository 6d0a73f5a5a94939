"""
A deep net of square layers, x <- tanh(x W_i), 20 times, where all arrays have one size: 1000 x 1000 float64.

What has to be kept is each layer's output, from which both the slope of tanh and the product's other factor follow; as
the sweep goes, an output dies where a gradient is born. By hand: 20 units of these, the cotangent and one product.
Bar: 22.2 units.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.measure import Table, apart, generator, in_units, installed, jax_peak, peak_bytes, resident_peak, run
from ebbtide import grad

SIZE, LAYERS = 1000, 20
UNITS = 22.2


def net(m: Any, weights: Any, x: Any) -> Any:
    """Return the sum of the last layer's output."""
    for w in weights:
        x = m.tanh(m.matmul(x, w))
    return m.sum(x)


def arrays(size: int, layers: int) -> tuple[list[Any], Any]:
    """Return the weights and the input."""
    rng = generator()
    weights = [rng.standard_normal((size, size)) / np.sqrt(size) for _ in range(layers)]
    return weights, rng.standard_normal((size, size))


def by_hand(weights: list[Any], x: Any) -> list[Any]:
    """Return the gradients, with no array more than needed."""
    outputs = [x]
    for w in weights:
        product = np.matmul(outputs[-1], w)
        outputs.append(np.tanh(product, out=product))
    del product
    g: Any = 1.0
    gradients = []
    for k in range(len(weights) - 1, -1, -1):
        slope = outputs.pop()
        # In rows: a temporary of the size of an array would be a unit.
        for row in range(len(slope)):
            slope[row] = (g if k == len(weights) - 1 else g[row]) * (1 - slope[row] ** 2)
        g = slope
        del slope
        gradients.append(np.matmul(outputs[-1].T, g))
        if k:
            g = np.matmul(g, weights[k].T)
    return gradients[::-1]


def torch_peak(size: int, layers: int) -> int | None:
    """Return how far torch's process grows."""
    import torch

    def given(size: int) -> Any:
        weights, x = arrays(size, layers)
        return [torch.tensor(w, requires_grad=True) for w in weights], torch.tensor(x)

    large = given(size)
    return resident_peak(lambda: net(torch, *given(64)).backward(), lambda: net(torch, *large).backward())


def jax_plan(size: int, layers: int) -> int:
    """Return the bytes that XLA plans."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    return jax_peak(jax.grad(lambda weights, x: net(jnp, weights, x)), *arrays(size, layers))


def main(quick: bool = False) -> None:
    """Print the table."""
    size, layers = (40, 4) if quick else (SIZE, LAYERS)
    weights, x = arrays(size, layers)
    table = Table(
        f"Peak of {layers} layers of {size} x {size}, in arrays", ("autograd", "torch (resident)", "JAX jit (planned)")
    )
    ours = grad(lambda weights, x: net(np, weights, x))
    for a, b in zip(ours(weights, x), by_hand(weights, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    peak = peak_bytes(lambda: ours(weights, x))
    found = None
    if installed("autograd"):
        import autograd
        import autograd.numpy as anp

        theirs = autograd.grad(lambda weights, x: net(anp, weights, x))
        found = peak_bytes(lambda: theirs(weights, x))
    cells = [in_units(found, x.nbytes, "autograd")]
    for peer, function in (("torch", "torch_peak"), ("jax", "jax_plan")):
        cells.append(in_units(apart(peer, f"bench.mlp:{function}", size=size, layers=layers), x.nbytes, peer))
    hand = in_units(peak_bytes(lambda: by_hand(weights, x)), x.nbytes)
    table.add("all weights", in_units(peak, x.nbytes), cells, hand, f"{UNITS}", peak <= UNITS * x.nbytes)
    table.show()


if __name__ == "__main__":
    run(main)
