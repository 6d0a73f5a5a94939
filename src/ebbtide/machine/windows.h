/*
Windows of images (images, height, width, channels), all of them without gaps: copied to the rows of a matrix, added
back from there, and the largest element of each.

Channels are few, so a loop over those of one pixel would be all overhead: runs of pixels are copied 32 bytes at a time,
beyond their end where the next run comes, and pixels that are taken with gaps are first put side by side.
*/
#ifndef EBBTIDE_WINDOWS_H
#define EBBTIDE_WINDOWS_H

#include "loops.h"

/* Lengths in elements; windows begin `top` rows above and `left` pixels before an image. */
typedef struct {
    npy_intp images, height, width, channels;
    npy_intp window_height, window_width, stride_height, stride_width, top, left;
    npy_intp rows, columns;
} ebbtide_windows;

/* Bytes that are copied at a time; as many may be written behind a matrix of windows (see pieces.py). */
enum { EBBTIDE_WHOLE = 32 };
/* Elements of pixels put side by side. */
enum { EBBTIDE_SIDE = 512 };

static inline npy_intp ebbtide_between(npy_intp low, npy_intp x, npy_intp high) {
    return x < low ? low : x > high ? high : x;
}

/* Copy a run, maybe with what is behind it up to `last`; writes whole pieces. */
static inline void ebbtide_copy_run(char *target, const char *source, npy_intp nbytes, const char *last) {
    if (last - source < nbytes + EBBTIDE_WHOLE) {
        memcpy(target, source, (size_t)nbytes);
        return;
    }
    for (npy_intp k = 0; k < nbytes; k += EBBTIDE_WHOLE) memcpy(target + k, source + k, EBBTIDE_WHOLE);
}

/* Write a window, of which so many bytes of each row are within the image, as a row of a matrix. */
static inline void ebbtide_gather_edge(
    const ebbtide_windows *w, const char *image, const char *last, npy_intp row, npy_intp pixel, npy_intp column,
    npy_intp before, npy_intp within, char *target) {
    const npy_intp run = w->window_width * pixel;
    for (npy_intp i = 0; i < w->window_height; i++, target += run) {
        const char *source = image + ((row + i) * w->width + column) * pixel;
        const int inside = row + i >= 0 && row + i < w->height && within > 0;
        if (inside && within == run) {
            ebbtide_copy_run(target, source, run, last);
            continue;
        }
        memset(target, 0, (size_t)run);
        if (inside) memcpy(target + before, source + before, (size_t)within);
    }
}

/* Write rows of windows of an image, from one to before another one, as rows of a matrix; return where that ends. */
EBBTIDE_WIDE static char *ebbtide_gather(
    const ebbtide_windows *w, npy_intp size, const char *image, const char *last, npy_intp from, npy_intp to, char *target) {
    const npy_intp pixel = w->channels * size, run = w->window_width * pixel, line = w->width * pixel;
    for (npy_intp y = from; y < to; y++) {
        const npy_intp row = y * w->stride_height - w->top;
        const char *below = image + (row + w->window_height) * line + EBBTIDE_WHOLE;
        const int high = row >= 0 && row + w->window_height <= w->height && below <= last;
        for (npy_intp x = 0; x < w->columns; x++) {
            const npy_intp column = x * w->stride_width - w->left;
            const npy_intp before = ebbtide_between(0, -column, w->window_width) * pixel;
            const npy_intp within = ebbtide_between(0, w->width - column, w->window_width) * pixel - before;
            if (!high || within < run) {
                ebbtide_gather_edge(w, image, last, row, pixel, column, before, within, target);
                target += run * w->window_height;
                continue;
            }
            const char *source = image + row * line + column * pixel;
            for (npy_intp i = 0; i < w->window_height; i++, source += line, target += run) {
                memcpy(target, source, EBBTIDE_WHOLE);
                for (npy_intp k = EBBTIDE_WHOLE; k < run; k += EBBTIDE_WHOLE) memcpy(target + k, source + k, EBBTIDE_WHOLE);
            }
        }
    }
    return target;
}

/*
Add rows of windows back to an image, the last window first: an element has its sums in the order of places in a window.
Return where the rows end.
*/
typedef const char *(*ebbtide_add_back)(
    const ebbtide_windows *, char *image, npy_intp from, npy_intp to, const char *source);

#define DEFINE_ADD_BACK(t, T) \
    EBBTIDE_WIDE static const char *ebbtide_add_back_##t( \
        const ebbtide_windows *w, char *image, npy_intp from, npy_intp to, const char *source) { \
        const npy_intp run = w->window_width * w->channels, line = w->width * w->channels; \
        const npy_intp area = w->window_height * run; \
        const T *rows = (const T *)source; \
        for (npy_intp y = to - 1; y >= from; y--) \
            for (npy_intp x = w->columns - 1; x >= 0; x--) { \
                const npy_intp column = x * w->stride_width - w->left; \
                const npy_intp first = ebbtide_between(0, -column, w->window_width) * w->channels; \
                const npy_intp end = ebbtide_between(0, w->width - column, w->window_width) * w->channels; \
                const T *window = rows + ((y - from) * w->columns + x) * area; \
                for (npy_intp i = 0; i < w->window_height; i++) { \
                    const npy_intp row = y * w->stride_height - w->top + i; \
                    T *target = (T *)image + row * line + column * w->channels; \
                    if (row < 0 || row >= w->height) continue; \
                    EBBTIDE_EACH (npy_intp k = first; k < end; k++) target[k] += window[i * run + k]; \
                } \
            } \
        return (const char *)(rows + (to - from) * w->columns * area); \
    }
DEFINE_ADD_BACK(f, float)
DEFINE_ADD_BACK(d, double)

static inline ebbtide_add_back ebbtide_add_back_of(char letter) {
    return letter == 'f' ? ebbtide_add_back_f : letter == 'd' ? ebbtide_add_back_d : NULL;
}

/* Add elements to others. */
typedef void (*ebbtide_add_all)(char *, const char *, npy_intp);

#define DEFINE_ADD_ALL(t, T) \
    EBBTIDE_WIDE static void ebbtide_add_all_##t(char *into, const char *of, npy_intp count) { \
        T *sums = (T *)into; \
        const T *x = (const T *)of; \
        EBBTIDE_EACH (npy_intp k = 0; k < count; k++) sums[k] += x[k]; \
    }
DEFINE_ADD_ALL(f, float)
DEFINE_ADD_ALL(d, double)

static inline ebbtide_add_all ebbtide_add_all_of(char letter) {
    return letter == 'f' ? ebbtide_add_all_f : letter == 'd' ? ebbtide_add_all_d : NULL;
}

/* Windows of an image by their largest elements: what is read, and where it goes. */
typedef void (*ebbtide_pool)(const ebbtide_windows *, const char *, const char *, char *, const char *);

/*
The largest of two, as NumPy's maximum: NaN stays, of equal ones it is the second. All rows of a window come first, then
its columns.
*/
#define DEFINE_POOL(t, T) \
    /* The elements at one place of some windows of a row, side by side. */ \
    static inline const T *ebbtide_side_##t( \
        const ebbtide_windows *w, const T *line, npy_intp first, npy_intp count, const char *last, T *side) { \
        const npy_intp pixel = w->channels * (npy_intp)sizeof(T); \
        if (w->stride_width == 1 || count == 1) return line + first * w->stride_width * w->channels; \
        for (npy_intp x = 0; x < count; x++) \
            ebbtide_copy_run((char *)(side + x * w->channels), \
                             (const char *)(line + (first + x) * w->stride_width * w->channels), pixel, last); \
        return side; \
    } \
    static inline void ebbtide_larger_##t(T *found, const T *x, npy_intp count) { \
        EBBTIDE_EACH (npy_intp k = 0; k < count; k++) \
            found[k] = ebbtide_above_##t(found[k], x[k]) || found[k] != found[k] ? found[k] : x[k]; \
    } \
    static inline void ebbtide_here_##t(uint8_t *places, const T *x, const T *largest, uint8_t place, npy_intp count) { \
        EBBTIDE_EACH (npy_intp k = 0; k < count; k++) places[k] = x[k] == largest[k] ? place : places[k]; \
    } \
    static inline void ebbtide_largest_of_##t( \
        const ebbtide_windows *w, const T *top, npy_intp first, npy_intp count, const char *last, T *found, T *column, \
        T *side) { \
        const npy_intp n = count * w->channels, line = w->width * w->channels; \
        for (npy_intp j = 0; j < w->window_width; j++) { \
            T *into = j ? column : found; \
            for (npy_intp i = 0; i < w->window_height; i++) { \
                const T *x = ebbtide_side_##t(w, top + i * line + j * w->channels, first, count, last, side); \
                if (i == 0) memcpy(into, x, (size_t)n * sizeof(T)); \
                else ebbtide_larger_##t(into, x, n); \
            } \
            if (j) ebbtide_larger_##t(found, column, n); \
        } \
    } \
    EBBTIDE_WIDE static void ebbtide_pool_##t( \
        const ebbtide_windows *w, const char *image, const char *last, char *target, const char *unused, int wants_places) { \
        T found[EBBTIDE_SIDE + 16], column[EBBTIDE_SIDE + 16], side[EBBTIDE_SIDE + 16]; \
        const npy_intp most = EBBTIDE_SIDE / w->channels, line = w->width * w->channels; \
        (void)unused; \
        for (npy_intp y = 0; y < w->rows; y++) { \
            const T *top = (const T *)image + y * w->stride_height * line; \
            for (npy_intp x = 0; x < w->columns; x += most) { \
                const npy_intp count = w->columns - x < most ? w->columns - x : most, n = count * w->channels; \
                const npy_intp at = (y * w->columns + x) * w->channels; \
                ebbtide_largest_of_##t(w, top, x, count, last, found, column, side); \
                if (!wants_places) { \
                    memcpy((T *)target + at, found, (size_t)n * sizeof(T)); \
                    continue; \
                } \
                memset(target + at, 0, (size_t)n); \
                for (npy_intp k = w->window_height * w->window_width - 1; k >= 0; k--) { \
                    const T *part = top + k / w->window_width * line + k % w->window_width * w->channels; \
                    const T *z = ebbtide_side_##t(w, part, x, count, last, side); \
                    ebbtide_here_##t((uint8_t *)target + at, z, found, (uint8_t)k, n); \
                } \
            } \
        } \
    } \
    static void ebbtide_largest_##t( \
        const ebbtide_windows *w, const char *image, const char *last, char *target, const char *unused) { \
        ebbtide_pool_##t(w, image, last, target, unused, 0); \
    } \
    static void ebbtide_places_##t( \
        const ebbtide_windows *w, const char *image, const char *last, char *target, const char *unused) { \
        ebbtide_pool_##t(w, image, last, target, unused, 1); \
    } \
    /* Add an element for each window where its largest one was, the last window first. */ \
    static void ebbtide_spread_##t( \
        const ebbtide_windows *w, const char *values, const char *last, char *image, const char *places) { \
        const npy_intp line = w->width * w->channels; \
        npy_intp offsets[256]; \
        (void)last; \
        for (npy_intp k = 0; k < w->window_height * w->window_width; k++) \
            offsets[k] = k / w->window_width * line + k % w->window_width * w->channels; \
        memset(image, 0, (size_t)(w->height * line) * sizeof(T)); \
        for (npy_intp y = w->rows - 1; y >= 0; y--) \
            for (npy_intp x = w->columns - 1; x >= 0; x--) { \
                const npy_intp at = (y * w->columns + x) * w->channels; \
                T *corner = (T *)image + y * w->stride_height * line + x * w->stride_width * w->channels; \
                const T *g = (const T *)values + at; \
                const uint8_t *where = (const uint8_t *)places + at; \
                for (npy_intp c = 0; c < w->channels; c++) corner[offsets[where[c]] + c] += g[c]; \
            } \
    }
DEFINE_POOL(f, float)
DEFINE_POOL(d, double)

static inline ebbtide_pool ebbtide_pool_of(const char *name, char letter) {
    const int wide = letter == 'd';
    if (letter != 'f' && letter != 'd') return NULL;
    if (!strcmp(name, "largest")) return wide ? ebbtide_largest_d : ebbtide_largest_f;
    if (!strcmp(name, "places")) return wide ? ebbtide_places_d : ebbtide_places_f;
    if (!strcmp(name, "spread")) return wide ? ebbtide_spread_d : ebbtide_spread_f;
    return NULL;
}

#endif
