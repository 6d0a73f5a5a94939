"""Sources: files of their own, which can be read, edited, stepped through, and run elsewhere."""

from __future__ import annotations

import importlib.util
import inspect
import io
import pdb  # noqa: T100 - what is tested
import re
import sys

import numpy as np
import pytest
from tests.program.test_reference import executable
from tests.program.test_tracing import bits
from tests.storage.helpers import run_python

from ebbtide import grad, jit, trace, value_and_grad
from ebbtide.arrays.array_type import ArrayType
from ebbtide.program.equation import Equation, Place, Variable
from ebbtide.program.program import Program

ORDER = np.array([2, 0, 1, 1])
SCALE = np.linspace(0.5, 2.0, 12).reshape(4, 3)


def loss(x, w):
    """Products, a gather, a choice, writes, and arrays from around."""
    y = np.tanh(x @ w) * SCALE
    y = y[ORDER] + np.where(y > 0, y, 0.1 * y).astype(np.float64)
    y[1:, 0] = np.float32(0.5)
    y[ORDER, 1] += 1.0
    return np.sum(np.pad(np.roll(y, 1, axis=0), 1)[1:] ** 2)


X, W = np.linspace(-1, 1, 12).reshape(4, 3), np.linspace(0, 1, 9).reshape(3, 3)

CALLER = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, saved
given = np.load(sys.argv[1] + "/inputs.npz")
for result in saved.call(*[given[name] for name in given.files]):
    print(np.asarray(result).tobytes().hex())
"""


def load(path):
    """The module that a file is."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_saved_source_runs_elsewhere(tmp_path):
    """Another process runs the file on the inputs, with equal results; what no text says lies beside it."""
    planned = jit(value_and_grad(loss, (0, 1))).program(X, W)
    planned.save(tmp_path / "saved.py")
    np.savez(tmp_path / "inputs.npz", X, W)
    status, out, problems = run_python(CALLER, tmp_path)
    assert status == 0, problems
    assert out.split() == [np.asarray(value).tobytes().hex() for value in planned.run([X.copy(), W.copy()])]
    assert (tmp_path / "saved.npz").exists()


def test_a_source_without_arrays_needs_no_other_file(tmp_path):
    """Where nothing is from around the function, there is one file, which imports NumPy only."""
    planned = jit(lambda x: np.sin(x) * 2.0 + np.float64(0.5)).program(X)
    planned.save(tmp_path / "saved.py")
    assert [path.name for path in tmp_path.iterdir()] == ["saved.py"]
    module = load(tmp_path / "saved.py")
    assert "ebbtide" not in planned.source
    assert bits(module.call(X.copy())) == bits([np.sin(X) * 2.0 + np.float64(0.5)])


def test_an_edited_source(tmp_path, monkeypatch):
    """A line that is edited in the file is what runs when it is loaded again."""
    # Python tells bytecode from its source by second and size, which are the same here.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "saved.py"
    jit(lambda x: np.sum(np.sin(x) * 2.0)).program(X).save(path)
    assert load(path).call(X.copy()) == [np.sum(np.sin(X) * 2.0)]
    path.write_text(path.read_text().replace("np.sin(x, out=", "np.cos(x, out="))
    assert load(path).call(X.copy()) == [np.sum(np.cos(X) * 2.0)]


def test_what_cannot_be_saved_is_refused(tmp_path):
    """A function without a name to import, and a file that is none of Python's, are errors that say what to do."""
    x, y = (Variable(ArrayType((3,), np.dtype(float)), name) for name in "xy")
    equation = Equation(None, lambda x: x * 2.0, "double", (x,), {}, y, Place())
    planned = executable(Program("f", (x,), (y,), (equation,)), [np.ones(3)])
    assert planned.run([np.ones(3)])[0].tolist() == [2, 2, 2]
    with pytest.raises(TypeError, match=r"calls .*<lambda>, which a file cannot import. Define it by name"):
        planned.save(tmp_path / "saved.py")
    with pytest.raises(ValueError, match=r"'saved.txt' is none: end its name with .py"):
        planned.save(tmp_path / "saved.txt")
    assert list(tmp_path.iterdir()) == []


def test_every_line_says_what_it_makes():
    """Each operation has the type of its result, the bytes that are held, and the user's line."""
    planned = jit(grad(loss, (0, 1))).program(X, W)
    body = planned.source.partition("def run(")[2].splitlines()
    noted = [line.partition("  # ")[2] for line in body if "  # " in line and "After each line" not in line]
    assert len(noted) >= 0.5 * len(planned.program.equations)
    assert all(re.fullmatch(r"\w+\[[\d, ]*\] +[\d,]+  test_source.py:\d+( reverse)?", text) for text in noted)
    held = [int(re.search(r"\] +([\d,]+) ", text)[1].replace(",", "")) for text in noted]
    assert max(held) == planned.predict().peak_bytes


@pytest.mark.parametrize(
    "number",
    [0.1, -0.0, np.inf, -np.inf, np.nan, np.float32(0.1), np.float64(-0.0), np.float32(np.nan), np.float64(-np.inf),
     -np.float64(np.nan), np.int8(-3), np.True_, 2.5j, np.complex64(1 + 2j), complex(np.inf, 1)],
    ids=repr,
)  # fmt: skip
def test_numbers_are_said_to_the_last_bit(number):
    """A number that the function was traced with is the same in the text, with dtype, sign and infinities."""
    with np.errstate(all="ignore"):
        planned = jit(lambda x: np.where(x > 0, number, number)).program(X)
        (found,) = planned.run([X.copy()])
        assert bits(found) == bits(np.where(X > 0, number, number))


def test_names_do_not_clash():
    """Arguments that are called as the source calls its own things keep their values."""
    def f(constant_1, np_, run, arena):
        return constant_1 * np.float64(3.0) + np_ * run - np.float32(1.0) * arena

    values = [np.full(3, float(k)) for k in range(1, 5)]
    (found,) = executable(trace(f, *values), values).run(list(values))
    assert found.tolist() == f(*values).tolist()


def test_debuggers_show_the_source():
    """The functions that run have their lines: pdb lists them and stops in them."""
    # So long that the number stays in the text.
    given = np.linspace(-1, 1, 1000)
    planned = jit(lambda x: np.sin(x) * 2.0).program(given)
    assert "sin_1 = np.sin(x)" in inspect.getsource(planned._run)
    shown = io.StringIO()
    commands = io.StringIO("step\nnext\nnext\nlist\ncontinue\n")
    debugger = pdb.Pdb(stdin=commands, stdout=shown, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    debugger.runcall(planned._run, [given], planned._lay_out(np.empty(planned.arena_nbytes, np.uint8)), [])
    assert "values.clear()" in shown.getvalue()
    assert "np.multiply(sin_1, 2.0, out=multiply_2)" in shown.getvalue()


def outcome(f):
    """Return the bits of a result, or the text of the error."""
    try:
        return bits(f())
    except FloatingPointError as error:
        return str(error)


@pytest.mark.parametrize("letter", "efdFD")
@pytest.mark.parametrize("number", [0.1, -0.0, 3.0, 6e-8, 1e-40, 1e5, 1e300, np.inf])
def test_numbers_of_short_operations_are_arrays(letter, number):
    """A number that a short operation takes is read once, with the bits and the warnings that it has in the text."""
    def f(x):
        return np.subtract(number, np.maximum(x * number, number))

    texts = []
    for length in (5, 5000):
        x = np.linspace(-2, 2, length).astype(letter)
        with np.errstate(all="ignore"):
            expected = f(x)
            planned = jit(f).program(x)
            assert bits(planned.run([x.copy()])[0]) == bits(expected)
        with np.errstate(all="raise"):
            assert outcome(lambda x=x: planned.run([x.copy()])[0]) == outcome(lambda x=x: f(x))
        texts.append(f"({number!r}, {letter!r})" in planned.source)
    info = np.finfo(letter)
    assert texts == [number == 0.0 or (float(info.tiny) <= number <= float(info.max)), False]
