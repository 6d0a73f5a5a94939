"""
The registry of vector spaces: types of vectors that are no NumPy arrays.

To the library a vector is one array of its numbers and a form, all that is to be known of it beside them. `pack` and
`unpack` of the user's go from the one to the other, and nothing else is asked of a type: to add, to count bytes, to
check, to page, to snapshot and to resume is done on the array, by the same code and with the same bits as for arrays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any, cast, final

import numpy as np
import optree

_CLASS = type
_NO_VECTORS = (np.ndarray, np.generic, int, float, complex, str, bytes, tuple, list, dict, set)


@final
class Space:
    """
    The vectors of one type.

    Args:
        type: The type.
        pack: As for `register_space`.
        unpack: As for `register_space`.

    Memory:
        Holds no vector.
    """

    __slots__ = ("_pack", "_unpack", "type")

    def __init__(
        self, type: type[Any], pack: Callable[..., Any], unpack: Callable[..., Any]  # noqa: A002 - as below
    ) -> None:
        self.type = type
        self._pack = pack
        self._unpack = unpack

    @property
    def name(self) -> str:
        """What messages call the type."""
        return self.type.__name__

    def pack(self, vector: Any) -> tuple[np.ndarray, VectorKind]:
        """
        Return the array of the numbers of a vector, which may be its own memory, and its kind.

        Raises:
            TypeError: The user's `pack` returned something else.
        """
        packed = self._pack(vector)
        pair = isinstance(packed, tuple) and len(packed) == 2
        if not pair or not isinstance(packed[0], (np.ndarray, np.generic)) or packed[0].dtype.kind not in "fc":
            found = type(packed).__name__ if not pair else getattr(packed[0], "dtype", type(packed[0]).__name__)
            raise TypeError(
                f"pack of the vector type {self.name} returned {found!s}. It returns a tuple (array, form) with one "
                "floating-point or complex NumPy array of all numbers of the vector: concatenate several."
            )
        try:
            hash(packed[1])
        except TypeError as error:
            raise TypeError(
                f"pack of the vector type {self.name} returned the form {packed[1]!r:.60}, which has no hash ({error}"
                "). Forms are compared at each step: use numbers, strings, and tuples of them."
            ) from None
        return np.asarray(packed[0]), VectorKind(self, packed[1])

    def unpack(self, array: np.ndarray, form: Any) -> Any:
        """
        Return the vector of a packed array; it may keep the array.

        Raises:
            TypeError: The user's `unpack` returned something else.
        """
        vector = self._unpack(array, form)
        if type(vector) is not self.type:
            raise TypeError(
                f"unpack of the vector type {self.name} returned a {type(vector).__name__}. It returns a {self.name}."
            )
        return vector

    def check(self, vector: Any) -> None:
        """
        Do nothing if a vector that is packed and unpacked is the same vector.

        Raises:
            ValueError: It is another one, whose gradient would be wrong.
        """
        array, kind = self.pack(vector)
        again, found = self.pack(self.unpack(array, kind.form))
        if not found == kind:
            raise ValueError(
                f"pack and unpack of the vector type {self.name} do not fit together: the form {kind.form!r} came back "
                f"as {found.form!r}. A form is a value that == compares, such as a tuple of shapes."
            )
        if again.dtype != array.dtype or again.shape != array.shape or not np.array_equal(again, array, equal_nan=True):
            raise ValueError(
                f"pack and unpack of the vector type {self.name} do not fit together: a packed array "
                f"{array.dtype}{list(array.shape)} was unpacked, packed again, and came back as "
                f"{again.dtype}{list(again.shape)}{'' if again.shape != array.shape else ' with other numbers'}."
            )


@final
@dataclass(frozen=True, slots=True, repr=False)
class VectorKind:
    """
    What is known of a vector beside its numbers.

    Args:
        space: Its space.
        form: What `pack` returned beside the array.
    """

    space: Space
    form: Any

    def __repr__(self) -> str:
        return f"{self.space.name}[{self.form!r}]"


# The second registry (beside that of rules) that only grows.
SPACES: dict[type[Any], Space] = {}


def register_space(
    type: type[Any],  # noqa: A002 - as the built-in says it
    *,
    pack: Callable[[Any], tuple[np.ndarray, Any]],
    unpack: Callable[[np.ndarray, Any], Any],
) -> None:
    """
    Let vectors of a type be differentiated, be states of time loops, and be controls.

    Args:
        type: A class. Its subclasses are types of their own.
        pack: `pack(vector)` returns (array, form): one floating-point or complex array with all numbers of the vector,
            which may share its memory or not, and a form, what is to be known beside them: a value that `==` and
            `hash` take, of which the `repr` is the same in each process (a tuple of shapes). A vector with the same
            form has an array of the same shape and dtype.
        unpack: `unpack(array, form)` returns the vector, whatever the numbers in the array. It may keep the array as
            its memory. What functions and rules of the user's are to read comes as an array that cannot be written:
            where a vector needs memory that it can write, unpack copies that.

    Raises:
        TypeError: It is no class, or arrays, numbers or containers have this type.
        ValueError: The type is registered already: another pack would silently change gradients.

    Memory:
        The functions, forever. A vector that is saved or stored takes the bytes of its packed array.

    Example:
        >>> import numpy as np
        >>> from dataclasses import dataclass
        >>> from ebbtide import grad, inner
        >>> @dataclass
        ... class Polynomial:
        ...     coefficients: np.ndarray
        >>> register_space(Polynomial, pack=lambda p: (p.coefficients, ()), unpack=lambda a, form: Polynomial(a))
        >>> grad(lambda p: inner(p, p))(Polynomial(np.array([1.0, 2.0])))
        Polynomial(coefficients=array([2., 4.]))
    """
    if not isinstance(type, _CLASS):
        raise TypeError(f"register_space takes a class, not {type!r:.60}.")
    if issubclass(type, _NO_VECTORS) or optree.register_pytree_node.get(type) is not None:
        raise TypeError(
            f"{type.__name__} is a type of arrays, numbers or containers, which Ebbtide takes apart by itself. "
            "Register types whose vectors it cannot look into."
        )
    if not (callable(cast("object", pack)) and callable(cast("object", unpack))):
        raise TypeError(f"register_space takes functions pack= and unpack=, not {pack!r:.60} and {unpack!r:.60}.")
    space = Space(type, pack, unpack)
    if SPACES.setdefault(type, space) is not space:
        raise ValueError(f"The vector type {type.__name__} is registered already, and that is never replaced.")


@final
class PackedVectors:
    """
    Plain vectors that recorded operations were given: one that is used again is kept once, though it is packed again.

    Attributes:
        met: Whether the function that is recorded has met a vector, so that its regions show them as traced.

    Memory:
        A weak reference for each; the arrays are those of the nodes that save them.
    """

    __slots__ = ("_known", "met")

    def __init__(self) -> None:
        self.met = False
        self._known: dict[int, weakref.ref[np.ndarray]] = {}

    def find(self, vector: Any, array: np.ndarray) -> np.ndarray:
        """Return the array that is kept of a vector if it has the bits of *array*, else that."""
        reference = self._known.get(id(vector))
        known = None if reference is None else reference()
        # Equal bits may be shared, whosever address it is by now; equal numbers may not, as 0.0 == -0.0.
        if known is not None and (known is array or _same_bits(known, array)):
            return known
        if len(self._known) >= 64 and not len(self._known) & (len(self._known) - 1):
            self._known = {key: kept for key, kept in self._known.items() if kept() is not None}
        self._known[id(vector)] = weakref.ref(array)
        return array


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    words = f"u{min(x.itemsize, 8)}"
    return np.array_equal(np.ravel(x).view(words), np.ravel(y).view(words))


def advice(value: Any) -> str:
    """Return what a message adds where an object was given that could be a vector of a type not registered."""
    if value is None or isinstance(value, _NO_VECTORS) or type(value) in SPACES:
        return ""
    base = next((base for base in type(value).__mro__[1:] if base in SPACES), None)
    name = type(value).__name__
    if base is None:
        decorator = '@optree.dataclasses.dataclass(namespace="")'
        container = f" For {name} to be a container write {decorator} in place of @dataclass." * is_dataclass(value)
        return f"{container} If {name} is a type of vectors, register it with ebbtide.register_space."
    return f" {base.__name__} is a registered type of vectors, and its subclass {name} is not: register that too."
