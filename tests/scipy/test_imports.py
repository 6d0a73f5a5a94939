"""What `import ebbtide` leaves alone."""

from __future__ import annotations

import subprocess
import sys


def test_modules_are_imported_by_who_asks_for_them():
    """`import ebbtide` imports none of SciPy's larger modules, and each of ours only its own."""
    heavy = "import sys, ebbtide; print(sorted({'scipy.stats', 'scipy.signal', 'scipy.integrate'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
