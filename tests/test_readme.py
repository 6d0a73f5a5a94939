"""The README says what the code does."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

import ebbtide

README = Path(__file__).parent.parent / "README.md"


def test_session():
    """The session that the README opens with runs as it is printed."""
    found = doctest.testfile(str(README), module_relative=False)
    assert found.attempted >= 8
    assert found.failed == 0


@pytest.mark.parametrize("page", ["budgets", "nn", "programs", "scipy", "vmap"])
def test_pages(page):
    """The sessions of the pages in docs run as they are printed."""
    found = doctest.testfile(str(README.parent / "docs" / f"{page}.md"), module_relative=False)
    assert (found.attempted > 5, found.failed) == (True, 0)


def test_resume(tmp_path):
    """The program of the page on kills runs, with fewer steps and a smaller array, and leaves the gradient alone."""
    program = (README.parent / "docs" / "resume.md").read_text().split("```python\n")[1].split("```")[0]
    kept = tmp_path / "slope.npy"
    changes = {"100_000": "50", "1_000_001": "1_001", "/scratch/me": str(tmp_path), "slope.npy": str(kept)}
    for name, other in changes.items():
        assert program.count(name) == 1
        program = program.replace(name, other)
    names = {"__name__": "of_a_reader"}
    exec(program, names)  # noqa: S102 - the page's own
    assert list(tmp_path.iterdir()) == [kept]
    assert np.load(kept).tobytes() == ebbtide.grad(names["energy"])(names["u"]).tobytes()


def test_links():
    """Every file that the README points to is there."""
    text = README.read_text()
    targets = [part.split(")")[0] for part in text.split("](")[1:]]
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
