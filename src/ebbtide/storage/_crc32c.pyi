from typing import Any

from numpy.typing import NDArray

def extend(checksum: int, content: NDArray[Any] | bytes, /) -> int: ...
