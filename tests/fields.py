"""A type of vectors of the tests' own: two fields of different shapes on a staggered grid, and no array protocol."""

from __future__ import annotations

import numpy as np

from ebbtide import primitive, register_space


class Field:
    """Velocities on edges and pressures in cells."""

    __slots__ = ("__weakref__", "p", "u")

    def __init__(self, u, p):
        self.u, self.p = u, p

    def __add__(self, other):
        return Field(self.u + other.u, self.p + other.p) if type(other) is Field else NotImplemented

    def __sub__(self, other):
        return Field(self.u - other.u, self.p - other.p) if type(other) is Field else NotImplemented

    def __mul__(self, number):
        return Field(self.u * number, self.p * number) if isinstance(number, float) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, number):
        return Field(self.u / number, self.p / number) if isinstance(number, float) else NotImplemented

    def __neg__(self):
        return Field(-self.u, -self.p)

    def __pos__(self):
        return self

    @property
    def nbytes(self):
        return self.u.nbytes + self.p.nbytes


def pack(field):
    """Both in one array: a copy."""
    return np.concatenate([field.u.ravel(), field.p.ravel()]), (field.u.shape, field.p.shape)


def unpack(array, form):
    """Copies too, so that the tests see the largest bytes that a space can take."""
    edges, cells = form
    count = edges[0] * edges[1]
    return Field(array[:count].reshape(edges).copy(), array[count:].reshape(cells).copy())


register_space(Field, pack=pack, unpack=unpack)


class Tensor:
    """A vector that is a handle of memory somewhere, which packing shows as it is."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data):
        self.data = data


register_space(Tensor, pack=lambda t: (t.data, ()), unpack=lambda array, form: Tensor(array))


def random_field(seed=0, rows=3, dtype=np.float64):
    """Return a field of different numbers: rows x 4 edges, (rows - 1) x 5 cells."""
    random = np.random.default_rng(seed)
    shapes = (rows, 4), (rows - 1, 5)
    return Field(*[random.uniform(0.2, 1.0, shape).astype(dtype) for shape in shapes])


def same_bits(a, b):
    """Whether two vectors have the same numbers, bit for bit."""
    return type(a) is type(b) and all(
        getattr(a, name).dtype == getattr(b, name).dtype and np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("u", "p", "data")
        if hasattr(a, name)
    )


# Operations as users write them, with rules that can be differentiated again.


def _transposed_x(g, y):
    return product(g, y)


def _transposed_y(g, x):
    return product(g, x)


product = primitive(
    lambda x, y: Field(x.u * y.u, x.p * y.p), vjp=(_transposed_x, _transposed_y), jvp=(_transposed_x, _transposed_y)
)
sine = primitive(
    lambda x: Field(np.sin(x.u), np.sin(x.p)),
    vjp=(lambda g, x: product(g, cosine(x)),),
    jvp=(lambda t, x: product(t, cosine(x)),),
)
cosine = primitive(
    lambda x: Field(np.cos(x.u), np.cos(x.p)),
    vjp=(lambda g, x: -product(g, sine(x)),),
    jvp=(lambda t, x: -product(t, sine(x)),),
)

# From a vector to an array and back: the mean velocity, and its transpose.


def _spread(g, x):
    return spread(g, x)


def _velocity(g):
    return velocity(g)


def _spread_tangent(t, like):
    return spread(t, like)


velocity = primitive(lambda x: x.u.mean(axis=0), vjp=(_spread,), jvp=(_velocity,))
spread = primitive(
    lambda a, like: Field(np.broadcast_to(a / like.u.shape[0], like.u.shape).copy(), np.zeros(like.p.shape)),
    vjp=(_velocity, None),
    jvp=(_spread_tangent, None),
)
