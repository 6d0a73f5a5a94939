"""Where a sparse matrix has entries, and the operations on entries that derivatives are made of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod
from typing import Any, final

import numpy as np
import scipy.sparse

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.batched import full
from ebbtide.arrays.kinds import multilinear

# Of SuperLU; what has other numbers of places, another format or entries that are in no order is copied for it.
_INDEX_NBYTES = 4


@final
class Pattern:
    """
    The places of the entries of a matrix, in one of SciPy's formats.

    Args:
        model: An array of SciPy's with these entries, whose values do not matter; kept by reference.

    Memory:
        The arrays of indices.
    """

    __slots__ = ("_model",)

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self._model.shape

    @property
    def format(self) -> str:
        """SciPy's name of the format."""
        return self._model.format

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.indices[0])

    @property
    def indices(self) -> tuple[Any, ...]:
        """The arrays that a matrix is made from beside its entries."""
        model = self._model
        return tuple(model.coords) if self.format == "coo" else (model.indices, model.indptr)

    @property
    def held_arrays(self) -> tuple[Any, ...]:
        """The arrays that it keeps alive, the values of its model included."""
        return (*self.indices, self._model.data)

    @property
    def index_nbytes(self) -> int:
        """Bytes of a number among these."""
        return self.indices[0].itemsize

    @property
    def is_ordered(self) -> bool:
        """Whether each place is there once, along the rows of the format csr and the columns of csc."""
        return self.format in ("csc", "csr") and self._model.has_canonical_format

    def copied_nbytes(self, data: Any) -> int:
        """Return the bytes that elimination takes for a copy of the matrix with these plain entries."""
        kind = data.dtype
        if self.is_ordered and self.index_nbytes == _INDEX_NBYTES and kind.isnative and kind.char in "fdFD":
            return 0
        return self.count * (max(kind.itemsize, 8) + 2 * self.index_nbytes)

    @property
    def transposed(self) -> Pattern:
        """Where the transposed matrix has the same entries, in the same order; views."""
        return Pattern(self._model.T)

    def matrix(self, data: Any) -> Any:
        """Return SciPy's array with these plain entries, which are not copied."""
        # A constructor would look through the indices, which takes as long as a product of 10,000 entries.
        made = copy.copy(self._model)
        made.data = native(data)
        return made

    def eliminated(self, data: Any, forms: Sequence[str]) -> Any:
        """
        Return SciPy's array with these plain entries for an elimination, which brings them in order where they lie.

        Args:
            data: The entries; those that are in no order are copied.
            forms: The formats that the elimination takes, csc among them.
        """
        made = self.matrix(data)
        if self.format not in forms:
            return made.tocsc()
        return made if self.is_ordered else made.copy()

    def places(self) -> tuple[Any, Any]:
        """Return the row and the column of each entry."""
        if self.format == "coo":
            return self.indices
        minor, starts = self.indices
        major = np.repeat(np.arange(len(starts) - 1, dtype=minor.dtype), np.diff(starts))
        return (major, minor) if self.format == "csr" else (minor, major)

    def repeated(self, count: int) -> Pattern:
        """Return the pattern of a matrix with so many of this one along its diagonal."""
        rows, columns = self.shape
        shape = (rows * count, columns * count)
        if self.format == "coo":
            pairs = zip(self.shape, self.indices, strict=True)
            entries = [np.concatenate([x[:0], *[x + np.int64(k * n) for k in range(count)]]) for n, x in pairs]
            return Pattern(scipy.sparse.coo_array((np.zeros(len(entries[0]), np.int8), tuple(entries)), shape=shape))
        minor, starts = self.indices
        step = columns if self.format == "csr" else rows
        minors = np.concatenate([minor[:0], *[minor + np.int64(k * step) for k in range(count)]])
        ends = [starts[:1], *[starts[1:] + np.int64(k * len(minor)) for k in range(count)]]
        form = getattr(scipy.sparse, f"{self.format}_array")
        return Pattern(form((np.zeros(len(minors), np.int8), minors, np.concatenate(ends)), shape=shape))


def native(x: Any) -> Any:
    """Return an array in the order of bytes of this machine, which SciPy wants."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _times(data: Any, x: Any, pattern: Pattern) -> Any:
    return pattern.matrix(data) @ native(x)


def _times_type(data: ArrayType, x: ArrayType, pattern: Pattern) -> ArrayType:
    return ArrayType((pattern.shape[0], *x.shape[1:]), np.result_type(data.dtype, x.dtype))


def _joined(x: Any) -> Any:
    """Return vectors of members one after the other."""
    return np.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _times_members(data: Any, x: Any, has_data: bool, has_x: bool, pattern: Pattern) -> Any:
    if not has_data:
        # Columns of one product.
        columns = np.moveaxis(x, 0, 1)
        flat = np.reshape(columns, (columns.shape[0], prod(columns.shape[1:])))
        made = times.bind((data, flat), {"pattern": pattern})
        return np.moveaxis(np.reshape(made, (made.shape[0], *columns.shape[1:])), 0, 1)
    size = data.shape[0]
    stacked = full(x, has_x, size)
    flat = _joined(stacked)
    made = times.bind((np.reshape(data, -1), flat), {"pattern": pattern.repeated(size)})
    return np.reshape(made, (size, pattern.shape[0], *made.shape[1:]))


times = multilinear(
    _times,
    (
        lambda g, x, kind, pattern: products.bind((g, x), {"pattern": pattern}),
        lambda g, data, kind, pattern: times.bind((data, g), {"pattern": pattern.transposed}),
    ),
    infer=_times_type,
    batch=_times_members,
    name="sparse_product",
)


def _products(x: Any, y: Any, pattern: Pattern) -> Any:
    rows, columns = pattern.places()
    if x.ndim == 1:
        return x[rows] * y[columns]
    # One column after the other: at no time more than two arrays of the size of the entries.
    found = np.zeros(len(rows), np.result_type(x, y))
    for k in range(x.shape[1]):
        found += x[rows, k] * y[columns, k]
    return found


def _products_members(x: Any, y: Any, has_x: bool, has_y: bool, pattern: Pattern) -> Any:
    size = (x if has_x else y).shape[0]
    flat = [_joined(z) for z in (full(x, has_x, size), full(y, has_y, size))]
    made = products.bind(tuple(flat), {"pattern": pattern.repeated(size)})
    return np.reshape(made, (size, pattern.count))


# The entries of x yᵀ where a matrix has some: the cotangent of its entries.
products = multilinear(
    _products,
    (
        lambda g, y, kind, pattern: times.bind((g, y), {"pattern": pattern}),
        lambda g, x, kind, pattern: times.bind((g, x), {"pattern": pattern.transposed}),
    ),
    infer=lambda x, y, pattern: ArrayType((pattern.count,), np.result_type(x.dtype, y.dtype)),
    batch=_products_members,
    name="sparse_products",
)
