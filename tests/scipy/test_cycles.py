"""What solvers, filters and interpolations leave behind."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import scipy.sparse

from ebbtide import EbbtideError, grad, hvp, jit, jvp, vmap
from ebbtide.scipy import ndimage, sparse
from ebbtide.scipy.integrate import quad
from ebbtide.scipy.interpolate import CubicSpline
from ebbtide.scipy.optimize import brentq, fixed_point, root
from ebbtide.scipy.sparse import linalg

PLAIN = scipy.sparse.csc_array(np.diag([2.0, 3.0, 4.0]))
A = sparse.csc_array(PLAIN)


def built(x):
    """Return a matrix with entries x along its diagonal."""
    return sparse.csc_array((x, PLAIN.indices, PLAIN.indptr), shape=(3, 3))


def solved(x):
    """Use what the result of a solver holds beside the solution."""
    result = root(lambda v: 3 * v + v**3 - x, np.zeros(3))
    return np.sum(result.x) * result.success


def held(x):
    """Find roots of functions that reach what is traced in a container."""
    all_of = {"x": x}
    found = [root(lambda v: 3 * v + v**3 - all_of["x"], np.zeros(3), method=method).x for method in ("hybr", "krylov")]
    return np.sum(found[0] * found[1]) * brentq(lambda v: v**3 - all_of["x"][0], 0.0, 10.0)


CALLS = {
    "held": held,
    "root": solved,
    "fixed_point": lambda x: np.sum(fixed_point(lambda v: np.cos(v) * 0.5 + x, x)),
    "brentq": lambda x: brentq(lambda v: v**3 - x[0], 0.0, 10.0, full_output=True)[0],
    "product": lambda x: np.sum((built(x) @ x) ** 2),
    "spsolve": lambda x: np.sum(linalg.spsolve(built(x), x)),
    "splu": lambda x: np.sum(linalg.splu(built(x)).solve(x)),
    "cg": lambda x: np.sum(linalg.cg(A, x)[0]),
    "gmres": lambda x: np.sum(linalg.gmres(linalg.LinearOperator((3, 3), lambda v: v * x), x)[0]),
    "filter": lambda x: np.sum(ndimage.gaussian_filter(x, 1.0) ** 2),
    "spline": lambda x: np.sum(CubicSpline(np.arange(3.0), x)(x)),
    "quad": lambda x: quad(lambda t: np.cos(t * x[0]), 0.0, 1.0)[0],
    "failed": lambda x: np.sum(root(lambda v: v**2 + x, np.ones(3)).x),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_cycles(name):
    """Nothing of ours waits for the collector of cycles, also after an error; SciPy's own objects may."""
    f, x = CALLS[name], np.array([1.0, 1.5, 2.0])

    def call():
        along = lambda x: jvp(f, (x,), (np.ones(3),))[1]
        batch = lambda x: vmap(f)(np.stack([x, x]))
        for transform in (grad(f), lambda x: hvp(f)(x, x), grad(along), jit(grad(f)), batch):
            try:
                transform(x)
            except EbbtideError:
                assert name in ("failed", "brentq")

    call()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        call()
        gc.collect()
        ours = [thing for thing in gc.garbage if type(thing).__module__.startswith("ebbtide")]
        assert ours == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
