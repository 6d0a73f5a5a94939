"""
What a value is made of that code reaches: texts that tell it, and the values that it holds.

Of installed packages only the step's own module is read; of the others the names and versions of what is used count,
and what is data: containers, numbers, arrays, dataclasses, members of enumerations, what `loop/values/pickled` finds in
objects of Python's own, and the arrays and functions in objects of NumPy, SciPy and Ebbtide.
"""

from __future__ import annotations

import array
import dataclasses
import dis
import enum
import functools
import operator
import re
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast, final

import numpy as np
import optree

from ebbtide.arrays.reach import imported_by, is_cython, is_installed, module_of, named_cells, named_globals, names_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.budget import Budget
from ebbtide.errors import TraceError
from ebbtide.loop.values.pickled import Pickled, state_of
from ebbtide.loop.values.plain_data import PLAIN
from ebbtide.loop.values.state import layout_of
from ebbtide.program.jit import Jitted
from ebbtide.schedules import Costs, Schedule
from ebbtide.storage import compute_crc32c, compute_crc32c_of_values
from ebbtide.tape.node import Node

_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_BYTES = (bytearray, memoryview, array.array)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_CACHED = type(functools.lru_cache(len))
_PLANNING = (Budget, Schedule, Costs)
# What is there for what it holds.
_CONTAINERS = (tuple, list, deque, set, frozenset, dict, types.MappingProxyType, slice, *_BYTES, *_VIEWS)
_DATA = (*PLAIN, *_CONTAINERS, np.ndarray, np.generic, TracedArray, optree.PyTreeSpec)
# Of Python's own modules: objects that are their attributes, which may be what cannot be pickled, and those that their
# text tells.
_HOLDERS = ("types", "argparse", "collections", "_thread")
_TOLD = ("fractions", "decimal", "_decimal", "datetime", "pathlib", "uuid", "zoneinfo")
# Of classes written in C, by package and name: the attributes that say all of an object.
_OF_C: Mapping[tuple[str, str], Sequence[str]] = types.MappingProxyType(
    {
        ("scipy", "cKDTree"): ("data", "indices", "leafsize", "boxsize"),
        ("numpy", "busdaycalendar"): ("weekmask", "holidays"),
        ("_struct", "Struct"): ("format",),
    }
)
# By package and name: what objects note as they are used, of what else they have.
_NOTES: Mapping[tuple[str, str], Sequence[str]] = types.MappingProxyType(
    {
        ("enum", "Flag"): ("_inverted_",),
        ("numpy", "vectorize"): ("_ufunc",),
        ("numpy", "MaskedArray"): ("_fill_value",),
        ("numpy", "finfo"): ("_fmt",),
        ("scipy", "Delaunay"): ("_transform", "_vertex_to_simplex", "_vertex_neighbor_vertices"),
        ("scipy", "BarycentricInterpolator"): ("_diff_baryint", "_diff_cij"),
        ("scipy", "AAA"): ("_poles", "_residues", "_roots"),
    }
)
# Descriptors of the interpreter, and what it and its modules put into a class, some of it when that is used, as
# enumerations note combinations of flags: they say nothing.
_OF_PYTHON = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)
_NAMES_OF_PYTHON = frozenset(
    {
        "__module__", "__doc__", "__firstlineno__", "__qualname__", "__static_attributes__", "__slots__",
        "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__",
        "__dataclass_fields__", "__dataclass_params__", "__abstractmethods__", "__orig_bases__", "__parameters__",
        "__type_params__", "__protocol_attrs__", "__callable_proto_members_only__", "__non_callable_proto_members__",
        "_value2member_map_",
    }
)  # fmt: skip
_ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")
_BLOCK = 1 << 18


class Held(NamedTuple):
    """
    Values that another one holds.

    Args:
        values: In their order.
        name: By which code finds them; empty if by none.
        is_ordered: Whether their order matters.
    """

    values: Sequence[Any]
    name: str = ""
    is_ordered: bool = True


class Cached(NamedTuple):
    """
    What an object has in the place of a cached property.

    Args:
        name: Of the property.
        value: What is there.
        compute: Returns what the property would be if nothing were there.
    """

    name: str
    value: Any
    compute: Callable[[], Any]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """
    Says what values are made of.

    Args:
        module: A module that is read whoever has it installed; None where it is no code that is read but the structure
            of a state, whose objects of installed packages count by what they say of themselves.
        is_met: Whether arrays of the tape around are left out, since they are compared when a step meets them.
    """

    module: str | None
    is_met: bool = True

    def is_library(self, module: str | None) -> bool:
        """Return whether what is in a module does not matter."""
        return module != self.module and is_installed(module)

    def parts(self, value: Any) -> Iterator[str | Held | Cached]:
        """Yield the parts of a value that is no plain one."""
        if isinstance(value, types.CodeType):
            yield from _code_parts(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function_parts(value)
        elif isinstance(value, types.MethodType):
            yield Held((value.__func__, value.__self__))
        elif isinstance(value, (functools.partial, functools.partialmethod)):
            yield Held((value.func,))
            yield Held((value.args, value.keywords), "arguments of partial")
            yield from self._additions(value)
        elif isinstance(value, Jitted):
            yield Held(value.made_from)  # what it has traced so far is of no interest
        elif isinstance(value, (staticmethod, classmethod)):
            yield Held((cast("Any", value).__func__,))
            yield from self._additions(value)
        elif isinstance(value, property):
            yield Held((value.fget, value.fset, value.fdel))
            yield from self._additions(value)
        elif isinstance(value, (functools.cached_property, _CACHED)):
            yield from self._additions(value)
        elif isinstance(value, types.ModuleType):
            yield _name_version(value.__name__)
            yield from self._class_of_user(value)
        elif is_cython(value):
            yield f"{_name_version(module_of(value))} {value.__qualname__}"
            yield Held((value.__defaults__, value.__kwdefaults__), f"defaults of {value.__name__}")
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            yield from (value.__qualname__, str(getattr(value, "__module__", "")))
            owner = value.__self__
            yield Held((None if isinstance(owner, types.ModuleType) else owner,))
        elif isinstance(value, (np.dtype, np.ufunc)):
            yield getattr(value, "__name__", str(value))
        elif isinstance(value, type):
            yield from self._class_parts(value)
        elif isinstance(value, TracedArray):
            yield from self._traced_parts(value)
        else:
            yield from _content(value)
            yield from self._object_parts(value)

    def names(self, value: Any) -> Iterator[str]:
        """Yield the names by which a function of the user's may find something in a module."""
        if isinstance(value, types.FunctionType) and not self.is_library(module_of(value)):
            yield from names_of(value.__code__)

    def is_module(self, value: Any) -> bool:
        """Return whether a value is a module of the user's, of which what is in it counts."""
        return isinstance(value, types.ModuleType) and not self.is_library(value.__name__)

    def _class_of_user(self, value: Any) -> Iterator[Held]:
        if not self.is_library(module_of(type(value))):
            yield Held((type(value),))

    def _additions(self, value: Any) -> Iterator[Held | Cached]:
        """Yield what one of Python's wrappers of functions has from the user: a class, attributes."""
        yield from self._class_of_user(value)
        yield from _held({name: item for name, item in _attributes(value).items() if name not in _NAMES_OF_PYTHON})

    def _function_parts(self, function: types.FunctionType) -> Iterator[str | Held]:
        known = self.is_library(module_of(function))
        named = f"{_name_version(module_of(function))} {function.__qualname__}"
        yield named if known else Held((function.__code__,))
        yield Held((function.__defaults__, function.__kwdefaults__), f"defaults of {function.__name__}")
        for name, value in named_cells(function):
            yield Held((value,), name)
        if not known:
            for name, value in function.__dict__.items():
                yield Held((name, value), name)
            for name, value in named_globals(function):
                yield Held((name, value), name)
            yield Held(imported_by(function, self.is_library))

    def _class_parts(self, kind: type[Any]) -> Iterator[str | Held]:
        yield f"{_name_version(module_of(kind))} {kind.__qualname__}"
        if self.is_library(module_of(kind)):
            return
        if not self.is_library(module_of(type(kind))):
            yield Held((type(kind),))
        for name, item in sorted(vars(kind).items()):
            if name not in _NAMES_OF_PYTHON and not isinstance(item, _OF_PYTHON):
                yield Held((name, item), name)
        yield Held(kind.__bases__)

    def _traced_parts(self, value: TracedArray) -> Iterator[str | Held]:
        """Yield value and tangent of an array of a trace, unless steps that use it have it as a static value."""
        if not isinstance(value._node, Node):
            with suppress(TraceError):  # a view that nobody can use any more
                value.present()
        if not isinstance(value._node, Node):
            is_known = value._node is None or isinstance(value._node, (np.ndarray, np.generic, TracedArray))
            yield Held((value._value, value._node if is_known else type(value._node).__name__))
        elif not self.is_met:
            yield Held((value.present()._value,))

    def _object_parts(self, value: Any) -> Iterator[str | Held | Cached]:
        kind = type(value)
        yield f"{_name_version(module_of(kind))} {kind.__qualname__}"
        package = module_of(kind).partition(".")[0]
        own = Pickled({}) if is_data(value) else state_of(value)
        for part in own.others:
            yield Held((part,), f"state of {kind.__name__}")
        yield from self._class_of_user(value)
        if not self.is_library(module_of(kind)):
            named = _attributes(value)
        elif issubclass(kind, _PLANNING):
            named = {}  # of loops in a step, and as for those around nothing of the result depends on it
        elif dataclasses.is_dataclass(value):
            named = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        elif package in _HOLDERS:
            named = getattr(value, "__dict__", {})
        elif package in ("numpy", "scipy", "ebbtide"):
            named = {name: x for name, x in _attributes(value).items() if _is_held(name, x)}
        elif kind.__name__ == "SuperLU":
            # A factorization of SciPy, whose class is in no module, by what it solves.
            named = {"solution": value.solve(np.linspace(1.0, 2.0, value.shape[0]))}
        else:
            named = dict(own.attributes)
            if self.module is None and not isinstance(value, _DATA):
                yield _ADDRESS.sub("", repr(value))
        for base in kind.__mro__:
            key = module_of(base).partition(".")[0], base.__name__
            named = named | {name: getattr(value, name) for name in _OF_C.get(key, ())}
            named = {name: found for name, found in named.items() if name not in _NOTES.get(key, ())}
        yield from _held(named)


def is_data(value: Any) -> bool:
    """Return whether a value is there for what it holds, and is no function, class or object."""
    return isinstance(value, _DATA) or module_of(type(value)) in _TOLD


def is_code(value: Any) -> bool:
    """Return whether a value is a part of a program."""
    return callable(value) or isinstance(value, (types.CodeType, types.ModuleType, staticmethod, classmethod, property))


def _code_parts(code: types.CodeType) -> Iterator[str | Held]:
    count = code.co_argcount + code.co_kwonlyargcount
    yield from (code.co_code.hex(), repr((code.co_names, code.co_freevars, code.co_varnames[:count])))
    yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags))
    yield code.co_exceptiontable.hex()
    yield Held(_constants_of(code))


def _constants_of(code: types.CodeType) -> tuple[Any, ...]:
    """Return the constants of a function but for its docstring, the first of them, which no instruction loads."""
    constants = code.co_consts
    if not constants or not isinstance(constants[0], str):
        return constants
    # Of more than 256 constants each 256th looks like the first one, whose text counts then.
    pairs = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    is_loaded = any(not number and operation in dis.hasconst for operation, number in pairs)
    return constants if is_loaded else (None, *constants[1:])


def _content(value: Any) -> Iterator[str | Held]:
    """Yield what is in a container, an array or a number, of whatever class."""
    if isinstance(value, (np.ndarray, np.generic)):
        yield from _array_parts(value)
    elif isinstance(value, (tuple, list, deque, *_VIEWS)):
        yield Held((*cast("Sequence[Any]", value), getattr(value, "maxlen", None)))
    elif isinstance(value, (set, frozenset)):
        yield Held((*cast("set[Any]", value),), is_ordered=False)
    elif isinstance(value, (dict, types.MappingProxyType)):
        for pair in cast("dict[Any, Any]", value).items():
            yield Held(pair)
        if isinstance(value, defaultdict):
            yield Held((value.default_factory,))
    elif isinstance(value, slice):
        yield Held((value.start, value.stop, value.step))
    elif isinstance(value, _BYTES):
        yield getattr(value, "typecode", "")
        yield f"{getattr(value, 'format', '')}{getattr(value, 'shape', '')}"
        yield str(compute_crc32c(np.frombuffer(memoryview(value).tobytes(), np.uint8)))
    elif isinstance(value, _GETTERS):
        yield Held((value.__reduce__()[1],))
    elif isinstance(value, optree.PyTreeSpec):
        yield Held((cast("Any", value).__getstate__(),))
    else:
        # A number or text of a class of its own, by what it is without that.
        yield from (base.__repr__(value) for base in PLAIN if isinstance(value, base))
        if module_of(type(value)) in _TOLD:
            yield repr(value)
        elif isinstance(value, enum.Enum):
            yield str(value.name)


def _array_parts(value: Any) -> Iterator[str | Held]:
    plain = np.asarray(value)
    yield f"{value.dtype}{value.shape}{layout_of(plain)}"
    if plain.dtype.hasobject:
        yield Held(plain.ravel().tolist())
    else:
        # What was broadcast is read once; its shape and how it lies are told above.
        plain = plain[tuple([slice(None, None if stride else 1) for stride in plain.strides])]
        # Of an array with gaps only a few rows are copied at a time: a loop's budget has no room for all.
        rows = max(1, _BLOCK // max(1, plain[:1].nbytes)) if plain.ndim else 1
        parts = [plain[k : k + rows] for k in range(0, len(plain), rows)] if plain.ndim else [plain]
        yield " ".join([str(compute_crc32c_of_values(part)) for part in parts])
    if isinstance(value, np.ma.MaskedArray):
        yield str(compute_crc32c(np.ma.getmaskarray(value)))
        filling = vars(value)["_fill_value"]  # None until somebody asks for it
        with np.errstate(over="ignore"):
            filling = np.asarray(np.ma.default_fill_value(value) if filling is None else filling, value.dtype)
        yield repr(filling[()])


def _held(named: Mapping[str, Any]) -> Iterator[Held | Cached]:
    """Yield attributes by their names."""
    for name in sorted(named):
        found = named[name]
        yield found if isinstance(found, Cached) else Held((name, found), name)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too; in the place of a cached property what may be that."""
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        for name, item in vars(base).items():
            if isinstance(item, functools.cached_property):
                if name in found and not isinstance(found[name], Cached):
                    found[name] = Cached(name, found[name], functools.partial(cast("Any", item).func, value))
            elif isinstance(item, types.MemberDescriptorType) and "__slots__" in vars(base):
                try:
                    found[name] = item.__get__(value)
                except AttributeError:
                    continue  # it has no value yet
    return found


def _is_held(name: str, value: Any) -> bool:
    """
    Return whether an attribute of an object of NumPy, SciPy or Ebbtide counts.

    A public one does, and a private one that is data or a function: properties are often the public side of one.

    What else they keep are notes of their own, which change as an object is used, as are caches, cached properties and
    the adjoint of an operator. In the other tuples of a spline FITPACK leaves what the memory held before.
    """
    if name[:1] != "_":
        return not isinstance(value, Cached)
    if name.startswith("_has_") or "cache" in name or name.endswith("__adj"):
        return False
    is_array_or_function = isinstance(value, np.ndarray) or callable(value) or name == "_eval_args"
    is_distribution = hasattr(value, "_original_parameters")
    return is_array_or_function or is_distribution or _is_of_numbers(value)


def _is_of_numbers(value: Any) -> bool:
    """Return whether a value is a number or a text, or a tuple or dictionary of such."""
    held = value.values() if type(value) is dict else value if type(value) is tuple else (value,)
    return all(one is not None and isinstance(one, (*PLAIN, np.generic)) for one in held)


def _name_version(module: str | None) -> str:
    package = sys.modules.get((module or "").partition(".")[0])
    return f"{module} {getattr(package, '__version__', '')}"
