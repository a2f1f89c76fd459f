/* What a forked child must not have: the close-on-fork set, and state that it forgets. The poll
 * thread's fork handlers use both. */
#include <errno.h>
#include <unistd.h>

#include "src/base/base.h"

/* The bits take 128 KiB; pages for high numbers are never touched where numbers are low. */
enum { WORD_BITS = 32 };

static atomic_uint close_on_fork[SW_FORK_SET_MOST / WORD_BITS]; /* a bit per descriptor */
static atomic_int words_used;                                   /* 1 + the highest word ever used */

int sw_fork_set_add(int fd)
{
    int words;

    if (fd < 0)
        return 1;
    if (fd >= SW_FORK_SET_MOST)
        return 0;
    atomic_fetch_or(&close_on_fork[fd / WORD_BITS], 1u << fd % WORD_BITS);
    words = atomic_load(&words_used);
    while (words <= fd / WORD_BITS &&
           !atomic_compare_exchange_weak(&words_used, &words, fd / WORD_BITS + 1))
        ;
    return 1;
}

void sw_fork_set_remove(int fd)
{
    if (fd >= 0 && fd < SW_FORK_SET_MOST)
        atomic_fetch_and(&close_on_fork[fd / WORD_BITS], ~(1u << fd % WORD_BITS));
}

int sw_fork_set_add_new(int fd)
{
    if (fd < 0 || sw_fork_set_add(fd))
        return fd;
    close(fd);
    errno = EMFILE;
    return -1;
}

enum { MOST_FORGET = 8 }; /* more than there are callers */

static void (*_Atomic forgets[MOST_FORGET])(void); /* NULL: free */

void sw_fork_register(void (*forget)(void))
{
    int i;

    for (i = 0; i < MOST_FORGET; i++) {
        void (*none)(void) = NULL;

        if (atomic_compare_exchange_strong(&forgets[i], &none, forget) || none == forget)
            return;
    }
}

void sw_fork_child(void)
{
    void (*forget)(void);
    int fd, i;

    for (fd = 0; fd < words_used * WORD_BITS; fd++)
        if ((atomic_load(&close_on_fork[fd / WORD_BITS]) & 1u << fd % WORD_BITS) != 0) {
            sw_fork_set_remove(fd);
            close(fd);
        }
    for (i = 0; i < MOST_FORGET && (forget = atomic_load(&forgets[i])) != NULL; i++)
        forget();
}
