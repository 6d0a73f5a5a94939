"""One declaration per operation; to import this package is to have the rules."""

from ebbtide.rules import (
    creation,
    elementwise,
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
    sums,
)

__all__ = [
    "creation",
    "elementwise",
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
    "sums",
]
