"""What the text of a step's code tells: wherever a number is, another one makes it another text."""

from __future__ import annotations

import argparse
import array
import calendar
import collections
import configparser
import ctypes
import datetime as dt
import decimal
import enum
import functools
import io
import ipaddress
import itertools
import json
import operator
import os
import random
import re
import socket
import statistics
import string
import struct
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import scipy.interpolate
import scipy.signal
import scipy.sparse.csgraph
import scipy.sparse.linalg
import scipy.spatial
import scipy.stats
from tests.measure import peak_bytes

import ebbtide
import ebbtide.scipy.interpolate
from ebbtide import Budget
from ebbtide.loop.values.code import data_of, digest_code
from ebbtide.schedules import Costs, Revolve

TRIANGLES = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.4, 0.3]])
SOURCE = str(Path(ebbtide.__path__[0]).parent)


def of_class(**named: Any) -> Any:
    """An object of a class of this module with these attributes."""
    return type("Given", (), {"__module__": __name__, **named})()


class Descriptor:
    """A descriptor of the user's."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self.k


class Private:
    """An object with a private slot."""

    __slots__ = ("__k",)

    def __init__(self, k: Any) -> None:
        self.__k = k


class Scaling:
    """An object that can be called."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def __call__(self, u: Any) -> Any:
        return self.k * u


def operator_of(function: Any) -> Any:
    """An operator of SciPy with a product."""
    return scipy.sparse.linalg.LinearOperator((2, 2), matvec=function, dtype=float)


@dataclass
class Holder:
    """Values by a factory."""

    items: list[Any] = field(default_factory=list)


def subclass(base: type, k: Any, *content: Any) -> Any:
    """An object of a class of the user's that is a number, text or container, with a method."""
    return type("Own", (base,), {"__module__": __name__, "scale": lambda self: k})(*content)


class WithCached:
    """An object with a cached property."""

    @functools.cached_property
    def k(self) -> Any:
        """A number."""
        return 2


def named_tuple(k: Any) -> Any:
    """A named tuple with a method that knows a number."""
    return type("Pair", (collections.namedtuple("Pair", "a"),), {"__module__": __name__, "scale": lambda self: k})(1)


def of_python(k: Any) -> Any:
    """A member of an enumeration of Python's."""
    return socket.AddressFamily(k)


def with_attribute(value: Any, k: Any) -> Any:
    """An object with one attribute more."""
    value.k = k
    return value


def chain(k: Any, length: int = 400) -> Any:
    """A function that calls one that calls another one, and so on."""
    def around(inner: Any) -> Any:
        return lambda u: -inner(u)

    function = around(lambda u: u * k)
    for _ in range(length):
        function = around(function)
    return function


def function_with_attribute(k: Any) -> Any:
    """A function that carries a value."""

    def function(u: Any) -> Any:
        return u * function.k

    function.k = k
    return function


def printed(program: str, **variables: str) -> str:
    """What another process prints."""
    path = os.pathsep.join([SOURCE, *filter(None, [variables.pop("PYTHONPATH", "")])])
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout


def module_of(**named: Any) -> types.ModuleType:
    """A module of the user's."""
    module = types.ModuleType("of_a_user")
    vars(module).update(named)
    return module


def step_in(source: str, **named: Any) -> Any:
    """The function `step` of a source in a module with these names."""
    module = types.ModuleType("of_another")
    vars(module).update(named)
    exec(source, vars(module))  # noqa: S102 - a user's module
    return module.step


def enumerated(k: Any) -> Any:
    """A member of an enumeration."""
    return enum.Enum("Kind", {"SLOW": k}, module=__name__).SLOW


def configured(k: Any) -> Any:
    """A configuration as of a file."""
    parser = configparser.ConfigParser()
    parser.read_string(f"[model]\nk = {k}")
    return parser


def of_c(k: Any) -> Any:
    """A structure of C."""
    return type("Of", (ctypes.Structure,), {"__module__": __name__, "_fields_": [("k", ctypes.c_double)]})(k)


# For each kind of place a function of a number; with two numbers two texts, with one number one.
PLACES = {
    "namespace": lambda k: types.SimpleNamespace(k=k),
    "arguments": lambda k: argparse.Namespace(k=k),
    "deque": lambda k: collections.deque([k]),
    "chain of maps": lambda k: collections.ChainMap({"k": k}),
    "dictionary of the user's": lambda k: collections.UserDict(k=k),
    "default": lambda k: collections.defaultdict(list, k=k),
    "fraction": lambda k: Fraction(k, 7),
    "decimal": Decimal,
    "shape of memory": lambda k: memoryview(bytes(6)).cast("b", (k, 6 // k)),
    "most of a deque": lambda k: collections.deque([1], maxlen=k),
    "normal distribution": lambda k: statistics.NormalDist(0.0, k),
    "template": lambda k: string.Template(f"{k} $a"),
    "of a thread": lambda k: with_attribute(threading.local(), k),
    "context of decimals": lambda k: decimal.Context(prec=k),
    "decimal of the user's": lambda k: subclass(Decimal, 0, k),
    "date": lambda k: dt.date(2000, 1, k),
    "date of the user's": lambda k: subclass(dt.date, 0, 2000, 1, k),
    "path of the user's": lambda k: subclass(PurePosixPath, 0, f"/{k}"),
    "pattern": lambda k: re.compile(f"{k}"),
    "flags of a pattern": lambda k: re.compile("a", re.IGNORECASE if k == 2 else re.DOTALL),
    "layout of bytes": lambda k: struct.Struct(f"{k}d"),
    "number of C": ctypes.c_double,
    "numbers of C": lambda k: (ctypes.c_int * 2)(1, k),
    "structure of C": of_c,
    "configuration": configured,
    "section of a configuration": lambda k: configured(k)["model"],
    "element of XML": lambda k: ET.fromstring(f"<model k='{k}'/>"),
    "address": ipaddress.ip_address,
    "first day of a week": calendar.Calendar,
    "encoder": lambda k: json.JSONEncoder(indent=k),
    "error": ValueError,
    "error of the user's": lambda k: subclass(ValueError, 0, k),
    "alias of a class": lambda k: list[int] if k == 2 else list[float],
    "partial in an object of Python's": lambda k: with_attribute(string.Template(""), functools.partial(pow, k)),
    "bytes of an array": lambda k: array.array("d", [k]),
    "bytes": lambda k: bytearray([k]),
    "memory": lambda k: memoryview(bytes([k])),
    "values of a dictionary": lambda k: {"k": k}.values(),
    "getter": operator.itemgetter,
    "slice": slice,
    "sparse": lambda k: scipy.sparse.csr_array(np.eye(3) * k),
    "spline": lambda k: scipy.interpolate.CubicSpline([0.0, 1.0, 2.0], [0.0, k, 0.0]),
    "factors": lambda k: scipy.sparse.linalg.splu(scipy.sparse.csc_array(np.eye(3) * k)),
    "solver": lambda k: scipy.sparse.linalg.factorized(scipy.sparse.csc_array(np.eye(3) * k)),
    "tree": lambda k: scipy.spatial.KDTree(np.eye(3) * k),
    "spline of FITPACK": lambda k: scipy.interpolate.UnivariateSpline(np.arange(9.0), np.arange(9.0) ** 2 * k),
    "spline through points": lambda k: scipy.interpolate.InterpolatedUnivariateSpline(
        np.arange(5.0), np.arange(5.0) * k
    ),
    "method of an array as an operator": lambda k: operator_of((np.eye(2) * k).dot),
    "object as an operator": lambda k: operator_of(Scaling(k)),
    "ufunc as an operator": lambda k: operator_of(np.negative if k == 2 else np.abs),
    "spline as an operator": lambda k: operator_of(scipy.interpolate.CubicSpline([0.0, 1.0, 2.0], [0.0, k, 0.0])),
    "shape of a sparse array": lambda k: scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(k, 2)),
    "distribution": lambda k: scipy.stats.Normal(mu=0.0, sigma=float(k)),
    "scaled distribution": lambda k: scipy.stats.Normal() * k,
    "distribution beneath another one": lambda k: 2 * scipy.stats.Uniform(a=0.0, b=float(k)),
    "discrete system": lambda k: scipy.signal.dlti([1.0], [1.0, 1.0], dt=k),
    "short-time transform": lambda k: scipy.signal.ShortTimeFFT(np.ones(8), k, 1.0),
    "integer of many digits": lambda k: 10**5000 + k,
    "integers of many digits": lambda k: [10**5000 + k, 1],
    "set of integers of many digits": lambda k: {10**5000 + k, 1},
    "calendar": lambda k: np.busdaycalendar(holidays=[f"2020-01-0{k}"]),
    "week": lambda k: np.busdaycalendar(weekmask="1111100" if k == 2 else "1111000"),
    "tree of many": lambda k: scipy.spatial.cKDTree(np.linspace(0.0, k, 600).reshape(200, 3)),
    "box of a tree": lambda k: scipy.spatial.KDTree(np.eye(3), boxsize=k),
    "tree of the user's": lambda k: type("Tree", (scipy.spatial.KDTree,), {"__module__": __name__})(np.eye(3) * k),
    "rule": lambda k: ebbtide.primitive(sine, vjp=(lambda g, x: g * k * np.cos(x),)),
    "forward rule": lambda k: ebbtide.primitive(
        sine, vjp=(lambda g, x: g * np.cos(x),), jvp=lambda t, x: t * k * np.cos(x)
    ),
    "spline of ours": lambda k: ebbtide.scipy.interpolate.CubicSpline([0.0, 1.0, 2.0], np.array([0.0, k, 0.0])),
    "checkpointed": lambda k: ebbtide.checkpoint(lambda u: u * k),
    "long": lambda k: [np.float64(0.5)] * 3 + [np.float64(n) for n in range(120_000)] + [np.float64(k)],
    "factory": lambda k: collections.defaultdict(lambda: k),
    "class: partial method": lambda k: of_class(k=functools.partialmethod(pow, k)),
    "polynomial": lambda k: np.poly1d([k, 1]),
    "vectorized": lambda k: np.vectorize(lambda u: u * k),
    "cached": lambda k: functools.lru_cache(lambda u: u * k),
    "attribute of a cached function": lambda k: with_attribute(functools.lru_cache(abs), k),
    "attribute of a partial": lambda k: with_attribute(functools.partial(abs), k),
    "partial with a method": lambda k: subclass(functools.partial, k, abs),
    "property with a method": lambda k: subclass(property, k, abs),
    "attribute of a property": lambda k: with_attribute(subclass(property, 0, abs), k),
    "cached property with a method": lambda k: subclass(functools.cached_property, k, abs),
    "static with a method": lambda k: subclass(staticmethod, k, abs),
    "class: tuple": lambda k: of_class(k=(k,)),
    "class: list": lambda k: of_class(k=[k]),
    "class: NumPy number": lambda k: of_class(k=np.float32(k)),
    "class: tuple of a hidden name": lambda k: of_class(__k__=(k,)),
    "class: list of a hidden name": lambda k: of_class(__k__=[k]),
    "class: dictionary of a hidden name": lambda k: of_class(__k__={"k": k}),
    "class: object of a hidden name": lambda k: of_class(__k__=Private(k)),
    "class: cached method of Python's": lambda k: of_class(__getitem__=functools.lru_cache(lambda self, i: k)),
    "many tuples": lambda k: [(n, n + 1, 1.0) for n in range(120_000)] + [(0, 1, float(k))],
    "many lists in lists": lambda k: [[[n], {"n": n}] for n in range(60_000)] + [[[k]]],
    "many and a function": lambda k: [*([str] for _ in range(120_000)), lambda u: u * k],
    "set in a dictionary": lambda k: {"a": {"b", str(k)}, "c": frozenset({(1, 2), (k,)})},
    "deep list": lambda k: functools.reduce(lambda inner, _: [inner], range(40), [k]),
    "NumPy numbers": lambda k: [(np.float32(1), np.float64(k))],
    "in the place of a cached property": lambda k: with_attribute(WithCached(), k),
    "member of Python's": of_python,
    "class: object": lambda k: of_class(k=Private(k)),
    "class: partial": lambda k: of_class(k=functools.partial(pow, k)),
    "class: class": lambda k: of_class(k=type(of_class(k=k))),
    "class: cached property": lambda k: of_class(k=functools.cached_property(lambda self: k)),
    "class: descriptor": lambda k: of_class(k=Descriptor(k)),
    "class of a class": lambda k: type("Made", (type,), {"__module__": __name__, "f": lambda c: k})("Of", (), {}),
    "member": enumerated,
    "named tuple": named_tuple,
    "list with a method": lambda k: subclass(list, k, [1]),
    "dictionary with a method": lambda k: subclass(dict, k, {"a": 1}),
    "number with a method": lambda k: subclass(float, k, 1.0),
    "number of a class": lambda k: subclass(float, 0, k),
    "text of a class": lambda k: subclass(str, 0, str(k)),
    "list with an attribute": lambda k: with_attribute(subclass(list, 0, [1]), k),
    "array with an attribute": lambda k: with_attribute(np.ones(2).view(type(subclass(np.ndarray, 0, (1,)))), k),
    "masked": lambda k: np.ma.masked_array([1.0, 2.0], mask=[k % 2, 0]),
    "array of objects": lambda k: np.array([k, "a"], dtype=object),
    "method of an array": lambda k: (np.eye(2) * k).dot,
    "method of a dictionary": lambda k: {"k": k}.get,
    "method of a number": lambda k: (float(k)).__add__,
    "attribute of a function": function_with_attribute,
    "private slot": Private,
    "dataclass": lambda k: Holder([k]),
    "static": lambda k: of_class(k=staticmethod(lambda: k)),
    "deep": chain,
    "module in a module": lambda k: step_in(
        "def step(u): return pkg.sub.f(u)", pkg=module_of(sub=module_of(f=lambda u: u * k))
    ),
    "module as a default": lambda k: step_in("def step(u, m=m): return m.f(u)", m=module_of(f=lambda u: u * k)),
    "module in a list": lambda k: step_in("def step(u): return m[0].f(u)", m=[module_of(f=lambda u: u * k)]),
    "module of an object": lambda k: step_in(
        "def step(u): return m.of.f(u)", m=of_class(of=module_of(f=lambda u: u * k))
    ),
    "module as an argument": lambda k: step_in(
        "def g(m, u): return m.f(u)\ndef step(u): return g(m, u)", m=module_of(f=lambda u: u * k)
    ),
    "module that a function returns": lambda k: step_in(
        "def g(): return m\ndef step(u): return g().of.f(u)", m=module_of(of=module_of(f=lambda u: u * k))
    ),
    "module in a partial": lambda k: functools.partial(lambda m, u: u * m.k, module_of(k=k)),
    "class of a module": lambda k: type("Of", (types.ModuleType,), {"__module__": __name__, "f": lambda m: k})("of"),
    "module in a closure": lambda k: step_in(
        "def outer(m):\n    def step(u): return m.f(u)\n    return step\nstep = outer(m)",
        m=module_of(f=lambda u: u * k),
    ),
}


def sine(x: Any) -> Any:
    """A function of an array."""
    return np.sin(x)


def make(value: Any) -> Any:
    """A function that closes over a value."""
    return lambda u: (value, u)


@pytest.mark.parametrize("place", PLACES)
def test_a_number_counts_wherever_it_is(place):
    """In containers, objects, classes, modules and functions, of Python, NumPy, SciPy and the user."""
    first, again, other = (digest_code(make(PLACES[place](k))) for k in (2, 2, 3))
    assert first == again
    assert first != other


def test_what_is_used_does_not_change():
    """What objects of libraries and cached properties note as they are used does not count."""

    class Model:
        @functools.cached_property
        def slope(self):
            return np.ones(3)

    class Kind(enum.Flag):
        SLOW = 1
        LARGE = 2

    model, sparse, function = Model(), scipy.sparse.csr_array(np.eye(3)), np.vectorize(lambda u: 2 * u)
    spline, product = scipy.interpolate.UnivariateSpline(np.arange(9.0), np.ones(9)), operator_of(Scaling(2.0))
    matrix, normal = scipy.sparse.linalg.aslinearoperator(np.eye(2)), scipy.stats.Normal(mu=0.5)
    step = make([model, sparse, function, functools.lru_cache(abs), spline, product, matrix, normal, Kind])
    before = digest_code(step)
    assert Kind.SLOW | Kind.LARGE
    assert ~Kind.SLOW == Kind.LARGE
    assert model.slope.size == 3
    assert sparse.has_canonical_format
    function(np.ones(2))
    spline(0.5)
    spline.derivative()
    product.matvec(np.ones(2))
    matrix.rmatvec(np.ones(2))
    normal.support()
    normal.moment(2)
    normal.cdf(0.3, method="quadrature")
    assert digest_code(step) == before


# Objects of NumPy and SciPy, of a number, that note something of what they are when they are used as here.
NOTING: dict[str, tuple[Any, Any]] = {
    "triangulation": (lambda k: scipy.spatial.Delaunay(k * TRIANGLES), lambda mesh: mesh.transform),
    "interpolator": (
        lambda k: scipy.interpolate.LinearNDInterpolator(TRIANGLES, k * TRIANGLES[:, 0]), lambda f: f([[0.5, 0.4]]),
    ),
    "polynomial": (
        lambda k: scipy.interpolate.BarycentricInterpolator(np.arange(4.0), np.full(4, float(k))),
        lambda f: f.derivative(0.5),
    ),
    "vectorized": (lambda k: np.vectorize(lambda u: k * u, otypes="d"), lambda f: f(0.5)),
    "masked array": (lambda k: np.ma.array([1.0, 2.0], mask=[0, 1], fill_value=k), lambda a: a.filled()),
    "masked array as it fills": (lambda k: np.ma.array([k, 1.0], mask=[0, 1]), lambda a: a.filled()),
    "kind of numbers": (lambda k: np.finfo(f"f{4 * (k - 1)}"), str),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTING)
def test_what_objects_note_as_they_are_used_does_not_count(name):
    """A call that was interrupted is the same when it is made again with the same objects; with others it is not."""
    make_one, use = NOTING[name]
    one, other = make_one(2), make_one(3)
    before = digest_code(make(one)), data_of(make(one))
    use(one)
    assert (digest_code(make(one)), data_of(make(one))) == before
    assert digest_code(make(other)) != before[0]


def archive_of(array: Any) -> Any:
    """A file of several arrays, in memory, as `np.load` opens it."""
    file = io.BytesIO()
    np.savez(file, array=array)
    file.seek(0)
    return np.load(file)


# What belongs to a process, and what changes as it is used: with two numbers one text.
UNSEEN = {
    "thread": lambda k: threading.Thread(name=f"{k}"),
    "library": lambda k: with_attribute(ctypes.CDLL(None), k),
    "object with a lock": lambda k: with_attribute(string.Template(f"{k}"), threading.Lock()),
    "iterator": itertools.count,
    "generator": random.Random,
    "text as a file": lambda k: io.StringIO(f"{k}"),
    "archive": lambda k: archive_of(np.full(2, float(k))),
}


@pytest.mark.parametrize("place", UNSEEN)
def test_what_belongs_to_a_process_does_not_count(place):
    """A handle or a number of a process is another one in the next: a run could never be resumed."""
    assert digest_code(make(UNSEEN[place](2))) == digest_code(make(UNSEEN[place](3)))


@pytest.mark.parametrize("kind", ["budget", "schedule", "costs"])
def test_how_loops_in_a_step_are_planned_does_not_count(kind):
    """No bit of a result depends on it: a run that was killed for its memory goes on with another budget."""
    kinds = {"budget": Budget, "schedule": Revolve, "costs": lambda k: Costs(write=k)}
    assert digest_code(make(kinds[kind](2))) == digest_code(make(kinds[kind](3)))


@pytest.mark.parametrize(
    ("name", "made", "change"),
    [
        ("count", with_attribute(threading.local(), 0), lambda value: setattr(value, "count", 1)),
        ("state of c_int", ctypes.c_int(0), lambda value: setattr(value, "value", 1)),
        ("_sections", configured(1), lambda value: value.set("model", "k", "2")),
    ],
    ids=["of a thread", "number of C", "configuration"],
)
def test_what_steps_change_of_objects_of_python_has_a_name(name, made, change):
    """So it can be left out for the loops after."""
    step = make(made)
    before = data_of(step)
    change(made)
    after = data_of(step)
    assert [key for key in after if after[key] != before.get(key)] == [name]


def test_a_value_in_the_place_of_a_cached_property_counts():
    """What a user assigned counts, as what other attributes made another one; what was computed does not."""

    class Model:
        def __init__(self, k):
            self.k = k

        @functools.cached_property
        def slope(self):
            return self.k * np.ones(3)

        @functools.cached_property
        def owner(self):
            return [self]

        @functools.cached_property
        def failing(self):
            raise ValueError

    def digests(*assigned, k=1.0, used=False):
        model = Model(k)
        if used:
            assert model.slope is model.owner[0].slope
        model.k = 1.0
        for name, value in assigned:
            setattr(model, name, value)
        return digest_code(make(model))

    same = [digests(), digests(used=True), digests(("slope", np.ones(3)))]
    others = [digests((name, value)) for name, value in (("slope", np.zeros(3)), ("failing", 1), ("owner", 1))]
    others.append(digests(k=2.0, used=True))
    assert len(set(same)) == 1
    assert len({*others, *same}) == 5


def test_how_an_array_lies_counts():
    """The rounding of sums and products depends on it; where there is nothing to choose it does not count."""
    array = np.arange(12.0).reshape(3, 4)
    layouts = array, np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2], array.copy()[::-1, ::-1][::-1, ::-1]
    assert len({digest_code(make(one)) for one in layouts}) == 3
    row = np.arange(4.0)
    assert digest_code(make(row[None])) == digest_code(make(np.asfortranarray(row[None])))


def test_what_is_broadcast_is_read_once():
    """An array of many terabytes that is one row again and again takes no time, and its row counts."""
    rows = [np.broadcast_to(np.array([1.0, k]), (1 << 40, 2)) for k in (2.0, 2.0, 3.0)]
    found = [digest_code(make(array)) for array in [*rows, rows[0][:7]]]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_plain_data_has_one_text_however_it_is_held():
    """What is shared, and in what order it is met, does not matter; data that holds itself is read."""
    row = [1.0, (2.0, "a")]
    shared, apart = [[row] * 3] * 3, [[[1.0, (2.0, "a")] for _ in range(3)] for _ in range(3)]
    assert digest_code(make(shared)) == digest_code(make(apart))
    doubled: Any = (1.0,)
    for _ in range(60):
        doubled = doubled, doubled
    ring = [doubled, {"a": 1}]
    ring.append(ring)
    assert digest_code(make(ring)) == digest_code(make(ring))
    others = [1], (1,), {1}, frozenset({1}), [True], [1.0], ["1"], [[1]], {1: 1}
    assert len({digest_code(make(one)) for one in others}) == len(others)


TABLES = {
    "list": [0.1 * k for k in range(100_000)],
    "tuple": tuple([0.1 * k for k in range(100_000)]),
    "dictionary": {k: 0.1 * k for k in range(50_000)},
    "rows": [[0.1 * k, k] for k in range(50_000)],
    "bytes": bytes(1 << 20),
    "text": "a\u1234" * 500_000,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_in_little_memory(name):
    """What a step finds in a large list, dictionary or text is read without a text of all of it, beside any budget."""
    step = make(TABLES[name])
    digest_code(step)
    assert peak_bytes(lambda: digest_code(step)) < 250_000


def test_a_tree_is_the_same_wherever_it_is_in_memory():
    """Trees of the same points have one text, in each process."""
    points = np.random.default_rng(0).random((500, 2))
    trees = [scipy.spatial.KDTree(points) for _ in range(4)]
    assert len({digest_code(make(tree)) for tree in trees}) == 1
    trees[0].query([0.5, 0.5], 3)
    assert digest_code(make(trees[0])) == digest_code(make(trees[1]))
    assert digest_code(make(scipy.spatial.KDTree(points, leafsize=5))) != digest_code(make(trees[1]))


@pytest.mark.parametrize(
    "source",
    [
        'def step(u, i):\n    "{}"\n    return 2.0 * u',
        'def step(u, i):\n    "{}"\n    return other(u)\ndef other(u):\n    "{}"\n    return 2.0 * u',
        'class Step:\n    "{}"\n    def __call__(self, u, i):\n        "{}"\n        return 2.0 * u\nstep = Step()',
        "def step(u: {}, i: {}) -> {}:\n    return 2.0 * u",
    ],
)
def test_docstrings_and_annotations_do_not_count(source):
    """A run goes on when only what the code says of itself was changed; a text that it uses counts, first or not."""
    assert len({digest_code(step_in(source.format(*[text] * 3))) for text in ("int", "float")}) == 1
    used = 'def step(u, i):\n    return "{}", u', 'def step(u, i):\n    "{}"\n    return u, "{}"'
    for code in (*used, "def step(u, i):\n    return [*('{}' for _ in u)]", "step = lambda u, i: '{}'"):
        assert len({digest_code(step_in(code.format(*[text] * 2))) for text in ("int", "float")}) == 2


def test_names_of_parameters_count():
    """A call by names gives other arguments to a function whose parameters are named the other way round."""
    first = step_in("def f(a, b): return a - 2 * b\ndef step(u): return f(a=1.0, b=u)")
    other = step_in("def f(b, a): return b - 2 * a\ndef step(u): return f(a=1.0, b=u)")
    assert digest_code(first) != digest_code(other)


def test_functions_of_python_are_told_apart():
    """The square root of numbers is not that of complex numbers."""
    import cmath
    import math

    assert digest_code(make(math.sqrt)) != digest_code(make(cmath.sqrt))


def test_functions_of_cython_are_told_apart():
    """Functions that Cython has compiled are told by their names and defaults; what a class of them is says nothing."""
    functions = [np.random.default_rng, scipy.sparse.csgraph.dijkstra, np.random.normal]
    found = [digest_code(make(function)) for function in [*functions, *functions]]
    assert found[:3] == found[3:]
    assert len(set(found)) == 3
    assert digest_code(make(type(np.random.default_rng))) == digest_code(make(type(np.random.default_rng)))


@pytest.mark.parametrize(
    "line",
    [
        "import helper_of_steps",
        "from helper_of_steps import scale",
        "import pkg_of_steps.sub",
        "from pkg_of_steps import sub as other",
    ],
)
def test_modules_that_a_step_imports_count(line, tmp_path):
    """A module that a function imports when it runs is read, before it was imported and after that."""
    (tmp_path / "pkg_of_steps").mkdir()
    use = {"i": "helper_of_steps.scale(u)", "f": "scale(u)"}[line[0]]
    if "pkg" in line:
        use = "pkg_of_steps.sub.scale(u)" if line[0] == "i" else f"{line.split()[-1]}.scale(u)"
    program = (
        "import sys\nsys.dont_write_bytecode = True\nfrom ebbtide.loop.values.code import digest_code\n"
        f"def step(u):\n    {line}\n    return {use}\n"
        "before = digest_code(step)\nstep(1.0)\nassert digest_code(step) == before\nprint(before)\n"
    )
    found = []
    for number in (2, 2, 3):
        text = f"def scale(u): return u * {number}\n"
        for name in ("helper_of_steps.py", "pkg_of_steps/__init__.py", "pkg_of_steps/sub.py"):
            (tmp_path / name).write_text("" if "init" in name else text)
        found.append(printed(program, PYTHONPATH=str(tmp_path)))
    assert found[0] == found[1] != found[2]


def test_sets_that_refer_to_each_other_have_one_text():
    """The order in which a process goes through sets does not matter, nor whether equal values are one."""
    program = (
        "from ebbtide.loop.values.code import digest_code\n"
        "class Node:\n    def __init__(self, k): self.k, self.near = k, set()\n"
        "nodes = [Node(k) for k in range(20)]\n"
        "for k, node in enumerate(nodes): node.near |= {nodes[k - 1], nodes[(3 * k) % 20]}\n"
        "everything = set(nodes) | {'p', 'q', 'r'}\n"
        "print(digest_code(lambda u: everything))\n"
    )
    assert len({printed(program, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")}) == 1
    shared = [1.0, "a"]
    assert digest_code(make((shared, shared))) == digest_code(make(([1.0, "a"], [1.0, "a"])))


class Pair(NamedTuple):
    """A pair, whose class is the user's."""

    first: Any
    second: Any


def test_where_values_are_counts():
    """Two values that change places are another text, near the step and far from it."""
    def nested(a: Any, b: Any) -> Any:
        inner = [[[[[Pair({"a": a}, {"b": b})]]]], "other"]
        return make({"x": inner})

    assert digest_code(nested([1], [2])) != digest_code(nested([2], [1]))
    assert digest_code(nested([1], [2])) == digest_code(nested([1], [2]))


@pytest.mark.parametrize("depth", [3, 7, 40, 300])
def test_where_values_are_counts_however_deep(depth):
    """So it is where nothing on the way tells one branch from the other."""

    def branches(*values: Any) -> Any:
        for _ in range(depth):
            values = ({"x": values[0]}, {"x": values[1]})
        return make({"a": values[0], "b": values[1]})

    assert digest_code(branches(1.0, 2.0)) != digest_code(branches(2.0, 1.0))
    assert digest_code(branches(1.0, 2.0)) == digest_code(branches(1.0, 2.0))
