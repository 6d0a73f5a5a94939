from typing import Any

import numpy as np

class Reduction:
    def __init__(
        self, shape: tuple[int, ...], operands: tuple[Any, ...], ufunc: np.ufunc, types: str, start: Any = None
    ) -> None: ...
