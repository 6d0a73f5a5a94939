"""The buffer of a storage that the user gave to loops: a part of the budget, counted once."""

from __future__ import annotations

from ebbtide.ledger import BUFFERS, Ledger
from ebbtide.storage import Storage


def hold_buffer(ledger: Ledger, storage: Storage | None) -> None:
    """Count the buffer of a storage of the user, once for all loops that use it, until `let_buffer_go`."""
    if storage is not None:
        ledger.share(BUFFERS, id(storage), storage.buffer_nbytes)


def let_buffer_go(ledger: Ledger, storage: Storage | None) -> None:
    """Count the buffer no more, or no more for one of the loops."""
    if storage is not None and ledger.shares(BUFFERS, id(storage)):
        ledger.unshare(BUFFERS, id(storage))
