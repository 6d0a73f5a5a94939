"""The checks of programs and plans: each kind of defect is refused, with the pass, the equation and the user's line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.program.test_reference import executable, make_graph, poisoned
from tests.program.test_tracing import bits
from tests.scale import sample

from ebbtide import grad, jit, timeloop, trace
from ebbtide.arrays.array_type import ArrayType
from ebbtide.errors import ProgramError
from ebbtide.program.accumulation import add_products
from ebbtide.program.check import check_plan, check_structure, check_types, passed
from ebbtide.program.equation import Variable, substitute
from ebbtide.program.layout import find_layout
from ebbtide.program.memory import plan_memory
from ebbtide.program.source import Source, find_drops

X = np.linspace(0.0, 1.0, 100)


def small():
    """A program of five equations."""
    return trace(lambda x, step: np.sum(np.sin(x) * step + np.cos(x)), X, 0.5)


def undefined(program):
    """The equations are the other way round."""
    return replace(program, equations=program.equations[::-1])


def defined_twice(program):
    """An equation is there twice."""
    return replace(program, equations=(*program.equations[:1], *program.equations))


def without_output(program):
    """The last equation is gone."""
    return replace(program, equations=program.equations[:-1])


def input_twice(program):
    """An input is there twice."""
    return replace(program, inputs=program.inputs[:1] * 2)


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (undefined, r"in equation 1, .* is used and not defined before"),
        (defined_twice, r"in equation 2, sin_2 = sin\(x\).*is defined a second time"),
        (without_output, r"the output .* is not defined"),
        (input_twice, r"an input is there twice"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pass_that_breaks_a_program(defect, message):
    """A pass after which something is undefined or defined twice is named, with the equation and the line."""
    def broken(program):
        return replace(defect(program), history=(*program.history, "all made worse"))

    with pytest.raises(ProgramError, match=message) as caught:
        passed(small(), broken)
    assert "is wrong after all made worse" in str(caught.value)
    assert "a defect of Ebbtide" in str(caught.value)
    if "equation" in message:
        assert "test_check.py:" in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [ArrayType(shape, np.dtype(kind)) for shape, kind in (((99,), "f8"), ((100,), "f4"), ((), "f8"), ((100, 1), "f8"))],
    ids=str,
)
@pytest.mark.parametrize("number", range(5))
def test_wrong_types(number, kind):
    """A variable of another shape or dtype than its equation computes is refused, whichever the equation."""
    program = small()
    check_types(program)
    output = program.equations[number].output
    if kind == output.type:
        kind = ArrayType((3,), X.dtype)
    output.type = kind
    with pytest.raises(ProgramError, match=r"said to be .*, and is|refuses its operands"):
        check_types(program)


def test_an_array_that_is_said_to_be_a_number():
    """Python numbers come of Python numbers only."""
    program = small()
    program.equations[0].output.is_number = True
    with pytest.raises(ProgramError, match=r"said to be a Python number.*none"):
        check_types(program)


def test_wrong_types_of_products_that_are_added():
    """Also where BLAS adds a product to a sum."""
    program = add_products(trace(lambda x, w: x + x @ w, np.ones((4, 3)), np.ones((3, 3))))
    check_types(program)
    (equation,) = program.equations
    bad = replace(equation, arguments=(equation.arguments[0], equation.arguments[2], equation.arguments[1]))
    with pytest.raises(ProgramError, match="said to be"):
        check_types(replace(program, equations=(bad,)))


def test_the_double_of_a_product():
    """A product that is added to itself is not left to BLAS, which would have no sum to add it to."""
    x = np.arange(9.0).reshape(3, 3)
    assert jit(lambda x: x @ x + x @ x)(x).tolist() == (x @ x + x @ x).tolist()


def planned(f, *inputs):
    """Program, layout, memory and names that are let go, of a plan that holds."""
    program = trace(f, *inputs)
    layout = find_layout(program, [x.strides for x in inputs])
    memory = plan_memory(program, layout)
    plan = program, layout, memory, find_drops(program, layout, memory)
    check_plan(*plan)
    return plan


def by_name(program, name):
    """The first value that an operation of this name gives."""
    return next(equation.output for equation in program.equations if equation.name == name)


def crossing():
    """A plan with two values of the block that live at the same time, a view, and a result of its own."""
    def f(x):
        a, b = np.sin(x), np.cos(x)
        c = a * b[::-1]
        return np.exp(c[1:] + b[1:]) + np.sum(np.tanh(x) * a)

    return planned(f, X)


def overlapping(program, layout, memory, drops):
    """The cosine is put where the sine is."""
    memory.buffers[by_name(program, "cos")].offset = memory.buffers[by_name(program, "sin")].offset
    return program, layout, memory, drops


def overlapping_in_part(program, layout, memory, drops):
    """The cosine begins in the last line of the sine."""
    start = memory.buffers[by_name(program, "sin")].offset
    memory.buffers[by_name(program, "cos")].offset = start + 64 if start == 0 else start - 64
    return program, layout, memory, drops


def beyond(program, layout, memory, drops):
    """The sine is put beyond the end of the block."""
    memory.buffers[by_name(program, "sin")].offset = memory.nbytes
    return program, layout, memory, drops


def too_early(program, layout, memory, drops):
    """The sine is given back after the equation that makes it."""
    memory.ends[by_name(program, "sin")] = 0
    return program, layout, memory, drops


def never(program, layout, memory, drops):
    """The sine is never given back."""
    memory.ends[by_name(program, "sin")] = len(program.equations)
    return program, layout, memory, drops


def returned_in_the_block(program, layout, memory, drops):
    """A result is put into the block."""
    memory.buffers[program.outputs[0]].apart = False
    memory.buffers[program.outputs[0]].offset = 0
    return program, layout, replace(memory, nbytes=10**6), drops


def given_back_result(program, layout, memory, drops):
    """The memory of a result is given back at the end."""
    memory.ends[program.outputs[0]] = len(program.equations) - 1
    return program, layout, memory, drops


def of_another_base(program, layout, memory, drops):
    """A view is said to be one of another value."""
    view = next(v for v, base in layout.bases.items() if base is by_name(program, "cos"))
    layout.bases[view] = by_name(program, "sin")
    return program, layout, memory, drops


def given_up_too_early(program, layout, memory, drops):
    """The product of sine and cosine is made in the sine, which is needed later."""
    sine, product = by_name(program, "sin"), by_name(program, "multiply")
    memory.given_up[product] = sine
    memory.buffers[product] = memory.buffers[sine]
    return program, layout, memory, drops


def named_twice(program, layout, memory, drops):
    """The argument is let go twice."""
    (end,) = [place for place, names in enumerate(drops) if program.inputs[0] in names]
    return program, layout, memory, [names + drops[end] if place > end else names for place, names in enumerate(drops)]


def named_too_long(program, layout, memory, drops):
    """No name is let go."""
    return program, layout, memory, [[] for _ in drops]


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (overlapping, "put over .*still needed"),
        (overlapping_in_part, "put over .*still needed"),
        (beyond, "does not fit"),
        (too_early, "read and not there: its memory was given back after"),
        (never, "is never given back"),
        (returned_in_the_block, "in memory that will be used again|put over"),
        (given_back_result, "its name is kept|the memory of the output .* was given back"),
        (of_another_base, "said to be a view"),
        (given_up_too_early, "put over sin_.*still needed"),
        (named_twice, "is let go, and is not there"),
        (named_too_long, "its name is kept"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_defects_of_plans(defect, message):
    """A plan with the defect is refused before it runs."""
    plan = crossing()
    with pytest.raises(ProgramError, match=message) as caught:
        check_plan(*defect(*plan))
    assert "after its memory was planned" in str(caught.value)


def test_a_place_that_is_read_while_it_is_written():
    """A result may not be made in an operand of which another argument is a view."""
    program, layout, memory, drops = planned(lambda x: np.sum(np.sin(x)[::-1] * np.sin(x)), X)
    sine, product = by_name(program, "sin"), by_name(program, "multiply")
    assert product not in memory.given_up
    memory.given_up[product] = sine
    memory.buffers[product] = memory.buffers[sine]
    with pytest.raises(ProgramError, match="which it is made of"):
        check_plan(program, layout, memory, drops)


def test_a_place_of_another_kind():
    """Nor in an operand of another type, nor by an operation that has read elsewhere by then."""
    program, layout, memory, drops = planned(lambda x: np.sum(np.sin(x).astype(np.float32)), X)
    sine, cast = by_name(program, "sin"), by_name(program, "astype")
    memory.given_up[cast] = sine
    memory.buffers[cast] = memory.buffers[sine]
    with pytest.raises(ProgramError, match="cannot be made in the place of sin_1"):
        check_plan(program, layout, memory, drops)


@pytest.mark.parametrize("seed", sample(range(60), 3))
def test_what_passes_the_check_is_right(seed):
    """A value that is moved to any place in the block is refused, or the run in poisoned memory has the same bits."""
    f, inputs = make_graph(seed), [np.linspace(-1, 1, 300), np.linspace(0, 1, 300)]
    g = grad(lambda x, y: f(np.copy(x), np.copy(y))[0], (0, 1))
    expected, random = bits(g(*inputs)), np.random.default_rng(seed)
    whole = executable(trace(g, *inputs), inputs)
    inside = [buffer for buffer in dict.fromkeys(whole.memory.buffers.values()) if not buffer.apart]
    refused = 0
    for _ in range(6):
        buffer = inside[random.integers(len(inside))]
        before = buffer.offset
        buffer.offset = int(random.integers(0, whole.memory.nbytes // 64)) * 64
        drops = find_drops(whole.program, whole.layout, whole.memory)
        try:
            check_plan(whole.program, whole.layout, whole.memory, drops)
        except ProgramError:
            refused += 1
        else:
            moved = executable(trace(g, *inputs), inputs)
            source = Source(whole.program, whole.layout, whole.memory)
            namespace = {}
            exec(source.text, namespace)  # noqa: S102 - our own text
            moved._run, moved._lay_out, moved._constants = namespace["run"], namespace["lay_out"], source.constants
            assert bits(poisoned(moved).run(list(inputs))) == expected
        buffer.offset = before
    assert refused


def test_a_copy_where_a_reverse_sweep_goes_by_reference():
    """What a time loop has saved by reference is the value that it was given, and not one that was computed again."""
    def f(u):
        v = np.exp(u)
        return np.sum(timeloop(lambda u, i: np.sin(u) * v, u, 5))

    program = trace(grad(f), X)
    made = next(equation for equation in program.equations if equation.name == "exp")
    last = next(n for n, eq in enumerate(program.equations) if eq.name == "timeloop_reverse")
    copy = Variable(made.output.type, "copy")
    reverse = program.equations[last]
    params = substitute(reverse.params, lambda x: copy if x is made.output else x)
    again = (made.of(made.arguments, made.params, copy), reverse.of(reverse.arguments, params, reverse.output))
    broken = replace(program, equations=(*program.equations[:last], *again, *program.equations[last + 1 :]))
    executable(program, [X])
    with pytest.raises(ProgramError, match=r"exp_\d+ is used by reference, and is another than it was given"):
        executable(broken, [X])


def test_all_that_is_traced_is_checked():
    """A gradient goes through each pass with a check after it: the structure of no program is left unseen."""
    program = trace(grad(lambda x: np.sum(np.sin(x) * x)), X)
    check_structure(program)
    assert program.history == ("traced", "dead equations removed", "identities skipped", "common equations merged")
