/* All-reduce, one-shot push: every rank sends its whole message to every peer and reduces what it
 * receives (push.cuh).
 *
 *   oneshot            entries carry eight bytes beside flags: every type
 *   oneshot_sentinel   entries are all payload: half the traffic; floating-point types
 *
 *   in, out    any device memory of this rank, `count` elements, any element alignment, out == in
 *              allowed; accessed in 16 or 8 bytes where aligned
 *   slots      2 * slot_bytes of each source
 *   grid       any; ranks' grids may differ; all blocks must be resident together with the peers'
 *   result     reduced in rank order, so all ranks get the same bits
 *
 * Entry i of a round goes through the thread i mod workers, on the way out and on the way in: so what push.cuh
 * asks for holds, the thread that stores entry i at p has received p's entry i, which p's thread for entry i sent,
 * and that is the one that empties it.
 */
#include "push.cuh"

template <class R, class W>
SYMWIN_DEVICE void sw_oneshot_send(const struct sw_kernel_args &args, const sw_call &call,
                                   const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const sw_message in = sw_message_at(args.in, args.count * R::bytes);

    for (uint64_t i = role.index; i < rounds.extent; i += role.workers) {
        uint64_t word[W::words];

        sw_entry_load<R, W>(in, c * rounds.extent + i, word);
        sw_entry_send_all(args, call, sw_entry_place(args, call.round + c, args.rank, 0, i),
                          W::encode(word));
    }
}

template <class R, class W>
SYMWIN_DEVICE void sw_oneshot_receive(const struct sw_kernel_args &args, sw_call &call,
                                      const sw_role &role, const sw_rounds &rounds, uint32_t c)
{
    const sw_message in = sw_message_at(args.in, args.count * R::bytes);
    const sw_message out = sw_message_at(args.out, args.count * R::bytes);

    for (uint64_t i = role.index; i < rounds.extent; i += role.workers) {
        const uint64_t place = sw_entry_place(args, call.round + c, 0, 0, i);
        uint64_t own[W::words], result[W::words];

        sw_entry_load<R, W>(in, c * rounds.extent + i, own);
        if (!sw_entries_reduce<R, W>(args, call, sw_state_address(args, call, args.rank, place),
                                     own, result))
            return;
        sw_entry_store<R, W>(out, c * rounds.extent + i, result);
    }
}

template <class R, class W>
SYMWIN_DEVICE void sw_oneshot(const struct sw_kernel_args &args)
{
    const sw_rounds rounds = sw_rounds_of<R, W>(args, 2 * args.slot_bytes / SW_ENTRY_BYTES);
    const sw_role role = sw_role_of_thread();
    sw_call call = sw_call_begin(args);

    sw_push_announce(args, call, role);
    if (role.works && !call.failed)
        sw_oneshot_send<R, W>(args, call, role, rounds, 0);
    sw_push_settle(args, call, role, rounds.count);
    if (role.works && !call.failed)
        sw_oneshot_receive<R, W>(args, call, role, rounds, 0);
    for (uint32_t c = 1; c < rounds.count && role.works && !call.failed; c++) {
        symwin_fence();
        sw_oneshot_send<R, W>(args, call, role, rounds, c);
        sw_oneshot_receive<R, W>(args, call, role, rounds, c);
    }
    sw_call_done(args, call);
}

#define SW_WIRE_oneshot sw_wire_flags
#define SW_WIRE_oneshot_sentinel sw_wire_sentinel

#define SW_DEFINE(algo, type, op)                                                                  \
    SYMWIN_KERNEL(sw_allreduce_##algo##_##type##_##op, struct sw_kernel_args, args,                \
                  SW_KERNEL_MAX_THREADS)                                                           \
    {                                                                                              \
        sw_oneshot<sw_reduce<sw_type_##type, sw_op_##op>, SW_WIRE_##algo>(args);                   \
    }
SW_KERNEL_LIST_ONESHOT(SW_DEFINE)
#undef SW_DEFINE
