#include "sha256.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_SHA_INSTRUCTIONS 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define HAS_SHA_INSTRUCTIONS 0
#endif

static const uint32_t ROUND_CONSTANTS[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t word, int bits) {
    return word >> bits | word << (32 - bits);
}

static uint32_t big_endian(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static void expand(uint32_t words[64], const uint8_t *block) {
    for (int i = 0; i < 16; i++) words[i] = big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];
        uint32_t low = rotate(a, 7) ^ rotate(a, 18) ^ a >> 3, high = rotate(b, 17) ^ rotate(b, 19) ^ b >> 10;
        words[i] = words[i - 16] + low + words[i - 7] + high;
    }
}

static void compress_plain(uint32_t state[8], const uint8_t *block, size_t count) {
    for (; count; count--, block += SHA256_BLOCK) {
        uint32_t words[64];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        expand(words, block);
#pragma GCC unroll 8
        for (int i = 0; i < 64; i++) {
            uint32_t high = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25), choice = (e & f) ^ (~e & g);
            uint32_t low = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22), majority = (a & b) ^ (a & c) ^ (b & c);
            uint32_t sum = h + high + choice + ROUND_CONSTANTS[i] + words[i];
            h = g, g = f, f = e, e = d + sum;
            d = c, c = b, b = a, a = sum + low + majority;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#if HAS_SHA_INSTRUCTIONS
static int has_sha_instructions(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) && __get_cpuid(1, &a, &b, &c, &d) && (c >> 19 & 1);
}

/* The instructions hold the state as (a, b, e, f) and (c, d, g, h). Four rounds take four words of the schedule, which
 * two further instructions derive from the sixteen before. */
__attribute__((target("sha,sse4.1"))) static void compress_fast(uint32_t state[8], const uint8_t *block, size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
    for (; count; count--, block += SHA256_BLOCK) {
        const __m128i first = abef, second = cdgh;
        __m128i words[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i now;
            if (i < 4) {
                now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
            } else {
                __m128i next = _mm_alignr_epi8(words[(i - 1) & 3], words[(i - 2) & 3], 4);
                now = _mm_sha256msg1_epu32(words[i & 3], words[(i - 3) & 3]);
                now = _mm_sha256msg2_epu32(_mm_add_epi32(now, next), words[(i - 1) & 3]);
            }
            words[i & 3] = now;
            __m128i sum = _mm_add_epi32(now, _mm_load_si128((const __m128i *)(ROUND_CONSTANTS + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, first);
        cdgh = _mm_add_epi32(cdgh, second);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

static void compress(uint32_t state[8], const uint8_t *block, size_t count) {
#if HAS_SHA_INSTRUCTIONS
    if (has_sha_instructions()) {
        compress_fast(state, block, count);
        return;
    }
#endif
    compress_plain(state, block, count);
}

void sha256_begin(sha256 *digest) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(digest->state, initial, sizeof initial);
    digest->nbytes = 0;
}

void sha256_add(sha256 *digest, const void *bytes, size_t nbytes) {
    const uint8_t *next = bytes;
    size_t held = digest->nbytes % SHA256_BLOCK;
    digest->nbytes += nbytes;
    if (held) {
        size_t taken = SHA256_BLOCK - held < nbytes ? SHA256_BLOCK - held : nbytes;
        memcpy(digest->pending + held, next, taken);
        next += taken;
        nbytes -= taken;
        if (held + taken < SHA256_BLOCK) return;
        compress(digest->state, digest->pending, 1);
    }
    compress(digest->state, next, nbytes / SHA256_BLOCK);
    if (nbytes % SHA256_BLOCK)
        memcpy(digest->pending, next + nbytes / SHA256_BLOCK * SHA256_BLOCK, nbytes % SHA256_BLOCK);
}

void sha256_end(sha256 *digest, uint8_t result[SHA256_BYTES]) {
    uint8_t padding[SHA256_BLOCK + 8] = {0x80};
    uint64_t bits = 8 * digest->nbytes;
    size_t zeros = (2 * SHA256_BLOCK - 8 - digest->nbytes % SHA256_BLOCK) % SHA256_BLOCK;
    if (!zeros) zeros = SHA256_BLOCK;
    for (int i = 0; i < 8; i++) padding[zeros + i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(digest, padding, zeros + 8);
    for (int i = 0; i < SHA256_BYTES; i++) result[i] = (uint8_t)(digest->state[i / 4] >> (24 - 8 * (i % 4)));
}
