/* Child processes of the conformance cases, and sockets to them. */
#include "conformance.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

/* ---- child processes ------------------------------------------------------------------------- */

void conf_child_start(struct conf_child *child, const char *mode, const char *arg,
                      const char *const *env)
{
    char *argv[] = {(char *)"child", (char *)mode, (char *)arg, NULL};

    *child = (struct conf_child){.output = memfd_create("child output", MFD_CLOEXEC)};
    if (child->output < 0)
        conf_bail("memfd_create");
    child->pid = child_spawn(argv, env, child->output, STDERR_FILENO, child->output);
}

void conf_child_wait(struct conf_child *child)
{
    ssize_t bytes;

    while (waitpid(child->pid, &child->status, 0) < 0 && errno == EINTR)
        continue;
    bytes = pread(child->output, child->text, sizeof child->text - 1, 0);
    child->text[bytes > 0 ? bytes : 0] = '\0';
    close(child->output);
}

int conf_child_run(struct conf_child *child, const char *mode, const char *arg,
                   const char *const *env)
{
    conf_child_start(child, mode, arg, env);
    conf_child_wait(child);
    return WIFSIGNALED(child->status) ? -WTERMSIG(child->status) : WEXITSTATUS(child->status);
}

void conf_child_no_core(void)
{
    const struct rlimit none = {0, 0};

    setrlimit(RLIMIT_CORE, &none);
}

/* ---- sockets to child processes -------------------------------------------------------------- */

/* A byte, with or without a descriptor. */
struct wire_message {
    struct msghdr header;
    struct iovec data;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    char byte;
};

static void wire_prepare(struct wire_message *m)
{
    memset(m, 0, sizeof *m);
    m->byte = 'f';
    m->data = (struct iovec){&m->byte, 1};
    m->header.msg_iov = &m->data;
    m->header.msg_iovlen = 1;
    m->header.msg_control = m->control;
    m->header.msg_controllen = sizeof m->control;
}

int wire_send_fd(int to, int fd)
{
    struct wire_message m;
    struct cmsghdr *header;

    wire_prepare(&m);
    header = CMSG_FIRSTHDR(&m.header);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(to, &m.header, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

int wire_receive_fd(int from)
{
    struct wire_message m;
    struct cmsghdr *header;
    int fd = -1;

    wire_prepare(&m);
    if (recvmsg(from, &m.header, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    header = CMSG_FIRSTHDR(&m.header);
    if (header != NULL && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

int wire_send(int to, const void *data, size_t bytes)
{
    return send(to, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -1;
}

int wire_receive(int from, void *data, size_t bytes)
{
    return recv(from, data, bytes, 0) == (ssize_t)bytes ? 0 : -1;
}

int wire_tell(int to)
{
    return wire_send(to, "g", 1);
}

int wire_wait_for(int from)
{
    char byte;

    return wire_receive(from, &byte, 1);
}

/* Starts a child as `mode` with the number of its end of a socket as the argument; the other end.
 */
int wire_child(struct conf_child *process, const char *mode, const char *const *env)
{
    char number[16];
    int ends[2], theirs;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0 ||
        (theirs = dup(ends[1])) < 0) /* without CLOEXEC */
        conf_bail("socketpair");
    snprintf(number, sizeof number, "%d", theirs);
    conf_child_start(process, mode, number, env);
    close(theirs);
    close(ends[1]);
    return ends[0];
}
