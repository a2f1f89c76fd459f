/* Of tests/nccl/test_nccl_serve.c, in place of nccl/measured.h: classes of 8 to 64 bytes, and
 * of larger ones. */
{SW_ALL_REDUCE, 2, 90, 3, 4, {1, 1, 3, 1}, {2, 2, 2, 2}},
    {SW_ALL_REDUCE, 4, 90, 3, 4, {1, 1.5f, 1, 1}, {2, 2, 2, 2}},
    {SW_ALL_GATHER, 2, 90, 3, 4, {3, 1, 1, 1}, {2, 2, 2, 2}},
    {SW_SEND, 2, 90, 3, 4, {1, 1, 1, 1}, {2, 2, 2, 2}},
    {SW_SEND, 4, 90, 3, 4, {1, 1, 3, 1}, {2, 2, 2, 2}},
    {SW_REDUCE_SCATTER, 2, 90, 11, 4, {1, 1, 1, 1}, {2, 2, 2, 2}}, /* of 2 to 16 KiB */
    {SW_BROADCAST, 8, 90, 3, 4, {1, 1, 1, 1}, {2, 2, 2, 2}},
