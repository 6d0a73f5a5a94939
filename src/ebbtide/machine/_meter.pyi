from types import TracebackType
from typing import Self

class Meter:
    peak: int
    beyond: int
    exact: bool
    @property
    def live(self) -> int: ...
    def count(self, nbytes: int) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
