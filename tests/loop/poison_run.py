"""
Takes gradients and prints a digest of each, as a program of its own, whose allocator may poison freed memory.

`python -m tests.loop.poison_run DIRECTORY STRIDE` takes those of every case of number STRIDE, 2 STRIDE and so on of the
matrix of schedules, storages, steps and controls, and all of the others. It prints a digest of each as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tests.scale import bar

from ebbtide import Budget, BudgetError, checkpoint, grad, hvp, jit, timeloop, value_and_grad, vjp
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import Disk, Memory

# Larger than 1 KiB, what NumPy and the allocator's own cache keep without a poison, and smaller than what is mapped.
SIZE, STEPS, DT = 500, 11, 0.1
U, C = np.linspace(0.2, 1.3, SIZE), np.linspace(0.5, 1.5, SIZE)
FORCING = np.sin(np.arange(STEPS * SIZE * 1.0)).reshape(STEPS, SIZE)
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(2), Mixed(8, restart=1, saved=3), Periodic(3, 2), Online(3),
    Hierarchical(2, 2, Costs(write=1.0, read=1.0)),
)  # fmt: skip
STORAGES: dict[str, Callable[[Path], Any]] = {
    "none": lambda path: None, "memory": lambda path: Memory(), "disk": Disk,
    "buffer": lambda path: Disk(path, buffer="1 MiB"),
}  # fmt: skip
CONTROLS = {"state": (0,), "coefficient": (1,), "both": (0, 1)}


def in_place(u: Any, i: int, x: Any, c: Any) -> Any:
    """An explicit nonlinear step that writes into its state."""
    u[1:-1] += DT * c[1:-1] * np.sin(u[1:-1]) * (u[2:] - u[:-2])
    u[0] = u[1] * 0.5
    return u


def new_object(u: Any, i: int, x: Any, c: Any) -> Any:
    """The same sort of step, which makes a new object."""
    return u + DT * np.sin(c * u) * np.roll(u, 1)


def two_levels(state: Any, i: int, x: Any, c: Any) -> Any:
    """A scheme that needs the step before."""
    u, before = state
    f = np.sin(c * u) * np.roll(u, 1)
    return u + DT * (1.5 * f - 0.5 * before), f


def every_third(state: Any, i: int, x: Any, c: Any) -> Any:
    """Depends on a state of up to three steps before, and on the coefficient every third step."""
    u, kept = state
    u = u + DT * np.sin(u) * kept
    return (u * c if i % 3 == 1 else u), (u * 1.0 if i % 3 == 0 else kept)


def forced(u: Any, i: int, x: Any, c: Any) -> Any:
    """A step with a forcing of its own."""
    return u + DT * (np.sin(u) * c + x * u)


KINDS = (in_place, new_object, two_levels, every_third, forced)


def objective(u: Any, c: Any, kind: Any = in_place, **options: Any) -> Any:
    """A scalar of a loop."""
    inputs = [{"i": i, "x": x} for i, x in enumerate(FORCING)]
    state = (u, c * 0.3) if kind in {two_levels, every_third} else u
    last = timeloop(lambda s, x: kind(s, x["i"], x["x"], c), state, STEPS, inputs=inputs, **options)
    return np.sum((last[0] if isinstance(last, tuple) else last) ** 2)


def digest(found: Any) -> str:
    """A digest of the bytes of arrays and numbers; "wrong" if they are not finite."""
    leaves = [np.asarray(one) for one in found]
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        return "wrong"
    return sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()[:16]


def of_three(f: Any, argnums: tuple[int, ...] = (0, 1), **options: Any) -> str:
    """The digest of value and gradients by a control and by another one; "wrong" if not the same by the first again."""
    call, found = value_and_grad(f, argnums=argnums, **options), []
    for k in (1.0, 0.9, 1.0):
        value, gradients = call(U * k, C / k)
        found.append(digest([value, *gradients]))
    first, other, again = found
    return first + other if first == again != other else "wrong"


def matrix(directory: Path, stride: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Some cases of the matrix."""
    cases = list(product(SCHEDULES, STORAGES, KINDS, CONTROLS))
    for schedule, storage, kind, control in bar(cases[stride - 1 :: stride], "poisoned cases"):

        def run(schedule: Any = schedule, storage: str = storage, kind: Any = kind, control: str = control) -> str:
            kept = STORAGES[storage](directory)
            found = of_three(partial(objective, kind=kind, schedule=schedule, storage=kept), CONTROLS[control])
            if kept is not None:
                kept.close()
            return found

        yield f"{schedule}, {storage}, {kind.__name__}, {control}", run


def within(f: Any, **budget: Any) -> str:
    """The digest of gradients within the least budget, and within one of half as much again."""
    least = 1
    for _ in range(2):  # what only later steps use is told in a refusal of its own
        try:
            value_and_grad(f, argnums=(0, 1), budget=Budget(memory=least, **budget))(U, C)
        except BudgetError as error:
            least = int(error.least or 0)
    return "".join(of_three(f, budget=Budget(memory=memory, **budget)) for memory in (least, least * 3 // 2))


def wave(u: Any, c: Any) -> Any:
    """A function without a loop."""
    for _ in range(12):
        u = u + DT * np.sin(c * u) * np.roll(u, 1)
    return np.sum(u**2)


def pulled(f: Any) -> str:
    """The digest of what a retained pullback gives; "wrong" if that is another one the second time."""
    _, pullback = vjp(f, U, C, retain=True)
    once, twice = (digest(pullback(1.0)) for _ in range(2))
    return once if once == twice else "wrong"


def others(directory: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Budgets, checkpointed functions, compiled ones, and derivatives of derivatives."""
    for kind in KINDS:
        f = partial(objective, kind=kind)
        yield f"memory, {kind.__name__}", partial(within, f)
        yield f"memory and disk, {kind.__name__}", partial(within, f, disk="64 MiB", directory=directory)
        yield f"retained, {kind.__name__}", partial(pulled, partial(f, schedule=Revolve(2)))
    inner = lambda u, i, x, c: checkpoint(lambda v: new_object(v, i, x, c) * np.cos(u))(u) + 0.5
    yield "paged", partial(within, wave, disk="64 MiB", directory=directory)
    yield "checkpoint", partial(of_three, checkpoint(wave))
    yield "checkpoint in the step", partial(of_three, partial(objective, kind=inner, schedule=Revolve(2)))
    yield "loop in a checkpoint", partial(of_three, checkpoint(partial(objective, kind=new_object)))
    for executor in ("reference", "machine"):
        compiled = jit(grad(wave, argnums=(0, 1)), executor=executor)
        yield executor, lambda f=compiled: "".join(digest(f(U * k, C)) for k in (1.0, 0.9, 1.0))
    second = hvp(partial(objective, c=C, kind=new_object, schedule=Revolve(2)))
    yield "hvp", lambda: digest([second(U, C)])


def freed_and_new() -> dict[str, list[float]]:
    """What is in the middle of arrays that are freed, each between two that stay, and of new ones in their places."""
    arrays = [np.ones(SIZE) for _ in range(101)]
    address = lambda array: array.__array_interface__["data"][0]
    middles = {address(array): ctypes.c_double.from_address(address(array) + 4 * SIZE) for array in arrays[1::2]}
    del arrays[1::2]
    freed = [middle.value for middle in middles.values()]
    fresh = [np.empty(SIZE) for _ in range(200)]
    return {"freed": freed, "new": [float(array[SIZE // 2]) for array in fresh if address(array) in middles]}


def main(directory: str, stride: str) -> None:
    """Take the gradients, and print their digests."""
    found: dict[str, Any] = {"memory": freed_and_new()}
    cases = [*matrix(Path(directory), int(stride)), *others(Path(directory))]
    found["digests"] = {name: run() for name, run in cases}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
