"""Random functions in planned memory whose freed places are overwritten: 60 in the gate, `make campaign` 2,000."""

from __future__ import annotations

import os

import numpy as np
import optree
import pytest
from tests.program.test_tracing import bits

from ebbtide import trace, value_and_grad
from ebbtide.program.blocks import Block
from ebbtide.program.evaluate import evaluate
from ebbtide.program.reference import Executable

from .dags import make_dag

COUNT = 2_000 if os.environ.get("EBBTIDE_CAMPAIGN") else 60
GROUPS = 20


def _check(seed: int) -> None:
    f, arguments = make_dag(seed)

    def g(x, row, square):
        return value_and_grad(f, (0, 1, 2), has_aux=True)(x, row, square)

    program = trace(g, *arguments)
    planned = Executable(program, [x.strides for x in arguments], poisoned=True)
    # Nothing but nan in the block before the first run, and no value left there by a run for the next one.
    block = Block()
    block.memory = np.full(planned.arena_nbytes, 255, np.uint8)
    planned._blocks.give(block)
    assert planned.memory.bound <= planned.arena_nbytes <= 1.05 * planned.memory.bound, seed
    copies = [x.copy() for x in arguments]
    expected = bits(evaluate(planned.program, arguments))
    held = planned.run(list(arguments))
    assert bits(held) == expected, seed
    other = [np.asarray(x * 1.5 + 0.1, order="K") for x in arguments]
    assert bits(planned.run(list(other))) == bits(evaluate(planned.program, other)), seed
    # The caller holds views of values of the first run.
    assert bits(held) == expected, seed
    assert bits(arguments) == bits(copies), seed
    # A sweep of arrays adds in place: what lies across, and products, may differ from a program by rounding.
    exact = arguments[0].flags.c_contiguous and all(
        equation.name not in ("matmul", "add_product") for equation in planned.program.equations
    )
    plain = optree.tree_leaves(g(*arguments))
    tolerance = 0 if exact else (1e-4 if arguments[0].dtype == np.float32 else 1e-11)
    for one, two in zip(held, plain, strict=True):
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance, err_msg=str(seed))
        assert one.dtype == two.dtype, seed


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_functions(group: int) -> None:
    """Values, gradients and views have the bits of the unplanned equations; the block is 1.05 of its bound at most."""
    with np.errstate(all="ignore"):  # some grow without bound
        for seed in range(group, COUNT, GROUPS):
            _check(seed)


@pytest.mark.parametrize("seed", [528, 680, 704])
def test_hard_functions(seed: int) -> None:
    """The same of functions whose blocks are hard to arrange, or whose cotangents meet in different orders of axes."""
    with np.errstate(all="ignore"):
        _check(seed)
