"""
Runs checks on ranks; started by `mpiexec` on four processes from test_mpi.py, with the names of the checks.

Four processes make groups of one, two, three and four ranks, so that they start once for all of them.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

import jobs
import journals
import loops
import operations
import storages
import unlike
from group import Group
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
CHECKS = {
    name.removeprefix("check_"): check
    for module in (operations, loops, storages, journals, jobs, unlike)
    for name, check in vars(module).items()
    if name.startswith("check_")
}


def groups() -> Iterator[Group]:
    """Yield the groups that this process is in: all four; three and one beside it; two and two."""
    everyone = Group(WORLD)
    for colors in ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1)):
        yield Group(WORLD.Split(colors[WORLD.rank]))
        everyone.meet()  # asleep: MPI waits in a loop that takes a core


def main() -> None:
    """Run the checks that are named, on all groups, or on the first one of a size: `name@size`."""
    for group in groups():
        for argument in sys.argv[1:]:
            name, _, size = argument.partition("@")
            if size and (int(size) != group.size or group.world):
                continue
            CHECKS[name](group)
            group.meet()
            if group.rank == 0:
                sys.stdout.write(f"{name} on {group.size}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one
        traceback.print_exc()
        sys.stderr.flush()
        WORLD.Abort(1)
