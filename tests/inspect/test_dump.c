/* symwin_dump(): every chunk, allocation and window has its line, with the numbers that the queries
 * return. Also descriptors that cannot be written to, a slow reader, and other threads that
 * allocate meanwhile. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "windows.h"

enum { DUMP_BYTES = 1 << 20 };

struct dump {
    char text[DUMP_BYTES];
    size_t bytes;
};

/* Dumps into a file and reads it back. */
static void take(struct dump *d)
{
    const int fd = memfd_create("dump", MFD_CLOEXEC);
    ssize_t got;

    host_must(symwin_dump(fd), "symwin_dump");
    got = pread(fd, d->text, sizeof d->text - 1, 0);
    d->bytes = got > 0 ? (size_t)got : 0;
    d->text[d->bytes] = '\0';
    close(fd);
}

/* The line that begins with these words, without its end; NULL: there is none. */
static const char *line_of(const struct dump *d, const char *words, char *out, size_t room)
{
    const size_t length = strlen(words);
    const char *p;

    for (p = d->text; p != NULL && *p != '\0'; p = strchr(p, '\n') + 1)
        if (strncmp(p, words, length) == 0 && (p[length] == ' ' || p[length] == '\n')) {
            snprintf(out, room, "%.*s", (int)strcspn(p, "\n"), p);
            return out;
        }
    return NULL;
}

static int count_of(const struct dump *d, const char *word)
{
    const size_t length = strlen(word);
    const char *p;
    int count = 0;

    for (p = d->text; *p != '\0'; p = strchr(p, '\n') + 1)
        count += strncmp(p, word, length) == 0 && p[length] == ' ';
    return count;
}

/* The number after " key=" in a line; -1: there is none. */
static long long value(const char *text, const char *key)
{
    char words[64];
    const char *at;

    snprintf(words, sizeof words, " %s=", key);
    at = text != NULL ? strstr(text, words) : NULL;
    return at != NULL ? strtoll(at + strlen(words), NULL, 0) : -1;
}

static bool has(const char *text, const char *words)
{
    return text != NULL && strstr(text, words) != NULL;
}

static symwin_mem_info described(const void *ptr)
{
    symwin_mem_info info = {0};

    host_must(symwin_mem_query(ptr, &info), "symwin_mem_query");
    return info;
}

/* Whether an allocation has its line, with the values of symwin_mem_query(). */
static bool listed(const struct dump *d, void *ptr, size_t asked, const char *use)
{
    const symwin_mem_info info = described(ptr);
    char name[64], alloc[512], chunk[512], words[64];

    snprintf(name, sizeof name, "alloc %p", info.ptr);
    if (line_of(d, name, alloc, sizeof alloc) == NULL)
        return false;
    snprintf(name, sizeof name, "chunk %p", info.base);
    if (line_of(d, name, chunk, sizeof chunk) == NULL)
        return false;
    snprintf(words, sizeof words, " use=%s ", use);
    return value(alloc, "chunk") == (long long)(uintptr_t)info.base &&
           value(alloc, "offset") == (char *)info.ptr - (char *)info.base &&
           value(alloc, "asked") == (long long)asked &&
           value(alloc, "bytes") == (long long)info.size &&
           value(alloc, "windows") == info.registrations &&
           value(chunk, "bytes") == (long long)info.bytes &&
           value(chunk, "device") == info.device && has(chunk, words);
}

/* ---- memory ---- */

/* Runs first: the process has used nothing yet. */
static void nothing(struct dump *d)
{
    char line[512];

    take(d);
    snprintf(line, sizeof line, "symwin-dump 1 pid=%ld version=%s\nend lines=1\n", (long)getpid(),
             SYMWIN_VERSION);
    tap_ok(strcmp(d->text, line) == 0, "of a process that has nothing: two lines");
}

static void memory(struct dump *d)
{
    static const struct {
        size_t bytes;
        unsigned flags;
        const char *use;
    } cases[] = {
        {1, 0, "suballocated"},
        {513, 0, "suballocated"},
        {100 << 10, 0, "suballocated"},
        {5, SYMWIN_MEM_NCCL, "suballocated"},
        {5, SYMWIN_MEM_PEERS, "suballocated"},
        {5, SYMWIN_MEM_OWN, "own"},
        {3 * GRANULE + 1, 0, "own"},
    };
    enum { COUNT = sizeof cases / sizeof cases[0] };
    const struct harness_leaks before = harness_leaks_now();
    symwin_mem_handle handle = {.fd = -1};
    void *ptrs[COUNT], *imported = NULL;
    symwin_mem_usage usage;
    char line[1024];
    int i;

    for (i = 0; i < COUNT; i++)
        host_must(symwin_mem_alloc(1, cases[i].bytes, cases[i].flags, &ptrs[i]), "alloc");
    host_must(symwin_mem_export(ptrs[6], SYMWIN_HANDLE_POSIX_FD, &handle), "export");
    host_must(symwin_mem_import(0, &handle, &imported), "import");
    close(handle.fd);
    take(d);
    for (i = 0; i < COUNT; i++)
        tap_ok(listed(d, ptrs[i], cases[i].bytes, cases[i].use),
               "%zu bytes, flags %u: the lines of allocation and chunk are right", cases[i].bytes,
               cases[i].flags);
    tap_ok(listed(d, imported, handle.bytes, "imported"), "imported memory, too");
    TAP_EQ("allocations", count_of(d, "alloc"), COUNT + 1);
    TAP_EQ("arenas: plain, NCCL's, peers', and imports", count_of(d, "arena"), 4);
    TAP_EQ("chunks", count_of(d, "chunk"), 3 + 2 + 1);
    tap_ok(strstr(d->text, " flags=nccl thread=alive ") != NULL &&
               strstr(d->text, " flags=peers thread=alive ") != NULL &&
               strstr(d->text, " device=-1 flags=imported ") != NULL,
           "arenas say what they are of");
    host_must(symwin_mem_stats(1, &usage), "symwin_mem_stats");
    tap_ok(line_of(d, "device 1", line, sizeof line) != NULL &&
               value(line, "asked_bytes") == (long long)usage.asked_bytes &&
               value(line, "used_bytes") == (long long)usage.used_bytes &&
               value(line, "reserved_bytes") == (long long)usage.reserved_bytes &&
               value(line, "kept_bytes") == (long long)usage.kept_bytes &&
               value(line, "largest_free_bytes") == (long long)usage.largest_free_bytes &&
               value(line, "allocations") == COUNT && value(line, "chunks") == 5 &&
               value(line, "creates") == (long long)usage.creates,
           "the device's line is symwin_mem_stats()");
    tap_ok(line_of(d, "device 2", line, sizeof line) == NULL, "idle devices have none");
    host_must(symwin_mem_free(imported), "free");
    for (i = 0; i < COUNT; i++)
        host_must(symwin_mem_free(ptrs[i]), "free");
    take(d);
    TAP_EQ("freed: no allocation", count_of(d, "alloc"), 0);
    tap_ok(count_of(d, "chunk") > 0 && strstr(d->text, "kept=0") == NULL,
           "and chunks that are kept");
    symwin_mem_trim(SYMWIN_DEVICE_ALL, 0);
    take(d);
    TAP_EQ("trimmed: no chunk", count_of(d, "chunk"), 0);
    harness_no_leaks("memory", &before);
}

static void whole(const struct dump *d)
{
    const char *end = strstr(d->text, "\nend lines=");
    int lines = 0;
    size_t i;

    for (i = 0; i < d->bytes; i++)
        lines += d->text[i] == '\n';
    tap_ok(end != NULL && atoi(end + 11) == lines - 1, "the last line counts those before it");
}

/* ---- windows ---- */

static void windows_body(struct harness_team *team, int rank, void *arg)
{
    struct dump *d = arg;
    struct member m;
    symwin_window *first, *second, *third = NULL;
    symwin_registration *registration;
    symwin_channel_end *end = NULL;
    symwin_channel channel;
    symwin_window_info info;
    char name[64], line[512], long_name[101] = "";
    void *small;

    member_open(&m, team, rank, 4 * GRANULE);
    small = host_alloc(m.device, 5000);
    host_must(symwin_window_register(m.comm, small, 5000, 0, &third), "symwin_window_register");
    first = member_window(&m, 512, 1000);
    second = member_window(&m, GRANULE, GRANULE);
    harness_barrier(team);
    if (rank == 0) {
        take(d);
        TAP_EQ("communicators of two ranks", count_of(d, "comm"), 2);
        TAP_EQ("their windows", count_of(d, "window"), 6);
        snprintf(name, sizeof name, "alloc %p", m.memory);
        TAP_EQ("windows on the allocation", value(line_of(d, name, line, sizeof line), "windows"),
               2);
        tap_ok(listed(d, small, 5000, "suballocated") && described(small).registrations == 1,
               "and on one that was suballocated");
        info = member_query(&m, first);
        snprintf(name, sizeof name, "window %p", info.ptr);
        tap_ok(line_of(d, name, line, sizeof line) != NULL && value(line, "bytes") == 1000 &&
                   value(line, "offset") == (long long)info.offset &&
                   has(line, (info.transports & SYMWIN_TRANSPORT_MULTICAST) != 0
                                 ? " transports=peer,multicast"
                                 : " transports=peer"),
               "a window's line is symwin_window_query()");
        tap_ok(strstr(d->text, " rank=0 nranks=2 device=0 ") != NULL &&
                   strstr(d->text, " rank=1 nranks=2 device=1 ") != NULL &&
                   strstr(d->text, " allocations=2 windows=3 name=-\n") != NULL,
               "communicators' lines");
        host_must(symwin_comm_set_name(m.comm, "tensor-parallel:0 a\nb\xc3\xa4"), "set_name");
        take(d);
        tap_ok(strstr(d->text, " windows=3 name=tensor-parallel:0_a_b__\n") != NULL,
               "a name is a word of a line");
        memset(long_name, 'n', sizeof long_name - 1);
        host_must(symwin_comm_set_name(m.comm, long_name), "set_name");
        take(d);
        tap_ok(strstr(d->text, long_name) == NULL && strstr(d->text, long_name + 37) != NULL,
               "and has 63 characters");
        whole(d);
    }
    harness_barrier(team);
    member_deregister(&m, second);
    harness_barrier(team);
    if (rank == 0) {
        take(d);
        TAP_EQ("windows when one of each rank is gone", count_of(d, "window"), 4);
        TAP_EQ("registered ranges", count_of(d, "range"), 0);
        host_must(symwin_register(m.comm, small, 3000, &registration), "symwin_register");
        host_must(symwin_register(m.comm, small, 3000, &registration), "symwin_register");
        take(d);
        snprintf(name, sizeof name, "range %p", small);
        tap_ok(line_of(d, name, line, sizeof line) != NULL && value(line, "local") == 2 &&
                   value(line, "graph") == 0 && value(line, "nccl") == 0 &&
                   value(line, "bytes") == 3000 && has(line, " transports=none"),
               "a range's line");
        whole(d);
        host_must(symwin_deregister(m.comm, registration), "symwin_deregister");
        host_must(symwin_deregister(m.comm, registration), "symwin_deregister");
        take(d);
        TAP_EQ("ranges that are gone", count_of(d, "range"), 0);
        TAP_EQ("channels", count_of(d, "channel"), 0);
    }
    harness_barrier(team);
    host_must(symwin_channel_create(m.comm, 1 - rank, small, 77, NULL, &end), "a channel");
    harness_barrier(team);
    if (rank == 0) {
        take(d);
        TAP_EQ("ends of both ranks", count_of(d, "channel"), 2);
        snprintf(name, sizeof name, "channel %p", small);
        tap_ok(line_of(d, name, line, sizeof line) != NULL && value(line, "peer") == 1 &&
                   value(line, "bytes") == 77 && value(line, "lanes") == 1 &&
                   has(line, " state=offered memory=window"),
               "an end's line");
        whole(d);
    }
    harness_barrier(team);
    host_must(symwin_channel_connect(m.comm, end, &channel), "a channel");
    harness_barrier(team);
    if (rank == 0) {
        take(d);
        tap_ok(line_of(d, name, line, sizeof line) != NULL && has(line, " state=connected "),
               "when it is connected");
    }
    harness_barrier(team);
    member_close(&m);
    host_must(symwin_mem_free(small), "free");
    harness_barrier(team);
    if (rank == 0) {
        take(d);
        TAP_EQ("communicators when they are destroyed", count_of(d, "comm"), 0);
        TAP_EQ("and windows", count_of(d, "window"), 0);
    }
}

/* ---- while other threads work ---- */

static atomic_int stop;

static void *work(void *arg)
{
    void *ptrs[20] = {NULL};
    uint64_t state = (uint64_t)(uintptr_t)arg;
    int i;

    while (!stop) {
        i = (int)(host_random(&state) % 20);
        if (ptrs[i] == NULL)
            host_must(symwin_mem_alloc(0, 1 + host_random(&state) % (i == 0 ? 3 * GRANULE : 9999),
                                       0, &ptrs[i]),
                      "alloc");
        else {
            host_must(symwin_mem_free(ptrs[i]), "free");
            ptrs[i] = NULL;
        }
    }
    for (i = 0; i < 20; i++)
        host_must(symwin_mem_free(ptrs[i]), "free");
    return NULL;
}

/* Creates and destroys communicators of one rank, each with a window. */
static void *work_comms(void *arg)
{
    const symwin_comm_options options = {.size = sizeof options};

    while (!stop) {
        void *ptr = host_alloc(1, 100);
        symwin_window *window;
        symwin_comm *comm;
        symwin_unique_id id;

        host_must(symwin_unique_id_create(&id), "symwin_unique_id_create");
        host_must(symwin_comm_create(&id, 1, 0, 1, &options, &comm), "symwin_comm_create");
        host_must(symwin_window_register(comm, ptr, 100, 0, &window), "symwin_window_register");
        symwin_comm_destroy(comm);
        host_must(symwin_mem_free(ptr), "free");
    }
    return arg;
}

/* The lines of one arena, or of one communicator, must agree, whatever other threads do. */
static bool consistent(const struct dump *d)
{
    long long allocations = 0, used = 0, in_chunk = 0, windows = 0;
    const char *p;

    for (p = d->text; *p != '\0'; p = strchr(p, '\n') + 1) {
        char line[1024];

        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        if (strncmp(line, "alloc ", 6) == 0) {
            allocations--;
            in_chunk--;
            used -= value(line, "bytes");
            continue;
        }
        if (in_chunk != 0)
            return false;
        if (strncmp(line, "chunk ", 6) == 0) {
            in_chunk = value(line, "allocations");
            continue;
        }
        if (strncmp(line, "window ", 7) == 0) {
            windows--;
            continue;
        }
        if (allocations != 0 || used != 0 || windows != 0)
            return false;
        if (strncmp(line, "comm ", 5) == 0)
            windows = value(line, "windows");
        if (strncmp(line, "arena ", 6) == 0) {
            allocations = value(line, "allocations");
            used = value(line, "used");
        }
    }
    return true;
}

static void meanwhile(struct dump *d)
{
    const struct harness_leaks before = harness_leaks_now();
    pthread_t threads[3], comms;
    int i, right = 0;

    for (i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) != 0)
            exit(1);
    if (pthread_create(&comms, NULL, work_comms, NULL) != 0)
        exit(1);
    for (i = 0; i < 200; i++) {
        take(d);
        right += consistent(d);
    }
    stop = 1;
    for (i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    pthread_join(comms, NULL);
    TAP_EQ("while threads allocate, the lines of an arena go together", right, 200);
    take(d);
    tap_ok(strstr(d->text, " thread=ended ") != NULL, "their arenas say that they have ended");
    harness_no_leaks("meanwhile", &before);
}

/* ---- descriptors ---- */

static atomic_int signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void descriptors(void)
{
    const struct harness_leaks before = harness_leaks_now();
    int pipe_ends[2], sockets[2], full;
    struct sigaction action = {.sa_handler = count_signal};
    sigset_t set;
    void *ptr = host_alloc(0, 100);

    host_expect("no descriptor", symwin_dump(-1), SYMWIN_INVALID, "symwin_dump|descriptor -1|Bad");
    host_expect("a closed one", symwin_dump(9999), SYMWIN_INVALID, "descriptor 9999");
    full = open("/dev/null", O_RDONLY | O_CLOEXEC);
    host_expect("one for reading", symwin_dump(full), SYMWIN_INVALID, "Bad file descriptor");
    close(full);
    full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    host_expect("no room", symwin_dump(full), SYMWIN_NO_MEMORY, "No space left");
    close(full);
    /* By default SIGPIPE ends the process, which no test could miss. */
    if (pipe2(pipe_ends, O_CLOEXEC) != 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        exit(1);
    close(pipe_ends[0]);
    close(sockets[0]);
    host_expect("a pipe that nobody reads", symwin_dump(pipe_ends[1]), SYMWIN_DENIED,
                "Broken pipe");
    host_expect("a socket", symwin_dump(sockets[1]), SYMWIN_DENIED, "Broken pipe");
    sigaction(SIGPIPE, &action, NULL);
    host_expect("a pipe, with a handler", symwin_dump(pipe_ends[1]), SYMWIN_DENIED, "Broken pipe");
    TAP_EQ("which was not called", signals, 0);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    raise(SIGPIPE);
    host_expect("with one pending", symwin_dump(pipe_ends[1]), SYMWIN_DENIED, "Broken pipe");
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    TAP_EQ("which stays pending", signals, 1);
    close(pipe_ends[1]);
    close(sockets[1]);
    host_must(symwin_mem_free(ptr), "free");
    harness_no_leaks("descriptors", &before);
}

static void *dump_into(void *arg)
{
    const symwin_status status = symwin_dump(*(int *)arg);

    close(*(int *)arg); /* the reader gets end of file, also after a failure */
    return (void *)(uintptr_t)status;
}

/* The dump is larger than a pipe's buffer: the dumping thread waits for the reader, other threads
 * do not. */
static void slow_reader(int flags)
{
    enum { COUNT = 3000 };
    const struct harness_leaks before = harness_leaks_now();
    static char text[DUMP_BYTES];
    void *ptrs[COUNT], *status = (void *)1, *more;
    size_t bytes = 0;
    int ends[2], i;
    pthread_t thread;
    ssize_t got = 1;

    for (i = 0; i < COUNT; i++)
        ptrs[i] = host_alloc(0, 100);
    if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[1], F_SETFL, flags) != 0 ||
        pthread_create(&thread, NULL, dump_into, &ends[1]) != 0)
        exit(1);
    host_pause_ms(50);
    more = host_alloc(0, 100);
    host_must(symwin_mem_free(more), "free");
    more = host_alloc(flags == 0 ? 5 : 6, 100); /* in a new arena */
    host_must(symwin_mem_free(more), "free");
    host_must(symwin_mem_trim(0, 0), "symwin_mem_trim");
    tap_ok(1, "memory comes and goes while a reader sleeps");
    while (got > 0) {
        got = read(ends[0], text + bytes, sizeof text - 1 - bytes);
        bytes += got > 0 ? (size_t)got : 0;
        text[bytes] = '\0';
    }
    pthread_join(thread, &status);
    tap_ok(status == NULL && strstr(text, "\nend lines=") != NULL && bytes > 50 * COUNT,
           "the reader gets all (%zu bytes)", bytes);
    close(ends[0]);
    for (i = 0; i < COUNT; i++)
        host_must(symwin_mem_free(ptrs[i]), "free");
    memset(text, 0, sizeof text);
    harness_no_leaks("a slow reader", &before);
}

int main(void)
{
    static struct dump d;
    struct harness_leaks before;

    harness_start();
    nothing(&d);
    memory(&d);
    whole(&d);
    before = harness_leaks_now();
    harness_run(2, windows_body, &d);
    harness_no_leaks("windows", &before);
    meanwhile(&d);
    descriptors();
    slow_reader(0);
    slow_reader(O_NONBLOCK);
    return tap_done();
}
