/* What a failed call reports: the same on all ranks.
 *
 * Any thread that sees a reason to give up writes it to its rank's state.failed, and the kernel
 * leaves. One thread of the rank determines the report, with these words:
 *
 *  said      it writes the call's arguments to its own state, where peers can read them
 *  claimed   in the state of rank 0: the first rank to set it is the judge, which finds the culprit
 *            and the reason
 *  found     in the state of rank 0: the verdict. The other ranks wait for it, for a bounded time,
 *            and report it instead of what they saw themselves
 *  failed    the judge writes it at all peers: peers that wait leave at their next look, and a
 *            kernel that starts later leaves at once, with the same report
 *
 * So ranks that time out and a rank that is late report the same. If arguments differ, the rank
 * that is wrong names itself.
 *
 * There are two exceptions. A late kernel that read state.failed before the judge's word arrived,
 * and that needs nothing more from its peers (a one-shot), can succeed on its rank; the next call
 * fails there. A rank that has left is no failure for ranks whose calls do not need it, so the
 * judge does not tell peers of it: each finds out by itself.
 *
 * A call that succeeds pays nothing for this: state.failed is read when a kernel begins in any
 * case, and the code here is not inlined but called after a wait was given up.
 */
#ifndef SYMWIN_KERNELS_FAILURE_CUH
#define SYMWIN_KERNELS_FAILURE_CUH

/* call.cuh includes this file after the declarations that it needs. */

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

/* A deadline: `most` ns after `begin`, or earlier if the host asks to leave. */
struct sw_patience {
    uint64_t begin, most;
};

SYMWIN_DEVICE bool sw_is_patient(const struct sw_kernel_args &args, const sw_patience &patience)
{
    symwin_pause();
    return symwin_clock_ns() - patience.begin < patience.most &&
           symwin_load_relaxed_u32(args.report + offsetof(struct sw_kernel_report, abort)) == 0;
}

/* Whether rank p's header of this call has arrived in our state, and the digest in it. */
SYMWIN_DEVICE bool sw_has_come(const struct sw_kernel_args &args, const sw_call &call, int32_t p,
                               uint32_t *digest)
{
    const uint64_t header = symwin_load_acquire_u64(
        call.state + SW_STATE_HEADER(args.nranks, call.epoch & 1, p));

    *digest = p == args.rank ? args.digest : (uint32_t)header;
    return p == args.rank || (uint32_t)(header >> 32) == call.epoch;
}

/* ---- arguments that differ ------------------------------------------------------------------- */

/* Address of call `k` of what a rank says. */
SYMWIN_DEVICE uint64_t sw_said_call_at(uint64_t said, uint32_t k)
{
    return said + offsetof(struct sw_said, call) + k * sizeof(struct sw_said_call);
}

SYMWIN_DEVICE void sw_say_call(uint64_t to, const struct sw_said_call &says)
{
    symwin_store_relaxed_u64(to + offsetof(struct sw_said_call, count), says.count);
    symwin_store_relaxed_u32(to + offsetof(struct sw_said_call, what), says.what);
    symwin_store_relaxed_u32(to + offsetof(struct sw_said_call, root), (uint32_t)says.root);
    symwin_store_relaxed_u32(to + offsetof(struct sw_said_call, number), says.number);
}

SYMWIN_DEVICE void sw_say_arguments(const struct sw_kernel_args &args, const sw_call &call)
{
    const uint64_t said = SW_STATE_AT(call.state, said);
    const struct sw_group_args &group = reinterpret_cast<const struct sw_group_args &>(args);
    const uint32_t listed = args.calls > 0 ? group.listed : 1;

    symwin_store_relaxed_u32(said + offsetof(struct sw_said, epoch), call.epoch);
    symwin_store_relaxed_u32(said + offsetof(struct sw_said, calls),
                             args.calls > 0 ? args.calls : 1);
    symwin_store_relaxed_u32(said + offsetof(struct sw_said, listed), listed);
    if (args.calls == 0)
        sw_say_call(sw_said_call_at(said, 0), {args.count, args.what, args.root, 0, 0});
    SYMWIN_NO_UNROLL
    for (uint32_t k = 0; args.calls > 0 && k < listed; k++)
        sw_say_call(sw_said_call_at(said, k), group.item[k].says);
    symwin_store_relaxed_u64(said + offsetof(struct sw_said, in_offset),
                             args.from >= 0 ? 0 : args.in_offset);
    symwin_store_relaxed_u64(said + offsetof(struct sw_said, out_offset), args.out_offset);
    symwin_store_release_u32(said + offsetof(struct sw_said, ready), 1);
}

/* Address of rank p's arguments of this call; 0: rank p has not published them. */
SYMWIN_DEVICE uint64_t sw_await_arguments(const struct sw_kernel_args &args, const sw_call &call,
                                          const sw_patience &patience, int32_t p)
{
    const uint64_t said = SW_STATE_AT(sw_state_address(args, call, p, 0), said);

    while (symwin_load_acquire_u32(said + offsetof(struct sw_said, ready)) == 0)
        if (!sw_is_patient(args, patience))
            return 0;
    return symwin_load_relaxed_u32(said + offsetof(struct sw_said, epoch)) == call.epoch ? said : 0;
}

/* An argument of call `k`, by enum sw_kernel_argument. */
SYMWIN_DEVICE uint64_t sw_argument_of(uint64_t said, uint32_t k, uint32_t argument)
{
    const uint64_t at = sw_said_call_at(said, k);
    const uint32_t what = symwin_load_relaxed_u32(at + offsetof(struct sw_said_call, what));

    switch (argument) {
    case SW_ARGUMENT_COLLECTIVE:
        return SW_WHAT_COLLECTIVE(what);
    case SW_ARGUMENT_COUNT:
        return symwin_load_relaxed_u64(at + offsetof(struct sw_said_call, count));
    case SW_ARGUMENT_TYPE:
        return SW_WHAT_TYPE(what);
    case SW_ARGUMENT_OP:
        return SW_WHAT_OP(what);
    case SW_ARGUMENT_ROOT:
        return symwin_load_relaxed_u32(at + offsetof(struct sw_said_call, root));
    case SW_ARGUMENT_ALGO:
        return SW_WHAT_ALGO(what);
    case SW_ARGUMENT_CALLS:
        return symwin_load_relaxed_u32(said + offsetof(struct sw_said, calls));
    case SW_ARGUMENT_IN:
        return symwin_load_relaxed_u64(said + offsetof(struct sw_said, in_offset));
    default:
        return symwin_load_relaxed_u64(said + offsetof(struct sw_said, out_offset));
    }
}

/* Whether two ranks differ in an argument of call `k`, which is then in `found`. Algorithms that
 * differ in windows alone are the same: whoever needs windows has another algorithm. */
SYMWIN_DEVICE bool sw_argument_differs(uint64_t found, uint64_t a, uint64_t b, uint32_t k,
                                       uint32_t argument)
{
    const uint64_t theirs = sw_argument_of(a, k, argument), others = sw_argument_of(b, k, argument);
    const uint64_t counts = argument == SW_ARGUMENT_ALGO ? 0xff : ~(uint64_t)0;

    if (((theirs ^ others) & counts) == 0)
        return false;
    symwin_store_relaxed_u64(SW_FOUND_AT(found, theirs), theirs);
    symwin_store_relaxed_u64(SW_FOUND_AT(found, others), others);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, argument), argument);
    return true;
}

/* The number of call `k` in its group. One of the two ranks may have made it alone: 0. */
SYMWIN_DEVICE uint32_t sw_number_of(uint64_t a, uint64_t b, uint32_t k)
{
    const uint64_t number = offsetof(struct sw_said_call, number);
    const uint32_t theirs = symwin_load_relaxed_u32(sw_said_call_at(a, k) + number);

    return theirs > 0 ? theirs : symwin_load_relaxed_u32(sw_said_call_at(b, k) + number);
}

SYMWIN_DEVICE void sw_compare_arguments(uint64_t found, uint64_t a, uint64_t b)
{
    const uint32_t ours = symwin_load_relaxed_u32(a + offsetof(struct sw_said, listed));
    const uint32_t others = symwin_load_relaxed_u32(b + offsetof(struct sw_said, listed));

    SYMWIN_NO_UNROLL
    for (uint32_t k = 0; k < ours && k < others; k++) {
        SYMWIN_NO_UNROLL
        for (uint32_t argument = SW_ARGUMENT_COLLECTIVE; argument <= SW_ARGUMENT_ALGO; argument++)
            if (sw_argument_differs(found, a, b, k, argument)) {
                symwin_store_relaxed_u32(SW_FOUND_AT(found, number), sw_number_of(a, b, k));
                return;
            }
    }
    (void)(sw_argument_differs(found, a, b, 0, SW_ARGUMENT_CALLS) ||
           sw_argument_differs(found, a, b, 0, SW_ARGUMENT_IN) ||
           sw_argument_differs(found, a, b, 0, SW_ARGUMENT_OUT));
}

/* The digest of more than half of the ranks that have come. If there is none: *tie is set, and the
 * result is the digest of the lowest of these ranks. */
SYMWIN_DEVICE uint32_t sw_usual_digest(const struct sw_kernel_args &args, const sw_call &call,
                                       uint32_t *tie)
{
    uint32_t digest, candidate = 0, first = 0;
    int32_t lead = 0, came = 0, votes = 0;

    /* Boyer and Moore's majority vote: a digest of more than half ends up as the candidate. */
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

/* From rank to rank as each says for whom it waits in a send or receive. */
SYMWIN_DEVICE int32_t sw_who_waits_not(const struct sw_kernel_args &args, const sw_call &call,
                                       int32_t peer)
{
    SYMWIN_NO_UNROLL
    for (int32_t turn = 0; turn < args.nranks; turn++) {
        const uint32_t next = (uint32_t)symwin_load_relaxed_u64(
            SW_STATE_AT(sw_state_address(args, call, peer, 0), awaits));

        if (next == 0 || next > (uint32_t)args.nranks || (int32_t)next - 1 == args.rank)
            break;
        peer = (int32_t)next - 1;
    }
    return peer;
}

/* The rank to blame for a timeout: the lowest rank that has not come to the call, if any. The rank
 * waited for may itself wait for another rank. */
SYMWIN_DEVICE int32_t sw_who_is_late(const struct sw_kernel_args &args, const sw_call &call,
                                     int32_t peer)
{
    uint32_t digest;

    if (args.what == SW_WHAT_PAIRS)
        return sw_who_waits_not(args, call, peer);
    SYMWIN_NO_UNROLL
    for (int32_t p = 0; p < args.nranks; p++)
        if (!sw_has_come(args, call, p, &digest))
            return sw_who_waits_not(args, call, p);
    return peer;
}

/* Counts or types that differ between `peer` and this rank, or, in a call by table, a part for
 * `peer` that is not in memory here. This rank has seen it (sw_counts_differ()). Of two that
 * differ, the sender comes first. */
SYMWIN_DEVICE int32_t sw_judge_counts(const struct sw_kernel_args &args, const sw_call &call,
                                      uint64_t found, uint32_t code, int32_t peer)
{
    const uint64_t pair = SW_STATE_AT(call.state, pair);
    const uint32_t out = symwin_load_relaxed_u32(SW_STATE_AT(call.state, pair_is_out));
    const bool self = code == SW_KERNEL_ROOM || code == SW_KERNEL_NULL || out == 0;
    const int32_t culprit = self ? args.rank : peer;

    symwin_store_relaxed_u32(SW_FOUND_AT(found, rank), (uint32_t)culprit);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, other), (uint32_t)(self ? peer : args.rank));
    if (args.what != SW_WHAT_PAIRS)
        symwin_store_relaxed_u32(SW_FOUND_AT(found, argument),
                                 out ? SW_ARGUMENT_OUT : SW_ARGUMENT_IN);
    symwin_store_relaxed_u64(SW_FOUND_AT(found, theirs), symwin_load_relaxed_u64(pair));
    symwin_store_relaxed_u64(SW_FOUND_AT(found, others), symwin_load_relaxed_u64(pair + 8));
    return culprit;
}

/* What this rank sends to `peer` or receives from it in this launch: the message that waits, if
 * this rank has said so last, or the only one. */
SYMWIN_DEVICE void sw_say_message(const struct sw_kernel_args &args, const sw_call &call,
                                  uint64_t found, int32_t peer)
{
    const struct sw_pair_args &pairs = reinterpret_cast<const struct sw_pair_args &>(args);
    const uint64_t awaits = symwin_load_relaxed_u64(SW_STATE_AT(call.state, awaits));
    uint32_t messages = 0, at = pairs.items, one = 0, among = 0, number = 0;

    SYMWIN_NO_UNROLL
    for (uint32_t i = 0; i < pairs.items; i++)
        if (pairs.item[i].peer == peer) {
            messages++;
            one = i;
            if ((uint32_t)awaits == (uint32_t)peer + 1 &&
                (uint32_t)(awaits >> 32) == SW_PAIR_AWAITS(pairs.item[i]))
                at = i;
        }
    if (at == pairs.items && messages != 1)
        return;
    if (at == pairs.items)
        at = one;
    SYMWIN_NO_UNROLL
    for (uint32_t i = 0; i < pairs.items; i++)
        if (pairs.item[i].peer == peer && pairs.item[i].kind == pairs.item[at].kind) {
            among++;
            number += i <= at;
        }
    symwin_store_relaxed_u64(SW_FOUND_AT(found, others), pairs.item[at].says);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, tie), (uint32_t)peer);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, number), 1u + pairs.item[at].kind);
    if (among > 1)
        symwin_store_relaxed_u32(SW_FOUND_AT(found, among), among << 16 | number);
}

/* Writes what this rank knows to `found`, which is all zero before, and returns the culprit. */
SYMWIN_DEVICE int32_t sw_judge(const struct sw_kernel_args &args, const sw_call &call,
                               uint64_t found, uint32_t code, int32_t peer)
{
    if (code == SW_KERNEL_TIMEOUT) {
        if (args.what == SW_WHAT_PAIRS)
            sw_say_message(args, call, found, peer);
        peer = sw_who_is_late(args, call, peer);
    }
    symwin_store_relaxed_u32(SW_FOUND_AT(found, code), code);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, epoch), call.epoch);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, rank), (uint32_t)peer);
    symwin_store_relaxed_u32(SW_FOUND_AT(found, other), (uint32_t)args.rank);
    symwin_store_relaxed_u64(SW_FOUND_AT(found, theirs), args.timeout_ns);
    if (args.what == SW_WHAT_PAIRS)
        symwin_store_relaxed_u32(SW_FOUND_AT(found, argument), SW_ARGUMENT_PAIR);
    if (code >= SW_KERNEL_COUNTS)
        return sw_judge_counts(args, call, found, code, peer);
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

/* Address of the verdict of all ranks; this rank may have to reach it. 0: there is none. */
SYMWIN_DEVICE uint64_t sw_verdict(const struct sw_kernel_args &args, const sw_call &call,
                                  uint32_t code, int32_t peer)
{
    const uint64_t judge = sw_state_address(args, call, 0, 0);
    const uint64_t found = SW_STATE_AT(judge, found);
    const uint64_t claimed = SW_STATE_AT(judge, claimed), judged = SW_STATE_AT(judge, judged);
    const uint64_t begin = symwin_clock_ns();

    /* The hosts agree on an abort by themselves. But an abort may be the result of a verdict. */
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
    word = symwin_load_acquire_u32(sw_failed_address(call)); /* sw_counts_differ() */
    code = SW_FAILED_CODE(word);
    /* Blocks other than 0 do not publish a mismatch. So `word` may be 0: block 0 will report it. */
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
