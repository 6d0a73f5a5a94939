from __future__ import annotations

import pytest

from ebbtide.agree import agree


@pytest.mark.parametrize("value", [0, 2.5, True, (1024, False), ()], ids=repr)
def test_one_process_agrees_with_itself(value):
    """In one process the agreed value is the very object that was given."""
    assert agree(value) is value
