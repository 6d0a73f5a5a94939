"""Creation `like` a traced array, which gives arrays that take traced values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.primitive import constant_like
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer

def _created(function: Any) -> Any:
    """Return the handler of a creation function called with like=."""

    def handler(*args: Any, like: Any = None, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made if like is None else constant_like(like, made)

    return handler


def _like(function: Any) -> Any:
    """Return the handler of zeros_like and its kin."""

    def handler(a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None) -> Any:
        shape = a.shape if shape is None else shape
        return constant_like(a, function(shape, a.dtype if dtype is None else dtype))

    return handler


def _full_like(a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None) -> Any:
    dtype = type_of(a).dtype if dtype is None else dtype
    shape = a.shape if shape is None else shape
    if type(fill_value) is TracedArray:
        return np.astype(np.broadcast_to(fill_value, shape), dtype)
    return constant_like(a, np.full(shape, fill_value, dtype))


answer(np.zeros_like, _like(np.zeros))
answer(np.ones_like, _like(np.ones))
answer(np.empty_like, _like(np.empty))
answer(np.full_like, _full_like)
for _function in (np.zeros, np.ones, np.empty, np.full, np.arange, np.eye, np.identity, np.linspace):
    answer(_function, _created(_function))
