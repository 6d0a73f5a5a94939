"""Examples of the functions of `ebbtide.scipy`, which are called by these names."""

from __future__ import annotations

from typing import Any

from ebbtide.scipy import special

from .example import Example, Fixed, M, P, S, T, Z, between, calls

W = between(0.2, 1, 4)

SUMS: dict[Any, tuple[Example, ...]] = {
    special.logsumexp: calls((M,), (T, (0, 2)), (M, {"axis": 1, "keepdims": True}), (S,), (Z,))
    + calls((M, -1, W), (M, None, P, True, True), (M, 0, Fixed(-1.0), False, True), complex=False),
    special.softmax: calls((M,), (T, (0, 2)), (S,), complex=False),
    special.log_softmax: calls((M, -1), (M,), (Z,), complex=False),
}

SPECIAL: dict[Any, tuple[Example, ...]] = {
    special.polygamma: calls((0, P), (Fixed(2), P), complex=False),
    special.multigammaln: calls((P + 1, 3), (S + 3, 2), complex=False),
    special.zeta: calls((2.5, P), complex=False),
}

WRAPPED: dict[Any, tuple[Example, ...]] = {**SUMS, **SPECIAL}
