"""A gradient through a time loop that may be resumed, as a program of its own: it is killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide import value_and_grad
from ebbtide.loop.timeloop import timeloop
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll
from ebbtide.storage import system

SCHEDULES = {
    "store": StoreAll(),
    "revolve": Revolve(4),
    "mixed": Mixed(8),
    "hierarchical": Hierarchical(2, 3, Costs(write=1.0, read=1.0)),
    "periodic": Periodic(10, 3),
    "online": Online(4),
}
STEPS = 60
U = np.linspace(0.5, 1.0, 40)
LATE = np.linspace(0.0, 1.0, 40)


def objective(u: Any, k: Any, late: Any, forcing: Any, name: str) -> Any:
    """A loop with an in-place step, forcing, outputs, and a static value that is used from step 7 on."""

    def step(x: Any, f: Any) -> Any:
        system.count_step()
        state, done = x
        state[1:-1] += 0.1 * state[1:-1] * (state[2:] - state[:-2]) * k + 0.001 * f
        if done >= 7:
            state = state + 1e-3 * late
        return (state, done + 1), np.sum(state)

    start = (2.0 * u, 0)
    (last, _), sums = timeloop(
        step, start, STEPS, inputs=forcing, outputs=True, schedule=SCHEDULES[name], resume_every=5
    )
    return np.sum(last**2) + np.sum(sums * np.arange(STEPS))


class Killer:
    """Counts steps and writes of this process, and kills it at one of them."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at, self.steps, self.writes = what, at, 0, 0

    def count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        if self.what == what and getattr(self, what) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(directory: str, name: str, what: str, at: int, out: str) -> None:
    """Run the gradient; write it, and how many steps and writes there were."""
    killer = Killer(what, at)
    system.count_step = lambda: killer.count("steps")
    pwrite = os.pwrite

    def counted(*args: Any) -> int:
        killer.count("writes")
        # Half of it: a write is not done at once.
        if killer.what == "half" and killer.writes == killer.at:
            pwrite(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
            os.kill(os.getpid(), signal.SIGKILL)
        return pwrite(*args)

    object.__setattr__(system.POSIX, "pwrite", counted)
    forcing = np.sin(np.arange(STEPS))
    resume = None if directory == "-" else Path(directory)
    value, found = value_and_grad(objective, argnums=(0, 1, 2, 3), resume=resume)(U, 1.5, LATE, forcing, name)
    bits = [float(value).hex(), *[np.asarray(g).tobytes().hex() for g in found]]
    Path(out).write_text(json.dumps({"bits": bits, "steps": killer.steps, "writes": killer.writes}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
