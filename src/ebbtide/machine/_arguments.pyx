# cython: language_level=3, boundscheck=False, wraparound=False
"""
What the arguments of a program are, told without a Python object for each of their properties.

Between two runs over megabytes little of Python is in the caches of the processor: there a call with four arrays in
containers took 240 us beside its steps, and takes 100 with what is here.
"""

cimport numpy as cnp
from libc.string cimport memcmp, memcpy

import numpy as np

cnp.import_array()

cdef enum:
    MOST_AXES = 8

cdef enum Kind:
    ARRAY, NUMBER, TUPLE, NAMED, LIST, DICT, NOTHING


cdef class Form:
    """
    The form of a container of arrays and numbers: tuples, lists and dictionaries by text, and the types of what is in them.

    Args:
        tree: A container, an array, a number or None.

    Raises:
        TypeError: There is something else in it.

    Memory:
        A few hundred bytes for each leaf; no array.

    Example:
        >>> import numpy as np
        >>> form = Form((np.zeros(2), {"b": 1.0, "a": None}))
        >>> form.leaves((np.ones(2), {"b": 2.0, "a": None}))
        [array([1., 1.]), 2.0]
        >>> form.leaves((np.ones(3), {"b": 2.0, "a": None})) is None
        True
        >>> form.container([0, 1])
        (0, {'b': 1, 'a': None})
    """

    cdef Kind kind
    cdef object type
    cdef tuple parts, keys, order
    cdef int axes
    cdef cnp.npy_intp shape[MOST_AXES]
    cdef cnp.npy_intp strides[MOST_AXES]

    def __init__(self, tree):
        self.type, parts = type(tree), ()
        if self.type is np.ndarray and cnp.PyArray_NDIM(tree) <= MOST_AXES:
            self.kind, self.type, self.axes = ARRAY, tree.dtype, cnp.PyArray_NDIM(tree)
            memcpy(self.shape, cnp.PyArray_DIMS(tree), self.axes * sizeof(cnp.npy_intp))
            memcpy(self.strides, cnp.PyArray_STRIDES(tree), self.axes * sizeof(cnp.npy_intp))
        elif self.type is float or self.type is complex:
            self.kind = NUMBER
        elif tree is None:
            self.kind = NOTHING
        elif self.type is tuple or self.type is list:
            self.kind, parts = TUPLE if self.type is tuple else LIST, tree
        elif issubclass(self.type, tuple) and hasattr(self.type, "_fields"):
            self.kind, parts = NAMED, tree
        elif self.type is dict and all([type(key) is str for key in tree]):
            # Leaves are in the order of the keys, and a dictionary is made in its own.
            self.kind, self.keys = DICT, tuple(sorted(tree))
            parts, self.order = [tree[key] for key in self.keys], tuple([(key, self.keys.index(key)) for key in tree])
        else:
            raise TypeError(f"There is no form of a {self.type.__name__}.")
        self.parts = tuple([Form(part) for part in parts])

    def leaves(self, tree):
        """Return the leaves of a container of this form; None if it has another one."""
        cdef list found = []
        return found if self.takes(tree, found) else None

    cdef bint takes(self, object tree, list found) except -1:
        cdef Py_ssize_t k
        cdef size_t nbytes = self.axes * sizeof(cnp.npy_intp)
        if self.kind == ARRAY:
            if type(tree) is not np.ndarray or cnp.PyArray_NDIM(tree) != self.axes:
                return False
            if memcmp(cnp.PyArray_DIMS(tree), self.shape, nbytes) or memcmp(cnp.PyArray_STRIDES(tree), self.strides, nbytes):
                return False
            dtype = <object>cnp.PyArray_DESCR(tree)
            if dtype is not self.type and dtype != self.type:
                return False
            found.append(tree)
        elif self.kind == NUMBER:
            if type(tree) is not self.type:
                return False
            found.append(tree)
        elif self.kind == NOTHING:
            return tree is None
        elif type(tree) is not self.type or len(tree) != len(self.parts):
            return False
        elif self.kind == DICT:
            for k in range(len(self.parts)):
                if self.keys[k] not in <dict>tree or not (<Form>self.parts[k]).takes((<dict>tree)[self.keys[k]], found):
                    return False
        else:
            for k in range(len(self.parts)):
                if not (<Form>self.parts[k]).takes(tree[k], found):
                    return False
        return True

    def container(self, list leaves):
        """Return the container of this form with these leaves."""
        cdef Py_ssize_t first = 0
        return self.made(leaves, &first)

    cdef object made(self, list leaves, Py_ssize_t *first):
        if self.kind == NOTHING:
            return None
        if self.kind == ARRAY or self.kind == NUMBER:
            first[0] += 1
            return leaves[first[0] - 1]
        parts = [(<Form>part).made(leaves, first) for part in self.parts]
        if self.kind == DICT:
            return {key: parts[k] for key, k in self.order}
        if self.kind == NAMED:
            return self.type(*parts)
        return parts if self.kind == LIST else tuple(parts)


def are_free(values, donated, others):
    """
    Return whether it is plain that some arrays can be written, and share memory with nothing; else it is not known.

    Args:
        values: Arrays and other values.
        donated: Numbers of those that are to be written.
        others: More arrays that they must not share memory with.
    """
    cdef list arrays = [value for value in (*values, *others) if type(value) is np.ndarray]
    cdef Py_ssize_t k, j
    for number in donated:
        value = values[number]
        if type(value) is np.ndarray and not cnp.PyArray_ISWRITEABLE(value):
            return False
    for k in range(len(arrays)):
        # Memory of its own is nobody else's, unless an array is there twice.
        if not cnp.PyArray_CHKFLAGS(arrays[k], cnp.NPY_ARRAY_OWNDATA):
            return False
        for j in range(k):
            if arrays[j] is arrays[k]:
                return False
    return True
