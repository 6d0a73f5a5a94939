"""A small run with a journal, forward and reverse, that can be stopped, killed and resumed."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.resuming.journal import Journal
from ebbtide.loop.resuming.journal_entries import Forward, Leaves, Reverse
from ebbtide.storage import compute_crc32c
from ebbtide.storage.system import POSIX

STEPS, INTERVAL = 42, 3
FINGERPRINT = {"steps": str(STEPS), "code of step": "1a2b", "threads of BLAS": "1"}
FAST = replace(POSIX, synchronize=lambda descriptor: None)


class StopError(Exception):
    """The run is stopped from within."""


class Progress:
    """What a run says about itself: steps done forward, steps left in reverse, and where it began."""

    def __init__(self):
        self.shared = mmap.mmap(-1, 64)
        self.values = np.frombuffer(self.shared, np.int64)

    forward = property(lambda self: int(self.values[0]))
    left = property(lambda self: int(self.values[1]))
    forward_begin = property(lambda self: int(self.values[2]))
    reverse_begin = property(lambda self: int(self.values[3]))

    def say(self, place, value):
        """Note a value, for other processes too."""
        self.values[place] = value


def step(x, c):
    """One step."""
    return x + 0.1 * np.sin(x * c)


def pull(x, c, g):
    """The cotangents of a step: of its state, and of the static value."""
    slope = 0.1 * np.cos(x * c)
    return g + g * slope * c, g * slope * x


def run(path, system=FAST, stop=None, progress=None, fingerprint=FINGERPRINT, seed=1.0):
    """
    Run to the end, or to the number of steps `stop` in all, and return the bytes of value, outputs and gradients.

    The initial state depends on *seed* only.
    """
    progress = progress or Progress()
    progress.values[:] = (0, STEPS, -1, -1, 0, 0, 0, 0)
    directory = ResumeDirectory(path, system=system)
    done = 0

    def count():
        nonlocal done
        done += 1
        if done == stop:
            raise StopError

    try:
        journal = Journal(directory, fingerprint, most_anchors=5)
        journal.begin()
        start, c = np.linspace(0.5, 1.5, 40) * seed, np.linspace(1.0, 2.0, 40)
        final = run_forward(journal, start, c, count, progress)
        found = run_reverse(journal, start, c, count, progress)
        directory.finish()
    finally:
        directory.close()
    (state,), outputs = final.state.arrays, final.outputs.arrays[0]
    return b"".join(array.tobytes() for array in (state, outputs, *found))


def run_forward(journal, start, c, count, progress):
    """The forward sweep: its end."""
    final = journal.final()
    progress.say(2, -1)
    if final is not None:
        return final
    outputs = np.zeros(STEPS)
    place = journal.latest_forward() or Forward(0, Leaves([start]), Leaves([outputs]), 0)
    progress.say(2, place.step)
    (x,), (outputs,), ran = place.state.arrays, place.outputs.arrays, place.ran
    for index in range(place.step, STEPS):
        x = step(x, c)
        ran += 1
        outputs[index] = x.sum()
        count()
        if (index + 1) % INTERVAL == 0:
            journal.save_forward(Forward(index + 1, Leaves([x]), Leaves([outputs]), ran))
            journal.save_anchor(index + 1, Leaves([x]))
        progress.say(0, index + 1)
    final = Forward(STEPS, Leaves([x]), Leaves([outputs]), ran)
    journal.save_final(final)
    return final


def run_reverse(journal, start, c, count, progress):
    """The reverse sweep: the gradients."""
    g, total = np.ones(40), np.zeros(40)
    incoming = compute_crc32c(g)
    place = journal.latest_reverse() or Reverse(STEPS, Leaves([g]), Leaves([total, None]), Leaves([]), 0, incoming)
    journal.check("incoming cotangent", incoming, place.incoming)
    progress.say(3, place.end)
    (g,), total = place.cotangent.arrays, place.statics.arrays[0]
    for index in range(place.end - 1, -1, -1):
        g, more = pull(state_at(journal, index, start, c), c, g)
        total = total + more
        count()
        if index % INTERVAL == 0:
            journal.save_reverse(Reverse(index, Leaves([g]), Leaves([total, None]), Leaves([]), 0, incoming))
        progress.say(1, index)
    return g, total


def state_at(journal, index, start, c):
    """The state before a step, from the last restart state before it."""
    for known in reversed([0, *journal.anchors()]):
        found = Leaves([start]) if known == 0 else journal.load_anchor(known) if known <= index else None
        if found is not None:
            (x,) = found.arrays
            for _ in range(known, index):
                x = step(x, c)
            return x
    raise AssertionError


# Kills.

CALLS = ("unlink", "rmdir", "rename", "replace", "mkdir", "ftruncate", "open")


def deadly(at):
    """A system whose call of number *at*, and any like it of the interpreter's own, kills the process."""
    calls = 0

    def wrap(function, torn=False):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == at:
                if torn:
                    descriptor, block, offset = arguments
                    view = memoryview(block).cast("B")
                    os.pwrite(descriptor, view[: len(view) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))
    return replace(
        FAST,
        pwrite=wrap(os.pwrite, torn=True),
        allocate=wrap(POSIX.allocate),
        punch=wrap(POSIX.punch),
        synchronize=wrap(FAST.synchronize),
    )


def run_in_child(path, at, progress):
    """Run in a forked process that dies at its call of number *at*: (signal or 0, result); no warning is told."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        warnings.simplefilter("error")
        os.write(writer, run(path, deadly(at), progress=progress))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        result = answer.read()
    return os.waitpid(child, 0)[1], result


def kill_everywhere(parent, first, stride):
    """
    Kill a run at every call, kill the resumed run too, and run to the end.

    Prints how many first kills there were, and every case in which the end is another one or too much was lost.
    """
    expected = run(parent / "expected")
    at, never = first, 10**9
    while True:
        path, progress = parent / str(at), Progress()
        status, _ = run_in_child(path, at, progress)
        if status == 0:
            break
        for again in (1 + at * 7 % 90, never):
            # Without its file the run is over, and the next one is another.
            goes_on = (path / "segment").exists()
            before, left = progress.forward, progress.left
            status, result = run_in_child(path, again, progress)
            lost = before - progress.forward_begin if progress.forward_begin >= 0 else 0
            if goes_on and (lost > INTERVAL or progress.reverse_begin > left + INTERVAL):
                print("lost", at, again, before, left, progress.values)
            if status == 0:
                break
        if status or result != expected or path.exists():
            print("differs", at, status)
        at += stride
    print("kills", (at - first) // stride)


if __name__ == "__main__":
    kill_everywhere(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
