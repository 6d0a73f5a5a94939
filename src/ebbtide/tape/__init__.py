"""The eager record of a function, and the reverse sweep over it."""
