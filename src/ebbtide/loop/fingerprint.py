"""
What must be the same when a time loop is resumed, as short texts that can be compared and shown.

The code of a step is compared as the interpreter sees it: bytecode, constants and names, of nested and called functions
too, with the values that they close over or find in their modules. Of installed packages only the step's own module is
read; of the others the names and versions of what is used count.

Libraries that round differently give another gradient, so their versions and the instructions that NumPy found in the
processor are part of it. Each BLAS in the process is asked for its version, its kernels and its number of threads, so
that it does not matter who set them: an environment variable, the number of cores, or a call.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast, final

import numpy as np
import scipy

from ebbtide.arrays.reach import closed_over, is_installed, looked_up
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom
from ebbtide.loop.generators import pack_generator
from ebbtide.program.jit import Jitted
from ebbtide.storage import compute_crc32c


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
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice)
_OF_CLASSES = (types.FunctionType, staticmethod, classmethod, property, np.ndarray)
# What Python puts into a class says nothing.
_OF_PYTHON = frozenset({"__module__", "__doc__", "__firstlineno__"})
# Chains of values this long are not followed further.
_DEEPEST = 60
# The leaves of larger states are not listed one by one.
_MOST_LEAVES = 16


def fingerprint_of(
    step: Any, state: Sequence[Any], structure: object, steps: int | None, *, executor: str = "reference"
) -> dict[str, str]:
    """
    Return what must be the same when a time loop is resumed.

    Args:
        step: The function of a time step.
        state: Leaves of the initial state.
        structure: Its container; the text of it counts.
        steps: How many steps there are, None if that is found out.
        executor: What runs the steps.

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
    found = {
        "steps": "not known before" if steps is None else str(steps),
        "structure of the state": _shorten(str(structure)),
        **_describe_state(state),
        "code of step": digest_code(step),
        "executor": executor,
    }
    return {**found, **describe_libraries()}


def _describe_state(state: Sequence[Any]) -> dict[str, str]:
    kinds = [_kind_of(leaf) for leaf in state]
    values = [_checksum(leaf) for leaf in state]
    if len(state) > _MOST_LEAVES:
        return {
            "leaves of the state": f"{len(state)}, {_digest(' '.join(kinds))}",
            "initial state": _digest(" ".join(values)),
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
    return f"{compute_crc32c(np.ascontiguousarray(value)):08x}"


def describe_libraries() -> dict[str, str]:
    """
    Return the versions and settings on which the rounding of results depends.

    Example:
        >>> describe_libraries()["numpy"] == np.__version__
        True
    """
    # Imported here, as it takes 2 ms and only who resumes needs it; asking takes 1 ms.
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()
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

    def after(self, index: int, leaves: Sequence[Any]) -> InputsRead:
        """
        Return what it is when the input of a step was read; one that was read before changes nothing.

        Example:
            >>> InputsRead().after(0, [np.ones(2)]).after(0, [np.zeros(2)]).count
            1
        """
        if index != self.count:
            return self
        text = " ".join([str(self.checksum), *map(_kind_of, leaves), *map(_checksum, leaves)])
        return InputsRead(self.count + 1, compute_crc32c(np.frombuffer(text.encode(), np.uint8)))

    def __str__(self) -> str:
        return f"{self.count} with the checksum {self.checksum:08x}"


# Code.


def digest_code(function: Any) -> str:
    """
    Return a short text that is another one when a function, or what it calls or closes over, is.

    Arrays of traces around are left out: which of them a step uses is known when it runs.

    Args:
        function: A function, method, `functools.partial` or an object that can be called.

    Returns:
        16 hexadecimal digits, the same in every process of one version of Python.

    Example:
        >>> digest_code(lambda x: x + 1) == digest_code(lambda x: x + 1)
        True
        >>> digest_code(functools.partial(np.power, 2)) == digest_code(functools.partial(np.power, 3))
        False
    """
    inner = function
    while isinstance(inner, (functools.partial, types.MethodType, Jitted)):
        if isinstance(inner, Jitted):
            inner = inner.made_from[0]
        else:
            inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    kind = inner if isinstance(inner, types.FunctionType) else type(inner)
    return _Reader(kind.__module__).read(function)


@final
class _Reader:
    """
    Reads values; what it meets again it knows, and what leads to itself ends there.

    Args:
        module: The name of the module that is read whoever has it installed.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._depth = 0
        self._known: dict[int, str] = {}
        # An id means something as long as its object lives.
        self._alive: list[Any] = []

    def read(self, value: Any) -> str:
        """Return the digest of a value."""
        if isinstance(value, _PLAIN):
            return _digest(f"{type(value).__name__} {value!r}")
        known = self._known.get(id(value))
        if known is not None:
            return known
        if not isinstance(value, (tuple, frozenset)):
            self._known[id(value)] = "itself"
        self._alive.append(value)
        self._depth += 1
        parts = self._parts(value) if self._depth < _DEEPEST else [type(value).__qualname__]
        found = self._known[id(value)] = _digest("\n".join(parts))
        self._depth -= 1
        return found

    def _is_library(self, module: str | None) -> bool:
        return module != self._module and is_installed(module)

    def _parts(self, value: Any) -> Iterator[str]:
        yield type(value).__qualname__
        if isinstance(value, types.CodeType):
            yield from (value.co_code.hex(), repr((value.co_names, value.co_freevars)))
            yield repr((value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags))
            yield value.co_exceptiontable.hex()
            yield from map(self.read, value.co_consts)
        elif isinstance(value, types.FunctionType):
            yield from self._function_parts(value)
        elif isinstance(value, types.MethodType):
            yield from map(self.read, (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            yield from map(self.read, (value.func, value.args, value.keywords))
        elif isinstance(value, Jitted):
            yield from map(self.read, value.made_from)  # what it has traced so far is of no interest
        elif isinstance(value, (np.ndarray, np.generic)):
            yield f"{value.dtype}{value.shape}"
            if not value.dtype.hasobject:
                yield str(compute_crc32c(np.ascontiguousarray(value)))
        elif isinstance(value, (tuple, list)):
            yield from map(self.read, cast("Sequence[Any]", value))
        elif isinstance(value, (set, frozenset)):
            yield from sorted(map(self.read, cast("set[Any]", value)))
        elif isinstance(value, (dict, types.MappingProxyType)):
            for key, item in cast("dict[Any, Any]", value).items():
                yield from (self.read(key), self.read(item))
        elif isinstance(value, (staticmethod, classmethod)):
            yield self.read(cast("Any", value).__func__)
        elif isinstance(value, property):
            yield from map(self.read, (value.fget, value.fset))
        elif isinstance(value, types.ModuleType):
            yield _name_version(value.__name__)
        elif isinstance(value, (np.dtype, np.ufunc, types.BuiltinFunctionType)):
            yield getattr(value, "__name__", str(value))
        elif not isinstance(value, TracedArray):
            yield from self._object_parts(value)

    def _function_parts(self, function: types.FunctionType) -> Iterator[str]:
        known = self._is_library(function.__module__)
        named = f"{_name_version(function.__module__)} {function.__qualname__}"
        yield named if known else self.read(function.__code__)
        yield self.read(function.__defaults__)
        yield self.read(function.__kwdefaults__)
        yield from map(self.read, closed_over(function))
        if not known:
            for name, value in looked_up(function, self._is_library):
                yield from (name, self.read(value))

    def _object_parts(self, value: Any) -> Iterator[str]:
        kind = cast("type[Any]", value if isinstance(value, type) else type(value))
        yield f"{_name_version(kind.__module__)} {getattr(value, '__qualname__', kind.__qualname__)}"
        if self._is_library(kind.__module__):
            return
        if value is kind:
            for name, item in sorted(vars(kind).items()):
                if isinstance(item, (*_PLAIN, *_OF_CLASSES)) and name not in _OF_PYTHON:
                    yield from (name, self.read(item))
            yield from (self.read(base) for base in kind.__bases__)
            return
        yield self.read(kind)
        slots = [name for base in kind.__mro__ for name in _names_in_slots(base)]
        for name in sorted({*getattr(value, "__dict__", {}), *slots}):
            if hasattr(value, name):
                yield from (name, self.read(getattr(value, name)))


def _names_in_slots(kind: type[Any]) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _name_version(module: str | None) -> str:
    package = sys.modules.get((module or "").partition(".")[0])
    return f"{module} {getattr(package, '__version__', '')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}... {_digest(text)}"
