"""
Optimizers of first order, which step parameters along a gradient: functions of plain data.

`state = optimizer.init(parameters)`, then `parameters, state = optimizer.step(parameters, gradient, state)`. All is
elementwise, so that the machine does a step of a flat vector in one pass, and in place under `jit` if parameters and
state are donated. Where there is a choice, the conventions are torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import as_value, flatten, form_of, paths_of, unflatten


class OptimizerState(NamedTuple):
    """
    What an optimizer carries from step to step: a container of arrays.

    Args:
        count: Steps that were done, as an array without axes of the dtype of the parameters: no number of steps is a
            new trace. In single precision it is exact to 2**24, where corrections for its start are long over.
        sums: Decayed sums of gradients and of their squares, each a container of the form of the parameters. An average
            is such a sum times a number, which the factor of the step has already: one operation less for each.
    """

    count: Any
    sums: tuple[Any, ...]


@final
@dataclass(frozen=True, slots=True)
class Optimizer:
    """
    An optimizer: what `sgd`, `momentum`, `rmsprop`, `adam` and `adamw` return.

    Args:
        name: What it is called.
        learning_rate: The factor of a step where the step is given none.
        sums: How many decayed sums it carries for each parameter.
        rule: `rule(parameter, gradient, sums, count, rate)` returns (parameter, sums).

    Memory:
        Holds no array.
    """

    name: str
    learning_rate: float
    sums: int
    rule: Callable[..., tuple[Any, tuple[Any, ...]]]

    def init(self, parameters: Any) -> OptimizerState:
        """
        Return the state before the first step.

        Args:
            parameters: A flat vector, or a container of arrays, of floating-point numbers.

        Raises:
            TypeError: A leaf is no array of real floating-point numbers.

        Memory:
            As many arrays of the size of the parameters as there are sums: 0 (sgd), 1 (momentum, rmsprop), or 2.
        """
        leaves, structure = flatten(parameters)
        places = [f"the parameters{place}" for place in paths_of(structure)]
        values = [as_value(leaf, place) for leaf, place in zip(leaves, places, strict=True)]
        for value, place in zip(values, places, strict=True):
            self._check_real(value, place)
        dtype = type_of(values[0]).dtype if values else np.dtype(np.float64)
        sums = tuple([unflatten(structure, list(map(np.zeros_like, values))) for _ in range(self.sums)])
        return OptimizerState(np.zeros((), dtype), sums)

    def step(
        self, parameters: Any, gradient: Any, state: OptimizerState, learning_rate: Any = None
    ) -> tuple[Any, OptimizerState]:
        """
        Return the parameters after a step along a gradient, and the state after it.

        Args:
            parameters: As for `init`.
            gradient: Of the same form.
            state: The state before the step.
            learning_rate: The factor of this step, a number or an array without axes: schedules are functions of
                the user's. That of the optimizer if None.

        Returns:
            (parameters, state), in new arrays. `jit(optimizer.step, donate_argnums=(0, 2))` makes them in place.

        Raises:
            ValueError: The gradient or the state has another form than the parameters, or *learning_rate* is negative
                or not finite.
            TypeError: The gradient or the state has another dtype than the parameters, a parameter is no real
                floating-point number, the state is none, or *learning_rate* no number.

        Memory:
            The new parameters and state; in eager NumPy also the terms of a step, of the size of the largest leaf.
        """
        if not isinstance(cast("object", state), OptimizerState):
            kind = type(cast("object", state)).__name__
            raise TypeError(f"{self.name} was given a {kind} for its state. Start with init(parameters).")
        leaves, structure = flatten(parameters)
        for leaf, place in zip(leaves, paths_of(structure), strict=True):
            self._check_real(leaf, f"the parameters{place}")
        slopes = self._leaves_of(gradient, leaves, structure, "the gradient")
        sums = [self._leaves_of(one, leaves, structure, "a sum of the state") for one in state.sums]
        if len(sums) != self.sums:
            raise ValueError(
                f"{self.name} carries {self.sums} sums, and the state has {len(sums)}: it is that of another "
                "optimizer. Start with init(parameters)."
            )
        count = state.count + 1.0
        rate = self.learning_rate if learning_rate is None else self._rate_of(learning_rate)
        stepped, carried = [], []
        for k, (parameter, slope) in enumerate(zip(leaves, slopes, strict=True)):
            dtype = type_of(parameter).dtype
            numbers = _number_of(count, dtype), _number_of(rate, dtype)
            made, kept = self.rule(parameter, slope, tuple([one[k] for one in sums]), *numbers)
            stepped.append(made)
            carried.append(kept)
        after = tuple([unflatten(structure, list(one)) for one in zip(*carried, strict=True)])
        return unflatten(structure, stepped), OptimizerState(count, after or state.sums)

    def _check_real(self, parameter: Any, place: str) -> None:
        if type_of(parameter).dtype.kind != "f":
            raise TypeError(f"{self.name} cannot step {place}, of type {type_of(parameter)}: give it real arrays.")

    def _rate_of(self, rate: Any) -> Any:
        """Return the learning rate of a step, which may be traced."""
        is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not is_number and (getattr(rate, "shape", None) != () or type_of(rate).dtype.kind not in "fiu"):
            raise TypeError(f"{self.name} was given learning_rate={rate!r:.60}: it is a real number, or without axes.")
        if isinstance(rate, (int, float, np.generic, np.ndarray)):
            _check(self.name, learning_rate=rate)
        return rate

    def _leaves_of(self, container: Any, parameters: list[Any], structure: Any, what: str) -> list[Any]:
        leaves, theirs = flatten(container)
        if theirs != structure:
            raise ValueError(
                f"{self.name}: the parameters have the structure {form_of(structure)}, and {what} has "
                f"{form_of(theirs)}."
            )
        for k, (leaf, parameter) in enumerate(zip(leaves, parameters, strict=True)):
            shapes = [getattr(one, "shape", ()) for one in (parameter, leaf)]
            if shapes[0] != shapes[1]:
                # They might fit by broadcasting, and the parameters would come out in another shape.
                raise ValueError(
                    f"{self.name}: the parameters{paths_of(structure)[k]} have the shape {shapes[0]}, and {what} has "
                    f"{shapes[1]} there."
                )
            slope = float(leaf) if type(leaf) is int else leaf
            have, wanted = [type_of(one).dtype.newbyteorder("=") for one in (slope, parameter)]
            if have != wanted:
                raise TypeError(
                    f"{self.name}: the parameters{paths_of(structure)[k]} are of {wanted}, and {what} is of {have} "
                    f"there: the step would change a dtype. Write .astype({str(wanted)!r})."
                )
        return leaves


def _number_of(value: Any, dtype: Any) -> Any:
    """Return a number in the dtype of the parameters: an array without axes of another one would change theirs."""
    return value if isinstance(value, (int, float)) and not isinstance(value, np.generic) else _cast(value, dtype)


def _cast(value: Any, dtype: Any) -> Any:
    return value if type_of(value).dtype == dtype else value.astype(dtype)


def _decayed(gradient: Any, parameter: Any, weight_decay: float) -> Any:
    return gradient + weight_decay * parameter if weight_decay else gradient


def sgd(learning_rate: float, weight_decay: float = 0.0) -> Optimizer:
    """
    Return plain gradient descent: x - rate * (g + weight_decay * x).

    Args:
        learning_rate: The factor of a step.
        weight_decay: Of what penalty (weight_decay / 2) |x|^2 the gradient is added.

    Raises:
        ValueError: A number is negative or not finite, or no number.

    Memory:
        The state holds a count, and no array.

    Example:
        >>> import numpy as np
        >>> x, optimizer = np.ones(2), sgd(0.25)
        >>> optimizer.step(x, 2 * x, optimizer.init(x))[0]
        array([0.5, 0.5])
    """
    _check("sgd", learning_rate=learning_rate, weight_decay=weight_decay)

    def rule(x: Any, g: Any, sums: Any, count: Any, rate: Any) -> Any:
        return x - rate * _decayed(g, x, weight_decay), ()

    return Optimizer("sgd", learning_rate, 0, rule)


def momentum(
    learning_rate: float, decay: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
) -> Optimizer:
    """
    Return gradient descent with momentum: m = decay * m + g, and x - rate * m.

    Args:
        learning_rate: The factor of a step.
        decay: What is left of the momentum after a step, from 0 to 1.
        nesterov: Whether to step along g + decay * m instead, which looks ahead.
        weight_decay: As in `sgd`.

    Raises:
        ValueError: A number is negative or not finite, or no number, or a decay is not below 1.

    Memory:
        The state holds one array for each parameter, of its type: the momentum.

    Source:
        Sutskever, Martens, Dahl, Hinton, On the importance of initialization and momentum in deep learning (2013).
    """
    _check("momentum", learning_rate=learning_rate, weight_decay=weight_decay, decay=decay)

    def rule(x: Any, g: Any, sums: Any, count: Any, rate: Any) -> Any:
        g = _decayed(g, x, weight_decay)
        m = decay * sums[0] + g
        return x - rate * (g + decay * m if nesterov else m), (m,)

    return Optimizer("momentum", learning_rate, 1, rule)


def rmsprop(
    learning_rate: float, decay: float = 0.99, epsilon: float = 1e-8, weight_decay: float = 0.0
) -> Optimizer:
    """
    Return descent by the gradient over its root mean square.

    Args:
        learning_rate: The factor of a step x - rate * g / (sqrt(v) + epsilon), v = decay * v + (1 - decay) * g^2.
        decay: What is left of the mean square after a step, from 0 to 1.
        epsilon: What keeps the quotient finite.
        weight_decay: As in `sgd`.

    Raises:
        ValueError: A number is negative or not finite, or no number, or a decay is not below 1.

    Memory:
        The state holds one array for each parameter, of its type: the sum of squares.

    Source:
        Tieleman, Hinton, Lecture 6.5 of Neural Networks for Machine Learning (2012).
    """
    _check("rmsprop", learning_rate=learning_rate, weight_decay=weight_decay, decay=decay, epsilon=epsilon)
    scale = 1 / math.sqrt(1 - decay)  # the mean square is (1 - decay) times its sum

    def rule(x: Any, g: Any, sums: Any, count: Any, rate: Any) -> Any:
        g = _decayed(g, x, weight_decay)
        v = decay * sums[0] + np.square(g)
        return x - (rate * scale) * (g / (np.sqrt(v) + epsilon * scale)), (v,)

    return Optimizer("rmsprop", learning_rate, 1, rule)


def adam(
    learning_rate: float = 1e-3,
    decays: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> Optimizer:
    """
    Return Adam: the mean of the gradient over its root mean square, both corrected for their start at zero.

    Args:
        learning_rate: The factor of a step.
        decays: What is left of the mean and of the mean square after a step, from 0 to 1.
        epsilon: What keeps the quotient finite.
        weight_decay: As in `sgd`: a part of the gradient. See `adamw`.

    Raises:
        ValueError: A number is negative or not finite, or no number, or *decays* are not two below 1.

    Memory:
        The state holds two arrays for each parameter, of its type: the sums of gradients and of squares.

    Source:
        Kingma, Ba, Adam: A Method for Stochastic Optimization (2015), algorithm 1.

    Example:
        >>> import numpy as np
        >>> x, optimizer = np.array([1.0, -1.0]), adam(0.125)
        >>> optimizer.step(x, 2 * x, optimizer.init(x))[0].round(6)
        array([ 0.875, -0.875])
    """
    return _adam("adam", learning_rate, decays, epsilon, weight_decay, coupled=True)


def adamw(
    learning_rate: float = 1e-3,
    decays: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Optimizer:
    """
    Return Adam with the decay of weights apart from the gradient: x is first made x * (1 - rate * weight_decay).

    Args:
        learning_rate: The factor of a step.
        decays: As in `adam`.
        epsilon: As in `adam`.
        weight_decay: What part of a parameter a step of rate 1 takes away.

    Raises:
        ValueError: As `adam`.

    Memory:
        As `adam`.

    Source:
        Loshchilov, Hutter, Decoupled Weight Decay Regularization (2019), algorithm 2.
    """
    return _adam("adamw", learning_rate, decays, epsilon, weight_decay, coupled=False)


def _adam(
    name: str, learning_rate: float, decays: tuple[float, float], epsilon: float, weight_decay: float, coupled: bool
) -> Optimizer:
    if not isinstance(cast("object", decays), (tuple, list)) or len(decays) != 2:
        raise ValueError(f"{name} was given decays={decays!r}: give two numbers, of the mean and of the mean square.")
    first, second = decays
    numbers = {"learning_rate": learning_rate, "weight_decay": weight_decay, "epsilon": epsilon}
    _check(name, **numbers, decay=first)
    _check(name, decay=second)
    logarithms = [math.log(decay) if decay else -math.inf for decay in decays]
    scale = 1 / math.sqrt(1 - second)

    def rule(x: Any, g: Any, sums: Any, count: Any, rate: Any) -> Any:
        if coupled:
            g = _decayed(g, x, weight_decay)
        elif weight_decay:
            x = x * (1.0 - rate * weight_decay)
        m = first * sums[0] + g
        v = second * sums[1] + np.square(g)
        # 1 - decay^count to the last bit: the power itself, near 1, would lose four digits of single precision.
        of_mean, of_square = [np.negative(np.expm1(count * one)) for one in logarithms]
        # Numbers are brought together: a parameter takes ten operations, of 13 as the formula is written.
        root = np.sqrt(of_square) * scale
        return x - (rate * (1.0 - first) * root / of_mean) * (m / (np.sqrt(v) + epsilon * root)), (m, v)

    return Optimizer(name, learning_rate, 2, rule)


def _check(name: str, **numbers: Any) -> None:
    """Refuse what no optimizer can work with."""
    for what, number in numbers.items():
        kind = getattr(number, "dtype", None)  # an array without axes, which may be traced, is one, too
        is_plain = isinstance(number, (int, float)) and not isinstance(number, bool)
        is_number = is_plain if kind is None else np.shape(number) == () and kind.kind in "fiu"
        if not is_number or not 0 <= number < (1 if what == "decay" else math.inf):
            bound = "from 0 to below 1" if what == "decay" else "a number, not negative, and finite"
            raise ValueError(f"{name} was given {what}={number!r}: it has to be {bound}.")
