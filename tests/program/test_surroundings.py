"""What a traced function finds around it, and whether it is still the same."""

from __future__ import annotations

import gc
import weakref
from types import ModuleType

import numpy as np
import pytest

from ebbtide import grad
from ebbtide.errors import TraceError
from ebbtide.program import surroundings
from ebbtide.program.surroundings import Surroundings

settings = ModuleType("settings")
settings.rate = 1.0
settings.unused = 1.0
NUMBER = 1.0


def test_modules_of_the_user(monkeypatch):
    """Names of this module, and those that are looked up in modules of the user's, are watched; others are not."""
    found = Surroundings(lambda x: np.sin(x) * NUMBER * settings.rate)
    assert found.changed() is None
    settings.unused = 2.0
    assert found.changed() is None
    monkeypatch.setattr(settings, "rate", 2.0)
    assert found.changed() == "settings.rate"
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "NUMBER", 2.0)
    assert found.changed() == "NUMBER"


def test_a_name_that_goes_away():
    """A name that has no value any more has changed; one that has none yet is passed over."""
    def make():
        if not late:
            value = np.ones(2)

        def f(x):
            return x * value

        def forget():
            nonlocal value
            del value

        return f, forget

    late = False
    f, forget = make()
    found = Surroundings(f)
    forget()
    assert found.changed() == "value"
    late = True
    assert Surroundings(make()[0]).changed() is None


def test_what_a_derivative_wraps():
    """What the function of a derivative closes over is watched through the library's own functions."""
    w = np.ones(2)
    found = Surroundings(grad(lambda x: np.sum(x * w)))
    assert found.changed() is None
    w = np.ones(2)
    assert found.changed() == "w"


def test_no_array_is_kept_alive():
    """References are weak: an array that its name lets go of is gone, and has changed."""
    gc.disable()
    try:
        w = np.ones(2)
        reference = weakref.ref(w)
        found = Surroundings(lambda x: x * w)
        w = None
        assert reference() is None
        assert found.changed() == "w"
    finally:
        gc.enable()


def test_functions_that_call_each_other_end():
    """Functions and objects that reach each other are looked at once."""
    class Node:
        def __init__(self):
            self.other = self

        def run(self, x):
            return x if self.other is self else self.other.run(x)

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    node = Node()
    for f in (even, node.run, lambda x: node.run(x) + odd(x)):
        assert Surroundings(f).changed() is None


def test_a_generator_behind_an_object_is_refused():
    """Also one that is an attribute of an object in the closure."""
    class Noise:
        def __init__(self):
            self.random = np.random.default_rng(0)

    noise = Noise()
    with pytest.raises(TraceError, match=r"noise.random, which the function finds around it, is a random generator"):
        Surroundings(lambda x: x * noise.random.random())
    assert surroundings.refuse_random([1.0, np.ones(2)], "An argument") is None
