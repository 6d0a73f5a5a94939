# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Products of matrices: NumPy's own loop of matmul, with its bits, sums of products by BLAS, and small ones."""

cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc
from scipy.linalg.cython_blas cimport cgemm, dgemm, sgemm, zgemm

from ebbtide.machine._steps cimport MOST_AXES, Loop, Outside, Place, Step, cleared, flags, is_extended, loop_of

import sys

import numpy as np

from ebbtide.machine.blas import find_gemm

cdef extern from "products.h" nogil:
    int ebbtide_has_small_products()
    enum:
        EBBTIDE_ADD
        EBBTIDE_ADD_MAXIMUM
    ctypedef struct ebbtide_f_end:
        int kind
        const float *added
        float least
    ctypedef struct ebbtide_d_end:
        int kind
        const double *added
        double least
    void ebbtide_f_product(long rows, long inner, long columns, const float *a, long a_row, long a_column,
                           const float *b, long b_row, long b_column, float *c, long c_row, const ebbtide_f_end *end)
    void ebbtide_d_product(long rows, long inner, long columns, const double *a, long a_row, long a_column,
                           const double *b, long b_row, long b_column, double *c, long c_row, const ebbtide_d_end *end)

cnp.import_array()

HAS_SMALL_PRODUCTS = bool(ebbtide_has_small_products())
_REAL = (np.dtype("f"), np.dtype("d"))

# `end`: which operation comes after the product, -1 for none; its operands are the fourth and fifth.
cdef struct Small:
    Place places[5]
    bint single
    int end
    long rows, inner, columns
    long steps[6]

cdef struct Stack:
    Loop loop
    void *data
    int axes
    bint extended
    cnp.npy_intp shape[MOST_AXES]
    cnp.npy_intp sizes[4]
    Place places[3]
    cnp.npy_intp outer[3 * MOST_AXES]
    cnp.npy_intp steps[9]

# In Fortran, and so with addresses: those of integers of 64 bits are those of integers of 32, too.
ctypedef void (*Gemm)(char *, char *, int64_t *, int64_t *, int64_t *, void *, void *, int64_t *, void *, int64_t *,
                      void *, void *, int64_t *) noexcept nogil

cdef struct Sum:
    Place places[3]
    Gemm gemm
    int64_t m, n, k, lda, ldb, ldc
    char letter, transa, transb

cdef float one_f = 1
cdef double one_d = 1
cdef float complex one_c = 1
cdef double complex one_z = 1


def _addresses():
    """Return where the products of BLAS are by letters of types: NumPy's own, else SciPy's."""
    cdef dict others = {
        "f": <size_t><void *>sgemm, "d": <size_t><void *>dgemm, "F": <size_t><void *>cgemm, "D": <size_t><void *>zgemm,
    }
    return {c: find_gemm(c) or other for c, other in others.items()} if sys.byteorder == "little" else {}


_GEMM = _addresses()


cdef class Product(Step):
    """
    A step: matrix products of stacks, by the loop of `np.matmul`.

    Args:
        shape: Of the stack: the axes before those of the matrices.
        sizes: Rows of the first operand, its columns, and columns of the second.
        operands: The operands and the result, each with strides for the stack and two for a matrix.
        types: Of the loop, as in `np.matmul.types`.
    """

    def __init__(self, tuple shape, tuple sizes, tuple operands, str types):
        cdef Stack *plan = <Stack *>calloc(1, sizeof(Stack))
        cdef cnp.npy_intp strides[MOST_AXES]
        cdef int number, axis
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_product
        self.uses_blas = True
        self.names = ("matmul",)
        plan.loop, plan.extended = loop_of(np.matmul, types, &plan.data), is_extended(np.matmul, types)
        rows, inner, columns = sizes
        plan.sizes[0], plan.sizes[1], plan.sizes[2], plan.sizes[3] = 1, rows, inner, columns
        plan.axes = len(shape)
        for axis, size in enumerate(shape):
            plan.shape[axis] = size
        each = ((rows, inner), (inner, columns), (rows, columns))
        for number, (operand, size) in enumerate(zip(operands, each, strict=True)):
            if number == 2:
                self.write(operand, (*shape, *size), &plan.places[number], strides)
            else:
                self.read(operand, (*shape, *size), &plan.places[number], strides)
            for axis in range(plan.axes):
                plan.outer[number * MOST_AXES + axis] = strides[axis]
            plan.steps[3 + 2 * number] = strides[plan.axes]
            plan.steps[4 + 2 * number] = strides[plan.axes + 1]


cdef bint run_product(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Stack *plan = <Stack *>given
    cdef char *arguments[3]
    cdef cnp.npy_intp place[MOST_AXES]
    cdef int number, axis
    for number in range(3):
        arguments[number] = bases[plan.places[number].buffer] + plan.places[number].offset
    for axis in range(plan.axes):
        place[axis] = 0
        if plan.shape[axis] == 0:
            return False
    while True:
        plan.loop(arguments, plan.sizes, plan.steps, plan.data)
        axis = plan.axes - 1
        while axis >= 0:
            place[axis] += 1
            for number in range(3):
                arguments[number] += plan.outer[number * MOST_AXES + axis]
            if place[axis] < plan.shape[axis]:
                break
            for number in range(3):
                arguments[number] -= plan.outer[number * MOST_AXES + axis] * plan.shape[axis]
            place[axis] = 0
            axis -= 1
        if axis < 0:
            break
    failed[0] = flags(failed[0], plan.extended)
    return False


cdef class ProductSum(Step):
    """
    A step: a product of two matrices, added to a third one, by BLAS with beta = 1.

    Args:
        sizes: Rows of the first operand, its columns, and columns of the second.
        operands: The operands and the sum, each in C or Fortran order without gaps.

    Raises:
        ValueError: BLAS has no such product, or cannot read the operands as they lie.
    """

    def __init__(self, tuple sizes, tuple operands):
        cdef Sum *plan = <Sum *>calloc(1, sizeof(Sum))
        cdef cnp.npy_intp strides[MOST_AXES]
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_sum
        self.uses_blas = True
        self.names = ("add_product",)
        rows, inner, columns = sizes
        first, second, target = operands
        self.read(first, (rows, inner), &plan.places[0], strides)
        self.read(second, (inner, columns), &plan.places[1], strides)
        self.write(target, (rows, columns), &plan.places[2], strides)
        letters = {operand[2] for operand in operands}
        if len(letters) > 1 or target[2] not in _GEMM or 0 in sizes:
            raise ValueError(f"BLAS has no product of {first} and {second} of sizes {sizes}.")
        plan.gemm = <Gemm><size_t>_GEMM[target[2]]
        plan.letter = ord(target[2])
        if not _is_packed((rows, columns), target):
            # In Fortran's order: the transposed sum is that of the transposed operands, turned around.
            raise ValueError("The sum of products is not in C order.")
        plan.m, plan.n, plan.k, plan.ldc = columns, rows, inner, columns
        plan.places[0], plan.places[1] = plan.places[1], plan.places[0]
        plan.transa, plan.lda = _leading((inner, columns), second)
        plan.transb, plan.ldb = _leading((rows, inner), first)


def _is_packed(shape, operand):
    """Return whether a matrix is in C order without gaps."""
    size = np.dtype(operand[2]).itemsize
    return all([n == 1 or step == want for n, step, want in zip(shape, operand[3], (shape[1] * size, size), strict=True)])


def _leading(shape, operand):
    """Return whether BLAS has to transpose a matrix, that is turned around already, and its leading dimension."""
    if _is_packed(shape[::-1], (*operand[:3], operand[3][::-1])):
        return ord("T"), shape[0]
    if _is_packed(shape, operand):
        return ord("N"), shape[1]
    raise ValueError(f"BLAS cannot read a matrix of shape {shape} with strides {operand[3]}.")


cdef bint run_sum(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Sum *plan = <Sum *>given
    cdef char *a = bases[plan.places[0].buffer] + plan.places[0].offset
    cdef char *b = bases[plan.places[1].buffer] + plan.places[1].offset
    cdef char *c = bases[plan.places[2].buffer] + plan.places[2].offset
    add(plan, a, b, c)
    # NumPy looks at no flags here.
    flags(0, False)
    return False


cdef void add(Sum *plan, void *a, void *b, void *c) noexcept nogil:
    """Add a product to a matrix in C, in Fortran's order."""
    cdef void *one
    if plan.letter == b"f"[0]:
        one = &one_f
    elif plan.letter == b"d"[0]:
        one = &one_d
    elif plan.letter == b"F"[0]:
        one = &one_c
    else:
        one = &one_z
    plan.gemm(&plan.transa, &plan.transb, &plan.m, &plan.n, &plan.k, one, a, &plan.lda, b, &plan.ldb, one, c, &plan.ldc)


def add_gemm(cnp.ndarray a, cnp.ndarray b, cnp.ndarray c, bint a_turned, bint b_turned):
    """
    Add a product of matrices into *c* by the BLAS that NumPy multiplies by.

    Args:
        a: The first operand of one of the types of BLAS, in Fortran's order.
        b: The second one.
        c: Where their product is added, of the same type, in Fortran's order.
        a_turned: Whether *a* is to be transposed.
        b_turned: Whether *b* is to be transposed.
    """
    cdef Sum plan
    cdef void *operands[3]
    plan.letter = ord(c.dtype.char)
    plan.gemm = <Gemm><size_t>_GEMM[c.dtype.char]
    plan.m, plan.n, plan.k = c.shape[0], c.shape[1], a.shape[0] if a_turned else a.shape[1]
    plan.lda, plan.ldb, plan.ldc = max(1, a.shape[0]), max(1, b.shape[0]), max(1, plan.m)
    plan.transa, plan.transb = b"T"[0] if a_turned else b"N"[0], b"T"[0] if b_turned else b"N"[0]
    operands[0], operands[1], operands[2] = cnp.PyArray_DATA(a), cnp.PyArray_DATA(b), cnp.PyArray_DATA(c)
    with nogil:
        add(&plan, operands[0], operands[1], operands[2])


cdef void multiply(
    bint single, long rows, long inner, long columns, char **operands, long *steps, int end
) noexcept nogil:
    """Multiply two matrices into a third one; steps are elements, of which a row of the third one is without gaps."""
    cdef ebbtide_f_end of_floats
    cdef ebbtide_d_end of_doubles
    if single:
        of_floats.kind = end
        if end >= 0:
            of_floats.added = <float *>operands[3]
        if end == EBBTIDE_ADD_MAXIMUM:
            of_floats.least = (<float *>operands[4])[0]
        ebbtide_f_product(rows, inner, columns, <float *>operands[0], steps[0], steps[1], <float *>operands[1], steps[2],
                          steps[3], <float *>operands[2], steps[4], &of_floats if end >= 0 else NULL)
    else:
        of_doubles.kind = end
        if end >= 0:
            of_doubles.added = <double *>operands[3]
        if end == EBBTIDE_ADD_MAXIMUM:
            of_doubles.least = (<double *>operands[4])[0]
        ebbtide_d_product(rows, inner, columns, <double *>operands[0], steps[0], steps[1], <double *>operands[1],
                          steps[2], steps[3], <double *>operands[2], steps[4], &of_doubles if end >= 0 else NULL)


_ENDS = {"add": EBBTIDE_ADD, "add, maximum": EBBTIDE_ADD_MAXIMUM}


cdef class SmallProduct(Step):
    """
    A step: a product of two small matrices by a loop of our own (`products.h`), with the bits of `small_product`.

    Args:
        sizes: Rows of the first operand, its columns, and columns of the second.
        operands: The operands and the result, whose rows have no gaps.
        end: What is done with the result before it is written, if it has as many columns as a vector of 32 bytes or more:
            "add", or "add, maximum".
        more: The operands of that: a row without gaps that is added to each row, and a number, the least result.

    Raises:
        ValueError: The operands are not of one real type, or the processor has no such loop.
    """

    def __init__(self, tuple sizes, tuple operands, str end="", tuple more=()):
        cdef Small *plan = <Small *>calloc(1, sizeof(Small))
        cdef cnp.npy_intp strides[MOST_AXES]
        cdef int number
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_small
        self.names = (f"matmul, {end}" if end else "matmul",)
        rows, inner, columns = sizes
        first, second, out = operands
        item = np.dtype(out[2]).itemsize
        if not (HAS_SMALL_PRODUCTS and first[2] == second[2] == out[2] and out[2] in "fd" and columns > 1 and out[3][1] == item):
            raise ValueError(f"There is no small product of {first} and {second} of sizes {sizes} to {out}.")
        plan.rows, plan.inner, plan.columns, plan.single, plan.end = rows, inner, columns, item == 4, -1
        shapes = ((rows, inner), (inner, columns), (rows, columns))
        for number, (operand, shape) in enumerate(zip(operands, shapes, strict=True)):
            if number == 2:
                self.write(operand, shape, &plan.places[number], strides)
            else:
                self.read(operand, shape, &plan.places[number], strides)
            plan.steps[2 * number], plan.steps[2 * number + 1] = strides[0] // item, strides[1] // item
        if end:
            fits = columns * item >= 32 and all([one[2] == out[2] for one in more])
            if not fits or [one[3] for one in more] != [(0, item), (0, 0)][:end.count(",") + 1]:
                raise ValueError(f"There is no {end} with {more} after a small product of sizes {sizes}.")
            plan.end = _ENDS[end]
            for number, operand in enumerate(more, 3):
                self.read(operand, (rows, columns), &plan.places[number], strides)


cdef bint run_small(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Small *plan = <Small *>given
    cdef char *operands[5]
    cdef int number
    for number in range(5 if plan.end >= 0 else 3):
        operands[number] = bases[plan.places[number].buffer] + plan.places[number].offset
    multiply(plan.single, plan.rows, plan.inner, plan.columns, operands, plan.steps, plan.end)
    failed[0] = flags(failed[0], False)
    return False


def small_product(x, y, out=None):
    """
    Return the product of two small matrices of one real type, each element as a chain of fused multiply-adds.

    Args:
        x: A matrix of float32 or float64.
        y: Another one of the same type.
        out: Where the product goes, apart from x and y; a new array by default.

    Returns:
        The product. NumPy's own one says what is wrong with operands that fit no such product, computes those of other
        types, and does what np.errstate says of errors, where there are any.
    """
    cdef char *operands[3]
    cdef long steps[6]
    cdef int number
    fits = HAS_SMALL_PRODUCTS and x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0] and x.dtype in _REAL
    if not fits or x.dtype != y.dtype:
        return np.matmul(x, y, out=out)
    if out is None:
        out = np.empty((x.shape[0], y.shape[1]), x.dtype)
    if out.shape != (x.shape[0], y.shape[1]) or out.dtype != x.dtype:
        return np.matmul(x, y, out=out)
    size = out.itemsize
    if not out.flags.aligned or out.strides[1] != size or out.strides[0] % size:
        out[...] = small_product(x, y)
        return out
    arrays = (_readable(x), _readable(y), out)
    for number, array in enumerate(arrays):
        operands[number] = <char *>cnp.PyArray_DATA(array)
        steps[2 * number], steps[2 * number + 1] = array.strides[0] // size, array.strides[1] // size
    cdef long rows = out.shape[0], inner = x.shape[1], columns = out.shape[1]
    cdef bint single = size == 4
    cleared()
    with nogil:
        multiply(single, rows, inner, columns, operands, steps, -1)
    if flags(0, False):
        np.matmul(x, y)
    return out


def _readable(array):
    """Return a matrix in steps of whole elements, each where the processor reads it."""
    size = array.itemsize
    return array if array.flags.aligned and not any([step % size for step in array.strides]) else array.copy()
