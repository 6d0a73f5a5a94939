"""Examples of Fourier transforms: odd and even lengths, cut and padded, each norm, one and several axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .example import Example, M, T, V, calls

COMPLEX = calls((V,), (M, 5, 0, "ortho"), (M, 3), (M, {"norm": "forward", "axis": 0}))
REAL = calls((V,), (M, 5, 0, "ortho"), (M, 3), (M, {"norm": "forward"}), complex=False)
BACK = calls((V,), (M, 5, 0, "ortho"), (M, 4), (M, 9, {"norm": "forward"}), (V, 1))

FOURIER: dict[Any, tuple[Example, ...]] = {
    **dict.fromkeys((np.fft.fft, np.fft.ifft), COMPLEX),
    **dict.fromkeys((np.fft.rfft, np.fft.ihfft), REAL),
    **dict.fromkeys((np.fft.irfft, np.fft.hfft), BACK),
    **{f: calls((M,), (T, (2, 5), (0, 2), "ortho")) for f in (np.fft.fftn, np.fft.ifftn)},
    np.fft.rfftn: calls((M,), (T, (2, 5), (0, 2), "ortho"), complex=False),
    np.fft.irfftn: calls((M,), (T, (2, 5), (0, 2), "ortho")),
    **{f: calls((M,), (T, {"s": (2, -1), "axes": (0, 1)}), (M, {"norm": "ortho"}))
       for f in (np.fft.fft2, np.fft.ifft2, np.fft.irfft2)},
    np.fft.rfft2: calls((T,), (T, {"s": (2, -1), "axes": (0, 1)}), (M, {"norm": "ortho"}), complex=False),
    np.fft.fftshift: calls((V,), (M, 1), (T, (0, 2))),
    np.fft.ifftshift: calls((V,), (M,), (M, {"axes": (0,)})),
}
