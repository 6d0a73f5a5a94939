"""Which modules have examples that can be run here."""

import importlib.util

# The packages of extras are imported by who has the extra.
PACKAGES = (
    ("mpi4py", "ebbtide/mpi"), ("mpi4py", "ebbtide/demo/cartesian.py"), ("petsc4py", "ebbtide/petsc"),
    ("torch", "ebbtide/torch"),
)  # fmt: skip
collect_ignore = [folder for extra, folder in PACKAGES if importlib.util.find_spec(extra) is None]
