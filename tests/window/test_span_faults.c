/* The fault sweep of window registrations on several physical allocations. */
#include "user_memory.h"

struct state {
    int on;
    symwin_comm *comm;
    struct span span;
    symwin_window *first, *window;
};

#include "fault_sweep.h"

static void clear(struct state *s)
{
    if (s->window != NULL)
        symwin_window_deregister(s->comm, s->window);
    if (s->first != NULL)
        symwin_window_deregister(s->comm, s->first);
    symwin_comm_destroy(s->comm);
    if (s->span.range != 0)
        span_free(&s->span);
}

static const struct span_cuts cuts[2] = {{{{1, 2}, {1, 1}}, 0}, {{{3, 1}}, 0}};

static symwin_status with_memory(struct harness_team *team, int rank, struct state *s)
{
    span_make(&s->span, s->on, &cuts[rank]);
    return harness_comm(team, rank, &s->comm);
}

static symwin_status make(struct state *s, size_t bytes, symwin_window **window)
{
    return symwin_window_register(s->comm, span_at(&s->span, 0), bytes, 0, window);
}

static symwin_status with_window(struct harness_team *team, int rank, struct state *s)
{
    const symwin_status status = with_memory(team, rank, s);

    return status == SYMWIN_OK ? make(s, (size_t)2 * GRANULE, &s->first) : status;
}

static symwin_status call(struct harness_team *team, int rank, struct state *s)
{
    (void)team;
    (void)rank;
    return make(s, s->span.bytes, &s->window);
}

static int made(const struct state *s)
{
    return s->window != NULL;
}

int main(void)
{
    static const struct fault_case cases[] = {
        {"a window on several allocations", 2, with_memory, call, made, 1},
        {"a window on more than another's", 2, with_window, call, made, 1},
    };

    return sweep_all(cases, sizeof cases / sizeof cases[0]);
}
