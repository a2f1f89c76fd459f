/* The library's calls of the system, malloc and the emulated driver, counted: see steps.h. */
#include "steps.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/driver/cuda_abi.h"

static struct {
    atomic_long taken, nth;
    enum steps_action action;
    int variant, persistent;
    const char *_Atomic hit;
    atomic_int hit_who;
    void (*before)(void);
    void (*_Atomic each)(const char *name);
    atomic_int only;
} steps = {.only = -1};

static _Thread_local int who = -1;
static _Thread_local int locks;

void steps_plan(long nth, enum steps_action action, int variant, int persistent)
{
    steps.action = action;
    steps.variant = variant;
    steps.persistent = persistent;
    atomic_store(&steps.hit, NULL);
    atomic_store(&steps.hit_who, -1);
    atomic_store(&steps.taken, 0);
    atomic_store(&steps.nth, nth);
}

void steps_off(void)
{
    atomic_store(&steps.nth, 0);
}

long steps_taken(void)
{
    return atomic_load(&steps.taken);
}

const char *steps_hit(void)
{
    return atomic_load(&steps.hit);
}

int steps_hit_who(void)
{
    return atomic_load(&steps.hit_who);
}

void steps_i_am(int rank)
{
    who = rank;
}

void steps_only(int rank)
{
    atomic_store(&steps.only, rank);
}

void steps_before(void (*f)(void))
{
    steps.before = f;
}

void steps_each(void (*f)(const char *name))
{
    atomic_store(&steps.each, f);
}

int steps_locks(void)
{
    return locks;
}

/* One step. Returns whether the call must fail. A call that cannot fail passes `can_fail` 0; it is
 * no step of plans that make calls fail. */
static int step(const char *name, int can_fail)
{
    void (*const each)(const char *name) = atomic_load(&steps.each);
    const long nth = atomic_load(&steps.nth);
    const char *none = NULL;
    long taken;

    if (each != NULL)
        each(name);
    if (nth == 0 || (steps.only >= 0 && who != steps.only) ||
        (!can_fail && (steps.action == STEPS_FAIL || steps.action == STEPS_INTERRUPT)))
        return 0;
    taken = atomic_fetch_add(&steps.taken, 1) + 1;
    if (taken != nth && !(steps.persistent && taken > nth))
        return 0;
    switch (steps.action) {
    case STEPS_KILL:
    case STEPS_STOP:
    case STEPS_EXIT:
        if (steps.before != NULL)
            steps.before();
        if (steps.action == STEPS_EXIT)
            _exit(9);
        kill(getpid(), steps.action == STEPS_KILL ? SIGKILL : SIGSTOP);
        return 0;
    case STEPS_FAIL:
    case STEPS_INTERRUPT:
        if (atomic_compare_exchange_strong(&steps.hit, &none, name))
            atomic_store(&steps.hit_who, who);
        return 1;
    case STEPS_COUNT:
        break;
    }
    return 0;
}

/* Errors that pass: they are not persistent. */
static int passes(int code)
{
    return code == EAGAIN || code == ECONNABORTED;
}

/* Fails with the code of the plan's variant, or with EINTR if the plan interrupts calls and EINTR
 * is among the codes. A call without such a code is no step. */
static int fails(const char *name, const int *codes, int count)
{
    const int interrupt = steps.action == STEPS_INTERRUPT;
    int left = steps.variant;
    int chosen = 0;
    int i;

    for (i = 0; i < count && chosen == 0; i++)
        if (codes[i] == EINTR
                ? interrupt
                : !interrupt && !(steps.persistent && passes(codes[i])) && left-- == 0)
            chosen = codes[i];
    if (!step(name, chosen != 0))
        return 0;
    errno = chosen;
    return 1;
}

#define FAILS(name, ...)                                                                           \
    fails(name, (const int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

/* ---- the system ---- */

int step_socket(int domain, int type, int protocol);
int step_socket(int domain, int type, int protocol)
{
    return FAILS("socket", EMFILE, ENOMEM) ? -1 : socket(domain, type, protocol);
}

int step_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int step_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return FAILS("connect", ECONNREFUSED, EACCES, EINTR) ? -1 : connect(fd, address, bytes);
}

int step_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int step_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return FAILS("bind", EACCES, EADDRINUSE) ? -1 : bind(fd, address, bytes);
}

int step_listen(int fd, int backlog);
int step_listen(int fd, int backlog)
{
    return FAILS("listen", EADDRINUSE) ? -1 : listen(fd, backlog);
}

int step_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int step_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    return FAILS("accept4", EMFILE, ENOMEM, EINTR, ECONNABORTED)
               ? -1
               : accept4(fd, address, bytes, flags);
}

int step_socketpair(int domain, int type, int protocol, int fds[2]);
int step_socketpair(int domain, int type, int protocol, int fds[2])
{
    return FAILS("socketpair", EMFILE, ENOMEM) ? -1 : socketpair(domain, type, protocol, fds);
}

ssize_t step_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t step_sendmsg(int fd, const struct msghdr *message, int flags)
{
    return FAILS("sendmsg", ENOMEM, EAGAIN, EINTR, ETOOMANYREFS) ? -1 : sendmsg(fd, message, flags);
}

ssize_t step_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t step_recvmsg(int fd, struct msghdr *message, int flags)
{
    return FAILS("recvmsg", ENOMEM, EAGAIN, EINTR) ? -1 : recvmsg(fd, message, flags);
}

int step_poll(struct pollfd *fds, nfds_t count, int timeout);
int step_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    return FAILS("poll", EINTR, ENOMEM) ? -1 : poll(fds, count, timeout);
}

int step_eventfd(unsigned value, int flags);
int step_eventfd(unsigned value, int flags)
{
    return FAILS("eventfd", EMFILE) ? -1 : eventfd(value, flags);
}

int step_memfd_create(const char *name, unsigned flags);
int step_memfd_create(const char *name, unsigned flags)
{
    return FAILS("memfd_create", ENOMEM, EMFILE) ? -1 : memfd_create(name, flags);
}

int step_open(const char *path, int flags, ...);
int step_open(const char *path, int flags, ...)
{
    va_list args;
    unsigned mode;

    va_start(args, flags);
    mode = va_arg(args, unsigned); /* used only where the flags need it */
    va_end(args);
    return FAILS("open", EMFILE, EACCES, EINTR) ? -1 : open(path, flags, mode);
}

int step_ftruncate(int fd, off_t bytes);
int step_ftruncate(int fd, off_t bytes)
{
    return FAILS("ftruncate", ENOSPC, EINTR) ? -1 : ftruncate(fd, bytes);
}

int step_fcntl(int fd, int command, ...);
int step_fcntl(int fd, int command, ...)
{
    va_list args;
    long value;

    va_start(args, command);
    value = va_arg(args, long);
    va_end(args);
    return FAILS("fcntl", EINVAL) ? -1 : fcntl(fd, command, value);
}

int step_fstat(int fd, struct stat *out);
int step_fstat(int fd, struct stat *out)
{
    return FAILS("fstat", EIO) ? -1 : fstat(fd, out);
}

int step_lstat(const char *path, struct stat *out);
int step_lstat(const char *path, struct stat *out)
{
    return FAILS("lstat", ENOENT, EACCES) ? -1 : lstat(path, out);
}

void *step_mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset);
void *step_mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset)
{
    return FAILS("mmap", ENOMEM) ? MAP_FAILED : mmap(at, bytes, rights, flags, fd, offset);
}

int step_munmap(void *at, size_t bytes);
int step_munmap(void *at, size_t bytes)
{
    step("munmap", 0);
    return munmap(at, bytes);
}

int step_close(int fd);
int step_close(int fd)
{
    step("close", 0);
    return close(fd);
}

int step_shutdown(int fd, int how);
int step_shutdown(int fd, int how)
{
    step("shutdown", 0);
    return shutdown(fd, how);
}

char *step_mkdtemp(char *name);
char *step_mkdtemp(char *name)
{
    return FAILS("mkdtemp", EACCES, EROFS) ? NULL : mkdtemp(name);
}

int step_unlink(const char *path);
int step_unlink(const char *path)
{
    step("unlink", 0);
    return unlink(path);
}

int step_rmdir(const char *path);
int step_rmdir(const char *path)
{
    step("rmdir", 0);
    return rmdir(path);
}

ssize_t step_getrandom(void *out, size_t bytes, unsigned flags);
ssize_t step_getrandom(void *out, size_t bytes, unsigned flags)
{
    return FAILS("getrandom", EINTR, ENOSYS) ? -1 : getrandom(out, bytes, flags);
}

int step_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
int step_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
    return FAILS("getsockopt", EINVAL) ? -1 : getsockopt(fd, level, name, value, bytes);
}

ssize_t step_write(int fd, const void *data, size_t bytes);
ssize_t step_write(int fd, const void *data, size_t bytes)
{
    step("write", 0);
    return write(fd, data, bytes);
}

ssize_t step_read(int fd, void *data, size_t bytes);
ssize_t step_read(int fd, void *data, size_t bytes)
{
    step("read", 0);
    return read(fd, data, bytes);
}

long step_syscall(long number, long a, long b, long c, long d, long e, long f);
long step_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    /* FUTEX_WAKE cannot fail. */
    if (number == SYS_futex && ((int)b & FUTEX_CMD_MASK) == FUTEX_WAIT && FAILS("futex", EINTR))
        return -1;
    return syscall(number, a, b, c, d, e, f);
}

int step_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*f)(void *),
                        void *arg);
int step_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*f)(void *),
                        void *arg)
{
    return step("pthread_create", steps.action == STEPS_FAIL && steps.variant == 0)
               ? EAGAIN
               : pthread_create(thread, attributes, f, arg);
}

/* ---- locks: no steps, only counted ---- */

int step_pthread_mutex_lock(pthread_mutex_t *mutex);
int step_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    const int error = pthread_mutex_lock(mutex);

    locks += error == 0;
    return error;
}

int step_pthread_mutex_trylock(pthread_mutex_t *mutex);
int step_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    const int error = pthread_mutex_trylock(mutex);

    locks += error == 0;
    return error;
}

int step_pthread_mutex_unlock(pthread_mutex_t *mutex);
int step_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    locks--;
    return pthread_mutex_unlock(mutex);
}

/* ---- memory ---- */

void *step_malloc(size_t bytes);
void *step_malloc(size_t bytes)
{
    return FAILS("malloc", ENOMEM) ? NULL : malloc(bytes);
}

void *step_calloc(size_t count, size_t bytes);
void *step_calloc(size_t count, size_t bytes)
{
    return FAILS("calloc", ENOMEM) ? NULL : calloc(count, bytes);
}

void *step_realloc(void *old, size_t bytes);
void *step_realloc(void *old, size_t bytes)
{
    return FAILS("realloc", ENOMEM) ? NULL : realloc(old, bytes);
}

void *step_aligned_alloc(size_t alignment, size_t bytes);
void *step_aligned_alloc(size_t alignment, size_t bytes)
{
    return FAILS("aligned_alloc", ENOMEM) ? NULL : aligned_alloc(alignment, bytes);
}

/* ---- the driver: emu_enter() comes first in every call ---- */

int __real_emu_enter(int entry);
int __wrap_emu_enter(int entry);

int __wrap_emu_enter(int entry)
{
    step("driver", 0); /* the driver's fault injection fails calls */
    return __real_emu_enter(entry);
}
