"""The contract of a registered type of vectors, checked on examples of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np

from ebbtide.arrays.spaces import SPACES, Space
from ebbtide.arrays.vectors import axpy, inner
from ebbtide.tape.checkpoint import checkpoint
from ebbtide.transforms.reverse import grad

# Numbers to unpack are drawn from this seed, so that a failure can be repeated.
SEED = 20170204
# An argument has its name.
_CLASS = type


def check_space(type: type[Any], examples: Iterable[Any]) -> None:  # noqa: A002 - as in register_space
    """
    Check that the functions with which a type was registered keep to their contract.

    Args:
        type: The type, registered by `ebbtide.register_space`.
        examples: Vectors of it, of each form that matters; not changed.

    Raises:
        AssertionError: A function does not keep to the contract; says which and how.
        TypeError: A function returns something else than it has to, *type* is no type, or the examples are no list.

    Memory:
        Some copies of one example at a time.

    Example:
        >>> from dataclasses import dataclass
        >>> from ebbtide import register_space
        >>> @dataclass
        ... class Momentum:
        ...     values: np.ndarray
        >>> register_space(Momentum, pack=lambda m: (m.values, ()), unpack=lambda array, form: Momentum(array))
        >>> check_space(Momentum, [Momentum(np.ones(3))])
    """
    if not isinstance(type, _CLASS):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{type!r:.60} is no type of vectors. Give the class that was registered.")
    space = SPACES.get(type)
    if space is None:
        raise AssertionError(f"{type.__name__} is not registered. Call ebbtide.register_space first.")
    if not isinstance(examples, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"The examples are {examples!r:.60}, and no vectors of {type.__name__}. Give a list of them.")
    vectors = list(examples)
    if not vectors:
        raise AssertionError("There are no examples to check.")
    for vector in vectors:
        if vector.__class__ is not type:
            raise AssertionError(f"An example is a {vector.__class__.__name__}, and no {type.__name__}.")
        _check_round_trip(space, vector)
        _check_form(space, vector)
        _check_derivatives(space, vector)


def _check_round_trip(space: Space, vector: Any) -> None:
    """Check that any numbers survive, also from an array that cannot be written."""
    array, kind = space.pack(vector)
    before = np.array(array)
    random = np.random.default_rng(SEED)
    drawn = random.standard_normal(array.shape)
    if array.dtype.kind == "c":
        drawn = drawn + 1j * random.standard_normal(array.shape)
    for numbers in (before, np.zeros_like(before), np.asarray(drawn, array.dtype)):
        given = np.array(numbers)
        given.flags.writeable = False
        found, again = space.pack(space.unpack(given, kind.form))
        if again != kind:
            raise AssertionError(f"The form {kind.form!r} of {space.name} comes back as {again.form!r}.")
        same = found.dtype == numbers.dtype and found.shape == numbers.shape
        if not same:
            raise AssertionError(f"{_name(numbers)} of {space.name} comes back as {_name(found)}.")
        differ = int(np.sum(~(np.equal(found, numbers) | (np.isnan(found) & np.isnan(numbers)))))
        if differ:
            raise AssertionError(
                f"{differ} of {found.size} numbers of {space.name} come back changed. unpack takes any numbers as they "
                "are: constraints, such as boundary values, belong into operations."
            )
    if not np.array_equal(space.pack(vector)[0], before, equal_nan=True):
        raise AssertionError(f"A vector of {space.name} changed.")


def _name(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _check_form(space: Space, vector: Any) -> None:
    """Check that a form is a value: the same for the same vector, comparable, hashable, and without the vector."""
    _, kind = space.pack(vector)
    form = kind.form
    _, again = space.pack(vector)
    if (form == again.form) is not True:
        raise AssertionError(f"The form {form!r} of {space.name} is not equal to itself packed again.")
    if form is vector:
        raise AssertionError(f"The form of {space.name} is the vector itself, and would keep it alive.")
    try:
        same = hash(form) == hash(again.form)
    except TypeError as error:
        raise AssertionError(f"The form {form!r} of {space.name} has no hash: {error}.") from error
    if not same:
        raise AssertionError(f"The form {form!r} of {space.name} has another hash each time.")
    text = repr(copy.copy(form))
    if " at 0x" in text:
        raise AssertionError(
            f"The form of {space.name} is shown as {text}, with an address that is another one in each process. A run "
            "that is resumed compares that text: give it a __repr__."
        )


def _check_derivatives(space: Space, vector: Any) -> None:
    """Check that a gradient is a vector of the same form with the right numbers, in memory of its own."""
    array, kind = space.pack(vector)
    before = np.array(array)
    for f in (lambda v: np.real(inner(v, v)), checkpoint(lambda v: np.real(inner(axpy(0.0, v, v), v)))):
        gradient = grad(f)(vector)
        found, again = space.pack(gradient)
        if again != kind:
            raise AssertionError(f"A gradient of {space.name} has the form {again.form!r}, not {kind.form!r}.")
        right = np.allclose(found, 2 * np.conj(before), equal_nan=True)
        if not right:
            raise AssertionError(f"The gradient of |v|^2 of {space.name} is not 2 conj(v).")
        found = space.pack(vector)[0]
        if not np.array_equal(found, before, equal_nan=True):
            raise AssertionError(f"A gradient changed a vector of {space.name}.")
