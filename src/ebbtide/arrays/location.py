"""Where in the user's program something happened."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import numpy as np

HOME = str(Path(__file__).resolve().parent.parent) + "/"
# The demo is a user of the library that lies in the same folder.
_DEMO = HOME + "demo/"
# The files of the library itself: to look a name up takes a third of the time of comparing its beginning.
OURS = frozenset(name for name in map(str, Path(HOME).rglob("*.py")) if not name.startswith(_DEMO))
# Parts of NumPy, SciPy and torch are written in Python: who asks for a place wants that of the call of them.
_PACKAGES = str(Path(np.__file__).resolve().parent.parent)
_ARRAY_LIBRARIES = (f"{_PACKAGES}/numpy/", f"{_PACKAGES}/scipy/", f"{_PACKAGES}/torch/")


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to the library itself."""
    return filename in OURS


def is_library(filename: str) -> bool:
    """Return whether a file belongs to the library itself, NumPy, SciPy or torch."""
    return filename in OURS or filename.startswith(_ARRAY_LIBRARIES)


def user_frame() -> FrameType | None:
    """Return the innermost frame outside of the library, NumPy, SciPy and torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename not in OURS and not filename.startswith(_ARRAY_LIBRARIES):
            break
        frame = frame.f_back
    return frame


def user_line() -> str:
    """Return file and line of the innermost frame outside of the library, NumPy, SciPy and torch."""
    frame = user_frame()
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def describe_array(array: np.ndarray) -> str:
    """Return "array", the name that a running function of the user or its module has for it, and its type."""
    frame, name = user_frame(), None
    while frame is not None and name is None:
        if frame.f_code.co_filename not in OURS:
            own = {**frame.f_globals, **frame.f_locals}
            name = next((key for key, value in reversed(own.items()) if value is array), None)
        frame = frame.f_back
    named = "" if name is None else f"{name} "
    return f"array {named}of shape {array.shape} and dtype {array.dtype}"


def line_of(code: CodeType | None, instruction: int) -> str:
    """Return file and line of an instruction of a code object."""
    if code is None:
        return "an unknown place"
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return f"{code.co_filename}:{line}"
    return f"{code.co_filename}:{code.co_firstlineno}"
