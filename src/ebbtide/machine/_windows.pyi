from typing import Any

class Convolution:
    uses_blas: bool

    def __init__(
        self, kind: str, images: tuple[int, ...], kernels: tuple[int, ...], strides: tuple[int, int],
        padding: tuple[int, int], count: tuple[int, int], operands: tuple[Any, ...],
    ) -> None: ...  # fmt: skip

class Pooling:
    uses_blas: bool

    def __init__(
        self, kind: str, images: tuple[int, ...], window: tuple[int, int], strides: tuple[int, int],
        count: tuple[int, int], operands: tuple[Any, ...],
    ) -> None: ...  # fmt: skip
