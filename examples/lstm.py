"""
What comes next? Long short-term memory that learns the Zen of Python by heart.

The text is cut into pieces that are read side by side. Reading is a time loop, so the same code trains on pieces of any
length within a number of bytes: `--memory 2MiB` gives the same weights, bit for bit, in less memory and more time.

    python examples/lstm.py --memory 16MiB

Source: Hochreiter, Schmidhuber (1997), Long short-term memory, with the forget gate of Gers, Schmidhuber, Cummins
(2000), equations 1 to 6.
"""

from __future__ import annotations

import argparse
import codecs
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebbtide
from ebbtide.optimize import Control, Minimum, ReducedFunctional, minimize

Array = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Text:
    """
    A text as numbers.

    Args:
        letters: Each letter that occurs, once.
        pieces: Places in *letters*, shape (length of a piece, pieces): a letter of each piece after the other.
    """

    letters: str
    pieces: NDArray[np.int64]


def load(length: int, most: int | None = None) -> Text:
    """Return the Zen of Python, which lies enciphered in the module `this`, in pieces of a length."""
    found = importlib.util.find_spec("this")
    if found is None or found.origin is None:
        raise FileNotFoundError("This Python comes without the module `this`, whose text is learned here.")
    source = Path(found.origin).read_text(encoding="utf-8")
    cipher = re.search(r'"""(.*?)"""', source, re.DOTALL)
    text = codecs.decode(cipher.group(1) if cipher else source, "rot13")[:most]
    letters = "".join(sorted(set(text)))
    places = np.array([letters.index(c) for c in text])
    count = len(places) // length
    return Text(letters, places[: count * length].reshape(count, length).T)


def start(letters: int, hidden: int, dtype: Any = np.float32) -> dict[str, Array]:
    """Return random weights: of the four gates, side by side, and of the scores of the next letter."""
    random = np.random.default_rng(2)
    gates = random.standard_normal((letters + hidden, 4 * hidden)) / hidden**0.5
    biases = np.repeat([0.0, 1.0, 0.0, 0.0], hidden)  # at first nothing is forgotten
    scores = random.standard_normal((hidden, letters)) / hidden**0.5
    made = {"gates": gates, "biases": biases, "scores": scores, "last": np.zeros(letters)}
    return {name: value.astype(dtype) for name, value in made.items()}


def sigmoid(x: Any) -> Any:
    """Return the logistic function."""
    return 0.5 * (np.tanh(0.5 * x) + 1.0)


def cell(weights: Any, state: Any, letters: Any) -> Any:
    """
    Read a letter of each piece.

    Args:
        weights: As `start` gives them.
        state: Memory and output of the cells, each of shape (pieces, hidden).
        letters: Places of the letters, shape (pieces,).
    """
    memory, output = state
    kinds = weights["scores"].shape[1]
    # A row of the weights for each letter is what a vector with a single 1 would give.
    gates = weights["gates"][letters] + output @ weights["gates"][kinds:] + weights["biases"]
    enter, keep, leave, new = np.split(gates, 4, axis=1)
    memory = sigmoid(keep) * memory + sigmoid(enter) * np.tanh(new)
    return memory, sigmoid(leave) * np.tanh(memory)


def surprise(weights: Any, output: Any, following: Any) -> Any:
    """Return the mean of minus the logarithms of the probabilities of the letters that do follow."""
    scores = output @ weights["scores"] + weights["last"]
    scores = scores - np.max(scores, axis=1, keepdims=True)
    logarithms = scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
    return -np.mean(logarithms[np.arange(len(following)), following])


def loss(weights: Any, text: Text) -> Any:
    """Return the mean surprise at each letter but the first of each piece."""
    hidden, pieces = weights["scores"].shape[0], text.pieces.shape[1]
    dtype = weights["scores"].dtype

    def read(state: Any, letters: Any) -> Any:
        *cells, total = state
        cells = cell(weights, cells, letters[0])
        return *cells, total + surprise(weights, cells[1], letters[1])

    nothing = np.zeros((pieces, hidden), dtype)
    steps = len(text.pieces) - 1
    pairs = np.stack([text.pieces[:-1], text.pieces[1:]], axis=1)
    state = ebbtide.timeloop(read, (nothing, nothing, np.zeros((), dtype)), steps, inputs=pairs, progress=False)
    return state[-1] / steps


def train(
    text: Text, weights: Any, iterations: int, budget: ebbtide.Budget | None = None, *, progress: bool = False
) -> Minimum:
    """Return where the loss is least, or where that many iterations end."""
    functional = ReducedFunctional(lambda w: loss(w, text), Control(weights), budget=budget)
    options = {"maxiter": iterations, "maxfun": 4 * iterations}
    return minimize(functional, options=options, progress=progress)


def recite(weights: Any, text: Text, length: int) -> str:
    """Return what the network says when it is given the first letters of the text, always the likeliest letter."""
    given = [int(k) for k in text.pieces[:8, 0]]
    state: Any = tuple(np.zeros((1, weights["scores"].shape[0]), weights["scores"].dtype) for _ in range(2))
    said = list(given)
    for k in range(length):
        state = cell(weights, state, np.array([said[k]]))
        if k + 1 >= len(said):
            said.append(int(np.argmax(state[1] @ weights["scores"] + weights["last"])))
    return "".join(text.letters[k] for k in said)


def main() -> int:
    """Train, and let the network recite."""
    parser = argparse.ArgumentParser(description="Long short-term memory that learns a text by heart.")
    parser.add_argument("--hidden", type=int, default=64, help="cells (default: %(default)s)")
    parser.add_argument("--length", type=int, default=48, help="of a piece of text (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=300, help="at most (default: %(default)s)")
    parser.add_argument("--memory", default=None, help="budget of a gradient (default: none)")
    arguments = parser.parse_args()
    text = load(arguments.length)
    weights = start(len(text.letters), arguments.hidden)
    budget = None if arguments.memory is None else ebbtide.Budget(memory=arguments.memory)
    found = train(text, weights, arguments.iterations, budget, progress=True)
    print(found)
    print(recite(found.m, text, arguments.length))
    return 0 if found.value < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
