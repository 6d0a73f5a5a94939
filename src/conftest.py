"""Which modules have examples that can be run here."""

import importlib.util

# The packages of extras are imported by who has the extra.
collect_ignore = [] if importlib.util.find_spec("torch") else ["ebbtide/torch"]
