# cython: language_level=3
"""
What the interpreter keeps of tuples that are dead.

CPython has a list of up to 2000 dead tuples for each length below 20, for the next one to be made, and gives them up
in a full collection. `tuple()` of an iterator whose length is not known makes a tuple of ten and shortens it, so that
each of them adds one to the list of its final length and takes none from it: `np.roll` does that. Up to 112 KB of pairs
are held that way, in no ledger.
"""

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    PyObject *PyTuple_New(Py_ssize_t) except NULL
    int _PyTuple_Resize(PyObject **, Py_ssize_t) except -1
    void Py_DecRef(PyObject *)

cdef enum:
    LISTED = 20  # tuples of so many elements and more are not taken from a list,
    LONG = 24  # and those of so many are not put on one
    MOST = 2000


def free_dead_tuples():
    """
    Have the interpreter free the dead tuples that it keeps, without a collection.

    A tuple that comes from a list is made longer than those on any list are, so that it is freed for good. Where the
    list is empty the allocator gives what was freed last, the same again: that is the end. 36 ns for each tuple, and
    2 us where there are none.
    """
    cdef Py_ssize_t length
    cdef PyObject *made
    cdef void *here
    cdef void *before
    for length in range(1, LISTED):
        before = NULL
        for _ in range(MOST):
            made = PyTuple_New(length)
            here = made
            _PyTuple_Resize(&made, LONG)
            Py_DecRef(made)
            if here == before:
                break
            before = here
