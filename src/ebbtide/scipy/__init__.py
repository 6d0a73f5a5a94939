"""
SciPy's functions that its own dispatch does not show to traced arrays, with their signatures.

Each module is imported by those who ask for it (`import ebbtide.scipy.stats`); SciPy's ufuncs, such as
`scipy.special.erf`, need nothing from here.
"""
