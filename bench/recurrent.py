"""
The recurrent nets of HIPS autograd's examples: 60 lines of 30 letters of 128, 40 hidden units, in plain NumPy code.

The gradient of the likelihood, jitted for the machine, beside JAX: jit of the gradient of the same code, and of a scan.
Bar: not slower than the faster one of these. Each number of threads is a process of its own, with as many cores.

Source: HIPS autograd's `examples/rnn.py` and `examples/lstm.py`: their equations, sizes and loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import MISSING, Table, alternate, apart, generator, installed, median_of, ratio, run
from ebbtide import grad, jit

LETTERS, LINES, LENGTH, HIDDEN, RUNS = 128, 60, 30, 40, 15
GATES = ("change", "forget", "enter", "leave")


def product(m: Any, weights: Any, *arrays: Any) -> Any:
    """Return arrays side by side, with a column of ones, times weights."""
    ones = m.ones((arrays[0].shape[0], 1), arrays[0].dtype)
    return m.dot(m.hstack((*arrays, ones)), weights)


def sigmoid(m: Any, x: Any) -> Any:
    """Return the logistic function."""
    return 0.5 * (m.tanh(x) + 1.0)


def rnn_step(m: Any, params: Any, state: Any, letters: Any) -> Any:
    """Return the hidden units after some letters."""
    return (m.tanh(product(m, params["change"], letters, state[0])),)


def lstm_step(m: Any, params: Any, state: Any, letters: Any) -> Any:
    """Return the hidden units and the cells after some letters."""
    hidden, cells = state
    change = m.tanh(product(m, params["change"], letters, hidden))
    forget, enter, leave = [sigmoid(m, product(m, params[name], letters, hidden)) for name in GATES[1:]]
    cells = cells * forget + enter * change
    return leave * m.tanh(cells), cells


STEPS = {"RNN": (rnn_step, 1), "LSTM": (lstm_step, 2)}


def likelihood(m: Any, params: Any, state: Any, letters: Any) -> Any:
    """Return the logarithm of the likelihood of letters after a state."""
    scores = product(m, params["predict"], state[0])
    top = m.max(scores, axis=1, keepdims=True)
    return m.sum((scores - top - m.log(m.sum(m.exp(scores - top), axis=1, keepdims=True))) * letters)


def loss(m: Any, name: str, params: Any, text: Any, scan: Any = None) -> Any:
    """Return minus the mean of the logarithms of the likelihoods of the letters."""
    step, count = STEPS[name]
    state = tuple([m.repeat(params[f"start {k}"], text.shape[1], axis=0) for k in range(count)])

    def advance(state: Any, letters: Any) -> Any:
        found = likelihood(m, params, state, letters)
        return step(m, params, state, letters), found

    if scan is not None:
        return -m.sum(scan(advance, state, text)[1]) / (text.shape[0] * text.shape[1])
    total = 0.0
    for k in range(text.shape[0]):
        state, found = advance(state, text[k])
        total = total + found
    return -total / (text.shape[0] * text.shape[1])


def given(name: str, length: int, dtype: str) -> tuple[dict[str, Any], Any]:
    """Return parameters, and a text: one of the letters at each place of each line."""
    random, count = generator(), STEPS[name][1]
    names = GATES if count == 2 else GATES[:1]
    shapes = {name: (LETTERS + HIDDEN + 1, HIDDEN) for name in names} | {"predict": (HIDDEN + 1, LETTERS)}
    shapes |= {f"start {k}": (1, HIDDEN) for k in range(count)}
    params = {name: (0.1 * random.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}
    return params, np.eye(LETTERS, dtype=dtype)[random.integers(0, LETTERS, (length, LINES))]


def seconds_of(name: str, dtype: str, length: int, runs: int, threads: int | None = None) -> dict[str, list[float]]:
    """Return seconds of all; in a process of its own, on as many cores."""
    if threads is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    params, text = given(name, length, dtype)
    ours = jit(grad(lambda params, text: loss(np, name, params, text)), executor="machine")
    calls: dict[str, Callable[[], Any]] = {"ours": lambda: ours(params, text)}
    if installed("jax"):
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        for who, scan in (("JAX", None), ("JAX, scan", jax.lax.scan)):
            theirs = jax.jit(jax.grad(lambda params, text, scan=scan: loss(jnp, name, params, text, scan)))
            calls[who] = lambda f=theirs: jax.block_until_ready(f(params, text))
    wanted = grad(lambda params, text: loss(np, name, params, text))(params, text)
    for call in calls.values():
        found = call()
        for key in wanted:
            np.testing.assert_allclose(found[key], wanted[key], rtol=1e-3, atol=1e-5)
    return alternate(calls, runs)


def main(quick: bool = False) -> None:
    """Print the table."""
    table = Table("Gradient of recurrent nets: ms", ("jax: jit, ratio to ours", "jax: scan, ratio"), "")
    length, runs = (2, 1) if quick else (LENGTH, RUNS)
    for name in STEPS:
        for threads in (None,) if quick else (1, 2):
            for dtype in ("float32",) if quick else ("float32", "float64"):
                sizes = {"name": name, "dtype": dtype, "length": length, "runs": runs}
                environment = {"OPENBLAS_NUM_THREADS": f"{threads}"}
                function = "bench.recurrent:seconds_of"
                found = seconds_of(**sizes) if quick else apart(
                    "numpy", function, environment=environment, threads=threads, **sizes
                )  # fmt: skip
                if not found:
                    continue
                ratios = [ratio(found, who, "ours") if who in found else None for who in ("JAX", "JAX, scan")]
                known = [one.median for one in ratios if one is not None]
                cells = [MISSING if one is None else str(one) for one in ratios]
                case = f"{name}, {dtype}, {threads or 'any'} threads"
                table.add(case, median_of(found, "ours", 1e3), cells, "", "1", min(known) >= 1 if known else None)
    table.show()


if __name__ == "__main__":
    run(main)
