"""
A linearization that is pushed many times: 20 layers, h <- np.tanh(h @ w), of 128 rows and 256 columns, in float64.

By hand: the slopes of the layers, kept, and for each push a product and a multiplication a layer. Bars: a push in 1.2
of that time and 2.1 arrays. Forward mode, which evaluates the layers again, stands beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.measure import Table, alternate, generator, in_units, installed, peak_bytes, ratio, run
from ebbtide import jvp, linearize

ROWS, COLUMNS, LAYERS = 128, 256, 20
TIME, UNITS = 1.2, 2.1


def layers(np_: Any, h: Any, weights: list[Any]) -> Any:
    """Return what comes out of the last layer."""
    for w in weights:
        h = np_.tanh(h @ w)
    return h


def slopes_of(h: Any, weights: list[Any]) -> list[Any]:
    """Return the slopes of all layers."""
    slopes = []
    for w in weights:
        h = np.tanh(h @ w)
        slopes.append(1 - h * h)
    return slopes


def by_hand(t: Any, weights: list[Any], slopes: list[Any]) -> Any:
    """Return a tangent pushed through all layers."""
    for w, slope in zip(weights, slopes, strict=True):
        t = t @ w
        t *= slope
    return t


def main(quick: bool = False) -> None:
    """Print the table."""
    rows, columns, count, runs = (4, 5, 3, 1) if quick else (ROWS, COLUMNS, LAYERS, 30)
    random = generator()
    x, t = random.standard_normal((2, rows, columns))
    weights = [random.standard_normal((columns, columns)) / columns**0.5 for _ in range(count)]

    def f(h: Any) -> Any:
        return layers(np, h, weights)

    _, pushforward = linearize(f, x)
    slopes = slopes_of(x, weights)
    np.testing.assert_allclose(pushforward(t), by_hand(t, weights, slopes), rtol=1e-10, atol=1e-14)
    np.testing.assert_array_equal(pushforward(t), jvp(f, (x,), (t,))[1])
    calls = {
        "ours": lambda: pushforward(t),
        "forward": lambda: jvp(f, (x,), (t,)),
        "hand": lambda: by_hand(t, weights, slopes),
    }
    if installed("jax"):
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        _, push = jax.linearize(lambda h: layers(jnp, h, weights), x)
        compiled = jax.jit(push)
        np.testing.assert_allclose(pushforward(t), compiled(t), rtol=1e-10, atol=1e-14)
        calls["jax"] = lambda: compiled(t).block_until_ready()
    times = alternate(calls, runs)
    table = Table(f"Time of a push through {count} layers, by that of a push by hand", ("jax (jit)",))
    theirs = str(ratio(times, "jax", "hand")) if "jax" in times else "not installed"
    found = ratio(times, "ours", "hand")
    table.add("pushforward", str(found), [theirs], "1.00", f"{TIME}", found.median <= TIME)
    table.add("jvp", str(ratio(times, "forward", "hand")), ["-"], "1.00", "-", None)
    table.show()
    table = Table(f"Peak of a linearization of {count} layers, in arrays", ())
    kept: list[Any] = []
    hand: list[Any] = []
    peak = peak_bytes(lambda: kept.append(linearize(f, x)[1]))
    least = peak_bytes(lambda: hand.append(slopes_of(x, weights)))
    table.add("linearize", in_units(peak, x.nbytes), [], in_units(least, x.nbytes), "-", None)
    pushed = peak_bytes(lambda: kept[0](t))
    least = peak_bytes(calls["hand"])
    table.add("push", in_units(pushed, x.nbytes), [], in_units(least, x.nbytes), f"{UNITS}", pushed <= UNITS * x.nbytes)
    table.show()


if __name__ == "__main__":
    run(main)
