"""What operations of SciPy keep of plain arrays for their derivatives, against what tracemalloc finds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from ebbtide import saved_values
from ebbtide.scipy.integrate import odeint, quad
from ebbtide.scipy.interpolate import PchipInterpolator, RegularGridInterpolator
from ebbtide.scipy.optimize import fixed_point
from ebbtide.scipy.sparse.linalg import LinearOperator, cg

SIZE = 40_000
ROOM = 220_000  # for the interpreter and SciPy's objects; an array takes 320,000
KNOTS = np.linspace(0, 1, SIZE)
GRID = (np.linspace(0, 1, 400), np.linspace(0, 1, 100))
CLOSED = {
    "products": lambda x, w: cg(LinearOperator((SIZE, SIZE), lambda v: v * w[1]), x)[0],
    "preconditioner": lambda x, w: cg(scipy.sparse.eye_array(SIZE), x, M=scipy.sparse.diags_array(w[1]))[0],
    "equations": lambda x, w: fixed_point(lambda v: x + 0.1 * np.sin(w[0] * v), x),
    "integral": lambda x, w: x * quad(lambda t: t * x[0] * w[0, 0], 0, 1)[0],
    "trajectory": lambda x, w: odeint(lambda y, t, a: -a * y * w[0, 0], np.ones(1), np.arange(3.0), (x[0],))[-1] * x,
    "knots": lambda x, w: PchipInterpolator(w[0] * KNOTS, x)(KNOTS),
    "grid": lambda x, w: RegularGridInterpolator(GRID, w[0].reshape(400, 100), "cubic")(np.stack([x, x], -1)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_functions_and_solvers_keep(name):
    """What an operation keeps beside its operands counts: what functions close over, knots, places of entries."""
    f = lambda x: np.sum(CLOSED[name](x, 1.0 + np.zeros((4, SIZE))))
    saved_values(f, 0.1 + 0.8 * KNOTS)  # a first call takes memory for good
    found = saved_values(f, 0.1 + 0.8 * KNOTS)
    assert found.measured_bytes < found.nbytes + ROOM
