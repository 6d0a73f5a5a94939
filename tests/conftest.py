"""What all tests share."""

from __future__ import annotations

import os

# Before NumPy is imported: on busy cores the threads of BLAS wait for each other in loops, and small products take
# many times as long. Bits do not depend on it in one run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
