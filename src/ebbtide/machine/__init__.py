"""
The compiled part of Ebbtide: steps that run without Python.

It is built when Ebbtide is installed and a C compiler is there; without it programs run as NumPy source alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np


def _no_heap(steps: bool = True) -> AbstractContextManager[None]:
    """Keep nothing: freed memory goes to the C library."""
    del steps
    return nullcontext()


try:
    from ebbtide.machine._arguments import Form, are_free
    from ebbtide.machine._chains import Chain, Elementwise
    from ebbtide.machine._heap import Heap
    from ebbtide.machine._indices import Indexed
    from ebbtide.machine._interpreter import Machine
    from ebbtide.machine._links import MOST_LINKS, MOST_OPERANDS, MOST_VALUES
    from ebbtide.machine._meter import Meter
    from ebbtide.machine._products import HAS_SMALL_PRODUCTS, Product, ProductSum, SmallProduct, add_gemm, small_product
    from ebbtide.machine._reductions import Reduction
    from ebbtide.machine._tuples import free_dead_tuples
    from ebbtide.machine._windows import Convolution, Pooling
    from ebbtide.machine.compiling import compiled
except ImportError:  # not built
    Chain = Convolution = Elementwise = Indexed = Machine = Meter = Pooling = Product = ProductSum = Reduction = None
    Form = SmallProduct = add_gemm = are_free = compiled = free_dead_tuples = None
    small_product, HAS_SMALL_PRODUCTS = np.matmul, False
    Heap = _no_heap
    MOST_LINKS = MOST_OPERANDS = MOST_VALUES = 0

__all__ = [
    "HAS_SMALL_PRODUCTS",
    "MOST_LINKS",
    "MOST_OPERANDS",
    "MOST_VALUES",
    "Chain",
    "Convolution",
    "Elementwise",
    "Form",
    "Heap",
    "Indexed",
    "Machine",
    "Meter",
    "Pooling",
    "Product",
    "ProductSum",
    "Reduction",
    "SmallProduct",
    "add_gemm",
    "are_free",
    "compiled",
    "free_dead_tuples",
    "small_product",
]
