"""
The code of a step as a short text: what it does and calls, what it closes over, and what it finds by name.

Code is compared as the interpreter sees it: bytecode, constants and names, of nested and called functions too, with the
values that they close over or find in their modules. What each of these is made of says `loop/values/code_parts`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from ebbtide.arrays.reach import module_of, named_in
from ebbtide.arrays.traced import TracedArray
from ebbtide.loop.values.code_parts import Cached, Held, Reader, is_code, is_data
from ebbtide.loop.values.plain_data import PlainData, digest
from ebbtide.program.jit import Jitted
from ebbtide.tape.node import Node

# Rounds times values: what takes longer is cut short, as of 100,000 objects each of which knows the next and the last.
_MOST_WORK = 4_000_000
# No more objects are followed. Plain data and code are, however many.
_MOST = 100_000
# Longer texts are not shown.
_MOST_SHOWN = 40


class Code(NamedTuple):
    """
    What was found of code.

    Args:
        text: That of `digest_code`.
        executors: Who runs the jitted functions in it.
        missed: By the names of their classes, how many objects it reaches that were not followed.
    """

    text: str
    executors: set[str]
    missed: Mapping[str, int]


def digest_code(function: Any, without: Collection[str] = ()) -> str:
    """
    Return a short text that is another one when a function, or what it calls or closes over, is.

    Arrays of tapes around are left out: which of them a step uses is known when it runs, and they are compared then.

    Args:
        function: A function, method, `functools.partial` or an object that can be called.
        without: Names, as `data_of` has them, by which nothing is looked up.

    Returns:
        16 hexadecimal digits, the same in every process of one version of Python.

    Source:
        Each value gets a text of its own and of what it refers to, where that leads back to it again and again, as in
        the refinement of colors of a graph (Weisfeiler and Leman, 1968), so that neither the order of sets nor values
        that are one matter.

    Example:
        >>> digest_code(lambda x: x + 1) == digest_code(lambda x: x + 1)
        True
        >>> digest_code(functools.partial(pow, 2)) == digest_code(functools.partial(pow, 3))
        False
    """
    return read_code(function, without).text


def read_code(function: Any, without: Collection[str] = (), *, is_met: bool = True) -> Code:
    """
    Return what is found of a function.

    Args:
        function: As for `digest_code`.
        without: As there.
        is_met: Whether arrays of tapes around are left out; False for a function of whose arrays no step knows.
    """
    graph = _Graph(function, Reader(_module_of(function), is_met), without)
    return Code(graph.digest(), graph.executors(), graph.missed())


def digest_structure(structure: Any, without: Collection[str] = ()) -> str:
    """
    Return a short text that is another one when the structure of a state is, with the metadata in it.

    Args:
        structure: What optree says of a container.
        without: As for `digest_code`.
    """
    return _Graph(structure, Reader(None), without).digest()


def data_of(function: Any, *, with_code: bool = False) -> Mapping[str, str]:
    """
    Return by which names a function finds numbers, arrays and containers, and short texts of what they hold.

    Two calls tell what the function has changed between them. Cached properties are left out.

    Args:
        function: As for `digest_code`; or the structure of a state.
        with_code: Whether there are texts of the code of the functions that it calls, too, by their names and `()`.

    Returns:
        By names of modules, closures and attributes, and by "defaults of" a function: a number as it is, of an array
        with a derivative that it has one, else 16 hexadecimal digits. Where several things have one name, of all.

    Example:
        >>> seen = []
        >>> def step(x):
        ...     seen.append(x)
        >>> before, _, after = data_of(step), step(1), data_of(step)
        >>> [name for name in after if after[name] != before[name]]
        ['seen']
        >>> data_of((lambda power: lambda x: x**power)(2))["power"]
        'int 2'
    """
    return _Graph(function, Reader(_module_of(function)), looks_into_caches=False).data(with_code)


def _module_of(function: Any) -> str:
    """Return the name of the module that a function is written in."""
    inner = function
    while isinstance(inner, (functools.partial, types.MethodType, Jitted)):
        if isinstance(inner, Jitted):
            inner = inner.made_from[0]
        else:
            inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    return module_of(inner if isinstance(inner, types.FunctionType) else type(inner))


@final
class _Graph:
    """
    The values that a value reaches, and the texts that tell them.

    A text is a string, the number of another value, or a tuple of texts whose order does not matter.

    Args:
        root: The value.
        reader: Says what values are made of.
        without: Names by which nothing is looked up.
        looks_into_caches: Whether what is in the place of a cached property counts, where it is not what that gives.
    """

    def __init__(
        self, root: Any, reader: Reader, without: Collection[str] = (), *, looks_into_caches: bool = True
    ) -> None:
        self._reader = reader
        self._without = without
        self._looks_into_caches = looks_into_caches
        self._plain = PlainData()
        self._numbers: dict[int, int] = {}
        # An id means something as long as its object lives.
        self._values: list[Any] = []
        self._names: list[tuple[str, Sequence[Any]]] = []
        self._missed: dict[str, set[int]] = {}
        self._root = self._text(root)
        self._found: list[list[Any]] = []
        self._looked_up = set[tuple[int, str]]()
        # The list grows while it is gone through.
        while len(self._found) < len(self._values):
            value = self._values[len(self._found)]
            self._found.append([type(value).__qualname__, *self._texts(value)])
            if len(self._found) == len(self._values):
                self._look_into_modules()

    def digest(self) -> str:
        """Return the digest of the root and of all that it reaches."""
        colors, cyclic = self._colors_of_trees()
        kinds = 0
        # Once no round tells more values apart, the colors of that round tell all that any later ones would.
        for _ in range(4 + _MOST_WORK // max(1, len(cyclic))):
            found = [digest("\0".join(_colored(self._found[number], colors))) for number in cyclic]
            for number, color in zip(cyclic, found, strict=True):
                colors[number] = color
            kinds, before = len(set(found)), kinds
            if kinds == before:
                break
        return digest("\0".join([*_colored([self._root], colors), *sorted(set(colors))]))

    def _colors_of_trees(self) -> tuple[list[str], list[int]]:
        """
        Return the colors of values from which no way leads into a cycle, and the numbers of the others.

        One round does for these, what a value holds before it: 2,000 lists, each in the next, took 12 s of rounds.
        """
        colors, holders = [""] * len(self._found), [list[int]() for _ in self._found]
        open_parts = list[int]()
        for number, texts in enumerate(self._found):
            parts = set(_numbers_in(texts))
            open_parts.append(len(parts))
            for part in parts:
                holders[part].append(number)
        ready = [number for number, count in enumerate(open_parts) if count == 0]
        while ready:
            number = ready.pop()
            colors[number] = digest("\0".join(_colored(self._found[number], colors)))
            for holder in holders[number]:
                open_parts[holder] -= 1
                if open_parts[holder] == 0:
                    ready.append(holder)
        return colors, [number for number, count in enumerate(open_parts) if count > 0]

    def executors(self) -> set[str]:
        """Return who runs the jitted functions."""
        return {value.made_from[-1] for value in self._values if isinstance(value, Jitted)}

    def missed(self) -> dict[str, int]:
        """Return how many objects of each class were not followed."""
        return {name: len(found) for name, found in self._missed.items()}

    def data(self, with_code: bool) -> dict[str, str]:
        """Return texts of what has names, as far as it is data, and of the code of functions."""
        named: dict[str, set[str]] = {}
        for name, texts in self._names:
            # An attribute or a name in a module has its name before it.
            values = texts[1:] if texts[0] == f"str {name!r}" else texts
            shown = self._shown(values[0]) if len(values) == 1 else None
            named.setdefault(name, set()).add(shown or digest("\0".join(self._inside(texts))))
        for function in self._values if with_code else ():
            if isinstance(function, types.FunctionType) and id(function.__code__) in self._numbers:
                code = digest("\0".join(self._inside([self._numbers[id(function.__code__)]])))
                name = function.__qualname__.rpartition("<locals>.")[2]
                named.setdefault(f"{name}()", set()).add(code)
        joined = {name: ", ".join(sorted(one)) for name, one in named.items()}
        return {name: text if len(text) <= _MOST_SHOWN else digest(text) for name, text in joined.items()}

    def _shown(self, text: Any) -> str | None:
        """Return what a message says of the text of one value; None where that is too long, or says nothing."""
        if isinstance(text, str):
            return text if len(text) <= _MOST_SHOWN else None
        value = self._values[text] if isinstance(text, int) else None
        # A step that uses it has it as a static value.
        is_differentiated = type(value) is TracedArray and isinstance(value._node, Node)
        return "an array with a derivative" if is_differentiated else None

    def _inside(self, texts: Sequence[Any]) -> Iterator[str]:
        """Yield the texts of data, of code and of what they hold; of functions, classes and objects only the kind."""
        waiting, seen = [*texts], set[int]()
        while waiting:
            text = waiting.pop()
            if isinstance(text, str):
                yield text
            elif isinstance(text, tuple):
                waiting += text
            elif text not in seen:
                seen.add(text)
                value, found = self._values[text], self._found[text]
                waiting += found if is_data(value) or isinstance(value, types.CodeType) else found[:1]

    def _text(self, value: Any) -> Any:
        """Return the text of a value in those of another one."""
        text = self._plain.text(value)
        if text is not None:
            return text
        number = self._numbers.get(id(value))
        if number is None:
            if len(self._values) >= _MOST and not is_code(value):
                self._missed.setdefault(type(value).__qualname__, set()).add(id(value))
                return type(value).__qualname__
            number = self._numbers[id(value)] = len(self._values)
            self._values.append(value)
        return number

    def _look_into_modules(self) -> None:
        """
        Tell what modules have by the names that code has for something.

        Whose names they are does not matter: code finds modules by name, and in containers, objects and arguments.
        """
        modules = [number for number, value in enumerate(self._values) if self._reader.is_module(value)]
        names = {name for value in self._values if modules for name in self._reader.names(value)}
        for number in modules:
            for name, value in named_in(vars(self._values[number]), names):
                if (number, name) not in self._looked_up:
                    self._looked_up.add((number, name))
                    self._found[number] += self._held(Held((name, value), name))

    def _texts(self, value: Any) -> Iterator[Any]:
        """Yield the texts of a value's parts."""
        for part in self._reader.parts(value):
            if isinstance(part, str):
                yield part
            elif isinstance(part, Held):
                yield from self._held(part)
            elif self._looks_into_caches and not self._is_computed(part):
                yield from self._held(Held((part.name, part.value), part.name))

    def _held(self, part: Held) -> Sequence[Any]:
        """Return the texts of values, unless what is found by their name is left out."""
        if part.name and part.name in self._without:
            return ()
        texts = (*map(self._text, part.values),)
        if part.name:
            self._names.append((part.name, texts))
        return texts if part.is_ordered else (texts,)

    def _is_computed(self, part: Cached) -> bool:
        """
        Return whether a cached property was computed, and not assigned: whether it would be the same again.

        So it does not matter whether something has used the property before.
        """
        try:
            again = part.compute()
        except Exception:  # noqa: BLE001 - the user's, and then what is there was assigned
            return False
        graphs = [_Graph(value, self._reader, looks_into_caches=False) for value in (part.value, again)]
        return graphs[0].digest() == graphs[1].digest()


def _numbers_in(texts: Sequence[Any]) -> Iterator[int]:
    """Yield the numbers of the values that texts refer to."""
    for text in texts:
        if isinstance(text, int):
            yield text
        elif not isinstance(text, str):
            yield from _numbers_in(text)


def _colored(texts: Sequence[Any], colors: list[str]) -> Iterator[str]:
    """Yield texts with what was found of the values that they refer to."""
    for text in texts:
        if isinstance(text, str):
            yield text
        elif isinstance(text, int):
            yield colors[text]
        else:
            yield from sorted(_colored(text, colors))
