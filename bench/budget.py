"""
The chain of dots under a budget: 100 units of saved values in 20 units of memory, the rest on disk.

The oldest saved values are paged to disk, as the sweep needs them last, and come back one by one; a thread writes
behind and reads ahead, in a buffer that is part of the budget. The limit by hand is that of the bytes: what does not
fit is written once and read once, by plain calls without checksums. Bars: the peak of the call less that of the
function alone is within the budget, and the gradient has the same bits as without one, in 1.25 of the time (pages may
sit in the cache of the system). On a virtual machine that gives free pages back to its host, the first write into each
page takes 2 to 13 times as long (8 GB/s fell to 0.6), ours as well as by hand.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from bench.dots import chain, left_by_hand, matrices
from bench.measure import Table, alternate, in_units, median_of, peak_bytes, ratio, run
from ebbtide import Budget, grad, profile

SIZE, STEPS, RUNS = 1000, 100, 3
UNITS = (20,)


def paged_by_hand(x: Any, z: Any, steps: int, most: int) -> Any:
    """Return the gradient with respect to x, with all products but the last *most* written to a file and read back."""
    kept, size = [], z.nbytes
    with tempfile.TemporaryFile(buffering=0) as file:
        for step in range(steps):
            kept.append(z)
            if len(kept) > most:
                os.pwrite(file.fileno(), kept.pop(0).data, (step - most) * size)
            z = np.dot(x, z)
        g, gx = np.ones_like(z), np.zeros_like(x)
        del z
        for step in reversed(range(steps)):
            if not kept:
                kept.append(np.empty_like(x))
                os.preadv(file.fileno(), [kept[0].data], step * size)
                os.ftruncate(file.fileno(), step * size)
            gx += np.dot(g, kept.pop().T)
            if step:
                g = np.dot(x.T, g)
    return gx


def main(quick: bool = False) -> None:
    """Print the table."""
    size, steps, runs, units = (96, 30, 2, (20,)) if quick else (SIZE, STEPS, RUNS, UNITS)
    x, z = matrices(size)

    def f(x: object, z: object) -> object:
        return chain(np, x, z, steps)

    unbounded = grad(f)
    wanted = unbounded(x, z)
    alone = peak_bytes(lambda: f(x, z))
    free = peak_bytes(lambda: unbounded(x, z)) - alone
    table = Table(
        f"{steps} dots of {size} x {size} wrt the left factor under a budget: peak in matrices, and time",
        ("peak without", "paged, in matrices", "time / without", "by hand, paged / kept", "seconds without"),
        "least paged",
    )
    for memory in units:
        bounded = grad(f, budget=Budget(memory=memory * x.nbytes, disk="2 GiB"))
        same = np.array_equal(bounded(x, z).view(np.uint64), wanted.view(np.uint64))
        peak = peak_bytes(lambda bounded=bounded: bounded(x, z)) - alone
        with profile() as seen:
            bounded(x, z)
        by_hand = paged_by_hand(x, z, steps, memory)
        np.testing.assert_allclose(by_hand, wanted, rtol=1e-9, atol=1e-9 * np.max(np.abs(wanted)))
        calls = {
            "bounded": lambda bounded=bounded: bounded(x, z),
            "free": lambda: unbounded(x, z),
            "paged": lambda memory=memory: paged_by_hand(x, z, steps, memory),
            "kept": lambda: left_by_hand(x, z, steps),
        }
        times = alternate(calls, runs)
        cells = [
            in_units(free, x.nbytes),
            in_units(seen.bytes_written, x.nbytes),
            str(slower := ratio(times, "bounded", "free")),
            str(ratio(times, "paged", "kept")),
            median_of(times, "free", 1),
        ]
        met = same and peak <= memory * x.nbytes and slower.median <= 1.25
        least = f"{max(0, steps - 1 - memory)}"
        table.add(f"{memory} units", in_units(peak, x.nbytes), cells, least, f"{memory}, same bits, 1.25", met)
    table.note("Peak: of the call less that of the function alone. In brackets the range of the ratios.")
    table.show()


if __name__ == "__main__":
    run(main)
