"""
Files that other systems lose, keep or share, F1 to F9: that we do not.

Real files, and descriptors and blocks of deleted files as the system counts them. Two of the defects are about many
processes; of them is tested what there is: each process has a file of its own, no destructor waits for another process,
and closing may be done again. A test's name has the label, its docstring the defect and our rule.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ebbtide
from ebbtide import Budget, StorageError, grad, timeloop, vjp
from ebbtide.agree import agree
from ebbtide.loop.planning import plan
from ebbtide.loop.resuming import journal, resume
from ebbtide.loop.resuming.journal import ResumeDirectory
from ebbtide.loop.values.generators import pack_generator
from ebbtide.schedules import Costs, Hierarchical, Mixed, Revolve, StoreAll
from ebbtide.storage import Disk, Memory

STEPS = 24
SIZE = 32768
UNIT = SIZE * 8
SLACK = 2**20 + 64 * 1024  # less than 1 MiB of what was deleted waits to be given back; and headers
DESCRIPTORS = Path("/proc/self/fd")
ON_DISK = Hierarchical(1, 3, Costs(write=0.1, read=0.1))

pytestmark = pytest.mark.skipif(not DESCRIPTORS.exists(), reason="descriptors are counted in /proc/self/fd of Linux")


def step(u: Any, i: Any) -> Any:
    """A nonlinear step."""
    return u + 0.1 * np.sin(u) * u


def misfit(u: Any, **options: Any) -> Any:
    """A scalar of the final state."""
    return np.sum(timeloop(options.pop("step", step), u, STEPS, **({"schedule": ON_DISK} | options)) ** 2)


def descriptors() -> list[str]:
    """Return what the descriptors of this process point to."""
    found = []
    for link in DESCRIPTORS.iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:
            continue  # that of the directory itself
    return sorted(found)


def deleted_bytes(directory: Path) -> int:
    """Return the blocks, in bytes, of deleted files of *directory* that this process still holds open."""
    found = 0
    for link in DESCRIPTORS.iterdir():
        try:
            path = str(link.readlink())
            if path.startswith(str(directory)) and path.endswith("(deleted)"):
                found += link.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return found


def blocks(directory: Path) -> int:
    """Return the blocks, in bytes, of all files in a directory."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def run_python(program: str, *arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    source = str(Path(ebbtide.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": source, **environment}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from ebbtide import grad, timeloop
from ebbtide.schedules import Hierarchical
from ebbtide.storage import Disk
def wait(place):
    (place / str(os.getpid())).touch()
    for _ in range(6000):
        if len(list(place.iterdir())) == 3: return
        time.sleep(0.01)
    raise TimeoutError
def step(u, i):
    if i == 20 and sys.argv[2] != "finish": os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    if i == 15 and len(sys.argv) > 3: wait(Path(sys.argv[3]))
    return u + 0.1 * np.sin(u) * u
with Disk(sys.argv[1] or None) as storage:
    f = lambda u: np.sum(timeloop(step, u, 24, schedule=Hierarchical(1, 3), storage=storage) ** 2)
    print(grad(f)(np.full(1000, 0.3)).tobytes().hex()[:32], storage.bytes_written)
"""


def test_f1_descriptors_of_replaced_files_are_closed(tmp_path):
    """F1: each evaluation leaves a descriptor, and with it the blocks of a deleted file. None is left by any of 100."""
    u = np.full(SIZE, 0.3)
    gc.collect()
    before = descriptors()
    budget = Budget(memory=12 * UNIT, disk="64 MiB", directory=tmp_path)
    for run in (grad(misfit, budget=budget), grad(lambda u: misfit(u, schedule=None), budget=budget)):
        for _ in range(50):
            run(u)
            assert descriptors() == before
            assert deleted_bytes(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    with Disk(tmp_path) as storage:
        vjp(lambda u: misfit(u, storage=storage), u)
        assert len(descriptors()) - len(before) <= 2  # the file, and the lock of its directory
    assert descriptors() == before


def test_f2_the_file_has_the_size_of_its_snapshots(tmp_path):
    """F2: a file grows with every write, and deleting frees nothing. Its blocks are those of the live snapshots."""
    most, held, state = [0], [0], 2**20
    with Disk(tmp_path) as storage:

        def watched(u, i):
            most[0] = max(most[0], blocks(tmp_path))
            held[0] = max(held[0], len(storage.keys()))
            return step(u, i)

        run = grad(lambda u: misfit(u, step=watched, schedule=Revolve(3), storage=storage))
        for _ in range(3):
            run(np.full(state // 8, 0.3))
            assert (storage.nbytes, storage.keys()) == (0, ())
            assert blocks(tmp_path) < SLACK
    assert held[0] == 3
    assert 3 * state <= most[0] <= 3 * state + SLACK
    assert storage.bytes_written > 15 * state  # many more were written in all


def test_f3_one_open_file_for_all_snapshots(tmp_path, monkeypatch):
    """F3: the file is opened and closed for each function that is stored. It is opened once, whatever goes there."""
    opened: list[str] = []
    real = os.open

    def count(path, *rest, **more):
        opened.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", count)
    puts = []
    for steps in (10, 100):
        opened.clear()
        with Disk(tmp_path) as storage:
            state = {"u": np.ones(10), "v": np.ones(10), "w": np.ones(3)}
            last = {"schedule": Revolve(3), "storage": storage}
            grad(lambda s: np.sum(timeloop(lambda s, i: {k: np.sin(x) for k, x in s.items()}, s, steps, **last)["u"]))(
                state
            )
            puts.append(storage.bytes_written)
        assert len([path for path in opened if str(tmp_path) in path]) <= 2  # the file, and the directory to lock it
    assert puts[1] >= 5 * puts[0]


def test_f4_what_the_user_keeps_is_kept(tmp_path):
    """F4: a directory that was to be kept is deleted, and later runs append to one file. What the caller says holds."""
    (tmp_path / "mine").write_text("keep", encoding="utf-8")
    u = np.full(SIZE, 0.3)
    for _ in range(3):
        with Disk(tmp_path) as storage:
            grad(lambda u: misfit(u, storage=storage))(u)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    durable = tmp_path / "durable"
    durable.mkdir()
    sizes = []
    for k in range(3):
        with Disk(durable, durable=True) as storage:
            assert storage.keys() == (("result",) if k else ())
            storage.replace("result", [u + k])
            grad(lambda u: misfit(u, storage=storage))(u)
        sizes.append(blocks(durable))
    del storage
    gc.collect()
    assert max(sizes) <= sizes[0] + 64 * 1024
    with Disk(durable, durable=True) as storage:
        assert storage.get("result")[0][0] == u[0] + 2


def test_f5_no_destructor_waits_for_another_process(tmp_path, monkeypatch):
    """F5: files are deleted by `__del__` on one rank while others read. Here none waits; close at any time."""
    found = []
    for path in Path(ebbtide.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found += [path.name] if isinstance(node, ast.FunctionDef) and node.name == "__del__" else []
    assert found == []
    u = np.full(100, 0.3)
    _, dropped = vjp(lambda u: misfit(u, schedule=Mixed(4)), u)
    _, freed = vjp(misfit, u, retain=True)
    storage, directory = Disk(tmp_path), ResumeDirectory(tmp_path / "run")
    storage.put(0, [u])
    assert directory.storage.keys() == ()

    def refuse(value):
        raise AssertionError("a destructor asked the other processes")

    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "ebbtide"]
    asking = [(module, name) for module in modules for name, value in vars(module).items() if value is agree]
    assert {plan, resume, journal} <= {module for module, _ in asking}
    for module, name in asking:
        monkeypatch.setattr(module, name, refuse)
    del dropped
    for _ in range(2):
        freed.free()
        storage.close()
        directory.close()
    with pytest.raises(StorageError, match="closed"):
        storage.get(0)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_f6_directories_of_dead_processes(name, tmp_path):
    """F6: files go to the working directory, and stay after a kill. Ours go to TMPDIR, with an owner, and are swept."""
    scratch, here = tmp_path / "scratch", tmp_path / "here"
    scratch.mkdir()
    here.mkdir()
    program = f"import os; os.chdir({str(here)!r})\n" + PROGRAM
    done = run_python(program, "", name, TMPDIR=str(scratch))
    assert done.returncode == -getattr(signal, name), done.stderr
    (left,) = scratch.iterdir()
    assert re.fullmatch(r"ebbtide-\d+-.+-\d+-\w+", left.name)  # process, machine, start
    assert list(here.iterdir()) == []
    done = run_python(program, "", "finish", TMPDIR=str(scratch))
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []


def test_f7_where_snapshots_go_is_said_by_the_call(tmp_path):
    """F7: module globals say whether snapshots go to disk. Calls at the same time, and within each other, differ."""
    u = np.full(200, 0.3)
    expected = grad(lambda u: misfit(u, schedule=StoreAll()))(u).tobytes()
    found: list[bytes] = []
    problems: list[str] = []
    barrier = threading.Barrier(4)

    def work(k):
        with Disk(tmp_path / str(k)) if k % 2 else Memory() as storage:

            def checked(u, i):
                if len(storage.keys()) > 3 or (k % 2 == 0 and (tmp_path / str(k)).exists()):
                    problems.append(f"thread {k}, step {i}: {storage.keys()}")
                return step(u, i)

            barrier.wait()
            for _ in range(4):
                gradient = grad(lambda u: misfit(u, step=checked, schedule=Revolve(3), storage=storage))
                found.append(gradient(u).tobytes())
            if storage.keys():
                problems.append(f"thread {k}: {storage.keys()} are left")

    for k in (1, 3):
        (tmp_path / str(k)).mkdir()
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert found == [expected] * 16


def test_f8_what_goes_to_disk_goes_there_or_is_refused(tmp_path, monkeypatch):
    """F8: constants stay in memory without a word. All arrays and generators of a state go; another type is refused."""
    state = {
        "u": np.linspace(0.1, 1.0, 50), "small": np.array(0.5), "count": np.arange(50), "half": np.ones(50, np.float32),
        "flags": np.zeros(50, bool), "z": np.ones(50) + 1j, "number": np.float64(2.0), "time": 0.0,
        "random": np.random.default_rng(1),
    }  # fmt: skip

    def f(u, schedule, storage):
        def one(s, i):
            noise = s["random"].standard_normal(50)
            return s | {"u": s["u"] * np.cos(s["small"] * noise) * s["number"] ** 0.1, "count": s["count"] + 1,
                        "z": s["z"] * 1j, "time": s["time"] + 0.1}  # fmt: skip

        return np.sum(timeloop(one, state | {"u": u}, STEPS, schedule=schedule, storage=storage)["u"])

    right = grad(lambda u: f(u, StoreAll(), None))(state["u"])
    put, stored = Disk.put, []

    def noted(self, key, arrays, **more):
        stored.append(sum(array.nbytes for array in arrays))
        return put(self, key, arrays, **more)

    monkeypatch.setattr(Disk, "put", noted)
    with Disk(tmp_path) as storage:
        assert grad(lambda u: f(u, Revolve(3), storage))(state["u"]).tobytes() == right.tobytes()
        packed, _ = pack_generator(state["random"])
        assert set(stored) == {sum(x.nbytes for x in state.values() if isinstance(x, np.ndarray)) + packed.nbytes}
        for odd in (np.array([None]), object(), "text"):
            with pytest.raises(TypeError, match="A leaf of the state"):
                grad(lambda u, odd=odd: timeloop(lambda s, i: s, (u, odd), 3, storage=storage)[0])(1.0)
        assert storage.keys() == ()


def test_f9_processes_share_a_directory_and_nothing_else(tmp_path):
    """F9: a load on some of the processes waits for the others. Each reads its own file, whatever the others do."""
    expected = run_python(PROGRAM, tmp_path, "finish").stdout
    source = str(Path(ebbtide.__file__).parents[1])
    meeting = tmp_path / "meeting"  # all three have snapshots on disk at the same time
    meeting.mkdir()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), ending, str(meeting)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        for ending in ("finish", "SIGKILL", "finish")
    ]  # fmt: skip
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert printed == [expected, "", expected]
    assert expected
    with Disk(tmp_path) as storage:
        storage.put(0, [np.zeros(1)])  # sweeps what the one that was killed has left
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL, 0]
    assert list(tmp_path.iterdir()) == [meeting]
