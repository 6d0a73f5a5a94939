from typing import Any

class Chain:
    source: tuple[Any, ...]

    def __init__(self, count: int, *instructions: tuple[Any, ...]) -> None: ...
    def __call__(self, *arrays: Any) -> None: ...

class Elementwise:
    uses_blas: bool

    def __init__(self, shape: tuple[int, ...], operands: tuple[Any, ...], *instructions: tuple[Any, ...]) -> None: ...
