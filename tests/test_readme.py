"""The README says what the code does."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

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


def test_links():
    """Every file that the README points to is there."""
    text = README.read_text()
    targets = [part.split(")")[0] for part in text.split("](")[1:]]
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
