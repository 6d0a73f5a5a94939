"""`ebbtide demo ensemble`: many small networks trained side by side on scikit-learn's digits, and what a step takes."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from tqdm import tqdm

import ebbtide
from ebbtide import nn
from ebbtide.demo.decomposition import DemoInputError
from ebbtide.optimize import adam

SIZES = (64, 48, 32, 10)
RATE = 1e-3
# Steps before anything is measured: in the first the function is traced and planned.
WARM_UP = 3
# Steps for the bytes, and steps of the one by one.
WATCHED, ALONE = 100, 3
# What the interpreter's own lists of free objects may take up in the watched steps: less than one network of 20 kB.
SLACK = 16384


@dataclass(frozen=True, slots=True)
class Options:
    """
    What the command line says.

    Args:
        networks: How many there are.
        steps: Steps of each.
        batch: Rows of each step.
        seed: Of the random numbers.
    """

    networks: int = 200
    steps: int = 1000
    batch: int = 32
    seed: int = 0


@final
@dataclass(frozen=True, slots=True)
class Data:
    """Images (rows, 64) in float32 from 0 to 1 and classes (rows,), to train with and to test with."""

    images: Any
    labels: Any
    test_images: Any
    test_labels: Any


def load(seed: int) -> Data:
    """
    Return the digits of scikit-learn, of which every sixth is kept for the test.

    Raises:
        DemoInputError: scikit-learn is not installed.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise DemoInputError(
            "The networks are trained on scikit-learn's handwritten digits, and it is not installed: "
            "pip install 'ebbtide[examples]'."
        )
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = (images / 16.0).astype(np.float32)[order], labels.astype(np.int64)[order]
    test = np.arange(len(images)) % 6 == 0
    return Data(images[~test], labels[~test], images[test], labels[test])


def logits(layers: Any, x: Any) -> Any:
    """Return the logits (rows, 10) of one network for images (rows, 64)."""
    for weights, bias in layers[:-1]:
        x = nn.relu(nn.dense(x, weights, bias))
    return nn.dense(x, *layers[-1])


def initial(random: np.random.Generator) -> list[Any]:
    """Return the layers of one network."""
    return [
        ((random.standard_normal((n, m)) * np.sqrt(2 / n)).astype(np.float32), np.zeros(m, np.float32))
        for n, m in pairwise(SIZES)
    ]


@final
class Ensemble:
    """
    Networks of one form, each with its own parameters, averages of Adam, and rows of the data.

    Args:
        options: What the command line says.
        data: The digits.

    Memory:
        Three vectors for each network, and what the program of a step takes.
    """

    def __init__(self, options: Options, data: Data) -> None:
        self.random = np.random.default_rng(options.seed)
        self.options, self.data = options, data
        starts = [ebbtide.ravel_tree(initial(self.random)) for _ in range(options.networks)]
        self.unravel = starts[0][1]
        self.parameters = np.stack([flat for flat, _ in starts])
        optimizer, unravel = adam(RATE), self.unravel
        self.state = ebbtide.vmap(optimizer.init)(self.parameters)

        def loss(flat: Any, x: Any, labels: Any) -> Any:
            return nn.cross_entropy(logits(unravel(flat), x), labels)

        def step(flat: Any, state: Any, rows: Any, images: Any, labels: Any) -> Any:
            value, slope = ebbtide.value_and_grad(loss)(flat, images[rows], labels[rows])
            return *optimizer.step(flat, slope, state), value

        together = ebbtide.vmap(step, in_axes=(0, 0, 0, None, None))
        self.loss = loss
        self._advance = ebbtide.jit(together, donate_argnums=(0, 1), executor="machine")

    def step(self) -> Any:
        """Draw rows for all networks, do a step of each, and return their losses."""
        rows = self.random.integers(0, len(self.data.images), (self.options.networks, self.options.batch))
        self.parameters, self.state, values = self._advance(
            self.parameters, self.state, rows, self.data.images, self.data.labels
        )
        return values

    def accuracies(self) -> tuple[Any, float]:
        """Return the part of the test that each network gets right, and that of their averaged probabilities."""
        predict = ebbtide.vmap(lambda flat: nn.softmax(logits(self.unravel(flat), self.data.test_images)))
        shares = predict(self.parameters)
        right = np.argmax(shares, -1) == self.data.test_labels
        together = np.argmax(np.mean(shares, 0), -1) == self.data.test_labels
        return np.mean(right, -1), float(np.mean(together))

    def slope_error(self) -> float:
        """Return how far the derivative of the first network's loss along a direction is from a difference quotient."""
        x, labels = self.data.images[:32].astype(np.float64), self.data.labels[:32]
        flat = self.parameters[0].astype(np.float64)
        direction = np.random.default_rng(1).standard_normal(flat.shape)
        found = float(np.vdot(ebbtide.grad(self.loss)(flat, x, labels), direction))
        distance = 1e-5
        ahead, behind = (float(self.loss(flat + sign * distance * direction, x, labels)) for sign in (1, -1))
        return abs((ahead - behind) / (2 * distance) - found) / max(abs(found), 1e-3)


@contextmanager
def collections() -> Iterator[list[int]]:
    """Count the collections of garbage in the block: the list gets the generation of each."""
    found: list[int] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(watch)
    try:
        yield found
    finally:
        gc.callbacks.remove(watch)


def run(options: Options) -> int:
    """
    Run the demo and print its report.

    Args:
        options: What the command line says.

    Returns:
        0 if every verdict is good, else 1.

    Raises:
        DemoInputError: A number is too small, or scikit-learn is not installed.
    """
    for name in ("networks", "steps", "batch"):
        if getattr(options, name) < 1:
            raise DemoInputError(f"--{name} {getattr(options, name)}: at least 1.")
    if options.seed < 0:
        raise DemoInputError(f"--seed {options.seed}: at least 0.")
    data = load(options.seed)
    ensemble = Ensemble(options, data)
    print(
        f"{options.networks} networks {'-'.join(map(str, SIZES))} ({ensemble.parameters.shape[1]:,} parameters each, "
        f"float32), {options.steps:,} steps of Adam on {options.batch} of {len(data.images):,} digits each"
    )
    values = ensemble.step()
    first = float(np.mean(values))
    for _ in range(WARM_UP):
        ensemble.step()
    with collections() as found:
        start = time.perf_counter()
        for _ in tqdm(range(options.steps), "training", unit="step", mininterval=0.2):
            values = ensemble.step()
        seconds = (time.perf_counter() - start) / options.steps
    last = float(np.mean(values))
    # Before the steps whose bytes are watched, which train on.
    each, together = ensemble.accuracies()
    net, blocks, peak = _allocated(ensemble.step)
    error = ensemble.slope_error()
    print(f"\n  time per step of all networks      {1e3 * seconds:10.3f} ms")
    print(f"  mean loss, first and last step     {first:10.4f} {last:10.4f}")
    print(f"  bytes kept by {WATCHED} steps            {net:10,}   (tracemalloc)")
    print(f"  peak bytes above the start         {peak:10,}   (tracemalloc)")
    print(f"  Python blocks kept by {WATCHED} steps    {blocks:10,}   (sys.getallocatedblocks)")
    print(f"  collections of garbage             {len(found):10}")
    print(f"  accuracy of a network, mean, best  {np.mean(each):10.4f} {np.max(each):10.4f}")
    print(f"  accuracy of their mean prediction  {together:10.4f}")
    _beside_torch(options, data, seconds)
    verdicts = [
        (error < 1e-5, f"the derivative along a direction is a difference quotient's to {error:.1e}"),
        (last < first, "the loss has fallen"),
        (net <= SLACK, f"{WATCHED} steps keep no array: {net:,} bytes, of {SLACK:,} for the interpreter's own lists"),
        (len(found) <= 1, f"{len(found)} collections of garbage while training; one may have been due before"),
    ]
    print("\nVerdict")
    for good, line in verdicts:
        print(f"  {'ok  ' if good else 'FAIL'}  {line}")
    return 0 if all(good for good, _ in verdicts) else 1


def _allocated(step: Callable[[], Any]) -> tuple[int, int, int]:
    """Return the bytes and blocks that steps keep, and the peak of bytes above those at the start."""
    tracemalloc.start()
    try:
        for _ in range(WATCHED):
            step()
        before, blocks = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
        tracemalloc.reset_peak()
        for _ in range(WATCHED):
            step()
        kept = sys.getallocatedblocks() - blocks
        after, peak = tracemalloc.get_traced_memory()
        return after - before, kept, peak - before
    finally:
        tracemalloc.stop()


def _beside_torch(options: Options, data: Data, seconds: float) -> None:
    """Time the same steps one network after the other with torch, if it is there."""
    if importlib.util.find_spec("torch") is None:
        print("  torch, one by one                  not installed")
        return
    torch: Any = importlib.import_module("torch")  # an extra, whose types are not read
    random = np.random.default_rng(options.seed)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    networks = []
    for _ in range(options.networks):
        layers = [[torch.tensor(a, requires_grad=True) for a in pair] for pair in initial(random)]
        networks.append((layers, torch.optim.Adam([a for pair in layers for a in pair], lr=RATE)))

    def step() -> None:
        for layers, optimizer in networks:
            rows = torch.from_numpy(random.integers(0, len(images), options.batch))
            x = images[rows]
            for weights, bias in layers[:-1]:
                x = torch.relu(x @ weights + bias)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(x @ layers[-1][0] + layers[-1][1], labels[rows]).backward()
            optimizer.step()

    step()
    start = time.perf_counter()
    for _ in range(ALONE):
        step()
    alone = (time.perf_counter() - start) / ALONE
    print(f"  torch, one by one                  {1e3 * alone:10.3f} ms, {alone / seconds:.1f} times ours")
