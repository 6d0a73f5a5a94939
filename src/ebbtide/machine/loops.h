/*
Inner loops that are not those of a ufunc: casts that lose nothing but digits, moves, and the choice between two values.

They have the form of NumPy's loops: addresses, the number of elements, strides, and data that they do not use. Two of
them are in the place of loops of NumPy, with their bits, where those take long; and there is what tells that a loop has
failed.
*/
#ifndef EBBTIDE_LOOPS_H
#define EBBTIDE_LOOPS_H

#include <complex.h>
#include <fenv.h>
#include <stdint.h>
#include <string.h>
#include <numpy/npy_common.h>
#include "exponential.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#undef I /* of complex.h: a letter of a type here */

typedef struct { uint64_t halves[2]; } ebbtide_16;

enum { EBBTIDE_ERRORS = FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INVALID };

/*
Return the flags of errors that are set now, and clear them. Those of plain arithmetic are all in one register, which
is read in 6 ns; `fetestexcept` looks at two and takes 13, after each loop. `extended`: errors may be in the other one,
where x87 and `feraiseexcept` put them.
*/
static inline int ebbtide_flags(int extended) {
    int found;
#if defined(__x86_64__)
    if (!extended) {
        const unsigned int state = _mm_getcsr();
        if (state & EBBTIDE_ERRORS) _mm_setcsr(state & ~0x3fu);
        return state & EBBTIDE_ERRORS;
    }
#endif
    (void)extended;
    found = fetestexcept(EBBTIDE_ERRORS);
    if (found) feclearexcept(FE_ALL_EXCEPT);
    return found;
}

/* Wide registers where the processor has them: rounding is that of each operation, so the bits are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define EBBTIDE_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define EBBTIDE_WIDE
#endif
/* Operands lie where the result does, or apart from it. */
#if defined(__GNUC__) && !defined(__clang__)
#define EBBTIDE_EACH _Pragma("GCC ivdep") for
#else
#define EBBTIDE_EACH for
#endif

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
        if (steps[0] == 0 && steps[1] == size) { \
            const T value = *(const T *)args[0]; \
            T *target = (T *)args[1]; \
            for (npy_intp k = 0; k < *count; k++) target[k] = value; \
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

/*
The larger or smaller one, and the sign, as NumPy computes them: NaN stays, of equal ones it is the second. NumPy's own
loops take 0.3 to 0.5 ns for each number where one operand is a number, and for each sign; these take 0.05.
*/
#define DEFINE_ABOVE(t, T) \
    static inline int ebbtide_above_##t(T x, T y) { \
        const int known = !__builtin_isunordered(x, y); \
        const T a = known ? x : (T)0, b = known ? y : (T)0; /* GCC's comparisons in wide registers fail on NaN */ \
        return a > b; \
    } \
    static inline int ebbtide_below_##t(T x, T y) { return ebbtide_above_##t(y, x); }
DEFINE_ABOVE(f, float)
DEFINE_ABOVE(d, double)

#define DEFINE_EXTREME(name, t, T, compare) \
    EBBTIDE_WIDE static void ebbtide_##name##_##t(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        const npy_intp n = *count; \
        const npy_intp size = sizeof(T); \
        (void)data; \
        if (steps[0] == size && steps[1] == 0 && steps[2] == size) { \
            const T *x = (const T *)args[0], y = *(const T *)args[1]; \
            T *out = (T *)args[2]; \
            EBBTIDE_EACH (npy_intp k = 0; k < n; k++) out[k] = compare(x[k], y) || x[k] != x[k] ? x[k] : y; \
            return; \
        } \
        if (steps[0] == size && steps[1] == size && steps[2] == size) { \
            const T *x = (const T *)args[0], *y = (const T *)args[1]; \
            T *out = (T *)args[2]; \
            EBBTIDE_EACH (npy_intp k = 0; k < n; k++) out[k] = compare(x[k], y[k]) || x[k] != x[k] ? x[k] : y[k]; \
            return; \
        } \
        for (npy_intp k = 0; k < n; k++) { \
            const T x = *(const T *)(args[0] + k * steps[0]), y = *(const T *)(args[1] + k * steps[1]); \
            *(T *)(args[2] + k * steps[2]) = compare(x, y) || x != x ? x : y; \
        } \
    }
DEFINE_EXTREME(maximum, f, float, ebbtide_above_f)
DEFINE_EXTREME(maximum, d, double, ebbtide_above_d)
DEFINE_EXTREME(minimum, f, float, ebbtide_below_f)
DEFINE_EXTREME(minimum, d, double, ebbtide_below_d)

#define DEFINE_SIGN(t, T, copysign) \
    static inline T ebbtide_sign_of_##t(T x) { \
        const T sign = x == 0 ? (T)0 : copysign((T)1, x); \
        return x != x ? x : sign; \
    } \
    EBBTIDE_WIDE static void ebbtide_sign_##t(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        const npy_intp n = *count; \
        (void)data; \
        if (steps[0] == sizeof(T) && steps[1] == sizeof(T)) { \
            const T *x = (const T *)args[0]; \
            T *out = (T *)args[1]; \
            EBBTIDE_EACH (npy_intp k = 0; k < n; k++) out[k] = ebbtide_sign_of_##t(x[k]); \
            return; \
        } \
        for (npy_intp k = 0; k < n; k++) \
            *(T *)(args[1] + k * steps[1]) = ebbtide_sign_of_##t(*(const T *)(args[0] + k * steps[0])); \
    }
DEFINE_SIGN(f, float, __builtin_copysignf)
DEFINE_SIGN(d, double, __builtin_copysign)

/*
The negative where NumPy 2.4.6 is wrong: it takes numbers of s bytes that lie s times s bytes apart for packed ones
if the results are not packed: doubles in a column of eight, floats in one of four. All else is left to NumPy's loop.
*/
#define DEFINE_NEGATIVE(t, T) \
    static void ebbtide_negative_##t(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        if (steps[0] != sizeof(T) * sizeof(T) || steps[1] == sizeof(T)) { \
            ((ebbtide_loop)data)(args, count, steps, NULL); \
            return; \
        } \
        for (npy_intp k = 0; k < *count; k++) *(T *)(args[1] + k * steps[1]) = -*(const T *)(args[0] + k * steps[0]); \
    }
DEFINE_NEGATIVE(f, float)
DEFINE_NEGATIVE(d, double)
DEFINE_NEGATIVE(four, uint32_t)
DEFINE_NEGATIVE(eight, uint64_t)

/* Return the loop that takes negatives of a type in the place of NumPy's; NULL where that is right. */
static inline ebbtide_loop ebbtide_negative(char letter) {
    if (letter == 'f') return ebbtide_negative_f;
    if (letter == 'd') return ebbtide_negative_d;
    if (letter == 'i' || letter == 'I') return ebbtide_negative_four;
    if (letter == 'q' || letter == 'Q') return ebbtide_negative_eight;
    if (letter == 'l' || letter == 'L') return sizeof(long) == 4 ? ebbtide_negative_four : ebbtide_negative_eight;
    return NULL;
}

/* What NumPy 2.4.6 asks of 16 numbers or more, isnan and its like, has wrong answers if they are not packed. */
static void ebbtide_question(char **args, const npy_intp *count, const npy_intp *steps, void *data) {
    enum { MOST = 256 };
    npy_bool answers[MOST];
    if (steps[1] == sizeof(npy_bool)) {
        ((ebbtide_loop)data)(args, count, steps, NULL);
        return;
    }
    for (npy_intp k = 0; k < *count; k += MOST) {
        const npy_intp some = *count - k < MOST ? *count - k : MOST, packed[2] = {steps[0], sizeof(npy_bool)};
        char *both[2] = {args[0] + k * steps[0], (char *)answers};
        ((ebbtide_loop)data)(both, &some, packed, NULL);
        for (npy_intp j = 0; j < some; j++) *(npy_bool *)(args[1] + (k + j) * steps[1]) = answers[j];
    }
}

/* Return the loop of ours in the place of one of NumPy, which it takes as its data; NULL if there is none. */
static inline ebbtide_loop ebbtide_instead(const char *name, char letter, ebbtide_loop loop, void *data) {
    const int wide = letter == 'd';
    if (!strncmp(name, "is", 2) || !strcmp(name, "signbit")) return data ? NULL : ebbtide_question;
    if (!strcmp(name, "negative")) return data ? NULL : ebbtide_negative(letter);
    if (letter != 'f' && letter != 'd') return NULL;
    if (!strcmp(name, "maximum")) return wide ? ebbtide_maximum_d : ebbtide_maximum_f;
    if (!strcmp(name, "minimum")) return wide ? ebbtide_minimum_d : ebbtide_minimum_f;
    if (!strcmp(name, "exp")) return ebbtide_exp(letter, loop, data);
    if (!strcmp(name, "sign")) return wide ? ebbtide_sign_d : ebbtide_sign_f;
    return NULL;
}

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
