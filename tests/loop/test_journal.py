"""Journals: whatever happens to a run or to its files, it ends with the same bits, or says why it cannot go on."""

from __future__ import annotations

import errno
import gc
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.scale import FULL

import ebbtide
from ebbtide import cli
from ebbtide.errors import ResumeError, StorageError
from ebbtide.loop.holding import ahead
from ebbtide.loop.planning.plan import make_plan
from ebbtide.loop.planning.sizes import Sizes
from ebbtide.loop.resuming import journal as journal_module
from ebbtide.loop.resuming.directory import ResumeDirectory
from ebbtide.loop.resuming.journal import Journal
from ebbtide.loop.resuming.journal_entries import FORMAT, Forward, Leaves, Reverse, decode, encode
from ebbtide.loop.stepping.every import Every, every
from ebbtide.schedules import Position, Revolve, Snapshot
from ebbtide.schedules.parts import Parts
from ebbtide.storage import Disk, StorageLockedError
from ebbtide.storage.listing import list_storage
from ebbtide.storage.places import host_name
from ebbtide.storage.system import POSIX

from .journal_run import FAST, FINGERPRINT, INTERVAL, STEPS, Progress, StopError, run

SOURCE = str(Path(ebbtide.__path__[0]).parent)
MIB = 1 << 20
# Stopped in the forward sweep, between the sweeps, and in the reverse sweep.
PLACES = (10, STEPS, 2 * STEPS - 8)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The result of a run that nothing disturbs."""
    return run(tmp_path_factory.mktemp("journal") / "run")


def stopped(path, stop):
    """The directory of a run that was stopped."""
    with pytest.raises(StopError):
        run(path, stop=stop)
    return path


def python(arguments, **options):
    """A process that runs Python with this library."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, text=True, stdout=subprocess.PIPE, **options
    )


def resume(path):
    """Run to the end: (result, warnings, progress)."""
    progress = Progress()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(path, progress=progress)
    return result, [str(warning.message) for warning in caught], progress


def begun(path, fingerprint=FINGERPRINT, **options):
    """An open directory and its first journal."""
    directory = ResumeDirectory(path, system=FAST)
    journal = Journal(directory, fingerprint, **options)
    journal.begin()
    return directory, journal


def place(step, *arrays):
    """A place in the forward sweep."""
    return Forward(step, Leaves(arrays), Leaves([]), step)


def entry(path, name, step):
    """What the file says about an entry."""
    (found,) = [record for record in list_storage(path).entries if record.key == f"loop-0/{name}/{step}"]
    return found


def damage(path, offset):
    """Change a byte of the file."""
    with (path / "segment").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x41]))


# Kills.


def test_a_run_survives_a_kill_at_every_call(tmp_path):
    """SIGKILL at each of 200 calls and more, and again in the resumed run: same bits, at most q steps lost."""
    stride = 1 if FULL else 4
    process = python([Path(__file__).with_name("journal_run.py"), tmp_path, 1, stride])
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    *problems, kills = out.splitlines()
    assert problems == []
    assert int(kills.removeprefix("kills ")) * stride >= 200


@pytest.mark.parametrize("stop", PLACES)
def test_a_stopped_run_goes_on(tmp_path, expected, stop):
    """A stopped run goes on from its last save, ends with the same bits, and leaves nothing behind."""
    path = stopped(tmp_path / "run", stop)
    result, told, progress = resume(path)
    assert (result, told) == (expected, [])
    if stop < STEPS:
        assert progress.forward_begin == (stop - 1) // INTERVAL * INTERVAL
    else:
        assert progress.forward_begin == (-1 if stop > STEPS else STEPS - INTERVAL)
    assert list(tmp_path.iterdir()) == []


def test_legs_of_a_tenth(tmp_path, expected):
    """A run that may do a tenth of its steps and q more at a time is done after at most 12 legs."""
    for leg in range(1, 13):
        try:
            result = run(tmp_path / "run", stop=2 * STEPS // 10 + INTERVAL)
        except StopError:
            continue
        assert result == expected
        assert leg > 5
        return
    pytest.fail("not done")


@pytest.mark.parametrize("name", ["notes", "rank-notes.txt", "rank-0", "rank-1/notes", "rank-of/segment"])
def test_a_finished_directory_keeps_what_is_not_ours(tmp_path, expected, name):
    """A file of the user's in the directory is left there, and a directory that was never used is not made."""
    theirs = tmp_path / "run" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    assert run(tmp_path / "run") == expected
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [theirs]
    unused = ResumeDirectory(tmp_path / "unused")
    unused.finish()
    assert not unused.path.exists()
    with pytest.raises(StorageError, match="was closed"):
        Journal(unused, {}).begin()


def test_to_look_for_a_journal_makes_nothing(tmp_path):
    """Before it is begun a new journal is not there, nor is its directory; begun twice, it keeps what it has."""
    directory = ResumeDirectory(tmp_path / "run", system=FAST)
    journal = Journal(directory, FINGERPRINT)
    assert not journal.is_there()
    assert list(tmp_path.iterdir()) == []
    journal.begin()
    journal.save_forward(place(3, np.ones(2)))
    kept = directory.storage.keys()
    journal.begin()
    assert directory.storage.keys() == kept
    assert journal.is_there()
    assert not Journal(directory, FINGERPRINT).is_there()  # the next loop
    directory.close()


# Damage.


@pytest.mark.parametrize("stop", PLACES)
def test_any_truncation_is_survived(tmp_path, expected, stop):
    """A file that was cut off anywhere, in one of 60 places, costs steps and never changes a bit."""
    kept = stopped(tmp_path / "kept", stop)
    content = (kept / "segment").read_bytes()
    for length in range(0, len(content), max(1, len(content) // 60)):
        path = shutil.copytree(kept, tmp_path / "run")
        (path / "segment").write_bytes(content[:length])
        assert resume(path)[0] == expected


@pytest.mark.parametrize("stop", PLACES)
def test_any_flipped_byte_is_survived(tmp_path, expected, stop):
    """A changed byte, at 120 places drawn from all that was written, costs steps and never changes a bit."""
    kept = stopped(tmp_path / "kept", stop)
    random = np.random.default_rng(stop)
    offsets = [
        record.offset + place
        for record in list_storage(kept).entries
        for place in random.integers(record.length, size=1 + 120 // len(list_storage(kept).entries))
    ]
    assert len(offsets) >= 120
    told = 0
    for offset in offsets:
        path = shutil.copytree(kept, tmp_path / "run")
        damage(path, offset)
        result, messages, _ = resume(path)
        assert result == expected
        told += bool(messages)
    assert told > 0


@pytest.mark.parametrize("stop", PLACES)
@pytest.mark.parametrize("name", ["segment", "lock", "newest"])
def test_any_file_may_go(tmp_path, expected, stop, name):
    """A file that was removed costs steps and never changes a bit."""
    path = stopped(tmp_path / "run", stop)
    assert sorted(found.name for found in path.iterdir()) == ["lock", "newest", "segment"]
    (path / name).unlink()
    assert resume(path)[0] == expected


def test_damaged_entries_fall_back_one_by_one(tmp_path):
    """The last place is damaged, then the one before: each is told once, with file, offset and step."""
    path = stopped(tmp_path / "run", PLACES[2])
    ends = sorted(
        int(record.key.rpartition("/")[2]) for record in list_storage(path).entries if "/reverse/" in record.key
    )
    assert len(ends) == 2
    for end, older in (ends[0], ends[1]), (ends[1], None):
        record = entry(path, "reverse", end)
        damage(path, record.offset + record.length - 1)
        directory, journal = begun(path)
        with pytest.warns(RuntimeWarning, match=f"'reverse' of step {end}, loop 0,.*segment.* offset ") as caught:
            found = journal.latest_reverse()
        assert len(caught) == 1
        assert (found and found.end) == older
        directory.close()
    directory, journal = begun(path)
    assert journal.latest_reverse() is None
    assert journal.final().step == STEPS
    assert journal.latest_forward().step == STEPS
    directory.close()


def test_a_damaged_place_costs_little(tmp_path, expected):
    """If the last place in the forward sweep is damaged, the loop goes on from the one before, not from its start."""
    path = stopped(tmp_path / "run", STEPS - 5)
    record = entry(path, "forward", last := (STEPS - 6) // INTERVAL * INTERVAL)
    damage(path, record.offset + record.length - 1)
    result, (told,), progress = resume(path)
    assert f"'forward' of step {last}, loop 0, is damaged" in told
    assert (result, progress.forward_begin) == (expected, last - INTERVAL)


@pytest.mark.parametrize(
    ("stop", "name"), [(10, "forward"), (STEPS, "forward"), (STEPS + 1, "final"), (PLACES[2], "reverse")]
)
def test_a_place_without_header_is_missed(tmp_path, expected, stop, name):
    """If headers of places are damaged, one or all, a warning says which is missing, once; others are taken."""
    kept = stopped(tmp_path / "kept", stop)
    entries = [record for record in list_storage(kept).entries if f"/{name}/" in record.key]
    steps = sorted((int(record.key.rpartition("/")[2]) for record in entries), reverse=name != "reverse")
    words = f"'{name}' of step {steps[0]}, loop 0, is missing in .*segment"
    for lost in range(1, len(steps) + 1):
        path = shutil.copytree(kept, tmp_path / "run")
        for step in steps[:lost]:
            damage(path, entry(kept, name, step).offset + 9)
        with pytest.warns(RuntimeWarning, match=words) as caught:
            directory, _ = begun(path)
        assert len(caught) == 1
        directory.close()
        assert resume(path)[:2] == (expected, [])


@pytest.mark.parametrize("stop", PLACES)
def test_a_file_that_is_gone_is_missed(tmp_path, expected, stop):
    """If the file with all entries was removed, a warning tells of each kind of place; all steps run again."""
    path = stopped(tmp_path / "run", stop)
    (path / "segment").unlink()
    result, told, progress = resume(path)
    names = ["forward", "final", "reverse"][: 1 + (stop > STEPS) + (stop > STEPS + INTERVAL)]
    assert [re.search(r"'(\w+)' of step \d+, loop 0, is missing in .*segment", text)[1] for text in told] == names
    assert (result, progress.forward_begin) == (expected, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"loop-0/forward/": [7]}', '{"loop-0/forward/": null}'])
def test_what_is_missed_may_be_lost(tmp_path, expected, text):
    """The file that says what ought to be there may be damaged or gone: then nothing is missed."""
    path = stopped(tmp_path / "run", 10)
    (path / "newest").write_text(text)
    assert resume(path)[:2] == (expected, [])


def test_a_damaged_restart_state_is_missing(tmp_path):
    """A damaged restart state is told with file and step, once, and is no longer listed."""
    directory, journal = begun(tmp_path / "run")
    for step in (10, 20):
        assert journal.save_anchor(step, Leaves([np.full(9, step)]))
    directory.close()
    record = entry(tmp_path / "run", "anchor", 20)
    damage(tmp_path / "run", record.offset + record.length - 1)
    directory, journal = begun(tmp_path / "run")
    assert journal.anchors() == (10, 20)
    with pytest.warns(RuntimeWarning, match=r"'anchor' of step 20, .*segment") as caught:
        assert journal.load_anchor(20) is None
    assert len(caught) == 1
    assert (journal.anchors(), journal.load_anchor(20)) == ((10,), None)
    assert journal.load_anchor(10).arrays[0].tolist() == [10] * 9
    directory.close()


def test_a_lost_restart_state_takes_no_room_again():
    """Where a restart state of the journal is lost, one that the schedule stores there instead is one of its own."""
    sizes = Sizes(state=8, saved=8, nodes=0, sweep=8, gradients=8, stored=8)
    plan = make_plan(40, sizes, memory=None, disk=0, schedule=Revolve(2), held=0, costs=None)
    plan = replace(plan, schedule=Parts(plan.schedule, (10, 30)))
    kept = tuple(Snapshot(step, "restart", "disk") for step in (0, 10, 30))
    position = Position(steps=40, state=None, forward_ended=True, snapshots=kept)
    plan, position = ahead.without(plan, position, kept[2])
    assert plan.schedule == Parts(Revolve(2), (10,))
    assert [one.step for one in position.snapshots] == [0, 10]
    most = 0
    while (action := plan.schedule.next_action(position)) is not None:
        position = position.after(action)
        most = max(most, sum(one.tier == "memory" for one in position.snapshots))
    assert most == 1


# Another run.


def test_a_changed_call_is_refused(tmp_path):
    """What differs is named with both values, all of it, and what is the same is not; nothing is lost by it."""
    path = stopped(tmp_path / "run", 10)
    other = {"steps": "25", "code of step": "1a2b", "executor": "machine"}
    with pytest.raises(ResumeError) as caught:
        run(path, fingerprint=other)
    message = str(caught.value)
    for line in (
        f"steps: 25 now, {STEPS} in {path}",
        f"threads of BLAS: nothing now, 1 in {path}",
        f"executor: machine now, nothing in {path}",
        f"ebbtide clean {path}",
        "Time loop 0",
    ):
        assert line in message
    assert "code of step" not in message
    assert resume(path)[2].forward_begin == 9


def test_another_format_is_refused(tmp_path, monkeypatch):
    """A journal whose entries say something else is refused by its format, and not by what its checksums are of."""
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "FORMAT", "1")
        path = stopped(tmp_path / "run", 2 * STEPS - 8)
    with pytest.raises(ResumeError, match=f"has\n  format of the journal: {FORMAT} now, 1 in {path}\n"):
        run(path)
    # Before there was a number of it.
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "__init__", _without_format)
        older = stopped(tmp_path / "older", 10)
    with pytest.raises(ResumeError, match=f"has\n  format of the journal: {FORMAT} now, nothing in {older}\n"):
        run(older)


def _without_format(self, *arguments, begin=Journal.__init__, **options):
    begin(self, *arguments, **options)
    del self._fingerprint["format of the journal"]


def test_a_changed_call_is_refused_by_any_entry(tmp_path, expected):
    """Without the entry that says what the run is, the others say it: the same goes on, another one is refused."""
    path = stopped(tmp_path / "run", 10)
    record = entry(path, "begin", 0)
    for offset in (record.offset + record.length - 1, record.offset + 9):
        copy = shutil.copytree(path, tmp_path / "copy")
        damage(copy, offset)
        with warnings.catch_warnings(action="ignore"), pytest.raises(ResumeError, match="steps: 25 now"):
            run(copy, fingerprint={**FINGERPRINT, "steps": "25"})
        result, _, progress = resume(copy)
        assert (result, progress.forward_begin) == (expected, 9)
    # One that can be read is enough.
    *others, _ = sorted(list_storage(path).entries, key=lambda one: one.offset)
    for record in others:
        damage(path, record.offset + record.length - 1)
    with warnings.catch_warnings(action="ignore"), pytest.raises(ResumeError, match="steps: 25 now"):
        run(path, fingerprint={**FINGERPRINT, "steps": "25"})


def test_what_is_known_later_is_compared_too(tmp_path):
    """`check` is silent for what is the same, and else has both values in the form of all other fields."""
    directory, journal = begun(tmp_path / "run")
    journal.check("incoming cotangent", 5, 5)
    with pytest.raises(ResumeError, match=rf"incoming cotangent: 6 now, 5 in {tmp_path}"):
        journal.check("incoming cotangent", 6, 5)
    directory.close()


def test_entries_of_another_run_are_never_taken(tmp_path):
    """An entry that came there by another run is not used, even where the run itself is the same."""
    directory, journal = begun(tmp_path / "run")
    strange = encode({"steps": "1"}, place(3, np.ones(3)))
    directory.storage.put("loop-0/forward/3", strange)
    with pytest.warns(RuntimeWarning, match="belongs to another run"):
        assert journal.latest_forward() is None
    directory.close()


def test_a_second_process_is_refused(tmp_path, expected):
    """While a process runs in a directory a second one is told its host and number; after its death it may go on."""
    path = stopped(tmp_path / "run", 10)
    program = (
        "import sys; from ebbtide.loop.resuming.directory import ResumeDirectory\n"
        "directory = ResumeDirectory(sys.argv[1]); directory.storage; print('open', flush=True); input()\n"
        "import os; os.kill(os.getpid(), 9)\n"
    )
    holder = python(["-c", program, path], stdin=subprocess.PIPE)
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(StorageLockedError, match=f"process {holder.pid} on {re.escape(host_name())}"):
        run(path)
    holder.communicate("\n", timeout=60)
    result, told, progress = resume(path)
    assert (result, told, progress.forward_begin) == (expected, [], 9)


def test_loops_of_a_call_have_journals_of_their_own(tmp_path):
    """Two loops in one directory neither see nor disturb each other; one may be another run without the other."""
    directory = ResumeDirectory(tmp_path / "run", system=FAST)
    journals = [Journal(directory, {"steps": str(steps)}) for steps in (5, 7)]
    for step, journal in enumerate(journals, 1):
        journal.begin()
        journal.save_forward(place(step, np.full(3, step)))
        journal.save_anchor(step, Leaves([np.full(2, step)]))
    assert [journal.latest_forward().step for journal in journals] == [1, 2]
    assert [journal.anchors() for journal in journals] == [(1,), (2,)]
    directory.close()
    directory = ResumeDirectory(tmp_path / "run", system=FAST)
    Journal(directory, {"steps": "5"}).begin()
    with pytest.raises(ResumeError, match="Time loop 1 has\n  steps: 8 now, 7 in"):
        Journal(directory, {"steps": "8"}).begin()
    directory.close()


def test_the_command_shows_and_removes_a_run(tmp_path, capsys):
    """`ebbtide inspect` says what each entry is for, and `ebbtide clean` makes way for another run."""
    path = stopped(tmp_path / "run", PLACES[2])
    assert cli.main(["inspect", str(path), "--check"]) == 0
    out = capsys.readouterr().out
    assert "loop 0: end of the forward sweep" in out
    for part in (f"forward sweep after {STEPS} steps", "reverse sweep down to step"):
        assert part in out
    assert cli.main(["clean", str(path)]) == 0
    assert run(path, fingerprint={"steps": "other"})


# Trouble with the disk.


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_does_not_end_a_run(tmp_path, expected, number, lasting):
    """Whichever write or allocation fails, the run ends with the same bits, and with at most one warning."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    fatal, calls = 1, 10**9
    while fatal <= calls:
        calls = 0

        def fail(function, fatal=fatal):
            """Fail at the fatal call, or at all from it on."""

            def call(*arguments):
                nonlocal calls
                calls += 1
                if calls == fatal or (lasting and calls > fatal):
                    raise OSError(number, os.strerror(number))
                return function(*arguments)

            return call

        system = replace(FAST, pwrite=fail(os.pwrite), allocate=fail(POSIX.allocate))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert run(tmp_path / "run", system) == expected
        assert len(caught) <= 1
        assert all("could not be written" in str(warning.message) for warning in caught)
        assert not (tmp_path / "run").exists()
        fatal += 7
    assert fatal > 60
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG], ids=errno.errorcode.get)
def test_a_warning_names_the_argument_of_the_user(number, tmp_path):
    """That is `resume=`, where the storage would have another `directory=`."""
    directory, journal = begun_on_a_small_disk(tmp_path, 400_000, number)
    with pytest.warns(RuntimeWarning, match=r"could not be written: .* give a\w* resume=") as caught:
        journal.save_anchor(1, Leaves([np.zeros(100_000)]))
    assert not any("directory=" in str(one.message) for one in caught)
    directory.finish()


def test_values_of_a_function_are_compared_by_bits_that_mean_something(tmp_path):
    """What pads an extended float means nothing; two that are no numbers, and shown alike, are told by checksums."""

    def check(value):
        directory = ResumeDirectory(tmp_path / "run")
        try:
            assert directory.storage.keys() is not None
            directory.check_value(value)
        finally:
            directory.close()

    x, y = np.array(1.5, np.longdouble), np.array(1.5, np.longdouble)
    if np.finfo(np.longdouble).nmant == 63:
        y.reshape(1).view(np.uint8)[10:] = 7
    check(x)
    check(y)
    with pytest.raises(ResumeError, match=r"value of the function: np\.longdouble\('2\.5'\) now"):
        check(np.longdouble(2.5))
    shutil.rmtree(tmp_path / "run")
    check(np.float64(np.nan))
    both = r"function: \S*nan\S* with the checksum \w{8} now, \S*nan\S* with the checksum \w{8} in"
    with pytest.raises(ResumeError, match=both):
        check(np.copysign(np.float64(np.nan), -1.0))


def test_a_refusal_always_says_what_differs(tmp_path):
    """Also where two that differ have one text."""
    with pytest.raises(ResumeError, match="has\n  a sum: 1 now, 1 in"):
        ResumeDirectory(tmp_path / "run").refuse("The call", {"a sum": "1"}, {"a sum": "1"})


def begun_on_a_small_disk(tmp_path, limit, number=errno.ENOSPC):
    """A journal in a file that can have so many bytes."""

    def allocate(descriptor, offset, nbytes):
        if offset + nbytes > limit:
            raise OSError(number, os.strerror(number))

    directory = ResumeDirectory(tmp_path / "run", system=replace(FAST, allocate=allocate))
    journal = Journal(directory, {})
    journal.begin()
    return directory, journal


def test_a_full_disk_costs_restart_states_first(tmp_path):
    """A restart state that finds no room is told once; for a place in a sweep restart states make room."""
    size, used = 40_000, 0
    directory, journal = begun_on_a_small_disk(tmp_path, 10 * 8 * size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while journal.save_anchor(used + 1, Leaves([np.full(size, used)])):
            used += 1
        journal.save_anchor(used + 2, Leaves([np.zeros(size)]))
    assert ["could not be written" in str(warning.message) for warning in caught] == [True]
    assert used > 5
    journal.save_forward(place(used, np.full(size, 3.0)))
    assert journal.latest_forward().step == used
    assert 0 < len(journal.anchors()) < used
    directory.close()


def test_a_full_disk_costs_the_older_place_last(tmp_path):
    """Where restart states are gone and there is room for two places only, the older one makes way."""
    size = 40_000
    directory, journal = begun_on_a_small_disk(tmp_path, 2.5 * 8 * size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 9):
            journal.save_forward(place(step, np.full(size, step)))
            assert journal.latest_forward().step == step
    assert ["with fewer restart states" in str(warning.message) for warning in caught] == [True]
    directory.close()


def test_misuse_is_an_error(tmp_path):
    """An array of Python objects is not a matter of the disk: it is refused, and what was saved is still there."""
    directory, journal = begun(tmp_path / "run")
    journal.save_forward(place(1, np.ones(2)))
    with pytest.raises(StorageError, match="Python objects"):
        journal.save_forward(place(2, np.array([None])))
    assert journal.latest_forward().step == 1
    directory.close()


# Restart states.


@pytest.mark.parametrize("most", [1, 2, 5, 16])
@pytest.mark.parametrize("interval", [1, 7])
def test_restart_states_are_few_and_even(tmp_path, most, interval):
    """However long the loop, there are no more than asked for, and no gap is over four times an even one."""
    directory, journal = begun(tmp_path / "run", most_anchors=most)
    for step in range(interval, 200 * interval, interval):
        journal.save_anchor(step, Leaves([np.full(2, step)]))
        steps = journal.anchors()
        assert len(steps) <= most
        assert np.diff([0, *steps, step]).max() <= interval + 4 * step / most
    assert [journal.load_anchor(step).arrays[0][0] for step in steps] == list(steps)
    directory.close()
    directory, journal = begun(tmp_path / "run", most_anchors=most)
    assert journal.anchors() == steps
    assert not journal.save_anchor(steps[-1] + 1, Leaves([np.ones(2)])) or most < 3 or interval > 1
    directory.close()


def test_a_restart_state_that_others_make_room_for_may_be_too_near_then(tmp_path):
    """Where every second one is given up, the next is kept where they would have it, and not beside the last."""
    directory, journal = begun(tmp_path / "run", most_anchors=4)
    assert [journal.save_anchor(step, Leaves([np.ones(2)])) for step in range(1, 7)] == [*[True] * 4, False, True]
    assert journal.anchors() == (2, 4, 6)
    directory.close()


def test_few_restart_states_are_no_measure_of_nearness(tmp_path):
    """A run that goes on with few of those it may have keeps one between them, though they lie far from each other."""
    path = tmp_path / "run"
    for steps in ((50, 100), (60,)):
        directory, journal = begun(path)
        for step in steps:
            assert journal.save_anchor(step, Leaves([np.full(2, step)]))
        directory.close()
    directory, journal = begun(path)
    assert journal.anchors() == (50, 60, 100)
    assert journal.load_anchor(60).arrays[0][0] == 60
    directory.close()


def test_a_restart_state_that_is_wanted_takes_the_place_of_none(tmp_path):
    """However near others are it is kept, but not where there are as many as asked for."""
    directory, journal = begun(tmp_path / "run", most_anchors=3)
    for step in (50, 100):
        assert journal.save_anchor(step, Leaves([np.ones(2)]))
    assert journal.save_anchor(51, Leaves([np.ones(2)]), wanted=True)
    assert not journal.save_anchor(60, Leaves([np.ones(2)]), wanted=True)
    assert journal.anchors() == (50, 51, 100)
    directory.close()


def test_the_reverse_sweep_gives_restart_states_up(tmp_path):
    """What neither of the two places in the reverse sweep needs, nor a static value that is met late, is deleted."""
    directory, journal = begun(tmp_path / "run")
    for step in (10, 20, 30, 40):
        journal.save_anchor(step, Leaves([np.ones(2)]))
    kept = []
    for end, met in ((35, ()), (25, ()), (15, ((0, 7), (33, 8))), (5, ((0, 7), (33, 8)))):
        journal.save_reverse(Reverse(end, Leaves([np.ones(2)]), Leaves([]), Leaves([]), 0, 0, met=met))
        kept.append(journal.anchors())
    assert kept == [(10, 20, 30), (10, 20, 30), (10, 20, 30), (10, 30)]
    assert journal.latest_reverse().end == 5
    directory.close()


# What is stored.

BASE = np.random.default_rng(0).standard_normal((4, 5, 6))
LAYOUTS = {
    "C": BASE,
    "Fortran": np.asfortranarray(BASE),
    "axes": BASE.transpose(1, 2, 0),
    "reversed": BASE[::-1, :, ::-1],
    "broadcast": np.broadcast_to(BASE[:, :1].copy(), BASE.shape),
    "of one number": np.broadcast_to(np.array(0.1), (300, 7)),
    "empty": BASE[:0],
    "number": np.array(3, ">i2"),
    "complex": BASE.astype(np.complex64).T,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_come_back_as_they_lay(tmp_path, name):
    """Bits, dtype and strides come back, and so what sums and products round to; holes and forms too."""
    array = LAYOUTS[name]
    directory, journal = begun(tmp_path / "run")
    forms = {"leaves": ["array", None, 1.5]}
    journal.save_forward(Forward(1, Leaves([None, array, None], forms), Leaves([]), 3, ((0, 7, 1),), 5, (2, 9)))
    directory.close()
    directory, journal = begun(tmp_path / "run")
    found = journal.latest_forward()
    directory.close()
    first, back, last = found.state.arrays
    assert (first, last, found.state.forms, found.inputs) == (None, None, forms, (2, 9))
    assert (found.statics, found.nodes) == (((0, 7, 1),), 5)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    if array.size:
        # The strides of axes of length 1 say nothing.
        assert [s for s, n in zip(back.strides, back.shape, strict=True) if n > 1] == [
            s for s, n in zip(array.strides, array.shape, strict=True) if n > 1
        ]
    assert back.sum().tobytes() == array.sum().tobytes()


def test_numbers_of_numpy_are_numbers():
    """Steps and checksums may be integers of NumPy's."""
    name, found = decode(encode({"a": "b"}, place(np.int64(4), np.ones(1))), "forward")
    assert (name, found.step, type(found.step)) == ({"a": "b"}, 4, int)


def test_a_broadcast_array_is_stored_once(tmp_path):
    """An array of 80 MB that repeats one number takes no more than a page."""
    directory, journal = begun(tmp_path / "run")
    journal.save_forward(place(1, np.broadcast_to(np.array(2.0), (10_000_000,))))
    assert directory.storage.nbytes < 3 * 4096
    assert journal.latest_forward().state.arrays[0].shape == (10_000_000,)
    directory.close()


@pytest.mark.parametrize("layout", ["C", "F"])
def test_saving_takes_no_memory(tmp_path, layout):
    """Saving 16 MiB in either order takes less than 1 MiB, and loading takes the arrays themselves."""
    array = np.zeros((1024, 2048), order=layout)
    directory, journal = begun(tmp_path / "run")
    tracemalloc.start()
    try:
        journal.save_forward(place(1, array))
        assert tracemalloc.get_traced_memory()[1] < MIB
        found = journal.latest_forward()
        assert tracemalloc.get_traced_memory()[1] < 17 * MIB
    finally:
        tracemalloc.stop()
    assert found.state.arrays[0].strides == array.strides
    directory.close()


def test_only_what_is_needed_is_kept(tmp_path):
    """Of a forward sweep of 50 saves two places are kept, and one at its end; the file does not grow."""
    directory, journal = begun(tmp_path / "run")
    sizes = []
    for step in range(1, 51):
        journal.save_forward(place(step, np.ones(2000)))
        sizes.append(directory.storage.nbytes)
    assert len(set(sizes[9:])) == 1
    forward = [f"loop-0/forward/{step}" for step in (49, 50)]
    assert [key for key in directory.storage.keys() if "forward" in str(key)] == forward
    journal.save_final(place(50, np.ones(2000)))
    assert [key for key in directory.storage.keys() if "forward" in str(key)] == forward[1:]
    directory.close()


def test_no_collector_is_needed(tmp_path):
    """A run with a stop and a resume leaves nothing for the collector."""
    gc.collect()
    gc.disable()
    try:
        with suppress(StopError):
            run(tmp_path / "run", stop=30)
        run(tmp_path / "run")
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_an_older_file_is_not_taken_for_a_journal(tmp_path):
    """A durable directory with other things in it is left alone: its keys are not those of a loop."""
    with Disk(tmp_path / "run", durable=True) as storage:
        storage.put("mine", [np.ones(2)])
        storage.put(3, [np.ones(2)])
    directory, journal = begun(tmp_path / "run")
    assert journal.latest_forward() is None
    assert {"mine", 3} < set(directory.storage.keys())
    directory.close()


# When to save.


@pytest.mark.parametrize(
    ("policy", "cases"),
    [
        (Every(steps=5), [((4, 1e9, 0.0), False), ((5, 0.0, 1e9), True), ((6, 0.0, 0.0), True)]),
        (Every(), [((0, 9.0, 0.0), False), ((1, 0.0, 0.0), True), ((9, 4.9, 0.1), False), ((9, 5.1, 0.1), True)]),
        (Every(seconds=60.0), [((9, 59.0, 0.0), False), ((9, 60.0, 1.0), True), ((9, 60.0, 2.0), False)]),
    ],
)
def test_when_to_save(policy, cases):
    """Steps alone decide if they are given; else the time since the last save, of which saving takes 2% at most."""
    assert [policy.is_due(*arguments) for arguments, _ in cases] == [due for _, due in cases]
    assert policy == replace(policy)


@pytest.mark.parametrize("interval", [0, -1, True, 0.0, -2.5, float("nan"), float("inf"), "10"])
def test_an_interval_is_checked(interval):
    """What is no number of steps or seconds is refused and shown."""
    with pytest.raises(ValueError, match="interval between saves") as caught:
        every(interval)
    assert repr(interval) in str(caught.value)


def test_saving_by_the_time_takes_its_share():
    """With saves that each take 0.3 s in steps of 0.01 s, at most 2% of the time goes to them, and nearly that much."""
    policy, clock, since, steps, saved = every(), 0.0, 0.0, 0, 0.0
    for _ in range(50_000):
        clock += 0.01
        since += 0.01
        steps += 1
        if policy.is_due(steps, since, 0.3 if saved else 0.0):
            saved += 0.3
            since, steps = 0.0, 0
    assert 0.018 < saved / (clock + saved) <= 0.021
