"""The functions that NumPy and SciPy users differentiate: each has a rule, and examples with a derivative."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any

import pytest

from .examples import EXAMPLES

NUMPY = """
abs absolute acos acosh add amax amin angle append arccos arccosh arcsin arcsinh arctan arctan2 arctanh array_split
asin asinh astype atan atan2 atanh atleast_1d atleast_2d atleast_3d average broadcast_to cbrt clip column_stack
compress concatenate conj conjugate convolve copy copysign corrcoef correlate cos cosh cov cross cumprod cumsum
deg2rad degrees delete diag diagonal diff divide dot dsplit dstack ediff1d einsum exp exp2 expand_dims expm1 fabs flip
fliplr flipud float_power fmax fmin fmod full_like gradient hsplit hstack hypot imag inner insert interp kron linspace
log log10 log1p log2 logaddexp logaddexp2 matmul max maximum mean median meshgrid min minimum mod moveaxis multiply
nan_to_num nanmax nanmean nanmin nanstd nansum nanvar negative outer pad partition percentile permute_dims polyval pow
power prod ptp quantile rad2deg radians ravel real real_if_close reciprocal remainder repeat reshape roll rollaxis
rot90 select sin sinc sinh sort split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis tan
tanh tensordot tile trace transpose trapezoid tril triu true_divide unique unwrap vander var vdot vsplit vstack where
divmod
"""
STEPS = "floor ceil rint trunc sign round floor_divide heaviside argmax argsort equal less isnan isfinite logical_and"
LINALG = """
cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_norm matrix_power multi_dot norm pinv qr slogdet solve svd
svdvals vector_norm
"""
FFT = "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn fftshift ifftshift"
SPECIAL = """
beta betainc betaln digamma erf erfc erfcinv erfinv expit gamma gammainc gammaincc gammaln i0 i1 iv ive j0 j1 jn
logit psi rgamma y0 y1 yn
"""
WRAPPED = {
    "scipy.special": "logsumexp softmax log_softmax polygamma multigammaln",
    "scipy.stats.norm": "cdf logcdf logpdf logsf pdf sf",
    "scipy.stats.t": "cdf logcdf logpdf pdf",
    "scipy.stats.beta": "cdf logpdf pdf",
    "scipy.stats.gamma": "cdf logpdf pdf",
    "scipy.stats.chi2": "cdf logpdf pdf",
    "scipy.stats.poisson": "cdf logpmf pmf",
    "scipy.stats.dirichlet": "logpdf pdf",
    "scipy.stats.multivariate_normal": "entropy logpdf pdf",
    "scipy.linalg": "solve_banded solve_sylvester solve_triangular sqrtm expm logm cho_solve",
    "scipy.signal": "convolve",
    "numpy": "array full asarray",
}


def resolved(path: str) -> Any:
    """Return what a dotted path names: an attribute of the longest part of it that is a module."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        return reduce(getattr, parts[count:], module)
    raise ImportError(path)


def has_examples(path: str, *, smooth: bool) -> bool:
    """Return whether the sweeps over all rules call a function, somewhere with a derivative if it has one."""
    found = EXAMPLES.get(resolved(path), ())
    return any(example.smooth for example in found) if smooth else bool(found)


@pytest.mark.parametrize(
    ("module", "names"),
    [("numpy", NUMPY), ("numpy.linalg", LINALG), ("numpy.fft", FFT), ("scipy.special", SPECIAL)]
    + [(f"ebbtide.{module}", names) for module, names in WRAPPED.items()],
)
def test_every_name(module, names):
    """Functions are differentiated by the names that they have in NumPy and SciPy, or in ours where those are blind."""
    assert [name for name in names.split() if not has_examples(f"{module}.{name}", smooth=True)] == []


def test_steps_have_none():
    """Functions whose derivative is zero or does not exist pass their values through."""
    assert [name for name in STEPS.split() if not has_examples(f"numpy.{name}", smooth=False)] == []
