"""Scripts that `mpiexec` starts hold no tests of their own."""

collect_ignore = ["failing.py", "on_ranks.py"]
