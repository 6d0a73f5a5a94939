"""
The code of a step as a short text: what it does and calls, what it closes over, and what it finds by name.

Code is compared as the interpreter sees it: bytecode, constants and names, of nested and called functions too, with the
values that they close over or find in their modules. Of installed packages only the step's own module is read; of the
others the names and versions of what is used count, and what is data: containers, numbers, arrays, dataclasses, and the
arrays and functions in objects of NumPy, SciPy and Ebbtide.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import hashlib
import operator
import sys
import types
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast, final

import numpy as np

from ebbtide.arrays.reach import is_installed, looked_up, modules_of, named_cells
from ebbtide.arrays.traced import TracedArray
from ebbtide.program.jit import Jitted
from ebbtide.storage import compute_crc32c, compute_crc32c_of_values

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_CALLED = (
    types.FunctionType, types.MethodType, functools.partial, functools.partialmethod, staticmethod, classmethod,
    property,
)  # fmt: skip
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BYTES = (bytearray, memoryview, array.array)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_CACHED = type(functools.lru_cache(len))
# What is there for what it holds.
_CONTAINERS = (tuple, list, deque, set, frozenset, dict, types.MappingProxyType, slice, *_BYTES, *_VIEWS)
_DATA = (*_PLAIN, *_CONTAINERS, np.ndarray, np.generic)
# Of Python's own modules: objects that are their attributes, and those that their text tells.
_HOLDERS = ("types", "argparse", "collections")
_TOLD = ("fractions", "decimal", "_decimal", "datetime", "pathlib", "uuid", "zoneinfo")
# Of classes written in C, by package and name: the attributes that say all of an object.
_OF_C: Mapping[tuple[str, str], Sequence[str]] = types.MappingProxyType(
    {
        ("scipy", "cKDTree"): ("data", "indices", "leafsize", "boxsize"),
        ("numpy", "busdaycalendar"): ("weekmask", "holidays"),
    }
)
# Descriptors of the interpreter, and what it puts into a class: they say nothing.
_OF_PYTHON = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)
_NAMES_OF_PYTHON = frozenset({"__module__", "__doc__", "__firstlineno__", "__qualname__"})
# Rounds times values: what takes longer is cut short, as of 100,000 objects of which each holds the next.
_MOST_WORK = 4_000_000
_BLOCK = 1 << 18
# No more values are followed.
_MOST = 100_000


def digest_code(function: Any, without: Collection[str] = ()) -> str:
    """
    Return a short text that is another one when a function, or what it calls or closes over, is.

    Arrays of traces around are left out: which of them a step uses is known when it runs.

    Args:
        function: A function, method, `functools.partial` or an object that can be called.
        without: Names, as `data_of` has them, by which nothing is looked up.

    Returns:
        16 hexadecimal digits, the same in every process of one version of Python.

    Source:
        Each value gets a text of its own and of what it refers to, again and again, as in the refinement of colors of a
        graph (Weisfeiler and Leman, 1968), so that neither the order of sets nor values that are one matter.

    Example:
        >>> digest_code(lambda x: x + 1) == digest_code(lambda x: x + 1)
        True
        >>> digest_code(functools.partial(np.power, 2)) == digest_code(functools.partial(np.power, 3))
        False
    """
    return read_code(function, without)[0]


def read_code(function: Any, without: Collection[str] = ()) -> tuple[str, set[str]]:
    """Return the text of `digest_code`, and the executors of all jitted functions that it counts in."""
    graph = _Graph(function, without)
    return graph.digest(), graph.executors()


def data_of(function: Any) -> Mapping[str, str]:
    """
    Return by which names a function finds numbers, arrays and containers, and a short text of what they hold.

    Two calls tell what the function has changed between them.

    Args:
        function: As for `digest_code`.

    Returns:
        By names of modules, closures and attributes, and by "defaults of" a function: 16 hexadecimal digits. Where
        several things have one name, of all of them.

    Example:
        >>> seen = []
        >>> def step(x):
        ...     seen.append(x)
        >>> before, _, after = data_of(step), step(1), data_of(step)
        >>> [name for name in after if after[name] != before[name]]
        ['seen']
    """
    return _Graph(function).data()


def _module_of(function: Any) -> str:
    """Return the name of the module that a function is written in."""
    inner = function
    while isinstance(inner, (functools.partial, types.MethodType, Jitted)):
        if isinstance(inner, Jitted):
            inner = inner.made_from[0]
        else:
            inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    return (inner if isinstance(inner, types.FunctionType) else type(inner)).__module__


@final
class _Graph:
    """
    The values that a function reaches, and the texts that tell them.

    A text is a string, the number of another value, or a tuple of texts whose order does not matter.

    Args:
        function: The function, whose module is read whoever has it installed.
        without: Names by which nothing is looked up.
    """

    def __init__(self, function: Any, without: Collection[str] = ()) -> None:
        self._module = _module_of(function)
        self._without = without
        self._numbers: dict[int, int] = {}
        # An id means something as long as its object lives.
        self._values: list[Any] = []
        self._names: list[tuple[str, Sequence[Any]]] = []
        self._text(function)
        # The list grows while it is gone through.
        self._found = [[type(value).__qualname__, *self._parts(value)] for value in self._values]

    def digest(self) -> str:
        """Return the digest of the function and of all that it reaches."""
        colors, kinds = [""] * len(self._found), 0
        # Once no round tells more values apart, the colors of that round tell all that any later ones would.
        for _ in range(4 + _MOST_WORK // len(self._found)):
            colors = [digest("\0".join(_colored(texts, colors))) for texts in self._found]
            kinds, before = len(set(colors)), kinds
            if kinds == before:
                break
        return digest("\0".join([colors[0], *sorted(set(colors))]))

    def executors(self) -> set[str]:
        """Return who runs the jitted functions."""
        return {value.made_from[-1] for value in self._values if isinstance(value, Jitted)}

    def data(self) -> dict[str, str]:
        """Return the digests of what has names, as far as it is data."""
        named: dict[str, list[str]] = {}
        for name, texts in self._names:
            named.setdefault(name, []).append(digest("\0".join(self._inside(texts))))
        return {name: digest(" ".join(sorted(set(found)))) for name, found in named.items()}

    def _inside(self, texts: Sequence[Any]) -> Iterator[str]:
        """Yield the texts of data and of what they hold; of functions, classes and objects only that there is one."""
        waiting, seen = [*texts], set[int]()
        while waiting:
            text = waiting.pop()
            if isinstance(text, str):
                yield text
            elif isinstance(text, tuple):
                waiting += text
            elif text not in seen:
                seen.add(text)
                value = self._values[text]
                is_data = isinstance(value, _DATA) or type(value).__module__ in _TOLD
                waiting += self._found[text] if is_data else self._found[text][:1]

    def _text(self, value: Any) -> Any:
        """Return the text of a value in those of another one."""
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, np.generic) and value.dtype.names is None and not value.dtype.hasobject:
            return f"{value.dtype} {value!r}"
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._values) >= _MOST:
                return type(value).__qualname__
            number = self._numbers[id(value)] = len(self._values)
            self._values.append(value)
        return number

    def _texts(self, *values: Any) -> Iterator[Any]:
        return map(self._text, values)

    def _named(self, name: str, *values: Any) -> Sequence[Any]:
        """Return the texts of what is found by a name, unless that is left out."""
        if name in self._without:
            return ()
        texts = (*self._texts(*values),)
        self._names.append((name, texts))
        return texts

    def _is_library(self, module: str | None) -> bool:
        return module != self._module and is_installed(module)

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, types.CodeType):
            yield from self._code_parts(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function_parts(value)
        elif isinstance(value, types.MethodType):
            yield from self._texts(value.__func__, value.__self__)
        elif isinstance(value, (functools.partial, functools.partialmethod)):
            yield self._text(value.func)
            yield from self._named("arguments of partial", value.args, value.keywords)
        elif isinstance(value, Jitted):
            yield from self._texts(*value.made_from)  # what it has traced so far is of no interest
        elif isinstance(value, (staticmethod, classmethod)):
            yield self._text(cast("Any", value).__func__)
        elif isinstance(value, property):
            yield from self._texts(value.fget, value.fset, value.fdel)
        elif isinstance(value, functools.cached_property):
            yield self._text(cast("Any", value).func)
        elif isinstance(value, _CACHED):
            yield self._text(cast("Any", value).__wrapped__)
        elif isinstance(value, types.ModuleType):
            yield _name_version(value.__name__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            yield from (value.__qualname__, str(getattr(value, "__module__", "")))
            owner = value.__self__
            yield self._text(None if isinstance(owner, types.ModuleType) else owner)
        elif isinstance(value, (np.dtype, np.ufunc)):
            yield getattr(value, "__name__", str(value))
        elif isinstance(value, type):
            yield from self._class_parts(value)
        elif not isinstance(value, TracedArray):
            yield from self._content(value)
            yield from self._object_parts(value)

    def _code_parts(self, code: types.CodeType) -> Iterator[Any]:
        count = code.co_argcount + code.co_kwonlyargcount
        yield from (code.co_code.hex(), repr((code.co_names, code.co_freevars, code.co_varnames[:count])))
        yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
        yield code.co_exceptiontable.hex()
        yield from self._texts(*code.co_consts)

    def _function_parts(self, function: types.FunctionType) -> Iterator[Any]:
        known = self._is_library(function.__module__)
        named = f"{_name_version(function.__module__)} {function.__qualname__}"
        yield named if known else self._text(function.__code__)
        defaults = f"defaults of {function.__name__}"
        yield from self._named(defaults, function.__defaults__, function.__kwdefaults__)
        for name, value in named_cells(function):
            yield from self._named(name, value)
        if not known:
            for name, value in function.__dict__.items():
                yield from self._named(name, name, value)
            for name, value in looked_up(function, self._is_library, modules_of(function, self._is_library)):
                yield from self._named(name, name, value)

    def _class_parts(self, kind: type[Any]) -> Iterator[Any]:
        yield f"{_name_version(kind.__module__)} {kind.__qualname__}"
        if self._is_library(kind.__module__):
            return
        if not self._is_library(type(kind).__module__):
            yield self._text(type(kind))
        for name, item in sorted(vars(kind).items()):
            is_pythons = name in _NAMES_OF_PYTHON or isinstance(item, _OF_PYTHON)
            # What Python and its modules keep in a class, as its annotations, has such names, and so have methods.
            hidden = name.startswith("__") and not isinstance(item, (*_PLAIN, *_CALLED, np.ndarray))
            if not is_pythons and not hidden:
                yield from self._named(name, name, item)
        yield from self._texts(*kind.__bases__)

    def _content(self, value: Any) -> Iterator[Any]:
        """Yield the texts of what is in a container, an array or a number, of whatever class."""
        if isinstance(value, (np.ndarray, np.generic)):
            yield from self._array_parts(value)
        elif isinstance(value, (tuple, list, deque, *_VIEWS)):
            yield from self._texts(*cast("Sequence[Any]", value))
        elif isinstance(value, (set, frozenset)):
            yield (*self._texts(*cast("set[Any]", value)),)
        elif isinstance(value, (dict, types.MappingProxyType)):
            for pair in cast("dict[Any, Any]", value).items():
                yield from self._texts(*pair)
            if isinstance(value, defaultdict):
                yield self._text(value.default_factory)
        elif isinstance(value, slice):
            yield from self._texts(value.start, value.stop, value.step)
        elif isinstance(value, _BYTES):
            yield getattr(value, "typecode", getattr(value, "format", ""))
            yield str(compute_crc32c(np.frombuffer(memoryview(value).tobytes(), np.uint8)))
        elif isinstance(value, _GETTERS):
            yield self._text(value.__reduce__()[1])
        else:
            # A number or text of a class of its own, by what it is without that.
            yield from (base.__repr__(value) for base in _PLAIN if isinstance(value, base))
            if type(value).__module__ in _TOLD:
                yield repr(value)

    def _array_parts(self, value: Any) -> Iterator[Any]:
        yield f"{value.dtype}{value.shape}"
        plain = np.asarray(value)
        if plain.dtype.hasobject:
            yield from self._texts(*plain.ravel().tolist())
        else:
            # Of an array with gaps only a few rows are copied at a time: a loop's budget has no room for all.
            rows = max(1, _BLOCK // max(1, plain[:1].nbytes)) if plain.ndim else 1
            parts = [plain[k : k + rows] for k in range(0, len(plain), rows)] if plain.ndim else [plain]
            yield " ".join([str(compute_crc32c_of_values(part)) for part in parts])
        if isinstance(value, np.ma.MaskedArray):
            yield str(compute_crc32c(np.ma.getmaskarray(value)))

    def _object_parts(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        yield f"{_name_version(kind.__module__)} {kind.__qualname__}"
        package = (kind.__module__ or "").partition(".")[0]
        if not self._is_library(kind.__module__):
            yield self._text(kind)
            named = _attributes(value)
        elif dataclasses.is_dataclass(value):
            named = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        elif package in _HOLDERS:
            named = getattr(value, "__dict__", {})
        elif package in ("numpy", "scipy", "ebbtide"):
            named = {name: x for name, x in _attributes(value).items() if name[:1] != "_" or _is_held(name, x)}
        elif kind.__name__ == "SuperLU":
            # A factorization of SciPy, whose class is in no module, by what it solves.
            named = {"solution": value.solve(np.linspace(1.0, 2.0, value.shape[0]))}
        else:
            named = {}
        for base in kind.__mro__:
            told = _OF_C.get(((base.__module__ or "").partition(".")[0], base.__name__), ())
            named = named | {name: getattr(value, name) for name in told}
        for name in sorted(named):
            yield from self._named(name, name, named[name])


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too, but for what it can make again."""
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        for name, item in vars(base).items():
            if isinstance(item, functools.cached_property):
                found.pop(name, None)
            elif isinstance(item, types.MemberDescriptorType) and "__slots__" in vars(base):
                try:
                    found[name] = item.__get__(value)
                except AttributeError:
                    continue  # it has no value yet
    return found


def _is_held(name: str, value: Any) -> bool:
    """
    Return whether a private attribute of an object of NumPy, SciPy or Ebbtide counts.

    What they keep beside data and functions are notes of their own, which change as an object is used, as is the
    adjoint of an operator. In the other tuples of a spline FITPACK leaves what the memory held before.
    """
    is_data = isinstance(value, np.ndarray) or callable(value) or name == "_eval_args"
    return is_data and not name.endswith("__adj")


def _colored(texts: Sequence[Any], colors: list[str]) -> Iterator[str]:
    """Yield texts with what was found of the values that they refer to."""
    for text in texts:
        if isinstance(text, str):
            yield text
        elif isinstance(text, int):
            yield colors[text]
        else:
            yield from sorted(_colored(text, colors))


def _name_version(module: str | None) -> str:
    package = sys.modules.get((module or "").partition(".")[0])
    return f"{module} {getattr(package, '__version__', '')}"


def digest(text: str) -> str:
    """Return 16 hexadecimal digits that tell a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
