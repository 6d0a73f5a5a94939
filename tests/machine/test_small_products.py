"""Products of small matrices: each element is one chain of multiply-adds, however they lie and whoever runs it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.program.test_tracing import bits

from ebbtide import Budget, BudgetError, grad, jit, trace, vmap
from ebbtide.machine import HAS_SMALL_PRODUCTS, small_product
from ebbtide.program import small
from ebbtide.testing import check_grads

pytestmark = pytest.mark.skipif(
    not HAS_SMALL_PRODUCTS, reason="the processor has no AVX2, or has AVX-512 for which BLAS has such products itself"
)
DTYPES = (np.float32, np.float64)


def matrices(random, rows, inner, columns, dtype):
    """Two random matrices that can be multiplied."""
    return random.standard_normal((rows, inner)).astype(dtype), random.standard_normal((inner, columns)).astype(dtype)


def rounded(exact, dtype):
    """Return a fraction as the nearest number of a type, the even one of two."""
    near = dtype(float(exact))
    candidates = sorted({near, np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))})
    integer = np.int32 if dtype is np.float32 else np.int64
    return min(candidates, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(integer)) % 2))


def chain(x, y):
    """Return the product of two matrices by exact multiply-adds, each rounded once, in the order of the terms."""
    dtype = x.dtype.type
    out = np.zeros((x.shape[0], y.shape[1]), dtype)
    for i, j in np.ndindex(out.shape):
        total = dtype(0)
        for a, b in zip(x[i], y[:, j], strict=True):
            total = rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(total)), dtype)
        out[i, j] = total
    return out


def layouts_of(a):
    """Return a matrix as it may lie in memory."""
    wide = np.zeros((3 * a.shape[0], 2 * a.shape[1]), a.dtype)
    wide[::3, ::2] = a
    apart = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    apart[...] = a
    return {
        "C": np.ascontiguousarray(a),
        "Fortran": np.asfortranarray(a),
        "gaps": wide[::3, ::2],
        "backwards": np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
        "Fortran backwards": np.asfortranarray(a[::-1, ::-1])[::-1, ::-1],
        "not aligned": apart,
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 21, 25])
def test_each_element_is_a_chain_of_multiply_adds(dtype, columns):
    """For all ends of rows and columns, and sums of one term and more."""
    random = np.random.default_rng(columns)
    for rows, inner in ((1, 1), (2, 5), (3, 2), (5, 9), (9, 3), (12, 4), (14, 2), (23, 2)):
        x, y = matrices(random, rows, inner, columns, dtype)
        assert bits([small_product(x, y)]) == bits([chain(x, y)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sums_are_one_chain(dtype):
    """What is summed in pieces goes on where the piece before has ended."""
    random = np.random.default_rng(0)
    for rows, inner, columns in ((2, 255, 3), (2, 256, 11), (1, 257, 5), (3, 600, 2), (9, 257, 2), (1, 520, 19)):
        x, y = matrices(random, rows, inner, columns, dtype)
        assert bits([small_product(x, y)]) == bits([chain(x, y)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes", [(5, 7, 3), (13, 20, 6), (33, 30, 10), (20, 64, 128), (6, 300, 21), (40, 270, 5), (21, 270, 2)]
)
def test_bits_do_not_depend_on_how_matrices_lie(dtype, sizes):
    """Transposed, backwards, with gaps, at odd bytes; into memory with gaps, too."""
    rows, inner, columns = sizes
    random = np.random.default_rng(1)
    x, y = matrices(random, rows, inner, columns, dtype)
    expected = small_product(x, y)
    np.testing.assert_allclose(expected, x.astype(np.longdouble) @ y, rtol=0, atol=inner * 10 * np.finfo(dtype).eps)
    for first in layouts_of(x).values():
        for name, second in layouts_of(y).items():
            assert bits([small_product(first, second)]) == bits([expected]), name
    around = np.full((rows, columns + 3), 7, dtype)
    for out in (around[:, :columns], np.empty((columns, rows), dtype).T, layouts_of(expected * 0)["not aligned"]):
        assert small_product(x, y, out) is out
        assert bits([np.array(out, order="C")]) == bits([expected])
    within = np.full(rows * columns + 64, 7, dtype)
    small_product(x, y, within[32:-32].reshape(rows, columns))
    assert within[32:-32].tobytes() == expected.tobytes()
    # Nothing is written beside the result.
    assert np.all(around[:, columns:] == 7)
    assert np.all(within[:32] == 7)
    assert np.all(within[-32:] == 7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_are_those_of_the_elements(dtype):
    """Columns that fill a register raise nothing of their own; what np.errstate asks for is done for the others."""
    x, y = np.ones((6, 9), dtype), np.ones((9, 3), dtype)
    x[2, 3] = np.inf
    with np.errstate(all="raise"):
        assert np.isinf(small_product(x, y)[2]).all()
        assert np.isinf(small_product(x, np.asfortranarray(y))[2]).all()
        y[3, 1] = 0
        with pytest.raises(FloatingPointError, match="invalid"):
            small_product(x, y)
    with np.errstate(invalid="ignore"):
        assert np.isnan(small_product(x, y)[2]).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_fits_no_such_product_is_numpys(dtype):
    """Wrong shapes are NumPy's errors, other types its products; without terms the sums are 0."""
    x, y = np.ones((6, 9), dtype), np.ones((9, 3), dtype)
    for given in ((x, y[:8]), (x[:, :8], y), (x, y, np.empty((6, 4), dtype)), (x, y, np.empty((5, 3), dtype))):
        with pytest.raises(ValueError, match="matmul"):
            small_product(*given)
    others = [(x.astype(np.float16), y), (x.astype(">f8"), y), (x[0], y), (x, y[:, 0])]
    for one, other in ((x, y.astype(complex)), *others):
        assert bits([small_product(one, other)]) == bits([np.matmul(one, other)])
    wide = np.zeros((6, 3))
    assert small_product(x, y, wide) is wide
    assert np.all(wide == 9)
    assert bits([small_product(x[:, :0], y[:0])]) == bits([np.zeros((6, 3), dtype)])


SIZES = {
    "a small net": ((32, 64, 48), True),
    "least": ((8, 16, 8), True),
    "below": ((8, 16, 7), False),
    "most": ((64, 64, 128), "single"),
    "above": ((64, 64, 129), False),
    "most of double precision": ((64, 64, 32), True),
    "few columns": ((128, 784, 6), "single"),
    "more columns": ((128, 784, 9), False),
    "a row": ((1, 64, 64), False),
    "a column": ((64, 64, 1), False),
}


@pytest.mark.parametrize("name", SIZES)
def test_which_products_are_small(name):
    """Sizes and types alone tell, so that one product has the same bits wherever it stands."""
    (rows, inner, columns), wanted = SIZES[name]
    for function in (np.matmul, np.dot):
        for dtype in DTYPES:
            x, y = np.ones((rows, inner), dtype), np.ones((inner, columns), dtype)
            for given in ((x, y), (np.asfortranarray(x), y[::-1])):
                is_wanted = wanted is True or (wanted == "single" and dtype is np.float32)
                assert [small.is_small(one) for one in trace(function, *given).equations] == [is_wanted]
    mixed = np.ones((32, 64), np.float32), np.ones((64, 48))
    for given in (mixed, [a.astype(complex) for a in mixed], (np.ones((2, 32, 64)), mixed[1]), (np.ones(64), mixed[1])):
        assert not any(small.is_small(one) for one in trace(np.matmul, *given).equations)


def energy(x, w, v):
    """A net of two layers."""
    return np.sum(np.tanh(np.dot(x, w)) @ v)


def operands(dtype, members=()):
    """Rows of data, and two matrices of parameters."""
    random = np.random.default_rng(3)
    return [random.standard_normal((*members, *shape)).astype(dtype) for shape in ((32, 40), (40, 24), (24, 10))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_executors_have_the_same_bits(dtype):
    """A function, its gradient, and the gradient under the least budget there is."""
    given, whole = operands(dtype), grad(energy, (0, 1, 2))
    sources = {executor: jit(whole, executor=executor).program(*given).source for executor in ("reference", "machine")}
    assert "small_product(" in sources["reference"]
    assert "SmallProduct(" in sources["machine"]
    assert bits([jit(energy, executor="machine")(*given)]) == bits([jit(energy)(*given)])
    expected = jit(whole)(*given)
    np.testing.assert_allclose(expected[1], whole(*given)[1], rtol=0, atol=1000 * np.finfo(dtype).eps)
    for executor in sources:
        assert bits(jit(whole, executor=executor)(*given)) == bits(expected)
        with pytest.raises(BudgetError) as error:
            jit(whole, executor=executor, budget=Budget(memory=1))(*given)
        assert bits(jit(whole, executor=executor, budget=Budget(memory=error.value.least))(*given)) == bits(expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_members_have_the_bits_of_one(threads):
    """The machine runs them one by one, in threads."""
    whole, many = grad(energy, (0, 1, 2)), operands(np.float32, (5,))
    found = jit(vmap(whole), executor="machine", threads=threads)(*many)
    for k in range(5):
        assert bits([part[k] for part in found]) == bits(jit(whole)(*[a[k] for a in many]))


def test_derivatives_of_programs_with_small_products():
    """First and second order, forward and reverse, against differences."""
    check_grads(jit(energy), *operands(np.float64), order=2)


def test_a_small_product_takes_no_memory():
    """Nothing is copied, whichever operand is transposed."""
    x, y, out = np.ones((40, 64)), np.ones((48, 64)), np.empty((40, 48))
    small_product(x, y.T, out)
    assert peak_bytes(lambda: small_product(x, y.T, out)) < 2000


def test_without_a_loop_of_our_own_products_are_numpys(monkeypatch):
    """Where the processor has none, programs have the products of BLAS."""
    monkeypatch.setattr(small, "HAS_SMALL_PRODUCTS", False)
    given = operands(np.float32)
    program = jit(energy).program(*given)
    assert "small_product(" not in program.source
    assert "np.matmul(" in program.source
