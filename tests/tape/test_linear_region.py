"""Parts of a linearized function that run again: which trace they are of, and what they may use."""

from __future__ import annotations

import numpy as np
import pytest

from ebbtide import DeterminismError, checkpoint, grad, jvp, linearize, vjp
from ebbtide.arrays.context import current, entered
from ebbtide.arrays.traced import TracedArray
from ebbtide.ledger import Ledger
from ebbtide.tape.constancy import Constancy
from ebbtide.tape.linear import LinearTape
from ebbtide.tape.linear_region import Around, Pushing, is_alone, linear_trace, node_of, pushing, split, tape_of
from ebbtide.tape.tangent import TangentTrace

X = np.linspace(0.2, 1.3, 6)


def seen(function):
    """What a step sees while a function is run: (a linearized function is around, no other derivative is)."""
    found = []

    def looked(x):
        context = current()
        trace = linear_trace(context)
        found.append((trace is not None, trace is not None and is_alone(trace, context)))
        return x * x

    function(looked)
    return found


def test_the_trace_of_a_linearized_function():
    """A linearized function is known as such at its point only, and alone if no other derivative is taken."""
    assert linear_trace(current()) is None
    assert seen(lambda f: jvp(f, (X,), (X,))) == [(False, False)]
    assert seen(lambda f: linearize(f, X)) == [(True, True)]
    assert seen(lambda f: linearize(lambda x: vjp(f, x)[0], X)) == [(True, False)]
    assert seen(lambda f: linearize(lambda x: jvp(f, (x,), (X,)), X)) == [(True, False)]
    assert seen(lambda f: linearize(lambda x: linearize(f, x)[0], X)) == [(True, False)]
    assert seen(lambda f: grad(lambda x: np.sum(linearize(f, x)[0]))(X)) == [(True, False)]
    at_point_and_in_push = seen(lambda f: linearize(checkpoint(f), X)[1](X))
    assert at_point_and_in_push == [(False, False), (False, False)]


def made():
    """A linear tape, the forward mode whose tangents it traces, and one of its tangents."""
    linear = LinearTape(1, Ledger())
    return linear, TangentTrace(2, linear), linear.leaf(np.zeros(6))


def test_static_tangents_are_noted_and_given():
    """At the point a tangent from outside is noted; in a push it is given, and another one is an error."""
    linear, trace, tangent = made()
    noting = Pushing(linear, Constancy())
    assert noting.covers(linear)
    assert noting.lift(tangent) is tangent._value
    assert [static._node is tangent._node for static in noting.statics.values()] == [True]
    assert noting.lift(linear.constant(X)) is X
    key = id(tangent._node)
    with pushing(trace, linear, Constancy(), {key: X}, Around.here()) as capture:
        assert capture is current().capture
        assert linear_trace(current()) is None
        assert capture.lift(tangent) is X
        with pytest.raises(DeterminismError, match="had not used before"):
            capture.lift(linear.leaf(X))
    assert current().capture is None


def test_values_tangents_and_nodes():
    """A leaf of the forward mode is split into both, any other has no tangent; a tangent of no input has no node."""
    linear, trace, tangent = made()
    value, found = split(trace, TracedArray(trace, tangent, X))
    assert value is X
    assert found is tangent
    value, found = split(trace, X)
    assert value is X
    assert found is None
    assert split(TangentTrace(2, linear), TracedArray(trace, tangent, X))[1] is None
    assert node_of(linear, tangent) is tangent._node
    assert node_of(linear, linear.constant(X)) is None
    assert node_of(linear, X) is None


def test_static_tangents_of_a_step_have_nodes_in_it():
    """A tangent of the function becomes an input of the step that uses it: one, however often it is used."""
    linear, trace, tangent = made()
    step = LinearTape(1, linear.ledger, outer=linear)
    with entered(capture=step):
        assert tape_of(trace, current()) is step
    assert tape_of(trace, current()) is linear
    node = node_of(step, tangent)
    assert node is not tangent._node
    assert node_of(step, tangent) is node
    assert [(mine is node, outside._node is tangent._node) for mine, outside in step.statics.values()] == [(True, True)]
