"""Products of the sweep: sizes that reach BLAS, stacks, many operands, and what they hold."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from ebbtide import grad, vjp
from ebbtide.machine.blas import find_gemm

SHAPES = (
    ((40, 50), (50, 60)), ((50,), (50, 60)), ((40, 50), (50,)), ((50,), (50,)),
    ((5, 40, 50), (50, 60)), ((5, 40, 50), (5, 50, 60)), ((40, 50), (5, 50, 60)), ((1, 40, 50), (5, 50, 60)),
    ((2, 5, 40, 50), (5, 50, 60)), ((5, 40, 50), (50,)), ((50,), (5, 50, 60)),
    ((3, 0), (0, 4)), ((3, 4, 0), (0, 4)), ((0, 4, 5), (5, 6)), ((0, 4, 5), (0, 5, 6)),
)  # fmt: skip
SUMS = (
    ("ij,jk->ik", (40, 50), (50, 60)),
    ("bij,bjk->bik", (3, 40, 50), (3, 50, 60)),
    ("bhqd,bhkd->bhqk", (2, 3, 40, 50), (2, 3, 45, 50)),
    ("ij,jk,kl->il", (40, 50), (50, 60), (60, 30)),
    ("ijk,jl,kl->il", (20, 30, 40), (30, 50), (40, 50)),
    ("ijab,abkl->klij", (10, 11, 12, 13), (12, 13, 9, 8)),
    ("i...,j...->ij...", (30, 4, 5), (40, 4, 5)),
    ("ij,jk->ik", (40, 1), (50, 60)),
    ("a,b,c,d->abcd", (4,), (5,), (6,), (7,)),
    ("ij,kl->", (4, 5), (6, 7)),
)


def check(call: Any, arrays: list[Any], tolerance: float) -> None:
    """Fail unless <w, J d> = <J^T w, d> for a function that is linear in each argument."""
    rng = np.random.default_rng(1)

    def like(a: Any) -> Any:
        real = rng.standard_normal(a.shape)
        return (real + 1j * rng.standard_normal(a.shape) if a.dtype.kind == "c" else real).astype(a.dtype)

    value, pull = vjp(call, *arrays)
    w, directions = like(value), [like(a) for a in arrays]
    found = pull(w.copy())
    for a, g in zip(arrays, found, strict=True):
        assert (g.shape, g.dtype) == (a.shape, a.dtype)
    pushed = [call(*[d if j == k else a for j, a in enumerate(arrays)]) for k, d in enumerate(directions)]
    forward = sum(np.sum(w * p) for p in pushed)
    reverse = sum(np.sum(g * d) for g, d in zip(found, directions, strict=True))
    scale = 1 + np.sqrt(sum(np.sum(np.abs(w * p) ** 2) for p in pushed))
    assert abs(forward - reverse) <= tolerance * scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shapes", SHAPES)
def test_matmul_of_all_shapes(shapes, dtype):
    """The dot-product test of matmul, once and accumulated: vectors, matrices, stacks, broadcast stacks, empty ones."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    tolerance = 1e-3 if dtype == np.float32 else 1e-11
    check(np.matmul, [x, y], tolerance)
    check(lambda x, y: np.matmul(x, y) + 2 * np.matmul(x, y), [x, y], tolerance)


@pytest.mark.parametrize("case", SUMS, ids=[" ".join((text, *map(str, shapes))) for text, *shapes in SUMS])
def test_sums_of_products(case):
    """The dot-product test of einsum where its pulls are products of matrices, and where they are not."""
    text, *shapes = case
    rng = np.random.default_rng(0)
    check(lambda *arrays: np.einsum(text, *arrays), [rng.standard_normal(shape) for shape in shapes], 1e-11)


@pytest.mark.parametrize("text", ["bij,bjk->bik", "bij,jk->bik", "ij,bjk->bik"])
def test_sums_of_large_products_are_products(text, monkeypatch):
    """The pulls of a large sum of products are np.matmul, stacks included, which einsum's own loops are slower than."""
    sizes = {"b": 3, "i": 40, "j": 50, "k": 60}
    left, right = text.partition("->")[0].split(",")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal([sizes[c] for c in term]) for term in (left, right))
    _, pull = vjp(lambda x, y: np.einsum(text, x, y), x, y)
    g = rng.standard_normal((3, 40, 60))
    wanted = np.einsum(f"bik,{right}->{left}", g, y)
    if left == "bij":  # else the sum of the stack is einsum's
        monkeypatch.setattr(np, "einsum", None)
    np.testing.assert_allclose(pull(g)[0], wanted, rtol=1e-10, atol=1e-12)


class Symbol(ctypes.Structure):
    """What the C library knows of an address."""

    _fields_ = (("library", ctypes.c_char_p), *[(name, ctypes.c_void_p) for name in ("base", "name", "address")])


def test_products_are_added_by_the_blas_of_numpy():
    """What adds a product into a sum is in the library that np.matmul calls, and not in one with threads of its own."""
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    paths = {Path(one.filepath).resolve() for one in found}
    of_numpy = {path for path in paths if path.parent.name == "numpy.libs"} or paths
    for letter in "fdFD":
        symbol = Symbol()
        assert ctypes.CDLL(None).dladdr(ctypes.c_void_p(find_gemm(letter)), ctypes.byref(symbol))
        assert Path(symbol.library.decode()).resolve() in of_numpy


@pytest.mark.parametrize("text", ["ij,ij->i", "ij,j->i", "ij,ij,ij->i"])
def test_sums_of_nothing_are_pulled_without_einsum(text, monkeypatch):
    """Cotangents of sums of nothing are made as zeros: NumPy's einsum writes beyond empty ones of extended floats."""
    shapes = [[{"i": 3, "j": 0}[letter] for letter in term] for term in text.split("->")[0].split(",")]
    operands = [np.ones(shape, np.clongdouble) for shape in shapes]
    value, pull = vjp(lambda *operands: np.einsum(text, *operands), *operands)
    monkeypatch.setattr(np, "einsum", None)
    found = pull(np.ones(np.shape(value), np.clongdouble)[()])
    assert [(g.shape, g.dtype, np.count_nonzero(g)) for g in found] == [(x.shape, x.dtype, 0) for x in operands]



def test_weights_of_a_stack_take_no_stack_of_products():
    """The gradient of weights that a whole stack shares is one product: no product for each matrix is held."""
    x, w = np.ones((200, 16, 64)), np.ones((64, 64))
    gradient = grad(lambda w: np.sum(np.matmul(x, w)))
    gradient(w)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    gradient(w)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    # The stack of products would be 200 times w, which is 4 times the output and the cotangent of it.
    assert peak <= 2.2 * x.nbytes
