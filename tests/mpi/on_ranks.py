"""What each rank of a run checks; started by `mpiexec` from test_mpi.py with the name of the check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ebbtide as eb
from ebbtide import mpi
from ebbtide.arrays.array_type import ArrayType
from ebbtide.mpi import collectives

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def random(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    """Return numbers that differ from rank to rank."""
    generator = np.random.default_rng([seed, RANK])
    real = generator.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        return (real + 1j * generator.standard_normal(shape)).astype(dtype)
    return real.astype(dtype)


def inner(x: Any, y: Any) -> complex:
    """Return the product, without a conjugate, of arrays over all ranks; None counts as nothing."""
    mine = 0.0 if x is None or y is None else np.sum(np.asarray(x, complex) * np.asarray(y, complex))
    return complex(COMM.allreduce(complex(mine)))


def linear_operations() -> Iterator[tuple[str, Callable[[Any], Any], tuple[int, ...]]]:
    """Yield all linear operations, with the shape of their operand on this rank; some ranks have empty ones."""
    up, down = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    last = SIZE - 1
    yield "allreduce", lambda x: mpi.allreduce(x, COMM), (3, 2)
    yield "allreduce number", lambda x: mpi.allreduce(x, COMM), ()
    yield "allreduce nothing", lambda x: mpi.allreduce(x, COMM), (0, 2)
    yield "reduce", lambda x: mpi.reduce(x, COMM, root=last), (3,)
    yield "bcast", lambda x: mpi.bcast(x, COMM, root=last), (2, RANK)
    yield "gather", lambda x: mpi.gather(x, COMM, root=last), (RANK, 2)
    yield "gather number", lambda x: mpi.gather(x, COMM), ()
    yield "allgather", lambda x: mpi.allgather(x, COMM), (SIZE - 1 - RANK, 2)
    yield "scatter", lambda x: mpi.scatter(x, COMM, root=last), (2 * SIZE + 1, 2) if last == RANK else (0,)
    counts = [2 * (rank == 0) for rank in range(SIZE)]
    mine = None if RANK else counts
    yield "scatter to one", lambda x: mpi.scatter(x, COMM, counts=mine), (1,) if RANK else (2,)
    yield "alltoall", lambda x: mpi.alltoall(x, COMM), (RANK + 2, 3)
    yield "alltoall to one", lambda x: mpi.alltoall(x, COMM, [RANK] + [0] * (SIZE - 1)), (RANK,)
    yield "ring", lambda x: mpi.sendrecv(x, COMM, up, down), (RANK + 1,)
    ends = (MPI.PROC_NULL if last == RANK else RANK + 1), (RANK - 1 if RANK else MPI.PROC_NULL)
    yield "line", lambda x: mpi.sendrecv(x, COMM, *ends), (2, 2)
    if SIZE > 1:
        yield "send and recv", _sent, (3,)
    for name, comm, width, axes, shape in grids():
        yield name, lambda x, c=comm, w=width, a=axes: mpi.halo_exchange(x, c, w, a), shape


def _sent(x: Any) -> Any:
    """Send from each even rank to the next one, which sends something back."""
    other = RANK ^ 1
    if other >= SIZE:
        return x
    if RANK % 2 == 0:
        mpi.send(2 * x, COMM, other, tag=3)
        return x + mpi.recv(COMM, other)
    got = mpi.recv(COMM, other, tag=3)
    mpi.send(got[::-1] - x, COMM, other)
    return 3 * x


def grids() -> Iterator[tuple[str, Any, Any, Any, tuple[int, ...]]]:
    """Yield grids of the ranks with layers, axes, and the shape of a part."""
    dims = MPI.Compute_dims(SIZE, 2)
    for periods in ((False, False), (True, True), (True, False)):
        comm = COMM.Create_cart(dims, periods)
        x, y = comm.coords
        yield f"halo {periods}", comm, 1, None, (3 + x, 2 + y)
        yield f"halo of two {periods}", comm, (2, 1), (2, 0), (2 + y, 2, 3 + x)
    yield "line of parts", COMM.Create_cart([SIZE]), 1, (1,), (2, 3)


def check_linear() -> None:
    """Each operation is linear, with its transpose as vjp and itself as jvp, in all precisions."""
    for name, f, shape in linear_operations():
        for dtype in DTYPES:
            x, v = random(shape, dtype, 1), random(shape, dtype, 2)
            tolerance = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-12
            y, pull = eb.vjp(lambda x, f=f: _array(f(x)), x)
            value, tangent = eb.jvp(lambda x, f=f: _array(f(x)), (x,), (v,))
            w = random(y.shape, y.dtype, 3)
            (found,) = pull(w)
            assert found.dtype == x.dtype, (name, dtype, found.dtype)
            assert found.shape == x.shape, (name, dtype, found.shape)
            np.testing.assert_array_equal(value, y, err_msg=name)
            np.testing.assert_array_equal(tangent, _array(f(v)), err_msg=name)
            one, other = inner(w, tangent), inner(found, v)
            assert abs(one - other) <= tolerance * (1 + abs(one)), (name, dtype, one, other)


def _array(result: Any) -> Any:
    return np.zeros(0) if result is None else result


def check_transposes() -> None:
    """The transpose of the transpose of an exchange is the exchange, and takes what the other one gives."""
    kind, other = ArrayType((SIZE, 2), np.dtype(float)), ArrayType((1, 2), np.dtype(float))
    ones = (1,) * SIZE
    exchanges = (
        collectives.Sum(COMM, kind, kind), collectives.Total(COMM, kind, kind), collectives.Copies(COMM, kind, kind),
        collectives.Broadcast(COMM, other, kind, 0), collectives.Reduction(COMM, kind, other, 0),
        collectives.Gathering(COMM, other, kind, 0, ones), collectives.Scattering(COMM, kind, other, 0, ones),
        collectives.GatheringForAll(COMM, other, kind, ones), collectives.PartOfSum(COMM, kind, other, ones),
        collectives.Transposition(COMM, kind, kind, ones, ones),
    )  # fmt: skip
    for one in exchanges:
        back = one.transposed
        assert (back.taken, back.given) == (one.given, one.taken)
        assert back.transposed == one


def check_second_order() -> None:
    """The Hessian of a function that communicates is symmetric, and its product what finite differences say."""
    for name, f, shape in linear_operations():
        for active in (True, RANK % 2 == 0):

            def functional(x: Any, f: Any = f, active: bool = active) -> Any:
                result = f(np.sin(x) if active else np.cos(np.zeros(np.shape(x))))
                return mpi.total(np.sum(_array(result) ** 3), COMM) + 0.0 * np.sum(x)

            x, v, w = random(shape, np.float64, 4), random(shape, np.float64, 5), random(shape, np.float64, 6)
            product = eb.hvp(functional)(x, v)
            one, other = inner(w, product), inner(v, eb.hvp(functional)(x, w))
            assert abs(one - other) <= 1e-9 * (1 + abs(one)), (name, one, other)
            h = 1e-5
            ahead, back = eb.grad(functional)(x + h * v), eb.grad(functional)(x - h * v)
            np.testing.assert_allclose(product, (ahead - back) / (2 * h), rtol=1e-4, atol=1e-6, err_msg=name)
            slope = (functional(x + h * v) - functional(x - h * v)) / (2 * h)
            assert np.isclose(inner(eb.grad(functional)(x), v).real, slope, rtol=1e-6, atol=1e-7), name


def check_extremes() -> None:
    """Of an extreme the rank that has it gets the cotangent, and ranks that share it get equal parts."""
    x = np.array([float(RANK), 1.0, -float(RANK)])
    for op, owners in (("max", (SIZE - 1, None, 0)), ("min", (0, None, SIZE - 1))):
        value, pull = eb.vjp(lambda x, op=op: mpi.allreduce(x, COMM, op), x)
        everyone = np.array(COMM.allgather(x))
        np.testing.assert_array_equal(value, everyone.max(0) if op == "max" else everyone.min(0))
        (found,) = pull(np.ones(3))
        expected = [SIZE * (1 / SIZE if owner is None else float(owner == RANK)) for owner in owners]
        np.testing.assert_allclose(found, expected, rtol=1e-15)
        v = random((3,), np.float64, 1)
        _, tangent = eb.jvp(lambda x, op=op: mpi.allreduce(x, COMM, op), (x,), (v,))
        w = random((3,), np.float64, 2)
        assert np.isclose(inner(w, tangent), inner(pull_of(op, x)(w), v))
        got = mpi.reduce(x, COMM, root=SIZE - 1, op=op)
        assert (got is None) == (RANK != SIZE - 1)
    with pytest.raises(TypeError, match="complex"):
        mpi.allreduce(x + 1j, COMM, "max")


def pull_of(op: str, x: np.ndarray) -> Callable[[Any], Any]:
    """Return the pullback of an extreme."""
    _, pull = eb.vjp(lambda x: mpi.allreduce(x, COMM, op), x)
    return lambda w: pull(w)[0]


def check_owners() -> None:
    """A total counts once, and a replicated value is one variable."""
    parts = random((4,), np.float64, 7)
    everything = np.concatenate(COMM.allgather(parts))

    def functional(k: Any, part: Any) -> Any:
        return mpi.total(np.sum((mpi.replicated(k, COMM) * part) ** 2), COMM)

    value, (by_k, by_part) = eb.value_and_grad(functional, argnums=(0, 1))(3.0, parts)
    assert np.isclose(value, 9 * np.sum(everything**2))
    assert np.isclose(by_k, 6 * np.sum(everything**2))
    np.testing.assert_allclose(by_part, 18 * parts)
    second = eb.hvp(lambda k: functional(k, parts))(3.0, 1.0)
    assert np.isclose(second, 2 * np.sum(everything**2))
    tree = eb.grad(lambda c: mpi.total(np.sum(mpi.replicated(c, COMM)["a"] * parts), COMM))({"a": 2.0, "b": np.ones(2)})
    assert np.isclose(tree["a"], np.sum(everything))
    np.testing.assert_array_equal(tree["b"], 0)


def check_refusals() -> None:
    """Communication where no other rank can be known is refused on all ranks, and nobody waits."""
    x = np.ones(SIZE)
    functions = (
        eb.jit(partial(mpi.allreduce, comm=COMM)),
        eb.vmap(partial(mpi.allreduce, comm=COMM)),
        partial(eb.linearize, partial(mpi.allreduce, comm=COMM)),
    )
    for f in functions:
        with pytest.raises(eb.EbbtideError, match="knows no other ranks"):
            f(x)
    with pytest.raises(TypeError, match="Cartesian"):
        mpi.halo_exchange(x, COMM)
    with pytest.raises(ValueError, match="no more than there are"):
        mpi.halo_exchange(np.ones((1, 1)), COMM.Create_cart([SIZE]), 2)
    with pytest.raises(ValueError, match="do not fit"):
        mpi.scatter(x, COMM, counts=[SIZE + 1] * SIZE)
    with pytest.raises(ValueError, match="there are 'sum', 'max' and 'min'"):
        mpi.allreduce(x, COMM, "product")


def loss_of(steps: int, dead: bool) -> Callable[..., Any]:
    """Return a functional of a loop of which each step communicates; on some ranks nothing of it is active."""

    def functional(u: Any, k: Any) -> Any:
        def step(u: Any, i: int) -> Any:
            from_below = mpi.sendrecv(u, COMM, (RANK + 1) % SIZE, (RANK - 1) % SIZE)
            mean = mpi.allreduce(np.sum(u), COMM) / SIZE
            return u + 0.1 * k * np.sin(from_below) - 0.01 * mean

        start = np.ones(3) * RANK if dead and RANK else u
        final = eb.timeloop(step, start, steps)
        return mpi.total(np.sum(final**2), COMM)

    return functional


def check_loops() -> None:
    """Loops that communicate have one gradient whatever the schedule, also where a rank has nothing to derive."""
    u = random((3,), np.float64, 8)
    for dead in (False, True):
        functional = loss_of(12, dead)

        def coupled(u: Any, k: Any, f: Any = functional) -> Any:
            return f(u, mpi.replicated(k, COMM))

        with mpi.distributed(COMM):
            value, (by_u, by_k) = eb.value_and_grad(coupled, argnums=(0, 1))(u, 0.7)
            for budget in ("56 KiB", "72 KiB", "1 MiB"):
                again, (other_u, other_k) = eb.value_and_grad(coupled, (0, 1), budget=eb.Budget(memory=budget))(u, 0.7)
                np.testing.assert_array_equal(again, value)
                np.testing.assert_array_equal(other_u, by_u)
                np.testing.assert_array_equal(other_k, by_k)
            product = eb.hvp(lambda u: coupled(u, 0.7))(u, np.ones(3))
        h = 1e-5
        slope = (coupled(u, 0.7 + h) - coupled(u, 0.7 - h)) / (2 * h)
        assert np.isclose(by_k, slope, rtol=1e-7), (by_k, slope)
        v = random((3,), np.float64, 9)
        slope = (coupled(u + h * v, 0.7) - coupled(u - h * v, 0.7)) / (2 * h)
        assert np.isclose(inner(by_u, v).real, slope, rtol=1e-7), dead
        ahead, back = (eb.grad(lambda u: coupled(u, 0.7))(u + s * h) for s in (1, -1))
        np.testing.assert_allclose(product, (ahead - back) / (2 * h), rtol=1e-5, atol=1e-7)


def check_checkpoints() -> None:
    """A checkpointed function may communicate, also where its result is not used."""
    def block(x: Any) -> Any:
        return np.sin(mpi.sendrecv(x, COMM, (RANK + 1) % SIZE, (RANK - 1) % SIZE))

    def functional(x: Any) -> Any:
        for _ in range(3):
            x = eb.checkpoint(block)(x)
        return np.sum(x**2) if RANK == 0 else 0.0 * np.sum(x)

    x = random((4,), np.float64, 10)
    found = eb.grad(functional)(x)

    def unchecked(x: Any) -> Any:
        final = block(block(block(x)))
        return np.sum(final**2) if RANK == 0 else np.sum(final) * 0.0

    plain = eb.grad(unchecked)(x)
    np.testing.assert_array_equal(found, plain)
    assert np.any(COMM.allreduce(np.abs(found)) > 0)


def main() -> None:
    """Run the checks that are named."""
    for name in sys.argv[1:]:
        globals()[f"check_{name}"]()
        COMM.Barrier()
        if RANK == 0:
            print(f"{name} ok", flush=True)


if __name__ == "__main__":
    main()
