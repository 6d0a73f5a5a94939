"""
The rules of SciPy's special functions, together; who imports this module has them.

`import ebbtide` leaves them out, as `scipy.special` is a part of what it takes that many programs do not need. They are
declared when the first ufunc comes by that has no rule yet, and before a call whose memory is watched.
"""

from __future__ import annotations

from ebbtide.rules import bessel, gamma, incomplete, special

__all__ = ["bessel", "gamma", "incomplete", "special"]
