/* The second file of the program; it too includes all of symwin's device headers. A sum over all
 * ranks. */
#include "user.h"

SYMWIN_KERNEL(sum_received, user_args, args, THREADS)
{
    const symwin_team team = symwin_team_all(args.span.peers);
    const symwin_limit limit = {args.timeout_ns, 0};

    if (!symwin_barrier_grid(team, args.span.offset + BARRIER, limit)) {
        symwin_store_relaxed_u32(symwin_span_own(args.span, GAVE_UP), 1);
        return;
    }
    symwin_reduce_peers<symwin_type_f32, symwin_op_sum>(symwin_group_grid(), team,
                                                        symwin_span_own(args.span, RESULT),
                                                        args.span.offset + RECEIVED, COUNT);
    if (!symwin_barrier_grid(team, args.span.offset + BARRIER, limit))
        symwin_store_relaxed_u32(symwin_span_own(args.span, GAVE_UP), 1);
}

bool user_sum(const struct user_rank *r)
{
    return USER_LAUNCH(sum_received, r, 0);
}
