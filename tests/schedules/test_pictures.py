from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_all_pictures_of_the_page_are_drawn(tmp_path, monkeypatch):
    """The script of the docs draws the pictures that the page about schedules shows, and no others."""
    for package in ("matplotlib", "checkpoint_schedules"):
        pytest.importorskip(package, reason=f"the pictures need the package {package}")
    monkeypatch.setattr(sys, "argv", ["draw_schedules.py", str(tmp_path)])
    runpy.run_path(str(DOCS / "draw_schedules.py"), run_name="__main__")
    shown = set(re.findall(r"\(schedules/(\w+\.png)\)", (DOCS / "schedules.md").read_text()))
    for folder in (tmp_path, DOCS / "schedules"):
        assert {picture.name for picture in folder.iterdir()} == shown
