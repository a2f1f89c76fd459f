/* The stand-in's collectives with a configuration, of NCCL 2.31: each is the one without it. The
 * optimised ncclAllReduceConfig jumps to that one, the others call it. */
#include "inside.h"

static ncclResult_t check(const ncclCollConfig_t *config, const char *function)
{
    return config == NULL || config->magic == NCCL_CONFIG_MAGIC
               ? ncclSuccess
               : group_fault(
                     refuse(ncclInvalidArgument, "%s : config is not initialized", function));
}

#define CONFIGURED(name, params, args, call)                                                       \
    EXPORTED(name##Config, params, args)                                                           \
    {                                                                                              \
        volatile ncclResult_t result = check(config, #name);                                       \
                                                                                                   \
        if (result == ncclSuccess)                                                                 \
            result = name call;                                                                    \
        return result;                                                                             \
    }

EXPORTED(ncclAllReduceConfig,
         (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
          ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
         (in, out, count, type, op, comm, stream, config))
{
    const ncclResult_t result = check(config, "ncclAllReduce");

    return result != ncclSuccess ? result : ncclAllReduce(in, out, count, type, op, comm, stream);
}

CONFIGURED(ncclReduceScatter,
           (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, op, comm, stream, config),
           (in, out, count, type, op, comm, stream))
CONFIGURED(ncclReduce,
           (const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
            ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, op, root, comm, stream, config),
           (in, out, count, type, op, root, comm, stream))
CONFIGURED(ncclAllGather,
           (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, comm, stream, config), (in, out, count, type, comm, stream))
CONFIGURED(ncclAlltoAll,
           (const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, comm, stream, config), (in, out, count, type, comm, stream))
CONFIGURED(ncclBroadcast,
           (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, root, comm, stream, config),
           (in, out, count, type, root, comm, stream))
CONFIGURED(ncclGather,
           (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, root, comm, stream, config),
           (in, out, count, type, root, comm, stream))
CONFIGURED(ncclScatter,
           (const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
            cudaStream_t stream, const ncclCollConfig_t *config),
           (in, out, count, type, root, comm, stream, config),
           (in, out, count, type, root, comm, stream))
