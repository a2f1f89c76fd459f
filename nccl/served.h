/* The functions that this library defines, and how: SW_DEFINE(name, (parameters), (arguments)) is
 * followed by the body, in which `from` says where the call comes from and would go. */
#ifndef SYMWIN_NCCL_SERVED_H
#define SYMWIN_NCCL_SERVED_H

#include "nccl/api.h"
#include "nccl/next.h"

#define SW_NEXT_DECLARE(name, params)                                                              \
    extern struct sw_next sw_next_##name;                                                          \
    extern struct sw_next sw_next_p##name;
SW_NCCL_SERVED(SW_NEXT_DECLARE)
SW_NEXT_DECLARE(ncclGetLastError, )
#undef SW_NEXT_DECLARE

/* Functions of NCCL that this library only calls. */
extern struct sw_next sw_next_ncclCommUserRank, sw_next_ncclCommCount, sw_next_ncclCommCuDevice;

#define SW_FROM(name, room) sw_from_of(&sw_next_##name, __builtin_return_address(0), room)

#define SW_BARE(...) __VA_ARGS__

#define SW_DEFINE(name, params, args)                                                              \
    static ncclResult_t own_##name(const struct sw_from *from, SW_BARE params);                    \
    ncclResult_t name params                                                                       \
    {                                                                                              \
        struct sw_from room;                                                                       \
                                                                                                   \
        return own_##name(SW_FROM(name, &room), SW_BARE args);                                     \
    }                                                                                              \
    ncclResult_t p##name params                                                                    \
    {                                                                                              \
        struct sw_from room;                                                                       \
                                                                                                   \
        return own_##name(SW_FROM(p##name, &room), SW_BARE args);                                  \
    }                                                                                              \
    static ncclResult_t own_##name(const struct sw_from *from, SW_BARE params)

#endif
