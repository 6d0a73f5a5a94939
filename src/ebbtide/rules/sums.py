"""Einstein's sums of products: linear in each of any number of operands."""

from __future__ import annotations

import string
from math import prod
from typing import Any

import numpy as np

from ebbtide.arrays.array_type import ArrayType, type_of
from ebbtide.arrays.containers import as_operand
from ebbtide.arrays.primitive import FRESH, Primitive, Pull, matched, promoted
from ebbtide.arrays.traced import TracedArray
from ebbtide.rules.answers import answer, refusal
from ebbtide.rules.products import SMALL, product


def _sum_of_products(*operands: Any, terms: tuple[str, ...], out: str, optimize: Any) -> Any:
    return np.einsum(f"{','.join(terms)}->{out}", *operands, optimize=optimize)


def _sum_type(*kinds: ArrayType, terms: tuple[str, ...], out: str, optimize: Any) -> ArrayType:
    sizes: dict[str, int] = {}
    for term, kind in zip(terms, kinds, strict=True):
        for letter, size in zip(term, kind.shape, strict=True):
            sizes[letter] = size if size != 1 else sizes.get(letter, 1)
    return ArrayType(tuple([sizes[c] for c in out]), np.result_type(*[kind.dtype for kind in kinds]))


def _contracted(operands: tuple[Any, ...], terms: tuple[str, ...], out: str) -> Any:
    """Return a sum of products of the reverse sweep, two operands at a time where there are more."""
    traced = any(type(operand) is TracedArray for operand in operands)
    if not traced and not all(operand.size for operand in operands):
        # Zeros: NumPy 2.4.6 writes beyond the memory of empty results of extended floats.
        kind = _sum_type(*map(type_of, operands), terms=terms, out=out, optimize=False)
        return np.zeros(kind.shape, kind.dtype)
    if any(type(operand) is not np.ndarray for operand in operands):
        return np.einsum(f"{','.join(terms)}->{out}", *operands, optimize=len(operands) > 2)
    if len(operands) == 2:
        return _pair(operands[0], operands[1], terms[0], terms[1], out)
    held = list(zip(operands, terms, strict=True))
    path = np.einsum_path(f"{','.join(terms)}->{out}", *operands, optimize="greedy")[0][1:]
    for places in path:
        taken = [held.pop(place) for place in sorted(places, reverse=True)]
        needed = set(out).union(*[term for _, term in held])
        result = "".join(c for c in dict.fromkeys("".join(t for _, t in taken)) if c in needed) if held else out
        values, names = zip(*taken, strict=True)
        if len(taken) == 2:
            held.append((_pair(values[0], values[1], names[0], names[1], result), result))
        else:
            held.append((np.einsum(f"{','.join(names)}->{result}", *values), result))
    return held[0][0]


def _pair(x: Any, y: Any, of_x: str, of_y: str, out: str) -> Any:
    """Return a sum of products of two arrays, as a product of matrices where they are large enough for BLAS."""
    sizes = dict(zip(of_x, x.shape, strict=True)) | dict(zip(of_y, y.shape, strict=True))
    stack = [c for c in of_x if c in of_y and c in out]
    inner = [c for c in of_x if c in of_y and c not in out]
    left, right = [c for c in of_x if c not in of_y], [c for c in of_y if c not in of_x]
    rows, middle, columns = (prod(sizes[c] for c in letters) for letters in (left, inner, right))
    broadcast = any(sizes[c] != n for c, n in zip(of_x, x.shape, strict=True))
    if broadcast or not set(left + right) <= set(out) or rows * middle * columns < SMALL:
        return np.einsum(f"{of_x},{of_y}->{out}", x, y)
    shape = [sizes[c] for c in stack]
    a = np.transpose(x, [of_x.index(c) for c in stack + left + inner]).reshape(*shape, rows, middle)
    b = np.transpose(y, [of_y.index(c) for c in stack + inner + right]).reshape(*shape, middle, columns)
    letters = stack + left + right
    full = product(a, b).reshape([sizes[c] for c in letters])
    return np.transpose(full, [letters.index(c) for c in out])


def _of(count: int) -> Primitive:
    """Return the operation of *count* operands; each pull saves all the others."""

    def pull(k: int) -> Pull:
        def rule(g: Any, kind: ArrayType, params: Any, *others: Any) -> Any:
            terms, out = params["terms"], params["out"]
            theirs = terms[:k] + terms[k + 1 :]
            # A letter of one element was broadcast if it is longer elsewhere, and is summed over; one that is
            # nowhere else was summed over, and is repeated.
            elsewhere = set(out).union(*theirs)
            known = [c for c, n in zip(terms[k], kind.shape, strict=True) if c in elsewhere and n != 1]
            part = _contracted((g, *others), (out, *theirs), "".join(known))
            # Where all others are broadcast along a letter, so is their product.
            sizes = dict(zip(known, part.shape, strict=True))
            shape = tuple([sizes.get(c, 1) for c in terms[k]])
            return matched(np.positive(np.broadcast_to(np.reshape(part, shape), kind.shape)), kind)

        return Pull(rule, tuple([f"operand{j}" for j in range(count) if j != k]), FRESH, temporaries=2)

    def push(tangents: list[Any], values: Any, out: Any, params: Any, kept: Any) -> Any:
        terms = [
            made.bind((*values[:k], tangent, *values[k + 1 :]), params)
            for k, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return promoted(terms, out)

    def of_members(values: Any, mapped: Any, params: Any, size: int) -> Any:
        terms, out = params["terms"], params["out"]
        letter = next(c for c in string.ascii_letters if c not in "".join(terms))
        of_each = tuple([letter + term if m else term for term, m in zip(terms, mapped, strict=True)])
        return made.bind(values, {**params, "terms": of_each, "out": letter + out})

    made = Primitive(
        _sum_of_products, name="einsum", operands=None, pull=pull, push=push, infer=_sum_type, batch=of_members
    )
    return made


# One for each number of operands, as a rule names what it saves.
_SUMS = tuple([_of(count) for count in range(1, 9)])


def _parsed(subscripts: str, operands: list[Any]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the output, without ellipses."""
    text = subscripts.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {len(operands)} operands for the {len(terms)} terms of {subscripts!r}.")
    free = [c for c in string.ascii_letters if c not in text]
    pairs = zip(terms, operands, strict=True)
    most = max((operand.ndim - len(t.replace("...", "")) for t, operand in pairs if "..." in t), default=0)
    batch = "".join(free[:most])
    filled = []
    for term, operand in zip(terms, operands, strict=True):
        count = operand.ndim - len(term.replace("...", ""))
        filled.append(term.replace("...", batch[most - count :] if count else ""))
    if not arrow:
        letters = [c for c in "".join(filled) if c not in batch]
        out = ("..." if batch else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return filled, out.replace("...", batch)


def _without_repeats(operand: Any, term: str) -> tuple[Any, str]:
    """Return an operand with letters that occur twice in its own term replaced by their diagonal."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            operand = np.diagonal(operand, 0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
    return operand, term


def _as_text(*args: Any) -> tuple[Any, ...]:
    """Return the arguments of einsum with subscripts, of lists of numbers behind the operands, as one text."""
    *_, last = lists = args[1::2] if len(args) % 2 == 0 else (*args[1::2], args[-1])
    letters = ["".join("..." if one is Ellipsis else string.ascii_letters[one] for one in numbers) for numbers in lists]
    count = len(args) // 2
    text = ",".join(letters[:count])
    return (text if last is lists[count - 1] else f"{text}->{letters[-1]}", *args[: 2 * count : 2])


def _cast(a: Any, dtype: np.dtype[Any], casting: Any) -> Any:
    """Return an operand in the dtype that is computed in."""
    a = as_operand(a)
    if not np.can_cast(a.dtype, dtype, casting):
        raise TypeError(f"Cannot cast operands of einsum from {a.dtype!r} to {dtype!r} by the rule {casting!r}")
    return a if a.dtype == dtype else a.astype(dtype)


def einsum(*args: Any, optimize: Any = False, dtype: Any = None, order: Any = "K", casting: Any = "safe") -> Any:
    """Return Einstein's sum of products, whose operands are cast to a dtype that is given."""
    args = args if isinstance(args[0], str) else _as_text(*args)
    if dtype is not None:
        args = (args[0], *[_cast(a, np.dtype(dtype), casting) for a in args[1:]])
    if order != "K":
        return np.copy(einsum(*args, optimize=optimize), order)
    if len(args) > len(_SUMS) + 1:
        raise refusal(f"np.einsum of more than {len(_SUMS)} traced operands: do it in several calls.")
    operands = [as_operand(a) for a in args[1:]]
    terms, out = _parsed(args[0], operands)
    pairs = [_without_repeats(o, t) for o, t in zip(operands, terms, strict=True)]
    if len(pairs) == 1 and sorted(pairs[0][1]) == sorted(out):
        operand, term = pairs[0]
        return np.transpose(operand, [term.index(c) for c in out])
    params = {"terms": tuple([t for _, t in pairs]), "out": out, "optimize": optimize}
    return _SUMS[len(pairs) - 1].bind(tuple([o for o, _ in pairs]), params)


answer(np.einsum, einsum)
