"""The machine: each step with NumPy's bits, members in any number of threads, and refusals before anything is read."""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.measure import peak_bytes
from threadpoolctl import threadpool_info, threadpool_limits

from ebbtide.machine import (
    HAS_SMALL_PRODUCTS,
    Elementwise,
    Indexed,
    Machine,
    Product,
    ProductSum,
    Reduction,
    SmallProduct,
    _interpreter,
    _products,
)
from ebbtide.machine.pools import one_blas_thread
from ebbtide.program.orders import order_of
from ebbtide.rules import products
from ebbtide.rules.products import add_product

TASKS = Path("/proc/self/task")


def operand(buffer, array, strides=None):
    """An array, the whole of a buffer, as an operand."""
    return buffer, 0, array.dtype.char, array.strides if strides is None else strides


def arranged(random, array):
    """The same elements, arranged in one of many ways."""
    order = random.permutation(array.ndim)
    turned = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if random.random() < 0.4:
        wide = np.zeros([2 * n for n in array.shape], array.dtype)[tuple([slice(None, None, 2)] * array.ndim)]
        wide[...] = turned
        turned = wide
    return turned[tuple([slice(None, None, -1) if random.random() < 0.2 else slice(None)] * array.ndim)]


def drawn(random, shape, letter):
    """Random numbers of a type."""
    found = random.standard_normal(shape) * 3
    if letter in "FD":
        found = found + 1j * random.standard_normal(shape)
    return found.astype(letter)


STARTS = {np.add: -0.0, np.multiply: 1, np.maximum: None, np.minimum: None}


@pytest.mark.parametrize("letter", "fdFDl")
@pytest.mark.parametrize("ufunc", STARTS, ids=lambda ufunc: ufunc.__name__)
def test_reductions_have_numpys_bits(ufunc, letter):
    """Sums over any axes of arrays that lie in any way are those of NumPy's reduce, to the last bit."""
    random = np.random.default_rng(1)
    done = 0
    with np.errstate(all="ignore"):
        for _ in range(150):
            ndim = random.integers(1, 5)
            shape = tuple(random.integers(1, [0, 3000, 80, 15, 7][ndim], ndim))
            x = arranged(random, drawn(random, shape, letter))
            axes = tuple(np.flatnonzero(random.random(x.ndim) < 0.5).tolist()) or (x.ndim - 1,)
            expected = ufunc.reduce(x, axis=axes, keepdims=True)
            out = np.empty_like(expected)
            into = tuple([0 if axis in axes else step for axis, step in enumerate(out.strides)])
            found = order_of(x.shape, x.strides, into)
            if found is None:
                continue
            size, of, to = found
            start = STARTS[ufunc] if letter != "l" or ufunc is not np.add else 0
            operands = (0, 0, letter, of), (1, 0, letter, to)
            Machine(Reduction(size, operands, ufunc, f"{letter}{letter}->{letter}", start))(x, out)
            assert out.tobytes() == expected.tobytes(), (x.shape, x.strides, axes)
            done += 1
    assert done > 70


@pytest.mark.parametrize("letter", "fdFD")
def test_products_have_numpys_bits(letter):
    """Products of matrices and vectors, transposed or with gaps, are those of np.matmul."""
    random = np.random.default_rng(2)
    for _ in range(300):
        m, k, n = random.choice([1, 2, 3, 6, 10, 17, 32, 48, 100], 3).tolist()
        a, b = arranged(random, drawn(random, (m, k), letter)), arranged(random, drawn(random, (k, n), letter))
        expected = np.matmul(a, b)
        out = np.empty_like(expected)
        Machine(Product((), (m, k, n), (operand(0, a), operand(1, b), operand(2, out)), f"{letter}{letter}->{letter}"))(
            a, b, out
        )
        assert out.tobytes() == expected.tobytes(), (m, k, n, a.strides, b.strides)


def test_stacks_of_products():
    """A product of stacks is that of their matrices."""
    random = np.random.default_rng(3)
    a, b = random.standard_normal((3, 1, 4, 5)), random.standard_normal((2, 5, 6))
    expected = a @ b
    out = np.empty_like(expected)
    spread = [np.broadcast_to(x, (3, 2, *x.shape[-2:])) for x in (a, b)]
    step = Product((3, 2), (4, 5, 6), (*[operand(k, x) for k, x in enumerate(spread)], operand(2, out)), "dd->d")
    Machine(step)(a, b, out)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("letter", "fdFD")
def test_sums_of_products_have_the_bits_of_blas(letter):
    """A product that is added to a sum is that of the sweep, however its operands are transposed."""
    random = np.random.default_rng(4)
    for turned in range(4):
        a, b, total = (drawn(random, shape, letter) for shape in ((7, 9), (9, 5), (7, 5)))
        a = np.asfortranarray(a) if turned & 1 else a
        b = np.asfortranarray(b) if turned & 2 else b
        expected, found = total.copy(), total.copy()
        assert add_product(expected, a, b)
        Machine(ProductSum((7, 9, 5), (operand(0, a), operand(1, b), operand(2, found))))(a, b, found)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("letter", "fdFD")
def test_sums_of_products_by_another_blas(letter, monkeypatch):
    """Where NumPy's own BLAS is not found it is SciPy's, with or without the compiled part: the same up to rounding."""
    random = np.random.default_rng(4)
    a, b, total = (drawn(random, shape, letter) for shape in ((7, 9), (9, 5), (7, 5)))
    turned = np.asfortranarray(a)
    wanted = total + a @ b
    monkeypatch.setattr(_products, "find_gemm", lambda letter: 0)
    others = _products._addresses()
    assert set(others.values()).isdisjoint(_products._GEMM.values())
    monkeypatch.setattr(_products, "_GEMM", others)
    for multiply in (_products.add_gemm, products._by_scipy):
        monkeypatch.setattr(products, "_add_gemm", multiply)
        for first in (a, turned):
            found = total.copy()
            assert add_product(found, first, b)
            np.testing.assert_allclose(found, wanted, rtol=1e-4 if letter in "fF" else 1e-12)
    found = total.copy()
    Machine(ProductSum((7, 9, 5), (operand(0, a), operand(1, b), operand(2, found))))(a, b, found)
    np.testing.assert_allclose(found, wanted, rtol=1e-4 if letter in "fF" else 1e-12)


def test_elements_by_indices():
    """Parts are read, written and added at places, negative ones and those that are named twice among them."""
    random = np.random.default_rng(5)
    x, i, j = random.standard_normal((7, 5, 3)), random.integers(-7, 7, (4, 6)), random.integers(-5, 5, 6)
    spread = np.broadcast_to(j, (4, 6))
    for indices, places in (((i,), (operand(2, i),)), ((i, spread), (operand(2, i), operand(3, spread)))):
        parts = random.standard_normal((4, 6, *x.shape[len(indices) :]))
        for kind in ("gather", "put", "add"):
            whole, part = x.copy(), parts.copy()
            expected = whole.copy()
            if kind == "put":
                expected[indices] = part
            elif kind == "add":
                np.add.at(expected, indices, part)
            Machine(Indexed(kind, x.shape, (4, 6), operand(0, whole), operand(1, part), *places))(
                whole, part, *[i, j][: len(indices)]
            )
            assert whole.tobytes() == expected.tobytes()
            assert part.tobytes() == (x[indices] if kind == "gather" else parts).tobytes()


def test_an_index_out_of_bounds_is_named():
    """An index that is not there is an error with the member; nothing is read or written out of bounds."""
    x, i, out = np.arange(5.0), np.array([[0, 1], [2, -6], [7, 0]]), np.zeros((3, 2))
    machine = Machine(Indexed("gather", (5,), (2,), operand(0, x), operand(2, out[0]), operand(1, i[0])))
    for threads in (1, 2, 3):
        out[...] = 9
        with pytest.raises(IndexError, match=r"index -6 is out of bounds for an axis with size 5, in member 1"):
            machine.run([x, i, out], [0, i.strides[0], out.strides[0]], 3, threads)
        assert out[0].tolist() == [0, 1]
        assert out[1].tolist() == [2, 9]


CASTS = [(a, b) for a in "?bhilBHIL" for b in "bhilfdFD"] + [(a, b) for a in "fd" for b in "fdFD"]


@pytest.mark.parametrize("gap", [1, 3])
def test_casts_and_choices(gap):
    """Casts, moves and choices are those of astype and np.where."""
    random = np.random.default_rng(6)
    for a, b in CASTS:
        x = random.integers(0, 2 if a == "?" else 100, 40).astype(a)[::gap]
        out = np.empty(x.shape, b)
        Machine(Elementwise(x.shape, (operand(0, x), operand(1, out)), ("cast", f"{a}->{b}", 0, 1)))(x, out)
        assert out.tobytes() == x.astype(b).tobytes(), (a, b)
    for letter in "bhifdFD?":
        mask, x, y = (random.integers(0, 2, 40).astype(kind)[::gap] for kind in ("?", letter, letter))
        out = np.empty(x.shape, letter)
        operands = tuple([operand(k, array) for k, array in enumerate((mask, x, y, out))])
        step = Elementwise(x.shape, operands, ("where", f"?{letter}{letter}->{letter}", 0, 1, 2, 3))
        Machine(step)(mask, x, y, out)
        assert out.tobytes() == np.where(mask, x, y).tobytes()


def layer(x, w, out, workspace=3):
    """A machine for out = sum(tanh(x w), axis 0) of one member, through a workspace."""
    (rows, inner), columns = x.shape, w.shape[1]
    middle = (workspace, 0, "d", (columns * 8, 8))
    return Machine(
        Product((), (rows, inner, columns), (operand(0, x), operand(1, w), middle), "dd->d"),
        Elementwise((rows, columns), (middle, middle), (np.tanh, "d->d", 0, 1)),
        Reduction((rows, columns), (middle, (2, 0, "d", (0, 8))), np.add, "dd->d", 0.0),
        workspace=workspace,
    )


@pytest.mark.parametrize("threads", [1, 2, 3, 50])
def test_members(threads):
    """Each member has the bits that it has alone, for any number of threads; each thread has its workspace."""
    random = np.random.default_rng(7)
    x, w = random.standard_normal((11, 6, 5)), random.standard_normal((5, 4))
    out = np.zeros((11, 4))
    machine = layer(x[0], w, out[0])
    work = np.full((threads, 6 * 4 * 8), 255, np.uint8)
    pools, tasks = threadpool_info(), list(TASKS.iterdir())
    machine.run([x, w, out, work], [x.strides[0], 0, out.strides[0], work.strides[0]], 11, threads)
    assert threadpool_info() == pools
    started = set(TASKS.iterdir()) - set(tasks)
    assert len(started) == min(threads, 11) - 1
    machine.run([x, w, out, work], [x.strides[0], 0, out.strides[0], work.strides[0]], 11, threads)
    assert set(TASKS.iterdir()) - set(tasks) == started  # they waited for this run
    alone = np.empty(4)
    with threadpool_limits(1):
        for k in range(11):
            machine(x[k], w, alone, work)
            assert out[k].tobytes() == alone.tobytes() == np.add.reduce(np.tanh(x[k] @ w), 0).tobytes()
    del machine
    deadline = time.monotonic() + 10.0
    while list(TASKS.iterdir()) != tasks:  # no thread is left, once the system has put away those that were joined
        assert time.monotonic() < deadline


def squares(members, threads):
    """A machine that squares numbers, and what it is run with."""
    x, out = np.arange(float(members)), np.zeros(members)
    machine = Machine(Elementwise((1,), ((0, 0, "d", (8,)), (1, 0, "d", (8,))), (np.square, "d->d", 0, 1)))
    return lambda out=out: machine.run([x, out], [8, 8], members, threads), out, x * x


def test_threads_after_a_fork():
    """A process that was forked starts threads of its own, and those of before go on."""
    run, out, wanted = squares(1000, 3)
    run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer Pythons: here is what it warns of
        child = os.fork()
    if not child:
        out[:] = 0
        with threadpool_limits(1):
            # BLAS has begun again the threads that it has, if a test before this one gave it any.
            before = len(list(TASKS.iterdir()))
        run()
        done = np.array_equal(out, wanted) and len(list(TASKS.iterdir())) == before + 2
        del run
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    out[:] = 0
    run()
    assert np.array_equal(out, wanted)


def test_one_machine_in_many_threads():
    """Threads of a user's that run one machine at the same time get each their own results."""
    run, _, wanted = squares(300, 2)
    wrong = []

    def repeat():
        for _ in range(100):
            out = np.zeros(300)
            run(out)
            wrong.extend([1] * (not np.array_equal(out, wanted)))

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_failures_name_the_member():
    """A floating-point error says in which member it was first, whatever thread had it."""
    x = np.ones((9, 4))
    x[5:, 2] = 0
    out = np.empty_like(x)
    machine = Machine(Elementwise((4,), (operand(0, x[0]), operand(1, out[0])), (np.log, "d->d", 0, 1)))
    for threads in (1, 2, 4):
        with pytest.warns(RuntimeWarning, match="divide by zero encountered in log, first in member 5"):
            machine.run([x, out], [32, 32], 9, threads)
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="member 5"):
            machine.run([x, out], [32, 32], 9, threads)
        with np.errstate(divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            machine.run([x, out], [32, 32], 9, threads)


def test_nothing_is_allocated():
    """A run for many members takes a few hundred bytes, whatever their number."""
    random = np.random.default_rng(8)
    x, w, out, work = random.standard_normal((300, 6, 5)), np.ones((5, 4)), np.zeros((300, 4)), np.zeros(384, np.uint8)
    machine = layer(x[0], w, out[0])
    arrays, strides = [x, w, out, work], [x.strides[0], 0, out.strides[0], 192]
    machine.run(arrays, strides, 300, 2)
    assert peak_bytes(lambda: machine.run(arrays, strides, 300, 2)) < 4000


def test_operands_that_are_not_aligned_are_copied():
    """An array at an odd address is read, and written, through a copy."""
    odd = np.frombuffer(bytearray(81), np.uint8)[1:].view(float)
    odd[...] = np.arange(10.0)
    out = np.empty(10)
    machine = Machine(Elementwise((10,), ((0, 0, "d", (8,)), (1, 0, "d", (8,))), (np.sqrt, "d->d", 0, 1)))
    machine(odd, out)
    assert out.tobytes() == np.sqrt(np.arange(10.0)).tobytes()
    machine(np.arange(10.0), odd)
    assert odd.tobytes() == out.tobytes()


def _read_only():
    x = np.ones(3)
    x.setflags(write=False)
    return x


@pytest.mark.parametrize(
    ("arrays", "members", "message"),
    [
        ((np.ones(3),), 1, "2 buffers was given 1"),
        ((np.ones(2), np.ones(3)), 1, "Buffer 0 has bytes 0 to 16, and the steps take 0 to 24"),
        ((np.ones(3), np.ones(0)), 1, "Buffer 1 has bytes 0 to 0"),
        ((np.ones(3), _read_only()), 1, "Buffer 1 is written, and is read-only"),
        ((np.ones(3), np.ones(5)), 2, "Buffer 1 has bytes 0 to 40, and the steps take 0 to 48"),
        ((np.ones(3), "text"), 1, "is an array, and not 'text'"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(arrays, members, message):
    """What a step would read or write outside of its buffer is an error before it runs."""
    machine = Machine(Elementwise((3,), ((0, 0, "d", (8,)), (1, 0, "d", (8,))), (np.sqrt, "d->d", 0, 1)))
    with pytest.raises((TypeError, ValueError), match=message):
        machine.run(list(arrays), [0, 24], members)


def test_members_that_share_what_they_write_are_refused():
    """Two members may not write the same bytes."""
    machine = Machine(Elementwise((3,), ((0, 0, "d", (8,)), (1, 0, "d", (8,))), (np.sqrt, "d->d", 0, 1)))
    with pytest.raises(ValueError, match="Buffer 1 is written, and all members share it"):
        machine.run([np.ones((2, 3)), np.ones(3)], [24, 0], 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Elementwise((3,), ((0, 4, "d", (8,)), (1, 0, "d", (8,))), (np.sqrt, "d->d", 0, 1)), "not aligned"),
        (lambda: Elementwise((3,), ((0, 0, "d", (8, 8)), (1, 0, "d", (8,))), (np.sqrt, "d->d", 0, 1)), "one for each"),
        (lambda: Elementwise((3,), ((0, 0, "f", (4,)), (1, 0, "d", (8,))), (np.sqrt, "d->d", 0, 1)), "another size"),
        (lambda: Elementwise((3,), ((0, 0, "d", (8,)), (1, 0, "l", (8,))), ("cast", "d->l", 0, 1)), "no loop 'cast'"),
        (lambda: Reduction((), ((0, 0, "d", ()), (1, 0, "d", ())), np.add, "dd->d", 0.0), "No reduction"),
        (lambda: ProductSum((2, 2, 2), ((0, 0, "d", (16, 8)),) * 2 + ((1, 0, "d", (8, 16)),)), "not in C order"),
        (lambda: Indexed("gather", (3,), (2,), (0, 0, "d", (8,)), (1, 0, "d", (8,)), (2, 0, "i", (4,))), "not int64"),
    ],
)
def test_steps_that_cannot_be_made(make, message):
    """What no step can do is an error when it is made."""
    with pytest.raises(ValueError, match=message):
        make()


def test_pools_are_limited_once_and_restored():
    """Runs within runs, and at the same time, restore the pools when the last of them is done."""
    before = threadpool_info()
    with one_blas_thread():
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        with one_blas_thread():
            pass
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
    assert threadpool_info() == before


@pytest.mark.parametrize(
    ("kind", "limited"), [(Elementwise, False), (SmallProduct, False), (Product, True), (ProductSum, True)]
)
def test_pools_are_limited_where_blas_is_called(kind, limited, monkeypatch):
    """A run for members limits the threads of BLAS if one of its steps calls that, and else leaves them alone."""
    if kind is SmallProduct and not HAS_SMALL_PRODUCTS:
        pytest.skip("this processor has no small products")
    seen = []

    @contextmanager
    def noted():
        seen.append(True)
        yield

    monkeypatch.setattr(_interpreter, "one_blas_thread", noted)
    each = tuple((k, 0, "d", (24, 8)) for k in range(3))
    made = {
        Elementwise: lambda: Elementwise((3, 3), each, (np.add, "dd->d", 0, 1, 2)),
        SmallProduct: lambda: SmallProduct((3, 3, 3), each),
        Product: lambda: Product((), (3, 3, 3), each, "dd->d"),
        ProductSum: lambda: ProductSum((3, 3, 3), each),
    }[kind]()
    assert made.uses_blas == limited
    x, out = np.arange(18.0).reshape(2, 3, 3), np.zeros((2, 3, 3))
    Machine(made).run([x, x, out], (72, 72, 72), 2, 2)
    np.testing.assert_array_equal(out, 2 * x if kind is Elementwise else x @ x)
    assert len(seen) == limited


@pytest.mark.parametrize("letter", "fd")
@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum], ids=lambda ufunc: ufunc.__name__)
def test_extremes_of_rows_with_zeros_and_nan(ufunc, letter):
    """The largest of a row of any length is NumPy's where zeros of both signs or NaN are in it, and no failure."""
    random = np.random.default_rng(5)
    item = np.dtype(letter).itemsize
    for count in (*range(1, 40), 100, 127, 128, 129, 300):
        x = drawn(random, (12, count), letter)
        x[1:4] = -np.abs(x[1:4]) if ufunc is np.maximum else np.abs(x[1:4])
        x[1, random.integers(count)], x[2, random.integers(count)] = 0.0, -0.0
        x[3, random.integers(count)], x[3, random.integers(count)] = 0.0, -0.0
        x[4, random.integers(count)], x[5, random.integers(count)], x[6] = np.nan, np.inf, np.nan
        out, expected = np.empty(12, letter), ufunc.reduce(x, axis=1)
        operands = (0, 0, letter, (count * item, item)), (1, 0, letter, (item, 0))
        with np.errstate(all="raise"):
            Machine(Reduction((12, count), operands, ufunc, f"{letter}{letter}->{letter}"))(x, out)
        assert out.tobytes() == expected.tobytes(), count
