/* SHA-256 (FIPS 180-4), by the processor's instructions where it has them. */
#ifndef CUTS_SHA256_H
#define CUTS_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

typedef struct sha256 {
    uint32_t state[8];
    uint64_t nbytes;
    uint8_t pending[SHA256_BLOCK]; /* the beginning of an incomplete block */
} sha256;

void sha256_begin(sha256 *digest);
void sha256_add(sha256 *digest, const void *bytes, size_t nbytes);
void sha256_end(sha256 *digest, uint8_t result[SHA256_BYTES]);

#endif
