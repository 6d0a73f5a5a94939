"""
The 2-D viscous Burgers equation and the misfit whose gradient the demo takes: pure functions of plain NumPy.

    u_t + u u_x + v u_y = nu (u_xx + u_yy),
    v_t + u v_x + v v_y = nu (v_xx + v_yy)

on the unit square, u = v = 0 on its boundary. Space is discretized by central differences on nodes x nodes
points with spacing h, time by explicit Euler (FTCS) with step dt.

Why central and not upwind: the upwind difference switches with the sign of the velocity, so its derivative
jumps and a Taylor test loses its order wherever a velocity passes zero. Central differences are polynomials
of the state. They need no switch as long as the cell Peclet number max(|u|, |v|) h / nu is at most 2 and
the diffusion number nu dt / h^2 at most 1/4: then every new value is an average of five old ones with
weights that are not negative,

    u_new = (1 - 4 d) u + (d - c/2) u_east + (d + c/2) u_west + ...
    with d = nu dt / h^2 and |c| = |u| dt / h <= 2 d,

so no maximum ever grows, and a field that passes the check once is stable for any number of steps.

Source: Hindmarsh, Gresho, Griffiths (1984), The stability of explicit Euler time-integration for certain
finite difference approximations of the multi-dimensional advection-diffusion equation, Int. J. Numer.
Methods Fluids 4.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ebbtide
from ebbtide.budget import format_bytes
from ebbtide.demo.decomposition import Decomposition, DemoInputError, Whole

Field = NDArray[np.float64]

LEAST_NODES = 5
# The initial field, the observed one, that of the steps, and one that a step makes.
HELD_FIELDS = 4
LEAST_VISCOSITY = 0.005
DIFFUSION_NUMBER = 0.2
MOST_DIFFUSION_NUMBER = 0.25
MOST_PECLET_NUMBER = 2.0
TRUE_VISCOSITY_FACTOR = 0.8
# (x, y, strength, radius) of the vortices; a positive strength turns counterclockwise.
GUESS_VORTICES = ((0.35, 0.40, 1.0, 0.11), (0.62, 0.62, -1.0, 0.12))
TRUE_VORTICES = ((0.32, 0.45, 1.0, 0.12), (0.66, 0.60, -0.9, 0.11), (0.55, 0.25, 0.5, 0.08))


@dataclass(frozen=True, slots=True)
class Problem:
    """
    A grid and a number of time steps.

    Args:
        nodes: Points per direction, boundary included.
        steps: Number of time steps.
        decomposition: Who has which nodes. All fields below are those of this rank's nodes.

    Raises:
        DemoInputError: Too few nodes, or so many that a run does not fit into the memory; or no step.
    """

    nodes: int = 201
    steps: int = 1000
    decomposition: Decomposition = field(default_factory=Whole)

    def __post_init__(self) -> None:
        if self.nodes < LEAST_NODES:
            raise DemoInputError(
                f"The grid needs at least {LEAST_NODES} nodes in each direction, not {self.nodes}: "
                f"give --nodes {LEAST_NODES} or more."
            )
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * math.prod(self.decomposition.ranks)
        most = math.isqrt(memory // (HELD_FIELDS * 2 * 8))
        if self.nodes > most:
            raise DemoInputError(
                f"The grid has {self.nodes} nodes in each direction, and {HELD_FIELDS} fields of so many "
                f"do not fit into the memory of {format_bytes(memory)}: give --nodes {most} or fewer."
            )
        if self.steps < 1:
            raise DemoInputError(f"The run needs at least 1 step, not {self.steps}: give --steps 1 or more.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a field of all nodes: component, x, y."""
        return (2, self.nodes, self.nodes)

    @property
    def window(self) -> tuple[slice, slice, slice]:
        """Where a field of all nodes has that of this rank."""
        return (slice(0, 2), *self.decomposition.window(self.nodes))

    @property
    def own(self) -> tuple[slice, slice, slice]:
        """Where the field of this rank has the nodes that no other rank counts."""
        return (slice(0, 2), *self.decomposition.own(self.nodes))

    def coordinates(self) -> tuple[Field, Field]:
        """Return x, shape (nodes, 1), and y, shape (1, nodes), of the nodes of this rank."""
        line = np.linspace(0.0, 1.0, self.nodes)
        _, along_x, along_y = self.window
        return line[along_x, None], line[None, along_y]

    @property
    def spacing(self) -> float:
        """The distance h between neighboring nodes."""
        return 1.0 / (self.nodes - 1)

    @property
    def viscosity(self) -> float:
        """The viscosity at which the gradient is taken; a coarse grid needs more to resolve speed 1."""
        return max(LEAST_VISCOSITY, self.spacing)

    @property
    def time_step(self) -> float:
        """The time step dt; it depends on the grid alone, so that it is no function of the controls."""
        return DIFFUSION_NUMBER * self.spacing**2 / self.viscosity

    @property
    def most_speed(self) -> float:
        """The largest |u| or |v| for which the step is stable."""
        return MOST_PECLET_NUMBER * self.viscosity / self.spacing


def step(state: Any, viscosity: Any, spacing: float, time_step: float) -> Any:
    """
    Advance the velocity by one time step, in place.

    Args:
        state: Both velocity components, shape (2, n, n): component, x, y. Its interior is overwritten, its
            boundary is left as it is.
        viscosity: nu, a float or a 0-d array.
        spacing: h.
        time_step: dt.

    Returns:
        `state`.
    """
    east, west = state[:, 2:, 1:-1], state[:, :-2, 1:-1]
    north, south = state[:, 1:-1, 2:], state[:, 1:-1, :-2]
    u, v = state[0, 1:-1, 1:-1], state[1, 1:-1, 1:-1]
    diffusion = (viscosity * (time_step / spacing**2)) * (east + west + north + south - 4.0 * state[:, 1:-1, 1:-1])
    advection = (time_step / (2.0 * spacing)) * ((east - west) * u + (north - south) * v)
    # Both are complete before the state changes: this is the only write.
    state[:, 1:-1, 1:-1] += diffusion - advection
    return state


def simulate(initial: Any, viscosity: Any, problem: Problem, **loop: Any) -> Any:
    """
    Return the velocity after `problem.steps` steps, differentiable in both arguments.

    Args:
        initial: Velocity at t = 0, shape (2, n, n); it is not changed.
        viscosity: nu, a float or a 0-d array.
        problem: Grid and number of steps.
        loop: Further arguments of `ebbtide.timeloop`, such as `progress`, `schedule` and `storage`.

    Returns:
        The velocity at the final time, shape (2, n, n).
    """
    spacing, time_step, decomposition = problem.spacing, problem.time_step, problem.decomposition
    viscosity = decomposition.replicated(viscosity)

    def advance(state: Any, _index: Any) -> Any:
        # Of the state that comes in parts are saved, so that a write into it would copy it: here it was written anyhow.
        return decomposition.update(step(state, viscosity, spacing, time_step))

    return ebbtide.timeloop(advance, decomposition.complete(initial), problem.steps, **loop)


def misfit(initial: Any, viscosity: Any, observed: Field, problem: Problem, **loop: Any) -> Any:
    """
    Return J = h^2 / 2 sum (w - observed)^2 of the velocity w at the final time.

    Args:
        initial: Velocity at t = 0, shape (2, n, n).
        viscosity: nu, a float or a 0-d array.
        observed: Observed velocity at the final time, shape (2, n, n).
        problem: Grid and number of steps.
        loop: Further arguments of `ebbtide.timeloop`, such as `progress`, `schedule` and `storage`.

    Returns:
        J, a scalar.
    """
    difference = (simulate(initial, viscosity, problem, **loop) - observed)[problem.own]
    return problem.decomposition.total(0.5 * problem.spacing**2 * np.sum(difference * difference))


def vortices(problem: Problem, centers: tuple[tuple[float, float, float, float], ...]) -> Field:
    """
    Return Gaussian vortices, fading to zero at the boundary, with a largest component of exactly 1.

    Args:
        problem: The grid.
        centers: For each vortex its center x, y, its strength and its radius.

    Returns:
        The velocity, shape (2, n, n).
    """
    x, y = problem.coordinates()
    values = np.zeros((2, x.size, y.size))
    for center_x, center_y, strength, radius in centers:
        across, up = (x - center_x) / radius, (y - center_y) / radius
        spin = strength * np.exp(-0.5 * (across * across + up * up))
        values += np.stack([-up * spin, across * spin])
    values *= np.sin(np.pi * x) * np.sin(np.pi * y) * inside(problem)
    return values / problem.decomposition.largest(np.abs(values).max())


def inside(problem: Problem) -> NDArray[np.bool_]:
    """Return which nodes of this rank are not on the boundary, where sin(pi) is not exactly zero."""
    x, y = problem.coordinates()
    return (x > 0.0) & (x < 1.0) & (y > 0.0) & (y < 1.0)


def clear_boundary(values: Field) -> None:
    """Set the boundary values of a velocity of shape (2, n, n) to zero, in place."""
    values[:, [0, -1], :] = 0.0
    values[:, :, [0, -1]] = 0.0


def guess(problem: Problem) -> Field:
    """Return the initial velocity that is taken when the user gives none, shape (2, n, n)."""
    return vortices(problem, GUESS_VORTICES)


def observations(problem: Problem) -> Field:
    """
    Return the final velocity of a twin run: other vortices, `TRUE_VISCOSITY_FACTOR` times the viscosity.

    Args:
        problem: Grid and number of steps.

    Returns:
        The observed velocity, shape (2, n, n).
    """
    state = vortices(problem, TRUE_VORTICES)
    viscosity = TRUE_VISCOSITY_FACTOR * problem.viscosity
    for _ in range(problem.steps):
        step(problem.decomposition.update(state), viscosity, problem.spacing, problem.time_step)
    return state


def direction(initial: Field, problem: Problem) -> tuple[Field, float]:
    """
    Return the direction (of the initial velocity, of the viscosity) along which the Taylor test moves.

    The velocity moves by at most its own maximum and the viscosity by itself. So the point at distance e has
    (1 + e) times the viscosity and at most (1 + e) times the speed: its cell Peclet number is no larger,
    and the step stays stable for all e up to 1/4.

    Args:
        initial: The velocity at which the gradient is taken, shape (2, n, n).
        problem: The grid.

    Returns:
        A smooth velocity of shape (2, n, n) that vanishes on the boundary, and a viscosity.
    """
    x, y = problem.coordinates()
    moved = np.stack(
        [
            np.sin(2.0 * np.pi * x) * np.sin(np.pi * y) + 0.5 * np.sin(np.pi * x) * np.sin(3.0 * np.pi * y),
            np.sin(np.pi * x) * np.sin(2.0 * np.pi * y) - 0.5 * np.sin(3.0 * np.pi * x) * np.sin(np.pi * y),
        ]
    )
    moved *= inside(problem)
    largest = problem.decomposition.largest
    scale = largest(np.abs(initial).max()) or 1.0
    return moved * (scale / largest(np.abs(moved).max())), problem.viscosity


def check_initial(field: NDArray[Any], problem: Problem) -> Field:
    """
    Return a user's initial velocity as float64, or say why it cannot be used.

    Args:
        field: What the user gave; shape (2, n, n), a floating-point type.
        problem: The grid.

    Returns:
        A copy in float64, with boundary values of exactly zero.

    Raises:
        DemoInputError: Wrong shape or type, values that are not finite, boundary values that are not zero, or
            velocities for which the step is unstable.
    """
    if field.shape != problem.shape:
        raise DemoInputError(
            f"The initial field has shape {field.shape}, but --nodes {problem.nodes} needs {problem.shape}: "
            "component (u, v), x, y."
        )
    if not np.issubdtype(field.dtype, np.floating):
        raise DemoInputError(
            f"The initial field has dtype {field.dtype}, but a velocity is a real floating-point field: "
            "save it with field.astype(np.float64)."
        )
    values = np.array(field, dtype=np.float64, order="C")
    finite = np.isfinite(values)
    if not finite.all():
        first = tuple([int(i) for i in np.argwhere(~finite)[0]])
        count = values.size - int(finite.sum())
        raise DemoInputError(
            f"The initial field has {count} values that are not finite; the first is {values[first]} at {first}."
        )
    _check_boundary(values)
    _check_speed(values, problem)
    return values


def _check_boundary(values: Field) -> None:
    """Refuse boundary values that are not zero; clear those that are rounding, such as sin(pi)."""
    on_boundary = values.copy()
    on_boundary[:, 1:-1, 1:-1] = 0.0
    where = np.unravel_index(int(np.abs(on_boundary).argmax()), on_boundary.shape)
    found = float(on_boundary[where])
    if abs(found) > 1e-12 * float(np.abs(values).max()):
        raise DemoInputError(
            f"The initial field is {found:.6g} at {tuple([int(i) for i in where])} on the boundary, "
            "where the velocity is zero: set field[:, [0, -1], :] = 0 and field[:, :, [0, -1]] = 0, "
            "or let the field fade out."
        )
    clear_boundary(values)


def _check_speed(values: Field, problem: Problem) -> None:
    """Refuse velocities that are too fast for the grid."""
    speed = float(np.abs(values).max())
    if speed <= problem.most_speed:
        return
    peclet = speed * problem.spacing / problem.viscosity
    # The viscosity is `LEAST_VISCOSITY` on a fine grid; on a coarse one it grows with the spacing.
    fine_enough = int(np.ceil(speed / (MOST_PECLET_NUMBER * LEAST_VISCOSITY))) + 1
    raise DemoInputError(
        f"The initial field is unstable: its largest speed {speed:.6g} makes the cell Peclet number "
        f"max(|u|, |v|) h / nu = {peclet:.6g} (h = {problem.spacing:.6g}, "
        f"nu = {problem.viscosity:.6g}), and the step is stable up to {MOST_PECLET_NUMBER:g}. "
        f"Scale the field to a largest speed of {problem.most_speed:.6g} or less, "
        f"or give it on a finer grid (--nodes {fine_enough} or more)."
    )


def load_initial(path: Path, problem: Problem) -> Field:
    """
    Read a user's initial velocity from a .npy file.

    Args:
        path: The file.
        problem: The grid.

    Returns:
        The velocity at the nodes of this rank, float64.

    Raises:
        DemoInputError: The file cannot be read, is no .npy file, or `check_initial` refuses its field.
    """
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise DemoInputError(f"The initial field {str(path)!r} {what}: give a .npy file of shape {problem.shape}.")
    try:
        # Mapped, so that the shape of a far too large file is refused before its bytes are read.
        with path.open("rb") as file:
            is_array = file.read(6) == b"\x93NUMPY"
        loaded = np.load(path, mmap_mode="r", allow_pickle=False) if is_array else None
    except (OSError, ValueError, EOFError) as error:
        raise DemoInputError(f"The initial field {str(path)!r} cannot be read: {error}") from error
    if loaded is None:
        raise DemoInputError(
            f"The initial field {str(path)!r} is not a .npy file: write it with np.save({path.stem + '.npy'!r}, field)."
        )
    return np.ascontiguousarray(check_initial(loaded, problem)[problem.window])
