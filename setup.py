"""What pyproject.toml cannot say: the compiled parts, which are left out where there is no C compiler."""

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup

PARTS = (
    "_steps", "_axes", "_links", "_chains", "_compiled",
    "_reductions", "_products", "_indices", "_windows", "_interpreter", "_arguments", "_meter", "_heap", "_tuples",
)  # fmt: skip
HEADERS = ("ahead", "loops", "fused", "sums", "windows", "workers", "products", "rows", "tiles", "exponential")
machine = [
    Extension(
        f"ebbtide.machine.{name}",
        [f"src/ebbtide/machine/{name}.pyx"],
        include_dirs=[np.get_include(), "src/ebbtide/machine"],
        depends=[f"src/ebbtide/machine/{name}.h" for name in HEADERS],
        define_macros=[(name, "NPY_2_0_API_VERSION") for name in ("NPY_NO_DEPRECATED_API", "NPY_TARGET_VERSION")],
        extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno", "-pthread"],
        extra_link_args=["-pthread"],
        optional=True,
    )
    for name in PARTS
]
checksums = Extension(
    "ebbtide.storage._crc32c",
    ["src/ebbtide/storage/_crc32c.pyx"],
    include_dirs=["src/ebbtide/storage"],
    depends=["src/ebbtide/storage/crc32c.h", "src/ebbtide/storage/beside.h"],
    extra_compile_args=["-O2", "-pthread"],
    extra_link_args=["-pthread"],
    optional=True,
)
setup(
    ext_modules=cythonize([*machine, checksums], build_dir="build", include_path=["src"]),
    options={"build_ext": {"parallel": True}},  # as many compilers as there are processors
)
