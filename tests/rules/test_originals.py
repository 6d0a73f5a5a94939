"""Functions that stand for ones of NumPy and SciPy: those themselves on plain arrays, and found in containers."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from scipy import special

import ebbtide.numpy as enp
from ebbtide import grad
from ebbtide.rules.originals import is_traced, stands_for
from ebbtide.scipy import linalg, ndimage, signal
from ebbtide.scipy import special as enp_special

X = np.array([0.5, 1.5, 2.5])
MODULES = (enp, enp_special, linalg, ndimage, signal)


def functions_of(module: ModuleType):
    """The public functions of a module, by name."""
    return {name: getattr(module, name) for name in module.__all__ if hasattr(getattr(module, name), "__wrapped__")}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_original_is_known(module):
    """`__wrapped__` is NumPy's or SciPy's own function, of the same name, and not another one of this library."""
    found = functions_of(module)
    assert found
    for name, function in found.items():
        assert not function.__wrapped__.__module__.startswith("ebbtide")
        assert function.__wrapped__.__name__ == name
        assert function.__doc__


def test_plain_arguments_go_to_the_original():
    """Without a traced array the result is the object that the original returns, whatever the arguments are."""
    given = []

    def original(*args, **kwargs):
        given.append((args, kwargs))
        return given

    called = stands_for(original)(lambda *args, **kwargs: None)
    assert called(X, [1, {"a": X}], k="text") is given
    assert given == [((X, [1, {"a": X}]), {"k": "text"})]
    other = stands_for(original, lambda x: "plain")(lambda x: "traced")
    assert other(X) == "plain"
    assert other.__wrapped__ is original
    assert enp.asarray(X) is X
    assert enp_special.softmax(X).tobytes() == special.softmax(X).tobytes()


def test_traced_arrays_are_found_in_containers():
    """A traced array is seen in lists, tuples and dictionaries, however deep, as argument or by name."""
    seen = []
    called = stands_for(lambda *_, **__: seen.append("plain"))(lambda *_, **__: seen.append("traced"))

    def f(x):
        for args, kwargs in (
            ((x,), {}), (([x],), {}), (((1.0, [X, {"a": (x, None)}]),), {}), ((), {"k": x}),
            ((X,), {"k": {"b": [x[0]]}}),
        ):  # fmt: skip
            assert is_traced(args, kwargs)
            called(*args, **kwargs)
        assert not is_traced(X, [1.0, "text", None], {"a": (X,)})
        called(X, k=[X])
        return np.sum(x)

    grad(f)(X)
    assert seen == ["traced"] * 5 + ["plain"]
