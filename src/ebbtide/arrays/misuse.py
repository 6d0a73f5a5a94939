"""What to write instead of what NumPy's protocols cannot see: the errors for a traced array taken for a plain one."""

from __future__ import annotations

import sys
from inspect import signature
from typing import Any

import numpy as np

from ebbtide.arrays.location import user_line
from ebbtide.arrays.registry import HANDLERS
from ebbtide.errors import RuleMissingError, TraceError

_STORE = "to write traced values into an array, make it with np.zeros_like(x) or np.zeros(shape, like=x)"
_SPARSE = "A = ebbtide.scipy.sparse.csr_array(A), whose products with traced arrays have derivatives"


def no_rule(function: Any, place: str, method: str = "") -> RuleMissingError:
    """
    Return the error for a function without a rule, which has the lines that declare one.

    Args:
        function: A ufunc or a function of NumPy's.
        place: The user's line.
        method: The method of the ufunc that was called, with its dot.
    """
    name = f"{function.__name__}{method}"
    if isinstance(function, np.ufunc):
        module = "numpy" if getattr(np, function.__name__, None) is function else "scipy.special"
        shown, names = name, list("xyzuvw"[: 1 if method else function.nin])
    else:
        module = function.__module__
        names = [n for n, p in signature(function).parameters.items() if p.default is p.empty]
        shown = f"{module}.{name}"
    operands = ", ".join(names)
    rules = [f"pull_{n}" for n in names]
    return RuleMissingError(
        f"There is no derivative rule for {shown}, called at {place}. Write it with operations that have one, or "
        f"declare it with ebbtide.primitive, where {rules[0]}(g, {operands}) is g times the derivative by "
        f"{names[0]}, or None; ebbtide.testing.check_rule tests it:\n"
        f"    import {module}\n"
        f"    {function.__name__} = ebbtide.primitive(lambda {operands}: {module}.{name}({operands}), "
        f"vjp=({', '.join(rules)},))"
    )


def refuse_class(kind: type, what: str = "") -> None:
    """
    Do nothing for types that compute as plain arrays do: all but masked arrays and matrices.

    Args:
        kind: The type of an array, or of anything else.
        what: What cannot be done with it, for the message; empty for an operand.

    Raises:
        TraceError: It is one of these two, and the derivative would be that of a plain array.
    """
    if kind is np.ndarray or not issubclass(kind, np.ndarray):
        return
    what = what or f"Cannot combine a traced array with this operand at {user_line()}"
    # NumPy leaves the import, of 6 ms and 1 MB, to whoever has masked arrays: before it there are none.
    if "numpy.ma" in sys.modules and issubclass(kind, np.ma.MaskedArray):
        raise TraceError(
            f"{what}: it is a masked array, whose mask would be lost, so that masked elements would count. Write "
            "x.filled(0.0), or another number, and leave them out by np.where(mask, 0.0, y) with the plain array "
            "mask = np.ma.getmaskarray(x)."
        )
    if issubclass(kind, np.matrix):
        raise TraceError(
            f"{what}: it is a np.matrix, whose `*` is a product of matrices, and that of the arrays that "
            "derivatives are taken of is elementwise. Write np.asarray(x), and `@` for products of matrices."
        )


def refuse_objects(value: Any, what: str) -> None:
    """
    Do nothing for all but arrays of Python's objects.

    Args:
        value: Anything; what has a dtype is an array.
        what: What it is, for the message.

    Raises:
        TraceError: It is one.
    """
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.hasobject:
        raise TraceError(
            f"{what} is an array of the type {dtype} at {user_line()}, and derivatives and programs are those of "
            "arrays of numbers. Write x.astype(float) of the array that has Python's objects, or give what is in it as "
            "a list."
        )


def no_operand(operand: Any, *, known: bool) -> TraceError:
    """Return the error for an operand that is no array; one of a type that is *known* is a vector of a user's own."""
    instead = "Declare what you do with ebbtide.primitive." if known else "Convert it to a NumPy array first."
    if type(operand).__module__.startswith("scipy.sparse"):
        instead = f"Convert it to a NumPy array first, or write {_SPARSE}."
    kind = type(operand).__name__
    return TraceError(f"An unsupported operand: cannot combine a traced array with a {kind}. {instead}")


def as_array() -> TraceError:
    """Return the error for a traced array that has to become a plain one, as `np.array([x, y])` makes it."""
    if "/scipy/sparse/" in sys._getframe(2).f_code.co_filename:
        return TraceError(
            f"A sparse matrix of SciPy takes no traced array (at {user_line()}): its derivative would be lost. Write "
            f"{_SPARSE}, and solvers of ebbtide.scipy.sparse.linalg."
        )
    return TraceError(
        f"A traced array cannot become a plain one (at {user_line()}): its derivative would be lost. "
        "For np.array([x, y]), np.asarray, np.full, np.arange and np.r_ write ebbtide.numpy.array([x, y]), and so on; "
        f"for table[x] make the table an argument of the function; {_STORE}; for a function that takes plain arrays "
        "only declare a rule with ebbtide.primitive(fun, vjp=...); for a masked array beside it write its "
        "filled(0.0); for a plain copy that is constant to the derivative write ebbtide.stop_gradient(x)."
    )


def as_number() -> TraceError:
    """Return the error for a traced array that has to become a Python number, as `float(x)` and `math.sin(x)` do."""
    return TraceError(
        f"A traced array cannot become a Python number (at {user_line()}): its derivative would be lost. For "
        f"math.sin(x) write np.sin(x), and so for all functions of math; {_STORE}; for a number that is constant to "
        "the derivative write float(ebbtide.stop_gradient(x))."
    )


def as_item(name: str, instead: str) -> TraceError:
    """Return the error for `x.item()` and `x.tolist()`, which give Python numbers."""
    return TraceError(
        f"x.{name}() of a traced array (at {user_line()}) would lose its derivative. Write {instead}; for what is "
        f"constant to the derivative write ebbtide.stop_gradient(x).{name}()."
    )


def pickled() -> TraceError:
    """Return the error for a traced array that is pickled, as a copy of it would belong to no trace."""
    return TraceError(
        f"A traced array cannot be pickled (at {user_line()}): what is made of it again would be a constant, and its "
        "derivative lost. For a copy write x.copy(); to store its values pickle ebbtide.stop_gradient(x)."
    )


def no_attribute(name: str) -> str:
    """Return the text for an attribute that a traced array lacks; with advice if a NumPy array has it."""
    lacks = f"'TracedArray' object has no attribute {name!r}"
    if name.startswith("__") or not hasattr(np.ndarray, name):
        return lacks
    function = getattr(np, name, None)
    instead = f"np.{name}(x), or " if callable(function) and function in HANDLERS else ""
    return (
        f"{lacks} (at {user_line()}): a derivative would not come through. Write it with {instead}functions of NumPy "
        f"and indexing, or use ebbtide.stop_gradient(x).{name} of a plain copy that is constant to the derivative."
    )


def into_plain(name: str) -> TraceError:
    """Return the error for a traced result that has to go into a plain array."""
    return TraceError(
        f"{name} at {user_line()} cannot write a traced result into a plain array, whose derivative would be lost: "
        "drop out= (or the in-place operator), or make the target with np.zeros_like(x)."
    )


def in_place_shape(new: Any) -> TraceError:
    """Return the error for `x.shape = new`."""
    return TraceError(f"The shape of a traced array cannot be set (at {user_line()}): write x = x.reshape({new}).")


def output_type(name: str, target: Any, result: Any, *, same_type: bool, whole: bool = True) -> Exception | None:
    """Return the error for a result that does not fit into what was given as `out=`, or None."""
    if whole and target.shape != result.shape:
        fits = not same_type and len(target.shape) >= len(result.shape)
        pairs = zip(result.shape[::-1], target.shape[::-1], strict=False)
        if not fits or any(n not in (1, m) for n, m in pairs):
            return ValueError(
                f"{name} at {user_line()} cannot write a result of shape {result.shape} into out= of shape "
                f"{target.shape}."
            )
    if target.dtype != result.dtype and (same_type or not np.can_cast(result.dtype, target.dtype, "same_kind")):
        return TypeError(
            f"{name} at {user_line()} cannot write a result of {result.dtype} into out= of {target.dtype}. Make it "
            f"with np.zeros_like(x, dtype=np.{result.dtype})."
        )
    return None


def in_place_type(name: str, before: Any, after: Any) -> Exception | None:
    """Return the error for an operation in place that would change the shape or kind of dtype of its target."""
    if after.shape != before.shape:
        return ValueError(
            f"{name} in place at {user_line()} cannot change the shape {before.shape} to {after.shape}. Write "
            "x = x + y, or the like, for a new array."
        )
    if not np.can_cast(after.dtype, before.dtype, "same_kind"):
        return TypeError(
            f"{name} in place at {user_line()} cannot turn {before.dtype} into {after.dtype}. Write x = x + y, or "
            "the like, for a new array."
        )
    return None
