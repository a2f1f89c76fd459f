/* Parses the argument of --kernel and the words of SYMWIN_KERNEL_ABOUT. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../perf/perf.h"

/* ---- which kernels a source has -------------------------------------------------------------- */

/* The end of a comment, a string or a character constant that begins at `at`; `at` itself if none
 * does. */
static const char *behind_text(const char *at)
{
    const char *end = at;

    if (strncmp(at, "//", 2) == 0)
        return at + strcspn(at, "\n");
    if (strncmp(at, "/*", 2) == 0)
        return (end = strstr(at + 2, "*/")) != NULL ? end + 2 : at + strlen(at);
    if (*at != '"' && *at != '\'')
        return at;
    for (end = at + 1; *end != '\0' && *end != *at && *end != '\n'; end++)
        end += *end == '\\' && end[1] != '\0';
    return *end == '\0' ? end : end + 1;
}

/* The next token of C from `at` on, *length characters long; NULL: none. */
static const char *next_token(const char *at, size_t *length)
{
    for (;;) {
        const char *behind;

        while (isspace((unsigned char)*at))
            at++;
        behind = behind_text(at);
        if (behind == at)
            break;
        at = behind;
    }
    for (*length = 0; isalnum((unsigned char)at[*length]) || at[*length] == '_';)
        ++*length;
    if (*length == 0 && *at != '\0')
        *length = 1;
    return *length > 0 ? at : NULL;
}

/* Behind a directive's lines. What a macro has is no function yet. */
static const char *behind_directive(const char *at)
{
    while (*at != '\0' && *at != '\n')
        at = strncmp(at, "/*", 2) == 0        ? behind_text(at)
             : at[0] == '\\' && at[1] == '\n' ? at + 2
                                              : at + 1;
    return at;
}

/* The names of the __global__ functions: the last identifier before a parenthesis that is not an
 * attribute's. Writes them with a space before each; returns their number. */
static int kernels_of(const char *text, char *names, size_t bytes)
{
    size_t length, last_length = 0, used = 0;
    const char *last = NULL;
    int count = 0, open = 0;

    names[0] = '\0';
    for (const char *at = text; (at = next_token(at, &length)) != NULL; at += length) {
        if (*at == '#')
            length = (size_t)(behind_directive(at) - at);
        else if (length == 10 && memcmp(at, "__global__", 10) == 0) {
            open = 1;
            last = NULL;
        } else if (open && *at == '(' && last != NULL && memcmp(last, "__", 2) != 0) {
            if (used + last_length + 2 < bytes)
                used += (size_t)snprintf(names + used, bytes - used, " %.*s", (int)last_length,
                                         last);
            count++;
            open = 0;
        } else if (isalpha((unsigned char)*at) || *at == '_') {
            last = at;
            last_length = length;
        }
    }
    return count;
}

int own_read(const char *path, char **out)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    int good = file != NULL && fstat(fileno(file), &info) == 0;

    *out = good ? calloc(1, (size_t)info.st_size + 1) : NULL;
    if (!good)
        good = fail(SYMWIN_DENIED, "--kernel %s: %s", path, strerror(errno));
    else if (*out == NULL)
        good = fail(SYMWIN_NO_MEMORY, "no host memory to read %s", path);
    else if (fread(*out, 1, (size_t)info.st_size, file) != (size_t)info.st_size)
        good = fail(SYMWIN_DENIED, "--kernel %s cannot be read", path);
    if (file != NULL)
        fclose(file);
    return good;
}

/* Whether the text can define a kernel of that name: the name is there, or macros or other files
 * may make it. */
static int may_be_in(const char *text, const char *name)
{
    const size_t length = strlen(name);

    for (const char *at = strstr(text, name); at != NULL; at = strstr(at + 1, name))
        if ((at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_')) &&
            !isalnum((unsigned char)at[length]) && at[length] != '_')
            return 1;
    if (strstr(text, "##") != NULL)
        return 1;
    for (const char *at = strstr(text, "#include"); at != NULL; at = strstr(at + 1, "#include"))
        if (strncmp(at + 8 + strspn(at + 8, " \t"), "\"symwin", 7) != 0)
            return 1;
    return 0;
}

/* Without a name, the file's only kernel is taken. A name that is not found may come from a
 * macro. */
static int find_name(const char *argument, struct own_source *out)
{
    char names[1024], *text;
    int good = own_read(out->path, &text), count;

    if (!good) {
        free(text);
        return 0;
    }
    count = kernels_of(text, names, sizeof names);
    if (out->name[0] != '\0' && count > 0 && !may_be_in(text, out->name))
        good = fail(SYMWIN_INVALID, "--kernel %s: the file has no kernel %s; it has%s", argument,
                    out->name, names);
    free(text);
    if (!good || out->name[0] != '\0')
        return good;
    if (count == 1)
        snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, names + 1);
    else if (count == 0)
        good = fail(
            SYMWIN_INVALID,
            "--kernel %s: the file has no __global__ function; if a macro makes one, give %s:NAME",
            argument, argument);
    else
        good = fail(
            SYMWIN_INVALID,
            "--kernel %s: the file has several kernels: give %s:NAME, where NAME is one of%s",
            argument, argument, names);
    return good;
}

/* ---- FILE[:NAME] ----------------------------------------------------------------------------- */

static int ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), most = strlen(end);

    return length > most && strcmp(text + length - most, end) == 0;
}

int own_source_find(const char *argument, struct own_source *out)
{
    const char *slash = strrchr(argument, '/');
    const char *colon = strrchr(slash != NULL ? slash : argument, ':');
    const size_t length = colon != NULL ? (size_t)(colon - argument) : strlen(argument);
    char given[4096], *whole;

    memset(out, 0, sizeof *out);
    snprintf(given, sizeof given, "%.*s", (int)length, argument);
    if (colon != NULL)
        snprintf(out->name, sizeof out->name, "%s", colon + 1);
    for (const char *c = out->name; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && *c != '_')
            return fail(SYMWIN_INVALID, "--kernel %s: \"%s\" is not a function name", argument,
                        out->name);
    if (ends_with(given, ".cu"))
        out->kind = OWN_SOURCE;
    else if (ends_with(given, ".so"))
        out->kind = OWN_OBJECT;
    else if (ends_with(given, ".cubin") || ends_with(given, ".fatbin"))
        out->kind = OWN_IMAGE;
    else
        return fail(SYMWIN_INVALID,
                    "--kernel %s: give FILE.cu[:NAME], FILE.so:NAME (emulated driver), or "
                    "FILE.cubin:NAME or FILE.fatbin:NAME (GPUs)",
                    argument);
    whole = realpath(given, NULL);
    if (whole == NULL)
        return fail(SYMWIN_DENIED, "--kernel %s: %s", given, strerror(errno));
    snprintf(out->path, sizeof out->path, "%s", whole);
    free(whole);
    if (out->kind == OWN_SOURCE)
        return find_name(given, out);
    return out->name[0] != '\0' ||
           fail(SYMWIN_INVALID, "--kernel %s: give the kernel's name: %s:NAME", argument, argument);
}

/* ---- SYMWIN_KERNEL_ABOUT --------------------------------------------------------------------- */

static unsigned bits_of(const char *const *names, const char *list, size_t length)
{
    unsigned bits = 0;

    while (length > 0) {
        const char *comma = memchr(list, ',', length);
        const size_t one = comma != NULL ? (size_t)(comma - list) : length;
        const int i = options_find(names, list, one);

        if (i < 0)
            return 0;
        bits |= 1u << i;
        length -= comma != NULL ? one + 1 : one;
        list += comma != NULL ? one + 1 : one;
    }
    return bits;
}

/* A positive number with an optional suffix; 0: it is not one. */
static uint64_t number_of(const char *text, size_t length)
{
    uint64_t value = 0;
    size_t i;

    for (i = 0; i < length && isdigit((unsigned char)text[i]) && value < UINT64_C(1) << 40; i++)
        value = 10 * value + (uint64_t)(text[i] - '0');
    if (i + 1 == length && i > 0 && strchr("KMG", text[i]) != NULL)
        return value << (text[i] == 'K' ? 10 : text[i] == 'M' ? 20 : 30);
    return i == length ? value : 0;
}

/* Kernels have unequal parts in device memory. */
static int take_collective(struct own_about *about, const char *name, size_t length)
{
    for (int i = 0; i <= PERF_SENDRECV; i++) {
        const char *one = collective_name((symwin_collective)i);

        if (strlen(one) != length || memcmp(one, name, length) != 0)
            continue;
        about->collective = (symwin_collective)(i < PERF_SENDRECV && sw_collectives[i].by_parts
                                                    ? PERF_ALLTOALLV_DEVICE + (i - SYMWIN_ALLTOALLV)
                                                    : i);
        return 1;
    }
    return 0;
}

/* Whether the word is known and its value valid. */
static int take_word(struct own_about *about, const char *word, size_t length)
{
    const char *equals = memchr(word, '=', length);
    const size_t key = equals != NULL ? (size_t)(equals - word) : length;
    const char *value = equals != NULL ? equals + 1 : "";
    const size_t rest = equals != NULL ? length - key - 1 : 0;
    const uint64_t n = number_of(value, rest);

#define IS(text) (key == sizeof(text) - 1 && memcmp(word, text, key) == 0)
    if (equals == NULL) {
        about->windows |= IS("windows");
        about->out_of_place |= IS("out-of-place");
        about->fixed |= IS("fixed");
        about->no_limit |= IS("no-limit");
        return IS("windows") || IS("out-of-place") || IS("fixed") || IS("no-limit");
    }
    if (IS("collective"))
        return take_collective(about, value, rest);
    if (IS("types"))
        return (about->types = bits_of(options_types, value, rest)) != 0;
    if (IS("ops"))
        return (about->ops = bits_of(options_ops, value, rest)) != 0 &&
               (about->ops & ~OWN_OPS) == 0;
    if (IS("bytes"))
        return (about->bytes = n) != 0;
    if (IS("multiple"))
        return (about->multiple = n) != 0;
    if (IS("align"))
        return (about->align = n) != 0 && (n & (n - 1)) == 0 && n <= 256;
    if (IS("ranks"))
        return (about->ranks = (int)n) > 0 && n <= PERF_MOST_RANKS;
    if (IS("blocks"))
        return (about->blocks = (int)n) > 0 && n <= 65536;
    if (IS("threads"))
        return (about->threads = (int)n) > 0 && n <= 1024;
    if (IS("shared"))
        return (about->shared = n) != 0 && n <= 1 << 20;
    if (IS("scratch"))
        return (about->scratch = n) != 0 && n <= UINT64_C(1) << 36;
    if (IS("slots"))
        return (about->slots = n) != 0 && n <= UINT64_C(1) << 36;
#undef IS
    return 0;
}

static int no_word(const char *name, const char *word, const char *what,
                   const struct own_about *about)
{
    return fail(SYMWIN_INVALID,
                "SYMWIN_KERNEL_ABOUT(%s): %s about collectives that %s, and %s does not: leave it "
                "out",
                name, word, what, collective_name(about->collective));
}

int own_about_parse(const char *name, const char *words, struct own_about *out)
{
    const unsigned all_types = (1u << SW_TYPES) - 1;
    const struct sw_collective *is;

    *out = (struct own_about){
        .types = all_types,
        .ops = OWN_OPS,
        .multiple = 1,
        .align = 1,
        .blocks = 16,
        .threads = 512,
        .scratch = 64 << 10,
    };
    while (*(words += strspn(words, " ")) != '\0') {
        const size_t length = strcspn(words, " ");

        if (!take_word(out, words, length))
            return fail(SYMWIN_INVALID,
                        "SYMWIN_KERNEL_ABOUT(%s): \"%.*s\" is unknown or has an invalid value; "
                        "symwin/kernel.cuh lists the words",
                        name, (int)length, words);
        words += length;
    }
    is = collective_of(out->collective);
    out->out_of_place |= !collective_in_place(out->collective) ||
                         out->collective == (symwin_collective)PERF_ALLTOALLV_DEVICE;
    if (is->no_data &&
        (out->types != all_types || out->bytes > 0 || out->multiple != 1 || out->align != 1))
        return no_word(name, "\"types=\", \"bytes=\", \"multiple=\" and \"align=\" are",
                       "have data", out);
    if (is->by_parts && out->multiple != 1)
        return no_word(name, "\"multiple=\" is", "have equal parts", out);
    if (is->reduces)
        return 1;
    if (out->ops != OWN_OPS)
        return no_word(name, "\"ops=\" is", "reduce", out);
    out->ops = 1u << SYMWIN_MAX; /* its test data has the most values */
    return 1;
}

/* Appends to a text; what does not fit is cut off. */
static void add(char *text, size_t bytes, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}

static void add_bits(char *text, size_t bytes, unsigned bits, const char *const *names,
                     const char *all)
{
    int i = 0, first = 1;

    while (names[i] != NULL)
        i++;
    if (bits == (1u << i) - 1)
        add(text, bytes, "%s", all);
    else
        for (i = 0; names[i] != NULL; i++)
            if ((bits & 1u << i) != 0) {
                add(text, bytes, "%s%s", first ? "" : ",", names[i]);
                first = 0;
            }
}

void own_about_print(const struct own_about *about, char *text, size_t bytes)
{
    const struct sw_collective *is = collective_of(about->collective);

    text[0] = '\0';
    if (about->collective != SYMWIN_ALLREDUCE)
        add(text, bytes, "%s%s", collective_name(about->collective), is->no_data ? "" : "; ");
    if (!is->no_data)
        add_bits(text, bytes, about->types, options_types, "all types");
    if (is->reduces) {
        add(text, bytes, "; ");
        add_bits(text, bytes, about->ops, options_ops, "all operations");
    }
    if (about->bytes > 0)
        add(text, bytes, "; at most %llu bytes", (unsigned long long)about->bytes);
    if (about->multiple > 1)
        add(text, bytes, "; multiples of %llu elements", (unsigned long long)about->multiple);
    if (about->align > 1)
        add(text, bytes, "; aligned to %llu bytes", (unsigned long long)about->align);
    if (about->ranks > 0)
        add(text, bytes, "; at most %d ranks", about->ranks);
    add(text, bytes, "%s%s; %d blocks of %d threads%s", about->windows ? "; in windows" : "",
        about->out_of_place && !is->no_data ? "; out of place" : "", about->blocks, about->threads,
        about->fixed ? "" : ", or fewer");
}

const char *own_refusal(const struct own_about *about, int nranks, symwin_type type, symwin_op op,
                        uint64_t count, int in_place, uint64_t align)
{
    const struct sw_collective *collective = collective_of(about->collective);
    const struct layout is = layout_of(about->collective, nranks, 1, 0, count);
    /* Where the shorter buffer begins in the longer one on rank 1; unequal parts begin anywhere. */
    const uint64_t part = (collective->by_parts ? 1 : is.in_at + is.out_at) *
                          symwin_type_bytes(type);

    if ((about->types & 1u << type) == 0)
        return "this type";
    if (collective->reduces && (about->ops & 1u << op) == 0)
        return "this operation";
    if (about->bytes > 0 && is.larger * symwin_type_bytes(type) > about->bytes)
        return "messages of this size";
    if (count % about->multiple != 0)
        return "this number of elements";
    if (in_place && about->out_of_place)
        return "calls in place";
    if (align % about->align != 0 || (in_place && part % about->align != 0))
        return "this alignment";
    if (about->ranks > 0 && nranks > about->ranks)
        return "this many ranks";
    return NULL;
}
