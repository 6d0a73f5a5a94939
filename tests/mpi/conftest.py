"""Scripts that `mpiexec` starts hold no tests of their own."""

collect_ignore = [
    "failing.py", "group.py", "jobs.py", "journals.py", "launch.py", "loops.py", "on_ranks.py", "operations.py",
    "storages.py", "unlike.py",
]  # fmt: skip
