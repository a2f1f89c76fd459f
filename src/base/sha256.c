/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for the proofs by which ranks authenticate. */
#include <string.h>

#include "src/base/base.h"

enum { BLOCK = 64 };

struct sha256 {
    uint32_t h[8];
    uint64_t bytes; /* hashed so far */
    unsigned char block[BLOCK];
};

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* One of 64 steps. The caller names the eight words, each time one further round. */
#define STEP(a, b, c, d, e, f, g, h, i)                                                            \
    do {                                                                                           \
        (h) += (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + (((e) & (f)) ^ (~(e) & (g))) +     \
               k[i] + w[i];                                                                        \
        (d) += (h);                                                                                \
        (h) += (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +                                    \
               (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));                                          \
    } while (0)

static void compress(struct sha256 *s, const unsigned char *p)
{
    uint32_t w[64];
    uint32_t *const v = s->h;
    uint32_t a = v[0], b = v[1], c = v[2], d = v[3], e = v[4], f = v[5], g = v[6], h = v[7];
    int i;

    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++) {
        const uint32_t x = w[i - 15], y = w[i - 2];

        w[i] = w[i - 16] + w[i - 7] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) +
               (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    for (i = 0; i < 64; i += 8) {
        STEP(a, b, c, d, e, f, g, h, i);
        STEP(h, a, b, c, d, e, f, g, i + 1);
        STEP(g, h, a, b, c, d, e, f, i + 2);
        STEP(f, g, h, a, b, c, d, e, i + 3);
        STEP(e, f, g, h, a, b, c, d, i + 4);
        STEP(d, e, f, g, h, a, b, c, i + 5);
        STEP(c, d, e, f, g, h, a, b, i + 6);
        STEP(b, c, d, e, f, g, h, a, i + 7);
    }
    v[0] += a, v[1] += b, v[2] += c, v[3] += d;
    v[4] += e, v[5] += f, v[6] += g, v[7] += h;
}

static void begin(struct sha256 *s)
{
    *s = (struct sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                               0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void take(struct sha256 *s, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    while (bytes > 0) {
        const size_t at = s->bytes % BLOCK;
        const size_t n = bytes < BLOCK - at ? bytes : BLOCK - at;

        if (n < BLOCK)
            memcpy(s->block + at, p, n);
        s->bytes += n;
        if (s->bytes % BLOCK == 0)
            compress(s, n < BLOCK ? s->block : p);
        p += n;
        bytes -= n;
    }
}

static void finish(struct sha256 *s, unsigned char digest[SW_DIGEST_BYTES])
{
    static const unsigned char padding[BLOCK] = {0x80};
    const uint64_t bits = s->bytes * 8;
    unsigned char length[8];
    int i;

    take(s, padding, 1 + (BLOCK + 55 - s->bytes % BLOCK) % BLOCK);
    for (i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    take(s, length, sizeof length);
    for (i = 0; i < SW_DIGEST_BYTES; i++)
        digest[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

static void take_parts(struct sha256 *s, const struct sw_part *parts, int count)
{
    int i;

    for (i = 0; i < count; i++)
        take(s, parts[i].data, parts[i].bytes);
}

void sw_sha256(const struct sw_part *parts, int count, unsigned char digest[SW_DIGEST_BYTES])
{
    struct sha256 s;

    begin(&s);
    take_parts(&s, parts, count);
    finish(&s, digest);
    sw_wipe(&s, sizeof s);
}

void sw_hmac(const unsigned char key[SW_KEY_BYTES], const struct sw_part *parts, int count,
             unsigned char mac[SW_DIGEST_BYTES])
{
    unsigned char inner[BLOCK], outer[BLOCK];
    struct sha256 s;
    int i;

    for (i = 0; i < BLOCK; i++) {
        const unsigned char byte = i < SW_KEY_BYTES ? key[i] : 0;

        inner[i] = byte ^ 0x36;
        outer[i] = byte ^ 0x5c;
    }
    begin(&s);
    take(&s, inner, BLOCK);
    take_parts(&s, parts, count);
    finish(&s, mac);
    begin(&s);
    take(&s, outer, BLOCK);
    take(&s, mac, SW_DIGEST_BYTES);
    finish(&s, mac);
    sw_wipe(&s, sizeof s);
    sw_wipe(inner, sizeof inner);
    sw_wipe(outer, sizeof outer);
}

void sw_wipe(void *data, size_t bytes)
{
    explicit_bzero(data, bytes);
}

int sw_digest_equal(const unsigned char a[SW_DIGEST_BYTES], const unsigned char b[SW_DIGEST_BYTES])
{
    unsigned char differ = 0;
    int i;

    for (i = 0; i < SW_DIGEST_BYTES; i++) /* no early exit: constant time */
        differ |= a[i] ^ b[i];
    return differ == 0;
}
