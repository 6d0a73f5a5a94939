"""Products of complex numbers whose last bits are others without a tape."""

from __future__ import annotations

from ebbtide.tape.node import Node, nodes_before

# From so many bytes on NumPy reuses the memory of a factor that is a temporary.
_REUSED = 256 * 1024


def swaps_factors(results: list[Node | None]) -> bool:
    """
    Return whether what was recorded may give other bits when it runs without a tape.

    Of `a * f(b)` NumPy computes `f(b) * a`, into the memory of the factor that nobody else has, if that is large. On a
    tape somebody has it. To swap two complex factors changes the rounding: the imaginary part is a sum of two products,
    of which the first one is rounded and the second one is not, as the processor does a product and a sum in one.

    Args:
        results: Nodes of what was computed.
    """
    for node in nodes_before(results):
        primitive = getattr(node.signature, "primitive", None)
        if primitive is not None and primitive.name == "multiply":
            if node.type.dtype.kind == "c" and node.type.nbytes >= _REUSED:
                return True
        elif getattr(getattr(node.signature, "stepper", None), "on_tape", False):  # of a time loop
            return True
    return False
