"""Sparse matrices whose entries may be traced."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, final

import numpy as np
import scipy.sparse

from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import refusal
from ebbtide.scipy.sparse.pattern import Pattern, times


@final
class SparseArray:
    """
    A sparse matrix: entries, traced or plain, in places that are known.

    Args:
        data: The entries.
        pattern: Their places.

    `A @ x` and `x @ A` take arrays of one and two axes, traced or plain, and give arrays; products with numbers, sums
    of matrices and `A.T` give matrices. `A.toarray()` and `A.data` are arrays, and `A.plain()` is SciPy's matrix.

    Memory:
        All arrays by reference. A product whose record is kept saves x where the entries are traced, and the entries
        where x is; plain ones are looked at in the reverse sweep, whether they are the same still.

    Example:
        >>> from ebbtide import grad
        >>> A = csr_array(scipy.sparse.eye_array(3, format="csr"))
        >>> grad(lambda x: np.sum((A @ x) ** 2))(np.array([1.0, 2.0, 3.0]))
        array([2., 4., 6.])
        >>> grad(lambda d: np.sum(csr_array((d, [0, 2], [0, 1, 2]), shape=(2, 3)) @ np.arange(3.0)))(np.ones(2))
        array([0., 2.])
    """

    __slots__ = ("data", "pattern")

    __array_ufunc__ = None  # so that `x @ A` comes here

    def __init__(self, data: Any, pattern: Pattern) -> None:
        self.data = data
        self.pattern = pattern

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.pattern.shape

    @property
    def ndim(self) -> int:
        """Two."""
        return 2

    @property
    def format(self) -> str:
        """SciPy's name of the format."""
        return self.pattern.format

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the entries."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return self.data.shape[0]

    @property
    def indices(self) -> Any:
        """The column of each entry of the format csr, and the row of csc."""
        return self.pattern.indices[0]

    @property
    def indptr(self) -> Any:
        """Where the rows of the format csr begin, and the columns of csc."""
        return self.pattern.indices[1]

    @property
    def T(self) -> SparseArray:  # noqa: N802 - NumPy's name
        """The transposed matrix; a view."""
        return SparseArray(self.data, self.pattern.transposed)

    def transpose(self) -> SparseArray:
        """Return the transposed matrix; a view."""
        return self.T

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<SparseArray {self.format} {self.dtype}[{rows}, {columns}] with {self.nnz} entries>"

    def plain(self) -> Any:
        """
        Return SciPy's array of the same entries.

        Raises:
            TraceError: They are traced.
        """
        if type(self.data) is TracedArray:
            raise refusal("a sparse matrix with traced entries is none of SciPy's; use it by A @ x and x @ A.")
        return self.pattern.matrix(self.data)

    def __matmul__(self, x: Any) -> Any:
        if isinstance(x, SparseArray) or scipy.sparse.issparse(x):
            x = x.plain() if isinstance(x, SparseArray) else x
            return _made(self.plain() @ x)
        x = as_operand(x)
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            raise ValueError(f"A sparse matrix of shape {self.shape} has no product with an array of shape {x.shape}.")
        return times.bind((self.data, x), {"pattern": self.pattern})

    def __rmatmul__(self, x: Any) -> Any:
        x = x if type(x) is TracedArray or scipy.sparse.issparse(x) else np.asarray(x)
        if scipy.sparse.issparse(x):
            return _made(x @ self.plain())
        return self.T @ x if x.ndim == 1 else (self.T @ x.T).T

    def dot(self, x: Any) -> Any:
        """Return `A @ x`."""
        return self @ x

    def __mul__(self, number: Any) -> SparseArray:
        if np.ndim(number):
            raise refusal("a sparse matrix times an array is not one of the same entries. Multiply A.data instead.")
        return SparseArray(self.data * number, self.pattern)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> SparseArray:
        return self * (1 / number)

    def __neg__(self) -> SparseArray:
        return SparseArray(-self.data, self.pattern)

    def __add__(self, other: Any) -> SparseArray:
        other = other if isinstance(other, SparseArray) else _made(other)
        if self.shape != other.shape:
            raise ValueError(f"Sparse matrices of the shapes {self.shape} and {other.shape} have no sum.")
        ours, theirs = self.pattern.places(), other.pattern.places()
        places = np.concatenate([ours[0], theirs[0]]), np.concatenate([ours[1], theirs[1]])
        return _converted(np.concatenate([self.data, other.data]), places, self.shape, self.format)

    def __sub__(self, other: Any) -> SparseArray:
        return self + -other

    def toarray(self) -> Any:
        """Return the matrix as an array of all its elements."""
        return self @ np.eye(self.shape[1], dtype=self.dtype)

    def tocsr(self) -> SparseArray:
        """Return the matrix in the format csr."""
        return self if self.format == "csr" else _converted(self.data, self.pattern.places(), self.shape, "csr")

    def tocsc(self) -> SparseArray:
        """Return the matrix in the format csc."""
        return self if self.format == "csc" else _converted(self.data, self.pattern.places(), self.shape, "csc")

    def tocoo(self) -> SparseArray:
        """Return the matrix in the format coo."""
        return self if self.format == "coo" else _converted(self.data, self.pattern.places(), self.shape, "coo")


def _made(matrix: Any) -> SparseArray:
    """Return one of SciPy's arrays as one of these."""
    matrix = matrix if matrix.format in ("csr", "csc", "coo") else matrix.tocsr()
    return SparseArray(matrix.data, Pattern(matrix))


def _converted(data: Any, places: tuple[Any, Any], shape: tuple[int, int], form: str) -> SparseArray:
    """Return the matrix with these entries, in the order of a format; those of the same place are added."""
    rows, columns = places
    if form == "coo":
        model = scipy.sparse.coo_array((np.zeros(len(rows), np.int8), (rows, columns)), shape=shape)
        return SparseArray(data, Pattern(model))
    order = np.lexsort((columns, rows) if form == "csr" else (rows, columns))
    rows, columns = rows[order], columns[order]
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 0)
    starts = np.flatnonzero(first)
    kept = (np.zeros(len(starts), np.int8), (rows[starts], columns[starts]))
    pattern = Pattern(getattr(scipy.sparse, f"{form}_array")(kept, shape=shape))
    if len(starts) == len(order):
        return SparseArray(data[order], pattern)
    ends = np.append(starts, len(order))
    sums = scipy.sparse.csr_array((np.ones(len(order), data.dtype), order, ends), shape=(len(starts), len(order)))
    return SparseArray(_made(sums) @ data, pattern)


def _constructor(original: Callable[..., Any]) -> Callable[..., SparseArray]:
    """Return a constructor with the arguments of one of SciPy's."""
    form = original.__name__.removesuffix("_array")

    @wraps(original, updated=())
    def construct(arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, **options: Any) -> SparseArray:
        if type(arg1) is TracedArray:
            raise refusal(
                f"{original.__name__} of a traced matrix: where it has entries must not depend on values. Write "
                f"{original.__name__}((data, (rows, columns)), shape=shape) with traced data."
            )
        if type(arg1) is original and shape is None and dtype is None and not copy:
            return _made(arg1)
        if isinstance(arg1, SparseArray):
            given = arg1
        elif not (isinstance(arg1, tuple) and type(arg1[0]) is TracedArray):
            return _made(original(arg1, shape, dtype, copy, **options))
        else:
            data, *where = arg1
            model = np.zeros(data.shape, data.dtype)
            if len(where) == 1 and form != "coo":
                given = SparseArray(data, Pattern(scipy.sparse.coo_array((model, where[0]), shape=shape)))
            else:
                given = SparseArray(data, Pattern(original((model, *where), shape, None, copy, **options)))
        given = getattr(given, f"to{form}")()
        return given if dtype is None else SparseArray(given.data.astype(dtype), given.pattern)

    construct.__doc__ = (
        f"Return a sparse matrix in the format {form}; see `SparseArray` and `scipy.sparse.{original.__name__}`.\n\n"
        "    The entries may be traced; where they are may not.\n"
    )
    return construct


csr_array = _constructor(scipy.sparse.csr_array)
csc_array = _constructor(scipy.sparse.csc_array)
coo_array = _constructor(scipy.sparse.coo_array)


@wraps(scipy.sparse.diags_array)
def diags_array(
    diagonals: Any, /, *, offsets: Any = 0, shape: Any = None, format: str | None = None, dtype: Any = None  # noqa: A002
) -> SparseArray:
    """
    Return a matrix with diagonals, which may be traced.

    Args:
        diagonals: The diagonals; a diagonal of one element is repeated where *shape* is given.
        offsets: Where they are: 0 is the main one, k > 0 the k-th above it.
        shape: Shape of the matrix; None for the smallest square one.
        format: "csr", "csc" or "coo"; None for csr.
        dtype: Dtype of the matrix; None for that of the diagonals.

    Example:
        >>> from ebbtide import grad
        >>> grad(lambda d: np.sum(diags_array([d, -d[1:]], offsets=[0, 1]) @ np.arange(3.0)))(np.ones(3))
        array([ 0.,  0., -0.])
    """
    if np.ndim(offsets) == 0:
        diagonals = diagonals if np.ndim(diagonals[0]) else [diagonals]
        offsets = [offsets]
    parts = [as_operand(part) for part in diagonals]
    if shape is None:
        size = parts[0].shape[0] + abs(int(offsets[0]))
        shape = (size, size)
    rows, columns, data = [], [], []
    for part, offset in zip(parts, map(int, offsets), strict=True):
        length = min(shape[0] + min(offset, 0), shape[1] - max(offset, 0))
        if part.shape[0] not in (1, length):
            raise ValueError(
                f"The diagonal at offset {offset} of a matrix of shape {tuple(shape)} has {length} elements, not "
                f"{part.shape[0]}."
            )
        rows.append(np.arange(length) - min(offset, 0))
        columns.append(np.arange(length) + max(offset, 0))
        data.append(np.broadcast_to(part, (length,)))
    entries = np.concatenate(data)
    entries = entries if dtype is None else entries.astype(dtype)
    return _converted(entries, (np.concatenate(rows), np.concatenate(columns)), tuple(shape), format or "csr")
