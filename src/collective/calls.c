/* The public calls of the collectives. They differ in their arguments alone: the table of
 * collectives (table.c) says what each is, and collective.c runs it.
 */
#include <string.h>

#include "src/collective/grouped.h"

static symwin_status check_options(const char *call, const symwin_collective_options *o)
{
    if (o->size != sizeof *o)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->size is %zu; set it to sizeof(symwin_collective_options), %zu",
                       call, o->size, sizeof *o);
    if (symwin_algo_name(o->algo) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no algorithm %d; see SYMWIN_ALGO_LIST", call,
                       (int)o->algo);
    if (o->blocks < 0)
        return sw_fail(SYMWIN_INVALID, "%s: blocks is %d; pass 0 for the default", call, o->blocks);
    if (o->threads < 0)
        return sw_fail(SYMWIN_INVALID, "%s: threads is %d; pass 0 for the default", call,
                       o->threads);
    return SYMWIN_OK;
}

/* Only the communicator can tell whose device memory it is: collective.c. */
static symwin_status check_scalar(const struct sw_request *r)
{
    const symwin_collective_options *o = r->options;
    const int is_there = o != NULL && o->scalar != NULL;
    const size_t element = symwin_type_bytes(r->type);

    if (r->op != SYMWIN_PREMUL_SUM && o != NULL && (is_there || o->scalar_on_device))
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->scalar%s is set, which only SYMWIN_PREMUL_SUM uses; pass %s",
                       r->name, is_there ? "" : "_on_device", is_there ? "NULL" : "0");
    if (r->op == SYMWIN_PREMUL_SUM && !is_there)
        return sw_fail(SYMWIN_INVALID,
                       "%s: SYMWIN_PREMUL_SUM multiplies by a scalar; pass its address in "
                       "options->scalar%s%s",
                       r->name, o == NULL ? " of " : "",
                       o == NULL ? sw_collectives[r->collective].with : "");
    if (is_there && o->scalar_on_device && (uintptr_t)o->scalar % element != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: options->scalar (%p) is not aligned to %zu bytes; pass an address that "
                       "is a multiple of them",
                       r->name, o->scalar, element);
    return SYMWIN_OK;
}

void sw_request_read_scalar(struct sw_request *r)
{
    if (r->op != SYMWIN_PREMUL_SUM)
        return;
    if (r->comm == NULL || sw_fork_check(r->name) != SYMWIN_OK)
        return; /* there is no driver to ask; the call is refused for that */
    r->scalar_unread = !r->options->scalar_on_device && sw_is_on_device(r->options->scalar);
    if (r->options->scalar_on_device || r->scalar_unread)
        r->scalar = (uint64_t)(uintptr_t)r->options->scalar;
    else
        memcpy(&r->scalar, r->options->scalar, symwin_type_bytes(r->type));
}

symwin_status sw_request_check(const struct sw_request *r)
{
    if (symwin_type_name(r->type) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no type %d; see SYMWIN_TYPE_LIST", r->name,
                       (int)r->type);
    if (symwin_op_name(r->op) == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: there is no operation %d; see SYMWIN_OP_LIST", r->name,
                       (int)r->op);
    if (r->options != NULL && check_options(r->name, r->options) != SYMWIN_OK)
        return SYMWIN_INVALID;
    return check_scalar(r);
}

static symwin_status call(struct sw_request r, CUstream stream)
{
    symwin_status status;

    r.name = sw_request_name(r.collective, r.options);
    r.stream = stream;
    status = sw_request_check(&r);
    if (status == SYMWIN_OK)
        sw_request_read_scalar(&r);
    if (sw_grouped())
        return sw_grouped_add(&r, status);
    return status == SYMWIN_OK ? sw_request_run(&r, NULL) : status;
}

symwin_status sw_request_query(struct sw_request *r, symwin_collective_info *info)
{
    const struct sw_collective *c = &sw_collectives[r->collective];
    symwin_status status;

    r->name = c->query;
    status = sw_request_check(r);
    if (status == SYMWIN_OK && (info == NULL || (r->count == 0 && !c->no_data && !c->by_parts)))
        return sw_fail(SYMWIN_INVALID, "%s: %s", r->name,
                       info == NULL ? "info is NULL; pass the address of a symwin_collective_info"
                                    : "count is 0, for which nothing is launched");
    if (status != SYMWIN_OK)
        return status;
    sw_request_read_scalar(r);
    return sw_request_run(r, info);
}

static symwin_status query(struct sw_request r, symwin_collective_info *info)
{
    return sw_request_query(&r, info);
}

#define NO_OP SYMWIN_SUM /* of collectives that do not reduce */
#define NO_ROOT 0
#define NO_TYPE SYMWIN_U8

static struct sw_request request(symwin_collective collective, symwin_comm *comm, const void *in,
                                 const void *out, uint64_t count, symwin_type type, symwin_op op,
                                 int root, const symwin_collective_options *options)
{
    return (struct sw_request){.collective = collective,
                               .comm = comm,
                               .in = in,
                               .out = out,
                               .count = count,
                               .type = type,
                               .op = op,
                               .root = root,
                               .options = options};
}

symwin_status symwin_allreduce_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, symwin_op op,
                                    const symwin_collective_options *options,
                                    struct CUstream_st *stream)
{
    return call(request(SYMWIN_ALLREDUCE, comm, in, out, count, type, op, NO_ROOT, options),
                stream);
}

symwin_status symwin_allreduce(symwin_comm *comm, const void *in, void *out, uint64_t count,
                               symwin_type type, symwin_op op, struct CUstream_st *stream)
{
    return symwin_allreduce_with(comm, in, out, count, type, op, NULL, stream);
}

symwin_status symwin_allreduce_query(symwin_comm *comm, const void *in, const void *out,
                                     uint64_t count, symwin_type type, symwin_op op,
                                     const symwin_collective_options *options,
                                     symwin_collective_info *info)
{
    return query(request(SYMWIN_ALLREDUCE, comm, in, out, count, type, op, NO_ROOT, options), info);
}

symwin_status symwin_allgather_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, const symwin_collective_options *options,
                                    struct CUstream_st *stream)
{
    return call(request(SYMWIN_ALLGATHER, comm, in, out, count, type, NO_OP, NO_ROOT, options),
                stream);
}

symwin_status symwin_allgather(symwin_comm *comm, const void *in, void *out, uint64_t count,
                               symwin_type type, struct CUstream_st *stream)
{
    return symwin_allgather_with(comm, in, out, count, type, NULL, stream);
}

symwin_status symwin_allgather_query(symwin_comm *comm, const void *in, const void *out,
                                     uint64_t count, symwin_type type,
                                     const symwin_collective_options *options,
                                     symwin_collective_info *info)
{
    return query(request(SYMWIN_ALLGATHER, comm, in, out, count, type, NO_OP, NO_ROOT, options),
                 info);
}

symwin_status symwin_alltoall_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                   symwin_type type, const symwin_collective_options *options,
                                   struct CUstream_st *stream)
{
    return call(request(SYMWIN_ALLTOALL, comm, in, out, count, type, NO_OP, NO_ROOT, options),
                stream);
}

symwin_status symwin_alltoall(symwin_comm *comm, const void *in, void *out, uint64_t count,
                              symwin_type type, struct CUstream_st *stream)
{
    return symwin_alltoall_with(comm, in, out, count, type, NULL, stream);
}

symwin_status symwin_alltoall_query(symwin_comm *comm, const void *in, const void *out,
                                    uint64_t count, symwin_type type,
                                    const symwin_collective_options *options,
                                    symwin_collective_info *info)
{
    return query(request(SYMWIN_ALLTOALL, comm, in, out, count, type, NO_OP, NO_ROOT, options),
                 info);
}

symwin_status symwin_broadcast_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, int root,
                                    const symwin_collective_options *options,
                                    struct CUstream_st *stream)
{
    return call(request(SYMWIN_BROADCAST, comm, in, out, count, type, NO_OP, root, options),
                stream);
}

symwin_status symwin_broadcast(symwin_comm *comm, const void *in, void *out, uint64_t count,
                               symwin_type type, int root, struct CUstream_st *stream)
{
    return symwin_broadcast_with(comm, in, out, count, type, root, NULL, stream);
}

symwin_status symwin_broadcast_query(symwin_comm *comm, const void *in, const void *out,
                                     uint64_t count, symwin_type type, int root,
                                     const symwin_collective_options *options,
                                     symwin_collective_info *info)
{
    return query(request(SYMWIN_BROADCAST, comm, in, out, count, type, NO_OP, root, options), info);
}

symwin_status symwin_gather_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                 symwin_type type, int root,
                                 const symwin_collective_options *options,
                                 struct CUstream_st *stream)
{
    return call(request(SYMWIN_GATHER, comm, in, out, count, type, NO_OP, root, options), stream);
}

symwin_status symwin_gather(symwin_comm *comm, const void *in, void *out, uint64_t count,
                            symwin_type type, int root, struct CUstream_st *stream)
{
    return symwin_gather_with(comm, in, out, count, type, root, NULL, stream);
}

symwin_status symwin_gather_query(symwin_comm *comm, const void *in, const void *out,
                                  uint64_t count, symwin_type type, int root,
                                  const symwin_collective_options *options,
                                  symwin_collective_info *info)
{
    return query(request(SYMWIN_GATHER, comm, in, out, count, type, NO_OP, root, options), info);
}

symwin_status symwin_scatter_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                  symwin_type type, int root,
                                  const symwin_collective_options *options,
                                  struct CUstream_st *stream)
{
    return call(request(SYMWIN_SCATTER, comm, in, out, count, type, NO_OP, root, options), stream);
}

symwin_status symwin_scatter(symwin_comm *comm, const void *in, void *out, uint64_t count,
                             symwin_type type, int root, struct CUstream_st *stream)
{
    return symwin_scatter_with(comm, in, out, count, type, root, NULL, stream);
}

symwin_status symwin_scatter_query(symwin_comm *comm, const void *in, const void *out,
                                   uint64_t count, symwin_type type, int root,
                                   const symwin_collective_options *options,
                                   symwin_collective_info *info)
{
    return query(request(SYMWIN_SCATTER, comm, in, out, count, type, NO_OP, root, options), info);
}

symwin_status symwin_reduce_scatter_with(symwin_comm *comm, const void *in, void *out,
                                         uint64_t count, symwin_type type, symwin_op op,
                                         const symwin_collective_options *options,
                                         struct CUstream_st *stream)
{
    return call(request(SYMWIN_REDUCE_SCATTER, comm, in, out, count, type, op, NO_ROOT, options),
                stream);
}

symwin_status symwin_reduce_scatter(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                    symwin_type type, symwin_op op, struct CUstream_st *stream)
{
    return symwin_reduce_scatter_with(comm, in, out, count, type, op, NULL, stream);
}

symwin_status symwin_reduce_scatter_query(symwin_comm *comm, const void *in, const void *out,
                                          uint64_t count, symwin_type type, symwin_op op,
                                          const symwin_collective_options *options,
                                          symwin_collective_info *info)
{
    return query(request(SYMWIN_REDUCE_SCATTER, comm, in, out, count, type, op, NO_ROOT, options),
                 info);
}

symwin_status symwin_reduce_with(symwin_comm *comm, const void *in, void *out, uint64_t count,
                                 symwin_type type, symwin_op op, int root,
                                 const symwin_collective_options *options,
                                 struct CUstream_st *stream)
{
    return call(request(SYMWIN_REDUCE, comm, in, out, count, type, op, root, options), stream);
}

symwin_status symwin_reduce(symwin_comm *comm, const void *in, void *out, uint64_t count,
                            symwin_type type, symwin_op op, int root, struct CUstream_st *stream)
{
    return symwin_reduce_with(comm, in, out, count, type, op, root, NULL, stream);
}

symwin_status symwin_reduce_query(symwin_comm *comm, const void *in, const void *out,
                                  uint64_t count, symwin_type type, symwin_op op, int root,
                                  const symwin_collective_options *options,
                                  symwin_collective_info *info)
{
    return query(request(SYMWIN_REDUCE, comm, in, out, count, type, op, root, options), info);
}

symwin_status symwin_barrier_with(symwin_comm *comm, const symwin_collective_options *options,
                                  struct CUstream_st *stream)
{
    return call(request(SYMWIN_BARRIER, comm, NULL, NULL, 0, NO_TYPE, NO_OP, NO_ROOT, options),
                stream);
}

symwin_status symwin_barrier(symwin_comm *comm, struct CUstream_st *stream)
{
    return symwin_barrier_with(comm, NULL, stream);
}

symwin_status symwin_barrier_query(symwin_comm *comm, const symwin_collective_options *options,
                                   symwin_collective_info *info)
{
    return query(request(SYMWIN_BARRIER, comm, NULL, NULL, 0, NO_TYPE, NO_OP, NO_ROOT, options),
                 info);
}
