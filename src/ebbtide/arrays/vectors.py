"""Traced vectors, and the operations on vectors that need no rule of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from ebbtide.arrays.context import current_or_none
from ebbtide.arrays.location import user_line
from ebbtide.arrays.registry import HANDLERS, register
from ebbtide.arrays.spaces import SPACES, VectorKind
from ebbtide.arrays.traced import TracedArray
from ebbtide.errors import TraceError


@final
class TracedVector:
    """
    A vector of a registered type whose operations are recorded or differentiated.

    User code meets it inside a function that is differentiated, in the place of a vector. It is never changed. It goes
    into functions declared with `ebbtide.primitive`, into `ebbtide.inner` and `ebbtide.axpy`, and can be added,
    subtracted, and multiplied by numbers.

    Args:
        kind: What it is beside its numbers.
        array: Its numbers.

    Memory:
        Holds its array, as a traced array does.
    """

    __slots__ = ("__weakref__", "_array", "_kind")

    def __init__(self, kind: VectorKind, array: TracedArray) -> None:
        self._kind = kind
        self._array = array

    def __repr__(self) -> str:
        return f"TracedVector({self._kind!r})"

    def __copy__(self) -> TracedVector:
        return self

    def __deepcopy__(self, memo: Any) -> TracedVector:
        return self

    def __add__(self, other: Any) -> Any:
        return combined(np.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return combined(np.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return combined(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Any:
        return combined(np.subtract, other, self)

    def __mul__(self, other: Any) -> Any:
        return combined(np.multiply, self, other)

    def __rmul__(self, other: Any) -> Any:
        return combined(np.multiply, other, self)

    def __truediv__(self, other: Any) -> Any:
        return combined(np.true_divide, self, other)

    def __neg__(self) -> Any:
        return combined(np.multiply, self, -1.0)

    def __pos__(self) -> TracedVector:
        return self

    # What NumPy and Python ask.

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and ufunc in _OPERATORS and not kwargs:
            return combined(ufunc, *inputs)
        raise self._no_array(ufunc.__name__)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        raise self._no_array(function.__name__)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise self._no_array("np.asarray")

    def _no_array(self, name: str) -> TraceError:
        return TraceError(
            f"{name} at {user_line()} was given a traced vector of type {self._kind.space.name}, and NumPy does not "
            "know what is in it. Do it in a function declared with ebbtide.primitive, which is given the vector itself."
        )

    if not TYPE_CHECKING:  # it would hide misspelled names from the checker

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"A traced vector of type {self._kind.space.name} has no attribute {name!r}: its derivative would be "
                "lost. Use it in a function declared with ebbtide.primitive, which is given the vector itself, or look "
                "at the plain vector that ebbtide.stop_gradient returns. For second derivatives a rule of a primitive "
                "that uses it is declared so, too.",
                name=name,
                obj=self,
            )


def is_vector(value: Any) -> bool:
    """Return whether a value is a vector of a registered type, traced or not."""
    return type(value) is TracedVector or type(value) in SPACES


def lowered(value: Any) -> tuple[Any, VectorKind | None]:
    """Return the array of a vector and its kind; anything else as it is, with None."""
    if type(value) is TracedVector:
        return value._array, value._kind
    space = SPACES.get(type(value))
    return (value, None) if space is None else space.pack(value)


def operand(value: Any) -> tuple[Any, VectorKind | None]:
    """Return what `lowered` does of an operand, for a plain vector that is saved already what is saved."""
    array, kind = lowered(value)
    context = None if kind is None or type(value) is TracedVector else current_or_none()
    if context is not None and context.tape is not None:
        array = context.tape.packed.find(value, array)
    return array, kind


def vector_of(kind: VectorKind, array: Any) -> Any:
    """Return the vector of a kind with these numbers: traced if the array is, else of the user's type."""
    if type(array) is TracedArray:
        packed = getattr(array._trace, "packed", None)
        if packed is not None:  # of a tape
            packed.met = True
        return TracedVector(kind, array)
    return kind.space.unpack(np.asarray(array), kind.form)


def _operator(ufunc: np.ufunc) -> Any:
    """Return the handler of an operator of a traced array and what may be a vector."""
    return lambda x, y: combined(ufunc, x, y) if is_vector(x) or is_vector(y) else NotImplemented


_OPERATORS = frozenset({np.add, np.subtract, np.multiply, np.true_divide})
for _ufunc in _OPERATORS:
    register([(_ufunc, "vector")], _operator(_ufunc))


def combined(ufunc: np.ufunc, x: Any, y: Any) -> Any:
    """
    Return the sum or difference of two vectors, or a vector times or divided by a number.

    Raises:
        TypeError: The operands are no such pair.
    """
    (a, left), (b, right) = operand(x), operand(y)
    if left is not None and right is not None:
        kind = _of_one_space(ufunc.__name__, left, a, right, b)
        if ufunc in (np.add, np.subtract):
            return vector_of(kind, _apply(ufunc, a, b))
    elif right is not None and ufunc is np.multiply and _is_number(a):
        return vector_of(right, _cast(_apply(ufunc, a, b), b.dtype, right))
    elif left is not None and ufunc in (np.multiply, np.true_divide) and _is_number(b):
        return vector_of(left, _cast(_apply(ufunc, a, b), a.dtype, left))
    raise TypeError(
        f"{ufunc.__name__} at {user_line()} was given {_describe(x, left)} and {_describe(y, right)}. Vectors are "
        "added to vectors of their space, and multiplied or divided by numbers; declare other operations with "
        "ebbtide.primitive."
    )


def axpy(a: Any, x: Any, y: Any) -> Any:
    """
    Return a x + y as a new vector.

    Args:
        a: A number.
        x: A vector of a registered type.
        y: Another one of the same form.

    Returns:
        A vector of the type of *x*; traced if an operand is.

    Raises:
        TypeError: The operands are no number and two vectors of one space.

    Memory:
        The new vector. Saves *x* if *a* is differentiated, and *a* if *x* is.

    Source:
        Lawson, Hanson, Kincaid, Krogh, Basic Linear Algebra Subprograms (1979).
    """
    (first, left), (second, right) = operand(x), operand(y)
    if left is None or right is None or not _is_number(a):
        raise TypeError(
            f"axpy(a, x, y) at {user_line()} takes a number and two vectors of a registered type, and was given "
            f"{_describe(a, None)}, {_describe(x, left)} and {_describe(y, right)}."
        )
    kind = _of_one_space("axpy", left, first, right, second)
    scaled = _cast(_apply(np.multiply, a, first), first.dtype, kind)
    return vector_of(kind, _apply(np.add, scaled, second))


def inner(x: Any, y: Any) -> Any:
    """
    Return the inner product of two vectors: the sum over their numbers of conj(x) y.

    Args:
        x: A vector of a registered type.
        y: Another one of the same form.

    Returns:
        A number of the dtype of the vectors; traced if an operand is. For another inner product, such as that of a mass
        matrix, declare it with `ebbtide.primitive`.

    Raises:
        TypeError: The operands are no vectors of one space.

    Memory:
        Saves the operand whose partner is differentiated.
    """
    (a, left), (b, right) = operand(x), operand(y)
    if left is None or right is None:
        raise TypeError(
            f"inner(x, y) at {user_line()} takes two vectors of a registered type, and was given {_describe(x, left)} "
            f"and {_describe(y, right)}."
        )
    _of_one_space("inner", left, a, right, b)
    return _apply(np.vdot, a, b)


def _apply(function: Any, a: Any, b: Any) -> Any:
    """Call a NumPy function where one of the operands may be traced."""
    traced = type(a) is TracedArray or type(b) is TracedArray
    return HANDLERS[function](a, b) if traced else function(a, b)


def _is_number(value: Any) -> bool:
    """Return whether a value, traced or not, is a number or an array without axes."""
    return isinstance(value, (int, float, complex, np.generic)) or getattr(value, "shape", None) == ()


def _of_one_space(name: str, left: VectorKind, a: Any, right: VectorKind, b: Any) -> VectorKind:
    """Return the kind that two vectors share."""
    if left == right and a.shape == b.shape and a.dtype == b.dtype:
        return left
    raise TypeError(
        f"{name} at {user_line()} was given vectors of two spaces: {left!r} of {a.size} numbers of {a.dtype}, and "
        f"{right!r} of {b.size} numbers of {b.dtype}. Convert one of them by a function declared with "
        "ebbtide.primitive."
    )


def _cast(array: Any, dtype: np.dtype[Any], kind: VectorKind) -> Any:
    """Return a multiple of a vector in the dtype of the vector: a number does not lead out of its space."""
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "c":
        raise TypeError(
            f"A vector {kind!r} of dtype {dtype} was multiplied by a complex number at {user_line()}, and has no room "
            "for the result. Make it complex, or take np.real of the number."
        )
    return HANDLERS[np.astype](array, dtype) if type(array) is TracedArray else array.astype(dtype)


def _describe(value: Any, kind: VectorKind | None) -> str:
    if kind is not None:
        return f"a vector {kind!r}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {shape}" if shape else "")
