/* A frame sent before the other end closed is received, however the send and the close coincide. A
 * process that sends its last frame and ends is not mistaken for one that ended without it. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/bootstrap/rendezvous.h"
#include "tap.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TIMES = 2000 };
#else
enum { TIMES = 10000 };
#endif

static int ends[2];
static atomic_int begun, closed;

static void *say_and_close(void *arg)
{
    union sw_frame frame = {.pass = {.process = 0}};
    int i;

    (void)arg;
    sw_frame_seal(&frame, SW_FRAME_GO);
    for (i = 1; i <= TIMES; i++) {
        while (atomic_load(&begun) < i)
            ;
        (void)sw_frame_send_now(ends[1], &frame, -1);
        close(ends[1]);
        atomic_store(&closed, i);
    }
    return NULL;
}

int main(void)
{
    int heard = 0, ended = 0;
    pthread_t thread;
    int i;

    if (pthread_create(&thread, NULL, say_and_close, NULL) != 0)
        return 1;
    for (i = 1; i <= TIMES; i++) {
        union sw_frame frame;
        int error;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
            return 1;
        atomic_store(&begun, i);
        while ((error = sw_frame_receive_now(ends[0], &frame, NULL)) == EAGAIN)
            ;
        heard += error == 0 && frame.header.type == SW_FRAME_GO;
        while (atomic_load(&closed) < i)
            ;
        ended += sw_frame_receive_now(ends[0], &frame, NULL) == EPIPE;
        close(ends[0]);
    }
    pthread_join(thread, NULL);
    TAP_EQ("the last frame is received", heard, TIMES);
    TAP_EQ("and then the end", ended, TIMES);
    return tap_done();
}
