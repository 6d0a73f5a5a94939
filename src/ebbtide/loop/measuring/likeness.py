"""Which steps take on plain values what the function alone takes, by what they record on a tape."""

from __future__ import annotations

from typing import Any

from ebbtide.arrays.context import current
from ebbtide.arrays.primitive import Signature
from ebbtide.arrays.traced import TracedArray
from ebbtide.loop.stepping.steps import TapedStep
from ebbtide.loop.stepping.swap import nodes_of
from ebbtide.tape.forms import Form, form_here, form_of
from ebbtide.tape.holders import arrays_in
from ebbtide.tape.node import PROJECTION, Node
from ebbtide.tape.outcome import is_users

# Where linear functions come from that take no memory of their own, or that which NumPy's own takes; what `np.pad` of
# traced arrays takes is 26 states more.
_PLAIN = frozenset(
    {"numpy", *[f"ebbtide.rules.{name}" for name in ("indexing", "joining", "reductions", "selection", "shapes")]}
)
# And those of which tests/tape/test_takes compares what sweeps take with what is forecast.
_TESTED = ("numpy", "_operator", "ebbtide.rules", "ebbtide.arrays")
_NUMPY = ("numpy", "ebbtide.rules")
_SCIPY = ("scipy", "ebbtide.scipy")
# What is one function of NumPy's, behind one of ours.
_ITSELF = frozenset({"convolve", "einsum", "interp"})
# What leads from an input of a step to what is written into it.
_MOVED = frozenset({"reshape", "transpose"})
_WRITTEN = _MOVED | {"setitem"}
# What takes, of static values alone, what NumPy's own takes, and its result.
_OF_STATIC = frozenset({"dot", "matmul", "max", "mean", "min", "prod", "reshape", "std", "sum", "var"})


def is_plain(record: TapedStep) -> bool:
    """Return whether a step does on a tape what the function alone does, and saves it: what is linear saves nothing."""
    return all(map(_does_as_numpy, nodes_of(record)))


def hides_nothing(record: TapedStep) -> bool:
    """Return whether the same holds but for loops in a step, whose own plans have room for what their steps take."""
    return all(_is_of_loop(node.signature) or _does_as_numpy(node) for node in nodes_of(record))


def _is_of_loop(signature: Any) -> bool:
    return signature is PROJECTION or hasattr(signature, "room")


def _does_as_numpy(node: Node) -> bool:
    """Return whether an operation takes what NumPy's does; with index arrays it may be a part of another function."""
    one = node.signature
    if one is None or (type(one) is Signature and one.local):
        return not _is_of_clip(node)
    linear = type(one) is Signature and not (one.saves or one.keeps) and _module_of(one) in _PLAIN
    return linear and not arrays_in(node.params, lambda array: True)


def _is_of_clip(node: Node) -> bool:
    """Return whether an operation may be the second of two that `np.clip` is for us: NumPy's makes one array."""
    return node.name == "minimum" and any(parent.name == "maximum" for parent in node.parents or ())


def written_in_place(record: TapedStep) -> dict[int, int]:
    """
    Return what writes into the inputs of a step take on a tape at most, where NumPy takes nothing.

    All of an input is made anew, beside what is written; through a view that lies otherwise that is made anew as well,
    and is brought back. Of writes into halves of a state a loop took up to 1.35 of its budget.

    Returns:
        The bytes by the numbers of the nodes that lead on from an input; 0 before the first write.
    """
    found = dict[int, int]()  # in one pass: a step may write element by element
    for node in _made(record):
        *written, target = node.parents or (node,)
        if node.name in _WRITTEN and (target.signature is None or target.number in found):
            nbytes = 0
            if node.name == "setitem":
                again = 2 * form_here(target.type).nbytes if target.name in _MOVED else 0
                nbytes = again + sum([form_here(one.type).nbytes for one in (node, *written)])
            found[node.number] = max(nbytes, found.get(target.number, 0))
    return found


def is_known(record: TapedStep) -> bool:
    """
    Return whether the sweep of a step takes what is forecast, as is tested of NumPy's functions, or what is measured.

    Of loops, reruns and programs it is not known; of solves by elimination it is.
    """
    signatures = [node.signature for node in _made(record)]
    return all(_takes_what_is_forecast(one) or is_measured(one) for one in signatures)


def _takes_what_is_forecast(one: Any) -> bool:
    if type(one) is not Signature:
        return one is PROJECTION or one.is_known
    return not _has_users_rules(one) and (one.local or _module_of(one).startswith(_TESTED))


def is_measured(one: Any) -> bool:
    """Return whether what the rules of an operation take is found by running them: users' own, and SciPy's."""
    return type(one) is Signature and not one.local and (_has_users_rules(one) or _module_of(one).startswith(_SCIPY))


def _has_users_rules(one: Signature) -> bool:
    return any(is_users(pull) for pull, *_ in one.pulls)


def _module_of(signature: Signature) -> str:
    """Return where the function of an operation comes from."""
    function = signature.function
    return getattr(getattr(function, "function", function), "__module__", None) or ""


def is_lone(values: list[Any], record: TapedStep) -> bool:
    """Return whether a plain step takes what the function alone does, but for `taken_beside`."""
    context = current()
    # Another region, program or forward mode inside runs the step beside something else, or with more than values.
    forms = [form_of(leaf) for leaf in values if type(leaf) is TracedArray]
    if context.capture is not None or context.derived or not all(type(form) is Form for form in forms):
        return False
    # Operations on static values are done by our functions, where NumPy's may take less: `np.pad` by 26 states.
    static = _static_only(record)
    return all(node.number in static or _does_itself(node, static) for node in _made(record) if _meets(node, static))


def taken_beside(record: TapedStep) -> int:
    """
    Return the bytes by which a plain step that `is_lone` may take more than the function alone, with static values.

    Of them alone others are made. An operation with them makes an array where NumPy may reuse that of a temporary; and
    one may make an array for another one, where both are one function of NumPy's, which makes none: the bounds of
    `np.clip` are a maximum and a minimum for us.
    """
    static, made = _static_only(record), _made(record)
    others = [node for node in made if node.number in static and node.name != "getitem"]
    again = [0]
    for node in made:
        if node.number not in static and _meets(node, static):
            parents = [one for one in node.parents or () if one.signature is not None and one.number not in static]
            reused = bool(parents) and _module_of(node.signature) == "_operator"
            again += [form_here(node.type).nbytes] if reused else []
            again += [form_here(one.type).nbytes for one in parents if _meets(one, static)]
    return max(again) + sum(form_here(node.type).nbytes for node in others)


def _static_only(record: TapedStep) -> set[int]:
    """Return the numbers of static values, and of what is made of them alone, in ways that take what NumPy's do."""
    found = {leaf.number for leaf, _ in record.tape.statics.values()}
    for node in _made(record) if found else ():
        if all(parent.number in found for parent in node.parents or (node,)):
            index = (node.params or {}).get("index", ()) if node.name == "getitem" else ()
            numbers = index if isinstance(index, tuple) else (index,)
            is_row = bool(numbers) and all(type(part) is int for part in numbers)
            if is_row or (type(node.signature) is Signature and (node.signature.local or _is_whole(node))):
                found.add(node.number)
    return found


def _is_whole(node: Node) -> bool:
    """Return whether an operation is one function of NumPy's that does as much itself."""
    return node.name in _OF_STATIC and _module_of(node.signature).startswith(_NUMPY)


def _made(record: TapedStep) -> list[Node]:
    """Return the nodes of what a step makes, in the order in which it does."""
    nodes = [node for node in nodes_of(record) if node.signature is not None]
    return sorted(nodes, key=lambda node: node.number)


def _meets(node: Node, static: set[int]) -> bool:
    """Return whether a static value is an operand of an operation."""
    return any(parent.number in static for parent in node.parents or ())


def _does_itself(node: Node, static: set[int]) -> bool:
    """Return whether an operation of a static value with another is done by one function, which is NumPy's."""
    one, parents = node.signature, node.parents or ()
    if type(one) is not Signature or all(parent.number in static for parent in parents):
        return False
    return one.local or _module_of(one).startswith("numpy") or node.name in _ITSELF
