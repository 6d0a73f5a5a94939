"""
What must be the same when a time loop is resumed, as short texts that can be compared and shown.

The code of a step, of the condition that ends a loop and of a function that gives its inputs is told by
`loop/values/code`.

Libraries that round differently give another gradient, so their versions and the instructions that NumPy found in the
processor are part of it. Each BLAS in the process is asked for its version, its kernels and its number of threads, so
that it does not matter who set them: an environment variable, the number of cores, or a call.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast, final

import numpy as np
import optree
import scipy

from ebbtide.arrays.location import user_line
from ebbtide.arrays.views import bottom
from ebbtide.loop.values.code import digest_structure, read_code
from ebbtide.loop.values.generators import pack_generator
from ebbtide.loop.values.plain_data import digest
from ebbtide.storage import compute_crc32c, compute_crc32c_of_values
from ebbtide.storage.failures import make_error


def _read_version() -> str:
    try:
        return version("ebbtide")
    except PackageNotFoundError:
        # Run from its sources.
        return "not installed"


# What no library tells when it is asked.
_KERNELS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES")
# Read once, as each reading leaves a cycle of Python's own for the collector.
_VERSION = _read_version()
# The leaves of larger states are not listed one by one.
_MOST_LEAVES = 16


def fingerprint_of(
    step: Any,
    state: Sequence[Any],
    structure: object,
    steps: int | None,
    *,
    until: Any = None,
    most: int | None = None,
    inputs: Any = None,
    without: Collection[str] = (),
) -> dict[str, str]:
    """
    Return what must be the same when a time loop is resumed.

    Args:
        step: The function of a time step.
        state: Leaves of the initial state.
        structure: Its container, with the static metadata in it.
        steps: How many steps there are, None if that is found out.
        until: Says of a state whether the loop ends there; None for a loop of so many steps.
        most: The most steps of such a loop.
        inputs: The inputs of steps, of which a function is told by its code; others are compared as they are read.
        without: Names by which nothing is looked up in code, as steps of loops before change what is there.

    Returns:
        Short texts by name.

    Memory:
        Nothing that lasts.

    Example:
        >>> found = fingerprint_of(lambda x: 2 * x, [np.zeros(3)], "one array", 10)
        >>> found["steps"], found["leaf 0 of the state"]
        ('10', 'float64[3]')
        >>> found["code of step"] == fingerprint_of(lambda x: 3 * x, [], "", 10)["code of step"]
        False
    """
    shown, metadata = _shorten(_shown(structure)), digest_structure(structure, without)
    found = {
        "steps": "not known before" if steps is None else str(steps),
        "structure of the state": f"{shown} with the digest {metadata}",
        **_describe_state(state),
    }
    if until is not None:
        found["most steps"] = str(most)
    executors = set[str]()
    for name, function in {"step": step, "until": until, "inputs": inputs}.items():
        if callable(function):
            # What a condition uses is a static value of no step, which would compare it.
            code = read_code(function, without, is_met=name != "until")
            found[f"code of {name}"] = code.text
            executors |= code.executors
            _warn_of_missed(name, code.missed)
    return {**found, "executor": ", ".join(sorted(executors)) or "no jit", **describe_libraries()}


def _describe_state(state: Sequence[Any]) -> dict[str, str]:
    kinds = [_kind_of(leaf) for leaf in state]
    values = [_checksum(leaf) for leaf in state]
    if len(state) > _MOST_LEAVES:
        return {
            "leaves of the state": f"{len(state)}, {digest(' '.join(kinds))}",
            "initial state": digest(" ".join(values)),
        }
    return {f"leaf {place} of the state": kind for place, kind in enumerate(kinds)} | {
        f"initial value of leaf {place}": value for place, value in enumerate(values)
    }


def _kind_of(leaf: Any) -> str:
    value = bottom(leaf)
    if not isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _checksum(leaf: Any) -> str:
    value = bottom(leaf)
    if isinstance(value, np.random.Generator):
        value, _ = pack_generator(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return repr(value)
    return f"{compute_crc32c_of_values(np.asarray(value)):08x}"


def describe_libraries() -> dict[str, str]:
    """
    Return the versions and settings on which the rounding of results depends.

    Example:
        >>> describe_libraries()["numpy"] == np.__version__
        True
    """
    # Imported here, as it takes 2 ms and only who resumes needs it; asking takes 1 ms.
    from threadpoolctl import ThreadpoolController

    try:
        controller = ThreadpoolController()
    except OSError as cause:
        raise make_error(
            f"Cannot look up the libraries that a resumed run depends on: {cause}. Where too many files are open, "
            "close some, or raise the limit (ulimit -n).",
            cause.errno,
        ) from cause
    pools = [pool for pool in controller.info() if pool["user_api"] == "blas"]
    # Each of them knows the controller, which would wait for the collector.
    controller.lib_controllers.clear()
    simd = cast("dict[str, Any]", np.show_config(mode="dicts")).get("SIMD Extensions", {}).get("found", [])
    settings = [f"{name}={os.environ[name]}" for name in _KERNELS if name in os.environ]
    return {
        "Python": ".".join(map(str, sys.version_info[:2])),
        "ebbtide": _VERSION,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "BLAS": _list({f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}" for pool in pools}),
        "threads of BLAS": _list({str(pool["num_threads"]) for pool in pools}),
        "instructions": " ".join([*(simd or ["baseline"]), *settings]),
    }


def _list(found: set[str]) -> str:
    return ", ".join(sorted(map(str.strip, found))) or "not known"


@final
@dataclass(frozen=True, slots=True)
class InputsRead:
    """
    How many inputs of steps were read, and the running checksum of them.

    Args:
        count: Those of the steps before this one.
        checksum: Of all of them in order.
    """

    count: int = 0
    checksum: int = 0

    def after(self, index: int, leaves: Sequence[Any], structure: str = "") -> InputsRead:
        """
        Return what it is when the input of a step was read; one that was read before changes nothing.

        Args:
            index: The step.
            leaves: The leaves of its input.
            structure: What `Structures` tell of their container.

        Example:
            >>> InputsRead().after(0, [np.ones(2)]).after(0, [np.zeros(2)]).count
            1
        """
        if index != self.count:
            return self
        text = " ".join([str(self.checksum), *map(_kind_of, leaves), *map(_checksum, leaves), structure])
        return InputsRead(self.count + 1, compute_crc32c(np.frombuffer(text.encode(), np.uint8)))

    @property
    def pair(self) -> tuple[int, int]:
        """The two, as a journal keeps them."""
        return self.count, self.checksum

    def __str__(self) -> str:
        return f"{self.count} with the checksum {self.checksum:08x}"


def _shown(structure: Any) -> str:
    """Return a container with the names in it, and a star for each leaf; its metadata may be of any size."""
    if not isinstance(structure, optree.PyTreeSpec):
        return str(structure)
    if structure.is_leaf():
        return "*"
    pairs = zip(structure.entries(), structure.children(), strict=True)
    inside = [f"{entry}: {_shown(child)}" if isinstance(entry, str) else _shown(child) for entry, child in pairs]
    return f"{getattr(structure.type, '__name__', structure.type)}({', '.join(inside)})"


def _warn_of_missed(name: str, missed: Mapping[str, int]) -> None:
    """Warn if the code of a loop reaches so many objects that what is in some of them is not compared."""
    if missed:
        objects = ", ".join([f"{count} of the class {kind}" for kind, count in missed.items()])
        warnings.warn(
            f"The code of {name}= of the time loop at {user_line()} reaches too many objects to compare all of them "
            f"when the run is resumed: what is in {objects} is not looked at. Keep numbers in arrays, or in lists, "
            "tuples and dictionaries of nothing else, which are compared whatever their size.",
            RuntimeWarning,
            stacklevel=2,
        )


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}... {digest(text)}"
