"""
Interpolation, with derivatives with respect to the values and to the points where they are asked for.

Values are SciPy's to the last bit. Derivatives are those of the same piecewise polynomials, written as operations that
have derivatives; where pieces meet they are those of the piece that SciPy takes the value from.
"""

from ebbtide.scipy.interpolate.cubics import CubicSpline as CubicSpline
from ebbtide.scipy.interpolate.cubics import PchipInterpolator as PchipInterpolator
from ebbtide.scipy.interpolate.grids import RegularGridInterpolator as RegularGridInterpolator

__all__ = ["CubicSpline", "PchipInterpolator", "RegularGridInterpolator"]
