"""
Random generators in the state of a time loop: copied, stored and compared by the state of their bits.

A generator changes when it is drawn from, so that a loop treats it as an array that steps write into. Kept are the
state of the bit generator and how many generators were spawned: the two things that decide what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import Generator, SeedSequence

from ebbtide.arrays.location import user_line

_KINDS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
# The largest number in the state of a bit generator, that of PCG64, has 128 bits.
_NUMBER_BYTES = 16
# Measured (PCG64, MT19937, Philox): a snapshot of a generator takes 310 bytes beside its own, and 700 with what the
# storage adds for one more array; a step works with four generators of 1 KiB, or 3.5 KiB of MT19937, and to unpack one
# takes 2.8 KiB and six times its bytes for a moment. The first calls in a process take 13 to 18 KiB more.
_ENTRIES, _AT_WORK = 704, 29 * 1024


def pack_generator(generator: Generator) -> tuple[np.ndarray, list[Any]]:
    """
    Return a generator as bytes and a form.

    Args:
        generator: One over a bit generator of NumPy's own: of a seed, or Philox of a key.

    Returns:
        (bytes, form): bytes, always as many for one kind, that change when the generator is used; and what says
        which one it is, of numbers, texts and lists only.

    Raises:
        TypeError: NumPy does not know its bit generator, or how it was seeded.

    Example:
        >>> generator = np.random.default_rng(1)
        >>> twin = unpack_generator(*pack_generator(generator))
        >>> generator.random() == twin.random()
        True
    """
    bits = generator.bit_generator
    kind, seeds = type(bits).__name__, bits.seed_seq
    form: list[Any]
    if type(bits) is np.random.Philox and seeds is None:  # of a key: it spawns none
        spawned, form = 0, [kind, None, [], 0]
    elif type(bits) is getattr(np.random, kind, None) and isinstance(seeds, SeedSequence):
        spawned, form = seeds.n_children_spawned, [kind, _plain(seeds.entropy), list(seeds.spawn_key), seeds.pool_size]
    else:
        raise TypeError(
            f"A generator in the state is made of {kind} and {type(seeds).__name__}, of which it is not known how to "
            f"copy them. Take one of {', '.join(_KINDS)} with a SeedSequence, as np.random.default_rng does."
        )
    numbers = [spawned, *(leaf for leaf in _leaves(bits.state) if not isinstance(leaf, str))]
    parts = [leaf.tobytes() if isinstance(leaf, np.ndarray) else _number(leaf) for leaf in numbers]
    return np.frombuffer(b"".join(parts), np.uint8), form


def unpack_generator(packed: np.ndarray, form: list[Any]) -> Generator:
    """Return a new generator that goes on as the packed one would have."""
    kind, entropy, spawn_key, pool_size = form
    rest = packed.tobytes()
    if entropy is None:
        bits: Any = np.random.Philox(key=0)
    else:
        spawned = int.from_bytes(rest[:_NUMBER_BYTES], "little")
        seeds = SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)
        bits = getattr(np.random, kind)(seeds)
    bits.state = _put_in(bits.state, _filled(_leaves(bits.state), rest[_NUMBER_BYTES:]))
    return Generator(bits)


def refuse_shared(leaves: list[Any]) -> None:
    """
    Refuse a state in which a generator is twice: the loop would make two of it, which draw the same.

    Raises:
        TypeError: Two leaves draw from the same bit generator.
    """
    if len(leaves) < 2:
        return
    bits = [id(leaf.bit_generator) for leaf in leaves if isinstance(leaf, Generator)]
    if len(set(bits)) < len(bits):
        raise TypeError(
            f"Two leaves of a state are the same random generator (the time loop is called at {user_line()}). A loop "
            "keeps each leaf by itself, and the two would draw the same numbers: have it in the state once, or take "
            "another one from generator.spawn(1)."
        )


def packed_nbytes(generator: Generator) -> int:
    """Return the bytes of a packed generator, with its form."""
    return pack_generator(generator)[0].nbytes + _ENTRIES


def working_nbytes(leaves: list[Any]) -> int:
    """Return the bytes that the generators of a state take while a step runs."""
    generators = [leaf for leaf in leaves if isinstance(leaf, Generator)]
    return sum(_AT_WORK + 10 * pack_generator(generator)[0].nbytes for generator in generators)


def _leaves(state: Any) -> Iterator[Any]:
    """
    Yield the entries of a state, of which some are dicts, in the order of their names.

    Containers are taken apart by optree elsewhere, which fills the interpreter's lists of dead objects: to pack 2000
    times left 8 KB, and 0.9 in this way.
    """
    if not isinstance(state, dict):
        yield state
        return
    for name in sorted(state):
        yield from _leaves(state[name])


def _put_in(state: Any, leaves: Iterator[Any]) -> Any:
    """Return a state with others in the place of its entries."""
    if not isinstance(state, dict):
        return next(leaves)
    return {name: _put_in(state[name], leaves) for name in sorted(state)}


def _filled(leaves: Iterator[Any], rest: bytes) -> Iterator[Any]:
    """Yield leaves like those of the state of a bit generator, with what the bytes say."""
    for leaf in leaves:
        if isinstance(leaf, str):
            yield leaf
            continue
        count = leaf.nbytes if isinstance(leaf, np.ndarray) else _NUMBER_BYTES
        here, rest = rest[:count], rest[count:]
        if isinstance(leaf, np.ndarray):
            yield np.frombuffer(here, leaf.dtype).reshape(leaf.shape)
        else:
            yield int.from_bytes(here, "little")


def _number(value: Any) -> bytes:
    return int(value).to_bytes(_NUMBER_BYTES, "little")


def _plain(entropy: Any) -> Any:
    """Return entropy as numbers, or texts of numbers, in lists."""
    if isinstance(entropy, (list, tuple, np.ndarray)):
        return [_plain(one) for one in entropy]
    return entropy if isinstance(entropy, str) else int(entropy)
