/* Functions of NCCL that libsymwin-nccl.so passes on: with arguments in registers, on the stack,
 * and a struct by value. */
#ifndef FAKE_PASSED_H
#define FAKE_PASSED_H

#include "nccl.h"

typedef struct {
    char internal[128];
} ncclUniqueId;

FAKE_API ncclResult_t ncclReduce(const void *in, void *out, size_t count, int type, int op,
                                 int root, void *comm, void *stream);
FAKE_API ncclResult_t ncclCommInitRank(void **comm, int nranks, ncclUniqueId id, int rank);
FAKE_API const char *ncclGetErrorString(ncclResult_t result);

#endif
