"""Whole derivatives: Jacobians and Hessians, many rows or columns of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType, owner_of
from ebbtide.arrays.batched import BatchTrace, full
from ebbtide.arrays.containers import flatten, objects_in, output_types, unflatten
from ebbtide.arrays.context import current
from ebbtide.arrays.functions import check_function, is_whole
from ebbtide.arrays.traced import TracedArray
from ebbtide.arrays.vectors import is_vector
from ebbtide.arrays.views import bottom
from ebbtide.tape.account import account
from ebbtide.tape.recording import Recording
from ebbtide.tape.tangent import TangentTrace
from ebbtide.transforms.forward import Point, run_duals
from ebbtide.transforms.products import chosen_of
from ebbtide.transforms.reverse import argument_numbers, grad, is_one

# Without chunk_size= as many rows at once as take so much of the result, as arguments and outputs, or so many bytes.
_CHUNK_PART, _CHUNK_BYTES = 1 / 16, 1 << 20
_MODES = (None, "forward", "reverse")


def jacobian(
    f: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    mode: str | None = None,
    chunk_size: int | None = None,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """
    Return a function that computes all derivatives of all outputs of *f*.

    Args:
        f: A function of arrays and containers of arrays, with any outputs.
        argnums: Which positional arguments to differentiate; a number, or several.
        mode: "reverse", one sweep for each element of the outputs, or "forward", one run for each element of the
            arguments; None for the one with fewer. Sweeps and runs are done many at once, as with `vmap`.
        chunk_size: How many at once; None for as many as take a sixteenth of the result, or 1 MiB, as arguments and
            outputs.
        holomorphic: Promise that a function from complex to complex numbers is holomorphic, so that one complex number
            is its derivative.

    Returns:
        A function with the arguments of *f* that returns a container of the structure of the outputs; in the place of
        each there is one of the structure of the argument (a tuple of them for several), whose arrays have the shape of
        the output followed by that of the argument. Their dtype is that of the argument in reverse mode and that of the
        output in forward mode.

    Raises:
        TypeError: An input is no floating-point number, an output no array and no number; or numbers are complex: from
            complex to complex without *holomorphic*, from real to complex in reverse mode, and from complex to real in
            forward mode, there is no such array. From complex to real it is `df/dx - i df/dy`, as in `grad`.
        ValueError: *mode* or *chunk_size* is something else.

    Memory:
        The result, and what one chunk takes: in reverse mode the saved values of one run, and for each row the
        cotangents of a sweep; in forward mode for each column the tangents of a run.

    Example:
        >>> import numpy as np
        >>> jacobian(lambda x: x**2)(np.array([1.0, 2.0]))
        array([[2., 0.],
               [0., 4.]])
    """
    check_function(f, "jacobian")
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r} is none of {_MODES}.")
    if chunk_size is not None and not (is_whole(chunk_size) and chunk_size >= 1):
        raise ValueError(f"chunk_size={chunk_size!r} is no positive number of rows. Leave it out to have it chosen.")

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers(argnums, args)
        chosen = chosen_of(f, numbers, args, kwargs)
        point = [args[k] for k in numbers]
        _refuse_vectors(point, "arguments")
        found = None
        if mode != "forward":
            found = _by_rows(chosen, point, chunk_size, mode, holomorphic)
        if found is None:
            found = _by_columns(chosen, point, chunk_size, holomorphic)
        blocks, outer, inner = found
        parts = []
        while blocks:
            row, of_arguments = blocks.pop(0), []
            for structure in inner:
                of_arguments.append(unflatten(structure, row[: structure.num_leaves]))
                del row[: structure.num_leaves]
            parts.append(of_arguments[0] if is_one(argnums) else tuple(of_arguments))
        return parts[0] if outer.type is None else unflatten(outer, parts)

    return wrapped


def _by_rows(f: Any, point: list[Any], chunk: int | None, mode: str | None, holomorphic: bool) -> Any:
    """Return the blocks by reverse sweeps from one run, with the structures around; None if forward mode is better."""
    with account(None, retain=True) as acct:
        recording = Recording(f, tuple(point), {}, range(len(point)), acct)
        structure, structures = recording.structure, recording.structures
        _refuse_vectors(unflatten(structure, recording.outputs), "outputs")
        outputs = output_types(recording.outputs, structure, "jacobian")
        inputs = [leaf.type for leaf in recording.leaves]
        _check_complex(inputs, outputs, mode, holomorphic)
        rows, columns = (sum(kind.size for kind in kinds) for kinds in (outputs, inputs))
        from_real = any(k.dtype.kind == "c" for k in outputs) and all(k.dtype.kind != "c" for k in inputs)
        if mode is None and (from_real or (rows > columns and not _is_to_real(inputs, outputs))):
            return None
        roots = [node for node, _ in recording.roots()]
        blocks = []
        for node, kind in zip(roots, outputs, strict=True):
            block = _Block([ArrayType((kind.size, *other.shape), other.dtype) for other in inputs], 0)
            for start, stop in _chunks(kind.size, chunk, [kind, *inputs]):
                if node is None:
                    block.take(start, stop, [None] * len(inputs))
                    continue

                def pull(seed: Any, node: Any = node) -> list[Any]:
                    return flatten(recording.gradients([(node, seed, False)], retain=True))[0]

                block.take(start, stop, _of_members(pull, kind, start, stop))
            blocks.append(block.finish([(*kind.shape, *other.shape) for other in inputs], recording.are_arrays))
    return blocks, structure, structures


def _by_columns(f: Any, point: list[Any], chunk: int | None, holomorphic: bool) -> Any:
    """Return the blocks by forward mode along the elements of the arguments, with the structures around."""
    at = Point(point)
    inputs = at.kinds
    if not inputs:
        return _empty(f, at)
    columns: list[Any] = []
    outputs: list[ArrayType] = []
    outer: Any = None
    for place, kind in enumerate(inputs):
        block: _Block | None = None
        for start, stop in _chunks(kind.size, chunk, [kind, *(outputs or inputs)]):
            shape: list[Any] = []

            def push(seed: Any, place: int = place, shape: list[Any] = shape) -> list[Any]:
                tangents: list[Any] = [None] * len(inputs)
                tangents[place] = seed
                with account(None) as acct:
                    trace = TangentTrace(current().level + 1)
                    values, found, structure = run_duals(f, at, tangents, trace, acct, "jacobian")
                _refuse_vectors(unflatten(structure, values), "outputs")
                shape[:] = [output_types(values, structure, "jacobian"), structure]
                return found

            found = _of_members(push, kind, start, stop)
            outputs, outer = shape
            if block is None:
                _check_complex(inputs, outputs, "forward", holomorphic)
                block = _Block([ArrayType((*out.shape, kind.size), out.dtype) for out in outputs], -1)
            block.take(start, stop, found)
        if block is None:
            return _empty(f, at)
        is_array = isinstance(bottom(at.values[place]), np.ndarray)
        columns.append(block.finish([(*out.shape, *kind.shape) for out in outputs], [is_array] * len(outputs)))
    return [list(row) for row in zip(*columns, strict=True)], outer, at.structures


def _empty(f: Any, at: Point) -> Any:
    """Return the blocks of a function with arguments of no elements, by rows: there is nothing to run along."""
    return _by_rows(f, at.arguments(at.values), None, "reverse", False)


def _of_members(function: Callable[[Any], list[Any]], kind: ArrayType, start: int, stop: int) -> list[Any]:
    """Return what a function of a unit array gives for some of them at once: arrays with these on the first axis."""
    count = stop - start
    seeds = np.zeros((count, kind.size), kind.dtype)
    seeds[np.arange(count), np.arange(start, stop)] = 1
    trace = BatchTrace(0, count)
    with trace.above():
        found = function(trace.members(np.reshape(seeds, (count, *kind.shape))))
        pairs = [(None, False) if x is None else trace.split(x) for x in found]
    trace.closed = True
    return [None if x is None else full(x, is_mapped, count) for x, is_mapped in pairs]


def _chunks(size: int, chunk: int | None, kinds: list[ArrayType]) -> list[tuple[int, int]]:
    """Return where the chunks of so many rows begin and end."""
    if chunk is None:
        row = max(1, sum(kind.nbytes for kind in kinds))
        chunk = max(1, _CHUNK_BYTES // row, int(size * _CHUNK_PART))
    return [(start, min(start + chunk, size)) for start in range(0, size, chunk)]


@final
class _Block:
    """
    Arrays that are filled chunk by chunk.

    Args:
        kinds: Their types.
        axis: The axis of the rows or columns in them, the first or the last.

    Memory:
        The arrays; of one chunk for all what it brings. Where a chunk is traced the chunks, until they are joined, and
        a copy.
    """

    __slots__ = ("_axis", "_kinds", "_parts", "_size")

    def __init__(self, kinds: list[ArrayType], axis: int) -> None:
        self._kinds = kinds
        self._axis = axis
        self._size = kinds[0].shape[axis] if kinds else 0
        self._parts: list[Any] = [None] * len(kinds)

    def take(self, start: int, stop: int, found: list[Any]) -> None:
        """Take the arrays of a chunk, which has its rows or columns on the first axis; None for zeros."""
        for k, (kind, array) in enumerate(zip(self._kinds, found, strict=True)):
            found[k] = None
            part = array if array is None or self._axis == 0 else np.moveaxis(array, 0, -1)
            held = self._parts[k]
            if isinstance(held, list) or type(part) is TracedArray:
                held = held if isinstance(held, list) else [] if held is None else [held[self._place(0, start)]]
                shape = list(kind.shape)
                shape[self._axis] = stop - start
                self._parts[k] = [*held, np.zeros(shape, kind.dtype) if part is None else part]
            elif held is None and stop - start == self._size and part is not None and _is_whole(part, kind):
                self._parts[k] = part
            else:
                if held is None:
                    held = self._parts[k] = np.zeros(kind.shape, kind.dtype)
                if part is not None:
                    held[self._place(start, stop)] = part
            del array, part, held

    def _place(self, start: int, stop: int) -> Any:
        return (slice(start, stop),) if self._axis == 0 else (Ellipsis, slice(start, stop))

    def finish(self, shapes: list[tuple[int, ...]], are_arrays: list[bool]) -> list[Any]:
        """Return the arrays in the shapes of the result; of two numbers the derivative is a number."""
        made = []
        for k, (kind, shape, is_array) in enumerate(zip(self._kinds, shapes, are_arrays, strict=True)):
            held, self._parts[k] = self._parts[k], None
            if held is None:
                held = np.zeros(kind.shape, kind.dtype)
            if isinstance(held, list):
                held = held[0] if len(held) == 1 else np.concatenate(held, axis=self._axis)
                held = held.copy()  # in the order of a plain one, as products with another one round otherwise
            made.append(np.reshape(held, shape) if shape or is_array else np.reshape(held, ())[()])
        return made


def _is_whole(part: Any, kind: ArrayType) -> bool:
    """Return whether an array can be the result itself: of its type, in memory of its own."""
    own = part.flags.writeable and part.flags.c_contiguous and owner_of(part).nbytes == part.nbytes
    return own and part.dtype == kind.dtype


def _refuse_vectors(tree: Any, what: str) -> None:
    """Raise if there is a vector of a registered type, for which there is no array of derivatives."""
    if any(is_vector(leaf) for leaf in objects_in(tree)):
        raise TypeError(
            f"There are vectors of registered types in the {what} of a function whose jacobian is taken, and of one by "
            "the other there is no vector. Use vjp or jvp, or a function of arrays."
        )


def _is_to_real(inputs: list[ArrayType], outputs: list[ArrayType]) -> bool:
    """Return whether complex numbers go in and real ones come out."""
    return any(k.dtype.kind == "c" for k in inputs) and any(k.dtype.kind != "c" for k in outputs)


def _check_complex(inputs: list[ArrayType], outputs: list[ArrayType], mode: str | None, holomorphic: bool) -> None:
    """Raise if the derivatives of complex numbers are not what one array can hold."""
    into, out = ([kind.dtype.kind == "c" for kind in kinds] for kinds in (inputs, outputs))
    if any(into) and any(out) and not holomorphic:
        raise TypeError(
            "jacobian of a function from complex to complex numbers is an array of complex numbers only if the "
            "function is holomorphic: say so with holomorphic=True, or take the real and the imaginary part of its "
            "outputs."
        )
    if mode == "reverse" and any(out) and not all(into):
        raise TypeError(
            "jacobian of complex outputs with respect to real arguments needs forward mode: in reverse mode a real "
            "argument gets real parts only. Leave mode= out."
        )
    if any(into) and not all(out) and (mode == "forward" or any(out)):
        raise TypeError(
            "jacobian of real outputs with respect to complex arguments needs reverse mode: in forward mode it would "
            "be the derivative along the real axis only. Leave mode= out."
        )


def hessian(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, chunk_size: int | None = None
) -> Callable[..., Any]:
    """
    Return a function that computes all second derivatives of *f*, forward over reverse.

    Args:
        f: A function of arrays and containers of arrays with a real scalar result.
        argnums: Which positional arguments to differentiate; a number, or several.
        chunk_size: How many columns are computed at once; None as for `jacobian`.

    Returns:
        A function with the arguments of *f* that returns a container of the structure of the argument (a tuple of them
        for several), with one of that structure again in the place of each array; an array has the shapes of both.

    Raises:
        TypeError: The output is no real scalar, or an input is no real floating-point number.
        ValueError: *chunk_size* is something else.

    Memory:
        The result, and for each column of a chunk a tangent beside each value that `grad` holds.

    Example:
        >>> import numpy as np
        >>> hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 2.0]))
        array([[4., 2.],
               [2., 0.]])
    """
    check_function(f, "hessian")
    both = jacobian(grad(f, argnums), argnums, "forward", chunk_size)

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for k in argument_numbers(argnums, args):
            if any(getattr(x, "dtype", np.dtype(type(x))).kind == "c" for x in flatten(args[k])[0]):
                raise TypeError(
                    f"Argument {k} of a hessian is complex. Its gradient, in the convention of grad, is no holomorphic "
                    "function of it: take the real and the imaginary part as arguments, or use hvp."
                )
        return both(*args, **kwargs)

    return wrapped
