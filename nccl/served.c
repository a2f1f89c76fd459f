/* The list of what this library defines, for its own dlsym(). */
#include "nccl/served.h"

#define NEXT(function, params)                                                                     \
    struct sw_next sw_next_##function = {.name = #function};                                       \
    struct sw_next sw_next_p##function = {.name = "p" #function, .or_else = #function};
SW_NCCL_SERVED(NEXT)
NEXT(ncclGetLastError, )

struct sw_next sw_next_ncclCommUserRank = {.name = "ncclCommUserRank"};
struct sw_next sw_next_ncclCommCount = {.name = "ncclCommCount"};
struct sw_next sw_next_ncclCommCuDevice = {.name = "ncclCommCuDevice"};

SYMWIN_API extern const char symwin_nccl[];
const char symwin_nccl[] = "by this name next.c knows this library, and what depends on it";

#define SERVED(function, params)                                                                   \
    {&sw_next_##function, (void (*)(void))(function)},                                             \
        {&sw_next_p##function, (void (*)(void))(p##function)},

const struct sw_served sw_served[] = {SW_NCCL_SERVED(SERVED)
                                          SERVED(ncclGetLastError, ){NULL, NULL}};
