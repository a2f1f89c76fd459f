/* SHA-256 and HMAC, by the examples of FIPS 180-4 and RFC 4231 and by lengths around a block. */
#include "harness.h"
#include "src/base/base.h"

enum { MOST = 300 };

static const char *hex(const unsigned char digest[SW_DIGEST_BYTES])
{
    static char text[2 * SW_DIGEST_BYTES + 1];
    int i;

    for (i = 0; i < SW_DIGEST_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return text;
}

static const struct {
    const char *data;
    int times;
    const char *digest;
} sums[] = {
    {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"aaaaaaaaaa", 100000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

static void test_sums(void)
{
    unsigned char digest[SW_DIGEST_BYTES], *data;
    size_t i, bytes;
    int t;

    for (i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        struct sw_part part;

        bytes = strlen(sums[i].data);
        data = malloc(bytes * (size_t)sums[i].times + 1);
        if (data == NULL)
            abort();
        for (t = 0; t < sums[i].times; t++)
            memcpy(data + bytes * (size_t)t, sums[i].data, bytes);
        part = (struct sw_part){data, bytes * (size_t)sums[i].times};
        sw_sha256(&part, 1, digest);
        tap_ok(strcmp(hex(digest), sums[i].digest) == 0, "%zu bytes: %s", part.bytes, hex(digest));
        free(data);
    }
}

static const struct {
    unsigned char key; /* 20 such bytes, and zeros */
    const char *data;
    const char *mac;
} macs[] = {
    {0x0b, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {0xaa,
     "\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd"
     "\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd\xdd"
     "\xdd\xdd\xdd\xdd",
     "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
};

static void test_macs(void)
{
    unsigned char key[SW_KEY_BYTES], mac[SW_DIGEST_BYTES];
    size_t i;

    for (i = 0; i < sizeof macs / sizeof macs[0]; i++) {
        const struct sw_part part = {macs[i].data, strlen(macs[i].data)};

        memset(key, 0, sizeof key);
        memset(key, macs[i].key, 20);
        sw_hmac(key, &part, 1, mac);
        tap_ok(strcmp(hex(mac), macs[i].mac) == 0, "HMAC of %zu bytes: %s", part.bytes, hex(mac));
    }
}

/* However data is cut into parts, at any place and not aligned, its sum is the same. */
static void test_parts(void)
{
    unsigned char data[MOST + 1], whole[SW_DIGEST_BYTES], parts[SW_DIGEST_BYTES];
    size_t bytes, cut;
    int i, wrong = 0;

    for (i = 0; i <= MOST; i++)
        data[i] = (unsigned char)(i * 7);
    for (bytes = 0; bytes < MOST; bytes += 3)
        for (cut = 0; cut <= bytes; cut++) {
            const struct sw_part one = {data + 1, bytes};
            const struct sw_part three[] = {{data + 1, cut / 2},
                                            {data + 1 + cut / 2, cut - cut / 2},
                                            {data + 1 + cut, bytes - cut}};

            sw_sha256(&one, 1, whole);
            sw_sha256(three, 3, parts);
            wrong += !sw_digest_equal(whole, parts);
        }
    TAP_EQ("sums that depend on where data is cut", wrong, 0);
}

int main(void)
{
    test_sums();
    test_macs();
    test_parts();
    return tap_done();
}
