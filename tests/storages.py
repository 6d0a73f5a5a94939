"""Storages of the tests' own."""

from __future__ import annotations

import errno

from ebbtide import StorageError
from ebbtide.storage import EntryLostError, Memory, Storage


class Delegating(Storage):
    """A storage that passes everything on to one in memory; what is derived from it takes notes or misbehaves."""

    def __init__(self):
        self.inner = Memory()

    def put(self, key, arrays, *, kind=""):
        return self.inner.put(key, arrays, kind=kind)

    def get(self, key):
        return self.inner.get(key)

    def take(self, key):
        return self.inner.take(key)

    def delete(self, key):
        self.inner.delete(key)

    def keys(self):
        return self.inner.keys()

    def close(self):
        self.inner.close()

    def check_open(self):
        self.inner.check_open()

    @property
    def nbytes(self):
        return self.inner.nbytes

    @property
    def memory_nbytes(self):
        return self.inner.memory_nbytes


class OutOfOrder(Delegating):
    """A storage that neither stores nor reads while it is broken."""

    def __init__(self, *, broken=False):
        super().__init__()
        self.broken = broken

    def check(self):
        if self.broken:
            raise StorageError("This storage is out of order.")

    def put(self, key, arrays, *, kind=""):
        self.check()
        return super().put(key, arrays, kind=kind)

    def get(self, key):
        self.check()
        return super().get(key)

    def take(self, key):
        self.check()
        return super().take(key)


class LosesBehind(Delegating):
    """A storage that loses its n-th entry, or its first one then, and tells the next caller that stores or reads."""

    buffer_nbytes = 1 << 20

    def __init__(self, at, *, first=False):
        super().__init__()
        self.at, self.first, self.count, self.lost, self.told = at, first, 0, None, True

    def tell(self, key=None):
        if self.lost is not None and (not self.told or key == self.lost):
            self.told = True
            raise EntryLostError(f"The entry {self.lost} is lost.", self.lost, 1, errno.EIO)

    def put(self, key, arrays, *, kind=""):
        self.tell()
        self.count += 1
        nbytes = super().put(key, arrays, kind=kind)
        if self.count == self.at:
            self.lost, self.told = self.keys()[0] if self.first else key, False
            super().delete(self.lost)
        return nbytes

    def get(self, key):
        self.tell(key)
        return super().get(key)

    def take(self, key):
        self.tell(key)
        return super().take(key)

    def delete(self, key):
        if key == self.lost:
            self.lost = None
        else:
            super().delete(key)

    def flush(self):
        self.tell()

    def prefetch(self, keys):
        self.tell()
