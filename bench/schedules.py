"""
Schedules alone, without a loop: what they cost a gradient, and how long it takes to ask them.

The peer is checkpoint_schedules. Its H-Revolve is given the same costs, by name; what its actions cost is counted from
them. The limit of the forward steps is one for each step; that of the cost has no transfer either. Bars: the published
numbers of forward steps, the least cost by a search over all places, the first action of 1e9 steps within 1 ms, that of
a table of 10,000 steps and 50 + 50 slots within 1 s, and 40,000 actions within 0.2 s, whatever the schedule and the
slots, tables made, positions included.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from bench.measure import Table, installed, run
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Position, Revolve, Schedule, StoreAll
from ebbtide.testing import check_schedule

PEER = "checkpoint_schedules"
CELLS = ((100, 5, 416, 352), (100, 10, 322, 237), (100, 20, 278, 184), (100, 50, 248, 150), (1000, 10, 4636, 3921))
# u_f, u_b, w, r, and the least cost of 200 steps with 5 + 20 slots by a search over all places (as in the tests).
COSTS = ((1, 1, 2, 2), (1, 3, 5, 5), (1, 10, 20, 20), (10, 2, 1, 1), (10, 1, 20, 20), (100, 1, 50, 50))
ACTIONS = 40_000
BAR = 200.0  # ms for so many actions


def least_cost(steps: int, memory: int, disk: int, costs: Costs) -> float:
    """Return the least cost by trying every place on disk, with memory by its closed form."""
    alone = [0.0, *(costs.forward * Revolve(memory).forward_steps(n) for n in range(1, steps + 1))]
    fresh = alone
    for _ in range(disk):
        stored = [0.0]
        for n in range(1, steps + 1):
            ways = (j * costs.forward + fresh[n - j] + costs.read + stored[j] for j in range(1, n))
            stored.append(min(alone[n], *ways) if n > 1 else alone[n])
        fresh = [min(a, costs.write + s) for a, s in zip(alone, stored, strict=True)]
    return fresh[steps] + costs.reverse * steps


def count_peer(schedule: Any) -> tuple[int, int, int]:
    """Return forward steps, writes to disk and reads from it of a schedule of the peer."""
    import checkpoint_schedules as peer

    forward = writes = reads = 0
    disk = peer.StorageType.DISK
    for action in schedule:
        if isinstance(action, peer.Forward):
            forward += action.n1 - action.n0
            writes += action.storage == disk and (action.write_ics or action.write_adj_deps)
        elif isinstance(action, (peer.Copy, peer.Move)):
            reads += action.from_storage == disk
        elif isinstance(action, peer.EndReverse):
            break
    return forward, writes, reads


def peer_cell(make: Callable[[Any], Any], count: Callable[[tuple[int, int, int]], float]) -> str:
    """Return what the peer takes; why there is none if it is not installed."""
    if not installed(PEER):
        return "not installed"
    import checkpoint_schedules as peer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f"{count(count_peer(make(peer))):,.0f}"


def steps_of(cells: tuple[tuple[int, int, int, int], ...]) -> None:
    """Print the table of forward steps."""
    table = Table("Forward steps of a gradient", (PEER,), "no recomputation")
    for steps, snapshots, binomial, mixed in cells:
        for name, ours, bar in (("revolve", Revolve(snapshots), binomial), ("mixed", Mixed(snapshots), mixed)):
            found = check_schedule(ours, steps, slots={"memory": snapshots}).forward_steps

            def make(peer: Any, name: str = name, steps: int = steps, snapshots: int = snapshots) -> Any:
                if name == "revolve":
                    return peer.MultistageCheckpointSchedule(steps, snapshots, 0)
                return peer.MixedCheckpointSchedule(steps, snapshots, storage=peer.StorageType.RAM)

            cell = peer_cell(make, lambda counts: counts[0])
            case = f"{name}, n = {steps:,}, s = {snapshots}"
            table.add(case, f"{found:,}", [cell], f"{steps:,}", f"{bar:,}", found == bar)
    table.show()


def costs_of(steps: int, memory: int, disk: int, sets: tuple[tuple[float, float, float, float], ...]) -> None:
    """Print the table of the costs of two tiers."""
    title = f"Cost of {steps} steps with {memory} + {disk} slots, for costs of step, reversal, write and read"
    table = Table(title, (PEER,), "no recomputation")
    for forward, reverse, write, read in sets:
        costs = Costs(forward=forward, reverse=reverse, write=write, read=read)
        count = check_schedule(Hierarchical(memory, disk, costs), steps, slots={"memory": memory, "disk": disk})

        def cost(counts: tuple[int, int, int], costs: Costs = costs) -> float:
            return costs.time(forward=counts[0], reverse=steps, writes=counts[1], reads=counts[2])

        def make(peer: Any, costs: Costs = costs) -> Any:
            return peer.HRevolve(
                steps, memory, disk, uf=costs.forward, ub=costs.reverse, wd=costs.write, rd=costs.read
            )

        found = cost((count.forward_steps, count.writes["disk"], count.reads["disk"]))
        bar = least_cost(steps, memory, disk, costs)
        name = f"{forward}, {reverse}, {write}, {read}"
        cell, limit = peer_cell(make, cost), f"{cost((steps, 0, 0)):,.0f}"
        table.add(name, f"{found:,.0f}", [cell], limit, f"{bar:,.0f}", found <= bar)
    table.show()


def ask(schedule: Schedule, position: Position, actions: int) -> tuple[float, int]:
    """Return the seconds of so many actions, positions included, and how many there were before the end."""
    start = time.perf_counter()
    for asked in range(actions):
        action = schedule.next_action(position)
        if action is None:
            return time.perf_counter() - start, asked
        position = position.after(action)
    return time.perf_counter() - start, actions


def actions_of(steps: int, slots: tuple[int, ...], actions: int, runs: int) -> None:
    """Print the table of the times of many actions: a whole gradient, or as much of it as that many actions are."""
    table = Table(f"Time of {actions:,} actions of {steps:,} steps, tables made, in ms", (), "an action, in us")
    known, costs = Position(steps=steps), Costs(write=2, read=2)
    cases: list[tuple[str, Schedule, Position]] = []
    for count in slots:
        named: tuple[tuple[str, Schedule], ...] = (
            (f"revolve, {count} slots", Revolve(count)),
            (f"hierarchical, {count} + {count} slots", Hierarchical(count, count, costs)),
            (f"mixed, {count} slots", Mixed(count)),
            (f"periodic, {count} slots", Periodic(100, count)),
            (f"online, {count} slots", Online(count)),
        )
        cases += [(name, schedule, known) for name, schedule in named]
        cases.append((f"online, {count} slots, length not known", Online(count), Position(steps=steps, open=True)))
    cases.append((f"all on disk, {steps - 1:,} snapshots", StoreAll("disk"), known))
    for name, schedule, start in cases:
        schedule.next_action(start)
        times = [ask(schedule, start, actions) for _ in range(runs)]
        # A gradient of fewer actions counts in proportion.
        found = statistics.median(seconds / max(1, asked) for seconds, asked in times) * actions * 1e3
        table.add(name, f"{found:.1f}", [], f"{found / actions * 1e3:.2f}", f"{BAR:g}", found <= BAR)
    table.show()


def times_of(steps: int, slots: int, peer_steps: int, runs: int) -> None:
    """Print the table of the times of asking."""
    table = Table("Time to ask, in ms", (f"{PEER}, {peer_steps:,} steps",), "limit")
    costs = Costs(write=2, read=2)

    def timed(make: Callable[[], Schedule], steps: int, actions: int) -> float:
        return statistics.median(ask(make(), Position(steps=steps), actions)[0] for _ in range(runs)) * 1e3

    def peer_time(make: Callable[[Any], Any], actions: int) -> str:
        if not installed(PEER):
            return "not installed"
        import checkpoint_schedules as peer

        start = time.perf_counter()
        for _, _ in zip(range(actions), make(peer), strict=False):
            pass
        return f"{(time.perf_counter() - start) * 1e3:.2f}"

    few = min(10, slots)
    rows: list[tuple[str, Callable[[], Schedule], int, int, float | None, Callable[[Any], Any] | None]] = [
        ("revolve, 10 slots, first action of 1e9 steps", lambda: Revolve(10), 10**9, 1, 1.0,
         lambda peer: peer.Revolve(peer_steps, few)),
        (f"hierarchical, {slots} + {slots} slots, first action of {steps:,} steps",
         lambda: Hierarchical(slots, slots, costs), steps, 1, 1000.0, lambda peer: peer.HRevolve(peer_steps, few, few)),
        (f"mixed, {slots} slots, first action of {steps:,} steps", lambda: Mixed(slots), steps, 1, None, None),
    ]  # fmt: skip
    for name, make, length, count, bar, peer in rows:
        found = timed(make, length, count)
        met = None if bar is None else found <= bar
        theirs = "" if peer is None else peer_time(peer, count)
        table.add(name, f"{found:.3f}", [theirs], "", "" if bar is None else f"{bar:g}", met)
    table.note("Peer: a loop that much shorter, as the time of its tables grows with the square of the steps.")
    table.show()


def main(quick: bool = False) -> None:
    """Print the tables."""
    steps_of(CELLS[:1] if quick else CELLS)
    costs_of(*((20, 2, 3, COSTS[:1]) if quick else (200, 5, 20, COSTS)))
    times_of(*((50, 3, 20, 1) if quick else (10_000, 50, 500, 5)))
    actions_of(*((50, (3,), 100, 1) if quick else (10_000, (10, 50, 200), ACTIONS, 5)))


if __name__ == "__main__":
    run(main)
