"""Programs whose elementwise equations are chained: the bits, the memory and the failures of the reference executor."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.campaign.dags import make_dag
from tests.program.test_tracing import bits, programs_of
from tests.rules.examples import label, typed_cases
from tests.scale import FULL, bar, sample
from tests.storage.helpers import run_python

from ebbtide import grad, jit, timeloop, trace, value_and_grad
from ebbtide.program.blocks import Block, Blocks
from ebbtide.program.evaluate import evaluate
from ebbtide.program.reference import Executable

# How the source says that a step of the machine is a chain.
CHAIN = "  # chain  "


def chained(program, inputs, **kwargs):
    """A program that is run with chains, in a block full of nan."""
    blocks = Blocks(chained=True)
    planned = Executable(program, [np.asarray(x).strides for x in inputs], blocks, **kwargs)
    block = Block()
    block.memory = np.full(planned.arena_nbytes, 0xFF, np.uint8)
    blocks.give(block)
    return planned


def both(f, *arguments):
    """A function as a program, with chains and without."""
    program = trace(f, *arguments)
    return chained(program, arguments), Executable(program, [np.asarray(x).strides for x in arguments])


@pytest.mark.parametrize("case", sample(typed_cases(np.float64, np.float32, np.complex64), 12), ids=label)
def test_every_rule(case):
    """Each function and its pullback have with chains the bits of the equations run one by one."""
    for operands, program in programs_of(case):
        planned = chained(program, operands, poisoned=True)
        assert bits(planned.run(list(operands))) == bits(evaluate(planned.program, operands))


def test_random_functions():
    """Random functions with views, and their gradients, in memory whose freed places are overwritten: equal bits."""
    count = 0
    with np.errstate(all="ignore"):
        for seed in bar(range(2000 if FULL else 25), "chains"):
            f, arguments = make_dag(seed)
            program = trace(lambda *xs, f=f: value_and_grad(f, (0, 1, 2), has_aux=True)(*xs), *arguments)
            planned = chained(program, arguments, poisoned=True)
            expected = bits(evaluate(planned.program, arguments))
            for _ in range(2):
                assert bits(planned.run(list(arguments))) == expected, seed
            count += planned.source.count(CHAIN)
    assert count > 200


def test_a_chain_does_not_write_over_what_it_reads_elsewhere():
    """A result is made in the place of an operand, unless the chain reads that in another order, too."""

    def forward(x):
        return np.sum(np.sin(np.roll(x, 3) * 2.0) + 1.0)

    def turned(x):
        y = np.roll(x, 3)
        return np.sum(np.sin(y * 2.0) + y[::-1])

    x = np.linspace(0, 1, 10_000)
    for f, places in ((forward, 1), (turned, 2)):
        planned, plain = both(f, x)
        assert planned.source.count(CHAIN) == 1
        assert bits(planned.run([x])) == bits(plain.run([x]))
        assert x.nbytes * places <= planned.arena_nbytes < x.nbytes * places + 256


def test_values_of_a_chain_take_no_memory():
    """What only a chain uses is never whole; the run takes what was predicted, and allocates nothing between runs."""
    x = np.linspace(0, 1, 200_000)
    planned, plain = both(lambda x: np.sum(np.sin(x) * np.cos(x) + np.exp(x * 0.5)), x)
    assert plain.predict().peak_bytes == 2 * x.nbytes + 8
    assert planned.predict().peak_bytes == x.nbytes + 8
    planned.run([x])
    tracemalloc.start()
    try:
        planned.run([x])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4000


def test_what_others_use_is_a_result():
    """A value that is returned, or used by what no chain can do, is whole and has its bits."""

    def f(x):
        y = np.sin(x) * 2.0
        z = np.cos(y) + 1.0
        return y, np.cumsum(z), z * y

    x = np.linspace(0, 1, 5000)
    planned, plain = both(f, x)
    assert bits(planned.run([x])) == bits(plain.run([x]))


def test_failures_have_the_name_of_their_operation():
    """A failure in a chain is treated as the function has set it, and as NumPy says it."""

    def f(x):
        with np.errstate(over="ignore"):
            y = np.exp(x) * 2.0 + 1.0
        return np.log(x - x) * y

    x = np.full(5, 1000.0)
    planned, plain = both(f, x)
    said = []
    for executable in (planned, plain):
        with pytest.warns(RuntimeWarning) as caught:
            executable.run([x])
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1] == ["divide by zero encountered in log"]
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero encountered in log"):
        planned.run([x])


def test_many_operands_make_several_chains():
    """A chain has a bounded number of registers: more operands, or values at a time, make more chains."""
    inputs = [np.full(50, float(k)) for k in range(60)]

    def f(*xs):
        sines = [np.sin(x) for x in xs]
        total = sines[0]
        for k in range(1, len(xs)):
            total = total + sines[-k] * xs[k]
        return total

    planned, plain = both(f, *inputs)
    assert planned.source.count(CHAIN) > 1
    assert bits(planned.run(list(inputs))) == bits(plain.run(list(inputs)))


def test_source_is_a_file_of_its_own(tmp_path):
    """The source with its chains is readable, with the user's lines, and runs as a file."""

    def f(x, k):
        y = np.sin(x) * k
        return np.cos(y * y) + np.where(x > 0.5, y, 1.0)

    x = np.linspace(0, 1, 64)
    planned, plain = both(f, x, 3.0)
    assert CHAIN in planned.source
    assert "test_chains.py:" in planned.source.partition("def place")[0]
    planned.save(tmp_path / "f.py")
    text = "import sys; sys.path.append(sys.argv[1]); import numpy as np; from f import call; "
    text += "print(call(np.linspace(0, 1, 64), 3.0)[0].tobytes().hex())"
    status, out, err = run_python(text, str(tmp_path))
    assert (status, out.strip()) == (0, plain.run([x, 3.0])[0].tobytes().hex()), err


def test_the_executor_of_a_jitted_function():
    """`jit(executor="machine")` chains the programs of a function and of its derivatives; the bits are the same."""

    def step(u, c):
        return u + 0.1 * np.sin(u * c) * np.cos(u)

    def loss(f, u, c):
        return np.sum(timeloop(lambda v, _: f(v, c), u, 5) ** 2)

    u, c = np.linspace(0, 1, 500), 0.7
    machine, reference = jit(step, executor="machine"), jit(step)
    assert machine(u, c).tobytes() == reference(u, c).tobytes() == step(u, c).tobytes()
    assert CHAIN in machine.program(u, c).source
    assert CHAIN in machine.reversed(u, c)[1].source
    assert "Elementwise" not in reference.program(u, c).source
    found, expected = [grad(lambda u, f=f: loss(f, u, c))(u) for f in (machine, reference)]
    assert found.tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="'reference', 'machine', 'numba'"):
        jit(step, executor="fast")


def test_an_executor_is_a_part_of_what_a_loop_is_told_by():
    """A run is resumed by the executor and threads that it began with: for these the gradient is one number."""
    asked = [{}, {"executor": "machine"}, {"executor": "machine", "threads": 2}]
    made = [jit(np.sin, **options).made_from for options in asked]
    assert [one[-1] for one in made] == ["reference", "machine", "machine with threads=2"]
    assert made[0][:-1] == made[1][:-1] == made[2][:-1]
