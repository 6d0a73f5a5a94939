"""Every rule on a linear tape: what is recorded of it is all that forward mode does."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.program.test_tracing import bits
from tests.scale import sample_of_each

from ebbtide import jvp, linearize

from .example import callable_of
from .examples import label, typed_cases


@pytest.mark.parametrize("case", sample_of_each(typed_cases(np.float64, np.complex64, smooth=True), 10), ids=label)
def test_every_rule(case):
    """The pushforward of each operation gives the bits of forward mode, for one tangent after the other."""
    key, example, dtype = case
    operands = example.operands(dtype)

    def f(*operands):
        return example.call(callable_of(key), list(operands))

    value, pushforward = linearize(f, *operands)
    for scale in (0.7, -1.3):
        tangents = [np.asarray(np.cos(np.nan_to_num(x)) * scale, x.dtype) for x in operands]
        expected, tangent = jvp(f, operands, tangents)
        assert bits(value) == bits(expected)
        assert bits(pushforward(*tangents)) == bits(tangent)


FIRST = """
import numpy as np, ebbtide
f = lambda x: np.square(x) * x
for dtype in (np.complex64, np.complex128):
    for x in dtype(0.8 + 0.3j), dtype(-0.45 + 0.7j), dtype(0.13 - 0.91j):
        _, pushforward = ebbtide.linearize(f, x)
        assert pushforward(x) == ebbtide.jvp(f, (x,), (x,))[1], dtype
"""


def test_the_first_call_in_a_process():
    """The first square of a complex number in a process has the bits of later ones, and so has its tangent."""
    found = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
