"""The sample of tests that `make test` runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import scale

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", scale.EVERY)
def test_files_of_which_there_is_a_sample(path: str) -> None:
    """They are there; another name would have all of its cases in the sample."""
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(("is_sample", "expected"), [(True, [0, 8, 16]), (False, list(range(20)))])
def test_which_cases_are_in_a_sample(is_sample: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many-th of a file that takes long, in `make test`; else all."""
    monkeypatch.setattr(scale, "SAMPLED", is_sample)
    monkeypatch.setattr(scale, "EVERY", {"tests/long.py": 8})
    assert [k for k in range(20) if scale.is_in_sample("tests/long.py", k)] == expected
    assert all(scale.is_in_sample("tests/short.py", k) for k in range(20))
