"""Traced arrays, primitives and the kinds of rule."""
