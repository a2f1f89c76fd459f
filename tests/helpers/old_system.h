/* A system that cannot refuse descriptors (Linux before 6.16), where is_old is set. */
#ifndef SYMWIN_TESTS_OLD_SYSTEM_H
#define SYMWIN_TESTS_OLD_SYSTEM_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_old;

/* Replaces the C library's. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    if (is_old && level == SOL_SOCKET && name == 83) { /* SO_PASSRIGHTS */
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
}

#endif
