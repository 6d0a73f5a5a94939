"""Reduced functionals: a real number as a function of controls, with its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np

from ebbtide.arrays.array_type import type_of
from ebbtide.arrays.containers import unflatten
from ebbtide.arrays.functions import check_call, check_function
from ebbtide.budget import Budget, check_budget
from ebbtide.optimize.control import Control
from ebbtide.optimize.vectors import check_leaves, copied
from ebbtide.transforms.products import hvp
from ebbtide.transforms.reverse import value_and_grad


@final
@dataclass(frozen=True, slots=True, eq=False)
class ReducedFunctional:
    """
    A functional J of controls, reduced: the states are inside, in the code of *f*.

    It keeps nothing from one call to the next. Each method runs *f* at the *m* that it is given, so any order of calls
    gives what a fresh object gives, bit for bit, and none can see a control of an earlier call.

    Args:
        f: `f(m)` for one control, `f(m0, m1, ...)` for several; returns a real number. It is plain NumPy code, time
            loops included; it may write into its arguments, which are copies.
        controls: A Control, or a sequence of them. Given one, *m* is a value of it; given a sequence, *m* is a sequence
            with a value for each.
        budget: The bytes that each derivative may take beyond *f* alone; None for no bound.

    Raises:
        TypeError: A control is no Control, the controls are a set, *f* is no function of so many values, or *budget* no
            budget.
        ValueError: There are no controls.

    Memory:
        Refers to *f* and to the controls; no tape, no state, no value outlives a call.

    Source:
        Hinze, Pinnau, Ulbrich, Ulbrich, Optimization with PDE Constraints (2009): the reduced problem.

    Example:
        >>> import numpy as np
        >>> J = ReducedFunctional(lambda u, k: k * np.sum(u**2), [Control(np.zeros(2)), Control(1.0)])
        >>> J.value([np.array([1.0, 2.0]), 3.0])
        np.float64(15.0)
        >>> J.derivative([np.array([1.0, 2.0]), 3.0])
        (array([ 6., 12.]), np.float64(5.0))
    """

    f: Callable[..., Any]
    controls: Control | Sequence[Control]
    budget: Budget | None = None

    def __post_init__(self) -> None:
        check_function(self.f, "ReducedFunctional")
        check_budget(self.budget)
        if not isinstance(self.controls, Control):
            if not isinstance(cast("object", self.controls), Iterable):
                raise TypeError(f"A reduced functional has no controls in {self.controls!r:.60}; write Control(value).")
            if isinstance(self.controls, Set):
                raise TypeError("The controls are a set, which has no order, and f takes them in one. Give a list.")
            # Of our own: a list of the caller's could change.
            object.__setattr__(self, "controls", tuple(self.controls))
        if not self.all_controls:
            raise ValueError("A reduced functional has no controls; give a Control, or a sequence of them.")
        for k, control in enumerate(self.all_controls):
            if not isinstance(control, Control):
                raise TypeError(f"Control {k} is a {type(control).__name__}; write Control(value).")
        count = len(self.all_controls)
        takes = f"A functional takes the value of each control, and here there are {count}."
        check_call(self.f, "The functional", f"f({', '.join(f'm{k}' for k in range(count))})", takes, count)

    @property
    def all_controls(self) -> tuple[Control, ...]:
        """The controls as a tuple, also if there is one."""
        return (self.controls,) if isinstance(self.controls, Control) else tuple(self.controls)

    def start(self) -> Any:
        """Return the present values of the controls, in the form in which calls take them; no copy."""
        return self.join([control.value for control in self.all_controls])

    def split(self, m: Any, what: str = "m") -> list[list[Any]]:
        """
        Return for each control the leaves of its value in *m*.

        Args:
            m: As calls take it.
            what: What it is, for the message.

        Raises:
            ValueError: The number of values, a structure or a shape is not that of the controls.
            TypeError: A dtype is not that of the controls.
        """
        controls = self.all_controls
        if isinstance(self.controls, Control):
            return [check_leaves(m, controls[0].structure, controls[0].kinds, what)]
        if not isinstance(m, (tuple, list)) or len(m) != len(controls):
            given = f"{len(m)} values" if isinstance(m, (tuple, list)) else f"a {type(m).__name__}"
            raise ValueError(
                f"{what} is {given}, and there are {len(controls)} controls: give a list or tuple with a value for "
                "each."
            )
        pairs = enumerate(zip(m, controls, strict=True))
        return [check_leaves(value, c.structure, c.kinds, f"{what}[{k}]") for k, (value, c) in pairs]

    def join(self, values: Sequence[Any]) -> Any:
        """Return one value for each control in the form in which calls take and return them."""
        return values[0] if isinstance(self.controls, Control) else tuple(values)

    def containers(self, leaves: Sequence[list[Any]]) -> Any:
        """Return the leaves that `split` gives in the form in which calls take them."""
        return self.join([self._container(k, x) for k, x in enumerate(leaves)])

    def value(self, m: Any) -> Any:
        """
        Return J(m).

        Args:
            m: Values of the controls, of their structure, shapes and dtypes; not changed.

        Returns:
            A NumPy number of the dtype that *f* computes in.

        Raises:
            TypeError: *f* returns no real number, or a dtype is not that of the control.
            ValueError: A structure or shape is not that of the control.

        Memory:
            A copy of *m*, and what *f* takes.
        """
        found = self.f(*[self._container(k, map(copied, x)) for k, x in enumerate(self.split(m))])
        is_number = isinstance(found, (int, float, complex)) or hasattr(found, "dtype")
        is_real = is_number and np.shape(found) == () and type_of(found).dtype.kind in "fiub"
        if not is_real:
            kind = f"an array of shape {np.shape(found)}" if is_number and np.shape(found) else f"{found!r:.60}"
            kind = "a complex number" if is_number and np.iscomplexobj(found) else kind
            raise TypeError(
                f"A functional returns a real number, and this one returns {kind}. Take a sum or np.abs of it."
            )
        return _as_number(found)

    def derivative(self, m: Any, riesz: bool = False) -> Any:
        """
        Return the derivative of J at *m*.

        Args:
            m: Values of the controls, of their structure, shapes and dtypes; not changed.
            riesz: False for the cotangent c, whose pairing Re(c . d) with a direction d is the change of J (for
                complex controls c = dJ/dx - i dJ/dy); True for the gradient in the inner product of each control.

        Returns:
            For one control a container of its structure, for several a tuple of them; with the shapes and dtypes of
            the controls, in memory of the caller.

        Raises:
            TypeError: *f* returns no real number, a dtype is not that of the control, or *riesz* is no flag.
            ValueError: A structure or shape is not that of the control.
            BudgetError: The budget is too small; says the least that would do.

        Memory:
            As `ebbtide.grad`, within the budget; and a copy of an array in *m* that has gaps, such as `x[::2]`, of
            which `value` computes with a copy, too.
        """
        return self.value_and_derivative(m, riesz)[1]

    def value_and_derivative(self, m: Any, riesz: bool = False) -> tuple[Any, Any]:
        """
        Return J(m) and its derivative, by one forward run and one reverse sweep.

        Args:
            m: As for `derivative`.
            riesz: As for `derivative`.

        Returns:
            (value, derivative), the bits of what `value` and `derivative` return.

        Raises:
            TypeError: As `derivative`.
            ValueError: As `derivative`.
            BudgetError: As `derivative`.

        Memory:
            As `derivative`.
        """
        _check_riesz(riesz)
        values = [self._container(k, leaves) for k, leaves in enumerate(self.split(m))]
        both = value_and_grad(self.f, argnums=range(len(values)), budget=self.budget)
        value, cotangents = both(*values)
        return _as_number(value), self.join(self._derivatives(cotangents, riesz))

    def hessian(self, m: Any, direction: Any, riesz: bool = False) -> Any:
        """
        Return the action of the Hessian of J at *m* on a direction, forward over reverse.

        Args:
            m: As for `derivative`.
            direction: Of the form of *m*; not changed.
            riesz: False for the cotangent H d, whose pairing with a direction e is the mixed second derivative of J;
                True for its gradient.

        Returns:
            As `derivative`.

        Raises:
            TypeError: As `derivative`.
            ValueError: As `derivative`, of *m* or of the direction.
            BudgetError: The budget is too small: snapshots and saved values have tangents beside them.

        Memory:
            As `derivative`, with a tangent beside each value; time loops follow the same schedules.

        Source:
            Griewank and Walther, Evaluating Derivatives (2008), chapter 5: second-order adjoints.
        """
        _check_riesz(riesz)
        points = [self._container(k, leaves) for k, leaves in enumerate(self.split(m))]
        tangents = [self._container(k, leaves) for k, leaves in enumerate(self.split(direction, "direction"))]
        product = hvp(self.f, argnums=range(len(points)), budget=self.budget)
        return self.join(self._derivatives(product(*points, tangents), riesz))

    def _container(self, k: int, leaves: Any) -> Any:
        return unflatten(self.all_controls[k].structure, list(leaves))

    def _derivatives(self, cotangents: Sequence[Any], riesz: bool) -> list[Any]:
        if not riesz:
            return list(cotangents)
        return [control.gradient(c) for control, c in zip(self.all_controls, cotangents, strict=True)]


def _as_number(value: Any) -> Any:
    """Return a number of NumPy for one of Python's and for an array without axes."""
    return np.asarray(value)[()] if isinstance(value, (np.ndarray, float, int)) else value


def _check_riesz(riesz: Any) -> None:
    """Raise unless it is True or False: the name of an inner product would count as True, whichever it names."""
    if not isinstance(riesz, (bool, np.bool_)):
        raise TypeError(
            f"riesz={riesz!r:.60} of a derivative: give False for the cotangent, or True for the gradient in the inner "
            "product of each control, which is that of Control(value, riesz=)."
        )


def as_functional(functional: ReducedFunctional | Callable[..., Any], m: Any) -> ReducedFunctional:
    """Return a reduced functional as it is, and a plain function of one control as that of the type of *m*."""
    if isinstance(functional, ReducedFunctional):
        return functional
    if not callable(functional):
        raise TypeError(f"A functional is a ReducedFunctional or a function, not a {type(functional).__name__}.")
    return ReducedFunctional(functional, Control(m))
