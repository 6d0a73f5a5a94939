/*
Products of small matrices, each element as a chain of fused multiply-adds in the order of its terms.

Without AVX-512 OpenBLAS copies both operands of any product before it multiplies, and looks up which kernel it has. Of
220 products of random sizes with 2^10 to 2^18 multiplications half took at least 1.47 times as long in NumPy 2.4.6, one
twentieth less time (AMD Zen 3, one thread); 32 x 64 x 48 in float32 takes 2.1 us at its best, at 95 Gflop/s.
*/
#ifndef EBBTIDE_PRODUCTS_H
#define EBBTIDE_PRODUCTS_H

#include <stddef.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* So many rows of the second operand are used for all rows of the first one before the next ones: they stay in the cache. */
enum { PIECE = 256 };
#define TURN static inline __attribute__((always_inline, target("avx2,fma"))) void

/* Write a square of elements, of which each column is given, row by row. */
TURN ebbtide_f_turn(const float *const *columns, const long at, float *out, const long row) {
    __m256 x[8], y[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) x[j] = _mm256_loadu_ps(columns[j] + at);
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += 2) {
        y[j] = _mm256_unpacklo_ps(x[j], x[j + 1]);
        y[j + 1] = _mm256_unpackhi_ps(x[j], x[j + 1]);
    }
#pragma GCC unroll 2
    for (int j = 0; j < 8; j += 4) {
        x[j] = _mm256_shuffle_ps(y[j], y[j + 2], 0x44);
        x[j + 1] = _mm256_shuffle_ps(y[j], y[j + 2], 0xee);
        x[j + 2] = _mm256_shuffle_ps(y[j + 1], y[j + 3], 0x44);
        x[j + 3] = _mm256_shuffle_ps(y[j + 1], y[j + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(out + j * row, _mm256_permute2f128_ps(x[j], x[j + 4], 0x20));
        _mm256_storeu_ps(out + (j + 4) * row, _mm256_permute2f128_ps(x[j], x[j + 4], 0x31));
    }
}

TURN ebbtide_d_turn(const double *const *columns, const long at, double *out, const long row) {
    __m256d x[4], y[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) x[j] = _mm256_loadu_pd(columns[j] + at);
#pragma GCC unroll 2
    for (int j = 0; j < 4; j += 2) {
        y[j] = _mm256_unpacklo_pd(x[j], x[j + 1]);
        y[j + 1] = _mm256_unpackhi_pd(x[j], x[j + 1]);
    }
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
        _mm256_storeu_pd(out + j * row, _mm256_permute2f128_pd(y[j], y[j + 2], 0x20));
        _mm256_storeu_pd(out + (j + 2) * row, _mm256_permute2f128_pd(y[j], y[j + 2], 0x31));
    }
}
#undef TURN

/* What is done with the elements of a product before they are written: a sum, and the larger of it and a number. */
enum { EBBTIDE_ADD, EBBTIDE_ADD_MAXIMUM };

#define REAL float
#define VECTOR __m256
#define LANES 8
#define NARROW 7
#define NAME(what) ebbtide_f_##what
#define ZERO _mm256_setzero_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SPREAD _mm256_broadcast_ss
#define MULTIPLY_ADD _mm256_fmadd_ps
#define ADD _mm256_add_ps
#define SET _mm256_set1_ps
#define COMPARE _mm256_cmp_ps
#define CHOOSE _mm256_blendv_ps
#define EITHER _mm256_or_ps
#define LAST_FILLS(x, columns)                                                                                         \
    _mm256_permutevar8x32_ps(x, _mm256_min_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((columns)-1)))
#include "tiles.h"
#undef REAL
#undef VECTOR
#undef LANES
#undef NARROW
#undef NAME
#undef ZERO
#undef LOAD
#undef STORE
#undef SPREAD
#undef MULTIPLY_ADD
#undef ADD
#undef SET
#undef COMPARE
#undef CHOOSE
#undef EITHER
#undef LAST_FILLS

#define REAL double
#define VECTOR __m256d
#define LANES 4
#define NARROW 2
#define NAME(what) ebbtide_d_##what
#define ZERO _mm256_setzero_pd
#define LOAD _mm256_loadu_pd
#define STORE _mm256_storeu_pd
#define SPREAD _mm256_broadcast_sd
#define MULTIPLY_ADD _mm256_fmadd_pd
#define ADD _mm256_add_pd
#define SET _mm256_set1_pd
#define COMPARE _mm256_cmp_pd
#define CHOOSE _mm256_blendv_pd
#define EITHER _mm256_or_pd
#define LAST_FILLS(x, columns)                                                                                         \
    _mm256_castps_pd(_mm256_permutevar8x32_ps(                                                                         \
        _mm256_castpd_ps(x), _mm256_min_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),                               \
                                              _mm256_add_epi32(_mm256_set1_epi32(2 * (columns)-2),                     \
                                                               _mm256_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1)))))
#include "tiles.h"

/* Whether the processor has what is needed, and not the wider vectors for which OpenBLAS has small products itself. */
static int ebbtide_has_small_products(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && !__builtin_cpu_supports("avx512f");
}
#else
static int ebbtide_has_small_products(void) { return 0; }
enum { EBBTIDE_ADD, EBBTIDE_ADD_MAXIMUM };
typedef struct { int kind; const float *added; float least; } ebbtide_f_end;
typedef struct { int kind; const double *added; double least; } ebbtide_d_end;
static void ebbtide_f_product(long m, long k, long n, const float *a, long ar, long ac, const float *b, long br, long bc,
                              float *c, long cr, const ebbtide_f_end *end) {}
static void ebbtide_d_product(long m, long k, long n, const double *a, long ar, long ac, const double *b, long br,
                              long bc, double *c, long cr, const ebbtide_d_end *end) {}
#endif
#endif
