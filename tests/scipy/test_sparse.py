"""Sparse matrices: products and solutions, with derivatives with respect to vectors and entries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import linalg as original
from tests.measure import peak_bytes

from ebbtide import MutationError, SolutionError, TraceError, grad, jit, jvp, linearize, timeloop, vjp, vmap
from ebbtide.schedules import Revolve, StoreAll
from ebbtide.scipy import sparse
from ebbtide.scipy.sparse import linalg
from ebbtide.testing import check_grads

RANDOM = np.random.default_rng(3)
DENSE = RANDOM.random((4, 4)) * (RANDOM.random((4, 4)) < 0.6) + 3 * np.eye(4)
X, Y = RANDOM.random(4), RANDOM.random((4, 2))
FORMATS = ("csr", "csc", "coo")


def plain_of(form, dense=DENSE):
    """Return SciPy's matrix in a format."""
    return getattr(scipy.sparse, f"{form}_array")(dense)


def maker(form, dense=DENSE):
    """Return a function that makes the matrix with other entries, and the entries."""
    plain = plain_of(form, dense)
    make = getattr(sparse, f"{form}_array")
    where = (plain.coords,) if form == "coo" else (plain.indices, plain.indptr)
    return lambda data: make((data, *where), shape=plain.shape), plain.data


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128, np.longdouble])
def test_values(form, dtype):
    """Products have SciPy's bits and types, on plain arrays and on traced ones."""
    plain = plain_of(form, DENSE[:3]).astype(dtype)
    A = getattr(sparse, f"{form}_array")(plain)
    for given in (X, Y, np.asfortranarray(Y), Y[:, :0]):
        x = given.astype(dtype) * dtype(1 + 0.5j if np.dtype(dtype).kind == "c" else 1)
        for found in (A @ x, A.dot(x), vjp(lambda x: A @ x, x)[0]):
            expected = plain @ x
            assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
    z = X[:3].astype(dtype)
    assert (z @ A).tobytes() == (z @ plain).tobytes()
    assert vjp(lambda z: z @ A, z)[0].tobytes() == (z @ plain).tobytes()
    assert A.toarray().tobytes() == plain.toarray().tobytes()
    assert A.T.shape == (4, 3)


@pytest.mark.parametrize("executor", ["reference", "machine"])
@pytest.mark.parametrize("form", FORMATS)
def test_products_in_programs(form, executor):
    """A traced array and a matrix with traced entries have products from both sides, in programs and batches, too."""
    make, data = maker(form)
    for product in (
        lambda x, d: make(d) @ x, lambda x, d: x.T @ make(d), lambda x, d: x.T @ (d[0] * make(d) / d[1]),
    ):  # fmt: skip
        loss = lambda x, d, f=product: np.sum(np.sin(f(x, d)))
        for x in (X, Y):
            value, gradients = product(x, data), grad(loss, argnums=(0, 1))(x, data)
            assert np.allclose(jit(product, executor=executor)(x, data), value)
            assert np.allclose(vmap(product)(x[None], data[None])[0], value)
            for way in (grad(jit(loss, executor=executor), argnums=(0, 1)), jit(grad(loss, argnums=(0, 1)))):
                assert all(np.allclose(g, h) for g, h in zip(way(x, data), gradients, strict=True))


@pytest.mark.parametrize("transform", [grad, jit], ids=["grad", "jit"])
def test_what_is_no_product(transform):
    """What a traced array and a sparse matrix do not give is refused with what it is."""
    A = sparse.csr_array(plain_of("csr"))
    with pytest.raises(TraceError, match=r"Multiply A\.data instead"):
        transform(lambda x: np.sum(x * A))(X)
    with pytest.raises(TypeError, match=r"unsupported operand.* 'TracedArray' and 'SparseArray'"):
        transform(lambda x: np.sum(x + A))(X)
    with pytest.raises(TraceError, match=r"with a csr_array\. Convert it to a NumPy array first"):
        transform(lambda x: np.sum(x @ plain_of("csr")))(X)
    for product in (lambda x: plain_of("csr") @ x, lambda x: x @ plain_of("csr"), lambda x: plain_of("csr").dot(x)):
        with pytest.raises(TraceError, match=r"rite A = ebbtide\.scipy\.sparse\.csr_array\(A\)"):
            transform(lambda x, f=product: np.sum(f(x)))(X)


@pytest.mark.parametrize("form", FORMATS)
def test_products(form):
    """Products from both sides have derivatives with respect to entries and vectors, to second order."""
    make, data = maker(form)
    for x in (X, Y):
        check_grads(lambda d, x: np.sum(np.sin(make(d) @ x)), data, x, order=2)
        check_grads(lambda d, x: np.sum(np.sin(x.T @ make(d))), data, x, order=2)
    check_grads(lambda d, x: np.sum(abs(make(d).T @ x) ** 2), data * (1 + 0.2j), X * (1 - 0.3j))


@pytest.mark.parametrize("form", FORMATS)
def test_transforms_of_products(form):
    """Programs and batches of products give what the products give."""
    make, data = maker(form)
    for x in (X, Y):
        f = lambda d, x: np.sum(np.sin(make(d) @ x))
        expected = grad(f, (0, 1))(data, x)
        for found in (jit(grad(f, (0, 1)))(data, x), grad(jit(f), (0, 1))(data, x)):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-13)
        members = np.stack([data, 2 * data, 3 * data]), np.stack([x, 0.5 * x, -x])
        for axes in ((0, 0), (None, 0), (0, None)):
            given = [m if axis == 0 else m[0] for m, axis in zip(members, axes, strict=True)]
            found = vmap(grad(f, (0, 1)), axes)(*given)
            for k in range(3):
                one = [m[k] if axis == 0 else m for m, axis in zip(given, axes, strict=True)]
                for part, wanted in zip(found, grad(f, (0, 1))(*one), strict=True):
                    np.testing.assert_allclose(part[k], wanted, rtol=1e-12)
        assert vmap(f, (0, 0))(members[0][:0], members[1][:0]).shape == (0,)
    pushed = linearize(lambda x: make(data) @ x, X)[1](X)
    assert pushed.tobytes() == (plain_of(form) @ X).tobytes()


def test_types_of_cotangents():
    """Cotangents have the types of what they belong to, also where that is coarser than the product."""
    make, data = maker("csr")
    for of_data, of_x in (("f4", "f8"), ("f8", "f4"), ("f4", "f4"), ("f8", ">f8")):
        found = grad(lambda d, x: np.sum(make(d) @ x), (0, 1))(data.astype(of_data), X.astype(of_x))
        assert [g.dtype for g in found] == [np.dtype(of_data), np.dtype(of_x)]


def test_memory():
    """No dense matrix is made, forward or reverse; and of plain entries nothing is copied."""
    n = 4000
    made = scipy.sparse.diags_array([np.ones(n), np.full(n - 1, 0.5)], offsets=[0, 1], format="csr")
    A, x = sparse.csr_array(made), np.ones(n)
    assert A.data is made.data
    assert A.indices is made.indices

    def f(d, x):
        return np.sum((sparse.csr_array((d, made.indices, made.indptr), shape=(n, n)) @ x) ** 2)

    call = grad(f, (0, 1))
    call(made.data, x)
    assert peak_bytes(lambda: call(made.data, x)) < 12 * made.data.nbytes
    solve = grad(lambda d, x: np.sum(linalg.spsolve(sparse.csr_array((d, made.indices, made.indptr), shape=(n, n)), x)))
    solve(made.data, x)
    assert peak_bytes(lambda: solve(made.data, x)) < 20 * made.data.nbytes


def test_changed_entries():
    """Entries that were changed between a product and its sweep are an error."""
    plain = plain_of("csr")
    A = sparse.csr_array(plain)
    _, pullback = vjp(lambda x: A @ x, X)
    plain.data[0] += 1
    with pytest.raises(MutationError):
        pullback(X)


def test_matrices():
    """Sums, multiples, conversions and diagonals are SciPy's, and have derivatives with respect to the entries."""
    def built(d):
        A = sparse.diags_array([d, 2 * d[1:], d[:1]], offsets=[0, -1, 2], shape=(4, 4))
        # Two entries in one place are added, and the order of entries is arbitrary.
        B = sparse.csr_array((d**2, ([3, 0, 3, 1], [3, 1, 3, 0])), shape=(4, 4))
        return (A - B.tocsc() * 2.0).tocoo().T / 3.0

    def plain(d):
        A = scipy.sparse.diags_array([d, 2 * d[1:], d[:1]], offsets=[0, -1, 2], shape=(4, 4))
        B = scipy.sparse.csr_array((d**2, ([3, 0, 3, 1], [3, 1, 3, 0])), shape=(4, 4))
        return (A - B * 2.0).T.toarray() / 3.0

    np.testing.assert_allclose(built(X).toarray(), plain(X), rtol=1e-14)
    check_grads(lambda d: np.sum(built(d).toarray() ** 3), X, order=2)
    A = sparse.csr_array(plain_of("csr"))
    np.testing.assert_array_equal((A @ A).toarray(), (plain_of("csr") @ plain_of("csr")).toarray())
    assert sparse.csr_array(A.tocoo(), dtype=np.float32).dtype == np.float32


def test_refusals():
    """What depends on the values of a traced matrix, or has no place for it, says what to write instead."""
    with pytest.raises(TraceError, match=r"data, \(rows, columns\)"):
        grad(lambda d: np.sum(sparse.csr_array(d) @ X))(DENSE)
    make, data = maker("csr")
    with pytest.raises(TraceError, match="traced entries"):
        grad(lambda d: np.sum((make(d) @ make(d)).data))(data)
    with pytest.raises(TraceError, match=r"Multiply A\.data"):
        make(data) * X
    with pytest.raises(ValueError, match=r"shape \(4, 4\) has no product with an array of shape \(3,\)"):
        make(data) @ X[:3]
    with pytest.raises(TraceError, match=r"toarray"):
        linalg.spsolve(make(data), plain_of("csc"))
    with pytest.raises(TraceError, match="LinearOperator"):
        linalg.cg(original.LinearOperator((4, 4), lambda x: x), X)


SOLVERS = {
    "spsolve": linalg.spsolve,
    "splu": lambda A, b: linalg.splu(A).solve(b),
    "transposed": lambda A, b: linalg.splu(A).solve(b, "T"),
    "adjoint": lambda A, b: linalg.splu(A).solve(b, "H"),
    "factorized": lambda A, b: linalg.factorized(A)(b),
    "gmres": lambda A, b: linalg.gmres(A, b, rtol=1e-13)[0],
    "bicgstab": lambda A, b: linalg.bicgstab(A, b, rtol=1e-13)[0],
}


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(name):
    """A solution has derivatives with respect to right-hand side and entries, to second order, and in programs."""
    solve = SOLVERS[name]
    make, data = maker("csr")
    f = lambda d, b: np.sum(np.sin(solve(make(d), b)))
    check_grads(f, data, X, order=2)
    expected = grad(f, (0, 1))(data, X)
    for found in (jit(grad(f, (0, 1)))(data, X), grad(jit(f), (0, 1))(data, X)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    found = vmap(grad(f, (0, 1)))(np.stack([data, 2 * data]), np.stack([X, 3 * X]))
    np.testing.assert_allclose(found[0][1], grad(f)(2 * data, 3 * X), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["spsolve", "splu", "transposed"])
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_entries_in_no_order(form, name):
    """SciPy brings entries in order for an elimination, and adds those of one place: not those of the user's arrays."""
    rows, columns = np.nonzero(DENSE)
    rows, columns = (rows, columns) if form == "csr" else (columns, rows)
    backwards = columns[np.lexsort((-columns, rows))]
    make = getattr(sparse, f"{form}_array")
    for more in (0, 1):  # of the first entry
        indices = np.append(backwards[:more], backwards)
        starts = np.append(0, np.cumsum(np.bincount(rows, minlength=4)) + more)
        data, before = 3 * RANDOM.random(len(indices)) + 1, indices.copy()
        f = lambda d, b: np.sum(np.sin(SOLVERS[name](make((d, indices, starts), shape=(4, 4)), b)))
        check_grads(f, data, X, order=2)
        np.testing.assert_array_equal(indices, before)


@pytest.mark.parametrize("name", ["spsolve", "splu", "gmres"])
def test_complex_solvers(name):
    """Complex matrices and right-hand sides."""
    make, data = maker("csc")
    f = lambda d, b: np.sum(abs(SOLVERS[name](make(d), b)) ** 2)
    check_grads(f, data * (1 + 0.1j), X * (1 - 0.5j))


def test_values_of_solutions():
    """Solutions have SciPy's bits, with one or several right-hand sides, traced or not."""
    plain = plain_of("csc")
    A = sparse.csc_array(plain)
    for b in (X, Y, Y[:, :1]):
        assert linalg.spsolve(A, b).tobytes() == original.spsolve(plain, b).tobytes()
        assert vjp(lambda b: linalg.spsolve(A, b), b)[0].shape == original.spsolve(plain, b).shape
        assert vjp(lambda b: linalg.splu(A).solve(b), b)[0].tobytes() == original.splu(plain).solve(b).tobytes()
        for form in ("csr", "csc"):  # SciPy solves with each as it is
            expected = original.spsolve(plain_of(form), b)
            assert vjp(lambda b, form=form: linalg.spsolve(plain_of(form), b), b)[0].tobytes() == expected.tobytes()
    for name in ("cg", "gmres", "bicgstab"):
        symmetric = scipy.sparse.csr_array(DENSE + DENSE.T)
        expected = getattr(original, name)(symmetric, X, rtol=1e-9)
        found = getattr(linalg, name)(sparse.csr_array(symmetric), X, rtol=1e-9)
        assert (found[0].tobytes(), found[1]) == (expected[0].tobytes(), expected[1])
        assert vjp(lambda b: getattr(linalg, name)(symmetric, b, rtol=1e-9)[0], X)[0].tobytes() == expected[0].tobytes()


def test_several_right_hand_sides():
    """A right-hand side of several columns, and one of single precision, have gradients of their types."""
    make, data = maker("csc")
    check_grads(lambda d, b: np.sum(np.sin(linalg.spsolve(make(d), b))), data, Y, order=2)
    found = grad(lambda d, b: np.sum(linalg.spsolve(make(d), b)), (0, 1))(data.astype("f4"), Y.astype("f4"))
    assert [g.dtype for g in found] == [np.float32, np.float32]


def test_matrix_free():
    """Methods with a function for a matrix: the derivative goes into what the function closes over."""
    symmetric = DENSE @ DENSE.T

    def f(k, b, method=linalg.cg):
        A = linalg.LinearOperator((4, 4), lambda x: symmetric @ x * k + np.concatenate([x[:1] * k, x[1:]]))
        return np.sum(np.sin(method(A, b, rtol=1e-13)[0]))

    check_grads(f, np.float64(1.2), X, order=2)
    check_grads(lambda k, b: f(k, b, linalg.gmres), np.float64(1.2), X, order=2)
    np.testing.assert_allclose(jit(grad(f))(1.2, X), grad(f)(1.2, X), rtol=1e-10)
    np.testing.assert_allclose(grad(jit(f))(1.2, X), grad(f)(1.2, X), rtol=1e-10)
    np.testing.assert_allclose(vmap(grad(f), (0, None))(np.array([1.2, 1.5]), X)[1], grad(f)(1.5, X), rtol=1e-10)
    hermitian = DENSE + DENSE.T + 1j * (DENSE - DENSE.T) + 8 * np.eye(4)
    check_grads(lambda b: np.sum(abs(linalg.cg(hermitian, b, rtol=1e-13)[0]) ** 2), X * (1 + 0.5j))
    check_grads(lambda S, b: np.sum(np.sin(linalg.gmres(S, b, rtol=1e-13)[0])), DENSE, X, order=2)


def test_preconditioners_and_tolerances():
    """Tolerances hold for solves of derivatives, a preconditioner is transposed there, and a failure is an error."""
    n = 60
    plain = scipy.sparse.diags_array([np.linspace(1, 50, n), np.ones(n - 1)], offsets=[0, 1], format="csr")
    factors = original.splu(plain.tocsc())
    whole = original.LinearOperator((n, n), factors.solve, rmatvec=lambda b: factors.solve(b, "T"))
    seen = []

    def product(x):
        seen.append(x)
        return plain.data * 0 if x is None else A @ x

    A = sparse.csr_array(plain)
    f = lambda b, **options: np.sum(linalg.gmres(linalg.LinearOperator((n, n), product), b, **options)[0] ** 2)
    exact = grad(lambda b: np.sum(linalg.spsolve(A, b) ** 2))(np.ones(n))
    counts = []
    for options in ({"rtol": 1e-10}, {"rtol": 1e-10, "M": whole}, {"rtol": 1e-2}):
        seen.clear()
        found = grad(lambda b: f(b, **options))(np.ones(n))
        counts.append(len(seen))
        np.testing.assert_allclose(found, exact, atol=np.max(abs(exact)) * options["rtol"] * 100)
    assert counts[1] < counts[2] < counts[0]
    with pytest.raises(SolutionError, match="did not converge"):
        grad(lambda b: f(b, rtol=1e-12, restart=2, maxiter=2))(np.ones(n))
    assert linalg.gmres(A, np.ones(n), rtol=1e-12, restart=2, maxiter=2)[1] > 0


def test_time_loop():
    """Implicit steps with a sparse solve: one gradient for all schedules, that of a loop in Python to rounding."""
    make, data = maker("csc")

    def f(d, u, schedule):
        factors = linalg.splu(make(d))
        return np.sum(timeloop(lambda u, _: factors.solve(u + 0.1 * u**2), u, 8, schedule=schedule) ** 2)

    def by_hand(d, u):
        factors = linalg.splu(make(d))
        for _ in range(8):
            u = factors.solve(u + 0.1 * u**2)
        return np.sum(u**2)

    found = [grad(f, (0, 1))(data, X, schedule) for schedule in (StoreAll(), Revolve(2))]
    assert [g.tobytes() for g in found[0]] == [g.tobytes() for g in found[1]]
    for one, other in zip(found[0], grad(by_hand, (0, 1))(data, X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    expected = np.sum(found[0][0] * data) + np.sum(found[0][1] * X)
    assert np.isclose(jvp(by_hand, (data, X), (data, X))[1], expected)
