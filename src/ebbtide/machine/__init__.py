"""
The compiled part of Ebbtide: chains of elementwise operations that run without Python.

It is built when Ebbtide is installed and a C compiler is there; without it programs run as NumPy source alone.
"""

from __future__ import annotations

try:
    from ebbtide.machine._interpreter import MOST_LINKS, MOST_OPERANDS, MOST_VALUES, Chain
except ImportError:  # not built
    Chain = None
    MOST_LINKS = MOST_OPERANDS = MOST_VALUES = 0

__all__ = ["MOST_LINKS", "MOST_OPERANDS", "MOST_VALUES", "Chain"]
