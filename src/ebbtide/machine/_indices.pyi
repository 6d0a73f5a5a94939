from typing import Any

class Indexed:
    def __init__(
        self, kind: str, whole: tuple[int, ...], shape: tuple[int, ...], array: tuple[Any, ...], parts: tuple[Any, ...],
        *indices: tuple[Any, ...],
    ) -> None: ...  # fmt: skip
