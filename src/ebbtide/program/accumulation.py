"""The passes that add a term of a sum where the sum is, so that the term itself is never there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ebbtide.program.equation import Equation, Variable, kind_of
from ebbtide.program.lifetimes import used_once
from ebbtide.program.parts import Part, meeting, outside, part_at
from ebbtide.program.program import Program
from ebbtide.rules.products import add_product

# What BLAS adds with the bits of the sum: to complex sums it gives other signs of zero.
_DTYPES = "fd"
# Of more parts the sum is made as it stands.
_MOST_PARTS = 8


def plus_product(total: Any, a: Any, b: Any) -> Any:
    """Return total + a b in a new array."""
    result = np.array(total, order="C")
    if not add_product(result, a, b):
        np.add(result, np.matmul(a, b), out=result)
    return result


def plus_scatter(total: Any, part: Any, index: tuple[Any, ...], unsigned: Sequence[Any] = ()) -> Any:
    """
    Return a new array: total, with a part added to the elements of an index that names none twice.

    The sum of whole arrays adds 0.0 to all others, which makes 0.0 of -0.0: *unsigned* are their parts where there may
    be some.
    """
    result = np.array(total, order="C")
    result[index] += part
    for zeros in unsigned:
        result[zeros] += 0
    return result


def add_products(program: Program) -> Program:
    """Return a program in which BLAS adds products of matrices to sums."""

    def added(equation: Equation, total: Variable, product: Equation) -> Equation:
        arguments = (total, *product.arguments)
        return replace(equation, primitive=None, function=plus_product, name="add_product", arguments=arguments)

    return _with_terms(program, _is_product_of_matrices, added, "products added by BLAS")


def add_scatters(program: Program) -> Program:
    """Return a program in which the cotangent of a part of an array is added to those elements alone."""
    # Where sums may have a -0.0: what was a scatter has none where it is not written.
    negative = {e.output: part_at(e.params["index"], e.output.type.shape) for e in program.equations if _is_scatter(e)}

    def added(equation: Equation, total: Variable, scatter: Equation) -> Equation | None:
        shape, index = total.type.shape, scatter.params["index"]
        here, before = part_at(index, shape), negative.get(total) or part_at((), shape)
        zeros = outside(before, here) if total.type.dtype.kind in "fc" else []
        if len(zeros) > _MOST_PARTS:
            return None
        negative[equation.output] = meeting(before, here)
        unsigned = tuple([_as_index(zero) for zero in zeros])
        arguments, params = (total, *scatter.arguments), {"index": index, "unsigned": unsigned}
        return replace(
            equation, primitive=None, function=plus_scatter, name="add_scatter", arguments=arguments, params=params
        )

    return _with_terms(program, _is_scatter, added, "parts added where they belong")


def _as_index(part: Part) -> tuple[slice, ...]:
    return tuple([slice(along[0], along[-1] + 1, along.step if along.step > 1 else None) for along in part])


def _is_product_of_matrices(equation: Equation) -> bool:
    kind = equation.output.type
    # To a vector BLAS adds column by column, with other bits; and a vector is little beside its matrix.
    if equation.name != "matmul" or kind.dtype.char not in _DTYPES or 1 in kind.shape:
        return False
    kinds = [kind_of(x) for x in equation.arguments]
    return all(one.dtype == kind.dtype and len(one.shape) == 2 for one in kinds)


def _is_scatter(equation: Equation) -> bool:
    # An index with arrays may name an element twice.
    return equation.name == "scatter" and not any(isinstance(part, np.ndarray) for part in equation.params["index"])


def _with_terms(
    program: Program,
    is_term: Callable[[Equation], bool],
    added: Callable[[Equation, Variable, Equation], Equation | None],
    note: str,
) -> Program:
    """Return a program in which sums take those of their terms that nothing else uses, if *added* writes them so."""
    once = used_once(program)
    terms = {one.output: one for one in program.equations if one.output in once and is_term(one)}
    taken: set[Variable] = set()
    found: list[Equation] = []
    for equation in program.equations:
        term = _term_of(equation, terms)
        one = None
        if term is not None:
            total = next(argument for argument in equation.arguments if argument is not term)
            one = added(equation, total, terms[term])
        if term is None or one is None:
            found.append(equation)
            continue
        found.append(one)
        taken.add(term)
    equations = tuple([equation for equation in found if equation.output not in taken])
    return replace(program, equations=equations, history=(*program.history, note))


def _term_of(equation: Equation, terms: dict[Variable, Equation]) -> Variable | None:
    """Return the term that a sum can take; None if it is no such sum."""
    if equation.name != "add" or len(equation.arguments) != 2:
        return None
    # The double of a term needs the term itself.
    pairs = (equation.arguments[::-1], equation.arguments)
    for term, total in pairs if equation.arguments[0] is not equation.arguments[1] else ():
        variables = type(term) is Variable and type(total) is Variable
        if variables and term in terms and total.type == term.type == equation.output.type:
            return term
    return None
