"""Fingerprints: what makes a run another one, and what does not."""

from __future__ import annotations

import functools
import gc
import http
import os
import subprocess
import sys
import types
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optree
import pytest
from tests.measure import peak_bytes
from threadpoolctl import threadpool_info, threadpool_limits

import ebbtide
from ebbtide.arrays.containers import flatten
from ebbtide.loop.resuming.fingerprint import InputsRead, describe_libraries, fingerprint_of
from ebbtide.loop.values.code import digest_code

SOURCE = str(Path(ebbtide.__path__[0]).parent)
WEIGHTS = "weights = np.arange(3.0)\n"


def compiled(body, before=""):
    """The function `step` of a module of its own."""
    module = types.ModuleType("of_a_user")
    exec("import numpy as np\n" + before + body, vars(module))  # noqa: S102 - a user's module
    return module.step


STEP = "def step(x):\n    return helper(x) * dt + np.sum(weights)\n"
HELPER = "def helper(x):\n    return x + 1\n"
PLAIN = compiled(STEP, HELPER + WEIGHTS + "dt = 0.1\n")


@pytest.mark.parametrize(
    ("body", "before"),
    [
        (STEP, HELPER + WEIGHTS + "dt = 0.2\n"),
        (STEP, HELPER + WEIGHTS + "dt = np.float32(0.1)\n"),
        (STEP, HELPER.replace("1", "2") + WEIGHTS + "dt = 0.1\n"),
        (STEP, HELPER + WEIGHTS.replace("3", "4") + "dt = 0.1\n"),
        (STEP, HELPER + WEIGHTS + "weights[1] += 1e-16\nweights[0] = -0.0\ndt = 0.1\n"),
        (STEP.replace("np.sum", "np.prod"), HELPER + WEIGHTS + "dt = 0.1\n"),
        (STEP.replace("* dt", "/ dt"), HELPER + WEIGHTS + "dt = 0.1\n"),
        (STEP.replace("(x):", "(x, k=2):", 1), HELPER + WEIGHTS + "dt = 0.1\n"),
    ],
)
def test_changed_code_is_seen(body, before):
    """Operations, constants, names, defaults, called functions, and values and arrays of the module count."""
    assert digest_code(compiled(body, before)) != digest_code(PLAIN)


def test_unchanged_code_is_the_same():
    """Places in a file, comments, names of local variables and what the step does not use do not count."""
    local = "def step(x):\n    y = helper(x)\n    return y * dt\n"
    before = HELPER + "dt = 0.1\n"
    moved = compiled("\n\n# moved\n" + local.replace("y", "z"), before + "unused = 5\n")
    assert digest_code(moved) == digest_code(compiled(local, before))


def make(value):
    """A function that closes over a value."""

    def step(x):
        return [value for _ in range(3)], x

    return step


@dataclass
class Model:
    dt: float

    def slope(self, x):
        return -x

    def step(self, x):
        return x + self.dt * self.slope(x)


class Steeper(Model):
    def slope(self, x):
        return -2 * x


VALUES = (
    *(1, 1.0, True, -0.0, 0.0, "1", b"1", None, (1,), [1], {"a": 1}, {"a": 2}, {1}, np.float32(1), np.ones(1)),
    *(np.sin, np.cos, np.ones(2), np.ones(2, "f4"), Model(1.0), Model(2.0), Steeper(1.0), make(1), make(2), len),
)


def test_closed_over_values_count():
    """Functions that close over different values are different, for every pair; over equal ones they are equal."""
    digests = [digest_code(make(value)) for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert digests == [digest_code(make(value)) for value in VALUES]


def test_methods_and_partials():
    """What a method's object holds, the methods that it calls, and the arguments of a partial count."""
    steps = [Model(1.0).step, Model(2.0).step, Steeper(1.0).step]
    steps += [functools.partial(make, 1), functools.partial(make, 2)]
    assert len({digest_code(step) for step in steps}) == len(steps)
    assert digest_code(Model(1.0).step) == digest_code(steps[0])


def test_cycles_end():
    """A function that calls itself, and a list in itself, are read once."""

    def recursive(x):
        return recursive(x - 1) if x else ring

    ring: list = []
    ring.append(ring)
    assert digest_code(recursive) == digest_code(recursive)


def test_what_lies_deep_counts():
    """What the last of many values, each in the next, holds counts, in a cycle or not; where that begins does not."""

    def digest_of(last, depth=100):
        for _ in range(depth):
            last = (last,)
        return digest_code(make(last))

    def ring(number):
        found = [number]
        found.append([found])
        return found

    assert digest_of(np.ones(1), 5000) == digest_of(np.ones(1), 5000) != digest_of(np.zeros(1), 5000)
    assert digest_of(ring(1)) == digest_of(ring(1)) != digest_of(ring(2))
    assert digest_of(ring(1)) != digest_of((1, (ring(1),)))
    assert digest_of([ring(1)]) == digest_of([[1, [ring(1)]]]) != digest_of([[2, [ring(1)]]])


def test_every_process_finds_the_same():
    """The text is the same in processes with different hashes of strings."""
    program = (
        "from ebbtide.loop.values.code import digest_code\n"
        "names = {'a', 'b', 'c', 'd'}\n"
        "def step(x): return x in {'p', 'q', 'r', 's'}, names, {'k': 1}\n"
        "print(digest_code(step))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_fields_of_a_run():
    """Each change of a call changes the fields that name it, and no other."""
    state = [np.arange(3.0), np.zeros((2, 2), "f4"), 5]
    base = fingerprint_of(PLAIN, state, "list", 10)

    def changed(*, step=PLAIN, state=state, structure="list", steps=10):
        other = fingerprint_of(step, state, structure, steps)
        return {name for name in {**base, **other} if base.get(name) != other.get(name)}

    assert changed() == set()
    assert changed(steps=11) == {"steps"}
    assert changed(steps=None) == {"steps"}
    of_loop = fingerprint_of(PLAIN, state, "list", None, until=make(1), most=9, inputs=make(2))
    assert base.keys() | {"code of until", "most steps", "code of inputs"} == of_loop.keys()
    for name, others in {
        "code of until": {"until": make(3)}, "most steps": {"most": 8}, "code of inputs": {"inputs": make(3)},
    }.items():  # fmt: skip
        arguments = {"until": make(1), "most": 9, "inputs": make(2)} | others
        other = fingerprint_of(PLAIN, state, "list", None, **arguments)
        assert {key for key in other if other[key] != of_loop[key]} == {name}
    assert changed(step=make(1)) == {"code of step"}
    assert changed(structure="dict") == {"structure of the state"}
    assert base["structure of the state"].startswith("list with the digest ")
    assert changed(step=ebbtide.jit(PLAIN)) == {"code of step", "executor"}
    assert changed(state=[state[0] + 1, *state[1:]]) == {"initial value of leaf 0"}
    assert changed(state=[state[0], state[1].astype("f8"), 5]) == {"leaf 1 of the state", "initial value of leaf 1"}
    assert changed(state=[*state[:2], 6]) == {"initial value of leaf 2"}
    assert base["leaf 1 of the state"] == "float32[2, 2]"
    assert all(len(value) < 80 for value in base.values())


def test_arrays_with_gaps_are_not_copied():
    """An array that a step reaches is told by its elements and how it lies, in a block of memory."""
    array = np.arange(1 << 20, dtype=float).reshape(1 << 10, 1 << 10)
    digests = []
    for held in (array, np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2]):
        found = []
        assert peak_bytes(lambda held=held, found=found: found.append(digest_code(make(held)))) < 1 << 20
        digests += found
    assert len(set(digests)) == 3
    assert digest_code(make(np.asfortranarray(array))) == digests[1]
    array[7, 7] += 1
    assert digest_code(make(array)) != digests[0]


def test_large_states_are_told_in_short():
    """A state of 1,000 leaves has no field for each, and a change of any is seen."""
    state = [np.zeros(1)] * 1000
    base = fingerprint_of(PLAIN, state, "list", 1)
    assert len(base) < 20
    assert fingerprint_of(PLAIN, [*state[1:], np.ones(1)], "list", 1)["initial state"] != base["initial state"]
    for other in (np.zeros((1, 1)), np.zeros(1, "i8")):  # the same bytes
        found = fingerprint_of(PLAIN, [*state[1:], other], "list", 1)
        assert {name for name in base if found[name] != base[name]} == {"leaves of the state"}


def structure_with(metadata, before=0):
    """The structure of a state with static metadata, in a process that has made something else before."""

    def flat(state):
        return (state.u,), state.metadata, None

    class Static:
        def __init__(self, u, metadata):
            self.u, self.metadata = u, metadata

    optree.register_pytree_node(Static, flat, lambda data, leaves: Static(leaves[0], data), namespace="ebbtide")
    kept = [object() for _ in range(before)]
    found = flatten({"s": Static(1.0, metadata()), "x": [0.0]})[1]
    del kept
    return found


class Silent:
    """An object that shows nothing of what it holds."""

    def __init__(self, k):
        self.k = k

    def __repr__(self):
        return "Silent"


def long_array(k):
    """An array of which NumPy shows but the ends."""
    array = np.zeros(5000)
    array[2500] = k
    return array


METADATA = {
    "array": long_array,
    "object": Silent,
    "object without a text": lambda k: types.SimpleNamespace(k=k, own=object()),
    "function": lambda k: lambda u: u * k,
    "member": lambda k: http.HTTPStatus(200 + k),
    "of another package": lambda k: zipfile.ZipInfo(str(k)),
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_of_a_state_counts(name):
    """Static metadata is told by what it holds, whatever it shows of itself, and wherever it is in memory."""
    first, again, other = (
        fingerprint_of(PLAIN, [], structure_with(lambda: METADATA[name](k), 10 * k + extra), 1)
        for k, extra in ((2, 0), (2, 3), (3, 0))
    )
    assert first == again
    assert {key for key in first if first[key] != other[key]} == {"structure of the state"}
    shown = first["structure of the state"]
    assert shown.startswith("dict(s: Static(*), x: list(*)) with the digest ")


def test_a_default_of_a_state_counts():
    """The function that makes the values of a dictionary is told by its code, and not by where it is."""

    def structure(k):
        return flatten(defaultdict(lambda: k, u=1.0))[1]

    first, again, other = (fingerprint_of(PLAIN, [], structure(k), 1) for k in (2.0, 2.0, 3.0))
    assert first == again != other


def test_until_has_no_static_values():
    """An array of the gradient around counts where a condition uses it; that of a step is compared when it is met."""
    found = []

    def noting(x, k):
        limit = np.sum(x) * k
        found.append(fingerprint_of(make(limit), [], "", None, until=make(limit), inputs=make(limit)))
        return np.sum(x)

    for k in (1.0, 1.0, 2.0):
        ebbtide.grad(lambda x, k=k: noting(x, k))(np.ones(3))
    assert found[0] == found[1]
    assert {key for key in found[0] if found[0][key] != found[2][key]} == {"code of until"}


@pytest.mark.parametrize("what", ["value", "tangent", "value in an argument of partial", "view"])
def test_duals_count(what):
    """Value and tangent of an array that only a derivative forwards knows, inside of the gradient, count."""
    found = []

    def noting(x, k):
        def inner(y, dual):
            whole = dual * 1.0
            part = whole[:2]
            whole[0] += dual[1]
            held = part if what == "view" else whole
            step = functools.partial(max, held) if "partial" in what else make(held)
            found.append(digest_code(step))
            return np.sum(y)

        value, tangent = (np.ones(3), k * np.ones(3)) if what == "tangent" else (k * np.ones(3), np.ones(3))
        return ebbtide.jvp(inner, (x, value), (np.ones(3), tangent))[1]

    for k in (1.0, 1.0, 2.0):
        ebbtide.grad(lambda x, k=k: noting(x, k))(np.ones(3))
    assert found[0] == found[1] != found[2]


def test_constants_of_a_tape_count():
    """An array that a tape knows without a derivative is no static value, and counts with its elements."""
    found = []

    def noting(x, k):
        array = np.zeros_like(x)
        array[:] = k
        found.append((type(array).__name__, digest_code(make(array))))
        return np.sum(x)

    for k in (1.0, 1.0, 2.0):
        ebbtide.grad(lambda x, k=k: noting(x, k))(np.ones(3))
    assert found[0] == found[1] != found[2]


def test_too_many_objects_are_told(monkeypatch):
    """What is not looked at is named in a warning, and code is looked at in any case."""
    monkeypatch.setattr("ebbtide.loop.values.code._MOST", 50)
    many = [Model(float(k)) for k in range(100)]

    def found(scale):
        function = compiled("def step(x): return x * scale\n", f"scale = {scale}\n")
        words = r"code of step= of the time loop at .*: what is in \d+ of the class Model is not looked at"
        with pytest.warns(RuntimeWarning, match=words):
            return fingerprint_of(make((many, function)), [], "", 1)

    assert found(2.0) == found(2.0) != found(3.0)


def test_blas_is_asked():
    """What BLAS was told counts, by whatever way, and what it says of itself is there."""
    found = describe_libraries()
    for count in (1, 2):
        with threadpool_limits(count, user_api="blas"):
            assert describe_libraries() == found | {"threads of BLAS": str(count)}
    assert describe_libraries() == found
    assert all(pool["version"] in found["BLAS"] for pool in threadpool_info() if pool["user_api"] == "blas")


def test_a_process_without_blas_is_told(monkeypatch):
    """Where no BLAS can be asked the fields say so."""
    monkeypatch.setattr("threadpoolctl.ThreadpoolController.info", lambda self: [])
    found = describe_libraries()
    assert (found["BLAS"], found["threads of BLAS"]) == ("not known", "not known")


def test_the_version_needs_no_installation():
    """From a tree of sources without metadata Ebbtide is imported, and says that it is not installed."""
    program = (
        "import importlib.metadata as metadata\n"
        "real = metadata.version\n"
        "metadata.version = lambda name: real(f'no-{name}' if name == 'ebbtide' else name)\n"
        "from ebbtide.loop.resuming.fingerprint import describe_libraries\n"
        "print(describe_libraries()['ebbtide'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "not installed\n"


def test_a_fingerprint_leaves_nothing_for_the_collector():
    """What is asked of libraries is gone when the answer is there."""
    describe_libraries()
    gc.collect()
    gc.disable()
    try:
        describe_libraries()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["MKL_CBWR", "NPY_DISABLE_CPU_FEATURES"])
def test_settings_of_kernels_count(monkeypatch, name):
    """Variables that choose instructions are part of the field that names them."""
    monkeypatch.setenv(name, "AVX2")
    assert f"{name}=AVX2" in describe_libraries()["instructions"]


def test_inputs_read():
    """Values, shapes, dtypes and order of inputs count; one that is read again or out of turn does not."""

    def read(*inputs):
        found = InputsRead()
        for index, value in enumerate(inputs):
            found = found.after(index, [value])
        return found

    a, b = np.ones(4), np.zeros(4)
    cases = [read(), read(a), read(a, b), read(b, a), read(b, b), read(a.reshape(2, 2)), read(np.ones(4, "f4"))]
    cases += [read(1.0), read(2.0), InputsRead().after(0, [a], "a list")]
    assert len(set(cases)) == len(cases)
    assert read(a, b).after(0, [b]).after(5, [b]) == read(a, b)
    assert str(read(a)).startswith("1 with the checksum ")


@pytest.mark.parametrize("place", ["itself", "in a closure", "in a partial"])
def test_jitted_steps(place):
    """A jitted step is told by its function and what `jit` was told, and not by what it has traced."""
    def placed(jitted):
        if place == "itself":
            return jitted
        return functools.partial(jitted) if place == "in a partial" else lambda u, i: jitted(u)

    def made(scale, **options):
        return placed(ebbtide.jit(lambda u, i=0: np.sin(u) * scale, **options))

    step = made(1.5)
    before = digest_code(step)
    assert digest_code(made(1.5)) == before
    step(np.ones(3), 0)
    assert digest_code(step) == before
    assert digest_code(made(1.6)) != before
    assert digest_code(made(1.5, donate_argnums=0)) != before
    assert digest_code(made(1.5, executor="machine")) != before
    assert digest_code(made(1.5, budget=ebbtide.Budget(memory=1 << 20))) != before
