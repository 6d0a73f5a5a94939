"""`TracedArray`: a NumPy array whose operations are recorded or differentiated as they run."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ebbtide.arrays import misuse
from ebbtide.arrays.context import on_values, value_here
from ebbtide.arrays.keywords import with_keywords
from ebbtide.arrays.location import user_line
from ebbtide.arrays.methods import binary, comparison, method, unary
from ebbtide.arrays.outputs import into, partly
from ebbtide.arrays.registry import HANDLERS, declare_further
from ebbtide.arrays.views import Sharing, bottom, is_array, refresh, replace, root_of, same_view, write
from ebbtide.errors import TraceError


@final
class TracedArray:
    """
    A NumPy array whose operations are recorded or differentiated as they run.

    User code meets it inside a function that is differentiated and treats it as an array: NumPy
    functions, operators, indexing, views and in-place changes work. Comparisons give plain arrays.

    Args:
        trace: The trace that it belongs to.
        node: What the trace keeps with it: the node of a tape, the tangent, or all members of a batch, or None.
        value: The array, or a traced array of an outer trace; the type of a member, or of an abstract array.

    Memory:
        Holds its value; the tape does not hold it back, so that an intermediate dies with its last use
        unless a rule saves it.
    """

    __slots__ = ("__weakref__", "_node", "_sharing", "_trace", "_value")

    # Above ndarray, so that `array * traced` comes here, also for subclasses.
    __array_priority__ = 1000.0

    def __init__(self, trace: Any, node: Any, value: Any) -> None:
        self._trace = trace
        self._node = node
        self._value = value
        self._sharing: Sharing | None = None

    def sharing(self) -> Sharing:
        """Return the record of what the array shares memory with; made at the first need."""
        if self._sharing is None:
            self._sharing = Sharing()
        return self._sharing

    def present(self) -> TracedArray:
        """Return the array itself, after a view has taken the present value of its root."""
        sharing = self._sharing
        if sharing is not None and sharing.root is not None and sharing.seen != sharing.root.sharing().version:
            refresh(self, sharing)
        return self

    def frozen(self) -> TracedArray:
        """Return the array as it is now: later writes into this object do not change the result."""
        if self.present()._sharing is not None:
            self.sharing().private = root_of(self).sharing().private = False
        made = TracedArray(self._trace, self._node, self._value)
        if self._trace.level < 0:
            self._trace.share(made, self)
        return made

    # What NumPy asks.

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        handler = HANDLERS.get(ufunc)
        if method == "__call__" and handler is not None and not kwargs:
            return handler(inputs[0]) if len(inputs) == 1 else handler(*inputs)
        return self._ufunc(ufunc, method, inputs, kwargs)

    def _ufunc(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = on_values(getattr(ufunc, method), inputs, kwargs)
        if found is not NotImplemented:
            return found
        out = kwargs.pop("out", None)
        where = kwargs.pop("where", True) if method == "__call__" else True
        key: Any = ufunc if method == "__call__" else (ufunc, method)
        if key not in HANDLERS:
            declare_further()
        handler = HANDLERS.get(key)
        if handler is None and method == "at" and ufunc in HANDLERS:
            handler = partial(HANDLERS[np.ufunc, "at"], ufunc)
        if handler is None:
            raise misuse.no_rule(ufunc, user_line(), "" if method == "__call__" else f".{method}")
        if where is not True and (out is None or len(out) > 1):
            raise TraceError(
                f"{ufunc.__name__} with where= leaves elements undefined, which has no derivative. "
                f"At {user_line()} write np.where(condition, {ufunc.__name__}(...), other)."
            )
        usual = {k for k, v in kwargs.items() if (k == "casting" and v == "same_kind") or (k == "where" and v is True)}
        kwargs = {k: v for k, v in kwargs.items() if k not in usual}
        if method == "__call__" and kwargs:
            handler, kwargs = partial(with_keywords, ufunc, handler, keywords=kwargs), {}
        if where is not True:
            return partly(handler, inputs, where, out, ufunc.__name__)
        result = handler(*inputs, **kwargs)
        return result if out is None else into(out, result, ufunc.__name__, same_type=method != "__call__")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = on_values(function, args, kwargs)
        if found is not NotImplemented:
            return found
        handler = HANDLERS.get(function)
        if handler is None:
            raise misuse.no_rule(function, user_line())
        if len(types) > 1:  # before rules make plain arrays of operands
            for kind in types:
                misuse.refuse_class(kind)
        out = kwargs.pop("out", None) if "out" in kwargs else None
        result = handler(*args, **kwargs)
        return result if out is None else into(out, result, function.__name__, same_type=True)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        value = value_here(self)
        if value is None:
            raise misuse.as_array()
        return np.array(value, dtype, copy=copy)

    def _number(self) -> Any:
        value = value_here(self)
        if value is None:
            raise misuse.as_number()
        return value.item()

    __float__ = __complex__ = _number

    def item(self, *index: Any) -> Any:
        """Raise, as a Python number has no derivative."""
        raise misuse.as_item("item", f"x[{', '.join(map(str, index))}]" if index else "x, or x[0] of one element")

    def tolist(self) -> Any:
        """Raise, as Python numbers have no derivative."""
        raise misuse.as_item("tolist", "list(x)")

    def __int__(self) -> int:
        return int(bottom(self.present()))

    def __round__(self, digits: int | None = None) -> Any:
        return int(HANDLERS[np.rint](self)) if digits is None else HANDLERS[np.round](self, digits)

    def __bool__(self) -> bool:
        return bool(bottom(self.present()))

    def __format__(self, spec: str) -> str:
        return format(bottom(self.present()), spec) if spec else repr(self)

    if not TYPE_CHECKING:  # it would hide misspelled names from the checker

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(misuse.no_attribute(name), name=name, obj=self)

    def __deepcopy__(self, memo: Any) -> TracedArray:
        return self.copy()

    def __copy__(self) -> TracedArray:
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise misuse.pickled()

    # What an array knows of itself.

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self._value.shape

    @shape.setter
    def shape(self, new: Any) -> None:
        raise misuse.in_place_shape(new)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array."""
        return self._value.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._value.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._value.size

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self._value.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._value.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the present value, in bytes."""
        return bottom(self.present()).strides

    @property
    def flags(self) -> Any:
        """Memory flags of the present value."""
        return bottom(self.present()).flags

    @property
    def T(self) -> Any:  # noqa: N802 - NumPy's name
        """The transposed array, a view."""
        return HANDLERS[np.transpose](self)

    @property
    def mT(self) -> Any:  # noqa: N802 - NumPy's name
        """The array with its last two axes exchanged, a view."""
        return HANDLERS[np.swapaxes](self, -1, -2)

    @property
    def real(self) -> Any:
        """The real part."""
        return HANDLERS[np.real](self)

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return HANDLERS[np.imag](self)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag[...] = value

    @property
    def flat(self) -> Any:
        """The elements in C order, as a one-dimensional view, whatever the layout."""
        return HANDLERS[np.flatiter](self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[...] = value

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of an array without axes, at {user_line()}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError(f"iteration over an array without axes, at {user_line()}")
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self == value))

    def __repr__(self) -> str:
        return f"TracedArray({bottom(self.present())!r})"

    # As an array's: `==` compares elements.
    __hash__: Any = None

    # Indexing, views and changes in place.

    def __getitem__(self, index: Any) -> Any:
        return HANDLERS[operator.getitem](self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.present()
        if not same_view(value, self, index):
            write(self, index, value)

    def _updated(self, new: Any, ufunc: Any) -> Any:
        if not self.shape and not is_array(self):
            return new  # a NumPy scalar: `x += 1` makes a new one, other names keep the old one
        if new.shape != self.shape or new.dtype != self.dtype:
            error = misuse.in_place_type(ufunc.__name__, self, new)
            if error is not None:
                raise error
            new = HANDLERS[np.astype](new, self.dtype)
        if type(new) is not TracedArray or not self.shape:
            # Without a derivative, as of a floor; or a number, and this stays an array, which other names have, too.
            self[...] = new
            return self
        replace(self.present(), new, private=False)
        return self

    def fill(self, value: Any) -> None:
        """Set all elements to *value*."""
        self[...] = value

    def sort(self, axis: int = -1, **kwargs: Any) -> None:
        """Sort the elements in place along an axis."""
        self[...] = HANDLERS[np.sort](self, axis, **kwargs)

    def partition(self, kth: Any, axis: int = -1, **kwargs: Any) -> None:
        """Partition the elements in place along an axis."""
        self[...] = np.partition(self, kth, axis, **kwargs)

    def put(self, indices: Any, values: Any, mode: Any = "raise") -> None:
        """See `numpy.put`."""
        HANDLERS[np.put](self, indices, values, mode)

    def compress(self, condition: Any, axis: int | None = None) -> Any:
        """See `numpy.compress`."""
        return HANDLERS[np.compress](condition, self, axis)

    def copy(self, order: str = "C") -> TracedArray:
        """Return a copy, which is traced too."""
        made = HANDLERS[np.copy](self, order)
        if type(made) is TracedArray and made._sharing is not None:  # a plain array where a step runs on values
            made._sharing.is_array = is_array(self)  # the method of a number gives a number
        return made

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """Return a copy of another dtype; the cotangent comes back in this one."""
        return HANDLERS[np.astype](self, dtype, copy=copy or order != "K")

    def reshape(self, *shape: Any, order: Any = "C") -> Any:
        """Return the elements in another shape, a view where NumPy makes one."""
        return HANDLERS[np.reshape](self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes: Any) -> Any:
        """Return a view with permuted axes."""
        return HANDLERS[np.transpose](self, (axes[0] if len(axes) == 1 else axes) or None)

    def flatten(self, order: Any = "C") -> Any:
        """Return a copy of one axis."""
        return HANDLERS[np.reshape](self, -1, order=order).copy()

    def clip(self, min: Any = None, max: Any = None, **kwargs: Any) -> Any:  # noqa: A002 - NumPy's names
        """See `numpy.clip`."""
        return HANDLERS[np.clip](self, min, max, **kwargs)

    ravel = method(np.ravel)
    squeeze = method(np.squeeze)
    swapaxes = method(np.swapaxes)
    diagonal = method(np.diagonal)
    trace = method(np.trace)
    repeat = method(np.repeat)
    take = method(np.take)
    dot = method(np.dot)
    sum = method(np.sum)
    prod = method(np.prod)
    mean = method(np.mean)
    std = method(np.std)
    var = method(np.var)
    max = method(np.max)
    min = method(np.min)
    cumsum = method(np.cumsum)
    conj = conjugate = method(np.conjugate)
    round = method(np.round)
    argmax = method(np.argmax)
    argmin = method(np.argmin)
    argsort = method(np.argsort)
    any = method(np.any)
    all = method(np.all)
    nonzero = method(np.nonzero)
    cumprod = method(np.cumprod)
    choose = method(np.choose)
    argpartition = method(np.argpartition)
    searchsorted = method(np.searchsorted)

    __add__, __radd__, __iadd__ = binary(np.add)
    __sub__, __rsub__, __isub__ = binary(np.subtract)
    __mul__, __rmul__, __imul__ = binary(np.multiply)
    __truediv__, __rtruediv__, __itruediv__ = binary(np.true_divide)
    __floordiv__, __rfloordiv__, __ifloordiv__ = binary(np.floor_divide)
    __mod__, __rmod__, __imod__ = binary(np.remainder)
    __pow__, __rpow__, __ipow__ = binary(operator.pow)
    __matmul__, __rmatmul__, __imatmul__ = binary(np.matmul)
    __divmod__, __rdivmod__ = binary(np.divmod)[:2]
    __and__, __rand__ = binary(np.bitwise_and)[:2]
    __or__, __ror__ = binary(np.bitwise_or)[:2]
    __xor__, __rxor__ = binary(np.bitwise_xor)[:2]
    __lshift__, __rlshift__ = binary(np.left_shift)[:2]
    __rshift__, __rrshift__ = binary(np.right_shift)[:2]
    __lt__ = comparison(operator.lt, np.less)
    __le__ = comparison(operator.le, np.less_equal)
    __gt__ = comparison(operator.gt, np.greater)
    __ge__ = comparison(operator.ge, np.greater_equal)
    __eq__ = comparison(operator.eq, np.equal)
    __ne__ = comparison(operator.ne, np.not_equal)
    __neg__ = unary(np.negative)
    __pos__ = unary(np.positive)
    __abs__ = unary(operator.abs)
    __invert__ = unary(np.invert)
