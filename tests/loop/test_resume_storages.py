"""Runs that are interrupted or killed and called again: storages of the user, traced inputs, values beside, `vjp`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
from tests.loop.lost import unsynchronized
from tests.loop.test_resume import Ticker

import ebbtide
from ebbtide import Budget, grad, timeloop, value_and_grad, vjp
from ebbtide.errors import DeterminismError
from ebbtide.ledger import SNAPSHOTS, Ledger
from ebbtide.loop.holding.snapshots import Snapshots
from ebbtide.schedules import Revolve, Snapshot, StoreAll
from ebbtide.storage import Disk, Memory, Storage, Tiered, system

STEPS = 40
OUTPUTS: dict[str, Callable[[int], Any]] = {
    "bool": lambda i: i > 3, "int": lambda i: i, "float": float, "complex": lambda i: 1j * i, "none": lambda i: None,
}  # fmt: skip
U = np.linspace(0.5, 1.0, 20)
FORCING = 0.01 * np.sin(np.arange(STEPS * 20.0)).reshape(STEPS, 20)
OPTIONS = {"schedule": Revolve(4), "resume_every": 4}


def step(x: Any, f: Any) -> Any:
    """A step that is counted where the code of the call does not see it."""
    system.met_job_step()
    return np.sin(x) * 1.01 + f


def stored(storage: Storage, directory: Path) -> Any:
    """The gradient of a loop with a storage of the user, where killed runs leave nothing, and what the user keeps."""
    with storage:
        if not storage.keys():
            storage.put("mine", [np.arange(3.0)])
        f = lambda u: np.sum(timeloop(step, u, STEPS, inputs=FORCING, storage=storage, **OPTIONS) ** 2)
        found = grad(f, resume=directory)(U)
        assert storage.keys() == ("mine",)
        return found, storage.get("mine")


def traced_inputs(directory: Path) -> Any:
    """The gradients by the state, by inputs that are an array, and by those that are a list."""

    def f(u: Any, forcing: Any) -> Any:
        first = timeloop(step, u, STEPS, inputs=forcing, **OPTIONS)
        return np.sum(timeloop(step, first, 10, inputs=[forcing[0], forcing[1]] * 5, **OPTIONS) ** 2)

    return grad(f, (0, 1), resume=directory)(U, FORCING)


def beside(directory: Path) -> Any:
    """Value, gradient, and outputs of the loop that are no part of the value."""

    def f(u: Any) -> Any:
        summed = lambda x, f: (step(x, f), np.sum(x))
        last, sums = timeloop(summed, u, STEPS, inputs=FORCING, outputs=True, **OPTIONS)
        return np.sum(last**2), {"last": last, "sums": sums}

    return value_and_grad(f, has_aux=True, resume=directory)(U)


def pulled_back(directory: Path) -> Any:
    """The final state, and what is pulled back to the initial one and to the inputs."""
    loop = lambda u, forcing: timeloop(step, u, STEPS, inputs=forcing, resume=directory, **OPTIONS)
    value, pullback = vjp(loop, U, FORCING)
    return value, pullback(np.cos(U))


CALLS: dict[str, Callable[[Path], Any]] = {
    "tiered": lambda path: stored(Tiered(2 * U.nbytes, Disk(path)), path / "run"),
    "durable": lambda path: stored(Disk(path / "kept", durable=True), path / "run"),
    "traced inputs": lambda path: traced_inputs(path / "run"),
    "has_aux": lambda path: beside(path / "run"),
    "vjp": lambda path: pulled_back(path / "run"),
}


def run(name: str, path: Path, stop: int = 0, strike: Callable[[], None] | None = None) -> tuple[list[bytes], int]:
    """The bytes of all that a call gives, and how many steps it ran; it is struck in the step of number *stop*."""
    count = 0

    def met() -> None:
        nonlocal count
        count += 1
        if count == stop and strike is not None:
            strike()

    system.met_job_step = met
    (path / "kept").mkdir(parents=True, exist_ok=True)
    with unsynchronized():
        found = [np.asarray(leaf).tobytes() for leaf in optree.tree_leaves(CALLS[name](path))]
    assert not (path / "run").exists()
    return found, count


def interrupt() -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", CALLS)
def test_interrupted_and_called_again(name: str, tmp_path: Path) -> None:
    """Interrupted twice, in either sweep, the same call goes on in the same process, with the bits of a whole run."""
    expected, steps = run(name, tmp_path / "whole")
    for stop in range(9, steps, 27):
        for again in (stop, 8):
            with pytest.raises(KeyboardInterrupt):
                run(name, tmp_path, again, interrupt)
        found, left = run(name, tmp_path)
        assert found == expected
        assert left < steps


@pytest.mark.parametrize("inner", [False, True], ids=["later static value", "loop in the step"])
@pytest.mark.parametrize("memory", ["150 KiB", "300 KiB"])
def test_resumed_where_all_steps_do_not_fit(inner: bool, memory: str, tmp_path: Path) -> None:
    """A loop that cannot keep what all steps save, and goes back to its initial state for that, does so resumed."""
    q = np.linspace(0.1, 0.2, 20)

    def one(k: Any, x: Any, i: int) -> Any:
        system.met_job_step()
        x = x + 0.01 * np.sin(k * x)
        if inner:
            return timeloop(lambda z, j: z - 0.01 * z * k * j, x, 3)
        return x * (1 + 1e-3 * q) if i >= 4 else x

    def run(directory: Path, stop: int = 0) -> Any:
        ticker = Ticker(stop)
        system.met_job_step = ticker.met

        def f(u: Any, k: Any) -> Any:
            last = timeloop(partial(one, k), u, 29, schedule=StoreAll(), resume_every=2, budget=Budget(memory))
            return np.sum(last**2)

        return value_and_grad(f, (0, 1), resume=directory)(U, 1.1), ticker.calls

    expected, calls = run(tmp_path / "whole")
    for stop in (5, 17, 29, calls - 3):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", stop)
        found, _ = run(tmp_path / "run")
        assert optree.tree_all(optree.tree_map(np.array_equal, found, expected))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_open", [False, True], ids=["steps", "until"])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_any_kind(kind: str, is_open: bool, tmp_path: Path) -> None:
    """Outputs that are numbers of Python, or none at all, are compared with those of the earlier run like arrays."""
    length = {"until": lambda x: x[1] >= STEPS, "max_steps": 2 * STEPS} if is_open else {"steps": STEPS}

    def gradient(stop: int = 0, other: int = 0) -> Any:
        ran = list[int]()

        def met() -> None:
            ran.append(0)
            if len(ran) == stop:
                raise KeyboardInterrupt

        def step(x: Any, i: int) -> Any:
            system.met_job_step()
            return (np.sin(x[0]) * 1.01, x[1] + 1), OUTPUTS[kind](i + system.add_to_output)

        system.met_job_step, system.add_to_output = met, other
        found = list[Any]()

        def f(u: Any) -> Any:
            (last, _), outputs = timeloop(step, (u, 0), outputs=True, **length, **OPTIONS)
            found.append(None if kind == "none" else ebbtide.stop_gradient(outputs))
            return np.sum(last**2)

        with unsynchronized():
            return grad(f, resume=tmp_path / "run")(U), found[0]

    expected, outputs = gradient()
    for stop in (20, 60):
        with pytest.raises(KeyboardInterrupt):
            gradient(stop)
        found, again = gradient()
        assert found.tobytes() == expected.tobytes()
        assert repr(again) == repr(outputs)
    if kind != "none":
        with pytest.raises(KeyboardInterrupt):
            gradient(60)
        with pytest.raises(DeterminismError, match="another output"):
            gradient(other=1)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.loop.test_resume_storages import CALLS, run
for name in CALLS:
    for stop in (30, 8):
        if os.fork() == 0:
            run(name, Path(sys.argv[1], name), stop, lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
"""


def test_killed_and_called_again(tmp_path: Path) -> None:
    """Killed twice, the same call goes on in another process, with the bits of a whole run."""
    paths = [Path(ebbtide.__path__[0]).parent, Path(__file__).parents[2]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, env=environment)
    for name in CALLS:
        expected, steps = run(name, tmp_path / "whole" / name)
        found, left = run(name, tmp_path / name)
        assert found == expected
        assert left < steps


def moving(to: Path, at: int, budget: Budget | None = None, **options: Any) -> Any:
    """A gradient of a loop that changes the working directory in one of its steps."""

    def moved(x: Any, i: int) -> Any:
        if i == at:
            os.chdir(to)
        return np.sin(x) * 1.01

    return grad(lambda u: np.sum(timeloop(moved, u, STEPS, resume_every=4, **options) ** 2), budget=budget)


def test_a_step_that_changes_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory named at the start is used to the end and removed, and one of that name elsewhere is let alone."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    with Disk("run", durable=True) as theirs:
        theirs.put("theirs", [U])
    monkeypatch.chdir(tmp_path / "here")
    found = moving(tmp_path / "there", 7, schedule=Revolve(4), resume="run")(U)
    assert list((tmp_path / "here").iterdir()) == []
    with Disk(tmp_path / "there" / "run", durable=True) as theirs:
        assert theirs.keys() == ("theirs",)
    monkeypatch.chdir(tmp_path / "here")
    assert np.array_equal(found, moving(tmp_path / "there", 7)(U))


@pytest.mark.parametrize("at", [0, 7])
@pytest.mark.parametrize("kind", ["budget", "storage"])
def test_scratch_files_and_a_changed_working_directory(
    kind: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scratch files go to the directory that was named when the call or the storage was made, and leave nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "work").mkdir()
    seen = list[str]()
    put = Disk.put

    def watched(disk: Disk, *arguments: Any, **options: Any) -> int:
        written = put(disk, *arguments, **options)
        seen.append(str(disk.directory))
        return written

    monkeypatch.setattr(Disk, "put", watched)
    if kind == "budget":
        budget = Budget(memory="64 MiB", disk="64 MiB", directory="scratch")
        moving(tmp_path / "work", at, budget, schedule=StoreAll("disk"))(U)
        assert budget == Budget(memory="64 MiB", disk="64 MiB", directory="scratch")
    else:
        with Disk("scratch") as storage:
            moving(tmp_path / "work", at, schedule=StoreAll("disk"), storage=storage)(U)
    assert seen
    assert all(Path(path).parent == tmp_path / "scratch" for path in seen)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert list((tmp_path / "work").iterdir()) == []


def test_of_a_storage_of_the_user_a_loop_removes_its_own_keys() -> None:
    """What a killed run of the same loop left goes, and all that it stores, also from the ledger; all else stays."""
    storage, ledger = Memory(), Ledger(watched=True)
    for key in ("run/1-4-restart", "run/10-4-restart", "mine"):
        storage.put(key, [U])
    snapshots = Snapshots(ledger, storage, Memory, lambda: False, "run/1")
    assert storage.keys() == ("run/10-4-restart", "mine")
    for number in (1.0, 2.0):  # the second one is of another sweep, for which the first is kept
        snapshots.put_state(3, [number * U], "memory")
    assert snapshots.get_state(3, keep=True)[0].tolist() == U.tolist()
    snapshots.drop(Snapshot(3))
    assert (storage.keys(), ledger.held[SNAPSHOTS]) == (("run/10-4-restart", "mine"), 0)
    snapshots.put_state(5, [U], "disk")
    assert (len(storage.keys()), ledger.held[SNAPSHOTS]) == (3, U.nbytes)
    snapshots.close()
    assert (storage.keys(), ledger.held[SNAPSHOTS]) == (("run/10-4-restart", "mine"), 0)
