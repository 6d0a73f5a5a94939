from typing import Any

class Compiled:
    def __init__(self, steps: tuple[Any, ...], places: tuple[tuple[int, int], ...], address: int) -> None: ...
