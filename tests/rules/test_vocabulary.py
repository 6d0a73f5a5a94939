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
cholesky cond det eigh eigvals eigvalsh inv lstsq matrix_norm matrix_power multi_dot norm pinv qr slogdet solve svd
svdvals vector_norm
"""
FFT = "fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn fftshift ifftshift"
SPECIAL = """
beta betainc betaln digamma erf erfc erfcinv erfinv expit gamma gammainc gammaincc gammaln i0 i1 iv ive j0 j1 jn
logit psi rgamma y0 y1 yn
"""
WRAPPED = {
    "scipy.special": "logsumexp softmax log_softmax polygamma multigammaln",
    "scipy.linalg": "solve_banded solve_sylvester solve_triangular sqrtm expm cho_solve",
    "scipy.signal": "convolve correlate lfilter",
    "numpy": "array full asarray",
}
# Whose derivatives are tested in tests/scipy, tests/rules/test_linalg.py and tests/rules/test_sorting.py.
ELSEWHERE = """
ebbtide.scipy.stats.norm.cdf ebbtide.scipy.stats.norm.logcdf ebbtide.scipy.stats.norm.logpdf
ebbtide.scipy.stats.norm.logsf ebbtide.scipy.stats.norm.pdf ebbtide.scipy.stats.norm.sf ebbtide.scipy.stats.t.cdf
ebbtide.scipy.stats.t.logcdf ebbtide.scipy.stats.t.logpdf ebbtide.scipy.stats.t.pdf ebbtide.scipy.stats.beta.cdf
ebbtide.scipy.stats.beta.logpdf ebbtide.scipy.stats.beta.pdf ebbtide.scipy.stats.gamma.cdf
ebbtide.scipy.stats.gamma.logpdf ebbtide.scipy.stats.gamma.pdf ebbtide.scipy.stats.chi2.cdf
ebbtide.scipy.stats.chi2.logpdf ebbtide.scipy.stats.chi2.pdf ebbtide.scipy.stats.poisson.cdf
ebbtide.scipy.stats.poisson.logpmf ebbtide.scipy.stats.poisson.pmf ebbtide.scipy.stats.dirichlet.logpdf
ebbtide.scipy.stats.dirichlet.pdf ebbtide.scipy.stats.multivariate_normal.entropy
ebbtide.scipy.stats.multivariate_normal.logpdf ebbtide.scipy.stats.multivariate_normal.pdf numpy.linalg.eig
ebbtide.scipy.linalg.logm ebbtide.scipy.integrate.odeint ebbtide.scipy.integrate.solve_ivp
ebbtide.scipy.sparse.csr_array ebbtide.scipy.sparse.linalg.spsolve ebbtide.scipy.sparse.linalg.splu
ebbtide.scipy.sparse.linalg.cg ebbtide.scipy.sparse.linalg.gmres ebbtide.scipy.ndimage.correlate
ebbtide.scipy.ndimage.convolve ebbtide.scipy.ndimage.gaussian_filter ebbtide.scipy.optimize.root
ebbtide.scipy.optimize.fixed_point ebbtide.scipy.interpolate.RegularGridInterpolator
"""


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


@pytest.mark.parametrize("path", ELSEWHERE.split())
def test_is_there(path):
    """What cannot be swept over with the others is called by its own name, too."""
    assert callable(resolved(path))


def test_steps_have_none():
    """Functions whose derivative is zero or does not exist pass their values through."""
    assert [name for name in STEPS.split() if not has_examples(f"numpy.{name}", smooth=False)] == []
