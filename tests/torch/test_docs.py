"""The page about torch says what the code does."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")


def test_page():
    """The session of the page runs as it is printed."""
    page = Path(__file__).parents[2] / "docs" / "torch.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert (found.attempted > 5, found.failed) == (True, 0)
