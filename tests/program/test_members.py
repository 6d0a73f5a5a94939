"""A `vmap` in a program for the machine: one equation, the bits of one member, results in place, and little memory."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.program.test_tracing import bits, functions_of, traced
from tests.rules.examples import label, typed_cases
from tests.scale import sample

import ebbtide
from ebbtide import Budget, BudgetError, grad, jit, jvp, timeloop, trace, value_and_grad, vmap
from ebbtide.program.each import each_member
from ebbtide.program.layout import find_layout
from ebbtide.program.members import Members
from ebbtide.program.placed import PlacedMembers
from ebbtide.program.placing import pair_homes, settle_homes

COUNT = 7


def drawn(*shape, dtype=np.float64, seed=0):
    """Random numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def loss(params, x, labels):
    """The cross-entropy of a net with one hidden layer."""
    w, b, v, c = params
    scores = np.maximum(x @ w + b, 0) @ v + c
    scores = scores - np.max(scores, axis=1, keepdims=True)
    right = scores[np.arange(len(labels)), labels]
    return np.mean(np.log(np.sum(np.exp(scores), axis=1)) - right)


def adam(params, means, squares, x, labels, rate):
    """One step of Adam for one net."""
    value, slopes = value_and_grad(loss)(params, x, labels)
    means = [0.9 * m + 0.1 * g for m, g in zip(means, slopes, strict=True)]
    squares = [0.99 * s + 0.01 * g * g for s, g in zip(squares, slopes, strict=True)]
    params = [p - rate * m / (np.sqrt(s) + 1e-6) for p, m, s in zip(params, means, squares, strict=True)]
    return params, means, squares, value


def nets(count=COUNT, dtype: Any = np.float64, sizes=(6, 5, 3), batch=4):
    """Parameters, means, squares, inputs and labels of some nets."""
    n, hidden, m = sizes
    shapes = [(n, hidden), (hidden,), (hidden, m), (m,)]
    params = [drawn(count, *shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes)]
    means, squares = [[np.zeros_like(p) for p in params] for _ in range(2)]
    labels = np.random.default_rng(9).integers(0, m, (count, batch))
    return params, means, squares, drawn(count, batch, n, dtype=dtype, seed=8), labels


def training(params, means, squares, x, labels, rate):
    """One step of Adam for all nets."""
    return vmap(adam, in_axes=(0, 0, 0, 0, 0, None))(params, means, squares, x, labels, rate)


def machine(f, **kwargs):
    """A function whose members run one after the other."""
    return jit(f, executor="machine", **kwargs)


def leaves(tree):
    """The arrays of nested lists and tuples."""
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, (list, tuple)) else [tree]


def member(tree, k):
    """The member of nested lists and tuples of arrays."""
    return type(tree)([member(part, k) for part in tree]) if isinstance(tree, (list, tuple)) else tree[k]


def stacked(rows):
    """The results of members as arrays of all of them."""
    return [np.stack(parts) for parts in zip(*map(leaves, rows), strict=True)]


def is_by_members(f, *arguments):
    """Whether the program of a function has members."""
    return placed_of(f.program(*arguments).program) is not None


def placed_of(program) -> Any:
    """The function of the members of a program; None where there are none."""
    return next((e.function for e in program.equations if isinstance(e.function, PlacedMembers)), None)


def test_a_training_step_has_the_bits_of_one_net():
    """Gradient and optimizer of all nets: the bits of a loop over them, and the numbers of the batch rules."""
    arguments = nets()
    found = machine(training)(*arguments, 0.1)
    alone = machine(adam)
    rows = [alone(*member(arguments, k), 0.1) for k in range(COUNT)]
    assert bits(leaves(found)) == bits(stacked(rows))
    for one, other in zip(leaves(found), leaves(jit(training)(*arguments, 0.1)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", sample(typed_cases(np.float64, np.float32, np.complex64), 12), ids=label)
def test_every_rule(case):
    """Members of each function and its pullback have the bits of one, where one can be traced."""
    key, example, dtype = case
    operands = example.operands(dtype)
    arrays = operands and all(isinstance(x, np.ndarray) and x.dtype.kind in "fciub" for x in operands)
    for f in functions_of(key, example) if arrays else ():
        stacks = [np.stack([x, x, x]) for x in operands]
        program = traced(f, operands)
        if program is None or any(isinstance(output, np.dtype) for output in program.outputs):
            return
        together = machine(vmap(f))
        if not is_by_members(together, *stacks):
            return
        found = [np.asarray(x)[1] for x in leaves(together(*stacks))]
        assert bits(found) == bits([np.asarray(x) for x in leaves(machine(f)(*operands))])


def test_a_vmap_is_one_equation():
    """The program has one equation for the members, with the program of one of them, traced once."""
    calls = []

    def square(x):
        calls.append(x.shape)
        return np.sum(x * x)

    f = machine(lambda x: vmap(value_and_grad(square))(x)[0])
    x = drawn(COUNT, 5)
    program = f.program(x).program
    assert calls == [(5,)]
    assert [equation.name for equation in program.equations] == ["room", "room", "members", "filled"]
    assert "\n    program square(x: float64[5], into: float64[1])\n" in f"{program}"
    assert "run_members(stretch_1, (room_2, x, room_1,)" in f.program(x).source


def test_other_executors_have_the_batch_rules():
    """A program for the reference, and one that is only traced, does all members at once, as before."""
    x = drawn(COUNT, 5)
    programs = [trace(vmap(np.sin), x), jit(vmap(np.sin)).program(x).program]
    assert [[equation.name for equation in program.equations] for program in programs] == [["sin"], ["sin"]]


@pytest.mark.parametrize(("axes", "out"), [((0, 1), 0), ((2, -1), 1), ((1, 0), -1), ((-2, None), 2), ((None, 2), 0)])
def test_axes(axes, out):
    """Members are taken along any axis, and put along any; arrays with None are the same for all."""

    def f(x, y):
        return np.cumsum(np.sin(x), axis=0) @ np.cos(y).T

    shapes = [(4, 5) if axis is None else np.insert((4, 5), axis % 3, 3) for axis in axes]
    x, y = (drawn(*shape, seed=k) for k, shape in enumerate(shapes))
    run = machine(vmap(f, in_axes=axes, out_axes=out))
    assert is_by_members(run, x, y)
    found, expected = run(x, y), vmap(f, in_axes=axes, out_axes=out)(x, y)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    pairs = list(zip((x, y), axes, strict=True))
    rows = [machine(f)(*[z if axis is None else np.moveaxis(z, axis, 0)[k] for z, axis in pairs]) for k in range(3)]
    assert bits([np.moveaxis(found, out, 0)]) == bits([np.stack(rows)])


def test_what_does_not_depend_on_members_is_computed_once():
    """What only shared arrays give is in the program around, and what is returned of it is the same for all."""

    def f(x, table):
        weights = np.exp(table)
        return x * weights, weights, np.float32(2.0)

    run = machine(vmap(f, in_axes=(0, None), out_axes=(0, None, 0)))
    x, table = drawn(COUNT, 4), drawn(4, seed=1)
    program = run.program(x, table).program
    placed = placed_of(program)
    assert [equation.name for equation in placed.program.equations] == ["multiply"]
    assert "exp" in [equation.name for equation in program.equations]
    assert bits(leaves(run(x, table))) == bits(leaves(vmap(f, in_axes=(0, None), out_axes=(0, None, 0))(x, table)))


def test_tables_and_labels():
    """An array that is the same for all is indexed by a member's own numbers, also one from around the function."""
    table, other = drawn(10, 3), drawn(10, 3, seed=1)
    places = np.random.default_rng(0).integers(0, 10, (COUNT, 6))

    def outer(table, other, places):
        return vmap(lambda table, place: np.sum(np.sin(table[place]) * other[place], axis=0), (None, 0))(table, places)

    run = machine(outer)
    assert is_by_members(run, table, other, places)
    one = machine(lambda table, other, place: np.sum(np.sin(table[place]) * other[place], axis=0))
    assert bits([run(table, other, places)]) == bits([np.stack([one(table, other, place) for place in places])])


@pytest.mark.parametrize("threads", [1, 2, 3, 20])
def test_any_number_of_threads(threads):
    """Threads share the members out: the bits are the same, and each has a row of the workspace."""
    arguments = nets()
    run = machine(training, threads=threads)
    assert bits(leaves(run(*arguments, 0.1))) == bits(leaves(machine(training, threads=1)(*arguments, 0.1)))
    placed = placed_of(run.program(*arguments, 0.1).program)
    assert placed.space.shape[0] == min(threads, COUNT)


@pytest.mark.parametrize("threads", [0, -1, 2.0, "two"])
def test_a_number_of_threads_that_is_none(threads):
    """What is no number from 1 on is refused."""
    with pytest.raises(ValueError, match="give a number from 1 on"):
        jit(np.sin, executor="machine", threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_donated_arguments_are_updated_in_place(threads):
    """The new parameters and the state of the optimizer are where the old ones were, and have their bits."""
    arguments = nets()
    expected = machine(training)(*arguments, 0.1)
    run = machine(training, donate_argnums=(0, 1, 2), threads=threads)
    before = [array.ctypes.data for array in leaves(arguments[:3])]
    found = run(*arguments, 0.1)
    assert [array.ctypes.data for array in leaves(found[:3])] == before
    assert bits(leaves(found)) == bits(leaves(expected))
    assert bits(leaves(arguments[:3])) == bits(leaves(expected[:3]))


def test_an_operand_that_is_still_read_is_not_written_over():
    """A donated operand is the place of a result only if nobody reads it later: members, the program, or the caller."""

    def swapped(x, y):
        return y + 0.0, x * 2.0

    def kept(x, y):
        return np.sin(x) + y, x

    def viewed(x, y):
        return x * y, x[::-1], y[1:] * 2.0

    def outside(x, y):
        return vmap(lambda x, y: (x * y, np.cumsum(x)))(x, y), x + 1.0

    for f in (vmap(swapped), vmap(kept), vmap(viewed), outside, vmap(np.add, in_axes=(1, 0))):
        x, y = drawn(4, 4), drawn(4, 4, seed=1)
        expected = bits(leaves(f(x, y)))
        assert bits(leaves(machine(f, donate_argnums=(0, 1))(x.copy(), y.copy()))) == expected


def test_two_names_for_one_donated_array():
    """An array that is given twice is refused where one of the two is donated."""
    run = machine(vmap(lambda x, y: (x * y, x - y)), donate_argnums=0)
    x = drawn(4, 4)
    with pytest.raises(TypeError, match="shares memory with another argument"):
        run(x, x)


def test_results_of_every_kind():
    """Numbers, views, integers, complex numbers, an operand as it is, and one result twice."""

    def f(x, k):
        y = x * 1j
        return {"sum": np.sum(x), "view": x[1:].T, "count": np.argmax(x, axis=0), "z": y, "again": y, "same": x, "k": k}

    x, k = drawn(COUNT, 3, 2), np.arange(COUNT)
    run = machine(vmap(f))
    found, expected = run(x, k), vmap(f)(x, k)
    assert found.keys() == expected.keys()
    assert is_by_members(run, x, k)
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        assert np.array_equal(value, expected[name])
        others = [other for key, other in found.items() if {key, name} > {key} and {key, name} != {"z", "again"}]
        assert not any(np.may_share_memory(value, other) for other in others)
        assert not np.may_share_memory(value, x)


def test_vmap_inside_of_vmap():
    """The inner one is done by the batch rules, within the program of one member of the outer one."""

    def f(x, y):
        return vmap(lambda row: np.sin(row) @ y)(x)

    run = machine(vmap(f))
    x, y = drawn(COUNT, 4, 3), drawn(COUNT, 3, seed=1)
    placed = placed_of(run.program(x, y).program)
    assert [equation.name for equation in placed.program.equations] == ["sin", "matmul"]
    np.testing.assert_allclose(run(x, y), vmap(f)(x, y), rtol=1e-13)


def asks(x):
    """Asks for a value that each member has its own of."""
    return x if x[0] > 0 else -x


def test_a_loop_in_vmap_inside_of_vmap():
    """Its steps may use an argument of the whole that each member passes on as the same for its own members."""
    def inside(x, k):
        return timeloop(lambda u, i: np.sin(u) * k, x, until=lambda u: np.sum(u) < 0.3 * np.sum(k), max_steps=3)

    x, k = drawn(2, 4, 3), drawn(3, seed=1)
    for of_one in (inside, grad(lambda x, k: np.sum(inside(x, k))), grad(lambda x, k: np.sum(inside(x, k)), 1)):
        f = vmap(vmap(of_one, (0, None)), (0, None))
        np.testing.assert_allclose(jit(f, executor="machine")(x, k), f(x, k), rtol=1e-13)


def test_what_one_member_cannot_be_traced_for():
    """A function that no member can be traced for goes to the batch rules, with what they do or say."""
    with pytest.raises(ebbtide.TraceError, match="vmap"):
        machine(vmap(asks))(drawn(3, 2))

    def written(x):
        x[0] = 1.0
        return x * 2.0

    x = drawn(3, 2)
    run = machine(lambda x: vmap(written)(x + 0.0))
    assert not is_by_members(run, x)
    assert bits([run(x)]) == bits([vmap(written)(x + 0.0)])


def test_no_members():
    """A batch without members has results without elements."""
    assert machine(vmap(np.sin))(np.zeros((0, 3))).shape == (0, 3)


def energy(x, y):
    """A number of each member."""
    return np.sum(np.tanh(x @ y) ** 2)


def test_derivatives_of_what_runs_by_members():
    """Gradient, tangents and Hessian products of the jitted function are those of the function as it stands."""
    x, y = drawn(4, 3, 3), drawn(3, 3, seed=1)
    f = vmap(energy, in_axes=(0, None))
    run = machine(f)
    assert is_by_members(run, x, y)

    def total(f):
        return lambda x, y: np.sum(f(x, y) ** 2)

    direction = drawn(4, 3, 3, seed=5)
    for transform in (lambda g: grad(g, (0, 1))(x, y), lambda g: jvp(lambda x: g(x, y), (x,), (direction,))):
        for one, other in zip(leaves(transform(total(run))), leaves(transform(total(f))), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)

    def second(g):
        return grad(lambda x: np.sum(grad(g)(x, y) * direction))(x)

    np.testing.assert_allclose(second(total(run)), second(total(f)), rtol=1e-10, atol=1e-11)
    # The same with the derivative inside: the program is traced for it.
    inside = machine(grad(total(f), (0, 1)))
    for one, other in zip(inside(x, y), grad(total(f), (0, 1))(x, y), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_a_jitted_function_in_a_jitted_function():
    """The members of a function that is called in another program for the machine are members there."""
    inner = machine(vmap(energy, in_axes=(0, None)))
    outer = machine(lambda x, y: np.sin(inner(x, y)) * 2.0)
    x, y = drawn(4, 3, 3), drawn(3, 3, seed=1)
    assert is_by_members(outer, x, y)
    assert bits([outer(x, y)]) == bits([np.sin(inner(x, y)) * 2.0])
    assert bits([vmap(outer, in_axes=(0, None))(np.stack([x, x]), y)[1]]) == bits([jit(outer)(x, y)])


def test_members_in_a_time_loop():
    """A step whose members run one after the other is one of a time loop, and its gradient is that of the loop."""
    step = machine(vmap(lambda row: np.sin(row) * 1.1))

    def run(step):
        return lambda x: np.sum(timeloop(lambda x, i: step(x), x, 5) ** 2)

    x = drawn(3, 4)
    expected = grad(run(lambda x: np.sin(x) * 1.1))(x)
    np.testing.assert_allclose(grad(run(step))(x), expected, rtol=1e-13)


def test_the_memory_of_a_run_is_what_was_predicted():
    """A run takes its results and one workspace for each thread, whatever the number of members."""
    found = {}
    for count in (20, 200):
        for threads in (1, 2):
            arguments = nets(count, np.float32, (64, 48, 10), 32)
            run = machine(training, donate_argnums=(0, 1, 2), threads=threads)
            planned = run.program(*arguments, 0.1)
            placed = placed_of(planned.program)
            predicted = planned.predict().peak_bytes
            run(*arguments, 0.1)
            found[count, threads] = placed.space.shape
            assert planned.arena_nbytes == placed.space.nbytes
            taken = peak_bytes(lambda: run(*arguments, 0.1))
            losses = 4 * count
            assert taken <= predicted - planned.arena_nbytes + losses + 40_000
    assert found[20, 1] == found[200, 1]
    assert found[20, 2] == found[200, 2] == (2, found[20, 1][1])
    assert found[200, 1][1] <= 64 * 1024


def test_a_steady_state():
    """A thousand steps leave no byte behind, start no collection, and keep no blocks of Python's."""
    arguments = nets(3, np.float32)
    run = machine(training, donate_argnums=(0, 1, 2), threads=1)
    for _ in range(20):
        run(*arguments, 0.1)
    gc.collect()
    collections, grown, kept = [], [], []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    tracemalloc.start()
    try:
        for _ in range(1000):  # until the interpreter has its stock of tuples
            run(*arguments, 0.1)
        # What other threads of the process allocate is in one of the three; a byte of each step would be in all.
        for _ in range(3):
            before, blocks = tracemalloc.get_traced_memory()[0], sys.getallocatedblocks()
            for _ in range(1000):
                run(*arguments, 0.1)
            grown.append(tracemalloc.get_traced_memory()[0] - before)
            kept.append(sys.getallocatedblocks() - blocks)
    finally:
        tracemalloc.stop()
        del gc.callbacks[-1]
    assert min(grown) <= 600
    assert min(kept) <= 5
    assert collections == []


def test_blocks_of_a_step():
    """At each moment of a step Python has at most 60 blocks more than before it."""
    arguments = nets(20, np.float32)
    run = machine(training, donate_argnums=(0, 1, 2), threads=1)
    run(*arguments, 0.1)  # traces: millions of events
    most = []
    for _ in range(4):
        before = sys.getallocatedblocks()
        most.append(before)

        def note(frame, event, arg):
            most[-1] = max(most[-1], sys.getallocatedblocks())

        sys.setprofile(note)
        try:
            run(*arguments, 0.1)
        finally:
            sys.setprofile(None)
        most[-1] -= before
    assert min(most) <= 60


def test_a_budget_computes_values_of_a_member_again():
    """Fewer bytes than the plan takes mean more work inside a member, with the same bits; the least is said."""

    def deep(weights, x):
        for w in weights:
            x = np.tanh(x @ w)
        return np.mean(x * x)

    f = vmap(value_and_grad(deep), in_axes=(0, 0))
    weights, x = [drawn(3, 8, 8, seed=k) * 0.3 for k in range(12)], drawn(3, 4000, 8, seed=50)
    free = machine(f, threads=2)
    plain = free.program(weights, x)
    expected = bits(leaves(free(weights, x)))
    with pytest.raises(BudgetError, match="holds least") as refused:
        machine(f, budget=Budget(memory=1000), threads=2).program(weights, x)
    least = refused.value.least
    assert least < 0.5 * plain.predict().peak_bytes
    sizes = []
    for limit in (least, (least + plain.predict().peak_bytes) // 2):
        run = machine(f, budget=Budget(memory=limit), threads=2)
        placed = placed_of(run.program(weights, x).program)
        sizes.append(len(placed.program.equations))
        assert run.program(weights, x).predict().peak_bytes <= limit
        found = []
        assert peak_bytes(lambda: found.append(run(weights, x))) <= limit
        assert bits(leaves(found)) == expected
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("threads", [1, 3])
def test_failures_name_the_member(threads):
    """An index out of bounds, and an error of floating-point numbers that is to be raised, say which member had it."""
    table, places = drawn(10, 3), np.full((COUNT, 2), 4)
    places[5, 1] = 10
    run = machine(vmap(lambda place, table: table[place], in_axes=(0, None)), threads=threads)
    with pytest.raises(IndexError, match=r"index 10 is out of bounds .*in member 5$"):
        run(places, table)
    x = np.ones((COUNT, 3))
    x[4, 2] = 0.0
    run = machine(vmap(lambda x: np.log(x) * 2.0), threads=threads)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match=r"divide by zero .*in member 4$"):
        run(x)
    with np.errstate(divide="ignore"):
        assert run(x)[4, 2] == -np.inf
    with pytest.warns(RuntimeWarning, match="divide by zero encountered in log"):
        run(x)
    x[4, 2] = 1.0
    assert bits([run(x)]) == bits([np.log(x) * 2.0])


def test_what_a_function_sets_for_errors():
    """What is set with np.errstate around a vmap, or in the function of a member, holds there."""

    def around(x):
        with np.errstate(divide="ignore"):
            return vmap(np.log)(x)

    def inside(x):
        with np.errstate(divide="ignore"):
            return np.log(x) + 1.0

    for f in (around, vmap(inside)):
        assert machine(f)(np.zeros((3, 2)))[0, 0] == -np.inf


def test_a_failed_run_keeps_nothing():
    """An error that is kept holds no array of the run, and the next run is right."""
    table, places = drawn(10, 100_000), np.full((COUNT, 2), 4)
    run = machine(vmap(lambda place, table: np.sin(table[place]) * 2.0, in_axes=(0, None)))
    wrong = places.copy()
    wrong[2] = 77
    kept = []

    def fail():
        try:
            run(wrong, table)
        except IndexError as error:
            kept.append(error)

    run(places, table)
    fail()
    tracemalloc.start()
    try:
        fail()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 20_000
    assert bits([run(places, table)]) == bits([np.sin(table[places]) * 2.0])


def test_users_own_threads():
    """Five threads that each train with a function of their own share no memory, and so do five that share one."""
    arguments = [nets(3, seed_dtype) for seed_dtype in [np.float64] * 5]
    expected = bits(leaves(machine(training)(*arguments[0], 0.1)))
    shared = machine(training, threads=2)
    for functions in ([machine(training, threads=1) for _ in range(5)], [shared] * 5):
        wrong = []

        def work(run, given):
            wrong.extend(run for _ in range(20) if bits(leaves(run(*given, 0.1))) != expected)

        threads = [
            threading.Thread(target=work, args=pair) for pair in zip(functions, arguments, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@pytest.mark.parametrize("by_machine", [True, False])
def test_the_source_is_a_file_of_its_own(tmp_path, by_machine):
    """The source with its machine, or the program of a member, runs as a file, with the same bits."""

    def sorted_training(*arguments):
        """What the machine does not know is among it."""
        *after, losses = training(*arguments)
        return *after, losses if by_machine else vmap(np.sort)(arguments[3])

    arguments = nets()
    run = machine(sorted_training, donate_argnums=(0, 1, 2))
    planned = run.program(*arguments, 0.1)
    planned.save(tmp_path / "step.py")
    assert "= run_members(" in planned.source
    assert bool(re.search(r"\ndef run_members_\d+\(values, arrays, constants\)", planned.source)) is not by_machine
    namespace: dict[str, Any] = {"__file__": str(tmp_path / "step.py"), "__name__": "step"}
    exec(compile((tmp_path / "step.py").read_text(), "step.py", "exec"), namespace)  # noqa: S102 - our own text
    inputs = [*leaves(nets()), 0.1]
    found = namespace["call"](*inputs)
    assert bits(found) == bits(leaves(run(*arguments, 0.1)))


def test_nothing_is_left_of_a_program():
    """Without the collector a dropped function leaves nothing behind: the functions of members are in no cycle."""
    x = drawn(COUNT, 3)
    gc.collect()
    gc.disable()
    try:
        run = machine(vmap(lambda x: np.sin(x) @ x))
        run(x)
        run = None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_arrays_at_odd_addresses():
    """Arrays that lie where no processor reads them at once are read, and donated ones written, all the same."""

    def odd(x):
        memory = np.zeros(x.nbytes + 1, np.uint8)
        found = memory[1:].view(x.dtype).reshape(x.shape)
        found[...] = x
        return found

    x, y = drawn(COUNT, 5), drawn(COUNT, 5, seed=1)
    f = vmap(lambda x, y: np.sin(x) * y[::-1] + y)
    run = machine(f, donate_argnums=0)
    given = odd(x)
    found = run(given, odd(y))
    assert bits([found]) == bits([f(x, y)])
    assert found.ctypes.data == given.ctypes.data


def test_threads_where_they_pay():
    """By default small work is done by one thread, and much work by as many as this process may run on."""
    run = machine(training)
    for arguments, threads in ((nets(2), 1), (nets(300, sizes=(64, 48, 10), batch=64), len(os.sched_getaffinity(0)))):
        placed = placed_of(run.program(*arguments, 0.1).program)
        assert placed.threads == threads


def test_members_run_plainly():
    """Run equation by equation, members are done one after the other."""
    program = machine(vmap(energy, in_axes=(0, None))).program(drawn(4, 3, 3), drawn(3, 3)).program
    placed = placed_of(program)
    assert isinstance(placed.members, Members)
    x, y = drawn(4, 3, 3), drawn(3, 3)
    (found,) = placed(each=[x], into=[], shared=[y], space=None)
    np.testing.assert_allclose(found, [energy(one, y) for one in x], rtol=1e-13)


def test_results_go_to_the_nearest_operand():
    """Of operands of one type each result takes the one that it is made of in the fewest steps."""

    def moments(p, m, s, g):
        m, s = 0.9 * m + g, 0.9 * s + g * g
        return p - m / np.sqrt(s), s, m

    program = trace(moments, *[np.ones(4) for _ in range(4)])
    p, m, s, _ = program.inputs
    assert [pair_homes(program, (s, p, m))[x] for x in program.outputs] == [p, s, m]


def test_a_result_that_cannot_be_made_in_its_home_is_copied_there():
    """Where the home is read later, or the result is a view, the result is made elsewhere, and copied at the end."""

    def f(x, y, w, room):
        return x * y, w[::-1], np.sum(x) * y

    program = trace(f, *[np.ones(4)] * 4)
    x, y, _, room = program.inputs
    settled, homes = settle_homes(program, find_layout(program, [(8,)] * 4), [y, room, x])
    names = {e.output: e.name for e in settled.equations}
    assert [names[output] for output in settled.outputs] == ["result", "result", "multiply"]
    assert [homes[output] for output in settled.outputs] == [y, room, x]


@pytest.mark.parametrize("threads", [1, 3])
def test_source_of_one_member(threads):
    """What no machine does runs as the source of one member, in a row of the workspace for each thread."""
    rows = []

    def run(values, arrays, constants):
        x, into, factor = values
        into[...] = np.sort(x) * factor
        rows.append(arrays)

    x, into = drawn(COUNT, 3), np.zeros((COUNT, 3))
    each_member(run, lambda row: int(row[0]), [x], [into], [2.0], np.arange(threads, dtype=np.uint8)[:, None], [])
    assert bits([into]) == bits([np.sort(x, axis=1) * 2.0])
    assert set(rows) == set(range(threads))
