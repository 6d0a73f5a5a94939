"""The compiled chain: NumPy's bits for arrays however they lie, NumPy's ways with failures, and nothing allocated."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import special

from ebbtide.machine import MOST_OPERANDS, MOST_VALUES, Chain

OTHERS = {special.erf, special.expit, special.gammaln, special.ndtr}
UFUNCS = sorted({f for f in vars(np).values() if isinstance(f, np.ufunc)} | OTHERS, key=lambda ufunc: ufunc.__name__)
# Of objects, texts and times there are no plain numbers in memory.
NUMBERS = set("?bBhHiIlLqQefdgFDG")


def loops() -> list[tuple[np.ufunc, str]]:
    """Return all loops of numbers with one result."""
    plain = [u for u in UFUNCS if u.signature is None and u.nout == 1]
    return [(u, t) for u in plain for t in u.types if set(t) <= NUMBERS | set("->")]


def drawn(random: np.random.Generator, letter: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers of a type, zeros and signs among them."""
    dtype = np.dtype(letter)
    if dtype.kind in "bui":
        return random.integers(0, 2 if dtype.kind == "b" else 6, shape).astype(dtype)
    found = random.standard_normal(shape) * 2
    if dtype.kind == "c":
        found = found + 1j * random.standard_normal(shape)
    return found.astype(dtype)


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_every_loop_has_numpys_bits(ufunc):
    """Each loop of each ufunc gives in a chain, in pieces, what NumPy gives for the whole array."""
    random = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        for _, types in [pair for pair in loops() if pair[0] is ufunc]:
            operands = [drawn(random, letter, (3, 1500)) for letter in types.partition("->")[0]]
            expected = ufunc(*operands, signature=types)
            out = np.empty(expected.shape, expected.dtype)
            Chain(len(operands) + 1, (ufunc, types, *range(len(operands) + 1)))(*operands, out)
            assert out.dtype == expected.dtype
            if expected.dtype.char in "gG":  # some bytes of which mean nothing
                assert np.array_equal(out, expected, equal_nan=True), types
            else:
                assert out.tobytes() == expected.tobytes(), types


def _read_only(x):
    """Return a copy that cannot be written."""
    x = x.copy()
    x.setflags(write=False)
    return x


ARRANGED = {
    "as they are": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1::3],
    "backwards": lambda x: x[::-1, ::-1],
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one for all": lambda x: np.broadcast_to(x[:1, :1], x.shape),
    "unaligned": lambda x: np.frombuffer(b"0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "of other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "read-only": _read_only,
}


@pytest.mark.parametrize("second", ARRANGED)
@pytest.mark.parametrize("first", ARRANGED)
def test_however_arrays_lie(first, second):
    """Strides, broadcasting, alignment and byte order change no bit; the operands stay as they are."""
    random = np.random.default_rng(2)
    x = ARRANGED[first](random.standard_normal((60, 60)))
    y = ARRANGED[second](random.standard_normal((60, 60)))
    rows, columns = np.minimum(x.shape, y.shape)
    x, y = x[:rows, :columns], y[:rows, :columns]
    before = x.tobytes(), y.tobytes()
    chain = Chain(3, (np.multiply, "dd->d", 0, 1, 3), (np.sin, "d->d", 3, 3), (np.subtract, "dd->d", 3, 0, 2))
    for out in (np.empty(x.shape), np.empty(x.shape[::-1]).T, np.empty((x.shape[0], 2 * x.shape[1]))[:, ::2]):
        chain(x, y, out)
        assert np.array_equal(out, np.sin(x * y) - x)
    assert (x.tobytes(), y.tobytes()) == before


@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (3, 0, 2), (1, 1, 1), (2, 3, 4, 5), (1, 7, 1), (5000,), (1023,), (1025,)]
)
def test_shapes(shape):
    """Arrays of any number of axes and elements, none among them."""
    x = np.random.default_rng(3).standard_normal(shape)
    out = np.full(shape, 7.0)
    Chain(2, (np.exp, "d->d", 0, 2), (np.add, "dd->d", 2, 0, 1))(x, out)
    assert np.array_equal(out, np.exp(x) + x)


def test_numbers_and_types_between():
    """Numbers stand for arrays of the type of the loop, and a piece may be of another type than the arrays."""
    x = np.linspace(-1, 1, 2000, dtype=np.float32)
    out = np.empty_like(x)
    chain = Chain(
        4, (np.greater, "ff->?", 0, 1, 4), (np.multiply, "ff->f", 0, 2, 5), (np.copysign, "ff->f", 5, 0, 6),
        (np.add, "ff->f", 6, 6, 6), (np.logical_not, "?->?", 4, 4), (np.add, "ff->f", 6, 5, 3),
    )  # fmt: skip
    chain(x, 0, np.float32(0.5), out)
    half = x * np.float32(0.5)
    assert np.array_equal(out, (np.copysign(half, x) * 2) + half)
    assert out.dtype == np.float32


FAILURES = {
    "divide": (np.log, 0.0, "divide by zero"),
    "over": (np.exp, 1000.0, "overflow"),
    "under": (np.square, 1e-200, "underflow"),
    "invalid": (np.sqrt, -1.0, "invalid value"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_are_treated_as_set(kind):
    """What `np.errstate` says is done: nothing, a warning, an error, or a call."""
    ufunc, value, text = FAILURES[kind]
    chain, x, out = Chain(2, (ufunc, "d->d", 0, 2), (np.negative, "d->d", 2, 1)), np.full(3, value), np.empty(3)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        chain(x, out)
    with np.errstate(all="ignore"):
        expected = -ufunc(x)
    assert np.array_equal(out, expected, equal_nan=True)
    message = f"^{text} encountered in {ufunc.__name__}$"
    with np.errstate(all="ignore", **{kind: "warn"}), pytest.warns(RuntimeWarning, match=message):
        chain(x, out)
    with np.errstate(all="ignore", **{kind: "raise"}), pytest.raises(FloatingPointError, match=text):
        chain(x, out)
    called = []
    with np.errstate(all="ignore", call=lambda *args: called.append(args), **{kind: "call"}):
        chain(x, out)
        ufunc(x)
    assert called[0] == called[1]


def test_failures_of_before_do_not_count():
    """A failure that NumPy has reported, or was told to ignore, is not reported again by a chain."""
    with np.errstate(all="ignore"):
        np.log(np.zeros(3))
    with np.errstate(all="raise"):
        out = np.empty(3)
        Chain(2, (np.add, "dd->d", 0, 0, 1))(np.ones(3), out)
    assert np.array_equal(out, np.full(3, 2.0))


def test_nothing_is_allocated():
    """A chain of arrays keeps nothing, and takes a few hundred bytes of names while it runs."""
    x, out = np.linspace(0, 1, 10**5), np.empty(10**5)
    chain = Chain(2, (np.sin, "d->d", 0, 2), (np.cos, "d->d", 2, 3), (np.add, "dd->d", 2, 3, 1))
    chain(x, out)
    gc.collect()
    found = []
    for _ in range(3):  # a thread of those who run the tests may allocate meanwhile
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(10):
                chain(x, out)
            now, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        found.append((peak - before, now - before))
    peak, left = min(found)
    assert left < 200
    assert peak < 2000


def test_threads_do_not_disturb_each_other():
    """One chain that several threads run at the same time, without Python's lock, has pieces for each of them."""
    chain = Chain(2, (np.sin, "d->d", 0, 2), (np.cos, "d->d", 2, 3), (np.subtract, "dd->d", 2, 3, 1))
    inputs = [np.random.default_rng(k).standard_normal(50_000) for k in range(4)]
    outs = [np.empty_like(x) for x in inputs]

    def work(x, out):
        for _ in range(20):
            chain(x, out)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, outs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(out, np.sin(x) - np.cos(np.sin(x))) for x, out in zip(inputs, outs, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(1, (np.add, "xx->x", 0, 0, 0)), "no loop"),
        (lambda: Chain(1, (np.add, "dd->d", 0, 0, 1 + MOST_VALUES)), "registers"),
        (lambda: Chain(1, (np.add, "dd->d", 0, 0, -1)), "registers"),
        (lambda: Chain(MOST_OPERANDS + 1), "at most"),
        (lambda: Chain(2, (np.sin, "d->d", 0, 1))(np.ones(2)), "2 arrays"),
        (lambda: Chain(2, (np.sin, "d->d", 0, 1))(np.ones(3), np.ones(2)), "broadcast"),
        (lambda: Chain(2, (np.sin, "d->d", 0, 1))(np.ones((2, 2)), np.ones(2)), "broadcast"),
        (lambda: Chain(2, (np.sin, "d->d", 0, 1))(np.ones(2), np.ones(2, np.float32)), "result"),
        (lambda: Chain(2, (np.sin, "d->d", 0, 1))(np.ones(2), _read_only(np.ones(2))), "result"),
    ],
)
def test_misuse(make, message):
    """What a chain cannot do is an error before anything is written."""
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("width", [50, 199, 500, 700])
def test_rows_with_little_between_them(width):
    """Parts of rows, of which many are a piece together: NumPy's bits, and nothing of what is between is written."""
    random = np.random.default_rng(1)
    x, y, out = [random.standard_normal((40, width + 3)) for _ in range(3)]
    expected = out.copy()
    expected[1:-1, 1:-2] = (x[:-2, 3:] + y[1:-1, :-3]) * 3.0 - expected[1:-1, 1:-2]
    links = ((np.add, "dd->d", 0, 1, 4), (np.multiply, "dd->d", 4, 2, 4), (np.subtract, "dd->d", 4, 3, 3))
    Chain(4, *links)(x[:-2, 3:], y[1:-1, :-3], 3.0, out[1:-1, 1:-2])
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("place", [(0, 0), (17, 100), (39, 198)])
def test_failures_of_rows(place):
    """Failures between rows do not count, those in rows do, under the name of their operation; with NumPy's bits."""
    x = np.ones((40, 201))
    x[:, [0, -1]] = -1.0
    part, out = x[:, 1:-1], np.empty((40, 199))
    links = ((np.sqrt, "d->d", 0, 2), (np.negative, "d->d", 2, 2), (np.log, "d->d", 0, 3), (np.add, "dd->d", 2, 3, 1))
    run = Chain(2, *links)
    with np.errstate(all="raise"):
        run(part, out)
    assert np.all(out == -1.0)
    part[place] = 0.0
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="divide by zero encountered in log"):
        run(part, out)
    part[:] = 0.0  # more often than a piece is done again
    with pytest.warns(RuntimeWarning, match="divide by zero encountered in log") as caught:
        run(part, out)
    assert len(caught) == 1
    assert np.all(out == -np.inf)
