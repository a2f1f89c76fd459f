/* The address and the port of an id: which there are, how a name becomes one, and which are
 * refused. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include "processes.h"
#include "src/bootstrap/rendezvous.h"

/* ---- ids at several addresses ---- */

static void refused(const char *address, const char *port, symwin_status want, const char *words)
{
    symwin_unique_id id;

    setenv("SYMWIN_ADDR", address, 1);
    setenv("SYMWIN_PORT", port, 1);
    must_be(symwin_unique_id_create(&id) == want && host_error_has(words), words, 0);
}

static int is_at(const symwin_unique_id *id, const char *address, const char *port)
{
    struct in_addr want;
    struct sw_id made;

    memcpy(&made, id, sizeof made);
    return inet_pton(AF_INET, address, &want) == 1 &&
           memcmp(made.address, &want, sizeof want) == 0 &&
           (port == NULL || ntohs(made.port) == atoi(port));
}

static void make_at(symwin_unique_id *id, const char *address, const char *port)
{
    setenv("SYMWIN_ADDR", address, 1);
    setenv("SYMWIN_PORT", port != NULL ? port : "0", 1);
    host_must(symwin_unique_id_create(id), "symwin_unique_id_create");
    must_be(is_at(id, address, port), "an id is where it was asked for", 0);
}

/* Rank 0's process already listens at other addresses. */
static void at_addresses(struct processes *p, int rank)
{
    const char *port = p->arg;
    symwin_unique_id others[8];
    int i;

    processes_on_host("ab", rank);
    if (rank == 0) {
        make_at(&others[0], "127.0.0.1", NULL);
        make_at(&p->id, "127.0.0.1", port);
        make_at(&others[1], "127.0.0.2", NULL);
        make_at(&others[2], "127.0.0.2", port);
        make_at(&others[3], "127.0.0.1", port); /* shares the listener */
        p->id_made = 1;
    }
    while (!p->id_made)
        usleep(50);
    everything_with(p, rank, &p->id);
    if (rank != 0)
        return;
    for (i = 4; i < 8; i++)
        make_at(&others[i], i < 6 ? "127.0.0.3" : "127.0.0.4", i % 2 != 0 ? port : NULL);
    refused("127.0.0.5", "0", SYMWIN_DENIED, "8 addresses");
    for (i = 0; i < 8; i++)
        host_must(symwin_unique_id_release(&others[i]), "symwin_unique_id_release");
}

/* ---- invalid addresses and ports ---- */

static void bad_addresses(struct processes *p, int rank)
{
    (void)p;
    (void)rank;
    refused("127.0.0.1", "x", SYMWIN_INVALID, "SYMWIN_PORT is \"x\"");
    refused("127.0.0.1", "1x", SYMWIN_INVALID, "SYMWIN_PORT is \"1x\"");
    refused("127.0.0.1", " 1", SYMWIN_INVALID, "SYMWIN_PORT is \" 1\"");
    refused("127.0.0.1", "+1", SYMWIN_INVALID, "SYMWIN_PORT is \"+1\"");
    refused("127.0.0.1", "-1", SYMWIN_INVALID, "SYMWIN_PORT is \"-1\"");
    refused("127.0.0.1", "65536", SYMWIN_INVALID, "SYMWIN_PORT is \"65536\"");
    refused("not an address", "0", SYMWIN_INVALID, "\"not an address\" is not an address");
    refused("192.0.2.1", "0", SYMWIN_DENIED, "cannot listen on 192.0.2.1");
    refused("fe80::1%lo", "0", SYMWIN_INVALID, "link-local");
}

/* A link-local address that all hosts look up themselves gets the named interface as its scope,
 * also when it comes from an id. */
static void link_local(struct processes *p, int rank)
{
    const uint32_t lo = if_nametoindex("lo");
    struct sockaddr_storage storage;
    struct sockaddr_in6 address;
    unsigned char want[16];
    struct sw_id id, again;

    (void)p;
    memset(&id, 0, sizeof id);
    host_must(sw_id_resolve("fe80::1%lo", 5, 1, &id, "test"), "sw_id_resolve");
    must_be(inet_pton(AF_INET6, "fe80::1", want) == 1 &&
                sw_id_address(&id, &storage) == sizeof address,
            "an address of version 6", rank);
    memcpy(&address, &storage, sizeof address);
    must_be(address.sin6_scope_id == lo && lo != 0 && ntohs(address.sin6_port) == 5 &&
                memcmp(&address.sin6_addr, want, sizeof want) == 0,
            "a link-local address keeps its interface", rank);
    memset(&again, 0, sizeof again);
    must_be(sw_id_set_address(&again, &storage) == 1 && sw_id_interface(&again) == lo &&
                memcmp(again.address, id.address, sizeof id.address) == 0,
            "and back", rank);
    sw_id_set_interface(&again, 77);
    sw_id_address(&again, &storage);
    memcpy(&address, &storage, sizeof address);
    must_be(address.sin6_scope_id == 77 && memcmp(&address.sin6_addr, want, sizeof want) == 0,
            "another host's interface", rank);
    host_must(sw_id_resolve("fd00::1", 5, 1, &id, "test"), "sw_id_resolve");
    sw_id_set_interface(&id, 77);
    must_be(sw_id_interface(&id) == 0 && id.address[4] == 0, "others have none", rank);
}

/* With an interface's name, each host would use its own address. */
static void interface(struct processes *p, int rank)
{
    symwin_unique_id id;

    processes_on_host("ab", rank);
    setenv("SYMWIN_RANK", rank == 0 ? "0" : "1", 1);
    setenv("SYMWIN_NRANKS", "2", 1);
    setenv("SYMWIN_LOCAL_NRANKS", "1", 1);
    setenv("SYMWIN_PORT", p->arg, 1);
    setenv("SYMWIN_SECRET", "sixteen letters!", 1);
    setenv("SYMWIN_ADDR", "lo", 1);
    must_be(symwin_unique_id_from_env(&id) == SYMWIN_INVALID &&
                host_error_has("\"lo\" names an interface"),
            "an interface in a launched job on several hosts", rank);
}

/* ---- a slow name look-up ---- */

static int is_slow, was_free;

static void *take_the_lock(void *arg)
{
    sw_poll_lock();
    *(atomic_int *)arg = 1;
    sw_poll_unlock();
    return NULL;
}

/* Whether another thread gets the lock of the poll thread, which detects processes that die. */
static int lock_is_free(void)
{
    static atomic_int got;
    pthread_t other;
    int i;

    if (pthread_create(&other, NULL, take_the_lock, &got) != 0)
        abort();
    for (i = 0; i < 1000 && !got; i++)
        usleep(1000);
    pthread_detach(other);
    return got;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    int (*of_system)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");

    if (is_slow) {
        was_free = lock_is_free();
        return EAI_AGAIN;
    }
    memcpy(&of_system, &symbol, sizeof of_system);
    return of_system(name, service, hints, out);
}

static void slow_name(struct processes *p, int rank)
{
    (void)p;
    is_slow = 1;
    refused("a slow name", "0", SYMWIN_INVALID, "\"a slow name\" is not an address");
    must_be(was_free, "other threads go on while a name is looked up", rank);
}

int main(void)
{
    char port[16], other[16];

    ports_name(port);
    ports_name(other);
    processes_run("ids at several addresses", 2, at_addresses, port);
    processes_run("addresses and ports that are none", 1, bad_addresses, NULL);
    processes_run("a link-local address", 1, link_local, NULL);
    processes_run("an interface", 2, interface, other);
    processes_run("a name that takes its time", 1, slow_name, NULL);
    return tap_done();
}
