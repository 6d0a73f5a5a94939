"""The steady state of a step: which line of its source takes memory, and whose that is."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest

from ebbtide import jit
from ebbtide.demo.burgers import Problem, guess, step

# Objects of arrays that are views, and numbers: what Python takes for a name.
OBJECT = 512


class Meter:
    """Runs a copy of a source in which each statement is followed by a look at what is allocated."""

    def __init__(self, planned):
        body = planned.source.partition("def run(")[2].splitlines()[2:]
        self.statements = [line.partition("  #")[0].strip() for line in body if line.strip()]
        self.kept = [0] * len(self.statements)  # bytes that a statement leaves
        self.moment = [0] * len(self.statements)  # bytes that it takes for a moment
        self.before = 0
        lines = ["def run(values, arrays, constants):", "    look(-1)"]
        for number, text in enumerate(self.statements):
            result = text.removeprefix("return ")
            lines += [f"    {text}" if result == text else f"    result = {result}", f"    look({number})"]
        namespace = {**planned._run.__globals__, "look": self.look}
        exec("\n".join([*lines, "    return result"]), namespace)  # noqa: S102 - our own text
        planned._run = namespace.pop("run")

    def look(self, number):
        """Note what the statement took."""
        now, most = tracemalloc.get_traced_memory()
        if number >= 0:
            self.kept[number], self.moment[number] = now - self.before, most - self.before
        tracemalloc.reset_peak()
        self.before = tracemalloc.get_traced_memory()[0]


def demo_step(nodes, executor):
    """Return the jitted step of the demo in its own state, a state after some steps, and the viscosity."""
    problem = Problem(nodes, 1)
    advance = jit(lambda u, nu: step(u, nu, problem.spacing, problem.time_step), donate_argnums=0, executor=executor)
    state = guess(problem).copy()
    for _ in range(3):
        state = advance(state, problem.viscosity)
    return advance, state, problem.viscosity


@pytest.mark.parametrize("nodes", [129, 257])
def test_a_step_of_the_demo_line_by_line(nodes):
    """No line allocates data; for a moment ufuncs take buffers, NumPy's own, whatever the number of nodes."""
    advance, state, viscosity = demo_step(nodes, "reference")
    planned = advance.program(state, viscosity)
    meter = Meter(planned)
    tracemalloc.start()
    try:
        for _ in range(2):
            (after,) = planned.run([state, viscosity])
    finally:
        tracemalloc.stop()
    assert after is state
    assert max(meter.kept) <= OBJECT
    buffered = [text for text, moment in zip(meter.statements, meter.moment, strict=True) if moment > OBJECT]
    # Each is one call of NumPy, with memory for its result.
    assert [text for text in buffered if not re.fullmatch(r"np\.\w+\([\w.]+, \w+, out=\w+\)", text)] == []
    # One buffer for each operand that does not lie as the result does.
    assert len(buffered) >= 8
    assert max(meter.moment) <= 2 * 8 * np.getbufsize() + 2 * OBJECT


@pytest.mark.parametrize("executor", ["reference", "machine"])
def test_steps_of_the_demo_leave_nothing(executor):
    """From one step to the next not one byte more is there, and the machine takes none for a moment either."""
    advance, state, viscosity = demo_step(65, executor)
    there, most = np.zeros(40, int), np.zeros(40, int)
    tracemalloc.start()
    try:
        for number in range(len(there)):
            tracemalloc.reset_peak()
            state = advance(state, viscosity)
            there[number], most[number] = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert there[-1] == there[8], "the first steps fill the interpreter's lists of freed objects"
    moment = (most - there)[8:]
    assert moment.max() <= (4 * OBJECT if executor == "machine" else 2 * 8 * np.getbufsize() + 4 * OBJECT)


@pytest.mark.parametrize("text", ["np.add(getitem_1, getitem_2, out=add_8)", "setitem_23 = u"])
def test_what_a_line_allocates_is_seen(text):
    """The meter sees a line whose result is a new array, and one that copies the state."""
    advance, state, viscosity = demo_step(129, "reference")
    planned = advance.program(state, viscosity)
    changed = {"setitem_23 = u": "setitem_23 = u.copy()"}.get(text, "add_8 = np.add(getitem_1, getitem_2)")
    assert planned.source.count(text) == 1
    planned.source = planned.source.replace(text, changed)
    meter = Meter(planned)
    tracemalloc.start()
    try:
        planned.run([state, viscosity])
    finally:
        tracemalloc.stop()
    assert max(meter.kept) > state.nbytes // 2
