# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Windows of images: convolutions as products with a matrix of windows, some of them at a time, and the largest elements.

All that is done with a piece of the windows is done before the next one: the matrix is in the cache then. It is in a
buffer of the machine like any other, which is planned with the values of the program.
"""

cimport numpy as cnp
from libc.stdlib cimport calloc
from libc.string cimport memset

from ebbtide.machine._steps cimport MOST_AXES, Loop, Outside, Place, Step, flags, is_extended, loop_of

import numpy as np

from ebbtide.machine.pieces import BEHIND, piece_of, scratch_of

cdef extern from "windows.h" nogil:
    enum: EBBTIDE_SIDE
    ctypedef struct ebbtide_windows:
        cnp.npy_intp images, height, width, channels
        cnp.npy_intp window_height, window_width, stride_height, stride_width, top, left
        cnp.npy_intp rows, columns
    ctypedef const char *(*ebbtide_add_back)(
        const ebbtide_windows *, char *, cnp.npy_intp, cnp.npy_intp, const char *)
    ctypedef void (*ebbtide_add_all)(char *, const char *, cnp.npy_intp)
    ctypedef void (*ebbtide_pool)(const ebbtide_windows *, const char *, const char *, char *, const char *)
    char *ebbtide_gather(
        const ebbtide_windows *, cnp.npy_intp, const char *, const char *, cnp.npy_intp, cnp.npy_intp, char *)
    ebbtide_add_back ebbtide_add_back_of(char)
    ebbtide_add_all ebbtide_add_all_of(char)
    ebbtide_pool ebbtide_pool_of(const char *, char)

cnp.import_array()

cdef enum:
    RESULTS, IMAGES, KERNELS

# `images` at once, or `rows` of windows of one.
cdef struct Plan:
    int kind
    ebbtide_windows windows
    cnp.npy_intp size, results, images, rows, behind
    Place places[4]
    Loop product
    void *data
    bint extended
    cnp.npy_intp steps[9]
    ebbtide_add_back add_back
    ebbtide_add_all add_all

cdef struct Pool:
    ebbtide_windows windows
    cnp.npy_intp size, out
    bint spreads
    Place places[3]
    ebbtide_pool run


cdef tuple sizes_of(ebbtide_windows *windows, tuple images, tuple window, tuple strides, tuple padding, tuple count):
    """Write down the sizes of images and windows, and return the shape of the results without their channels."""
    windows.images, windows.height, windows.width, windows.channels = images
    windows.window_height, windows.window_width = window
    windows.stride_height, windows.stride_width = strides
    windows.top, windows.left = padding
    windows.rows, windows.columns = count
    if 0 in images or 0 in window or 0 in count:
        raise ValueError(f"No windows of {window} in images of shape {images}.")
    return (images[0], *count)


cdef object check_packed(operand, tuple shape):
    """Check that an operand has no gaps."""
    step = np.dtype(operand[2]).itemsize
    for n, stride in zip(shape[::-1], operand[3][::-1], strict=True):
        if n != 1 and stride != step:
            raise ValueError(f"An operand of shape {shape} with strides {operand[3]} has gaps.")
        step *= n


cdef class Convolution(Step):
    """
    A step: one of the three of images, kernels and the results of their convolution, of the two others.

    Args:
        kind: "results", "images", or "kernels".
        images: Shape of the images (N, H, W, C).
        kernels: Shape of the kernels (h, w, C, O).
        strides: Distances between windows, along height and width.
        padding: Rows of zeros above, and columns of zeros to the left.
        count: How many windows there are, along height and width.
        operands: Of results images and kernels, of images results and kernels, of kernels images and results; memory
            for `scratch_of` elements; what is made.

    Raises:
        ValueError: An operand has gaps, or its type has no product.
    """

    def __init__(self, str kind, tuple images, tuple kernels, tuple strides, tuple padding, tuple count, tuple operands):
        cdef Plan *plan = <Plan *>calloc(1, sizeof(Plan))
        cdef cnp.npy_intp unused[MOST_AXES]
        cdef int k
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_convolution
        self.uses_blas = True
        self.names = ("matmul", "add")
        letter = operands[3][2]
        front = sizes_of(&plan.windows, images, kernels[:2], strides, padding, count)
        results, area = kernels[3], kernels[0] * kernels[1] * kernels[2]
        each = {"results": (images, kernels, (*front, results)), "images": ((*front, results), kernels, images),
                "kernels": (images, (*front, results), kernels)}[kind]
        plan.kind = ("results", "images", "kernels").index(kind)
        plan.size, plan.results, plan.behind = np.dtype(letter).itemsize, results, BEHIND
        plan.images, plan.rows = piece_of(images[0], count[0], count[1] * area * plan.size)
        plan.add_back, plan.add_all = ebbtide_add_back_of(ord(letter)), ebbtide_add_all_of(ord(letter))
        if plan.add_all == NULL or len({operand[2] for operand in operands}) > 1 or not results:
            raise ValueError(f"No convolution of {operands}.")
        plan.product, plan.extended = (
            loop_of(np.matmul, f"{letter}{letter}->{letter}", &plan.data), is_extended(np.matmul, f"{letter}{letter}")
        )
        scratch = (scratch_of(images[0], count, (area, results), plan.size),)
        for k, shape in ((0, each[0]), (1, each[1]), (2, scratch), (3, each[2])):
            check_packed(operands[k], shape)
            if k < 2:
                self.read(operands[k], shape, &plan.places[k], unused)
            else:
                self.write(operands[k], shape, &plan.places[k], unused)
        size, row, wide = plan.size, area * plan.size, results * plan.size
        # Of the two operands and of the product: how far apart its rows are, and its columns.
        steps = {"results": (row, size, wide, size, wide, size), "images": (wide, size, size, wide, row, size),
                 "kernels": (size, row, wide, size, wide, size)}[kind]
        for k in range(6):
            plan.steps[3 + k] = steps[k]


cdef bint run_convolution(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Plan *plan = <Plan *>given
    cdef ebbtide_windows *w = &plan.windows
    cdef char *parts[4]
    cdef int k
    cdef cnp.npy_intp image = 0, row, images, end
    for k in range(4):
        parts[k] = bases[plan.places[k].buffer] + plan.places[k].offset
    if plan.kind == IMAGES:
        memset(parts[3], 0, w.images * w.height * w.width * w.channels * plan.size)
    elif plan.kind == KERNELS:
        memset(parts[3], 0, w.window_height * w.window_width * w.channels * plan.results * plan.size)
    while image < w.images:
        images = min(plan.images, w.images - image)
        row = 0
        while row < w.rows:
            end = min(row + plan.rows, w.rows)
            one_piece(plan, parts, image, images, row, end, failed)
            row = end
        image += images
    return False


cdef void one_piece(
    Plan *plan, char **parts, cnp.npy_intp first, cnp.npy_intp images, cnp.npy_intp row, cnp.npy_intp end, int *failed,
) noexcept nogil:
    """Do some rows of windows of some images."""
    cdef ebbtide_windows *w = &plan.windows
    cdef cnp.npy_intp image_bytes = w.height * w.width * w.channels * plan.size
    cdef cnp.npy_intp area = w.window_height * w.window_width * w.channels
    cdef cnp.npy_intp count = images * (end - row) * w.columns, k
    cdef cnp.npy_intp sizes[4]
    cdef char *arguments[3]
    cdef char *images_at = parts[3 if plan.kind == IMAGES else 0]
    cdef char *last = images_at + w.images * image_bytes
    cdef char *results = parts[3 if plan.kind == RESULTS else 1 if plan.kind == KERNELS else 0]
    cdef char *rows = parts[2]
    cdef const char *source = rows
    results += (first * w.rows + row) * w.columns * plan.results * plan.size
    sizes[0], sizes[1], sizes[2], sizes[3] = 1, count, area, plan.results
    arguments[0], arguments[1], arguments[2] = rows, parts[1], results
    if plan.kind == IMAGES:
        sizes[2], sizes[3] = plan.results, area
        arguments[0], arguments[2] = results, rows
    else:
        for k in range(first, first + images):
            rows = ebbtide_gather(w, plan.size, images_at + k * image_bytes, last, row, end, rows)
    if plan.kind == KERNELS:
        sizes[1], sizes[2] = area, count
        # The product is behind the windows and what is written beyond them.
        arguments[1], arguments[2] = results, parts[2] + plan.images * plan.rows * w.columns * area * plan.size + plan.behind
    plan.product(arguments, sizes, plan.steps, plan.data)
    failed[0] = flags(failed[0], plan.extended)
    if plan.kind == IMAGES:
        for k in range(first, first + images):
            source = plan.add_back(w, images_at + k * image_bytes, row, end, source)
    elif plan.kind == KERNELS:
        plan.add_all(parts[3], arguments[2], area * plan.results)
    failed[1] = flags(failed[1], False)


cdef class Pooling(Step):
    """
    A step: the largest element of each window of images, where it is, or values put there.

    Args:
        kind: "largest", "places" for the number of its place in its window, the first of several, or "spread" for
            images with values at these places, which are added where windows overlap.
        images: Shape of the images (N, H, W, C).
        window: Height and width of a window.
        strides: Distances between windows, along height and width.
        count: How many windows there are, along height and width.
        operands: The images; to spread, values and their places, one byte each. Then what is made.

    Raises:
        ValueError: An operand has gaps, or has no such windows.

    Memory:
        12 KiB of the stack of its thread while it runs; nothing between.
    """

    def __init__(self, str kind, tuple images, tuple window, tuple strides, tuple count, tuple operands):
        cdef Pool *plan = <Pool *>calloc(1, sizeof(Pool))
        cdef cnp.npy_intp unused[MOST_AXES]
        if plan == NULL:
            raise MemoryError
        self.plan = plan
        self.run = run_pooling
        self.names = ("maximum" if kind != "spread" else "add",)
        front = (*sizes_of(&plan.windows, images, window, strides, (0, 0), count), images[3])
        *taken, out = operands
        letter = taken[0][2]
        plan.run = ebbtide_pool_of(kind.encode(), ord(letter))
        kinds = {"largest": letter + letter, "places": letter + "B", "spread": letter + "B" + letter}[kind]
        if plan.run == NULL or "".join([one[2] for one in operands]) != kinds:
            raise ValueError(f"No {kind} of {operands}.")
        if images[3] > EBBTIDE_SIDE or window[0] * window[1] > 255:
            raise ValueError(f"Windows of {window} in images of shape {images} have too many elements.")
        plan.size, plan.out, plan.spreads = np.dtype(letter).itemsize, np.dtype(out[2]).itemsize, kind == "spread"
        shapes = (front, front, images) if kind == "spread" else (images, front)
        for k, (operand, shape) in enumerate(zip(operands, shapes, strict=True)):
            check_packed(operand, shape)
            if k < len(taken):
                self.read(operand, shape, &plan.places[k], unused)
            else:
                self.write(operand, shape, &plan.places[2], unused)


cdef bint run_pooling(void *given, char **bases, int *failed, Outside *outside) noexcept nogil:
    cdef Pool *plan = <Pool *>given
    cdef ebbtide_windows *w = &plan.windows
    cdef cnp.npy_intp of_images = w.height * w.width * w.channels, of_windows = w.rows * w.columns * w.channels
    cdef cnp.npy_intp image
    cdef char *taken = bases[plan.places[0].buffer] + plan.places[0].offset
    cdef char *where = bases[plan.places[1].buffer] + plan.places[1].offset
    cdef char *out = bases[plan.places[2].buffer] + plan.places[2].offset
    cdef char *last = taken + w.images * of_images * plan.size
    for image in range(w.images):
        plan.run(w, taken, last, out, where)
        taken += (of_windows if plan.spreads else of_images) * plan.size
        out += of_images * plan.size if plan.spreads else of_windows * plan.out
        where += of_windows
    # NumPy's comparisons do not fail.
    if plan.spreads:
        failed[0] = flags(failed[0], False)
    else:
        flags(0, False)
    return False
