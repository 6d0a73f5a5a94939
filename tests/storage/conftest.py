from __future__ import annotations

import pytest

from .helpers import Gate


@pytest.fixture
def gate():
    """A gate that is open at the end."""
    gate = Gate()
    yield gate
    gate.open.set()
