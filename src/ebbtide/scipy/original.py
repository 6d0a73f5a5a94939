"""How a function here stands for one of SciPy's: as those of `ebbtide.numpy` do."""

from ebbtide.rules.originals import is_traced, stands_for

__all__ = ["is_traced", "stands_for"]
