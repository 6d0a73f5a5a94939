"""When values die: each array outside of the block is gone before the operation after its last use begins."""

from __future__ import annotations

import re
import weakref

import numpy as np
import optree
import pytest
from tests.campaign.dags import make_dag
from tests.program.test_reference import network
from tests.scale import sample

from ebbtide import grad, jit, value_and_grad, vjp
from ebbtide.arrays.array_type import owner_of

NAME = re.compile(r"[^\W\d]\w*")


class Watcher:
    """
    Runs a copy of a source in which each operation tells that it begins, and each array that it is made.

    The end of an array is read off the text: the last line with a name of it, or of a view of it. So what the planner
    thought does not matter.
    """

    def __init__(self, planned, lent=()):
        body = [line.strip() for line in planned.source.partition("def run(")[2].splitlines()[2:]]
        self.statements = [line.partition("  #")[0] for line in body]
        self.ends = {}
        for number, text in enumerate(self.statements):
            if not text.startswith("del "):
                for name in NAME.findall(text):
                    self.ends[name] = number
        # What the function was traced with is the program's, and what is lent stays with its owner.
        self.constants = {id(owner_of(x)) for x in (*planned._constants, *lent) if isinstance(x, np.ndarray)}
        self.arrays = {}  # owner of memory, by address -> (weak reference, names)
        self.deaths = 0
        lines = ["def run(values, arrays, constants):"]
        for number, text in enumerate(self.statements):
            # The first statement of an operation has a comment.
            if "  # " in body[number] or text.startswith("return"):
                lines.append(f"    begin({number})")
            lines.append(f"    {text}")
            target = re.match(r"([\w, ]+?),? = (?!arrays$)", text)
            names = [] if target is None else target[1].split(", ")
            lines += [f"    made({name!r}, {name})" for name in names]
        namespace = {**planned._run.__globals__, "begin": self.begin, "made": self.made}
        exec("\n".join(lines), namespace)  # noqa: S102 - our own text
        planned._run = namespace.pop("run")

    def made(self, name, array):
        """Note an array, under the one that owns its memory."""
        if isinstance(array, np.ndarray):
            owner = owner_of(array)
            if id(owner) in self.constants:
                return
            known = self.arrays.get(id(owner))
            if known is None or known[0]() is None:
                known = self.arrays[id(owner)] = weakref.ref(owner), []
            known[1].append(name)

    def begin(self, number):
        """Check that all arrays are gone whose last line is behind."""
        for key, (reference, names) in list(self.arrays.items()):
            if max(self.ends[name] for name in names) < number:
                assert reference() is None, (names, self.statements[number])
                del self.arrays[key]
                self.deaths += 1


def recurrent(params, xs):
    """A loss of a recurrent net."""
    w, v = params
    h = np.zeros_like(xs[0])
    total = 0.0
    for x in xs:
        h = np.tanh(h @ w + x @ v)
        total = total + np.sum(h * h)
    return total


def stencil(u):
    """A loss after some steps of a stencil in two dimensions."""
    for _ in range(4):
        inner = u[1:-1, 1:-1] + 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] - 2.0 * np.sin(u[1:-1, 1:-1]))
        u = np.copy(u)
        u[1:-1, 1:-1] = inner
    return np.sum(u**2)


def sorted_parts(x):
    """What NumPy allocates: sorts, gathers, products."""
    order = np.roll(np.arange(60), 7)
    y = np.sort(x, axis=0)[::-1] * x[order]
    return np.sum(np.cumsum(y, axis=0) @ x.T)


def function_of(name):
    """A function that returns a number, and its arguments."""
    random = np.random.default_rng(0)
    if name == "net":
        net, weights, x = network(6, 80)
        return net, (weights, x)
    if name == "stencil":
        return stencil, (random.standard_normal((70, 70)),)
    f, arguments = make_dag(int(name))
    return lambda *args: f(*args)[0], tuple(arguments)


def problem(name):
    """A function and its arguments."""
    random = np.random.default_rng(0)
    if name == "recurrent":
        params = [random.standard_normal((64, 64)) / 64 for _ in range(2)]
        return grad(recurrent), (params, [random.standard_normal((50, 64)) for _ in range(6)])
    if name in ("net", "stencil"):
        f, args = function_of(name)
        return (grad(f, (0, 1)) if name == "net" else value_and_grad(f)), args
    if name == "gathers":
        return grad(sorted_parts), (random.standard_normal((60, 60)),)
    f, arguments = make_dag(int(name))
    return value_and_grad(f, (0, 1, 2), has_aux=True), tuple(arguments)


NAMES = ("net", "recurrent", "stencil", "gathers")


@pytest.mark.parametrize("name", [*NAMES, *map(str, sample(range(50), 11)), "8", "13", "21", "35"])
def test_all_arrays_die_in_time(name):
    """At each operation of a program: no input, value or cotangent is there whose last use is behind."""
    f, args = problem(name)
    leaves = optree.tree_leaves(args)
    planned = jit(f).program(*args)
    expected = planned.run([np.array(leaf, order="K") for leaf in leaves])
    watcher = Watcher(planned)
    # Each input is held by the list only, which is emptied.
    found = planned.run([np.array(leaf, order="K") for leaf in leaves])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    # Of the arrays that are made, and the inputs, all but the results were seen to die.
    memory = planned.memory
    own = {e.output for e in planned.program.equations if e.name == "copy"}.intersection(planned.program.outputs)
    made = [equation.output for equation in planned.program.equations if equation.output.type.shape]
    made = [variable for variable in made if variable not in own]
    apart = {memory.buffers.get(v, v) for v in made if v in memory.ends and not memory.is_inside(v)}
    assert watcher.deaths >= len(apart) // 2
    assert watcher.deaths >= len(leaves) - len(found)


@pytest.mark.parametrize("name", ["net", "stencil", *map(str, sample(range(50), 11)), "8", "13", "21", "35"])
def test_saved_values_die_in_time_in_the_reverse_program(name):
    """Where a jitted function is differentiated, no saved value is there at an operation after its last use, either."""
    f, args = function_of(name)
    slope = jit(f)
    value, pullback = vjp(slope, *args)
    expected = pullback(np.ones_like(value))
    lent = optree.tree_leaves(args)
    number = tuple(range(len(args)))
    watchers = [Watcher(planned, lent) for planned in slope.reversed(*args, argnums=number)]
    del value
    value, pullback = vjp(slope, *args)
    cotangent = np.ones_like(value)
    watchers[1].constants.add(id(cotangent))
    del value
    found = pullback(cotangent)
    for one, other in zip(optree.tree_leaves(found), optree.tree_leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    assert watchers[1].deaths >= 4, "the watcher sees nothing"


def test_a_value_that_is_held_is_found():
    """The watcher sees a name that is not let go."""
    net, weights, x = network(6, 80)
    planned = jit(grad(net)).program(weights, x)
    text, count = re.subn(r"\n    del [\w, ]+(?=\n)", "\n    pass", planned.source, count=3)
    assert count == 3
    planned.source = text
    Watcher(planned)
    with pytest.raises(AssertionError):
        planned.run([np.copy(leaf) for leaf in [*weights, x]])
