"""What the keywords of ufuncs ask for: dtypes, the order of the result, and which axes are the cores of operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

_PYTHON = frozenset({bool, int, float, complex})


def with_keywords(ufunc: np.ufunc, handler: Callable[..., Any], *inputs: Any, keywords: dict[str, Any]) -> Any:
    """
    Return what a ufunc gives with `dtype=`, `signature=`, `casting=`, `order=`, `axis=`, `axes=` and `keepdims=`.

    NumPy itself says in which dtypes it computes; operands are cast to these, and the ufunc is the usual one then.

    Args:
        ufunc: The ufunc.
        handler: Its rule.
        inputs: Its operands.
        keywords: The keywords but `out=` and `where=`.

    Raises:
        TypeError: As in NumPy: no loop, or no cast allowed, for these dtypes; a keyword that there is not.
    """
    keywords = {k: v for k, v in keywords.items() if v is not None and k != "subok"}
    order, casting = keywords.pop("order", "K"), keywords.pop("casting", "same_kind")
    arrays = [x if hasattr(x, "dtype") or type(x) in _PYTHON else np.asarray(x) for x in inputs]
    types = [type(x) if type(x) in _PYTHON else x.dtype for x in arrays]
    loop = ufunc.resolve_dtypes(
        (*types, *(None,) * ufunc.nout), signature=_signature(ufunc, keywords), casting=casting
    )
    arrays = [
        x if type(x) in _PYTHON or x.dtype == dtype else x.astype(dtype) for x, dtype in zip(arrays, loop, strict=False)
    ]
    result = _along(ufunc, handler, arrays, **keywords) if ufunc.signature else handler(*arrays, **keywords)
    return result if order == "K" else np.copy(result, order)


def _signature(ufunc: np.ufunc, keywords: dict[str, Any]) -> Any:
    """Return the dtypes that are asked for, in place of `dtype=` and `signature=`."""
    dtype, signature = keywords.pop("dtype", None), keywords.pop("signature", keywords.pop("sig", None))
    if signature is None:
        signature = (None,) * ufunc.nin + (dtype,) * ufunc.nout
    elif isinstance(signature, str):
        signature = signature.replace("->", "")
    return tuple([None if one is None else np.dtype(one) for one in signature])


def _along(
    ufunc: np.ufunc, handler: Callable[..., Any], arrays: list[Any], axis: Any = None, axes: Any = None,
    keepdims: bool = False,
) -> Any:  # fmt: skip
    """Return what a ufunc of vectors and matrices gives with these along other axes than the last ones."""
    count = ufunc.nin
    if (axis is not None or keepdims) and len(set(re.findall(r"\w+", ufunc.signature or ""))) != 1:
        raise TypeError(f"{ufunc.__name__}: axis= and keepdims= are for operands that all have one and the same core.")
    if axis is not None:
        axes = [(axis,)] * count
    if axes is not None:
        axes = [(one,) if isinstance(one, (int, np.integer)) else tuple(one) for one in axes]
        arrays = [np.moveaxis(x, one, tuple(range(-len(one), 0))) for x, one in zip(arrays, axes, strict=False)]
    result = handler(*arrays)
    where = axes[count] if axes is not None and len(axes) > count else ()
    if keepdims:
        return np.expand_dims(result, where or (axes[0] if axes else -1))
    return np.moveaxis(result, tuple(range(-len(where), 0)), where) if where else result
