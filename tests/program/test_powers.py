"""Powers: NumPy has other operations for some exponents, by their type and by how they lie."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from ebbtide import jit

EXECUTORS = ("machine", "reference")
FUNCTIONS = {"operator": operator.pow, "function": np.power}
# The operator of NumPy scalars has bits of its own in 1 of 1000 squares and roots of floats: those of arrays stand.
EXPONENTS = (2, 2.0, 2 + 0j, 0.5, 0.5 + 0j, -1, -1.0, -1 + 0j, True, 0, 0.0, 1, 1.0, 3, 3.0)
SCALARS = (np.float32(2), np.float64(0.5), np.int8(2), np.array(2.0), np.array(0.5), np.array(2, np.float32))


def result_of(f, *arguments):
    """What a function gives, or the type of what it raises: dtype, shape and bytes."""
    try:
        found = np.asarray(f(*arguments))
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)
    return found.dtype, found.shape, found.tobytes()


def numbers_of(letter, count=301):
    """Numbers of a type, positive ones."""
    random = np.random.default_rng(0)
    if letter in "?bBhHiIlL":
        return (np.arange(count) % 7 + (letter != "?")).astype(letter)
    x = random.uniform(0.1, 5, count)
    return (x + (1j * random.uniform(0.1, 5, count) if letter in "FD" else 0)).astype(letter)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("letter", "?bBhHiIlLefdFD")
@pytest.mark.filterwarnings("ignore")
def test_numbers_as_exponents(letter, function):
    """Arrays of each type to the power of each kind of number: dtype, bits and refusals are NumPy's."""
    power, x = FUNCTIONS[function], numbers_of(letter)
    for exponent in (*EXPONENTS, *SCALARS):
        f = lambda x, exponent=exponent: power(x, exponent)
        for given in (x, x[::2], x.reshape(7, 43).T):
            expected = result_of(f, given)
            for executor in EXECUTORS:
                assert result_of(jit(f, executor=executor), given) == expected, (exponent, given.shape, executor)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("letters", ["dd", "df", "di", "ff", "fb", "fe", "DF", "Dd"])
def test_exponents_that_are_read_for_many_numbers(letters, function):
    """Exponents that are spread, and cast, have the bits of NumPy's."""
    power = FUNCTIONS[function]
    for exponent in (2, 0.5, -1, 3) if letters[1] not in "ib" else (2, 3):
        for shape in ((4, 1), (500,), (4, 500), (1, 1), ()):
            x = numbers_of(letters[0], 2000).reshape(4, 500)
            y = np.full(shape, exponent, letters[1])
            for given in ((x, y), (x[0], y.reshape(-1)[:1]), (x[:, :1], y)):
                expected = result_of(power, *given)
                for executor in EXECUTORS:
                    assert result_of(jit(power, executor=executor), *given) == expected, (exponent, shape, executor)


@pytest.mark.parametrize("letter", "efdFD")
def test_powers_of_scalars(letter):
    """Powers of NumPy scalars, whose bits are not those of arrays where processors have AVX-512, are Python's."""
    x, y = numbers_of(letter, 200), numbers_of(letter, 200)[::-1]
    for f in (operator.pow, lambda x, y: x**3.3, lambda x, y: 2.0**x, lambda x, y: x**-1, np.power):
        for executor in EXECUTORS:
            fast = jit(f, executor=executor)
            assert all(result_of(fast, a, b) == result_of(f, a, b) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("letter", "FD")
def test_executors_agree_on_roots_of_complex_scalars(letter):
    """A root of a complex number that is a scalar or an array of no axes: both executors have the same bits."""
    for f in (lambda x: x**0.5, lambda x: np.power(x, 0.5), lambda x: x**2, lambda x: np.power(x, 2)):
        runs = [jit(f, executor=executor) for executor in EXECUTORS]
        for x in numbers_of(letter, 50):
            assert len({np.asarray(run(x)).tobytes() for run in runs}) == 1
