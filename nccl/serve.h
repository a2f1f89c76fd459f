/* Whose a call is. Decided by what is equal on all ranks only: the collective, the bytes, how many
 * ranks there are, their devices, and the variables, which the ranks have compared. */
#ifndef SYMWIN_NCCL_SERVE_H
#define SYMWIN_NCCL_SERVE_H

#include "nccl/comms.h"

int sw_serve_any(void);              /* 0: no variable leaves anything to symwin */
uint64_t sw_serve_fingerprint(void); /* of what the variable says */
uint64_t sw_table_fingerprint(void); /* of the measured times */
uint64_t sw_hash(uint64_t seed, const void *bytes, size_t count);

/* The classes of sizes that are symwin's. Over several hosts nothing was measured: what a variable
 * says is. With a limit of blocks (0: none) only sizes of which each block has little. */
void sw_serve_sizes(int ranks, int capability, int several_hosts, int most_blocks,
                    uint64_t sizes[SW_KINDS]);

/* The class of a call, by the larger of its buffers. */
int sw_serve_class(const struct sw_comm *comm, enum sw_kind kind, size_t count,
                   ncclDataType_t type);

/* What a call of that class takes by the measurements, in microseconds; 0: there are none. */
float sw_serve_time(int ranks, enum sw_kind kind, int class, enum sw_server server);

/* The collectives of one communicator in a group, each of which would be symwin's alone. */
struct sw_together {
    size_t bytes[SW_KINDS]; /* of their larger buffers */
    size_t parts;           /* the same of their parts */
    int count;
    int is_settled;   /* a variable leaves one of them to symwin */
    float one_by_one; /* what symwin takes for each alone, in microseconds; 0: not known */
};

void sw_together_add(struct sw_together *t, const struct sw_comm *comm, enum sw_kind kind,
                     size_t count, ncclDataType_t type);

/* Whether they are symwin's. NCCL makes one launch of them, and symwin of small ones only. */
int sw_together_is_ours(const struct sw_together *t, const struct sw_comm *comm);

extern const struct sw_type {
    symwin_type type;
    unsigned char bytes;
} sw_types[ncclNumTypes];

static inline size_t sw_type_bytes(ncclDataType_t type) /* 0: there is no such type */
{
    return type >= 0 && type < ncclNumTypes ? sw_types[type].bytes : 0;
}

static inline symwin_type sw_type_of(ncclDataType_t type)
{
    return sw_types[type].type;
}

#endif
