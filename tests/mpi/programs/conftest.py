"""Programs that `mpiexec` starts hold no tests of their own."""

collect_ignore_glob = ["*.py"]
