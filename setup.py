"""What pyproject.toml cannot say: the compiled part, which is left out where there is no C compiler."""

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup

interpreter = Extension(
    "ebbtide.machine._interpreter",
    ["src/ebbtide/machine/_interpreter.pyx"],
    include_dirs=[np.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    extra_compile_args=["-O2", "-frounding-math"],
    optional=True,
)
setup(ext_modules=cythonize([interpreter], build_dir="build"))
