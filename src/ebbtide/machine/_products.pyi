from typing import Any

class Product:
    uses_blas: bool

    def __init__(
        self, shape: tuple[int, ...], sizes: tuple[int, int, int], operands: tuple[Any, ...], types: str
    ) -> None: ...

class ProductSum:
    uses_blas: bool

    def __init__(self, sizes: tuple[int, int, int], operands: tuple[Any, ...]) -> None: ...

class SmallProduct:
    uses_blas: bool

    def __init__(self, sizes: tuple[int, int, int], operands: tuple[Any, ...]) -> None: ...

HAS_SMALL_PRODUCTS: bool

def add_gemm(a: Any, b: Any, c: Any, a_turned: bool, b_turned: bool) -> None: ...
def small_product(x: Any, y: Any, out: Any = None) -> Any: ...
