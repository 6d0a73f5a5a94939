"""Convolution, correlation and filters of `scipy.signal`, with SciPy's arguments and values, and derivatives."""

from ebbtide.scipy.signal.convolutions import convolve as convolve
from ebbtide.scipy.signal.convolutions import convolve2d as convolve2d
from ebbtide.scipy.signal.convolutions import correlate as correlate
from ebbtide.scipy.signal.convolutions import correlate2d as correlate2d
from ebbtide.scipy.signal.convolutions import fftconvolve as fftconvolve
from ebbtide.scipy.signal.convolutions import oaconvolve as oaconvolve
from ebbtide.scipy.signal.filters import detrend as detrend
from ebbtide.scipy.signal.filters import lfilter as lfilter

__all__ = [
    "convolve",
    "convolve2d",
    "correlate",
    "correlate2d",
    "detrend",
    "fftconvolve",
    "lfilter",
    "oaconvolve",
]
