from typing import Any

MOST_OPERANDS: int
MOST_VALUES: int
MOST_LINKS: int

def name_of(operation: Any) -> str: ...
