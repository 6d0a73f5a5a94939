"""One declaration per operation; to import this package is to have the rules."""

from ebbtide.rules import elementwise, indexing, opaque, products, reductions, shapes

__all__ = ["elementwise", "indexing", "opaque", "products", "reductions", "shapes"]
