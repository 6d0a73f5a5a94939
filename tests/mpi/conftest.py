"""Scripts that `mpiexec` starts hold no tests of their own."""

collect_ignore = [
    "failing.py", "group.py", "journals.py", "loops.py", "on_ranks.py", "operations.py", "storages.py",
]  # fmt: skip
