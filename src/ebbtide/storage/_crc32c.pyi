from typing import Any

from numpy.typing import NDArray

IS_WIDE: bool

def extend(checksum: int, content: NDArray[Any] | bytes, is_wide: bool = ...) -> int: ...
