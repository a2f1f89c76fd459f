/* Registers ranges with an attached NCCL communicator too; under the mutex of the registrations. */
#include <dlfcn.h>
#include <string.h>

#include "src/window/register.h"

static symwin_status check(const char *call, const char *what, int result,
                           const struct sw_range *range)
{
    if (result == 0)
        return SYMWIN_OK;
    return sw_fail(SYMWIN_DRIVER, "%s: %s of %zu bytes at 0x%llx gave %d; see NCCL_DEBUG=WARN",
                   call, what, (size_t)(range->end - range->begin),
                   (unsigned long long)range->begin, result);
}

symwin_status sw_nccl_put(const char *call, struct sw_registrations *r, struct sw_range *range)
{
    return check(
        call, "ncclCommRegister",
        r->nccl_register(r->nccl, (void *)range->begin, range->end - range->begin, &range->nccl),
        range);
}

symwin_status sw_nccl_take(const char *call, struct sw_registrations *r, struct sw_range *range)
{
    void *handle = range->nccl;

    range->nccl = NULL;
    return handle == NULL
               ? SYMWIN_OK
               : check(call, "ncclCommDeregister", r->nccl_deregister(r->nccl, handle), range);
}

struct attaching {
    const char *call;
    struct sw_registrations *r;
    symwin_status status; /* the first failure */
};

static void attach_one(struct sw_range *range, void *context)
{
    struct attaching *a = context;

    if (a->status == SYMWIN_OK)
        a->status = sw_nccl_put(a->call, a->r, range);
}

static void detach_one(struct sw_range *range, void *context)
{
    struct attaching *a = context;
    const symwin_status status = sw_nccl_take(a->call, a->r, range);

    a->status = a->status == SYMWIN_OK ? status : a->status;
}

/* An NCCL function, from the program or from a library that is loaded already; NULL: neither. */
static void *nccl_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    void *library = symbol == NULL ? dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD) : NULL;

    if (library != NULL) {
        symbol = dlsym(library, name);
        dlclose(library); /* NCCL stays loaded: dlopen() only added a reference */
    }
    return symbol;
}

static symwin_status attach(const char *call, struct sw_registrations *r, struct ncclComm *nccl)
{
    struct attaching a = {call, r, SYMWIN_OK};
    void *put = nccl_symbol("ncclCommRegister"), *take_back = nccl_symbol("ncclCommDeregister");
    char text[SW_TEXT_BYTES];

    if (r->nccl != NULL)
        return sw_fail(SYMWIN_INVALID,
                       "%s: NCCL communicator %p is attached already; pass NULL first", call,
                       (void *)r->nccl);
    if (put == NULL || take_back == NULL)
        return sw_fail(SYMWIN_UNSUPPORTED,
                       "%s: there is no ncclCommRegister() in this process; NCCL 2.19 or later "
                       "must be loaded",
                       call);
    memcpy(&r->nccl_register, &put, sizeof put);
    memcpy(&r->nccl_deregister, &take_back, sizeof take_back);
    r->nccl = nccl;
    sw_range_cache_each(&r->cache, attach_one, &a);
    if (a.status == SYMWIN_OK)
        return SYMWIN_OK;
    memcpy(text, symwin_last_error(), sizeof text);
    sw_range_cache_each(&r->cache, detach_one, &(struct attaching){call, r, SYMWIN_OK});
    sw_error_restore(text);
    r->nccl = NULL;
    return a.status;
}

symwin_status sw_nccl_attach(const char *call, struct sw_registrations *r, struct ncclComm *nccl)
{
    struct attaching a = {call, r, SYMWIN_OK};

    if (nccl != NULL)
        return attach(call, r, nccl);
    if (r->nccl != NULL)
        sw_range_cache_each(&r->cache, detach_one, &a);
    r->nccl = NULL;
    return a.status;
}
