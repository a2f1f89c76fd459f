/* What a failed call reports: the same on all ranks.
 *
 * Any thread that sees a reason to give up writes it to its rank's state.failed, and the kernel leaves. One thread of the
 * rank settles what is reported:
 *
 *   said      it writes the call's arguments to its own state, where others may read them
 *   claimed   of all ranks the first to set this word, in the state of rank 0, judges: who is to blame, and for what
 *   found     the verdict, there. The others wait for it, a bounded time, and report that and not what they have seen
 *   failed    the judge writes it at all peers: those that wait leave at the next look, and a kernel that starts later
 *             leaves at once, with the same report
 *
 * So ranks that time out, and one that comes late, say the same; and where arguments differ, the wrong rank names itself.
 * Only where a late kernel has read state.failed before the judge's word has come, and needs nothing more of its peers
 * (a one-shot), the call can end well on that rank; the next one does not. A rank that has left is no failure of those
 * whose calls do not need it, so of that the peers are not told: each finds out by itself.
 *
 * Nothing of this costs a call that succeeds: state.failed is read when a kernel begins anyway, and what is here is not
 * inlined, but called where a wait has been given up.
 */
#ifndef SYMWIN_KERNELS_FAILURE_CUH
#define SYMWIN_KERNELS_FAILURE_CUH

/* Included by call.cuh, where it is needed. */

#if SYMWIN_EMULATED
#define SW_DEVICE_SLOW static
#else
#define SW_DEVICE_SLOW static __device__ __noinline__
#endif

/* How long the judge waits for the others' headers and arguments, and they for the verdict. */
#define SW_JUDGE_NS 1000000000u
#define SW_VERDICT_NS 5000000000u

#define SW_STATE_AT(state, member) ((state) + offsetof(struct sw_comm_state, member))
#define SW_FOUND_AT(found, member) ((found) + offsetof(struct sw_finding, member))

/* Until then, unless the host asks to leave. */
struct sw_patience {
    uint64_t begin, most;
};

SYMWIN_DEVICE bool sw_is_patient(const struct sw_kernel_args &args, const sw_patience &patience)
{
    symwin_pause();
    return symwin_clock_ns() - patience.begin < patience.most &&
           symwin_load_relaxed_u32(args.report + offsetof(struct sw_kernel_report, abort)) == 0;
}

/* The own state's header of rank p: whether it has come to the call, with which digest. */
SYMWIN_DEVICE bool sw_has_come(const struct sw_kernel_args &args, const sw_call &call, int32_t p,
                               uint32_t *digest)
{
    const uint64_t header = symwin_load_acquire_u64(
        call.state + SW_STATE_HEADER(args.nranks, call.epoch & 1, p));

    *digest = p == args.rank ? args.digest : (uint32_t)header;
    return p == args.rank || (uint32_t)(header >> 32) == call.epoch;
}

/* ---- arguments that differ ------------------------------------------------------------------- */

SYMWIN_DEVICE void sw_say_arguments(const struct sw_kernel_args &args, const sw_call &call)
{
    const uint64_t said = SW_STATE_AT(call.state, said);

    symwin_store_relaxed_u32(said + offsetof(struct sw_said, epoch), call.epoch);
    symwin_store_relaxed_u32(said + offsetof(struct sw_said, what), args.what);
    symwin_store_relaxed_u64(said + offsetof(struct sw_said, count), args.count);
    symwin_store_relaxed_u64(said + offsetof(struct sw_said, in_offset), args.in_offset);
    symwin_store_relaxed_u64(said + offsetof(struct sw_said, out_offset), args.out_offset);
    symwin_store_release_u32(said + offsetof(struct sw_said, ready), 1);
}

/* Where rank p has said its arguments of the call; 0: it does not. */
SYMWIN_DEVICE uint64_t sw_await_arguments(const struct sw_kernel_args &args, const sw_call &call,
                                          const sw_patience &patience, int32_t p)
{
    const uint64_t said = SW_STATE_AT(sw_state_address(args, call, p, 0), said);

    while (symwin_load_acquire_u32(said + offsetof(struct sw_said, ready)) == 0)
        if (!sw_is_patient(args, patience))
            return 0;
    return symwin_load_relaxed_u32(said + offsetof(struct sw_said, epoch)) == call.epoch ? said : 0;
}

/* An argument, by enum sw_kernel_argument. */
SYMWIN_DEVICE uint64_t sw_argument_of(uint64_t said, uint32_t argument)
{
    const uint32_t what = symwin_load_relaxed_u32(said + offsetof(struct sw_said, what));

    switch (argument) {
    case SW_ARGUMENT_COLLECTIVE:
        return SW_WHAT_COLLECTIVE(what);
    case SW_ARGUMENT_COUNT:
        return symwin_load_relaxed_u64(said + offsetof(struct sw_said, count));
    case SW_ARGUMENT_TYPE:
        return SW_WHAT_TYPE(what);
    case SW_ARGUMENT_OP:
        return SW_WHAT_OP(what);
    case SW_ARGUMENT_ALGO:
        return SW_WHAT_ALGO(what);
    case SW_ARGUMENT_IN:
        return symwin_load_relaxed_u64(said + offsetof(struct sw_said, in_offset));
    default:
        return symwin_load_relaxed_u64(said + offsetof(struct sw_said, out_offset));
    }
}

SYMWIN_DEVICE void sw_compare_arguments(uint64_t found, uint64_t a, uint64_t b)
{
    SYMWIN_NO_UNROLL
    for (uint32_t argument = SW_ARGUMENT_COLLECTIVE; argument <= SW_ARGUMENT_OUT; argument++) {
        const uint64_t theirs = sw_argument_of(a, argument), others = sw_argument_of(b, argument);

        if (theirs == others)
            continue;
        symwin_store_relaxed_u64(SW_FOUND_AT(found, theirs), theirs);
        symwin_store_relaxed_u64(SW_FOUND_AT(found, others), others);
        symwin_store_relaxed_u32(SW_FOUND_AT(found, argument), argument);
        return;
    }
}

/* The digest that more than half of those who came have; else that of the lowest, and *tie. */
SYMWIN_DEVICE uint32_t sw_usual_digest(const struct sw_kernel_args &args, const sw_call &call,
                                       uint32_t *tie)
{
    uint32_t digest, candidate = 0, first = 0;
    int32_t lead = 0, came = 0, votes = 0;

    /* Boyer and Moore: a digest that more than half have is the candidate in the end. */
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++) {
        if (!sw_has_come(args, call, p, &digest))
            continue;
        if (came++ == 0)
            first = digest;
        if (lead == 0)
            candidate = digest;
        lead += digest == candidate ? 1 : -1;
    }
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++)
        votes += sw_has_come(args, call, p, &digest) && digest == candidate;
    *tie = 2 * votes <= came;
    return *tie ? first : candidate;
}

SYMWIN_DEVICE void sw_judge_mismatch(const struct sw_kernel_args &args, const sw_call &call,
                                     uint64_t found)
{
    const sw_patience patience = {symwin_clock_ns(), SW_JUDGE_NS};
    int32_t culprit = -1, other = -1;
    uint64_t differ = 0, agree = 0, a, b;
    uint32_t usual, digest, tie;

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++)
        while (!sw_has_come(args, call, p, &digest) && sw_is_patient(args, patience))
            ;
    usual = sw_usual_digest(args, call, &tie);
    SYMWIN_NO_UNROLL
    for (int32_t p = args.nranks - 1; p >= 0; p--) {
        const uint64_t bit = p < 64 ? (uint64_t)1 << p : 0;

        if (!sw_has_come(args, call, p, &digest))
            continue;
        (digest == usual ? other : culprit) = p;
        (digest == usual ? agree : differ) |= bit;
    }
    symwin_store_relaxed_u32(SW_FOUND_AT(found, rank), (uint32_t)culprit);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, other), (uint32_t)other);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, tie), tie);
    symwin_store_relaxed_u64(SW_FOUND_AT(found, differ), differ);
    symwin_store_relaxed_u64(SW_FOUND_AT(found, agree), agree);
    if (culprit < 0 || other < 0)
        return;
    a = sw_await_arguments(args, call, patience, culprit);
    b = sw_await_arguments(args, call, patience, other);
    if (a != 0 && b != 0)
        sw_compare_arguments(found, a, b);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Whom to blame for a wait that took too long: who waits for a third may be waited for as well, so the lowest that has not
 * come to the call, if there is one. */
SYMWIN_DEVICE int32_t sw_who_is_late(const struct sw_kernel_args &args, const sw_call &call,
                                     int32_t peer)
{
    uint32_t digest;

    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++)
        if (!sw_has_come(args, call, p, &digest))
            return p;
    return peer;
}

/* Writes what this rank knows to `found`, all zero before, and returns the culprit. */
SYMWIN_DEVICE int32_t sw_judge(const struct sw_kernel_args &args, const sw_call &call,
                               uint64_t found, uint32_t code, int32_t peer)
{
    if (code == SW_KERNEL_TIMEOUT)
        peer = sw_who_is_late(args, call, peer);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, code), code);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, epoch), call.epoch);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, rank), (uint32_t)peer);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, other), (uint32_t)args.rank);
    symwin_store_relaxed_u64(SW_FOUND_AT(found, theirs), args.timeout_ns);
    if (code != SW_KERNEL_MISMATCH)
        return peer;
    symwin_store_relaxed_u64(SW_FOUND_AT(found, theirs), 0);
    sw_judge_mismatch(args, call, found);
    return (int32_t)symwin_load_relaxed_u32(SW_FOUND_AT(found, rank));
}

SYMWIN_DEVICE void sw_tell_peers(const struct sw_kernel_args &args, const sw_call &call,
                                 uint32_t word)
{
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++)
        (void)symwin_atomic_cas_u32(
            sw_state_address(args, call, p, offsetof(struct sw_comm_state, failed)), 0, word);
}

/* The verdict of all ranks, which this one may have to reach: where it is; 0: there is none. */
SYMWIN_DEVICE uint64_t sw_verdict(const struct sw_kernel_args &args, const sw_call &call,
                                  uint32_t code, int32_t peer)
{
    const uint64_t judge = sw_state_address(args, call, 0, 0);
    const uint64_t found = SW_STATE_AT(judge, found);
    const uint64_t claimed = SW_STATE_AT(judge, claimed), judged = SW_STATE_AT(judge, judged);
    const uint64_t begin = symwin_clock_ns();

    /* An abort is the hosts' word, and they agree on it; but it may come because of a verdict. */
    if (code == SW_KERNEL_ABORTED && symwin_load_acquire_u32(claimed) == 0)
        return 0;
    if (code != SW_KERNEL_ABORTED && symwin_atomic_cas_u32(claimed, 0, 1) == 0) {
        const int32_t culprit = sw_judge(args, call, found, code, peer);

        symwin_store_release_u32(judged, 1);
        if (code != SW_KERNEL_LEFT)
            sw_tell_peers(args, call, SW_FAILED(code, culprit, call.epoch));
        return found;
    }
    while (symwin_load_acquire_u32(judged) == 0) {
        symwin_pause();
        if (symwin_clock_ns() - begin > SW_VERDICT_NS)
            return 0;
    }
    return found;
}

/* By any thread that knows of a failure. */
SW_DEVICE_SLOW void sw_call_report(const struct sw_kernel_args &args, uint32_t epoch)
{
    const uint64_t to = args.report + offsetof(struct sw_kernel_report, found);
    uint64_t from;
    uint32_t word, code;
    sw_call call;

    call.peers = {args.base, args.stride, args.rank, args.nranks};
    call.state = symwin_own_address(call.peers, args.state);
    call.epoch = epoch;
    word = symwin_load_relaxed_u32(sw_failed_address(call));
    code = SW_FAILED_CODE(word);
    /* Blocks other than 0 keep a mismatch to themselves: nothing is known yet, and block 0 comes to it. */
    if (word == 0 || symwin_load_relaxed_u32(SW_STATE_AT(call.state, settled)) != 0 ||
        symwin_atomic_cas_u32(SW_STATE_AT(call.state, settled), 0, 1) != 0)
        return;
    sw_say_arguments(args, call);
    from = sw_verdict(args, call, code, (int32_t)SW_FAILED_PEER(word));
    if (from == 0)
        (void)sw_judge(args, call, to, code == SW_KERNEL_MISMATCH ? 0 : code,
                       (int32_t)SW_FAILED_PEER(word));
    SYMWIN_NO_UNROLL
    for (uint32_t at = 0; from != 0 && at < sizeof(struct sw_finding); at += 4)
        symwin_store_relaxed_u32(to + at, symwin_load_relaxed_u32(from + at));
    symwin_store_release_u32(args.report + offsetof(struct sw_kernel_report, code),
                             from == 0 ? code : symwin_load_relaxed_u32(SW_FOUND_AT(from, code)));
}

#endif
