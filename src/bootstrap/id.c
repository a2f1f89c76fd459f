/* Ids of communicators, and the names of processes, hosts and ids that other processes see. Under
 * the poll lock unless id.h says otherwise. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/bootstrap/id.h"

static const unsigned char id_magic[8] = "symwin02";
static const char call[] = "symwin_comm_create";

static struct {
    int named;
    unsigned char name[SW_NAME_BYTES];
} process;

symwin_status sw_random_bytes(void *out, size_t bytes, const char *for_call)
{
    ssize_t got;

    do
        got = getrandom(out, bytes, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)bytes
               ? SYMWIN_OK
               : sw_fail(SYMWIN_DENIED, "%s: getrandom failed: %s", for_call, strerror(errno));
}

static void forget(void)
{
    process.named = 0; /* a forked child gets a name of its own */
}

symwin_status sw_process_name(unsigned char name[SW_NAME_BYTES])
{
    if (!process.named) {
        const symwin_status status = sw_random_bytes(process.name, SW_NAME_BYTES, call);

        if (status != SYMWIN_OK)
            return status;
        sw_fork_register(forget);
        process.named = 1;
    }
    memcpy(name, process.name, SW_NAME_BYTES);
    return SYMWIN_OK;
}

static void name_host(int by_space, unsigned char name[SW_NAME_BYTES])
{
    const char *given = sw_setting_text(SW_SETTING_HOST_ID);
    char boot[64] = "";
    struct stat space = {0};
    struct sw_part parts[] = {{"symwin host", 11}, {boot, sizeof boot}, {&space.st_ino, 0}};
    unsigned char digest[SW_DIGEST_BYTES];
    FILE *file;

    if (given != NULL) {
        parts[1] = (struct sw_part){given, strlen(given)};
    } else {
        file = fopen("/proc/sys/kernel/random/boot_id", "re");
        if (file != NULL) {
            if (fgets(boot, sizeof boot, file) == NULL)
                boot[0] = '\0';
            fclose(file);
        }
        if (by_space && stat("/proc/self/ns/mnt", &space) == 0)
            parts[2].bytes = sizeof space.st_ino;
    }
    sw_sha256(parts, 3, digest);
    memcpy(name, digest, SW_NAME_BYTES);
}

/* Mount namespaces count: processes without a common file system cannot use a local socket. */
void sw_host_name(unsigned char name[SW_NAME_BYTES])
{
    name_host(1, name);
}

/* Mount namespaces do not count: containers that share only TMPDIR find an id's file there. */
void sw_machine_name(unsigned char name[SW_NAME_BYTES])
{
    name_host(0, name);
}

void sw_id_name(const struct sw_id *id, unsigned char name[SW_NAME_BYTES])
{
    const struct sw_part parts[] = {{"symwin name", 11}, {id->secret, sizeof id->secret}};
    unsigned char digest[SW_DIGEST_BYTES];

    sw_sha256(parts, 2, digest);
    memcpy(name, digest, SW_NAME_BYTES);
}

/* ---- addresses ---- */

enum { INTERFACE_AT = 4 };

static int is_link_local(const struct sw_id *id)
{
    return id->family == AF_INET6 && id->address[0] == 0xfe && (id->address[1] & 0xc0) == 0x80;
}

uint32_t sw_id_interface(const struct sw_id *id)
{
    uint32_t number = 0;

    if (is_link_local(id))
        memcpy(&number, id->address + INTERFACE_AT, sizeof number);
    return number;
}

void sw_id_set_interface(struct sw_id *id, uint32_t number)
{
    if (is_link_local(id))
        memcpy(id->address + INTERFACE_AT, &number, sizeof number);
}

socklen_t sw_id_address(const struct sw_id *id, struct sockaddr_storage *out)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = id->port};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = id->port};
    struct sw_id plain;

    memset(out, 0, sizeof *out);
    if (id->family == AF_INET) {
        memcpy(&v4.sin_addr, id->address, sizeof v4.sin_addr);
        memcpy(out, &v4, sizeof v4);
        return sizeof v4;
    }
    v6.sin6_scope_id = sw_id_interface(id);
    plain = (struct sw_id){.family = id->family}; /* no secret */
    memcpy(plain.address, id->address, sizeof plain.address);
    sw_id_set_interface(&plain, 0);
    memcpy(&v6.sin6_addr, plain.address, sizeof v6.sin6_addr);
    memcpy(out, &v6, sizeof v6);
    return sizeof v6;
}

int sw_id_set_address(struct sw_id *id, const struct sockaddr_storage *address)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;

    memset(id->address, 0, sizeof id->address);
    id->family = address->ss_family;
    if (id->family == AF_INET)
        memcpy(id->address, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    else if (id->family == AF_INET6)
        memcpy(id->address, &v6->sin6_addr, 16);
    else
        return 0;
    if (id->family == AF_INET6)
        sw_id_set_interface(id, v6->sin6_scope_id);
    return 1;
}

/* An address of the network interface of that name, not a link-local one. 0: none. */
static int interface_address(const char *name, struct sockaddr_storage *out)
{
    struct ifaddrs *all = NULL, *i;
    struct sw_id id = {.family = 0};
    int found = 0;

    if (getifaddrs(&all) != 0)
        return 0;
    for (i = all; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr == NULL || strcmp(i->ifa_name, name) != 0)
            continue;
        memset(out, 0, sizeof *out);
        if (i->ifa_addr->sa_family == AF_INET)
            memcpy(out, i->ifa_addr, sizeof(struct sockaddr_in));
        else if (i->ifa_addr->sa_family == AF_INET6)
            memcpy(out, i->ifa_addr, sizeof(struct sockaddr_in6));
        found = sw_id_set_address(&id, out) && sw_id_interface(&id) == 0;
    }
    freeifaddrs(all);
    return found;
}

symwin_status sw_id_resolve(const char *name, int port, int everywhere, struct sw_id *id,
                            const char *for_call)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_storage address;
    int error;

    if (everywhere && if_nametoindex(name) != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: \"%s\" names an interface, which differs from host to host: set "
                       "MASTER_ADDR or SYMWIN_ADDR to an address of rank 0's host",
                       for_call, name);
    if (everywhere || !interface_address(name, &address)) {
        error = getaddrinfo(name, NULL, &hints, &found);
        if (error != 0)
            return sw_fail(SYMWIN_INVALID, "%s: \"%s\" is not an address%s: %s; set %s", for_call,
                           name, everywhere ? "" : " or an interface of this host",
                           gai_strerror(error),
                           everywhere ? "MASTER_ADDR or SYMWIN_ADDR to an address of rank 0's host"
                                      : "SYMWIN_ADDR to one");
        memcpy(&address, found->ai_addr, found->ai_addrlen);
        freeaddrinfo(found);
    }
    id->port = htons((uint16_t)port);
    if (!sw_id_set_address(id, &address))
        return sw_fail(SYMWIN_INVALID, "%s: \"%s\" has no IP address", for_call, name);
    /* Other hosts get the id unchanged, and would take the interface index as one of their own. */
    if (!everywhere && sw_id_interface(id) != 0)
        return sw_fail(SYMWIN_INVALID,
                       "%s: \"%s\" is a link-local address, which is not valid on other hosts: "
                       "set SYMWIN_ADDR to an address that all hosts reach",
                       for_call, name);
    return SYMWIN_OK;
}

symwin_status sw_join_fill(struct sw_frame_join *join, int nranks, int rank, int timeout_ms)
{
    struct stat space = {0};

    memset(join, 0, sizeof *join);
    join->protocol = SW_FRAME_PROTOCOL;
    join->rank = rank;
    join->nranks = nranks;
    join->timeout_ms = timeout_ms;
    sw_host_name(join->host);
    join->pid = (int32_t)getpid();
    if (stat("/proc/self/ns/pid", &space) == 0)
        join->pid_space = space.st_ino;
    join->header = (struct sw_frame_header){.magic = SW_FRAME_MAGIC,
                                            .form = SW_FRAME_FORM,
                                            .type = SW_FRAME_JOIN,
                                            .bytes = sizeof *join};
    return sw_process_name(join->process);
}

void sw_id_blank(struct sw_id *id)
{
    memset(id, 0, sizeof *id);
    memcpy(id->magic, id_magic, sizeof id->magic);
}

int sw_id_is_valid(const struct sw_id *id)
{
    return memcmp(id->magic, id_magic, sizeof id_magic) == 0 &&
           memchr(id->folder, 0, sizeof id->folder) != NULL;
}

void sw_bootstrap_key(const symwin_unique_id *unique, unsigned char key[SW_KEY_BYTES])
{
    static const struct sw_part parts[] = {{"symwin parts", 12}};
    struct sw_id id;

    memcpy(&id, unique, sizeof id);
    sw_hmac(id.secret, parts, 1, key);
    sw_wipe(&id, sizeof id);
}
