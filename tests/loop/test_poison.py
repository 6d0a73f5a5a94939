"""Memory that was freed, and memory that was not yet written, is never read: poisoned, it changes no bit."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.scale import FULL

import ebbtide

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="MALLOC_PERTURB_ is a variable of glibc")
# What is freed has bytes of this number then, and what is new those of its complement: 255 makes NaN of what is freed,
# and 128 numbers of 1e306 of what is new.
POISONS = (255, 128)


@cache
def run(poison: int, directory: Path) -> dict[str, Any]:
    """What the program found with a poison; 0 for none. All arrays come from the one heap, which keeps its memory."""
    kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "OPENBLAS_NUM_THREADS": "1"}
    paths = os.pathsep.join([str(Path(ebbtide.__path__[0]).parent), str(Path(__file__).parents[2])])
    environment = os.environ | kept | {"PYTHONPATH": paths, "MALLOC_PERTURB_": str(poison)}
    # A stride that has no factor in common with the numbers of schedules, storages, steps and controls.
    command = [sys.executable, "-W", "error", "-m", "tests.loop.poison_run", str(directory), "1" if FULL else "17"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    assert done.returncode == 0
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Return what the program found, which is run once for each poison."""
    directory = tmp_path_factory.mktemp("scratch")
    return lambda poison: run(poison, directory)


@pytest.mark.parametrize("poison", POISONS)
def test_the_poison_works(poison: int, found: Callable[[int], dict[str, Any]]) -> None:
    """Arrays that are freed keep their numbers, and new ones in their places have them; poisoned, neither."""
    plain, poisoned = found(0)["memory"], found(poison)["memory"]
    assert set(plain["freed"]) == set(plain["new"]) == {1.0}
    assert len(poisoned["freed"]) == len(plain["freed"]) == 50
    assert len(poisoned["new"]) > 25
    if poison == 255:
        assert all(map(math.isnan, poisoned["freed"]))
        assert set(poisoned["new"]) == {0.0}
    else:
        assert all(-1e-290 < number < 0.0 for number in poisoned["freed"])
        assert all(number > 1e306 for number in poisoned["new"])


@pytest.mark.parametrize("poison", POISONS)
def test_poisoned_memory_is_never_read(
    poison: int, found: Callable[[int], dict[str, Any]], record_property: Callable[..., None]
) -> None:
    """Whatever is done with schedules, storages, budgets, checkpoints and programs has the same bits when poisoned."""
    plain, poisoned = found(0)["digests"], found(poison)["digests"]
    record_property("poisoned cases", len(poisoned))
    assert len(poisoned) > (420 if FULL else 40)
    assert [name for name, digest in plain.items() if "wrong" in digest] == []
    assert [name for name, digest in plain.items() if poisoned.get(name) != digest] == []
