"""What `import ebbtide` leaves alone, and what is there all the same when it is needed."""

from __future__ import annotations

import subprocess
import sys

HEAVY = """
import sys, ebbtide
left = {"scipy.special", "scipy.stats", "scipy.signal", "scipy.integrate", "tqdm", "ebbtide.rules.special"}
assert not left & set(sys.modules), left & set(sys.modules)

import numpy as np
from scipy import special
x = np.array([0.5, 1.5])
assert not {"ebbtide.rules.special"} & set(sys.modules)
np.testing.assert_allclose(ebbtide.grad(lambda x: np.sum(special.erf(x)))(x), 2 / np.sqrt(np.pi) * np.exp(-x * x))
np.testing.assert_allclose(ebbtide.jit(ebbtide.grad(lambda x: np.sum(special.jv(0, x))))(x), -special.j1(x))
"""

WATCHED = """
import sys, ebbtide
import numpy as np
from scipy import special
seen = []
def f(x):
    seen.append("ebbtide.rules.bessel" in sys.modules)
    return np.sum(special.gammaln(x))
ebbtide.grad(f, budget=ebbtide.Budget("1 MiB"))(np.ones(3))
assert seen == [True], "modules were imported where their memory counts"
"""


def test_modules_are_imported_by_who_asks_for_them():
    """`import ebbtide` imports none of SciPy's larger modules; rules of its ufuncs are there when one comes by."""
    subprocess.run([sys.executable, "-c", HEAVY], check=True)


def test_rules_are_there_before_memory_counts():
    """Under a budget the rules of SciPy's ufuncs are imported before the call, which is then not charged for them."""
    subprocess.run([sys.executable, "-c", WATCHED], check=True)
