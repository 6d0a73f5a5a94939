"""The public face of the package: what `import ebbtide` gives, and what it costs."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import ebbtide

PUBLIC_SUBMODULES = frozenset({"optimize", "schedules", "storage", "testing"})
FORBIDDEN_IMPORTS = (
    "autograd", "jax", "matplotlib", "mpi4py", "petsc4py", "scipy.interpolate", "scipy.ndimage", "scipy.stats", "torch",
)  # fmt: skip


def is_submodule(value: object) -> bool:
    """Whether *value* is a module inside Ebbtide."""
    return isinstance(value, ModuleType) and value.__name__.startswith("ebbtide.")


def test_all_is_sorted():
    """The public list is sorted and names nothing twice, so that a change of it is one line."""
    assert list(ebbtide.__all__) == sorted(set(ebbtide.__all__))


def test_all_is_what_is_there():
    """`__all__` holds every public name of the package and no other, public submodules apart."""
    present = {
        name
        for name, value in vars(ebbtide).items()
        if not name.startswith("_")
        and not is_submodule(value)
        and value is not annotations  # that name comes from the first import of every file
    }
    assert set(ebbtide.__all__) - PUBLIC_SUBMODULES - {"__version__"} == present


@pytest.mark.parametrize("name", sorted(set(ebbtide.__all__) - {"__version__"}))
def test_public_name_has_docstring(name):
    """Every public name says what it is, in a docstring that a person wrote."""
    value = getattr(ebbtide, name)
    documented = value.__doc__ or ""
    # A dataclass without a docstring gets its signature for one.
    assert documented.strip()
    assert not documented.startswith(f"{name}(")


def test_types_are_shipped():
    """Type checkers read the annotations of an installed Ebbtide: `py.typed` is there and is packaged."""
    assert importlib.resources.files("ebbtide").joinpath("py.typed").is_file()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["ebbtide"]


def test_import_is_light():
    """`import ebbtide` in a fresh interpreter imports none of the extras and none of the peers."""
    code = "import sys, ebbtide; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()).isdisjoint(FORBIDDEN_IMPORTS)
