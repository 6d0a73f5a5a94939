"""Programs as files: the source of a plan, which runs where NumPy is, and the arrays that it takes beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_CALL = '''

def load_constants():
    """Return the arrays that `run` takes beside its inputs, from the file beside this one."""
    if not {count}:
        return []
    with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as held:
        return [held[f"arr_{{number}}"] for number in range({count})]


def call(*values):
    """Return the results for inputs of the types, and lying in memory, as those that the program was made for."""
    return run(list(values), lay_out(np.empty(ARENA_BYTES, np.uint8)), load_constants())
'''


def save_source(source: str, constants: Sequence[Any], path: str | Path) -> None:
    """
    Write a source as a file, with a function `call` that runs it, and its arrays as a file beside it.

    Args:
        source: The text.
        constants: What its `run` takes beside the inputs.
        path: Where to write: a file that ends with `.py`. The arrays go beside it, to one that ends with `.npz`.

    Raises:
        ValueError: The path does not end with `.py`.
        TypeError: There are functions among the constants that no file can import.
    """
    path = Path(path)
    if path.suffix != ".py":
        raise ValueError(f"A source is written to a file of Python, and {path.name!r} is none: end its name with .py.")
    others = [value for value in constants if not isinstance(value, np.ndarray)]
    if others:
        names = ", ".join(f"{getattr(value, '__qualname__', value)}" for value in others)
        raise TypeError(
            f"The program calls {names}, which a file cannot import. Define it by name in a module, and trace again."
        )
    if constants:
        np.savez(path.with_suffix(".npz"), *constants)
    text = source.replace("\nimport numpy as np\n", "\nfrom pathlib import Path\n\nimport numpy as np\n", 1)
    path.write_text(text + _CALL.format(count=len(constants)), encoding="utf-8")
