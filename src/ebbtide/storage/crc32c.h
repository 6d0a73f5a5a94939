/*
 * CRC-32C by carry-less multiplication, 32 or 64 bytes at a time (x86-64 with vpclmulqdq, and with AVX-512).
 *
 * A message is a polynomial of bits, the first bit its highest power; the checksum is what it leaves modulo P. So 128
 * bits that stand n bits before 128 others may be folded into those: their first half times x^(n+64), their second half
 * times x^n, each power modulo P. Bits are stored in reverse order, in which a product is one power of x too high, and a
 * constant of 32 bits, moved up by one, 31 powers: the constants are x^(n+32) and x^(n-32). Four registers go through
 * the memory side by side, as a product is ready after four cycles; in the end they are folded into one of 128 bits,
 * which the crc32 instruction divides. Of what is in a cache registers of 256 bits take 27 GB/s, of 512 bits 51.
 *
 * Source: Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel, 2009.
 */

#ifndef EBBTIDE_CRC32C_H
#define EBBTIDE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#define EBBTIDE_TARGET __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))
#define EBBTIDE_WIDE_TARGET __attribute__((target("avx512f,avx2,vpclmulqdq,pclmul,sse4.2")))

/* x^k modulo P, bits reversed and moved up by one, for each distance in bits: k = distance + 32, distance - 32. */
#define EBBTIDE_FOLD_2048 0x0dcb17aa4ULL, 0x0b9e02b86ULL
#define EBBTIDE_FOLD_1024 0x06992cea2ULL, 0x00d3b6092ULL
#define EBBTIDE_FOLD_512 0x0740eef02ULL, 0x09e4addf8ULL
#define EBBTIDE_FOLD_128 0x0f20c0dfeULL, 0x14cd00bd6ULL

static inline int crc32c_is_there(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("sse4.2");
}

static inline int crc32c_is_wide(void) {
    return crc32c_is_there() && __builtin_cpu_supports("avx512f");
}

EBBTIDE_TARGET static inline __m256i crc32c_load(const unsigned char *from) {
    return _mm256_loadu_si256((const __m256i *)from);
}

EBBTIDE_TARGET static inline __m256i crc32c_fold_wide(__m256i above, __m256i constants, __m256i next) {
    const __m256i first = _mm256_clmulepi64_epi128(above, constants, 0x00);
    const __m256i second = _mm256_clmulepi64_epi128(above, constants, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(first, second), next);
}

EBBTIDE_TARGET static inline __m128i crc32c_fold(__m128i above, __m128i constants, __m128i next) {
    const __m128i first = _mm_clmulepi64_si128(above, constants, 0x00);
    const __m128i second = _mm_clmulepi64_si128(above, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

/* The rest of what 128 bits leave. */
EBBTIDE_TARGET static inline uint32_t crc32c_divide(__m128i sum) {
    const uint64_t first = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(sum, 0));
    return (uint32_t)_mm_crc32_u64(first, (uint64_t)_mm_extract_epi64(sum, 1));
}

EBBTIDE_WIDE_TARGET static inline __m512i crc32c_fold_widest(__m512i above, __m512i constants, __m512i next) {
    const __m512i first = _mm512_clmulepi64_epi128(above, constants, 0x00);
    const __m512i second = _mm512_clmulepi64_epi128(above, constants, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* the sum of the three */
}

/* Extends a checksum, without its inversions, by a multiple of 256 bytes, at least 256. */
EBBTIDE_WIDE_TARGET static uint32_t crc32c_extend_wide(uint32_t crc, const unsigned char *from, size_t count) {
    const uint64_t far[2] = {EBBTIDE_FOLD_2048}, between[2] = {EBBTIDE_FOLD_512}, near[2] = {EBBTIDE_FOLD_128};
    const __m512i wide = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)far));
    const __m512i middle = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)between));
    const __m128i narrow = _mm_loadu_si128((const __m128i *)near);
    const unsigned char *end = from + count;
    __m512i sums[4];
    for (int k = 0; k < 4; k++) {
        sums[k] = _mm512_loadu_si512(from + 64 * k);
    }
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (from += 256; from < end; from += 256) {
#pragma GCC unroll 4 /* else the sums are in memory, at 0.75 of the speed */
        for (int k = 0; k < 4; k++) {
            sums[k] = crc32c_fold_widest(sums[k], wide, _mm512_loadu_si512(from + 64 * k));
        }
    }
    for (int k = 1; k < 4; k++) {
        sums[k] = crc32c_fold_widest(sums[k - 1], middle, sums[k]);
    }
    __m128i sum = _mm512_castsi512_si128(sums[3]);
    sum = crc32c_fold(sum, narrow, _mm512_extracti32x4_epi32(sums[3], 1));
    sum = crc32c_fold(sum, narrow, _mm512_extracti32x4_epi32(sums[3], 2));
    return crc32c_divide(crc32c_fold(sum, narrow, _mm512_extracti32x4_epi32(sums[3], 3)));
}

/* Extends a checksum, without its inversions, by a multiple of 128 bytes, at least 128. */
EBBTIDE_TARGET static inline uint32_t crc32c_extend_blocks(uint32_t crc, const unsigned char *from, size_t count) {
    const uint64_t far[2] = {EBBTIDE_FOLD_1024}, near[2] = {EBBTIDE_FOLD_128};
    const __m256i wide = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)far));
    const __m128i narrow = _mm_loadu_si128((const __m128i *)near);
    const unsigned char *end = from + count;
    __m256i sums[4];
    for (int k = 0; k < 4; k++) {
        sums[k] = crc32c_load(from + 32 * k);
    }
    sums[0] = _mm256_xor_si256(sums[0], _mm256_set_epi64x(0, 0, 0, (long long)crc));
    for (from += 128; from < end; from += 128) {
        /* Half of a page ahead, which the processor does not find by itself as early. */
        _mm_prefetch((const char *)from + 2048, _MM_HINT_T0);
        _mm_prefetch((const char *)from + 2112, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            sums[k] = crc32c_fold_wide(sums[k], wide, crc32c_load(from + 32 * k));
        }
    }
    __m128i sum = _mm256_castsi256_si128(sums[0]);
    sum = crc32c_fold(sum, narrow, _mm256_extracti128_si256(sums[0], 1));
    for (int k = 1; k < 4; k++) {
        sum = crc32c_fold(sum, narrow, _mm256_castsi256_si128(sums[k]));
        sum = crc32c_fold(sum, narrow, _mm256_extracti128_si256(sums[k], 1));
    }
    return crc32c_divide(sum);
}

/* Extends a checksum, without its inversions, by as many bytes, eight at a time. */
EBBTIDE_TARGET static uint32_t crc32c_extend_few(uint64_t crc, const unsigned char *from, size_t count) {
    for (; count >= 8; from += 8, count -= 8) {
        uint64_t next;
        memcpy(&next, from, 8);
        crc = _mm_crc32_u64(crc, next);
    }
    for (; count; from++, count--) {
        crc = _mm_crc32_u8((uint32_t)crc, *from);
    }
    return (uint32_t)crc;
}

EBBTIDE_TARGET static uint32_t crc32c_extend(uint32_t checksum, const unsigned char *from, size_t count, int is_wide) {
    uint32_t crc = ~checksum;
    is_wide = is_wide && count >= 256;
    const size_t blocks = is_wide ? count / 256 * 256 : count / 128 * 128;
    if (blocks) {
        crc = is_wide ? crc32c_extend_wide(crc, from, blocks) : crc32c_extend_blocks(crc, from, blocks);
    }
    return ~crc32c_extend_few(crc, from + blocks, count - blocks);
}

#else

static inline int crc32c_is_there(void) {
    return 0;
}

static inline int crc32c_is_wide(void) {
    return 0;
}

static uint32_t crc32c_extend(uint32_t checksum, const unsigned char *from, size_t count, int is_wide) {
    (void)from;
    (void)count;
    (void)is_wide;
    return checksum;
}

#endif

#endif
