"""Powers: NumPy has other operations for some exponents, by their type and by how they lie."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from ebbtide import checkpoint, grad, jit, jvp, timeloop, vjp
from ebbtide.schedules import Revolve, StoreAll

EXECUTORS = ("machine", "reference")
FUNCTIONS = {"operator": operator.pow, "function": np.power}
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


def unlike_arrays(letter, count=4):
    """Numbers of which the square, and others of which the root, of a scalar is another one than that of an array."""
    x = np.random.default_rng(3).uniform(0.5, 5, 40_000).astype(letter)
    squared = [number for number in x if number**2 != np.square(number)][:count]
    return squared + [number for number in x if number**0.5 != np.sqrt(number)][: 2 * count - len(squared)]


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
    """Powers of NumPy scalars, whose bits are not those of arrays, in squares and roots one of 1,000, are Python's."""
    x, y = numbers_of(letter, 200), numbers_of(letter, 200)[::-1]
    if letter in "fd":
        x[-8:] = unlike_arrays(letter)
    powers = (operator.pow, lambda x, y: x**3.3, lambda x, y: 2.0**x, lambda x, y: x**-1, np.power)
    for f in (*powers, lambda x, y: x**2, lambda x, y: x**0.5):
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


@pytest.mark.parametrize("letter", "fd")
def test_powers_of_scalars_run_again(letter):
    """On a tape the powers of scalars have the bits that they have without, with which a loop runs steps again."""
    for power in (lambda x: x**2, lambda x: x**0.5):
        numbers = unlike_arrays(letter)
        assert any(power(x) != power(np.array([x]))[0] for x in numbers)
        for x in numbers:
            assert vjp(power, x)[0] == jvp(power, (x,), (x,))[0] == power(x)
            unit = np.array([x, 0.5 * x])
            normalized = lambda u, power=power: np.sum(u * unit / power(np.sum(u[:1])))
            np.testing.assert_array_equal(grad(checkpoint(normalized))(unit), grad(normalized)(unit))
            run = lambda u, s, power=power: np.sum(timeloop(lambda u, _: u / power(u[0]) + x, u, 6, schedule=s))
            found = [grad(run)(unit, schedule) for schedule in (StoreAll(), Revolve(1))]
            np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("number", [1.5, 2, True, 1.5 + 1j, np.float32(1.5), np.int8(3)], ids=repr)
def test_numbers_in_double_precision(number):
    """`np.float_power` of a number among the arguments, also of Python's, which have no `astype`."""
    for power in (lambda x: np.float_power(x, 2), lambda x: np.float_power(2.5, x), lambda x: np.float_power(x, x)):
        for executor in EXECUTORS:
            assert result_of(jit(power, executor=executor), number) == result_of(power, number)
