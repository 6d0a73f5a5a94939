"""What the ranks of a group state of the operations; each check is run by on_ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from group import Group, refused
from mpi4py import MPI
from tests.scale import FULL

import ebbtide as eb
from ebbtide import mpi
from ebbtide.arrays.array_type import ArrayType
from ebbtide.mpi import collectives
from ebbtide.schedules import Revolve

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def linear_operations(group: Group) -> Iterator[tuple[str, Callable[[Any], Any], tuple[int, ...]]]:
    """Yield all linear operations, with the shape of their operand on this rank; some ranks have empty ones."""
    comm, rank, size, up, down = group.comm, group.rank, group.size, group.up, group.down
    last = size - 1
    yield "allreduce", lambda x: mpi.allreduce(x, comm), (3, 2)
    yield "allreduce number", lambda x: mpi.allreduce(x, comm), ()
    yield "allreduce nothing", lambda x: mpi.allreduce(x, comm), (0, 2)
    yield "reduce", lambda x: mpi.reduce(x, comm, root=last), (3,)
    yield "bcast", lambda x: mpi.bcast(x, comm, root=last), (2, rank)
    yield "gather", lambda x: mpi.gather(x, comm, root=last), (rank, 2)
    yield "gather number", lambda x: mpi.gather(x, comm), ()
    yield "allgather", lambda x: mpi.allgather(x, comm), (size - 1 - rank, 2)
    yield "scatter", lambda x: mpi.scatter(x, comm, root=last), (2 * size + 1, 2) if last == rank else (0,)
    counts = [2 * (other == 0) for other in range(size)]
    mine = None if rank else counts
    yield "scatter to one", lambda x: mpi.scatter(x, comm, counts=mine), (1,) if rank else (2,)
    yield "alltoall", lambda x: mpi.alltoall(x, comm), (rank + 2, 3)
    yield "alltoall to one", lambda x: mpi.alltoall(x, comm, [rank] + [0] * (size - 1)), (rank,)
    yield "ring", lambda x: mpi.sendrecv(x, comm, up, down), (rank + 1,)
    ends = (MPI.PROC_NULL if last == rank else rank + 1), (rank - 1 if rank else MPI.PROC_NULL)
    yield "line", lambda x: mpi.sendrecv(x, comm, *ends), (2, 2)
    if size > 1:
        yield "send and recv", partial(_sent, group), (3,)
    for name, grid, width, axes, shape in grids(group):
        yield name, lambda x, c=grid, w=width, a=axes: mpi.halo_exchange(x, c, w, a), shape
        longer = tuple(4 + length for length in shape)
        yield f"{name}, in place", lambda x, c=grid, w=width, a=axes: mpi.halo_update(1.0 * x, c, w, a), longer


def _sent(group: Group, x: Any) -> Any:
    """Send from each even rank to the next one, which sends something back."""
    other = group.rank ^ 1
    if other >= group.size:
        return x
    if group.rank % 2 == 0:
        mpi.send(2 * x, group.comm, other, tag=3)
        return x + mpi.recv(group.comm, other)
    got = mpi.recv(group.comm, other, tag=3)
    mpi.send(got[::-1] - x, group.comm, other)
    return 3 * x


def grids(group: Group) -> Iterator[tuple[str, Any, Any, Any, tuple[int, ...]]]:
    """Yield grids of the ranks with layers, axes, and the shape of a part."""
    dims = MPI.Compute_dims(group.size, 2)
    for periods in ((False, False), (True, True), (True, False)):
        comm = group.comm.Create_cart(dims, periods)
        x, y = comm.coords
        yield f"halo {periods}", comm, 1, None, (3 + x, 2 + y)
        yield f"halo of two {periods}", comm, (2, 1), (2, 0), (2 + y, 2, 3 + x)
    line = group.comm.Create_cart([group.size])
    yield "line of parts", line, 1, (1,), (2, 3)
    yield "line of empty parts", line, 1, (1,), (0, 3)
    yield "no layers", line, 0, (0,), (group.rank, 2)


def check_linear(group: Group) -> None:
    """Each operation is linear, with its transpose as vjp and itself as jvp, in all precisions."""
    for number, (name, f, shape) in enumerate(linear_operations(group)):
        # In the gate one of them, on each number of ranks another one.
        for dtype in DTYPES if FULL else [DTYPES[(number + group.size) % 4]]:
            x, v = group.random(shape, dtype, 1), group.random(shape, dtype, 2)
            tolerance = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-12
            y, pull = eb.vjp(lambda x, f=f: _array(f(x)), x)
            value, tangent = eb.jvp(lambda x, f=f: _array(f(x)), (x,), (v,))
            w = group.random(y.shape, y.dtype, 3)
            (found,) = pull(w)
            assert found.dtype == x.dtype, (name, dtype, found.dtype)
            assert found.shape == x.shape, (name, dtype, found.shape)
            np.testing.assert_array_equal(value, y, err_msg=name)
            np.testing.assert_array_equal(tangent, _array(f(v)), err_msg=name)
            one, other = group.inner(w, tangent), group.inner(found, v)
            assert abs(one - other) <= tolerance * (1 + abs(one)), (name, dtype, one, other)


def _array(result: Any) -> Any:
    return np.zeros(0) if result is None else result


def check_transposes(group: Group) -> None:
    """The transpose of the transpose of an exchange is the exchange, and takes what the other one gives."""
    comm, size = group.comm, group.size
    kind, other = ArrayType((size, 2), np.dtype(float)), ArrayType((1, 2), np.dtype(float))
    ones = (1,) * size
    exchanges = (
        collectives.Sum(comm, kind, kind), collectives.Total(comm, kind, kind), collectives.Copies(comm, kind, kind),
        collectives.Broadcast(comm, other, kind, 0), collectives.Reduction(comm, kind, other, 0),
        collectives.Gathering(comm, other, kind, 0, ones), collectives.Scattering(comm, kind, other, 0, ones),
        collectives.GatheringForAll(comm, other, kind, ones), collectives.PartOfSum(comm, kind, other, ones),
        collectives.Transposition(comm, kind, kind, ones, ones),
    )  # fmt: skip
    for one in exchanges:
        back = one.transposed
        assert (back.taken, back.given) == (one.given, one.taken)
        assert back.transposed == one


def check_second_order(group: Group) -> None:
    """The Hessian of a function that communicates is symmetric, and its product what finite differences say."""
    for name, f, shape in linear_operations(group):
        for active in (True, group.rank % 2 == 0):

            def functional(x: Any, f: Any = f, active: bool = active) -> Any:
                result = f(np.sin(x) if active else np.cos(np.zeros(np.shape(x))))
                return mpi.total(np.sum(_array(result) ** 3), group.comm) + 0.0 * np.sum(x)

            x, v, w = (group.random(shape, np.float64, seed) for seed in (4, 5, 6))
            product = eb.hvp(functional)(x, v)
            one, other = group.inner(w, product), group.inner(v, eb.hvp(functional)(x, w))
            assert abs(one - other) <= 1e-9 * (1 + abs(one)), (name, one, other)
            h = 1e-5
            ahead, back = eb.grad(functional)(x + h * v), eb.grad(functional)(x - h * v)
            np.testing.assert_allclose(product, (ahead - back) / (2 * h), rtol=1e-4, atol=1e-6, err_msg=name)
            slope = (functional(x + h * v) - functional(x - h * v)) / (2 * h)
            assert np.isclose(group.inner(eb.grad(functional)(x), v).real, slope, rtol=1e-6, atol=1e-7), name


def check_extremes(group: Group) -> None:
    """Of an extreme the rank that has it gets the cotangent, and ranks that share it get equal parts."""
    x = np.array([float(group.rank), 1.0, -float(group.rank)])
    for op, owners in (("max", (group.size - 1, None, 0)), ("min", (0, None, group.size - 1))):
        value, pull = eb.vjp(lambda x, op=op: mpi.allreduce(x, group.comm, op), x)
        everyone = group.rows(x)
        np.testing.assert_array_equal(value, everyone.max(0) if op == "max" else everyone.min(0))
        (found,) = pull(np.ones(3))
        expected = [group.size * (1 / group.size if owner is None else float(owner == group.rank)) for owner in owners]
        np.testing.assert_allclose(found, expected, rtol=1e-15)
        v = group.random((3,), np.float64, 1)
        _, tangent = eb.jvp(lambda x, op=op: mpi.allreduce(x, group.comm, op), (x,), (v,))
        w = group.random((3,), np.float64, 2)
        assert np.isclose(group.inner(w, tangent), group.inner(pull_of(group, op, x)(w), v))
        got = mpi.reduce(x, group.comm, root=group.size - 1, op=op)
        assert (got is None) == (group.rank != group.size - 1)
    with refused(TypeError, "complex"):
        mpi.allreduce(x + 1j, group.comm, "max")


def pull_of(group: Group, op: str, x: np.ndarray) -> Callable[[Any], Any]:
    """Return the pullback of an extreme."""
    _, pull = eb.vjp(lambda x: mpi.allreduce(x, group.comm, op), x)
    return lambda w: pull(w)[0]


def check_operands(group: Group) -> None:
    """Numbers in any byte order, lists and booleans are exchanged; what is no number, or has a mask, is refused."""
    comm, size, line = group.comm, group.size, group.comm.Create_cart([group.size], [True])
    x = np.array([1.0, 2.0, 3.0]) + group.rank
    everyone = group.rows(x)
    swapped, last = x.astype(">f8"), size - 1
    for found, expected in (
        (mpi.allreduce(swapped, comm), everyone.sum(0)),
        (mpi.allreduce(swapped, comm, "max"), everyone.max(0)),
        (mpi.bcast(swapped if group.rank == last else None, comm, last), everyone[last]),
        (mpi.sendrecv(swapped, comm, group.up, group.down), everyone[group.down]),
        (mpi.allgather(swapped, comm), everyone.ravel()),
        (mpi.halo_exchange(swapped, line, np.int64(1))[0], everyone[group.down, 2]),
        (mpi.halo_update(np.array(swapped), line)[0], everyone[group.down, 1]),
        (mpi.allreduce(x.tolist(), comm), everyone.sum(0)),
        (mpi.allreduce(x > size, comm, "max"), np.any(everyone > size, 0)),
        (mpi.allreduce(x > size, comm, "min"), np.all(everyone > size, 0)),
        (mpi.scatter(3.0, comm), [3.0][group.rank :]),
        (eb.grad(lambda x: np.sum(mpi.allreduce(x, comm) ** 2))(swapped), 2 * size * everyone.sum(0)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-15)
    with refused(eb.EbbtideError, "mask would be lost"):
        mpi.allreduce(np.ma.masked_array(x, x > 1), comm)
    with refused(TypeError, "A sum of booleans"):
        mpi.total(x > 1, comm)
    for no_numbers in ("text", np.array(["2020-01-01"], "M8[D]")):
        with refused(TypeError, "Ebbtide sends numbers"):
            mpi.bcast(no_numbers, comm)


def check_integers(group: Group) -> None:
    """Integers that are exchanged are plain ones, in functions that are differentiated and run again, too."""
    comm, rank, size = group.comm, group.rank, group.size
    x = group.random((3,), np.float64, 9)

    def numbers(x: Any) -> list[Any]:
        mine = np.array([rank + 1, 2])
        return [
            mpi.allreduce(x.size, comm) // size, mpi.total(mine, comm)[1] // size + 1,
            mpi.allreduce(mine, comm, "min")[0] + 2, mpi.bcast(3 if rank == 0 else x, comm),
            mpi.allgather(mine, comm)[1] + 1, mpi.alltoall(np.full(size, 3), comm)[0],
            mpi.scatter([3] * size if rank == 0 else None, comm)[0],
        ]  # fmt: skip

    def inner(x: Any, i: int = 0) -> Any:
        for count in numbers(x):
            for _ in range(count):  # each is 3
                x = x + 0.1 * np.sin(x) / np.ones(count)
        return x

    def once(x: Any) -> Any:
        for _ in range(21):
            x = x + 0.1 * np.sin(x)
        return x

    looped = lambda x: eb.timeloop(inner, x, 2, schedule=Revolve(1))
    for f, times in ((inner, 1), (eb.checkpoint(inner), 1), (looped, 2)):
        for active in (True, rank == 0):

            def whole(x: Any, f: Any = f, active: bool = active) -> Any:
                return np.sum(f(x if active else np.ones(3))) + np.sum(x)

            def plain(x: Any, times: int = times, active: bool = active) -> Any:
                u = x if active else np.ones(3)
                for _ in range(times):
                    u = once(u)
                return np.sum(u) + np.sum(x)

            np.testing.assert_allclose(eb.grad(whole)(x), eb.grad(plain)(x), rtol=1e-12)
            np.testing.assert_allclose(eb.hvp(whole)(x, x), eb.hvp(plain)(x, x), rtol=1e-10)
            with mpi.distributed(comm):
                found = eb.grad(whole, budget=eb.Budget(memory="1 MiB"))(x)
            np.testing.assert_allclose(found, eb.grad(plain)(x), rtol=1e-12)


def check_owners(group: Group) -> None:
    """A total counts once, and a replicated value is one variable."""
    parts = group.random((4,), np.float64, 7)
    everything = group.rows(parts).ravel()

    def functional(k: Any, part: Any) -> Any:
        return mpi.total(np.sum((mpi.replicated(k, group.comm) * part) ** 2), group.comm)

    value, (by_k, by_part) = eb.value_and_grad(functional, argnums=(0, 1))(3.0, parts)
    assert np.isclose(value, 9 * np.sum(everything**2))
    assert np.isclose(by_k, 6 * np.sum(everything**2))
    np.testing.assert_allclose(by_part, 18 * parts)
    second = eb.hvp(lambda k: functional(k, parts))(3.0, 1.0)
    assert np.isclose(second, 2 * np.sum(everything**2))

    def of_tree(c: Any) -> Any:
        return mpi.total(np.sum(mpi.replicated(c, group.comm)["a"] * parts), group.comm)

    tree = eb.grad(of_tree)({"a": 2.0, "b": np.ones(2)})
    assert np.isclose(tree["a"], np.sum(everything))
    np.testing.assert_array_equal(tree["b"], 0)


def check_refusals(group: Group) -> None:
    """Communication where no other rank can be known is refused on all ranks, and nobody waits."""
    x = np.ones(group.size)
    functions = (
        eb.jit(partial(mpi.allreduce, comm=group.comm)),
        eb.vmap(partial(mpi.allreduce, comm=group.comm)),
        partial(eb.linearize, partial(mpi.allreduce, comm=group.comm)),
    )
    for f in functions:
        with refused(eb.EbbtideError, "knows no other ranks"):
            f(x)
    with refused(TypeError, "Cartesian"):
        mpi.halo_exchange(x, group.comm)
    with refused(ValueError, "no more than there are"):
        mpi.halo_exchange(np.ones((1, 1)), group.comm.Create_cart([group.size]), 2)
    with refused(ValueError, "no more than there are"):
        mpi.halo_update(np.ones((5, 1)), group.comm.Create_cart([group.size]), 2)
    with refused(ValueError, "do not fit"):
        mpi.scatter(x, group.comm, counts=[group.size + 1] * group.size)
    uneven = [group.size + 1, -1, *[0] * (group.size - 2)]
    if group.size > 1:
        with refused(ValueError, "do not fit"):
            mpi.scatter(x, group.comm, counts=uneven)
        with refused(ValueError, "alltoall was given"):
            mpi.alltoall(x, group.comm, counts=uneven)
    for source, tag in ((MPI.ANY_SOURCE, 0), (0, MPI.ANY_TAG)):
        with refused(ValueError, "Name the rank and the tag"):
            mpi.recv(group.comm, source, tag)
        with refused(ValueError, "Name the rank and the tag"):
            mpi.sendrecv(x, group.comm, 0, source, tag)
    with refused(ValueError, "PROC_NULL"):
        mpi.recv(group.comm, MPI.PROC_NULL)
    with refused(ValueError, "there are 'sum', 'max' and 'min'"):
        mpi.allreduce(x, group.comm, "product")
