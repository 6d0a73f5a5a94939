"""`jit`: the same results from planned memory, and a new trace where a program would not be right."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from optree import tree_leaves
from tests.program.test_tracing import bits

from ebbtide import checkpoint, grad, hvp, jit, jvp, timeloop, value_and_grad, vjp
from ebbtide.errors import TraceError


class Pair(NamedTuple):
    """A named tuple."""

    value: Any
    nothing: Any


def net(params, x):
    """A small network, and its loss."""
    for w, b in params:
        x = np.tanh(x @ w + b)
    return np.mean(np.square(x))


def parameters():
    """Weights and biases of three layers."""
    random = np.random.default_rng(0)
    return [(random.standard_normal((5, 5)), random.standard_normal(5)) for _ in range(3)]


X = np.linspace(-1, 1, 20).reshape(4, 5)


def test_containers_in_and_out():
    """Arguments and results are containers, by position and by keyword, as those of the function."""
    f = jit(lambda params, *, x: {"value": net(params, x), "same": params[0][1], "all": [x * 2.0]})
    found = f(parameters(), x=X)
    assert found["value"] == net(parameters(), X)
    assert bits(found["all"]) == bits([X * 2.0])
    assert f.__name__ == "<lambda>"


def test_gradients_are_planned_as_a_whole():
    """A jitted gradient is one program, forward and reverse: its value and gradient are close, and traced once."""
    f = jit(value_and_grad(net))
    for scale in (1.0, 0.5):
        value, gradient = f(parameters(), X * scale)
        expected, expected_gradient = value_and_grad(net)(parameters(), X * scale)
        assert value == expected
        for (w, b), (v, c) in zip(gradient, expected_gradient, strict=True):
            np.testing.assert_allclose(w, v, rtol=1e-13)
            np.testing.assert_allclose(b, c, rtol=1e-13)
    assert f.reasons == []


@pytest.mark.parametrize(
    "derivative",
    [
        grad,
        lambda f: lambda x: vjp(f, x)[1](1.0),
        lambda f: lambda x: jvp(f, (x,), (np.cos(x),)),
        lambda f: lambda x: hvp(f)(x, np.cos(x)),
        lambda f: grad(lambda x: np.sum(grad(f)(x) ** 2)),
        lambda f: grad(lambda x: checkpoint(f)(x) * 2.0),
    ],
    ids=["grad", "vjp", "jvp", "hvp", "grad of grad", "checkpoint"],
)
def test_derivatives_in_any_order(derivative):
    """A jitted derivative has the bits of the derivative, and the derivative of a jitted function nearly those."""
    def f(x):
        return np.sum(np.sin(x) * np.exp(-x[::-1]) + np.where(x > 0, x * x, 0.5))

    x = np.linspace(-1, 1, 9)
    expected = bits(derivative(f)(x))
    # A program adds up its own part of a cotangent before that is added to the others.
    for one, other in zip(tree_leaves(derivative(jit(f))(x)), tree_leaves(derivative(f)(x)), strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-16)
    assert bits(jit(derivative(f))(x)) == expected
    assert bits(jit(derivative(jit(f)))(x)) == expected


def test_a_jitted_step_of_a_loop():
    """A loop with a jitted step that uses an array from outside has the same gradients, for both."""
    def run(u, w, wrap):
        step = wrap(lambda u, i: np.sin(u) * w + 0.1 * u)
        return np.sum(timeloop(step, u, 12) ** 2)

    u, w = np.linspace(0, 1, 6), np.linspace(1, 2, 6)
    found = grad(lambda u, w: run(u, w, jit), (0, 1))(u, w)
    assert bits(found) == bits(grad(lambda u, w: run(u, w, lambda f: f), (0, 1))(u, w))


def test_a_jitted_step_without_arrays_from_outside():
    """A jitted step is planned where the loop runs it on values, and the gradient has the same bits."""
    step = jit(lambda u, i: np.sin(u) * 1.5 + 0.1 * u, static_argnums=1)

    def plain(u, i):
        return np.sin(u) * 1.5 + 0.1 * u

    u = np.linspace(0, 1, 6)
    found = grad(lambda u: np.sum(timeloop(lambda u, i: step(u, 0), u, 12) ** 2))(u)
    assert bits(found) == bits(grad(lambda u: np.sum(timeloop(plain, u, 12) ** 2))(u))


def test_static_arguments():
    """Integers, texts and functions are taken as they are; so are numbers of static arguments."""
    f = jit(lambda x, n, how, c: how(x) * n if c > 1 else x, static_argnums=3)
    assert f(X, 3, np.sin, 2.0).tolist() == (np.sin(X) * 3).tolist()
    assert f(X, 3, np.cos, 2.0).tolist() == (np.cos(X) * 3).tolist()
    assert f(X, 3, np.cos, 0.5).tolist() == X.tolist()
    assert len(f.reasons) == 2
    with pytest.raises(TraceError, match="truth"):
        jit(lambda c: 1.0 if c > 1 else 2.0)(0.5)


def test_numbers_that_change_are_no_new_trace():
    """Floating-point numbers are traced: another value is the same program; float32 arrays stay float32."""
    f = jit(lambda x, step: x + step * x)
    x = np.ones(3, np.float32)
    for step in (0.1, 0.2, -3.0):
        assert bits(f(x, step)) == bits(x + step * x)
    assert f.reasons == []


def test_a_new_kind_of_argument_is_a_new_trace():
    """Another shape, dtype, layout or structure is traced anew, with the reason."""
    f = jit(lambda x: np.sum(np.asarray(x) if isinstance(x, list) else x))
    f(np.ones(3))
    f(np.ones(4))
    f(np.ones(4, np.float32))
    f(np.ones(8)[::2])
    assert "float64[4]" in f.reasons[0]
    assert "float64[3]" in f.reasons[0]
    assert "float32[4]" in f.reasons[1]
    assert "strides" in f.reasons[2]


def test_kinds_of_arguments_in_turn():
    """More kinds than are remembered by their forms, in any order: each is traced once, and has its own results."""
    def f(state, x):
        return {"twice": state._replace(value=2 * state.value), "pair": [x, None, (x + 1,)]}

    g = jit(f)
    kinds = [np.ones(n, letter) for n in (1, 2, 3) for letter in "fd"]
    for number in (0, 1, 0, 5, 4, 3, 2, 1, 5, 5, 0, 3, 1, 4, 2, 0):
        state, x = Pair(kinds[number], None), kinds[number] * number
        found = g(state, x)
        assert list(found) == ["twice", "pair"]
        assert type(found["twice"]) is Pair
        assert bits(found["twice"].value) == bits(2 * state.value)
        assert [bits(one) for one in tree_leaves(found["pair"])] == [bits(x), bits(x + 1)]
        assert found["pair"][1] is None
    assert len(g.reasons) == len(kinds) - 1
    assert bits(g(state=Pair(kinds[0], None), x=kinds[0])["pair"][0]) == bits(kinds[0])


def test_traces_that_are_replaced_are_dropped():
    """Where a name stands for another object in each call two traces are kept, and the others die."""
    box = SimpleNamespace(scale=np.ones(3))
    f = jit(lambda x: {"y": x * box.scale})
    traces = []
    for number in range(7):
        box.scale = np.full(3, float(number))
        assert f(np.ones(3))["y"].tolist() == [number] * 3
        traces.append(weakref.ref(f.program(np.ones(3))))
    assert [trace() is not None for trace in traces] == [False] * 5 + [True] * 2
    f.clear()
    assert traces[-1]() is None


def test_names_that_stand_for_plain_things():
    """Numbers, texts, tuples, lists and nothing: another one is a new trace, the same one is none."""
    found: list[int] = []
    for values in (
        [1, 2], ["a", "b"], [(1, 2), (1, 3)], [None, 1.5, None], [[1], [2]], [(1, [2]), (1, [3])], [{"a": 1}, {"a": 2}],
        [np.float32(1), np.float32(2)], [(np.ones(1),), (np.ones(2),)],
    ):  # fmt: skip
        name: Any = None

        def f(x):
            return x + 1 if name is values else x + 2

        g = jit(f)
        for value in values:
            name = value
            assert g(1.0) == g(1.0) == 3.0
        name = list(name) if type(name) is list else name  # of the same parts
        assert g(1.0) == 3.0
        found.append(len(g.reasons) + 1 - len(values))
    assert found == [0, 0, 0, -1, 0, 0, 0, 0, 0]


def test_eight_traces_warn():
    """Whoever calls with ever other shapes is told so, with the reason, once."""
    f = jit(np.sum)
    for n in range(1, 8):
        f(np.ones(n))
    with pytest.warns(UserWarning, match=r"traced 8 times.*float64\[20\]"):
        f(np.ones(20))
    f(np.ones(21))
    f(np.ones(22))
    assert len(f.reasons) == 9


def test_what_is_around_a_function():
    """A closure, global or attribute that stands for another object is a new trace; changed in place, it is seen."""
    w = np.ones(3)

    def f(x):
        return x * w

    g = jit(f)
    assert g(np.ones(3)).tolist() == [1, 1, 1]
    w[:] = 2
    assert g(np.ones(3)).tolist() == [2, 2, 2]
    assert g.reasons == []
    w = np.full(3, 5.0)
    assert g(np.ones(3)).tolist() == [5, 5, 5]
    assert g.reasons == ["the name w stands for another object"]


AROUND = {
    "values": lambda x, k, i, b: np.sum(x * k),
    "powers": lambda x, k, i, b: np.sum(k**x * x**k),
    "made in the function": lambda x, k, i, b: np.sum(x * (2.0 * k)),
    "numbers": lambda x, k, i, b: np.sum(x**2, initial=k[0]) * k.sum(),
    "weights": lambda x, k, i, b: np.average(x**2, weights=k),
    "indices": lambda x, k, i, b: np.sum(np.sin(x[i])),
    "masks": lambda x, k, i, b: np.mean(x**2, where=b),
    "choices": lambda x, k, i, b: np.sum(np.where(k > 1.5, x, 2 * x)),
    "a part": lambda x, k, i, b: np.sum(x[:2] * k[1:] + np.cos(k[:2])),
}


@pytest.mark.parametrize("how", ["reference", "machine"])
@pytest.mark.parametrize("name", AROUND)
def test_what_is_made_of_an_array_around_is_as_new_as_the_array(name, how):
    """Values, gradients, tangents and those of a jitted function, where an array, indices and a mask change."""
    k, i, b = np.array([1.0, 2.0, 3.0]), np.array([0, 1, 1]), np.array([True, False, True])
    x = np.array([0.4, 0.7, 1.3])

    def f(x):
        return AROUND[name](x, k, i, b)

    def push(x):
        return jvp(f, (x,), (x,))

    jitted = jit(f, executor=how)
    pairs = [(jitted, f), (jit(value_and_grad(f), executor=how), value_and_grad(f)), (jit(push, executor=how), push)]
    pairs += [(value_and_grad(jitted), value_and_grad(f)), (lambda x: jvp(jitted, (x,), (x,)), push)]
    for _ in range(3):
        for ours, theirs in pairs:
            for found, expected in zip(tree_leaves(ours(x)), tree_leaves(theirs(x)), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-14)
        k *= 1.3
        i[:] = np.roll(i, 1)
        b[:] = np.roll(b, 1)


def test_a_large_array_that_changes_in_place():
    """Of a large array some elements are looked at."""
    k = np.ones(400_000)
    slope = jit(grad(lambda x: np.sum(x * k)))
    x = np.zeros(400_000)
    assert slope(x)[7] == 1.0
    k *= 2.0
    assert slope(x)[7] == 2.0
    assert slope.reasons == ["the array k was changed in place"]


def test_arrays_that_are_read_in_each_run_are_no_new_trace():
    """A program with no constant but arrays around its function has what they hold, and is not traced again."""
    k = np.ones(3)
    f = jit(lambda x: x * k.T[::-1] + k)
    for number in (1.0, 2.0, 3.0):
        k[:] = number
        assert f(np.ones(3)).tolist() == (2 * k).tolist()
    assert f.reasons == []


def test_an_attribute_that_changes():
    """The attributes of the object whose method is jitted are looked at as well."""
    class Model:
        def __init__(self):
            self.scale = 2.0

        def run(self, x):
            return x * self.scale

    model = Model()
    run = jit(model.run)
    assert run(np.ones(2)).tolist() == [2, 2]
    model.scale = 3.0
    assert run(np.ones(2)).tolist() == [3, 3]


def test_a_method_that_changes(monkeypatch):
    """A method is looked up in the class each time, with what it finds by name, and so is a value that is there."""
    settings = SimpleNamespace(rate=2.0)

    class Base:
        scale = 2.0

        def helped(self, x):
            return x * settings.rate * self.scale

    class Model(Base):
        def step(self, x, i):
            return self.helped(x)

        def unused(self, x):
            return x

    model = Model()
    box = SimpleNamespace(model=model)
    for run in (jit(lambda x: timeloop(model.step, x, 1)), jit(lambda x: box.model.step(x, 0))):
        with monkeypatch.context() as patch:
            assert run(np.ones(1)).tolist() == [4]
            patch.setattr(Model, "unused", None)
            assert run(np.ones(1)).tolist() == [4]
            assert run.reasons == []
            patch.setattr(Base, "scale", 3.0)
            assert run(np.ones(1)).tolist() == [6]
            patch.setattr(settings, "rate", 5.0)
            assert run(np.ones(1)).tolist() == [15]
            patch.setattr(Base, "helped", lambda self, x: x * 7)
            assert run(np.ones(1)).tolist() == [7]
            patch.setattr(Model, "step", lambda self, x, i: x * 9)
            assert run(np.ones(1)).tolist() == [9]


def test_what_lies_behind_other_functions_and_objects():
    """So is what a decorator closes over, and an attribute of an object in a closure or of one that is called."""
    class Layer:
        def __init__(self):
            self.inner = SimpleNamespace(scale=2.0)

        def __call__(self, x):
            return x * self.inner.scale

    layer, box = Layer(), [2.0]

    def scaled(f):
        @wraps(f)
        def wrapped(x):
            return f(x) * box[0]

        return wrapped

    functions = [jit(layer), jit(lambda x: layer(x + 0.0)), jit(scaled(lambda x: x)), jit(partial(scaled(layer)))]
    x = np.ones(1)
    assert [f(x)[0] for f in functions] == [2, 2, 2, 4]
    layer.inner.scale, box[0] = 3.0, 5.0
    assert [f(x)[0] for f in functions] == [3, 3, 5, 15]
    slope = jit(grad(lambda x: np.sum(x * x) * box[0]))
    assert slope(x)[0] == 10
    box[0] = 1.0
    assert slope(x)[0] == 2


def test_static_numbers_are_told_by_their_bits():
    """Static -0.0 is not 0.0, and a large static array is not another one that differs in one element."""
    f = jit(np.copysign, static_argnums=1)
    assert [f(np.ones(1), c)[0] for c in (0.0, -0.0)] == [1, -1]
    g, c = jit(lambda x, c: x * c[1500], static_argnums=1), np.ones(3000)
    assert g(np.ones(1), c)[0] == 1
    c[1500] = 2.0
    assert g(np.ones(1), c)[0] == 2


def test_arguments_that_cannot_be_told_are_refused():
    """Negative numbers of static arguments and arguments without a hash are errors that say what to do."""
    with pytest.raises(TypeError, match="static_argnums=-1: give the numbers"):
        jit(np.sin, static_argnums=-1)
    with pytest.raises(TypeError, match=r"given a set.*has to be hashable"):
        jit(lambda x, s: x)(np.ones(1), {1, 2})


def test_steady_calls_allocate_their_results_only():
    """From the second call on a call takes the memory of its results, whatever there is inside."""
    x = np.ones(100_000)
    f = jit(lambda x: np.sum(np.exp(np.sin(x) * x[::-1]) + np.tanh(x) * 2.0))
    f(x)
    f(x)
    tracemalloc.start()
    try:
        f(x)
        assert tracemalloc.get_traced_memory()[1] < 4096
    finally:
        tracemalloc.stop()


def test_threads_have_memory_of_their_own():
    """Calls from 8 threads at the same time do not disturb each other."""
    f = jit(lambda x: np.sin(x) * np.cos(x[::-1]) + x)
    wrong = []

    def work(k):
        x = np.linspace(0, k + 1, 2000)
        expected = bits(np.sin(x) * np.cos(x[::-1]) + x)
        wrong.extend(1 for _ in range(200) if bits(f(x)) != expected)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_is_kept_alive():
    """A jitted function holds neither arguments nor results nor what is around it, and needs no collector."""
    gc.collect()
    gc.disable()
    try:
        w, x = np.ones(3), np.ones(3)
        references = [weakref.ref(x)]
        f = jit(lambda x: np.sin(x) + 1.0)
        y = f(x)
        references.append(weakref.ref(y))
        del x, y
        assert [reference() for reference in references] == [None, None]
        planned = weakref.ref(f.program(w))
        del f
        assert planned() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_the_program_can_be_read():
    """`program` shows what a call would do, and the block that it takes, without running it."""
    planned = jit(grad(lambda x: np.sum(np.sin(x) ** 2))).program(np.ones(100))
    assert planned.arena_nbytes == 832
    assert "np.cos(x, out=cos_4)" in planned.source


def test_an_argument_that_is_written_is_refused():
    """What was given must not change."""
    def f(x):
        x += 1.0
        return x

    with pytest.raises(TraceError, match="writes into its argument x"):
        jit(f)(np.ones(3))


def test_random_generators_are_refused():
    """A generator among the arguments or around the function would be drawn from once only: it is refused."""
    random = np.random.default_rng(0)
    around, given = jit(lambda x: x * random.random()), jit(lambda x, r: x * r.random())
    for call in (lambda: around(1.0), lambda: given(1.0, random)):
        with pytest.raises(TraceError, match=r"is a random generator.*pass them as an argument"):
            call()


def test_an_error_leaves_nothing_behind():
    """A function that raises while it is traced raises again, and is right once it does not."""
    fails = [True]

    def f(x):
        if fails[0]:
            raise KeyError("user")
        return x * 2.0

    g = jit(f)
    for _ in range(2):
        with pytest.raises(KeyError, match="user"):
            g(np.ones(2))
    fails[0] = False
    assert g(np.ones(2)).tolist() == [2, 2]
