/*
Inner loops that are not those of a ufunc: casts that lose nothing but digits, moves, and the choice between two values.

They have the form of NumPy's loops: addresses, the number of elements, strides, and data that they do not use.
*/
#ifndef EBBTIDE_LOOPS_H
#define EBBTIDE_LOOPS_H

#include <complex.h>
#include <stdint.h>
#include <string.h>
#include <numpy/npy_common.h>

#undef I /* of complex.h: a letter of a type here */

typedef void (*ebbtide_loop)(char **, const npy_intp *, const npy_intp *, void *);
typedef struct { uint64_t halves[2]; } ebbtide_16;

/* Each type to which there are casts. */
#define TO_EACH(DO, from, FROM) \
    DO(from, FROM, b, int8_t) DO(from, FROM, h, int16_t) DO(from, FROM, i, int32_t) DO(from, FROM, l, int64_t) \
    DO(from, FROM, f, float) DO(from, FROM, d, double) DO(from, FROM, F, float complex) \
    DO(from, FROM, D, double complex)
/* Integers go anywhere; what is not whole stays so. */
#define EACH_CAST(DO) \
    TO_EACH(DO, t, uint8_t) TO_EACH(DO, b, int8_t) TO_EACH(DO, h, int16_t) TO_EACH(DO, i, int32_t) \
    TO_EACH(DO, l, int64_t) TO_EACH(DO, B, uint8_t) TO_EACH(DO, H, uint16_t) TO_EACH(DO, I, uint32_t) \
    TO_EACH(DO, L, uint64_t) \
    DO(f, float, f, float) DO(f, float, d, double) DO(f, float, F, float complex) DO(f, float, D, double complex) \
    DO(d, double, f, float) DO(d, double, d, double) DO(d, double, F, float complex) DO(d, double, D, double complex) \
    DO(F, float complex, F, float complex) DO(F, float complex, D, double complex) \
    DO(D, double complex, F, float complex) DO(D, double complex, D, double complex)

#define DEFINE_CAST(f, F, t, T) \
    static inline void ebbtide_cast_##f##_##t(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        const npy_intp n = *count; \
        (void)data; \
        if (steps[0] == sizeof(F) && steps[1] == sizeof(T)) { /* what the compiler can do in wide registers */ \
            const F *source = (const F *)args[0]; \
            T *target = (T *)args[1]; \
            for (npy_intp k = 0; k < n; k++) target[k] = (T)source[k]; \
            return; \
        } \
        for (npy_intp k = 0; k < n; k++) \
            *(T *)(args[1] + k * steps[1]) = (T)*(const F *)(args[0] + k * steps[0]); \
    }
EACH_CAST(DEFINE_CAST)

/* By the size of the elements. */
#define EACH_SIZE(DO) DO(1, uint8_t) DO(2, uint16_t) DO(4, uint32_t) DO(8, uint64_t) DO(16, ebbtide_16)

#define DEFINE_MOVE(size, T) \
    static inline void ebbtide_move_##size(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        (void)data; \
        if (steps[0] == size && steps[1] == size) { \
            memmove(args[1], args[0], (size_t)*count * size); \
            return; \
        } \
        for (npy_intp k = 0; k < *count; k++) \
            *(T *)(args[1] + k * steps[1]) = *(const T *)(args[0] + k * steps[0]); \
    }
EACH_SIZE(DEFINE_MOVE)

#define DEFINE_CHOICE(size, T) \
    static inline void ebbtide_choose_##size(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        (void)data; \
        for (npy_intp k = 0; k < *count; k++) { \
            const T one = *(const T *)(args[1] + k * steps[1]), other = *(const T *)(args[2] + k * steps[2]); \
            *(T *)(args[3] + k * steps[3]) = args[0][k * steps[0]] ? one : other; \
        } \
    }
EACH_SIZE(DEFINE_CHOICE)

/* Return the cast between two types of NumPy; NULL if there is none. */
static inline ebbtide_loop ebbtide_cast(char from, char to) {
    from = from == '?' ? 't' : from == 'q' ? 'l' : from == 'Q' ? 'L' : from;
    to = to == 'q' ? 'l' : to;
#define FIND_CAST(f, F, t, T) if (from == #f[0] && to == #t[0]) return ebbtide_cast_##f##_##t;
    EACH_CAST(FIND_CAST)
    return NULL;
}

/* Return the loop that moves elements of a size; NULL if there is none. */
static inline ebbtide_loop ebbtide_move(int size) {
#define FIND_MOVE(bytes, T) if (size == bytes) return ebbtide_move_##bytes;
    EACH_SIZE(FIND_MOVE)
    return NULL;
}

/* Return the loop that chooses between elements of a size; NULL if there is none. */
static inline ebbtide_loop ebbtide_choice(int size) {
#define FIND_CHOICE(bytes, T) if (size == bytes) return ebbtide_choose_##bytes;
    EACH_SIZE(FIND_CHOICE)
    return NULL;
}

#endif
