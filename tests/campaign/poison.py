"""Memory for NumPy's arrays that is full of nan before anybody has written it, and again once it is given up."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# Every byte of a nan, of half to quadruple precision; of integers it makes -1.
_NAN = 0xFF
_SIZE = ctypes.c_size_t
# The library of C, called without letting other threads in: what NumPy calls it does with the interpreter held.
_C = ctypes.PyDLL(None)
for _name, _result, _arguments in (
    ("malloc", ctypes.c_void_p, (_SIZE,)),
    ("calloc", ctypes.c_void_p, (_SIZE, _SIZE)),
    ("realloc", ctypes.c_void_p, (ctypes.c_void_p, _SIZE)),
    ("free", None, (ctypes.c_void_p,)),
    ("memset", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_int, _SIZE)),
):
    getattr(_C, _name).restype, getattr(_C, _name).argtypes = _result, _arguments


def _malloc(_: int, size: int) -> int:
    address = _C.malloc(size or 1)
    _C.memset(address, _NAN, size)
    return address


def _calloc(_: int, count: int, size: int) -> int:
    return _C.calloc(count or 1, size or 1)


def _realloc(_: int, address: int, size: int) -> int:
    return _C.realloc(address, size or 1)


def _free(_: int, address: int, size: int) -> None:
    if address:
        _C.memset(address, _NAN, size)
        _C.free(address)


class _Allocator(ctypes.Structure):
    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("malloc", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _SIZE)),
        ("calloc", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _SIZE, _SIZE)),
        ("realloc", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SIZE)),
        ("free", ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, _SIZE)),
    )


class _Handler(ctypes.Structure):
    """NumPy's PyDataMem_Handler, of NEP 49."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


def _made(kind: str, function: object) -> object:
    return dict(_Allocator._fields_)[kind](function)


# Arrays keep their handler for as long as they live: it is never given up.
_HANDLER = _Handler(
    b"nan", 1,
    _Allocator(
        None, _made("malloc", _malloc), _made("calloc", _calloc), _made("realloc", _realloc), _made("free", _free)
    ),
)  # fmt: skip
_CAPSULE_NEW = ctypes.pythonapi.PyCapsule_New
_CAPSULE_NEW.restype, _CAPSULE_NEW.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype, _POINTER.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
# A capsule keeps the address of its name.
_NAME = ctypes.create_string_buffer(b"mem_handler")
_OURS = _CAPSULE_NEW(ctypes.addressof(_HANDLER), ctypes.addressof(_NAME), None)
# The 304th function of NumPy's C interface, PyDataMem_SetHandler: takes a handler and returns the one before.
_TABLE = ctypes.cast(_POINTER(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
_set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_TABLE[304])


@contextmanager
def poisoned() -> Iterator[None]:
    """Run the block, in which new arrays are full of nan, and the memory of those that are gone is, too."""
    before = _set_handler(_OURS)
    try:
        yield
    finally:
        _set_handler(before)
