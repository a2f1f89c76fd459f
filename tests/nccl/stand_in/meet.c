/* Where the ranks of a unique id meet over TCP. The process that makes the id listens: its address,
 * its port and a random token are in the id. Each rank shows the token and says where it takes
 * connections. When all have come, each is told the places of all. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "inside.h"

enum {
    TOKEN_BYTES = 16,
    MOST_GUESTS = 2 * MOST_RANKS, /* some come by mistake */
    UNUSED_MS = 600000            /* how long nobody has to come */
};

/* What a rank says. */
struct arrival {
    char token[2 * TOKEN_BYTES + 1];
    int ranks, rank;
    struct place place;
};

/* What it is told: how many ranks there should be; which one is gone, if that is why. */
struct answer {
    int result, ranks, rank;
    struct place places[MOST_RANKS];
};

struct guest {
    int socket, counted;
    size_t got;
    struct arrival arrival;
};

struct meeting {
    int listener, come, guest_count;
    uint64_t deadline;
    char token[2 * TOKEN_BYTES + 1];
    struct answer answer;
    struct guest guests[MOST_GUESTS];
};

/* ---- the process that made the id ---- */

/* Closes the connection, after an answer. What does not fit at once is lost with it. */
static void dismiss(const struct guest *guest, const struct answer *answer)
{
    size_t sent = 0;

    if (answer != NULL)
        (void)tcp_send(guest->socket, answer, sizeof *answer, &sent);
    close(guest->socket);
}

/* The first rank that comes says how many there are. Returns 0: this is none of them. */
static int admit(struct meeting *meeting, struct guest *guest)
{
    const struct arrival *arrival = &guest->arrival;
    struct answer *answer = &meeting->answer, no = {.result = ncclInvalidUsage};

    if (memcmp(arrival->token, meeting->token, sizeof meeting->token) != 0 ||
        arrival->ranks > MOST_RANKS || arrival->rank < 0 || arrival->rank >= arrival->ranks) {
        dismiss(guest, NULL);
        return 0;
    }
    if (answer->ranks == 0) {
        answer->ranks = arrival->ranks;
        meeting->deadline = wait_begin().deadline;
    }
    no.ranks = answer->ranks;
    if (arrival->ranks != answer->ranks || answer->places[arrival->rank].port != 0) {
        dismiss(guest, &no);
        return 0;
    }
    answer->places[arrival->rank] = arrival->place;
    guest->counted = 1;
    meeting->come++;
    return 1;
}

/* Returns 0: the guest is gone. If it had been counted, the meeting fails. */
static int hear(struct meeting *meeting, struct guest *guest)
{
    if (guest->counted && tcp_is_over(guest->socket)) {
        meeting->answer.result = ncclRemoteError;
        meeting->answer.rank = guest->arrival.rank;
    }
    if (guest->counted)
        return 1;
    switch (tcp_receive(guest->socket, &guest->arrival, sizeof guest->arrival, &guest->got)) {
    case 0:
        return 1;
    case 1:
        return admit(meeting, guest);
    default:
        dismiss(guest, NULL);
        return 0;
    }
}

/* Sleeps until a guest comes, says something or goes, or the deadline has passed. */
static void sleep_until_next(const struct meeting *meeting)
{
    const int is_full = meeting->guest_count == MOST_GUESTS;
    struct pollfd ask[1 + MOST_GUESTS] = {
        {.fd = is_full ? -1 : meeting->listener, .events = POLLIN}};
    const uint64_t now = wait_clock();

    for (int i = 0; i < meeting->guest_count; i++)
        ask[1 + i] = (struct pollfd){.fd = meeting->guests[i].socket,
                                     .events = meeting->guests[i].counted ? POLLRDHUP : POLLIN};
    if (now < meeting->deadline)
        (void)poll(ask, 1 + (nfds_t)meeting->guest_count, (int)(meeting->deadline - now));
}

static void *meeting_main(void *data)
{
    struct meeting *meeting = data;
    struct answer *answer = &meeting->answer;

    answer->result = ncclInProgress;
    meeting->deadline = wait_clock() + UNUSED_MS;
    while (answer->result == ncclInProgress && wait_clock() < meeting->deadline) {
        int socket, stay = 0;

        sleep_until_next(meeting);
        while (meeting->guest_count < MOST_GUESTS && (socket = tcp_accept(meeting->listener)) >= 0)
            meeting->guests[meeting->guest_count++] = (struct guest){.socket = socket};
        for (int i = 0; i < meeting->guest_count; i++)
            if (hear(meeting, &meeting->guests[i]))
                meeting->guests[stay++] = meeting->guests[i];
        meeting->guest_count = stay;
        if (answer->result == ncclInProgress && meeting->come == answer->ranks && answer->ranks > 0)
            answer->result = ncclSuccess;
    }
    if (answer->result == ncclInProgress)
        answer->result = ncclSystemError;
    close(meeting->listener);
    for (int i = 0; i < meeting->guest_count; i++)
        dismiss(&meeting->guests[i], answer);
    free(meeting);
    return NULL;
}

static ncclResult_t make_token(char *token)
{
    unsigned char bytes[TOKEN_BYTES];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return refuse(ncclSystemError, "getrandom");
    for (int i = 0; i < TOKEN_BYTES; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return ncclSuccess;
}

ncclResult_t meet_id(ncclUniqueId *id)
{
    struct meeting *meeting = calloc(1, sizeof *meeting);
    struct place place;
    struct in_addr address;
    char text[INET_ADDRSTRLEN];
    pthread_t thread;
    ncclResult_t result;

    if (meeting == NULL)
        return refuse(ncclSystemError, "out of memory");
    result = make_token(meeting->token);
    if (result == ncclSuccess)
        result = tcp_own_address(&address.s_addr);
    if (result != ncclSuccess) {
        free(meeting);
        return result;
    }
    inet_ntop(AF_INET, &address, text, sizeof text);
    meeting->listener = tcp_listen(address.s_addr, &place);
    if (meeting->listener >= 0) {
        snprintf(id->internal, sizeof id->internal, "tcp %s %u %s", text, ntohs(place.port),
                 meeting->token);
        if (pthread_create(&thread, NULL, meeting_main, meeting) == 0) {
            pthread_detach(thread);
            return ncclSuccess;
        }
        close(meeting->listener);
    }
    free(meeting);
    return refuse(ncclSystemError, "nobody can listen at %s", text);
}

/* ---- the ranks ---- */

int meet_is_id(const ncclUniqueId *id)
{
    return strncmp(id->internal, "tcp ", 4) == 0;
}

static ncclResult_t read_id(const ncclUniqueId *id, struct place *place, char *token)
{
    char text[sizeof id->internal + 1] = {0}, address[INET_ADDRSTRLEN];
    struct in_addr binary;
    unsigned short port;

    memcpy(text, id->internal, sizeof id->internal);
    if (sscanf(text, "tcp %15s %hu %32s", address, &port, token) != 3 ||
        inet_pton(AF_INET, address, &binary) != 1)
        return refuse(ncclInvalidArgument, "no uniqueId: %.80s", text);
    *place = (struct place){.address = binary.s_addr, .port = htons(port)};
    return ncclSuccess;
}

/* Waits for the answer, on a connection that may not be there yet. */
static ncclResult_t ask(int socket, const struct arrival *arrival, struct answer *answer,
                        atomic_int *stop)
{
    struct wait wait = wait_begin();
    size_t sent = 0, got = 0;
    int done = 0;

    while (done == 0) {
        done = tcp_send(socket, arrival, sizeof *arrival, &sent);
        if (done == 1)
            done = tcp_receive(socket, answer, sizeof *answer, &got);
        if (done == 0 && atomic_load(stop))
            return refuse(ncclInternalError, "aborted while ranks meet");
        if (done == 0 && !wait_more(&wait))
            return refuse(ncclSystemError, "not all of %d ranks have come", arrival->ranks);
    }
    return done == 1 ? ncclSuccess
                     : refuse(ncclRemoteError, "where the ranks of the uniqueId meet, nobody is");
}

static ncclResult_t judge(const struct answer *answer, const struct arrival *arrival)
{
    if (answer->result == ncclRemoteError)
        return refuse(ncclRemoteError, "rank %d is gone while ranks meet", answer->rank);
    if (answer->result == ncclSystemError)
        return refuse(ncclSystemError, "not all of %d ranks have come", answer->ranks);
    if (answer->result != ncclSuccess && answer->ranks != arrival->ranks)
        return refuse(ncclInvalidUsage, "%d ranks here, %d elsewhere", arrival->ranks,
                      answer->ranks);
    if (answer->result != ncclSuccess)
        return refuse(ncclInvalidUsage, "rank %d has come twice", arrival->rank);
    return ncclSuccess;
}

ncclResult_t meet_others(struct ncclComm *comm, const struct place *mine, struct place *all)
{
    struct arrival arrival = {.ranks = comm->ranks, .rank = comm->rank, .place = *mine};
    struct answer answer;
    struct place place;
    ncclResult_t result = read_id(&comm->id, &place, arrival.token);
    int socket;

    if (result != ncclSuccess)
        return result;
    socket = tcp_connect(&place);
    if (socket < 0)
        return refuse(ncclRemoteError, "where the ranks of the uniqueId meet, nobody is");
    result = ask(socket, &arrival, &answer, &comm->stop);
    if (result == ncclSuccess)
        result = judge(&answer, &arrival);
    close(socket);
    if (result == ncclSuccess)
        memcpy(all, answer.places, sizeof answer.places);
    return result;
}
