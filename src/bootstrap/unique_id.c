/* Ids: made, where ranks then find each other, and given up. What is in one: id.c. */
#include <stdlib.h>
#include <string.h>

#include "src/bootstrap/bootstrap.h"

symwin_status sw_id_make(struct sw_id *id, const struct sw_id_options *options,
                         const char *for_call)
{
    static const struct sw_id_options none;
    symwin_status status = SYMWIN_OK;

    if (options == NULL)
        options = &none;
    sw_id_blank(id);
    sw_host_name(id->host);
    if (options->secret != NULL)
        memcpy(id->secret, options->secret, sizeof id->secret);
    else
        status = sw_random_bytes(id->secret, sizeof id->secret, for_call);
    if (status == SYMWIN_OK && options->address != NULL)
        status = sw_listener_resolve(options->address, options->port, options->everywhere, id,
                                     for_call);
    if (options->at != NULL && !sw_id_set_address(id, options->at))
        id->family = 0;
    if (status != SYMWIN_OK)
        return status;
    sw_poll_lock();
    status = sw_rendezvous_open(id, options, for_call);
    sw_poll_unlock();
    sw_poll_settle(); /* if it failed */
    return status;
}

symwin_status sw_id_far(struct sw_id *id, const struct sw_id_options *options, const char *for_call)
{
    sw_id_blank(id);
    memcpy(id->secret, options->secret, sizeof id->secret);
    return sw_listener_resolve(options->address, options->port, 1, id, for_call);
}

/* SYMWIN_PORT; 0, where it is not set: any. */
static symwin_status read_port(const char *for_call, int *out)
{
    const char *text = getenv("SYMWIN_PORT");
    char *end = NULL;
    long port = 0;

    if (text != NULL && text[0] != '\0') {
        port = strtol(text, &end, 10);
        if (*end != '\0' || port < 0 || port > 65535)
            return sw_fail(SYMWIN_INVALID,
                           "%s: SYMWIN_PORT is \"%.64s\"; set it to a free port of this host, a "
                           "number from 1 to 65535, or 0 for any",
                           for_call, text);
    }
    *out = (int)port;
    return SYMWIN_OK;
}

symwin_status symwin_unique_id_create(symwin_unique_id *id)
{
    static const char own_call[] = "symwin_unique_id_create";
    struct sw_id_options options = {.secret = NULL};
    symwin_status status = sw_fork_check(own_call);
    struct sw_id fresh;

    if (status != SYMWIN_OK)
        return status;
    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "%s: id is NULL", own_call);
    options.address = getenv("SYMWIN_ADDR");
    if (options.address != NULL && options.address[0] == '\0')
        options.address = NULL;
    status = read_port(own_call, &options.port);
    if (status == SYMWIN_OK)
        status = sw_id_make(&fresh, &options, own_call);
    if (status == SYMWIN_OK)
        memcpy(id, &fresh, sizeof fresh);
    sw_wipe(&fresh, sizeof fresh);
    return status;
}

symwin_status symwin_unique_id_release(const symwin_unique_id *id)
{
    symwin_status status = sw_fork_check("symwin_unique_id_release");
    struct sw_id copy;

    if (status != SYMWIN_OK)
        return status;
    if (id == NULL)
        return sw_fail(SYMWIN_INVALID, "symwin_unique_id_release: id is NULL");
    memcpy(&copy, id, sizeof copy);
    sw_poll_lock();
    status = sw_rendezvous_close(&copy);
    sw_poll_unlock();
    sw_poll_settle();
    sw_claim_drop(&copy);
    sw_wipe(&copy, sizeof copy);
    return status;
}
