"""petsc4py, imported where it is used: its import starts PETSc."""

from __future__ import annotations

import importlib
from typing import Any


def library() -> Any:
    """Return the module `petsc4py.PETSc`."""
    return importlib.import_module("petsc4py.PETSc")
