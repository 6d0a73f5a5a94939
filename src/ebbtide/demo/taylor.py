"""The Taylor test of the demo, which is that of the library at given distances."""

from __future__ import annotations

from ebbtide.optimize.taylor import TaylorTest, taylor_remainders

__all__ = ["TaylorTest", "taylor_remainders"]
