from collections.abc import Sequence
from typing import Any

MOST: int

class Machine:
    steps: tuple[Any, ...]

    def __init__(self, *steps: Any, workspace: int = -1) -> None: ...
    def __call__(self, *arrays: Any) -> None: ...
    def run(self, arrays: Sequence[Any], strides: Sequence[int], members: int, threads: int = 1) -> None: ...
