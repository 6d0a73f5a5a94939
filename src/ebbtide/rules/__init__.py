"""One declaration per operation; to import this package is to have the rules."""

from ebbtide.rules import (
    bessel,
    creation,
    elementwise,
    gamma,
    gathers,
    indexing,
    joining,
    moving,
    opaque,
    products,
    reductions,
    selection,
    shapes,
    sorting,
    special,
    sums,
)

__all__ = [
    "bessel",
    "creation",
    "elementwise",
    "gamma",
    "gathers",
    "indexing",
    "joining",
    "moving",
    "opaque",
    "products",
    "reductions",
    "selection",
    "shapes",
    "sorting",
    "special",
    "sums",
]
