"""mpi4py, imported where it is used: its import starts MPI."""

from __future__ import annotations

import importlib
from typing import Any


def library() -> Any:
    """Return the module `mpi4py.MPI`."""
    return importlib.import_module("mpi4py.MPI")
