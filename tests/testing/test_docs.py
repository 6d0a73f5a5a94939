from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_session():
    """The sessions of docs/testing.md run as they are printed."""
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 12
    assert found.failed == 0
