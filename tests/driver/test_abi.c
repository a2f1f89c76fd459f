/* Our declarations of the CUDA driver agree with CUDA's headers, if the build found any: sizes,
 * layouts, constants and the signature of every entry point. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "abi_list.h"
#include "src/driver/cuda_abi.h"
#include "tap.h"

const struct abi_fact abi_ours[] = {ABI_FACTS};

static const struct abi_fact *fact(const struct abi_fact *facts, const char *name)
{
    for (; facts->name != NULL; facts++)
        if (strcmp(facts->name, name) == 0)
            return facts;
    return NULL;
}

/* cuda_abi.h as text. The tests run in the repository's root. */
static char *read_header(void)
{
    FILE *file = fopen("src/driver/cuda_abi.h", "r");
    char *text = calloc(1, 1 << 20);

    if (file == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, file) == 0) {
        free(text);
        text = NULL;
    }
    if (file != NULL)
        fclose(file);
    return text;
}

/* Every "CU... = value" and "#define CU... value" of the header is compared, so no constant can be
 * added unchecked. */
static void test_every_constant_is_listed(void)
{
    char *const text = read_header();
    int constants = 0, missing = 0;

    for (char *p = text; p != NULL && *p != '\0';) {
        char name[128];
        size_t n = 0;
        int defined;

        if (!isalpha((unsigned char)*p)) {
            p++;
            continue;
        }
        while (isalnum((unsigned char)p[n]) || p[n] == '_')
            n++;
        snprintf(name, sizeof name, "%.*s", (int)n, p);
        defined = p - text >= 8 && strncmp(p - 8, "#define ", 8) == 0 && p[n] == ' ';
        p += n;
        if (strncmp(name, "CU", 2) != 0 || (!defined && strncmp(p, " = ", 3) != 0))
            continue;
        constants++;
        if (fact(abi_ours, name) == NULL) {
            printf("# %s is not in tests/helpers/abi_list.h\n", name);
            missing++;
        }
    }
    tap_ok(constants > 100, "cuda_abi.h has constants (found %d)", constants);
    TAP_EQ("each of them is in tests/helpers/abi_list.h", missing, 0);
    free(text);
}

static void test_facts_agree(void)
{
    for (const struct abi_fact *ours = abi_ours; ours->name != NULL; ours++) {
        const struct abi_fact *cuda = fact(abi_cuda, ours->name);

        if (cuda == NULL)
            tap_ok(abi_cuda_version == 0, "%s # SKIP no cuda.h of CUDA 12.4 or later", ours->name);
        else if (cuda->value == ABI_ABSENT)
            tap_ok(1, "%s # SKIP not in the cuda.h of CUDA %d.%d", ours->name,
                   abi_cuda_version / 1000, abi_cuda_version % 1000 / 10);
        else
            TAP_EQ(ours->name, ours->value, cuda->value);
    }
}

static void test_signatures_agree(void)
{
    if (abi_cuda_version == 0)
        tap_ok(1, "signatures # SKIP no cuda.h of CUDA 12.4 or later");
    for (const struct abi_function *f = abi_functions; f->name != NULL; f++)
        tap_ok(f->signature != ABI_DIFFERS, "%s has cuda.h's signature%s", f->name,
               f->signature == ABI_NOT_DECLARED ? " # SKIP not in this cuda.h" : "");
}

int main(void)
{
    test_every_constant_is_listed();
    test_facts_agree();
    test_signatures_agree();
    return tap_done();
}
