"""How tests start scripts on ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.scale import FULL

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")
LIMIT = 900.0 if FULL else 240.0  # seconds


def on_ranks(
    count: int, script: str, *arguments: str, interrupted_at: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """
    Run a script on ranks; one that hangs is ended.

    Where a file is named, Ctrl-C comes when that is there, as from a terminal: to the whole group of processes.
    """
    command = [str(MPIEXEC), "-n", str(count), sys.executable, "-W", "error", str(HERE / script), *arguments]
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path} | variables
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=alone, start_new_session=True
    ) as process:
        try:
            if interrupted_at is not None:
                _wait_for(interrupted_at, process)
                time.sleep(0.3)  # until a rank is in its fault
                os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a file is there, or a process has ended."""
    start = time.perf_counter()
    while not path.exists() and process.poll() is None:
        assert time.perf_counter() - start < LIMIT
        time.sleep(0.01)
