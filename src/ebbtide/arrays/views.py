"""
Views of traced arrays: a base, a path to it, and the writes that go through.

A traced array that is a view (as NumPy would make one) remembers its root and the operations that lead
from the root to it. Reading it after the root was written replays the path on the root's present value;
writing it writes the root, by walking the path backwards.
"""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from ebbtide.arrays.array_type import ArrayType
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.location import user_line
from ebbtide.arrays.registry import HANDLERS
from ebbtide.errors import StaleViewError, TraceError

if TYPE_CHECKING:
    from ebbtide.arrays.traced import TracedArray


@final
class Sharing:
    """
    What a traced array shares its memory with; most arrays share nothing and have none.

    Args:
        root: The array that this one is a view of; None if it is no view.
        path: The (primitive, parameters) pairs that lead from the root to the view.
        reachable: Whether the user can reach the memory by another name, so that a saved value must be
            guarded against changes.

    Memory:
        A view keeps its root alive, as in NumPy. A root knows its views by weak references, of which at most half,
        or 8, are of views that have died.
    """

    __slots__ = (
        "copied", "guard", "is_array", "kept", "line", "path", "private", "reachable", "room", "root", "seen",
        "static", "version", "views",
    )  # fmt: skip

    def __init__(
        self, root: TracedArray | None = None, path: tuple[Any, ...] = (), *, reachable: bool = False
    ) -> None:
        self.root = root
        self.path = path
        self.reachable = reachable
        self.version = 0  # how often this array was written
        self.seen = 0  # the root's version that this view's value is of
        self.private = False  # made by a write here, in no tape and no other array: the next write needs no copy
        self.copied = False  # a view through which elements are written but not looked at: x.flat[:2] is a copy
        self.static = False  # a view of a static value of a region, which must not change there
        self.is_array = False  # without axes, and an array to NumPy: changed in place, which a number is not
        self.line = ""
        self.views: list[weakref.ref[TracedArray]] = []  # of a root: what has to hear that its trace is another one
        self.room = 8  # how many views may be noted before those that have died are forgotten
        self.kept: Any = None  # a copy of a part, as it was saved
        self.guard: Any = None  # the guarded value of this array, one for all nodes that save it

    def note(self, view: TracedArray) -> None:
        """Note a view of this root."""
        if len(self.views) >= self.room:
            self.views = [one for one in self.views if one() is not None]
            self.room = max(8, 2 * len(self.views))
        self.views.append(weakref.ref(view))


@final
class Moved:
    """
    The trace of a view whose root was written in another trace, until the view is used.

    Operations are dispatched by the traces of their operands. A view that is not looked at keeps the value of an
    older time; this keeps it from being taken for an array of the trace that it had then.

    Args:
        trace: The trace of the root.
    """

    __slots__ = ("closed", "fast", "level", "trace")

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.level = trace.level
        self.closed = False
        self.fast = False

    def constant(self, value: Any) -> Any:
        """Return an array that depends on nothing, in the trace of the root."""
        return self.trace.constant(value)

    def process(self, primitive: Any, operands: tuple[Any, ...], params: Any) -> Any:
        """Do an operation after the views among its operands have come to where their roots are."""
        for operand in operands:
            if hasattr(operand, "_trace"):
                operand.present()
        return primitive.bind(operands, params)


def bottom(value: Any) -> Any:
    """Return the plain array (or scalar, or abstract value) under all levels of tracing."""
    while hasattr(value, "_trace"):
        value = value._value
    return value


def root_of(array: TracedArray) -> TracedArray:
    """Return the array that a traced array is a view of; itself if it is none."""
    sharing = array._sharing
    return array if sharing is None or sharing.root is None else sharing.root


def is_array(array: TracedArray) -> bool:
    """Return whether what has no axes is an array to NumPy, and no number; of a program or a batch as far as known."""
    value: Any = array
    while hasattr(value, "_trace"):
        sharing, beneath = value._sharing, value._value
        if sharing is not None and (sharing.is_array or _is_part(sharing)):
            return True
        if type(beneath) is ArrayType and type(value._node) is np.ndarray and not value._node.ndim:
            return True  # a constant of a program
        value = beneath
    return isinstance(value, np.ndarray)


def _is_part(sharing: Sharing) -> bool:
    """Return whether a view without axes is an array: one of an array, from which no element was taken by numbers."""
    if sharing.root is None or not (sharing.root.shape or is_array(sharing.root)):
        return False
    taken = [params["index"] for primitive, params in sharing.path if primitive.name == "getitem"]
    return not any(all(isinstance(i, (int, np.integer)) for i in index) for index in taken)


def as_array(made: Any) -> Any:
    """Return what a function makes, after noting that it is an array, where it has no axes and nobody sees that."""
    if hasattr(made, "_trace") and not made.shape and type(bottom(made)) is ArrayType:
        made.sharing().is_array = True
    return made


def laid(array: Any) -> np.ndarray | None:
    """Return a plain array that lies as an array, or each member of a batch, does or will; it must not be read."""
    found = _ground(array.present() if hasattr(array, "_trace") else array)
    stand_in = getattr(getattr(found, "_trace", None), "stand_in", None)
    found = found if stand_in is None else stand_in(found)
    if not isinstance(found, np.ndarray):
        return None  # nobody knows
    # The members of a batch are along axes in front.
    return found if found.ndim == array.ndim or 0 in found.shape else found[(0,) * (found.ndim - array.ndim)]


def lies(array: Any, order: str) -> bool | None:
    """Return whether an array lies without gaps in an order, "C" or "F"; None if nobody knows."""
    found = laid(array)
    return None if found is None else bool(found.flags.f_contiguous if order == "F" else found.flags.c_contiguous)


def order_like(array: Any) -> Literal["C", "F"]:
    """Return the order of a new array that NumPy makes for elements of another one: that of Fortran if it lies so."""
    return "F" if lies(array, "F") and not lies(array, "C") else "C"


def lying(array: Any, order: Literal["C", "F"] = "C") -> Any:
    """Return an array that lies without gaps in an order: a copy where it is known to lie otherwise."""
    return np.copy(array, order=order) if lies(array, order) is False else array


def settled(array: Any) -> Any:
    """
    Return an array as it is, after a view that was written whole has taken its place in its root again.

    Whether a reshape makes a view or a copy depends on how it lies there, and what was written may lie in another way.
    """
    sharing = array._sharing if hasattr(array, "_trace") else None
    if sharing is None or sharing.root is None or sharing.copied:
        return array
    if not _is_view(_ground(array.present()), _ground(sharing.root)):
        refresh(array, sharing)
    return array


def _ground(value: Any) -> Any:
    """Return what is under all levels of tracing: of a batch all members, of an equation what stands for its result."""
    while hasattr(value, "_trace"):
        beneath = value._value
        if hasattr(value._trace, "members"):
            beneath = beneath if value._node is None else value._node
        elif type(beneath) is ArrayType:
            return value
        value = beneath
    return value


def linked(
    view: Any, base: Any, primitive: Any, params: dict[str, Any], *, always: bool = False, gathered: bool = False
) -> Any:
    """
    Return *view* after noting that it is a view of *base*, if their memory is indeed the same.

    Args:
        view: Result of `primitive(base, **params)`.
        base: The operand.
        primitive: The operation, which has a `put` that writes a changed view back.
        params: Its parameters.
        always: Whether it is a view to the user also where the memory is not the same (`x.T.flat`).
        gathered: Whether a batch or a program gathers what NumPy makes a view: the row that a number it has names.
    """
    if not always and not gathered and not _is_view(_ground(view), _ground(base)):
        return view
    sharing = base.sharing()
    root, path = (base, ()) if sharing.root is None else (sharing.root, sharing.path)
    if view._trace is not root._trace:
        view.sharing().static = True  # taken inside a region, of an array from outside of it
        return view
    mine = view.sharing()
    mine.root, mine.path = root, (*path, (primitive, params))
    mine.reachable = sharing.reachable
    mine.copied = always
    mine.seen = root.sharing().version
    mine.line = user_line()
    root.sharing().note(view)
    return view


def _is_view(made: Any, base: Any) -> bool:
    """Return whether a value is a view; of what has no memory its trace may know, else what NumPy makes one is one."""
    if isinstance(made, np.ndarray) and not hasattr(base, "_trace"):
        return np.may_share_memory(made, base)
    has_view = getattr(getattr(made, "_trace", None), "has_view", None)
    return has_view is None or has_view(made, base)


def refresh(view: TracedArray, sharing: Sharing) -> None:
    """
    Give a view whose root was written the present value of the root.

    Raises:
        StaleViewError: The root was written inside a trace that has ended, so that there is no value.
    """
    root = sharing.root
    assert root is not None
    trace = root._trace
    if trace.closed and view._trace is not trace:
        raise StaleViewError(
            f"A view taken at {sharing.line} is used after its base was written at {root.sharing().line}, "
            "inside a function whose trace has ended, so the base has no value here. Return the written "
            "array from that function, or take the view again from what it returned."
        )
    # A view that a function returns may be read first when its trace has ended: it takes its value there.
    closed, trace.closed = trace.closed, False
    try:
        # Replayed outside of any region: the view belongs to the trace of its root.
        with entered(capture=None):
            replayed: Any = root
            for primitive, params in sharing.path:
                replayed = primitive.bind((replayed,), params)
    finally:
        trace.closed = closed
    view._trace, view._node, view._value = replayed._trace, replayed._node, replayed._value
    sharing.kept = None
    sharing.seen = root.sharing().version


def unwritten(sharing: Sharing, value: Any) -> Any:
    """
    Return the value of an operand in a form that can be saved: a later write does not change it.

    A write copies what is saved of its array. A part of an array that is being written is copied itself, so that a loop
    that fills an array from its own elements copies each of them once, and does not keep the whole array for each; with
    tangents and members it does so, too. A tape around would record the copy, and keeps the array in any case.
    """
    sharing.private = False
    root = sharing.root
    if root is None:
        return value
    theirs = root.sharing()
    if not theirs.private or 2 * value.nbytes > root.nbytes or not _is_plain_beneath(value):
        theirs.private = False
        return value
    if sharing.kept is None:
        sharing.kept = np.copy(value)
    return sharing.kept


def _is_plain_beneath(value: Any) -> bool:
    """Return whether a value is a plain array, or made of some by traces that record nothing."""
    while hasattr(value, "_trace") and not hasattr(value._trace, "ledger"):
        value = value._node if hasattr(value._trace, "members") and value._node is not None else value._value
    return type(value) is np.ndarray


def same_view(value: Any, target: TracedArray, index: Any) -> bool:
    """Return whether *value* is the view `target[index]` itself, already written through."""
    theirs = getattr(value, "_sharing", None)
    if theirs is None or theirs.root is None or not theirs.path:
        return False
    mine = target.sharing()
    root = target if mine.root is None else mine.root
    primitive, params = theirs.path[-1]
    if theirs.root is not root or theirs.seen != root.sharing().version or len(theirs.path) != len(mine.path) + 1:
        return False
    steps = [(p.name, q) for p, q in theirs.path[:-1]]
    if primitive.name != "getitem" or steps != [(p.name, q) for p, q in mine.path]:
        return False
    written = HANDLERS[normal_index](index)
    # A view has a basic index; to compare it with an array, plain or traced, would compare elements.
    return not any(hasattr(part, "__array_function__") for part in written) and params["index"] == written


def normal_index(index: Any) -> Any:
    """Return an index in the form that operations keep; the key of its handler in the registry."""
    return HANDLERS[normal_index](index)


def write(target: TracedArray, index: Any, value: Any) -> None:
    """
    Do `target[index] = value`, through to the root if *target* is a view.

    Args:
        target: The traced array that is written.
        index: Any NumPy index without traced parts.
        value: What is written; broadcast and cast as NumPy does.
    """
    new = HANDLERS[operator.setitem](target, index, value)
    replace(target, new, private=True)


def replace(target: TracedArray, new: TracedArray, *, private: bool) -> None:
    """
    Let *target* have the value *new* from now on, and with it all arrays that it is a view of.

    Args:
        target: The traced array that is written.
        new: Its new value, of the same shape and dtype.
        private: Whether nothing else holds the memory of *new*.
    """
    capture = current().capture
    sharing = target.sharing()
    sharing.is_array = True
    root = sharing.root
    written = target if root is None else root
    if written.sharing().static or (capture is not None and capture.covers(target._trace)):
        raise TraceError(
            f"An array from outside of a step or checkpointed function was written at {user_line()}. It "
            "is a static value there and must not change. Put it into the state or the inputs, or write "
            "into a copy of it."
        )
    if root is None:
        become(target, new, private=private)
        return
    stations: list[Any] = [root]
    for primitive, params in sharing.path[:-1]:
        stations.append(primitive.bind((stations[-1],), params))
    value: Any = new
    element = False
    for primitive, params in reversed(sharing.path):
        if primitive.put is None:
            raise TraceError(
                f"Cannot write at {user_line()} through the result of {primitive.name} taken at "
                f"{sharing.line}: NumPy makes it read-only. Write into its base, or into a copy."
            )
        base = stations.pop()
        element = base is root and primitive.name == "getitem"
        # `root[index] += x` is `root[index] = root[index] + x`: in place where nothing else holds the memory.
        setitem = HANDLERS[operator.setitem]
        value = setitem(root, params["index"], value) if element else primitive.put(base, params, value)
    become(root, value, private=element)
    target._trace, target._node, target._value = new._trace, new._node, new._value
    sharing.kept = None
    sharing.seen = root.sharing().version


def become(target: TracedArray, new: TracedArray, *, private: bool) -> None:
    """Let a root take the value of *new*; its views see it at their next use."""
    sharing = target.sharing()
    if new._trace is not target._trace:
        moved = Moved(new._trace)
        for reference in sharing.views:
            view = reference()
            if view is not None:
                view._trace = moved
    target._trace, target._node, target._value = new._trace, new._node, new._value
    sharing.version += 1
    sharing.reachable = False
    sharing.private = private
    sharing.guard = None
    sharing.line = user_line()
