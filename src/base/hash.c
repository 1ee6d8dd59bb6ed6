/*
 * A 64-bit hash for fingerprints (weights, agreement, labels), eight bytes at a time in two independent
 * chains. Input is read as little-endian words, so fingerprints are the same on every machine.
 */
#include "base_impl.h"

#include <endian.h>

static uint64_t load(const unsigned char *p, size_t bytes)
{
    uint64_t v = 0;

    memcpy(&v, p, bytes);
    return le64toh(v);
}

static uint64_t absorb(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9fb21c651e98df25u;
    return h ^ (h >> 32);
}

uint64_t hvt__hash(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t a = hvt__mix(h), b = ~a;
    size_t i;

    for (i = 0; i + 16 <= bytes; i += 16) {
        a = absorb(a, load(p + i, 8));
        b = absorb(b, load(p + i + 8, 8));
    }
    if (i + 8 <= bytes) {
        a = absorb(a, load(p + i, 8));
        i += 8;
    }
    b = absorb(b, i < bytes ? load(p + i, bytes - i) : 0); /* data may be NULL without bytes */
    return hvt__mix(a ^ hvt__mix(b ^ bytes));
}

uint64_t hvt__hash_text(uint64_t h, const char *text)
{
    return hvt__hash(h, text, strlen(text));
}
