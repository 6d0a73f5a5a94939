"""Which modules have examples that can be run here."""

import importlib.util

# The packages of extras are imported by who has the extra.
PACKAGES = (("mpi4py", "ebbtide/mpi"), ("torch", "ebbtide/torch"))
collect_ignore = [folder for extra, folder in PACKAGES if importlib.util.find_spec(extra) is None]
