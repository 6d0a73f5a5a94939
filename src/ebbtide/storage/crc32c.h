/*
 * CRC-32C by carry-less multiplication, 32 bytes at a time (x86-64 with vpclmulqdq).
 *
 * A message is a polynomial of bits, the first bit its highest power; the checksum is what it leaves modulo P. So 128
 * bits that stand n bits before 128 others may be folded into those: their first half times x^(n+64), their second half
 * times x^n, each power modulo P. Bits are stored in reverse order, in which a product is one power of x too high, and a
 * constant of 32 bits, moved up by one, 31 powers: the constants are x^(n+32) and x^(n-32). Four registers of 256 bits
 * go through the memory side by side, as a product is ready after four cycles; in the end they are folded into one of
 * 128 bits, which the crc32 instruction divides. Memory of 32 MiB is read at the speed of reading it.
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

/* x^k modulo P, bits reversed and moved up by one, for each distance in bits: k = distance + 32, distance - 32. */
#define EBBTIDE_FOLD_1024 0x06992cea2ULL, 0x00d3b6092ULL
#define EBBTIDE_FOLD_128 0x0f20c0dfeULL, 0x14cd00bd6ULL

static inline int crc32c_is_there(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("sse4.2");
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
    const uint64_t first = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(sum, 0));
    return (uint32_t)_mm_crc32_u64(first, (uint64_t)_mm_extract_epi64(sum, 1));
}

EBBTIDE_TARGET static uint32_t crc32c_extend(uint32_t checksum, const unsigned char *from, size_t count) {
    uint64_t crc = ~checksum;
    const size_t blocks = count / 128 * 128;
    if (blocks) {
        crc = crc32c_extend_blocks((uint32_t)crc, from, blocks);
        from += blocks;
        count -= blocks;
    }
    for (; count >= 8; from += 8, count -= 8) {
        uint64_t next;
        memcpy(&next, from, 8);
        crc = _mm_crc32_u64(crc, next);
    }
    for (; count; from++, count--) {
        crc = _mm_crc32_u8((uint32_t)crc, *from);
    }
    return ~(uint32_t)crc;
}

#else

static inline int crc32c_is_there(void) {
    return 0;
}

static uint32_t crc32c_extend(uint32_t checksum, const unsigned char *from, size_t count) {
    (void)from;
    (void)count;
    return checksum;
}

#endif

#endif
