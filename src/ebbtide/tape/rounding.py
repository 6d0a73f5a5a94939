"""Operations on complex numbers that are done in another way without a tape."""

from __future__ import annotations

from ebbtide.arrays.primitive import Signature
from ebbtide.tape.node import Node, nodes_before

# From so many bytes on NumPy reuses the memory of a factor that is a temporary.
_REUSED = 256 * 1024


def is_other_off_tape(results: list[Node | None]) -> bool:
    """
    Return whether what was recorded may give other last bits when it runs without a tape.

    Of `a * f(b)` NumPy computes `f(b) * a`, into the memory of the factor that nobody else has, if that is large. On a
    tape somebody has it. To swap two complex factors changes the rounding: the imaginary part is a sum of two products,
    of which the first one is rounded and the second one is not, as the processor does a product and a sum in one.

    Of `1j / x`, where x is a number of NumPy's, Python computes the result, as that number is one of its floats: by
    other rules for quotients and powers, and it is a number of Python's. On a tape NumPy does. And NumPy's own numbers
    have other loops than its arrays for the size of a complex number, and for the product of two: with `*` off the
    tape, and with the functions, not always the same on it.

    Args:
        results: Nodes of what was computed.
    """
    return any(_is_other(node) for node in nodes_before(results))


def _is_other(node: Node) -> bool:
    if type(node.signature) is not Signature:
        return getattr(getattr(node.signature, "stepper", None), "on_tape", False)  # of a time loop
    kind, name = node.type.dtype.kind, node.signature.name
    if node.type.shape:
        return kind == "c" and name == "multiply" and node.type.nbytes >= _REUSED
    kinds = [one.type.dtype.kind for one in node.parents or () if not one.type.shape]
    return (kind == "c" and kinds == ["f"]) or (name in ("absolute", "multiply") and "c" in kinds)
