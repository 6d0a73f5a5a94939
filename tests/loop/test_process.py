"""The process around a loop: forked children, no terminal, no memory, no descriptors, no standard streams."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forks import run_forked
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from ebbtide import Budget, StorageError, grad, profile, stop_gradient, timeloop, vjp
from ebbtide.loop.stepping import warm
from ebbtide.machine.pools import one_blas_thread
from ebbtide.schedules import Costs, Revolve
from ebbtide.storage import resources

U = np.linspace(0.2, 1.1, 4000)
# Snapshots on disk, with buffers that a loop gives up when others ask for room.
COSTS = Costs(forward=1.0, reverse=2.0, write=0.01, read=0.01)


def step(u: Any, i: Any) -> Any:
    """A nonlinear step."""
    return u + 0.01 * np.sin(u) * np.roll(u, 1)


def loss(u: Any, steps: int = 30, **options: Any) -> Any:
    """A number."""
    return np.sum(timeloop(step, u, steps, **options) ** 2)


# Forked children.


@pytest.mark.parametrize("states", [10, 12, 40])
def test_a_child_that_a_step_forks_has_a_ledger_of_its_own(states: int, tmp_path: Path) -> None:
    """What its parent may take binds it no more, and it asks no loop of its parent for room, nor writes its files."""
    expected, of_child = (grad(lambda u, n=n: loss(u, steps=n))(U).tobytes() for n in (60, 90))

    def forking(u: Any, i: int) -> Any:
        if i in (10, 40, 59):
            status, found = run_forked(lambda: grad(lambda u: loss(u, steps=90))(U).tobytes()[:4096], "child")
            assert (status, found) == (0, of_child[:4096])
        return step(u, i)

    budget = Budget(memory=states * U.nbytes + 300_000, disk=100 * U.nbytes, directory=tmp_path)
    assert grad(lambda u: np.sum(timeloop(forking, u, 60, costs=COSTS) ** 2), budget=budget)(U).tobytes() == expected
    assert not list(tmp_path.iterdir())


def test_a_child_limits_blas_anew() -> None:
    """Who had limited it in the parent is not in the child, whose threads are as many as the library makes anew."""

    def threads() -> bytes:
        with threadpool_limits(2, user_api="blas"), one_blas_thread():
            return repr([pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]).encode()

    with one_blas_thread():
        status, found = run_forked(threads, "child")
    assert status == 0
    assert set(found.decode().strip("[]").split(", ")) == {"1"}


# What is not there.


class Gone(io.StringIO):
    """A terminal that was closed some writes ago."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def write(self, text: str, /) -> int:
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return len(text)


@pytest.mark.parametrize("left", [None, 0, 1, 3])
def test_a_terminal_that_is_gone_costs_no_gradient(left: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar goes, and the loop goes on."""
    expected = grad(loss)(U)
    monkeypatch.setattr(sys, "stderr", None if left is None else Gone(left))
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    found = grad(lambda u: loss(u, progress=True), budget=Budget(memory=12 * U.nbytes + 60_000))(U)
    assert np.array_equal(found, expected)


def test_without_memory_for_it_no_page_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for an estimate, and its want costs no gradient."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(warm.mmap, "mmap", refuse)
    assert warm.time_fault() == 0.0


def test_without_descriptors_a_resumed_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What BLAS there is stands in a file of the system's."""

    def refuse(self: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/self/maps")

    monkeypatch.setattr(ThreadpoolController, "__init__", refuse)
    with pytest.raises(StorageError, match=r"Too many open files.*ulimit -n") as caught:
        grad(loss, resume=tmp_path / "run")(U)
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize(("number", "advice"), [(errno.EMFILE, "ulimit"), (errno.ENOSPC, "Free space")])
def test_a_directory_that_fails_is_named_as_it_was_given(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `resume=`, and not as the `directory=` of a storage, with what helps."""

    def refuse(*args: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(resources, "open_file", refuse)
    with pytest.raises(StorageError, match=rf"to resume from: {os.strerror(number)}\. .*{advice}"):
        grad(loss, resume=tmp_path / "run")(U)


def test_without_standard_streams_a_file_has_none_of_their_numbers(tmp_path: Path) -> None:
    """What others write to 1 and 2 would be in the file, as it was: a damaged entry, and "the disk is faulty"."""
    program = (
        "import os, sys\n"
        "import numpy as np\n"
        "from ebbtide.storage import Disk\n"
        "for number in (0, 1, 2): os.close(number)\n"
        f"with Disk({str(tmp_path)!r}) as storage:\n"
        "    storage.put('a', [np.ones(5000)])\n"
        "    links = [os.path.realpath(f'/proc/self/fd/{number}') for number in (0, 1, 2)]\n"
        "    right = not any('segment' in link for link in links) and storage.take('a')[0].sum() == 5000\n"
        "os._exit(0 if right else 1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


# Directories of loops that nothing depends on.


def beside(u: Any, directory: Path) -> Any:
    """A loop that is a diagnosis beside the loss; the environment, which is no part of the program, may stop it."""

    def each(v: Any, i: int) -> Any:
        if os.environ.get("STOP") == str(i):
            raise KeyboardInterrupt
        return v * 0.9

    spin = timeloop(each, u, 10, resume=directory, resume_every=2, schedule=Revolve(2))
    return np.sum(u**2) + 0.1 * stop_gradient(np.sum(spin))


def constant(u: Any, directory: Path) -> Any:
    """A loop of what is no argument."""
    return np.sum(u**2) * beside(np.ones(3), directory)


@pytest.mark.parametrize("stop", ["", "7"])
@pytest.mark.parametrize("f", [beside, constant])
def test_a_loop_that_nothing_depends_on_leaves_no_directory(
    f: Any, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the gradient is there the directory goes, as that of a loop that was swept; the next call is another one."""
    directory, expected = tmp_path / "run", grad(lambda u: f(u, tmp_path / "other"))(U)
    call = grad(lambda u: f(u, directory))
    if stop:
        monkeypatch.setenv("STOP", stop)
        with pytest.raises(KeyboardInterrupt):
            call(U)
        assert directory.exists()
        monkeypatch.delenv("STOP")
    assert np.array_equal(call(U), expected)
    assert not directory.exists()
    call(2 * U)
    _, pullback = vjp(lambda u: f(u, directory), U)
    assert directory.exists()
    pullback(1.0)
    assert not directory.exists()


def test_a_call_that_fails_after_such_a_loop_keeps_its_directory(tmp_path: Path) -> None:
    """It is resumed from there, where the loop has ended; the first step runs to be measured."""
    directory = tmp_path / "run"

    def fails(u: Any) -> Any:
        beside(u, directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grad(fails)(U)
    assert directory.exists()
    with profile() as p:
        grad(lambda u: beside(u, directory))(U)
    assert p.steps_forward == 1
    assert not directory.exists()
