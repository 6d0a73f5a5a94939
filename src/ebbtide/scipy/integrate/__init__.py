"""Differential equations and sums over samples of `scipy.integrate`, with SciPy's arguments, and derivatives."""

from ebbtide.scipy.integrate.equations import odeint as odeint
from ebbtide.scipy.integrate.equations import solve_ivp as solve_ivp
from ebbtide.scipy.integrate.quadrature import quad as quad
from ebbtide.scipy.integrate.samples import cumulative_trapezoid as cumulative_trapezoid
from ebbtide.scipy.integrate.samples import simpson as simpson
from ebbtide.scipy.integrate.samples import trapezoid as trapezoid

__all__ = ["cumulative_trapezoid", "odeint", "quad", "simpson", "solve_ivp", "trapezoid"]
