"""Chains: the least work for any number of bytes, against all ways that there are."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest

from ebbtide.program.chain import Reversal, Stage


def by_search(stages, room):
    """
    The least cost to reverse a chain, found among all ways that hold what they store until it was used.

    What is held of a stage to reverse it is held with the value that the stage starts from.
    """
    count = len(stages)

    def size(held):
        return sum(stages[k].nbytes if part == "result" else stages[k].saved for k, part in held)

    # What is held, where the last run has ended, and how many stages are left to reverse.
    start = (frozenset(), -1, count)
    queue, order, known = [(0, 0, start)], itertools.count(1), {}
    while queue:
        cost, _, state = heapq.heappop(queue)
        if known.setdefault(state, cost) < cost:
            continue
        held, at, left = state
        if left == 0:
            return cost

        def push(more, held, at, left, cost=cost):
            state = (frozenset(held), at, left)
            if size(held) <= room and known.get(state, np.inf) > cost + more:
                heapq.heappush(queue, (cost + more, next(order), state))

        last = stages[left - 1]
        needs = {(left - 1, "result")} if last.output else set()
        needs |= {(left - 1, "saved")} if last.saved else set()
        if needs <= held and (left == 1 or (left - 2, "result") in held):
            rest = {one for one in held if one[0] < left - 1}
            push(0, rest, -1, left - 1)
            # The start of the stage that was reversed has done its duty.
            push(0, rest - {(left - 2, "result")}, -1, left - 1)
        for k in range(left):
            start = k == 0 or (k - 1, "result") in held
            if start or at == k - 1:
                push(stages[k].cost, held, k, left)
                push(stages[k].cost, held | {(k, "result")}, k, left)
                if start:
                    push(stages[k].cost, held | {(k, "result"), (k, "saved")}, k, left)
                    if k == left - 1:
                        push(stages[k].cost, held | {(k, "saved")}, k, left)
    return np.inf


def made(seed):
    """A chain of random costs and sizes."""
    random = np.random.default_rng(seed)
    return [
        Stage(int(random.integers(1, 6)), int(random.integers(1, 4)), int(random.integers(0, 3)),
              output=bool(random.integers(0, 4)))
        for _ in range(random.integers(2, 5))
    ]  # fmt: skip


def simulate(stages, runs):
    """The cost of runs, and whether each stage finds what it needs."""
    done = sum(stages[k].cost for run in runs for k in run)
    assert len(runs) == len(stages)
    for number, run in enumerate(runs):
        stage = len(stages) - 1 - number
        assert all(k <= stage for k in run) or number == 0
        assert run == sorted(run)
    return done


@pytest.mark.parametrize("seed", range(20))
def test_the_least_work(seed):
    """For random chains and all numbers of bytes the cost is that of the best of all ways; runs add up to it."""
    stages = made(seed)
    most = sum(stage.nbytes + stage.saved for stage in stages)
    reversal = Reversal(stages, 1, most)
    costs = [reversal.cost(room) for room in range(most + 1)]
    assert costs == sorted(costs, reverse=True)
    for room, cost in enumerate(costs):
        assert cost == by_search(stages, room)
        if np.isfinite(cost):
            assert simulate(stages, reversal.runs(room)) == cost


def test_equal_stages_are_binomial():
    """Where stages are alike the work is Griewank and Walther's: 3 states in memory reverse 10 steps in 15 runs."""
    # Their reverse needs the state before a step only.
    stages = [Stage(1, 1, 0, output=False)] * 10
    reversal = Reversal(stages, 1, 12)
    # r l - C(c + r, r - 1) runs with c states and C(c + r, r) >= l, the first state among them and not the present one.
    assert reversal.cost(3) == 2 * 10 - 5
    assert reversal.cost(10) == 9
