from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from tests.measure import peak_bytes
from tests.scale import FULL, sample_of_each

import ebbtide
from ebbtide import Budget, BudgetError, StorageError, grad, value_and_grad, vjp
from ebbtide.arrays.context import current_or_none
from ebbtide.budget import format_bytes, parse_bytes
from ebbtide.schedules import Costs, StoreAll
from ebbtide.storage import Disk

STEPS = 100


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        (12, 12),
        (np.int64(12), 12),
        ("12", 12),
        ("12 B", 12),
        ("64 MiB", 64 << 20),
        ("64MiB", 64 << 20),
        (" 2 gib ", 2 << 30),
        ("1.5kB", 1500),
        (".5 KiB", 512),
        ("1 TB", 10**12),
        ("1.9999 B", 1),
        ("9007199254740993", 2**53 + 1),
        ("1.0000000001 TiB", 2**40 + 109),
        ("5. B", 5),
    ],
)
def test_bytes_are_read(text, count):
    """IEC units are powers of 1024, SI units of 1000; case and spaces do not matter; fractions are rounded down."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize("wrong", ["", "MiB", "-1", "1 XB", "1 MiB 2", "1e6", "nan", -1, 1.5, None, True])
def test_what_is_no_number_of_bytes_is_refused(wrong):
    """A number of bytes is a natural number or a text with a unit, and the error repeats what was given."""
    with pytest.raises(ValueError, match=re.escape(repr(wrong) if wrong != -1 else "-1")):
        Budget(memory=wrong)


@pytest.mark.parametrize("wrong", ["9" * 400, "9" * 5000, "9" * 400 + " GiB", "8388608 TiB", 2**63, 10**400])
def test_more_bytes_than_a_file_can_have_are_refused(wrong):
    """A number that is no float is refused like the first that no file can have; the one before is exact."""
    for call in (Budget, lambda count: Budget(1, disk=count), lambda count: Disk(limit=count)):
        with pytest.raises(ValueError, match=r"at most 2\*\*63 - 1, and this one is larger"):
            call(wrong)
    assert parse_bytes(str(2**63 - 1)) == parse_bytes(2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("make", [lambda name: Budget(1, 1, name), Disk], ids=["Budget", "Disk"])
def test_a_directory_has_a_name(make):
    """Where files go is named by text or a path: an empty name would be the working directory."""
    for wrong, kind in ((5, "int"), (b"x", "bytes"), (True, "bool"), ([], "list")):
        with pytest.raises(TypeError, match=rf"directory=.* is a {kind} and names no directory. Give a str or a path"):
            make(wrong)
    with pytest.raises(StorageError, match=r"directory='' names no directory, as where an environment variable is"):
        make("")
    with pytest.raises(StorageError, match="zero byte"):
        make("a\0")


def test_bytes_are_written():
    """A number of bytes is written with the IEC unit in which it has at most four digits before the point."""
    counts = (0, 1023, 1024, 323208, 64 << 20, 3 << 30, 5 << 40, 5000 << 40)
    texts = ["0 B", "1023 B", "1.0 KiB", "315.6 KiB", "64.0 MiB", "3.0 GiB", "5.0 TiB", "5000.0 TiB"]
    assert [format_bytes(count) for count in counts] == texts


def test_a_budget_is_a_value():
    """Budgets with the same numbers are equal and have one hash, and cannot be changed."""
    budget = Budget("1 MiB", disk="1 GiB", directory="/tmp/x")
    assert budget == Budget(1 << 20, 1 << 30, "/tmp/x")
    assert hash(budget) == hash(Budget(1 << 20, 1 << 30, "/tmp/x"))
    assert str(budget) == "1.0 MiB of memory and 1.0 GiB of disk"
    with pytest.raises(AttributeError):
        budget.memory = 3


@pytest.mark.parametrize("wrong", ["64 MiB", 1 << 20])
def test_a_budget_is_a_budget(wrong):
    """`budget=` takes a Budget, and the error says how to write one."""
    with pytest.raises(TypeError, match=r"Write Budget\(memory='64 MiB'\)"):
        grad(np.sin, budget=wrong)(1.0)


# A gradient within a budget.


def chain(x, z, steps=STEPS):
    """Multiply *z* by *x* from the left."""
    for _ in range(steps):
        z = np.dot(x, z)
    return np.sum(z)


def factors(n):
    """Return two matrices whose powers neither grow nor vanish."""
    rng = np.random.default_rng(0)
    return np.linalg.qr(rng.standard_normal((n, n)))[0], rng.standard_normal((n, n))


def extra(call, f, *args):
    """Return the peak of a gradient less the peak of the function alone."""
    return peak_bytes(lambda: call(*args)) - peak_bytes(lambda: f(*args))


@pytest.mark.parametrize("argnum", [0, 1])
def test_paged_gradient(tmp_path, argnum):
    """With disk the peak stays within the budget, the bits are those without one, and no file is left."""
    x, z = factors(250)
    budget = Budget(memory=20 * x.nbytes, disk="2 GiB", directory=tmp_path)
    call = grad(chain, argnum, budget=budget)
    assert np.array_equal(call(x, z), grad(chain, argnum)(x, z))
    assert extra(call, chain, x, z) <= budget.memory
    assert list(tmp_path.iterdir()) == []


def test_paging_happens(tmp_path):
    """Where 100 products do not fit into 20 units, at least 80 of them are on disk at the end of the forward run."""
    x, z = factors(100)
    written = []

    def look(g):
        written.append(sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()))
        return g

    end = ebbtide.primitive(lambda y: y, vjp=(look,))
    f = lambda x, z: end(chain(x, z))
    grad(f, budget=Budget(20 * x.nbytes, "2 GiB", tmp_path))(x, z)
    assert len(written) == 1
    assert 80 * x.nbytes <= written[0] <= 110 * x.nbytes


class StopError(Exception):
    """What the tests raise."""


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["forward", "sweep"])
def test_files_vanish_with_an_error(tmp_path, error, place):
    """After an exception no file, no context and no limit is left, and the next call is right."""
    x, z = factors(60)
    seen = []

    def raising(g):
        seen.append(len([p for p in tmp_path.rglob("*") if p.is_file()]))
        if place == "sweep":
            raise error
        return g

    mark = ebbtide.primitive(lambda z: z, vjp=(raising,))

    def f(x, z):
        z = chain_of(x, z, 70)
        z = mark(z)
        z = chain_of(x, z, 30)
        if place == "forward":
            seen.append(len([p for p in tmp_path.rglob("*") if p.is_file()]))
            raise error
        return np.sum(z)

    def chain_of(x, z, steps):
        for _ in range(steps):
            z = np.dot(x, z)
        return z

    budget = Budget(20 * x.nbytes + 100_000, "1 GiB", tmp_path)
    with pytest.raises(error):
        grad(f, budget=budget)(x, z)
    assert seen[0] >= 1
    assert list(tmp_path.iterdir()) == []
    assert current_or_none() is None
    assert np.array_equal(grad(chain, budget=budget)(x, z), grad(chain)(x, z))


def test_files_of_a_pullback(tmp_path):
    """A pullback under a budget has its files until it is called, freed or dropped, and none after."""
    x, z = factors(60)
    budget = Budget(20 * x.nbytes + 100_000, "1 GiB", tmp_path)
    expected = grad(chain)(x, z)
    for end in ("call", "free", "drop"):
        _, pullback = vjp(chain, x, z, budget=budget)
        assert list(tmp_path.iterdir()) != []
        if end == "call":
            assert np.array_equal(pullback(np.float64(1))[0], expected)
        elif end == "free":
            pullback.free()
        del pullback
        assert list(tmp_path.iterdir()) == [], end


def test_retained_pullback_under_a_budget(tmp_path):
    """A pullback that is retained reads what was paged as often as it is called, with the same bits."""
    x, z = factors(60)
    _, pullback = vjp(chain, x, z, retain=True, budget=Budget(20 * x.nbytes + 100_000, "1 GiB", tmp_path))
    first, second = pullback(np.float64(1)), pullback(np.float64(1))
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
    assert np.array_equal(first[0], grad(chain)(x, z))
    pullback.free()
    assert list(tmp_path.iterdir()) == []


def test_resident_memory_stays_within_the_budget():
    """After a first call the process grows by no more than the budget, 5% of it and 32 MiB."""
    if not sys.platform.startswith("linux"):
        pytest.skip("resident memory is read from /proc")
    script = """
        import numpy as np, ebbtide
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096
        seen = []
        def look(v):
            seen.append(resident())
            return v
        mark = ebbtide.primitive(look, vjp=(look,))
        def f(x, z):
            for _ in range(100):
                z = mark(np.dot(x, z))
            return np.sum(z)
        n = 400
        x = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]
        z = np.ones((n, n))
        budget = 20 * x.nbytes
        call = ebbtide.grad(f, budget=ebbtide.Budget(budget, "2 GiB"))
        call(x[:100, :100].copy(), z[:100, :100].copy())
        f(x, z)
        before = resident()
        seen.clear()
        call(x, z)
        most = max(seen)
        assert most > before + 0.5 * budget, "the measure sees nothing"
        growth = max(most, resident()) - before
        assert growth <= 1.05 * budget + 2**25, (growth, budget)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)


# Budgets without disk.


def wave(x):
    """Save an array in each of twenty steps."""
    for _ in range(20):
        x = np.sin(x)
    return np.sum(x)


def wave_of(x, steps):
    """Save an array in each step."""
    for _ in range(steps):
        x = np.sin(x)
    return x


def test_too_small_a_budget_says_where_and_how_much(tmp_path):
    """The error names the operation and the line that passed the budget, and the least number of bytes."""
    x = np.linspace(0, 1, 100_000)
    with pytest.raises(BudgetError) as caught:
        grad(wave, budget=Budget(10 * x.nbytes, directory=tmp_path))(x)
    line = wave.__code__.co_firstlineno + 3
    message = str(caught.value)
    assert f"sin at {__file__}:{line}" in message
    assert f"{caught.value.least} bytes" in message
    assert 20 * x.nbytes <= caught.value.least <= 23 * x.nbytes
    assert isinstance(caught.value, MemoryError)
    assert list(tmp_path.iterdir()) == []
    assert current_or_none() is None


@pytest.mark.parametrize("units", [0, 1, 5, 19, 20])
def test_the_least_budget_runs(units):
    """At the number of bytes that a refusal names, the gradient runs, within it, with the same bits."""
    x = np.linspace(0, 1, 100_000)
    with pytest.raises(BudgetError) as caught:
        grad(wave, budget=Budget(units * x.nbytes))(x)
    least = caught.value.least
    call = grad(wave, budget=Budget(least))
    assert np.array_equal(call(x), grad(wave)(x))
    assert extra(call, wave, x) <= least


def permuted(x):
    """Permute an array in ten steps: what is kept is an array of indices for each."""
    order = np.random.default_rng(0).permutation(x.size)
    for k in range(10):
        x = x[(order + k) % x.size]
    return np.sum(x)


def chosen(x):
    """Choose elements in twenty steps: what is kept is a mask for each."""
    for _ in range(20):
        x = np.where(x > 0.3, x, 0.5 * x)
    return np.sum(x)


def scaled(x):
    """Scale a small array three thousand times: nothing is kept but the record."""
    for _ in range(3000):
        x = x * 0.999 + 0.1
    return np.sum(x)


@pytest.mark.parametrize(
    ("f", "size", "memory"), [(permuted, 50_000, 1_600_000), (chosen, 400_000, 5_000_000), (scaled, 10, 400_000)]
)
def test_parameters_and_records_count(f, size, memory):
    """Indices, masks and the record itself count as saved values do: they fit into the budget or are refused."""
    x = np.linspace(0.1, 0.9, size)
    with pytest.raises(BudgetError) as caught:
        grad(f, budget=Budget(memory))(x)
    assert caught.value.least > memory
    call = grad(f, budget=Budget(caught.value.least))
    assert np.array_equal(call(x), grad(f)(x))
    assert extra(call, f, x) <= caught.value.least


def products(x):
    """Save two values in each of twelve steps."""
    for _ in range(12):
        x = np.sin(x) * np.cos(x)
    return np.sum(x)


@pytest.mark.parametrize("units", [1, 2, 3])
def test_the_least_budget_with_disk_runs(tmp_path, units):
    """Also with disk the number of bytes that a refusal names is enough, at the first try."""
    x = np.linspace(0.1, 0.9, 50_000)
    with pytest.raises(BudgetError) as caught:
        grad(products, budget=Budget(units * x.nbytes, "1 GiB", tmp_path))(x)
    assert list(tmp_path.iterdir()) == []
    call = grad(products, budget=Budget(caught.value.least, "1 GiB", tmp_path))
    assert np.array_equal(call(x), grad(products)(x))
    assert extra(call, products, x) <= caught.value.least


def test_a_refusal_gives_memory_up():
    """A forward run that has passed its budget keeps sizes only: its peak stays near the budget."""
    x = np.linspace(0, 1, 100_000)

    def refused():
        with pytest.raises(BudgetError):
            grad(wave, budget=Budget(5 * x.nbytes))(x)

    assert peak_bytes(refused) - peak_bytes(lambda: wave(x)) <= 6.2 * x.nbytes


def test_peak_is_monotone_and_bounded():
    """Of a grid of budgets each is kept, and a larger one has no smaller peak."""
    x = np.linspace(0, 1, 30_000)
    unit = x.nbytes
    long = lambda x: wave(wave_of(x, 60))
    alone = peak_bytes(lambda: long(x))
    peaks = []
    for units in (6, 10, 20, 40, 80, 120):
        call = grad(long, budget=Budget(units * unit, disk="1 GiB"))
        peaks.append((peak_bytes(lambda call=call: call(x)) - alone) / unit)
        assert peaks[-1] <= units
    # Two cotangents more or less at the moment of the peak are no plan's business, nor is the interpreter's dust.
    assert all(b >= a - 0.05 for a, b in pairwise(peaks)), peaks


def test_disk_is_bounded_too(tmp_path):
    """A disk that is too small is told with the memory that would do, and no file stays."""
    x, z = factors(100)
    with pytest.raises(BudgetError, match=r"Give at least \d+ bytes of memory, or more of disk than"):
        grad(chain, budget=Budget(20 * x.nbytes, disk=10 * x.nbytes, directory=tmp_path))(x, z)
    assert list(tmp_path.iterdir()) == []


# Budgets in budgets.


def nested(inner_budget):
    """Return a function that takes a gradient inside."""

    def f(x):
        inner = grad(wave, budget=inner_budget)(x)
        return np.sum(inner * x)

    return f


def test_inner_budget_that_is_smaller_binds():
    """An inner budget that is smaller than what the outer has left is the one that refuses."""
    x = np.linspace(0, 1, 20_000)
    with pytest.raises(BudgetError) as caught:
        grad(nested(Budget(5 * x.nbytes)), budget=Budget(10_000 * x.nbytes))(x)
    assert caught.value.least > 5 * x.nbytes
    assert current_or_none() is None


def test_inner_budget_that_is_larger_is_that_of_the_outer():
    """An inner budget cannot give more than the outer has left."""
    x = np.linspace(0, 1, 20_000)
    with pytest.raises(BudgetError):
        grad(nested(Budget(10_000 * x.nbytes)), budget=Budget(5 * x.nbytes))(x)
    plain = grad(nested(None))(x)
    assert np.array_equal(grad(nested(Budget(10_000 * x.nbytes)), budget=Budget(500 * x.nbytes))(x), plain)


def test_inner_budget_ends_with_its_call():
    """After an inner call the outer has what the inner took."""
    x = np.linspace(0, 1, 20_000)
    unit = x.nbytes

    def f(x):
        for _ in range(3):
            plain = ebbtide.stop_gradient(x)
            grad(wave, budget=Budget(30 * unit))(plain)
        return wave(x)

    budget = Budget(30 * unit)
    assert np.array_equal(grad(f, budget=budget)(x), grad(wave)(x))
    assert extra(grad(f, budget=budget), f, x) <= budget.memory


def test_files_and_buffers_of_a_dropped_pullback_count_no_more(tmp_path):
    """What the storage of a pullback takes is in the ledger until the pullback is dropped."""
    x, z = factors(60)
    with ebbtide.profile() as p:
        _, pullback = vjp(chain, x, z, budget=Budget(20 * x.nbytes + 100_000, "1 GiB", tmp_path))
        assert sum(p.now()[1].values()) > 0
        del pullback, _
        assert sum(p.now()[1].values()) == 0


def sines(x):
    """A function whose gradient takes twenty arrays."""
    for _ in range(20):
        x = np.sin(x)
    return np.sum(x)


SMALL, LARGE = Budget(5 * 160_000), Budget(40 * 160_000)


def end_of(end, x):
    """Make a pullback or a pushforward with a small budget, and return what is held of it at its *end*."""
    if end == "two are called as they came":
        pair = [vjp(np.sin, x, budget=budget)[1] for budget in (SMALL, LARGE)]
        return [pull(np.ones(x.shape)) for pull in pair]
    if "linearized" in end:
        value, pushforward = ebbtide.linearize(np.sin, x, budget=SMALL)
        return pushforward if "held" in end else value
    value, pullback = vjp(np.sin, x, retain="again" in end, budget=SMALL)
    if end == "freed":
        pullback.free()
    if "called" in end:
        pullback(np.ones(x.shape))
    if end == "failed":
        with pytest.raises(ebbtide.CotangentError):
            pullback(np.ones(3))
    return value if end in ("dropped", "failed") else pullback


ENDS = ["dropped", "held", "called", "called, to be called again", "failed", "freed"]
ENDS += ["two are called as they came", "linearized and dropped", "linearized and held"]


@pytest.mark.parametrize("end", ENDS)
def test_a_pullback_binds_only_itself(end):
    """The budget of a pullback or a pushforward binds no gradient that is taken while it waits, or after it."""
    x = np.linspace(0, 1, 20_000)

    def f(x):
        held = end_of(end, x)
        result = sines(x)
        del held
        return result

    expected = grad(sines)(x)
    assert np.array_equal(grad(f, budget=LARGE)(x), expected)
    with ebbtide.profile():
        held = end_of(end, x)
        assert np.array_equal(grad(sines, budget=LARGE)(x), expected)
        del held


def test_what_a_waiting_pullback_holds_counts():
    """For a pullback that waited its own bytes count when it is called, and no others; around it they count, too."""
    x = np.linspace(0, 1, 20_000)
    expected = grad(sines)(x)
    with pytest.raises(BudgetError) as alone:
        vjp(sines, x, budget=Budget(5 * x.nbytes))[1](1.0)
    with ebbtide.profile() as p:
        pull = vjp(sines, x, retain=True, budget=Budget(alone.value.least))[1]
        tight = vjp(sines, x, retain=True, budget=Budget(alone.value.least - x.nbytes))[1]
        others = vjp(sines, x)[1]
        assert sum(p.now()[1].values()) > 2 * alone.value.least
        assert np.array_equal(pull(1.0)[0], expected)
        with pytest.raises(BudgetError) as beside:
            tight(1.0)
        assert abs(beside.value.least - alone.value.least) < 4096
        others.free()
        assert np.array_equal(pull(1.0)[0], expected)

    def f(x):
        held = vjp(sines, np.array(ebbtide.stop_gradient(x)))
        result = sines(x)
        del held
        return result

    least = []
    for g in (sines, f):
        with pytest.raises(BudgetError) as caught:
            grad(g, budget=Budget(5 * x.nbytes))(x)
        least.append(caught.value.least)
    assert least[1] - least[0] >= 15 * x.nbytes


def test_value_and_grad_with_aux_under_a_budget(tmp_path):
    """Auxiliary output and containers work under a budget as without."""
    x, z = factors(60)

    def f(parameters):
        y = chain(parameters["x"], parameters["z"])
        return y, {"y": y, "x": parameters["x"]}

    parameters = {"x": x, "z": z}
    budget = Budget(20 * x.nbytes + 100_000, "1 GiB", tmp_path)
    (value, aux), gradients = value_and_grad(f, has_aux=True, budget=budget)(parameters)
    (same, _), expected = value_and_grad(f, has_aux=True)(parameters)
    assert value == same == aux["y"]
    assert np.array_equal(aux["x"], x)
    assert not np.shares_memory(aux["x"], x)
    assert {k: np.array_equal(gradients[k], expected[k]) for k in expected} == {"x": True, "z": True}


# What comes before, between and after time loops.

# More than a block, and no more: the work is in the interpreter's own bytes, which are watched.
UNIT = np.linspace(0.1, 1.0, 50_000 if FULL else 20_000)


def three(v, _):
    """Save three values in a step."""
    return np.sin(np.sin(np.sin(v) * 1.01) * 1.01)


def one(v, _):
    """Save one value in a step."""
    return v * 0.99 + 0.01 * np.sin(v)


def saving(u, count):
    """Save two values in each operation."""
    for _ in range(count):
        u = np.sin(u) * u
    return u


def loop(step, u):
    """Run a step thirty times."""
    return ebbtide.timeloop(step, u, 30)


# With the number of loops.
AROUND = {
    "nothing": (lambda u: np.sum(loop(one, u) ** 2), 1),
    "after": (lambda u: np.sum(saving(loop(three, u), 6)), 1),
    "before": (lambda u: np.sum(loop(three, saving(u, 6))), 1),
    "both": (lambda u: np.sum(saving(loop(three, saving(u, 3)), 3)), 1),
    "beside": (lambda u: np.sum(saving(u, 5) * loop(one, u) * np.cos(u)), 1),
    "two loops": (lambda u: np.sum(loop(one, loop(three, u))), 2),
    "between": (lambda u: np.sum(loop(one, saving(loop(three, u), 4)) ** 2), 2),
    "between, the other way": (lambda u: np.sum(loop(three, saving(loop(one, u), 4)) ** 2), 2),
    "inside of a checkpoint": (
        lambda u: np.sum(saving(ebbtide.checkpoint(lambda v: loop(three, saving(v, 2)))(u), 3)), 1,
    ),
    "a checkpoint after": (lambda u: np.sum(ebbtide.checkpoint(lambda v: saving(v, 4))(loop(three, u))), 1),
    "a checkpoint before": (
        lambda u: np.sum(saving(loop(three, ebbtide.checkpoint(lambda v: saving(v, 4))(u)), 2)), 1,
    ),
}  # fmt: skip


@cache
def around(name):
    """Return the gradient of a function with loops, without a budget, and the peak of the function alone."""
    f, _ = AROUND[name]
    expected = grad(f)(UNIT)
    f(UNIT)
    return expected, peak_bytes(lambda: f(UNIT))


@pytest.mark.parametrize(
    ("name", "disk", "units"), sample_of_each(list(product(AROUND, [0, 300], [1, 8])), 3)
)
def test_the_least_of_functions_with_loops(name, disk, units, tmp_path):
    """Each loop, and what follows, refuses once at most; the last number that was named is enough, and not large."""
    f, loops = AROUND[name]
    (expected, alone), memory = around(name), units * UNIT.nbytes

    def refused(memory):
        """Return the least that a refusal names; None if the call runs, as it should."""
        found = []
        budget = Budget(memory, disk * UNIT.nbytes, tmp_path)
        try:
            peak = peak_bytes(lambda: found.append(grad(f, budget=budget)(UNIT))) - alone
        except BudgetError as error:
            return error.least
        assert peak <= memory
        assert np.array_equal(found[0], expected)
        return None

    count, least = 0, refused(memory)
    while least is not None:
        count += 1
        assert least > memory
        assert count <= loops + 1
        memory, least = least, refused(least)
    if count:
        assert refused(int((0.8 if disk else 0.9) * memory)) is not None
    assert list(tmp_path.iterdir()) == []


# What a transfer takes in units of a step, by the schedule that it leads to.
CLOCKS = {"Periodic(interval=1, snapshots=1)": 0.01, "Periodic(interval=2, snapshots=1)": 0.5, "Mixed": 20.0}


def test_the_least_is_the_same_for_any_clock(tmp_path):
    """With disk a loop can do with as little, whichever plan the times lead to, and what a refusal names is that."""
    unit = np.linspace(0.1, 1.0, 20_000)  # in a campaign, too: beside larger ones nothing is refused after the loop

    def refused(transfer, memory, plans):
        """Return the least that a refusal names; None if the call runs."""
        costs = Costs(forward=1.0, reverse=2.0, write=transfer, read=transfer)

        def f(u):
            u = ebbtide.timeloop(three, u, 30, costs=costs)
            return np.sum(ebbtide.checkpoint(lambda v: saving(v, 200))(u))

        try:
            with ebbtide.profile(on_plan=plans.append):
                grad(f, budget=Budget(memory, 2000 * unit.nbytes, tmp_path))(unit)
        except BudgetError as error:
            return error.least
        return None

    named = set()
    for name, transfer in CLOCKS.items():
        plans = []
        named.add(refused(transfer, int(9.1 * unit.nbytes), plans))
        assert str(plans[0].schedule).startswith(name)
    (least,) = named
    for transfer in CLOCKS.values():
        assert refused(transfer, least, []) is None
        assert refused(transfer, least - 1, []) == least
    # With all steps on disk, which is what transfers that take no time lead to, nothing more is taken there.
    plans = []
    assert refused(0.01, int(10.2 * unit.nbytes), plans) is None
    assert plans[0].schedule == StoreAll("disk")
    assert list(tmp_path.iterdir()) == []


def test_the_least_counts_only_plans_that_fit_into_it():
    """Steps on disk leave 8 KB each behind, which a refusal that names less than all of these does not count."""
    u, steps = np.linspace(0.1, 0.9, 1000), 600

    def f(u):
        u = ebbtide.timeloop(one, u, steps, costs=Costs(forward=1.0, reverse=2.0, write=20.0, read=20.0))
        return np.sum(ebbtide.checkpoint(lambda v: saving(v, 40))(u))

    def refused(memory):
        try:
            grad(f, budget=Budget(memory, 2**30))(u)
        except BudgetError as error:
            return error.least
        return None

    least = refused(2**19)
    assert least is not None
    assert least < 2 * 2**20
    assert refused(least) is None
