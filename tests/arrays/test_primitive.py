"""What a rule saves is read off the parameters of its derivative."""

from __future__ import annotations

import functools
import inspect

import pytest

from ebbtide.arrays.primitive import needs_of


def _plain(x, y, out):
    return x, y, out


@functools.wraps(_plain)
def _wrapped(*values):
    return values


def _named(*values):
    return values


vars(_named)["__signature__"] = inspect.Signature([inspect.Parameter("out", inspect.Parameter.POSITIONAL_ONLY)])


class _Rules:
    def method(self, g, x):
        return g, x

    def __call__(self, y):
        return y


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize(
    "rule",
    [
        _plain, _wrapped, _named, _Rules().method, _Rules(), functools.partial(_plain, 1), lambda: 0,
        lambda g, *others: g, lambda x, *, out: out, lambda x, /, **others: x, lambda x, y=2: y, max,
    ],
    ids=range(12),
)  # fmt: skip
def test_names_are_those_of_the_signature(rule, skip):
    """The names are those that `inspect.signature` gives, of any kind of callable; what is none has no needs."""
    try:
        wanted = tuple(inspect.signature(rule).parameters)[skip:]
    except ValueError:  # a builtin function without a signature
        with pytest.raises(ValueError, match="no signature"):
            needs_of(rule, skip)
        return
    assert needs_of(rule, skip) == wanted
    assert needs_of(1, skip) == ()
