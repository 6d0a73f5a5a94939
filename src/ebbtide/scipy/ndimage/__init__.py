"""
Linear filters of `scipy.ndimage`, with derivatives with respect to the array and to the weights, and `map_coordinates`.

A filter extends the array beyond its boundary and takes sums of products with the weights. The cotangent of the array
is the transposed of both, to the last element at the boundary: the sums are spread, and what was spread beyond the
boundary is added to where its values came from.
"""

from ebbtide.scipy.ndimage.coordinates import map_coordinates as map_coordinates
from ebbtide.scipy.ndimage.filters import convolve as convolve
from ebbtide.scipy.ndimage.filters import convolve1d as convolve1d
from ebbtide.scipy.ndimage.filters import correlate as correlate
from ebbtide.scipy.ndimage.filters import correlate1d as correlate1d
from ebbtide.scipy.ndimage.filters import gaussian_filter as gaussian_filter
from ebbtide.scipy.ndimage.filters import gaussian_filter1d as gaussian_filter1d
from ebbtide.scipy.ndimage.filters import gaussian_laplace as gaussian_laplace
from ebbtide.scipy.ndimage.filters import laplace as laplace
from ebbtide.scipy.ndimage.filters import prewitt as prewitt
from ebbtide.scipy.ndimage.filters import sobel as sobel
from ebbtide.scipy.ndimage.filters import uniform_filter as uniform_filter
from ebbtide.scipy.ndimage.filters import uniform_filter1d as uniform_filter1d

__all__ = [
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "gaussian_filter",
    "gaussian_filter1d",
    "gaussian_laplace",
    "laplace",
    "map_coordinates",
    "prewitt",
    "sobel",
    "uniform_filter",
    "uniform_filter1d",
]
