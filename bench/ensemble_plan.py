"""The hand-built plan of `bench.ensembles`: C with SciPy's sgemm, compiled when the bench runs."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cython_blas

_MOST_LAYERS = 4
_FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")


class _Plan(ctypes.Structure):
    _fields_ = [
        ("sgemm", ctypes.c_void_p), ("layers", ctypes.c_int), ("sizes", ctypes.c_int * (_MOST_LAYERS + 1)),
        ("batch", ctypes.c_int), ("parameters", ctypes.c_int), ("images", ctypes.c_void_p),
        ("labels", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("flat", ctypes.c_void_p), ("mean", ctypes.c_void_p),
        ("square", ctypes.c_void_p), ("step", ctypes.c_float), ("epsilon", ctypes.c_float), ("first", ctypes.c_int),
        ("last", ctypes.c_int), ("workspace", ctypes.c_void_p),
    ]  # fmt: skip


def compiled(directory: str) -> Any:
    """Return the library; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = Path(directory) / "ensembles.so"
    source = Path(__file__).with_name("ensembles.c")
    subprocess.run([compiler, *_FLAGS, str(source), "-o", str(target), "-lm", "-lpthread"], check=True)
    return ctypes.CDLL(str(target))


def _sgemm() -> int:
    """Return the address of SciPy's sgemm, from the capsule that Cython code would import it by."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = cython_blas.__pyx_capi__["sgemm"]
    return api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))


class Plan:
    """
    A step of many nets; parameters and averages are changed in place.

    Args:
        library: What `compiled` returned.
        sizes: Lengths of the layers.
        flat: Parameters (nets, n) in float32.
        batch: Rows for each net.
        images: Data (rows, inputs) in float32.
        labels: Classes (rows,) in int64.
        threads: 1 or 2.
    """

    def __init__(
        self, library: Any, sizes: tuple[int, ...], flat: Any, batch: int, images: Any, labels: Any, threads: int
    ) -> None:
        self.flat, self.mean, self.square = flat, np.zeros_like(flat), np.zeros_like(flat)
        self._data = images, labels
        self._library, self._threads, self._count = library, threads, 0
        nets, parameters = flat.shape
        length = batch * (sum(sizes) + 2 * max(sizes[1:])) + parameters
        self.workspace = np.empty((threads, -(-length // 16) * 16), np.float32)
        self._plans = (_Plan * threads)()
        sgemm = _sgemm()
        for k, plan in enumerate(self._plans):
            plan.sgemm, plan.layers, plan.batch, plan.parameters = sgemm, len(sizes) - 1, batch, parameters
            plan.sizes[: len(sizes)] = sizes
            plan.images, plan.labels = images.ctypes.data, labels.ctypes.data
            plan.flat, plan.mean, plan.square = (a.ctypes.data for a in (self.flat, self.mean, self.square))
            plan.first, plan.last = nets * k // threads, nets * (k + 1) // threads
            plan.workspace = self.workspace[k].ctypes.data

    def step(self, rows: Any, rate: float) -> None:
        """Do a step of all nets on rows (nets, batch) in int64."""
        self._count += 1
        root = math.sqrt(1 - 0.999**self._count)
        for plan in self._plans:
            plan.rows = rows.ctypes.data
            plan.step, plan.epsilon = rate * root / (1 - 0.9**self._count), 1e-8 * root
        self._library.step(self._plans, self._threads)
