"""Every rule on its own: dtypes, what it saves, other forms, and abstract arrays."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from tests.scale import sample_of_each

from ebbtide import TraceError
from ebbtide.arrays.abstract import abstract_array
from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.traced import TracedArray
from ebbtide.testing.rules import check_operation, note_influence

from .conftest import abstractly, recorded, types_of
from .example import callable_of, name_of
from .examples import BY_VALUES, EXAMPLES, cases, is_by_values, label, typed_cases

SINGLE = (np.float32, np.complex64)
DOUBLE = {np.dtype(np.float64), np.dtype(np.complex128)}


@pytest.mark.parametrize("key", [key for key, some in EXAMPLES.items() if any(e.smooth for e in some)], ids=name_of)
def test_rules(key, random):
    """
    What a rule hands upstream has the shape and dtype of its operand, before anybody casts it, and agrees with the
    tangents; rules write into nothing, and do for members what they do for each.
    """
    checked = 0
    some = [(e, d) for e in EXAMPLES[key] if e.smooth for d in (np.float64, *SINGLE, np.float16) if e.takes(d)]
    for example, dtype in some:
        for operation in recorded(key, example, dtype):
            check_operation(operation, random)
            checked += len(operation.active())
    # Of its operand the first takes shape and dtype only, and the second gives it back as it is.
    assert checked or key in (np.full_like, np.real_if_close)


# What is kept beside masks, in the place of operands and results, and how many elements it has.
KEPT = {
    ("normalize", "inverse"): lambda shape: prod(shape[:-1]),
    ("cross_entropy", "probabilities"): prod,
}


def test_saved_values_matter(random):
    """
    Every value that a rule saves has an influence on its result, of whatever sign; masks are of one byte.

    What else is kept has a name in `KEPT`.
    """
    matters: dict[tuple[str, int, str], bool] = {}
    for key, example in cases(smooth=True):
        for operation in recorded(key, example, np.float64):
            note_influence(operation, matters, random)
            for name in operation.primitive.keep:
                kept = operation.value(name)
                if size := KEPT.get((operation.primitive.name, name)):
                    assert kept.size == size(operation.values[0].shape)
                else:
                    assert kept.dtype in {np.dtype(np.bool_), np.dtype(np.int8)}, operation.primitive
    assert len(matters) > 60
    assert [where for where, matter in matters.items() if not matter] == []


def test_signatures_save_what_rules_name():
    """An operation saves the values that the rules of its active operands name, each once, and nothing else."""
    for key, example in cases(smooth=True):
        for operation in recorded(key, example, np.float64):
            primitive, active = operation.primitive, operation.active()
            signature = primitive.signature(sum(1 << k for k in active), len(operation.values))
            names = {name for k in active for name in primitive.pull(k).needs}
            assert len(signature.saves) == len(set(signature.saves)) == len(names - set(primitive.keep))
            assert set(signature.saves) == {primitive.position(name) for name in names - set(primitive.keep)}
            assert len(signature.keeps) == len(names & set(primitive.keep))


@pytest.mark.parametrize(
    "case", sample_of_each([c for c in typed_cases(np.float64, *SINGLE) if not is_by_values(c)], 12), ids=label
)
def test_abstract_types(case):
    """On arrays without data, functions, rules and tangents have the types that NumPy gives on arrays."""
    key, example, dtype = case
    result, operations, trace = abstractly(key, example, dtype)
    expected = types_of(example.call(callable_of(key), example.operands(dtype)))
    assert types_of(result) == expected
    for operation in list(operations):
        kind = type_of(operation.out)
        before = len(operations)
        types = [kind, *[type_of(x) for x in operation.values if hasattr(x, "dtype")]]
        for k in operation.active():
            pulled = operation.pull(k, abstract_array(kind.shape, kind.dtype, trace))
            assert types_of(pulled) == types_of(operation.values[k]), operation.primitive
            tangents = [None] * len(operation.values)
            tangents[k] = operation.values[k]
            assert types_of(operation.push(tangents)) == [kind], operation.primitive
        made = {type_of(step.out).dtype for step in operations[before:]}
        assert DOUBLE & {one.dtype for one in types} or not DOUBLE & made, operation.primitive


@pytest.mark.parametrize("function", [*sorted(BY_VALUES, key=name_of), np.real_if_close], ids=name_of)
def test_opaque_functions_say_so(function):
    """What cannot be done without data is in the table of opaque functions, or is so of complex numbers, and raises."""
    for example in EXAMPLES[function]:
        with pytest.raises(TraceError):
            abstractly(function, example, np.float64 if function in BY_VALUES else np.complex128)


def test_abstract_arrays_have_no_data():
    """An abstract array of any size takes no memory for its elements."""
    x = abstract_array((10**6, 10**6), np.float32)
    y = np.maximum(x * 2, 0)[:, ::2].T
    assert type(y) is TracedArray
    assert type_of(y) == type_of(abstract_array((500_000, 10**6), np.float32))
    assert name_of(np.maximum) == "maximum"
