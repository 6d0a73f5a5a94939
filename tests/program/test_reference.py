"""The reference executor: the bits of the function, in the memory of the plan."""

from __future__ import annotations

import gc
import pickle
import traceback
import tracemalloc
import weakref

import numpy as np
import optree
import pytest
from tests.campaign.graphs import make_program
from tests.program.test_tracing import bits, programs_of
from tests.rules.examples import label, typed_cases
from tests.scale import sample, sample_of_each
from tests.storage.helpers import measure_peak, run_python

from ebbtide import grad, trace
from ebbtide.program.blocks import Block
from ebbtide.program.evaluate import evaluate
from ebbtide.program.reference import Executable


def executable(program, inputs):
    """A program planned for inputs that lie as these."""
    return Executable(program, [np.asarray(x).strides for x in inputs])


def poisoned(planned):
    """The executor of a program whose memory is full of nan."""
    block = Block()
    block.memory = np.full(planned.arena_nbytes, 0xFF, np.uint8)
    planned._blocks.give(block)
    return planned


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64, np.float32, np.complex64), 16), ids=label)
def test_every_rule(case):
    """Each function and its pullback give the bits of the equations run one by one, whatever was in memory."""
    for operands, program in programs_of(case):
        planned = poisoned(executable(program, operands))
        given = [np.copy(x) for x in operands]
        first = planned.run(list(operands))
        assert bits(first) == bits(evaluate(planned.program, operands)) == bits(evaluate(program, operands))
        assert bits(operands) == bits(given)
        # The results belong to the caller: another run does not change them.
        before = bits(first)
        with np.errstate(all="ignore"):
            planned.run([x * x.dtype.type(2) for x in operands])
        assert bits(first) == before


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    """Random functions with views, changes in place and fan-out, and gradients, in poisoned memory: equal bits."""
    f, arguments = make_program(seed, masks=False)
    argnums = tuple(range(len(arguments)))
    for g in (f, grad(f, argnums)):
        program = trace(g, *arguments)
        planned = poisoned(executable(program, arguments))
        expected = g(*arguments)
        exact = all(equation.name != "add_product" for equation in planned.program.equations)
        for _ in range(2):
            found = planned.run(list(arguments))
            for one, other in zip(found, optree.tree_leaves(expected), strict=True):
                # BLAS adds a product to a sum with one rounding less.
                np.testing.assert_allclose(one, other, rtol=0 if exact else 1e-11, atol=0 if exact else 1e-11)
            assert not exact or bits(found) == bits(expected)


@pytest.mark.parametrize("order", ["C", "F", "reversed", "strided"])
def test_sums_go_along_memory(order):
    """However an argument lies, sums over what is computed from it have NumPy's bits."""
    base = np.random.default_rng(3).standard_normal((31, 41)) * np.logspace(-8, 1, 41)
    layouts = {"C": base, "F": np.asfortranarray(base), "reversed": base[::-1, ::-1]}
    x = layouts.get(order, np.repeat(base, 2, 1)[:, ::2])

    def f(x):
        y = np.sin(x.T) * x.T + 0.1
        return np.sum(y), np.sum(y, axis=0), np.sum(np.exp(-y) + y[:, ::-1], axis=1), np.mean(y + base.T)

    planned = executable(trace(f, x), [x])
    assert bits(planned.run([x])) == bits(f(x))


def test_a_chain_takes_the_memory_of_its_result():
    """Elementwise operations give their place to the next: 50 of them are made in the array that is returned."""
    x = np.ones(100_000)

    def f(x):
        for _ in range(50):
            x = np.sin(x) * 1.01 + 0.1
        return x

    planned = executable(trace(f, x), [x])
    assert planned.arena_nbytes == 0
    planned.run([x])
    tracemalloc.start()
    try:
        planned.run([x])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes + 4096


def make_graph(seed):
    """A function of two arrays with fan-out, views, values that live long, and results that nothing uses."""
    random = np.random.default_rng(seed)
    choices = random.integers(0, 2**31, (25, 4)).tolist()

    def f(x, y):
        pool = [x, y]
        for kind, a, b, c in choices:
            # Mostly of what was made last.
            one, other = pool[-1 - a % min(len(pool), 4)], pool[b % len(pool)]
            made = (np.sin(one), one * other, one[::-1] + other, np.maximum(one, other), one * 0.5)[kind % 5]
            if c % 6:
                pool.append(made)
            if c % 9 == 0:
                pool[-1][1:] += 0.5 * other[:-1]
        return sum(np.sum(z * w) for z, w in zip(pool[-3:], pool[:3], strict=True)), pool[-1]

    return f


@pytest.mark.parametrize("seed", sample(range(100), 3))
def test_the_block_is_as_small_as_lifetimes_allow(seed):
    """For random functions and gradients the block is at most 1.05 of what lives at the same time; equal bits."""
    f = make_graph(seed)
    inputs = [np.linspace(-1, 1, 500), np.linspace(0, 1, 500)]

    def g(x, y):
        return grad(lambda *xs: f(*[np.copy(x) for x in xs])[0], (0, 1))(x, y)

    for h in (lambda x, y: f(np.copy(x), np.copy(y)), g):
        planned = poisoned(executable(trace(h, *inputs), inputs))
        assert planned.memory.bound <= planned.arena_nbytes <= 1.05 * planned.memory.bound
        assert bits(planned.run(list(inputs))) == bits(h(*inputs))


def network(layers, size):
    """A deep net of square layers, and its arguments."""
    def net(weights, x):
        for w in weights:
            x = np.tanh(x @ w)
        return np.sum(x)

    random = np.random.default_rng(0)
    weights = [random.standard_normal((size, size)) / size for _ in range(layers)]
    return net, weights, random.standard_normal((size, size))


@pytest.mark.parametrize("case", ["values", "gradient", "several", "views"])
def test_the_prediction_is_what_is_measured(case):
    """The predicted peak is that of tracemalloc to 1 %, and the values that are held add up to it."""
    net, weights, x = network(8, 150)
    f, args = {
        "values": (net, (weights, x)),
        "gradient": (grad(net), (weights, x)),
        "several": (lambda x: [np.sin(x), np.cos(x) * np.sum(x), x @ x], (x,)),
        "views": (lambda x: (np.sin(x).T[1:], np.square(x[1:])[:, :3] * 2.0), (x,)),
    }[case]
    leaves = optree.tree_leaves(args)
    planned = executable(trace(f, *args), leaves)
    predicted = planned.predict()
    measured = measure_peak(lambda: planned.run(list(leaves)))
    assert abs(measured - predicted.peak_bytes) <= 0.01 * predicted.peak_bytes + 16384
    in_use = sum(value.nbytes for value in predicted.held)
    assert predicted.peak_bytes - predicted.arena_bytes <= in_use <= predicted.peak_bytes
    assert all("test_reference.py" in value.line for value in predicted.held)
    assert f"{predicted.peak_bytes:,} bytes at the peak" in str(predicted)


def test_a_deep_net_takes_what_a_sweep_by_hand_takes():
    """The gradient of 20 layers holds 22 arrays at most: an output dies where a gradient is born."""
    net, weights, x = network(20, 200)
    leaves = [*weights, x]
    planned = executable(trace(grad(net), weights, x), leaves)
    assert planned.predict().peak_bytes <= 22.05 * x.nbytes
    assert measure_peak(lambda: planned.run(list(leaves))) <= 22.05 * x.nbytes + 32768


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_products_are_added_by_blas(dtype):
    """A sum of 30 products takes the memory of one, and differs by rounding only."""
    def f(w, xs):
        total = 0.0 * w
        for x in xs:
            total = total + x @ w
        return w - (xs[0].T @ w + total)

    random = np.random.default_rng(1)
    w, xs = random.standard_normal((60, 60)).astype(dtype), random.standard_normal((30, 60, 60)).astype(dtype)
    leaves = [w, *xs]
    program = trace(lambda w, *xs: f(w, xs), *leaves)
    planned = executable(program, leaves)
    (found,) = planned.run(list(leaves))
    tolerance = 1e-4 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(found, f(w, xs), rtol=tolerance, atol=tolerance * 100)
    assert found.dtype == dtype
    assert planned.predict().peak_bytes <= 2.1 * w.nbytes


def test_inputs_die_at_their_last_use():
    """The caller gives a list away, and an input is gone before the operation after its last use begins."""
    dead = {}

    class Watching:
        """NumPy, where each function notes whether the inputs are gone when it begins."""

        def __getattr__(self, name):
            dead[name] = [reference() is None for reference in references]
            return getattr(np, name)

    inputs = [np.ones(1000), np.ones(1000)]
    planned = executable(trace(lambda x, y: np.exp(np.cos(np.sin(x) * y)), *inputs), inputs)
    planned.run(list(inputs))
    planned._run.__globals__["np"] = Watching()
    references = [weakref.ref(array) for array in inputs]
    planned.run(inputs)
    assert dead == {"sin": [False, False], "multiply": [True, False], "cos": [True, True], "exp": [True, True]}
    assert inputs == []


def test_the_source_is_a_file_of_its_own(tmp_path):
    """The source of a gradient runs in another process that has NumPy only, with the same bits."""
    def f(x, w):
        x = np.tanh(x @ w) * 1.5
        return np.sum(np.where(x > 0, x, 0.1 * x)[1:])

    x, w = np.linspace(-1, 1, 12).reshape(4, 3), np.linspace(0, 1, 9).reshape(3, 3)
    planned = executable(trace(grad(f, (0, 1)), x, w), [x, w])
    (tmp_path / "generated.py").write_text(planned.source)
    np.savez(tmp_path / "inputs.npz", x=x, w=w)
    (tmp_path / "constants.pickle").write_bytes(pickle.dumps(planned._constants))
    program = (
        "import pickle, sys, numpy as np\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import generated\n"
        "assert not any(name.startswith('ebbtide') for name in sys.modules)\n"
        "given = np.load(sys.argv[1] + '/inputs.npz')\n"
        "constants = pickle.load(open(sys.argv[1] + '/constants.pickle', 'rb'))\n"
        "arrays = generated.lay_out(np.empty(generated.ARENA_BYTES, np.uint8))\n"
        "for array in generated.run([given['x'], given['w']], arrays, constants):\n"
        "    print(array.tobytes().hex())\n"
    )
    status, out, problems = run_python(program, tmp_path)
    assert status == 0, problems
    assert out.split() == [array.tobytes().hex() for array in grad(f, (0, 1))(x, w)]


def test_tracebacks_show_the_source():
    """An error in a run shows the line of the generated source, and the next run is right."""
    planned = executable(trace(lambda x: np.sum(np.sin(x)), np.ones(3)), [np.ones(3)])
    with pytest.raises(TypeError) as caught:
        planned.run([np.array([None] * 3)])
    shown = "".join(traceback.format_exception(caught.value))
    assert "np.sin(x, out=sin_1)" in shown
    assert planned.run([np.zeros(3)])[0] == 0.0


def test_a_failed_run_leaves_nothing_in_its_frame():
    """An error in a run keeps no value alive, though its traceback is kept."""
    planned = executable(trace(lambda x, y: np.sin(x * 2.0) + y, np.ones(3), np.ones(3)), [np.ones(3)] * 2)
    given = np.ones(3)
    reference = weakref.ref(given)
    values = [given, np.array(["text"] * 3)]
    del given
    with pytest.raises(TypeError) as caught:
        planned.run(values)
    assert caught.value.__traceback__ is not None
    assert values == []
    assert reference() is None


def test_nothing_is_left_of_a_program():
    """When a program is dropped, its memory and source are gone at once, without the collector."""
    import linecache

    gc.collect()
    gc.disable()
    try:
        before = len(linecache.cache)
        planned = executable(trace(lambda x: np.sin(x) * 2.0, np.ones(3)), [np.ones(3)])
        planned.run([np.ones(3)])
        reference = weakref.ref(planned)
        del planned
        assert reference() is None
        assert len(linecache.cache) == before
        assert gc.collect() == 0
    finally:
        gc.enable()
