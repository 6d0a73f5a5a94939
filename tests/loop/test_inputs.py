"""Inputs of steps from where they lie: in memory, in files, in functions; one at a time, let go with their step."""

from __future__ import annotations

import weakref
from collections import UserList, deque
from functools import partial, reduce
from operator import xor
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
from tests.measure import peak_bytes

from ebbtide import Budget, MutationError, TraceError, grad, hvp, jit, jvp, linearize, timeloop, vjp, vmap
from ebbtide.arrays.containers import flatten
from ebbtide.loop.stepping.inputs import Readings
from ebbtide.loop.values.structures import Structures
from ebbtide.loop.values.sums import Sums
from ebbtide.schedules import Costs, Hierarchical, Mixed, Online, Periodic, Revolve, StoreAll

STEPS = 20
U = np.linspace(0.2, 1.2, 6)
FORCING = np.sin(np.arange(STEPS * 6.0)).reshape(STEPS, 6)
SCHEDULES = (
    StoreAll(), StoreAll("disk"), Revolve(3), Mixed(5), Hierarchical(2, 2, Costs(write=1.0, read=1.0)),
    Periodic(5, 2), Online(3),
)  # fmt: skip


class Dataset:
    """What arrays in files have in common: a length, a shape, and rows that are read when they are asked for."""

    def __init__(self, rows: int, row: Any) -> None:
        self.shape = (rows, *np.shape(row(0)))
        self.dtype = np.dtype(float)
        self.nbytes = int(np.prod(self.shape)) * 8  # of the whole, which is nowhere
        self._row = row
        self.read: list[int] = []
        self.alive: list[Any] = []
        self.most = 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, int), "one row at a time"
        self.read.append(index)
        row = np.array(self._row(index))
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(row)]
        self.most = max(self.most, len(self.alive))
        return row

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("loaded as a whole")


def misfit(u: Any, inputs: Any, **options: Any) -> Any:
    """A scalar of a loop with forcing that its derivative needs."""
    return np.sum(timeloop(lambda u, x: np.sin(u) * (1 + 0.1 * x), u, STEPS, inputs=inputs, **options) ** 2)


@pytest.mark.parametrize("kind", [np.ndarray, np.recarray])
@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
def test_a_record_is_copied(schedule: Any, kind: Any) -> None:
    """A step that writes into a record of an array of structures, its state or its input, does not change that."""
    table = np.zeros(STEPS, [("level", float), ("count", int)]).view(kind)

    def step(state: Any, x: Any) -> Any:
        u, record = state
        for own in (record, x):
            own["count"] += 1
        return np.sin(u) * (record["count"] + x["count"]), record

    def f(u: Any, until: Any = None) -> Any:
        length: Any = {"steps": STEPS} if until is None else {"until": until, "max_steps": STEPS}
        return np.sum(timeloop(step, (u, table[0]), inputs=table, schedule=schedule, **length)[0])

    state = U, table[0].copy()
    for _ in range(STEPS):
        state = step(state, np.zeros_like(table)[0])
    found = [grad(f)(U) for _ in range(2)] + [grad(jit(f))(U)]
    assert all(np.array_equal(found[0], again) for again in found)
    assert f(U) == np.sum(state[0])
    if schedule is None or isinstance(schedule, Online):
        assert np.array_equal(grad(lambda u: f(u, lambda s: s[1]["count"] == STEPS))(U), found[0])
        with pytest.raises(MutationError, match="it wrote into an array or a record"):
            grad(lambda u: f(u, lambda s: step(s, s[1])[1]["count"] > STEPS))(U)
    assert not table["count"].any()


class Shaped(Dataset):
    """A dataset that has a shape and no length, as zarr's."""

    __len__ = None  # so Python says that there is none


def memory_map(path: Path, rows: np.ndarray) -> Any:
    """An array in a file that NumPy maps into memory."""
    np.save(path / "rows.npy", rows)
    return np.load(path / "rows.npy", mmap_mode="r")


def hdf5(path: Path, rows: np.ndarray) -> Any:
    """A dataset of an HDF5 file."""
    file = pytest.importorskip("h5py", reason="an HDF5 file, by the package h5py").File(path / "rows.h5", "w")
    return file.create_dataset("rows", data=rows, chunks=(1, *rows.shape[1:]))


def zarr(path: Path, rows: np.ndarray) -> Any:
    """An array of a zarr store."""
    package = pytest.importorskip("zarr", reason="a zarr store, by the package zarr")
    array = package.create_array(str(path / "rows.zarr"), shape=rows.shape, chunks=(1, *rows.shape[1:]), dtype="f8")
    array[:] = rows
    return array


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("make", [memory_map, hdf5, zarr])
def test_rows_of_a_file(make, schedule, tmp_path):
    """Rows of a file give the bits of an array in memory."""
    right = grad(lambda u: misfit(u, FORCING, schedule=StoreAll()))(U)
    rows = make(tmp_path, FORCING)
    assert grad(lambda u: misfit(u, rows, schedule=schedule))(U).tobytes() == right.tobytes()
    if make is hdf5:
        rows.file.close()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("kind", [Dataset, Shaped])
def test_an_input_is_let_go_with_its_step(kind, schedule):
    """Of what a dataset gives one row is alive at a time, forward and in reverse, and each run of a step reads one."""
    rows = kind(STEPS, lambda k: FORCING[k])
    right = grad(lambda u: misfit(u, FORCING, schedule=schedule))(U)
    assert grad(lambda u: misfit(u, rows, schedule=schedule))(U).tobytes() == right.tobytes()
    assert len(rows.read) == schedule.forward_steps(STEPS)
    assert rows.most <= 2
    assert [ref for ref in rows.alive if ref() is not None] == []


@pytest.mark.parametrize("kind", ["dataset", "memory map", "function"])
def test_a_dataset_larger_than_the_budget(kind, tmp_path):
    """A budget counts the rows that are read, and not those that are on disk: nothing is loaded as a whole."""
    n, state = 64, 2**15
    u = np.full(state // 8, 0.3)

    def row(k: int) -> Any:
        return np.full(state // 8, 0.01 * k)

    rows: Any = Dataset(n, row)
    if kind == "memory map":
        rows = memory_map(tmp_path, np.stack([row(k) for k in range(n)]))
    elif kind == "function":
        rows = row
    budget = Budget(memory=20 * state)
    assert n * state > 3 * budget.memory

    def f(u: Any) -> Any:
        return np.sum(timeloop(lambda u, x: np.sin(u) * (1 + 0.1 * x), u, n, inputs=rows))

    gradient = grad(f, budget=budget)
    gradient(u)
    assert peak_bytes(lambda: gradient(u)) - peak_bytes(lambda: f(u)) <= budget.memory




OF_ROWS = {
    "grad": grad,
    "hvp": lambda f: lambda c: hvp(f)(c, np.cos(c)),
    "grad of jvp": lambda f: grad(lambda c: jvp(f, (c,), (np.cos(c),))[1]),
    "linearize": lambda f: lambda c: linearize(f, c)[1](np.cos(c)),
    "vmap of grad": lambda f: lambda c: vmap(grad(f))(np.stack([c, c * c])),
    "grad of vmap": lambda f: grad(lambda c: np.sum(vmap(f)(np.stack([c, c * c])))),
    "jit of grad of vmap": lambda f: jit(grad(lambda c: np.sum(vmap(f)(np.stack([c, c * c]))))),
}


@pytest.mark.parametrize("make", [lambda rows: dict(reversed([*enumerate(rows)])), deque], ids=["dict", "deque"])
@pytest.mark.parametrize("way", OF_ROWS)
def test_rows_by_number(way, make):
    """Inputs in a dict by step number, or in a deque, have the derivatives of those in a list."""
    def total(c, collect):
        rows = collect([{"a": np.sin(c * k), "b": [c]} for k in range(STEPS)])
        return np.sum(timeloop(lambda u, x: np.sin(u) * (1 + 0.1 * x["a"]) * x["b"][0], c, STEPS, inputs=rows) ** 2)

    found = OF_ROWS[way](lambda c: total(c, make))(U)
    np.testing.assert_array_equal(found, OF_ROWS[way](lambda c: total(c, list))(U))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("batch", [False, True])
def test_rows_of_an_array_without_a_tangent(batch, schedule):
    """What a function gives of an array that only the tape around has is the same when a step runs again."""

    def slope(c, rows, give, **options):
        def f(c):
            return np.sum(timeloop(lambda u, x: np.sin(u) * x, c, STEPS, inputs=give(rows), **options))

        return jvp(f, (c,), (np.cos(c),))[1]

    def gradient(give, schedule):
        found = grad(lambda c, rows: slope(c, rows, give, schedule=schedule), argnums=(0, 1))
        given = [np.stack([x, x * x]) if batch else x for x in (U, FORCING)]
        return np.concatenate([x.ravel() for x in (vmap(found) if batch else found)(*given)])

    found = gradient(lambda rows: lambda k: rows[k], schedule)
    assert found.tobytes() == gradient(lambda rows: lambda k: rows[k], StoreAll()).tobytes()
    np.testing.assert_array_equal(found, gradient(lambda rows: rows, StoreAll()))  # but for the signs of zeros


def test_second_derivatives_read_row_by_row():
    """Forward mode, alone and around a gradient, reads one row for each run of a step, too."""
    t, schedule = np.cos(U), Revolve(3)
    rows = Dataset(STEPS, lambda k: FORCING[k])
    bent = jvp(grad(lambda u: misfit(u, FORCING, schedule=schedule)), (U,), (t,))[1]
    assert jvp(grad(lambda u: misfit(u, rows, schedule=schedule)), (U,), (t,))[1].tobytes() == bent.tobytes()
    assert len(rows.read) == schedule.forward_steps(STEPS)
    assert rows.most <= 2
    jvp(lambda u: misfit(u, rows), (U,), (t,))
    assert len(rows.read) == schedule.forward_steps(STEPS) + STEPS

    def traced(c):
        return misfit(U, UserList([c * 1.0] * STEPS))

    for call in (grad(traced), grad(lambda c: jvp(traced, (c,), (1.0,))[1])):
        with pytest.raises(TraceError, match=r"UserList with traced elements.*Give a list"):
            call(0.5)


def test_what_is_no_sequence():
    """Inputs without length and shape are an error that says what to give."""
    for call in (misfit, grad(misfit)):
        with pytest.raises(TypeError, match=r"a generator\. Give a sequence"):
            call(U, (x for x in FORCING))


REST = np.zeros(6)
AGAIN: Any = (*SCHEDULES, Revolve(1), Mixed(2), None)


def linear(u: Any, inputs: Any, **options: Any) -> Any:
    """A scalar of a loop at whose state of rest no input shows, and whose gradient there is their product."""
    return np.sum(timeloop(lambda u, x: np.sin(u) * x, u, STEPS, inputs=inputs, **options))


def rows_in_memory(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """An array and what is written to change it."""
    return rows, rows


def rows_in_a_list(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """A list of rows, each in a tuple with a number."""
    return [(row, 1.0) for row in rows], rows


def rows_of_a_view(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """A view with its rows backwards in memory."""
    return rows[:, ::-1], rows


def rows_of_a_map(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """An array in a file, which is written there."""
    np.save(path / "rows.npy", rows)
    found = np.load(path / "rows.npy", mmap_mode="r+")
    return found, found


def rows_of_a_dataset(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """Rows that are read when they are asked for."""
    return Dataset(STEPS, lambda k: rows[k]), rows


def rows_of_a_function(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """A function that computes with NumPy alone."""
    return lambda k: rows[k] * 1.0, rows


def rows_that_are_traced(path: Path, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    """An array that has a derivative, too."""
    return rows, rows


MAKERS = (
    rows_in_memory, rows_in_a_list, rows_of_a_view, rows_of_a_map, rows_of_a_dataset, rows_of_a_function,
    rows_that_are_traced,
)  # fmt: skip


@pytest.mark.parametrize("schedule", AGAIN, ids=str)
@pytest.mark.parametrize("make", MAKERS)
def test_inputs_that_change_before_the_reverse_sweep(make, schedule, tmp_path):
    """Where nothing but the input shows a change the gradient has the right bits, or an error says which one it is."""
    rows = FORCING + 2.0
    right = np.prod(rows, axis=0) if make is not rows_of_a_view else np.prod(rows, axis=0)[::-1]
    inputs, target = make(tmp_path, rows)
    given = {"schedule": schedule}
    if make is rows_in_a_list:
        step: Any = lambda u, x: np.sin(u) * x[0] * x[1]
    else:
        step = lambda u, x: np.sin(u) * x
    budget = Budget(memory="64 KiB") if schedule is None else None

    def loss(u: Any, x: Any) -> Any:
        return np.sum(timeloop(step, u, STEPS, inputs=x if make is rows_that_are_traced else inputs, **given))

    def pull(changed: bool) -> np.ndarray:
        _, back = vjp(loss, REST, inputs if make is rows_that_are_traced else 0.0, budget=budget)
        if changed:
            target[-4:] *= 10
        return back(1.0)[0]

    first = pull(False)
    np.testing.assert_allclose(first, right, rtol=1e-12)
    before = target.copy()
    target[0] += 1.0  # after the gradient is there
    pull(False)
    target[:] = before
    if isinstance(schedule, StoreAll):
        assert pull(True).tobytes() == first.tobytes()  # no step runs again
        return
    with pytest.raises(MutationError, match=r"input of step 1[6-9] of the time loop at .*test_inputs\.py:|was changed"):
        pull(True)


@pytest.mark.parametrize("first", [0, 4, 777, 1498])
def test_steps_that_run_again_from_within_a_sum(first):
    """Where a sum has steps before the first that runs again, these count as they were; the last sum has few steps."""
    count = 1502  # the last row has two steps
    found = np.random.default_rng(first).integers(1, 1 << 60, count).tolist()
    sums = Sums()
    assert not any(sums.meet(index, check) for index, check in enumerate(found))
    assert sums.spacing == 4
    for changed in (None, first, 1499, 1501):
        again = sums.again(first, reduce(xor, found[:first], 0))
        told = [again.meet(index, found[index] + (index == changed)) for index in range(first, count)]
        rows = [] if changed is None else [(changed // 4 * 4, min(changed // 4 * 4 + 3, count - 1))]
        assert [row for row in told if row] == rows


def test_steps_before_those_that_a_resumed_run_has_read():
    """They run again in the reverse sweep, and nothing is known of them; those from where the run begins are known."""
    sums = Sums()
    assert [sums.meet(index, 10 * index) for index in (0, 5, 6, 7)] == [None] * 4
    assert [sums.meet(index, 1) for index in (0, 4, 6)] == [None, None, (6, 6)]
    assert [sums.swept(index, 10 * index) for index in (7, 6, 5)] == [None] * 3
    assert [sums.swept(index, 1) for index in (4, 3, 0)] == [None] * 3


@pytest.mark.parametrize("place", [0, 777, 1498, 1500])
def test_one_input_of_many_that_changes(place):
    """Of a loop of more steps than there are checksums each input counts, also a late one, and its sign."""
    count = 1503  # the last checksum is of three steps, and the others of four
    rows, last = np.ones((count, 2)), min(place // 4 * 4 + 3, count - 1)

    def f(u: Any) -> Any:
        return timeloop(lambda u, x: np.sin(u) * x + 0.0, u, count, inputs=rows, schedule=Revolve(20))

    for change in (-1.0, 3.0):
        _, pull = vjp(f, np.zeros(2))
        rows[place] *= change
        with pytest.raises(MutationError, match=rf"steps {place // 4 * 4} to {last} .* not the same"):
            pull(np.ones(2))
        rows[place] = 1.0
    rows[[place, place - 1]] = [[2.0], [3.0]]
    _, pull = vjp(f, np.zeros(2))
    rows[[place, place - 1]] = [[3.0], [2.0]]
    with pytest.raises(MutationError, match="not the same"):
        pull(np.ones(2))


def compared(rows: np.ndarray, u: Any) -> Any:
    """A loop of as many steps as there are rows, which run again."""
    return timeloop(lambda u, x: np.sin(u) * x, u, len(rows), inputs=rows, schedule=Revolve(20))


def test_inputs_of_many_steps_that_stay():
    """Each sweep of a gradient that is taken several times compares anew, whatever number of steps there is."""
    for count in (511, 512, 513, 1025, 1500):
        rows = np.linspace(0.9, 1.1, count)
        _, pull = vjp(partial(compared, rows), REST, retain=True)
        first = pull(np.ones(6))[0]
        assert pull(np.ones(6))[0].tobytes() == first.tobytes()
        np.testing.assert_allclose(first, np.prod(rows), rtol=1e-9)


@optree.dataclasses.dataclass(namespace="")
class Forcing:
    """An input with metadata that is no part of its leaves."""

    values: Any
    scale: Any = optree.dataclasses.field(pytree_node=False, default=1.0)


class Scale:
    """An object that computes what it is asked for once."""

    def __init__(self, by: float) -> None:
        self._by, self._computed = by, dict[str, float]()

    @property
    def by(self) -> float:
        """The factor."""
        return self._computed.setdefault("by", self._by)


def in_place(change: Any) -> Any:
    """What changes the metadata of each input where it is."""
    return lambda inputs: [change(x.scale) for x in inputs]


def by_another(change: Any) -> Any:
    """What puts another input in the place of each."""
    return lambda inputs: inputs.__setitem__(slice(None), [change(x) for x in inputs])


# How an input is made of a row, the factor that a step has of it, and what makes all of them other ones.
ANOTHER: Any = {
    "number": (lambda x: Forcing(x, 2.0), lambda f: f.values * f.scale, by_another(lambda f: Forcing(f.values, 3.0))),
    "type of number": (Forcing, lambda f: f.values * f.scale, by_another(lambda f: Forcing(f.values, np.float32(1.0)))),
    "list": (lambda x: Forcing(x, [2.0]), lambda f: f.values * f.scale[-1], in_place(lambda s: s.append(3.0))),
    "array": (lambda x: Forcing(x, np.ones(6)), lambda f: f.values * f.scale, in_place(lambda s: s.fill(3.0))),
    "object": (
        lambda x: Forcing(x, Scale(2.0)), lambda f: f.values * f.scale.by,
        by_another(lambda f: Forcing(f.values, Scale(3.0))),
    ),
    "place of None": (
        lambda x: {"add": x, "sub": None}, lambda f: f["add"] if f["sub"] is None else -f["sub"],
        by_another(lambda f: {"add": None, "sub": f["add"]}),
    ),
    "order": (
        lambda x: {"a": x, "b": x + 1}, lambda f: next(iter(f.values())),
        by_another(lambda f: dict(reversed(f.items()))),
    ),
    "container": (lambda x: (x,), lambda f: f[0] * (1 + isinstance(f, tuple)), by_another(list)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["list", "function"])
@pytest.mark.parametrize("name", ANOTHER)
def test_the_structure_of_an_input_is_a_part_of_it(name, kind):
    """Metadata, and where a None is, count as leaves do, also where they change in place; what stays is no change."""
    make, factor, change = ANOTHER[name]
    inputs = [make(row) for row in FORCING + 2.0]
    given = inputs if kind == "list" else lambda k: inputs[k]
    step = lambda u, x: np.sin(u) * factor(x)
    _, pull = vjp(lambda u: np.sum(timeloop(step, u, STEPS, inputs=given, schedule=Revolve(3))), REST, retain=True)
    assert pull(1.0)[0].tobytes() == pull(1.0)[0].tobytes()
    change(inputs)
    with pytest.raises(MutationError, match=r"The input of step 0 of the time loop at .*test_inputs\.py:\d+ was not"):
        pull(1.0)


@pytest.mark.parametrize("kind", ["list", "function"])
@pytest.mark.parametrize("name", ANOTHER)
def test_the_structure_of_an_input_in_a_batch_is_a_part_of_it(name, kind):
    """So it is where the rows are others for each member: in a loop over all of them, too, containers are compared."""
    make, factor, change = ANOTHER[name]
    made: list[Any] = []
    step = lambda u, x: np.sin(u) * factor(x)

    def f(u: Any) -> Any:
        made.append(inputs := [make(row) for row in u + FORCING + 2.0])
        given = inputs if kind == "list" else lambda k: inputs[k]
        return np.sum(timeloop(step, np.zeros(6), STEPS, inputs=given, schedule=Revolve(3)))

    _, pull = vjp(lambda u: np.sum(vmap(f)(u)), np.ones((2, 6)), retain=True)
    assert pull(1.0)[0].tobytes() == pull(1.0)[0].tobytes()
    change(made[0])
    if kind == "list" and name not in ("list", "array"):  # the loop has a list of its own
        assert pull(1.0)[0].tobytes() == pull(1.0)[0].tobytes()
        return
    with pytest.raises(MutationError, match=r"The input of step 0 of the time loop at .*test_inputs\.py:\d+ was not"):
        pull(1.0)


@pytest.mark.parametrize("kind", ["list", "function"])
def test_metadata_changes_under_a_derivative(kind):
    """In a loop over values and tangents, whose inputs hold the structures, metadata counts, too."""
    inputs = [Forcing(row, [2.0]) for row in FORCING + 2.0]
    given = inputs if kind == "list" else lambda k: inputs[k]

    def f(u: Any) -> Any:
        step = lambda u, x: np.sin(u) * x.values * x.scale[0]
        return np.sum(timeloop(step, u, STEPS, inputs=given, schedule=Revolve(3)))

    _, pull = vjp(lambda u: jvp(f, (u,), (REST,))[1], REST, retain=True)
    assert pull(1.0)[0].tobytes() == pull(1.0)[0].tobytes()
    for x in inputs:
        x.scale[0] = 3.0
    with pytest.raises(MutationError, match="not the same when the step ran again"):
        pull(1.0)


def test_what_tells_a_structure():
    """An object is read when it is met first; of inputs that are arrays nothing is read, and nobody is kept alive."""
    structures, scale = Structures(reads_classes=True), Scale(2.0)
    first = structures.tell(flatten(Forcing(1.0, scale))[1])
    assert scale.by == 2.0
    assert structures.tell(flatten(Forcing(1.0, scale))[1]) == first
    assert Structures(reads_classes=True).tell(flatten(Forcing(1.0, Scale(2.0)))[1]) == first
    assert structures.tell(flatten(Forcing(1.0, Scale(3.0)))[1]) != first
    assert structures.tell(flatten(np.ones(3))[1]) == structures.tell(flatten(1.0)[1]) == ""
    alive = weakref.ref(scale)
    del scale
    assert alive() is None


def test_inputs_are_not_compared_without_verify():
    """The check is a part of `verify`."""
    rows = np.ones((STEPS, 6))
    _, pull = vjp(lambda u: linear(u, rows, schedule=Revolve(1), verify=False), REST)
    rows *= 2
    pull(1.0)


def test_what_is_kept_of_inputs():
    """Of the inputs of 10,000 steps 4 KiB are kept."""
    readings, row = Readings(), flatten(np.zeros(100))

    def read() -> None:
        for index in range(10_000):
            readings.read(index, *row)

    assert peak_bytes(read) < 12 * 1024
    assert readings.sums.spacing == 32
