/*
 * Watchdogs of different hosts ask each other about progress, since the training threads may all be inside
 * MPI. They use UDP, and only while a rank waits for long. A *question* names the rank it is for; the answer
 * is the number of changes that this rank's watchdog has seen on its host. A host that does not answer, for
 * example behind a firewall, counts as one without progress.
 */
#define _GNU_SOURCE
#include "watch.h"
#include "base_impl.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ADDRESSES = 8, QUESTIONS = 64 /* QUESTIONS: at a time */, DATAGRAMS = 256 };

/* Address of a rank's watchdog. */
typedef struct place {
    uint64_t key; /* rank 0's on all ranks, to ignore datagrams of other jobs */
    uint32_t address[ADDRESSES];
    uint16_t port; /* port and address in network order; 0: none */
} place;

typedef struct datagram {
    uint64_t key, changes; /* changes: 0 in a question, else the number seen plus one */
    int32_t rank;          /* the rank asked, or the one that answers */
} datagram;

struct hvt__hosts {
    const hvt_world *world;
    int fd, next; /* next: the rank to ask first */
    place *place;
    uint64_t *answer; /* [size] last answer; 0: none */
};

static void find_addresses(uint32_t ret_address[ADDRESSES])
{
    struct ifaddrs *all = NULL;
    int n = 0;

    if (getifaddrs(&all))
        return;
    for (const struct ifaddrs *i = all; i && n < ADDRESSES; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
            !(i->ifa_flags & IFF_LOOPBACK))
            ret_address[n++] = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr;
    freeifaddrs(all);
}

/* Opens the socket for questions. Without one no rank asks this one. */
static void open_socket(hvt__hosts *h, place *ret_mine)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof at;

    h->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->fd < 0 || bind(h->fd, (struct sockaddr *)&at, sizeof at) ||
        getsockname(h->fd, (struct sockaddr *)&at, &bytes))
        return;
    ret_mine->port = at.sin_port;
    find_addresses(ret_mine->address);
}

void hvt__hosts_close(hvt__hosts **hosts)
{
    hvt__hosts *h = *hosts;

    if (!h)
        return;
    if (h->fd >= 0)
        close(h->fd);
    free(h->place);
    free(h->answer);
    free(h);
    *hosts = NULL;
}

hvt_status hvt__hosts_open(hvt_world *world, hvt__hosts **ret_hosts)
{
    place mine = {0};
    hvt__hosts *h;
    hvt_status s = HVT_OK;

    if (world->nodes == 1)
        return HVT_OK;
    *ret_hosts = h = calloc(1, sizeof *h);
    if (h) {
        h->fd = -1;
        h->world = world;
        h->place = calloc((size_t)world->size, sizeof *h->place);
        h->answer = calloc((size_t)world->size, sizeof *h->answer);
    }
    if (!h || !h->place || !h->answer)
        s = HVT_FAIL(E_MEM, "no memory to watch %d ranks", world->size);
    HVT_TRY(hvt_world_agree(world, s));
    if (getrandom(&mine.key, sizeof mine.key, GRND_NONBLOCK) < (ssize_t)sizeof mine.key)
        mine.key = (uint64_t)getpid() << 32 ^ (uint64_t)(1e6 * hvt__now());
    open_socket(h, &mine);
    return hvt_world_allgather(world, &mine, sizeof mine, h->place);
}

bool hvt__hosts_listen(hvt__hosts *h, uint64_t changes)
{
    struct sockaddr_in from;
    socklen_t bytes = sizeof from;
    datagram d;
    bool got_on = false;

    for (int i = 0; h && h->fd >= 0 && i < DATAGRAMS; i++, bytes = sizeof from) {
        ssize_t n = recvfrom(h->fd, &d, sizeof d, 0, (struct sockaddr *)&from, &bytes);

        if (n < 0)
            break;
        if (n != (ssize_t)sizeof d || d.key != h->place[0].key || d.rank < 0 || d.rank >= h->world->size)
            continue;
        if (!d.changes && d.rank == h->world->rank) {
            d.changes = changes + 1;
            sendto(h->fd, &d, sizeof d, MSG_NOSIGNAL, (struct sockaddr *)&from, bytes);
        } else if (d.changes && h->world->node_of[d.rank] != h->world->node_of[h->world->rank]) {
            got_on = got_on || (h->answer[d.rank] && h->answer[d.rank] != d.changes);
            h->answer[d.rank] = d.changes;
        }
    }
    return got_on;
}

void hvt__hosts_ask(hvt__hosts *h)
{
    int asked = 0;

    for (int i = 0; h && h->fd >= 0 && i < h->world->size && asked < QUESTIONS; i++) {
        int r = h->next = (h->next + 1) % h->world->size;
        datagram d = {h->place[0].key, 0, r};

        if (h->world->node_of[r] == h->world->node_of[h->world->rank] || !h->place[r].port)
            continue;
        asked++;
        for (int k = 0; k < ADDRESSES && h->place[r].address[k]; k++) {
            struct sockaddr_in to = {.sin_family = AF_INET,
                                     .sin_port = h->place[r].port,
                                     .sin_addr.s_addr = h->place[r].address[k]};

            sendto(h->fd, &d, sizeof d, MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof to);
        }
    }
}
