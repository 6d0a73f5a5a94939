"""No function of the vocabulary, and no rule, leaves anything to the garbage collector."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
from tests.rules.example import callable_of, name_of
from tests.rules.examples import EXAMPLES

from ebbtide import jvp, vjp


@pytest.mark.parametrize("key", [key for key, some in EXAMPLES.items() if any(e.smooth for e in some)], ids=name_of)
def test_nothing_is_left(key: Any, no_garbage: Callable[[], Any]) -> None:
    """Also not of functions that call themselves, whose arrays would live until the collector comes."""
    called = callable_of(key)
    for example in (e for e in EXAMPLES[key] if e.smooth):
        operands = example.operands(np.float64 if example.real else np.complex128)

        def derive(example: Any = example, operands: Any = operands) -> None:
            def f(*given: Any) -> Any:
                return example.call(called, [x + 0 for x in given])

            out, pullback = vjp(f, *operands)
            pullback(optree.tree_map(np.ones_like, out))
            jvp(f, tuple(operands), tuple(map(np.ones_like, operands)))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            derive()
            with no_garbage() as found:
                derive()
        assert found == []
