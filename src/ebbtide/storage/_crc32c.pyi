from typing import Any

from numpy.typing import NDArray

IS_THERE: bool

def extend(checksum: int, content: NDArray[Any] | bytes, /) -> int: ...
