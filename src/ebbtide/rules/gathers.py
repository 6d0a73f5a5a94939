"""
Rules of indices that are traced: the members of a batch have each their own, a program is given them when it runs.

Their values are not known here, so they are operands, of which no derivative is taken. Any index is brought to one
form: arrays of numbers for the first axes of an array, with views before and after.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.batched import aligned, all_full, full, ndim_of, widened
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, plain
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.views import bottom, linked
from ebbtide.rules.answers import refusal

# A gather, the addition to places that undoes it, and the writing into places, for each number of index arrays.
_COUNTS = range(1, 18)
# What NumPy goes through at a time, of index arrays that have to be repeated to have one shape.
_AT_A_TIME = 8192


def _gather_type(kind: ArrayType, *indices: ArrayType) -> ArrayType:
    return ArrayType((*_shape_of(indices), *kind.shape[len(indices) :]), kind.dtype)


def _shape_of(indices: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(*[np.shape(index) for index in indices])


def _repeated_nbytes(count: int, kinds: Any) -> int:
    """Return the bytes in which NumPy repeats the index arrays, the last *count* operands, where they need that."""
    indices = kinds[-count:]
    size = int(np.prod(shape := _shape_of(indices)))
    return min(size, _AT_A_TIME) * np.intp().itemsize * count if any(one.shape != shape for one in indices) else 0


def _add_at(g: Any, *indices: Any, whole: ArrayType) -> Any:
    target = np.zeros(whole.shape, whole.dtype)
    np.add.at(target, indices, g)
    return target


def _put(base: Any, value: Any, *indices: Any) -> Any:
    target = np.array(base, order="K")
    target[indices] = value
    return target


def _of_members(indices: Any, mapped: Any, size: int) -> tuple[Any, ...]:
    """Return index arrays with one in front that says which member they belong to."""
    ndim = max([ndim_of(index, m) for index, m in zip(indices, mapped, strict=True)])
    return (np.arange(size).reshape((size, *(1,) * ndim)), *aligned(indices, mapped))


def _gather_of(count: int) -> Primitive:
    """Return the operation x[indices] with so many index arrays."""

    def pull(g: Any, kind: ArrayType, params: Any, *indices: Any) -> Any:
        return matched(_ADDED[count].bind((g, *indices), {"whole": kind}), kind)

    def batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
        if not mapped[0]:
            return made.bind((values[0], *aligned(values[1:], mapped[1:])))
        return _GATHERS[count + 1].bind((values[0], *_of_members(values[1:], mapped[1:], size)))

    needs = tuple([f"operand{k}" for k in range(1, count + 1)])
    made = Primitive(
        lambda x, *indices: x[indices],
        name="gather",
        operands=None,
        pull=lambda k: None if k else Pull(pull, needs, FRESH, temporaries=1),
        push=lambda tangents, values, out, params, kept: made.bind((tangents[0], *values[1:])),
        infer=_gather_type,
        batch=batch,
        scratch=lambda params, *kinds: _repeated_nbytes(count, kinds),
    )
    return made


def _added_of(count: int) -> Primitive:
    """Return the operation that adds an array to places of zeros."""

    def batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
        whole = params["whole"]
        operands = (full(values[0], mapped[0], size), *_of_members(values[1:], mapped[1:], size))
        return _ADDED[count + 1].bind(operands, {"whole": ArrayType((size, *whole.shape), whole.dtype)})

    needs = tuple([f"operand{k}" for k in range(1, count + 1)])
    back = Pull(lambda g, kind, params, *indices: matched(_GATHERS[count].bind((g, *indices)), kind), needs, FRESH)
    made = Primitive(
        _add_at,
        name="add_at",
        operands=None,
        pull=lambda k: None if k else back,
        push=lambda tangents, values, out, params, kept: made.bind((tangents[0], *values[1:]), params),
        infer=lambda kind, *indices, whole: whole,
        batch=batch,
        scratch=lambda params, *kinds: _repeated_nbytes(count, kinds),
    )
    return made


def _put_of(count: int) -> Primitive:
    """Return the operation that writes into places; the value has the shape of what is read there, or none."""

    def of_base(g: Any, kind: ArrayType, params: Any, *indices: Any) -> Any:
        return made.bind((g, kind.dtype.type(0), *indices))

    def of_value(g: Any, kind: ArrayType, params: Any, *indices: Any) -> Any:
        taken = _GATHERS[count].bind((g, *indices))
        # Of several values for one place the last one stays, and has the cotangent.
        shape = _shape_of(indices)
        order = np.arange(int(np.prod(shape))).reshape(shape)
        last = made.bind((np.full(g.shape[:count], -1), order, *indices))
        won = np.equal(_GATHERS[count].bind((last, *indices)), order)
        won = np.reshape(won, (*shape, *(1,) * (taken.ndim - len(shape))))
        taken = np.where(won, taken, type_of(g).dtype.type(0))
        return matched(taken if kind.shape == taken.shape else np.sum(taken), kind)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        kind = type_of(out)
        base, value = tangents[:2]
        base = np.zeros(kind.shape, kind.dtype) if base is None else base
        return matched(made.bind((base, kind.dtype.type(0) if value is None else value, *values[2:])), kind)

    def batch(values: Any, mapped: Any, params: Any, size: int) -> Any:
        indices = _of_members(values[2:], mapped[2:], size)
        base, value = all_full(values[:2], mapped[:2], size)
        ndim = max(np.ndim(index) for index in indices) - 1 + base.ndim - 1 - count
        return _PUTS[count + 1].bind((base, widened(value, ndim), *indices))

    needs = tuple([f"operand{k}" for k in range(2, count + 2)])
    pulls = (Pull(of_base, needs, FRESH, temporaries=1), Pull(of_value, needs, FRESH, temporaries=3))
    made = Primitive(
        _put,
        name="put",
        operands=None,
        pull=lambda k: pulls[k] if k < 2 else None,
        push=push,
        infer=lambda base, value, *indices: base,
        batch=batch,
        scratch=lambda params, *kinds: _repeated_nbytes(count, kinds),
    )
    return made


_GATHERS: tuple[Any, ...] = (None, *[_gather_of(count) for count in _COUNTS])
_ADDED: tuple[Any, ...] = (None, *[_added_of(count) for count in _COUNTS])
_PUTS: tuple[Any, ...] = (None, *[_put_of(count) for count in _COUNTS])


def added_along(g: Any, indices: Any, kind: ArrayType) -> Any:
    """Return zeros of the shape of a type, to which *g* is added at the places *indices* along the last axis."""
    grids = [np.arange(n).reshape((-1,) + (1,) * (kind.ndim - k - 1)) for k, n in enumerate(kind.shape[:-1])]
    whole = ArrayType(kind.shape, type_of(g).dtype)
    return _ADDED[kind.ndim].bind((g, *grids, plain(indices)), {"whole": whole})
def added(value: Any, indices: Any, whole: ArrayType) -> Any:
    """
    Return zeros of a type after *value* has been added to places on the first axis, all of those for one place.

    Args:
        value: What is added; of the shape of the indices.
        indices: Numbers of the places, traced or not.
        whole: The type of the result, of one axis.
    """
    return matched(_ADDED[1].bind((value, indices), {"whole": ArrayType(whole.shape, type_of(value).dtype)}), whole)


@final
class _Places:
    """
    A full index in one form: a basic index, then index arrays for some of the axes.

    Args:
        x: The array that is indexed.
        index: The parts of the index: numbers, slices, None, Ellipsis, arrays, and traced arrays of numbers.
    """

    __slots__ = ("basic", "first", "indices", "order")

    def __init__(self, x: Any, index: tuple[Any, ...]) -> None:
        parts = _whole(index, x.ndim)
        chosen = [k for k, part in enumerate(parts) if not isinstance(part, (slice, type(None)))]
        self.basic = tuple([slice(None) if k in chosen else part for k, part in enumerate(parts)])
        self.indices = tuple([plain(parts[k]) for k in chosen])
        rest = [k for k in range(len(parts)) if k not in chosen]
        self.order = (*chosen, *rest)
        # Where the axes of the indices go: to the place of the first, or to the front if there are others between.
        together = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
        self.first = chosen[0] if together else 0

    def bring(self, x: Any) -> Any:
        """Return a view of which the first axes are those with index arrays."""
        viewed = x if all(part == slice(None) for part in self.basic) else x[self.basic]
        order = (*self.order, *range(len(self.order), viewed.ndim))
        return viewed if order == tuple(range(viewed.ndim)) else np.transpose(viewed, order)

    def _moved(self, ndim: int) -> tuple[int, ...]:
        """Return where so many axes of the indices are in what is read."""
        return tuple(range(self.first, self.first + ndim))

    def read(self, x: Any) -> Any:
        """Return the elements."""
        found = _GATHERS[len(self.indices)].bind((self.bring(x), *self.indices))
        ndim = len(_shape_of(self.indices))
        return np.moveaxis(found, tuple(range(ndim)), self._moved(ndim)) if self.first and ndim else found

    def write(self, x: Any, value: Any) -> Any:
        """Return what the elements of the basic index are after a value has been written into some of them."""
        viewed = self.bring(x)
        count, shape = len(self.indices), _shape_of(self.indices)
        rest = list(viewed.shape[count:])
        wanted = (*rest[: self.first], *shape, *rest[self.first :])
        while np.ndim(value) > len(wanted) and np.shape(value)[0] == 1:
            value = value[0]
        value = np.moveaxis(np.broadcast_to(value, wanted), self._moved(len(shape)), tuple(range(len(shape))))
        after = _PUTS[count].bind((viewed, value, *self.indices))
        order = (*self.order, *range(len(self.order), viewed.ndim))
        return np.transpose(after, tuple([order.index(k) for k in range(len(order))]))


def _whole(index: tuple[Any, ...], ndim: int) -> list[Any]:
    """Return an index with slices in place of the Ellipsis, and numbers in place of masks, which are not traced."""
    parts: list[Any] = []
    for part in index:
        is_mask = isinstance(part, np.ndarray) and part.dtype == np.bool_
        parts += list(np.nonzero(part)) if is_mask and part.ndim else [part]
    missing = ndim - sum(part is not None and part is not Ellipsis for part in parts)
    places = [k for k, part in enumerate(parts) if part is Ellipsis]
    if places:
        parts[places[0] : places[0] + 1] = [slice(None)] * missing
    return parts


@final
class _Row:
    """What a traced number picks is a view, as in NumPy: a step of its path, which reads and writes by one index."""

    __slots__ = ()

    name = "gather"

    def bind(self, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Read."""
        return _Places(operands[0], params["index"]).read(operands[0])

    def put(self, base: Any, params: dict[str, Any], view: Any) -> Any:
        """Return the base with the view written back."""
        return write_places(base, params["index"], view)


_ROW = _Row()


def is_traced(index: tuple[Any, ...]) -> bool:
    """Return whether there are traced arrays in an index."""
    return any(type(part) is TracedArray for part in index)


def read_places(x: Any, index: tuple[Any, ...]) -> Any:
    """
    Return x[index] for an index with traced arrays of numbers.

    Raises:
        TraceError: There is a traced mask in it.
    """
    _refuse_masks(index)
    made = _Places(x, index).read(x)
    is_row = all(isinstance(part, (int, np.integer, slice, type(None), type(Ellipsis))) or np.shape(part) == ()
                 for part in index)  # fmt: skip
    # One element is a number, and no view.
    is_row = is_row and (made.shape != () or any(part is Ellipsis for part in index))
    if is_row and type(x) is TracedArray and type(made) is TracedArray and isinstance(bottom(made), ArrayType):
        return linked(made, x, _ROW, {"index": index}, gathered=True)
    return made


def write_places(x: Any, index: tuple[Any, ...], value: Any) -> Any:
    """
    Return the array that x is after x[index] = value, for an index with traced arrays.

    Raises:
        TraceError: There is a traced mask in it beside other parts, or with a value for each element that it chooses.
    """
    if len(index) == 1 and type(index[0]) is TracedArray and index[0].dtype == np.bool_:
        mask = index[0]
        rest = x.ndim - mask.ndim
        if rest >= np.ndim(value) and mask.shape == x.shape[: mask.ndim]:
            return np.astype(np.where(np.reshape(mask, (*mask.shape, *(1,) * rest)), value, x), x.dtype)
    _refuse_masks(index)
    places = _Places(x, index)
    after = places.write(x, value)
    if all(part == slice(None) for part in places.basic):
        return after
    copy = np.copy(x)
    copy[places.basic] = after
    return copy


def _refuse_masks(index: tuple[Any, ...]) -> None:
    if any(type(part) is TracedArray and part.dtype == np.bool_ for part in index):
        raise refusal(
            "How many elements a traced mask chooses is not known here. Write np.where(mask, x, other) in place of "
            "x[mask], and np.where(mask, value, x) for x after x[mask] = value."
        )
