/*
 * How the ranks of a job without MPI find each other: rank 0 opens its door at an address that all ranks
 * know, or writes its addresses into a file that all ranks see. The others connect to it, and it sends them
 * the addresses of all ranks.
 */
#define _GNU_SOURCE
#include "tcp.h"
#include "base_impl.h"
#include "node.h"
#include "text.h"
#include "watch.h"
#include "world_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { ADDRESSES = 16, ANSWER_SECONDS = 30 };
static const double ATTEMPT = 2;    /* s for one attempt to connect */
static const double FOR_EVER = 1e9; /* s */

/* Times of a wait: when to log a line, and when to give up. */
typedef struct patience {
    double began, said;
} patience;

static bool is_due(patience *p, double *ret_seconds)
{
    const double warn = hvt__watch_default.warn, since = hvt__now() - p->began;

    *ret_seconds = since;
    if (!(warn > 0) || since < (p->said > 0 ? p->said : warn))
        return false;
    p->said = 2 * (p->said > 0 ? p->said : warn);
    return true;
}

static bool is_over(const patience *p)
{
    return hvt__watch_default.abort > 0 && hvt__now() - p->began >= hvt__watch_default.abort;
}

static void nap(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* ---- the file ---- */

/* The contents of the file: rank 0's addresses, and the secret that proves a rank's membership. */
typedef struct invitation {
    unsigned char secret[HVT__SECRET];
    hvt__address at[ADDRESSES];
    int count, pid;
    uint64_t host_id;
    char host[HVT__HOST_NAME];
} invitation;

static bool parse_file(FILE *f, invitation *v)
{
    char line[256], text[128];
    int port = 0, version = 0;
    const char *why;

    *v = (invitation){.count = 0};
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "hvtrain %d", &version) == 1 || sscanf(line, "port %d", &port) == 1)
            continue;
        if (sscanf(line, "secret %32s", text) == 1) {
            for (int i = 0; i < HVT__SECRET; i++)
                sscanf(text + 2 * i, "%2hhx", &v->secret[i]);
        } else if (sscanf(line, "host %63s %lx %d", v->host, &v->host_id, &v->pid) < 3 &&
                   sscanf(line, "address %100s", text) == 1 && v->count < ADDRESSES) {
            v->count += hvt__look_up(text, port, &v->at[v->count], 1, &why);
        }
    }
    return version == 1 && port && v->count && v->pid;
}

/* Reads the file, if there is one: *ret_there. E_IO if it is not hvtrain's. */
static hvt_status read_file(const char *path, invitation *v, bool *ret_there)
{
    FILE *f = fopen(path, "re");
    bool good;

    *ret_there = false;
    HVT_CHECK(f || errno == ENOENT, E_IO, "%s: %s", path, strerror(errno));
    if (!f)
        return HVT_OK;
    good = parse_file(f, v);
    fclose(f);
    HVT_CHECK(good, E_IO,
              "%s is not a file by which ranks of hvtrain meet, so it stays as it is: name one that does not "
              "exist",
              path);
    *ret_there = true;
    return HVT_OK;
}

static void say_hello(hvt__hello *h, hvt__hello_kind kind, const unsigned char *secret)
{
    *h = (hvt__hello){.kind = kind, .rank = -1, .pid = getpid(), .host_id = hvt__host_id()};
    memcpy(h->magic, hvt__tcp_magic, sizeof h->magic);
    memcpy(h->secret, secret, sizeof h->secret);
    gethostname(h->host, sizeof h->host - 1);
}

/* Asks who listens at these addresses. False: no rank of hvtrain has answered. */
static bool ask(const hvt__address *at, int n, const unsigned char *secret, double seconds, hvt__answer *ret)
{
    hvt__hello hello;
    bool answered = false;

    say_hello(&hello, HVT__LOOKS, secret);
    for (int i = 0; i < n && !answered; i++) {
        int fd = hvt__connect(&at[i], NULL, seconds);

        answered = fd >= 0 && hvt__send_all(fd, &hello, sizeof hello, seconds) &&
                   hvt__recv_all(fd, ret, sizeof *ret, seconds) &&
                   !memcmp(ret->magic, hvt__tcp_magic, sizeof ret->magic);
        if (fd >= 0)
            close(fd);
    }
    ret->text[sizeof ret->text - 1] = 0;
    return answered;
}

static bool answers(const invitation *v)
{
    hvt__answer a;

    if (v->host_id == hvt__host_id() && kill(v->pid, 0) && errno == ESRCH)
        return false;
    return ask(v->at, v->count, v->secret, ATTEMPT, &a) && !memcmp(a.secret, v->secret, sizeof v->secret);
}

/* Lists the addresses of this host that others may reach, or only that of --interface. */
static int own_addresses(const hvt__meeting *m, hvt__address *ret)
{
    struct ifaddrs *all = NULL;
    int n = 0;

    if (*m->interface)
        return hvt__interface_address(m->interface, AF_UNSPEC, &ret[0]) == HVT_OK;
    if (getifaddrs(&all))
        return 0;
    for (int loopback = 0; loopback < 2; loopback++)
        for (const struct ifaddrs *i = all; i && n < ADDRESSES; i = i->ifa_next) {
            int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;

            if ((family != AF_INET && family != AF_INET6) || !(i->ifa_flags & IFF_UP) ||
                !(i->ifa_flags & IFF_LOOPBACK) != !loopback)
                continue;
            memcpy(&ret[n], i->ifa_addr, family == AF_INET6 ? sizeof ret->v6 : sizeof ret->v4);
            n += !(family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ret[n].v6.sin6_addr));
        }
    freeifaddrs(all);
    return n;
}

static void print_invitation(FILE *f, const hvt__meeting *m, const hvt__tcp *t, int port)
{
    hvt__address own[ADDRESSES];
    char host[HVT__HOST_NAME] = "?", text[INET6_ADDRSTRLEN];
    int n = own_addresses(m, own);

    gethostname(host, sizeof host - 1);
    fprintf(f, "hvtrain 1\nsecret ");
    for (int i = 0; i < HVT__SECRET; i++)
        fprintf(f, "%02x", t->secret[i]);
    fprintf(f, "\nhost %s %lx %d\nport %d\n", host, hvt__host_id(), (int)getpid(), port);
    for (int i = 0; i < n; i++)
        if (own[i].any.sa_family == AF_INET)
            fprintf(f, "address %s\n", inet_ntop(AF_INET, &own[i].v4.sin_addr, text, sizeof text));
        else
            fprintf(f, "address %s\n", inet_ntop(AF_INET6, &own[i].v6.sin6_addr, text, sizeof text));
}

/* Opens a file for writing without a name, which write_file() links when it is complete. So a killed rank
 * leaves no file behind. On file systems without O_TMPFILE, such as NFS, the file has a name (*ret_named). */
static hvt_status open_draft(const char *path, char ret_draft[PATH_MAX], bool *ret_named, int *ret_fd)
{
    HVT_TRY(hvt__path(ret_draft, "%.*s", (int)(strrchr(path, '/') - path) + 1, path));
    *ret_fd = open(ret_draft, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    *ret_named = *ret_fd < 0;
    if (!*ret_named)
        return hvt__path(ret_draft, "/proc/self/fd/%d", *ret_fd);
    HVT_TRY(hvt__path(ret_draft, "%s.%d.tmp", path, (int)getpid()));
    *ret_fd = open(ret_draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    HVT_CHECK(*ret_fd >= 0, E_IO, "%s, by which the ranks meet, cannot be written: %s", ret_draft,
              strerror(errno));
    return HVT_OK;
}

/* Writes the file. It appears complete, and only if there is none. */
static hvt_status write_file(const hvt__meeting *m, const hvt__tcp *t, int port)
{
    char draft[PATH_MAX];
    bool named = false;
    int fd = -1, error;
    FILE *f;

    HVT_TRY(open_draft(m->path, draft, &named, &fd));
    f = fdopen(fd, "w");
    if (f)
        print_invitation(f, m, t, port);
    error = !f || fflush(f) || linkat(AT_FDCWD, draft, AT_FDCWD, m->path, AT_SYMLINK_FOLLOW) ? errno : 0;
    if (f)
        fclose(f);
    if (named)
        unlink(draft);
    HVT_CHECK(!error, E_IO, "%s, by which the ranks meet, cannot be written: %s", m->path, strerror(error));
    hvt__temp(m->path, true);
    return HVT_OK;
}

static hvt_status offer_file(const hvt__meeting *m, const hvt__tcp *t, int port)
{
    invitation old;
    bool there;

    HVT_TRY(read_file(m->path, &old, &there));
    if (there) {
        HVT_CHECK(!answers(&old), E_IO,
                  "%s is the file of another job, whose rank 0 runs as process %d on %s: name another file",
                  m->path, old.pid, old.host);
        HVT_WARN("%s was left by a job that has ended (process %d on %s): it is replaced", m->path, old.pid,
                 old.host);
        unlink(m->path);
    }
    return write_file(m, t, port);
}

/* ---- rank 0 ---- */

typedef struct assembly {
    const hvt__meeting *m;
    hvt__tcp *t;
    int joined;
    char refusal[sizeof((hvt__answer *)NULL)->text]; /* why the job cannot start */
} assembly;

static void answer(const hvt__tcp *t, int fd, bool accepted, bool agreed, const char *text)
{
    hvt__answer a = {.accepted = accepted, .agreed = agreed};

    hvt__answer_fill(&a, t->secret);
    snprintf(a.text, sizeof a.text, "%s", text);
    hvt__send_all(fd, &a, sizeof a, 1);
}

static void enter(void *ctx, int fd, const hvt__hello *h, const hvt__address *from)
{
    assembly *z = ctx;
    hvt__tcp *t = z->t;
    hvt__tcp_place *p;

    if (h->kind != HVT__JOINS) {
        char self[96];

        snprintf(self, sizeof self, "process %d on %s", t->place[0].pid, t->place[0].host);
        answer(t, fd, false, false, self);
        close(fd);
        return;
    }
    if (h->size != t->size)
        snprintf(z->refusal, sizeof z->refusal,
                 "rank %d (%s) was started with world size %d, and rank 0 (%s) with %d", h->rank, h->host,
                 h->size, t->place[0].host, t->size);
    else if (h->rank <= 0 || h->rank >= t->size || t->line[h->rank].fd >= 0)
        snprintf(
            z->refusal, sizeof z->refusal, "two processes were started as rank %d: %d on %s and %d on %s",
            h->rank, h->rank > 0 && h->rank < t->size ? t->place[h->rank].pid : t->place[0].pid,
            h->rank > 0 && h->rank < t->size ? t->place[h->rank].host : t->place[0].host, h->pid, h->host);
    if (*z->refusal) {
        answer(t, fd, false, false, z->refusal);
        close(fd);
        return;
    }
    p = &t->place[h->rank];
    *p = (hvt__tcp_place){.at = *from, .host_id = h->host_id, .pid = h->pid};
    memcpy(p->host, h->host, sizeof p->host);
    p->near_zero = hvt__address_is_loopback(from);
    hvt__address_set_port(&p->at, h->port);
    t->line[h->rank].fd = fd;
    z->joined++;
}

/* Forgets ranks that ended before the job started; they may join again. */
static void forget_ended(assembly *z)
{
    char byte;

    for (int r = 1; r < z->t->size; r++) {
        hvt__line *l = &z->t->line[r];
        ssize_t n = l->fd < 0 ? 1 : recv(l->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            close(l->fd);
            l->fd = -1;
            z->joined--;
        }
    }
}

/* "ranks 2 and 3 of 4" */
static void add_missing(hvt__text *b, const hvt__tcp *t, int joined)
{
    const int missing = t->size - joined, most = 8;
    int said = 0;

    hvt__text_add(b, missing == 1 ? "rank" : "ranks");
    for (int r = 1; r < t->size && said < most; r++)
        if (t->line[r].fd < 0) {
            hvt__text_add(b, "%s %d", said == 0 ? "" : said + 1 == missing ? " and" : ",", r);
            said++;
        }
    if (missing > most)
        hvt__text_add(b, " and %d more", missing - most);
    hvt__text_add(b, " of %d", t->size);
}

static hvt_status await_all(assembly *z)
{
    hvt__tcp *t = z->t;
    patience wait = {.began = hvt__now()};
    double seconds;

    while (z->joined < t->size && !*z->refusal) {
        int n = hvt__door_poll(&t->door, t->polled);

        for (int r = 1; r < t->size; r++)
            if (t->line[r].fd >= 0)
                t->polled[n++] = (struct pollfd){.fd = t->line[r].fd, .events = POLLIN};
        if (poll(t->polled, (nfds_t)n, 50) < 0 && errno != EINTR)
            return HVT_FAIL(E_COMM, "waiting for other ranks: %s", strerror(errno));
        hvt__door_look(&t->door, t->secret, enter, z);
        forget_ended(z);
        if (is_due(&wait, &seconds) && z->joined < t->size) {
            hvt__text b = {.used = 0};

            hvt__text_add(&b, "waiting for ");
            add_missing(&b, t, z->joined);
            hvt__text_add(&b, " for %.0f s at %s", seconds, z->m->shown);
            hvt__log_always(HVT_LOG_WARN, b.at);
        }
        if (is_over(&wait) && z->joined < t->size) {
            hvt__text b = {.used = 0};

            add_missing(&b, t, z->joined);
            snprintf(z->refusal, sizeof z->refusal,
                     "%.200s did not join %.250s within %.0f s (--stall-abort)", b.at, z->m->shown,
                     hvt__watch_default.abort);
        }
    }
    return HVT_OK;
}

/* Warns if the address is not this host's. That is no error: a service may pass connections on. */
static void check_own(const hvt__meeting *m, const char *host)
{
    hvt__address at[ADDRESSES];
    const char *why = "";
    int n = hvt__look_up(m->host, m->port, at, ADDRESSES, &why), fd = -1;

    for (int i = 0; i < n; i++) {
        fd = hvt__listen(&at[i], 0);
        if (fd >= 0)
            close(fd);
        if (fd >= 0 || errno != EADDRNOTAVAIL)
            return;
    }
    if (n)
        HVT_WARN("rank 0 runs on %s, whose address %s is not: the other ranks reach it only if a service "
                 "passes their connections on; otherwise name rank 0's own host at all ranks",
                 host, m->host);
    else
        HVT_WARN("rank 0 (%s) cannot look up %s, where the ranks are to meet: %s", host, m->host, why);
}

/* Fails because the port is in use. The message names the process if it is another rank 0. */
static hvt_status refuse_port(const hvt__meeting *m, const hvt__tcp *t)
{
    hvt__address at[ADDRESSES];
    hvt__answer a;
    const char *why;

    const bool is_rank =
        m->ports == 1 && ask(at, hvt__look_up(m->host, m->port, at, ADDRESSES, &why), t->secret, 0.5, &a);

    HVT_CHECK(is_rank && !memcmp(a.secret, t->secret, sizeof a.secret), E_COMM,
              "rank 0 cannot listen at %s: the port is in use, by %s; choose another one", m->shown,
              is_rank ? "rank 0 of another job" : "another program");
    return HVT_FAIL(E_COMM,
                    "rank 0 cannot listen at %s, as %s does: two processes were started as rank 0, or "
                    "two jobs with one port",
                    m->shown, a.text);
}

static hvt_status open_door(const hvt__meeting *m, hvt__tcp *t)
{
    hvt__address at[ADDRESSES], *exact = NULL;
    struct in6_addr number;
    const char *why = "";
    bool is_number = inet_pton(AF_INET, m->host, &number) == 1 || inet_pton(AF_INET6, m->host, &number) == 1;

    if (hvt__spawned_door >= 0) {
        t->door.fd = hvt__spawned_door;
        hvt__spawned_door = -1;
        return HVT_OK;
    }
    if (m->by == HVT__BY_FILE && *m->interface) {
        HVT_TRY(hvt__interface_address(m->interface, AF_UNSPEC, at));
        exact = at;
    } else if (m->by == HVT__BY_ADDRESS && (is_number || !strcmp(m->host, "localhost"))) {
        exact = hvt__look_up(m->host, m->port, at, 1, &why) ? at : NULL;
    }
    for (int i = 0; i < m->ports && t->door.fd < 0; i++) {
        t->door.fd = hvt__listen(exact, m->port + i);
        if (t->door.fd < 0 && exact && errno == EADDRNOTAVAIL) /* a service in front of this host has it */
            t->door.fd = hvt__listen(NULL, m->port + i);
    }
    if (t->door.fd < 0 && errno == EADDRINUSE)
        return refuse_port(m, t);
    HVT_CHECK(t->door.fd >= 0, E_COMM, "rank 0 cannot listen at %s: %s", m->shown, strerror(errno));
    if (m->by == HVT__BY_ADDRESS)
        check_own(m, t->place[0].host);
    return HVT_OK;
}

static hvt_status host_meeting(const hvt__meeting *m, hvt__tcp *t)
{
    assembly z = {.m = m, .t = t, .joined = 1};
    hvt__address own = {.any = {.sa_family = AF_UNSPEC}};
    socklen_t bytes = sizeof own;
    hvt_status s;

    gethostname(t->place[0].host, sizeof t->place[0].host - 1);
    HVT_TRY(open_door(m, t));
    getsockname(t->door.fd, &own.any, &bytes);
    t->place[0].at = own;
    t->place[0].host_id = hvt__host_id();
    t->place[0].pid = getpid();
    if (m->by == HVT__BY_FILE)
        HVT_TRY(offer_file(m, t, hvt__address_port(&own)));
    s = await_all(&z);
    if (m->by == HVT__BY_FILE) {
        unlink(m->path);
        hvt__temp(m->path, false);
    }
    HVT_TRY(s);
    for (int r = 1; r < t->size; r++) {
        if (t->line[r].fd < 0)
            continue;
        answer(t, t->line[r].fd, !*z.refusal, true, z.refusal);
        if (!*z.refusal)
            hvt__send_all(t->line[r].fd, t->place, (size_t)t->size * sizeof *t->place, ATTEMPT);
    }
    HVT_CHECK(!*z.refusal, E_COMM, "%s", z.refusal);
    return HVT_OK;
}

/* ---- the others ---- */

/* Joins at this address. If no rank 0 answers, *ret_joined stays false and ret_why has the reason. */
static hvt_status try_address(const hvt__meeting *m, hvt__tcp *t, const hvt__address *at,
                              const hvt__address *from, bool *ret_joined, char ret_why[200])
{
    /* rank 0 gives up first, and says why */
    const double limit = hvt__watch_default.abort > 0 ? hvt__watch_default.abort + ATTEMPT : FOR_EVER;
    hvt__hello hello;
    hvt__answer a;
    int fd = hvt__connect(at, from, ATTEMPT);

    snprintf(ret_why, 200, "%s", strerror(errno));
    if (fd < 0)
        return HVT_OK;
    say_hello(&hello, HVT__JOINS, t->secret);
    hello.rank = t->rank;
    hello.size = t->size;
    hello.port = hvt__address_port(&t->place[t->rank].at);
    hvt__connection_options(fd);
    if (!hvt__send_all(fd, &hello, sizeof hello, ATTEMPT) || !hvt__recv_all(fd, &a, sizeof a, limit) ||
        memcmp(a.magic, hvt__tcp_magic, sizeof a.magic)) {
        snprintf(ret_why, 200, "%s", errno ? strerror(errno) : "the other end closed the connection");
        close(fd);
        return HVT_OK;
    }
    a.text[sizeof a.text - 1] = 0;
    if (!a.accepted && m->ports > 1 && memcmp(a.secret, t->secret, sizeof a.secret)) {
        snprintf(ret_why, 200, "another job is there");
        close(fd);
        return HVT_OK;
    }
    if (!a.accepted) {
        close(fd);
        if (memcmp(a.secret, t->secret, sizeof a.secret))
            return HVT_FAIL(E_COMM, "rank 0 at %s refuses rank %d: %s", m->shown, t->rank, a.text);
        HVT_FAIL(E_COMM, "%s", a.text);
        hvt__error_agreed(a.agreed &&
                          hvt__launch_shows_output()); /* otherwise the user may not see rank 0's line */
        return HVT_E_COMM;
    }
    if (!hvt__recv_all(fd, t->place, (size_t)t->size * sizeof *t->place, ANSWER_SECONDS)) {
        close(fd);
        return HVT_FAIL(E_COMM, "rank 0 has ended before the job started");
    }
    t->line[0].fd = fd;
    t->zero = *at;
    *ret_joined = true;
    return HVT_OK;
}

/* Lists the addresses of rank 0 that are known so far. */
static hvt_status list_addresses(const hvt__meeting *m, hvt__tcp *t, hvt__address *at, int *ret_count,
                                 char why[200])
{
    const char *reason = "";
    invitation v;
    bool there;

    *ret_count = 0;
    if (m->by == HVT__BY_FILE) {
        HVT_TRY(read_file(m->path, &v, &there));
        snprintf(why, 200, "the file does not exist");
        if (!there)
            return HVT_OK;
        memcpy(t->secret, v.secret, sizeof t->secret);
        for (int i = 0; i < v.count; i++)
            if (v.host_id == hvt__host_id() || !hvt__address_is_loopback(&v.at[i]))
                at[(*ret_count)++] = v.at[i];
        return HVT_OK;
    }
    *ret_count = hvt__look_up(m->host, m->port, at, ADDRESSES, &reason);
    snprintf(why, 200, "%s", reason);
    return HVT_OK;
}

static hvt_status join_meeting(const hvt__meeting *m, hvt__tcp *t)
{
    hvt__address at[ADDRESSES], own = {.any = {.sa_family = AF_UNSPEC}}, from;
    socklen_t bytes = sizeof own;
    patience wait = {.began = hvt__now()};
    char why[200] = "", host[HVT__HOST_NAME] = "?";
    double seconds;
    bool joined = false;
    int count;

    t->door.fd = hvt__listen(NULL, 0);
    HVT_CHECK(t->door.fd >= 0, E_COMM, "rank %d cannot listen: %s", t->rank, strerror(errno));
    getsockname(t->door.fd, &own.any, &bytes);
    t->place[t->rank].at = own;
    gethostname(host, sizeof host - 1);
    for (int pause = 5; !joined; pause = pause < 100 ? 2 * pause : 100) {
        HVT_TRY(list_addresses(m, t, at, &count, why));
        for (int i = 0; i < count * m->ports && !joined; i++) {
            hvt__address *a = &at[i % count];

            hvt__address_set_port(a, hvt__address_port(a) + (i >= count));
            if (*m->interface)
                HVT_TRY(hvt__interface_address(m->interface, a->any.sa_family, &from));
            HVT_TRY(try_address(m, t, a, *m->interface ? &from : NULL, &joined, why));
        }
        if (joined)
            break;
        if (is_due(&wait, &seconds)) {
            hvt__text b = {.used = 0};

            hvt__text_add(&b, "rank %d (%s) has waited for rank 0 at %s for %.0f s: %s", t->rank, host,
                          m->shown, seconds, why);
            hvt__log_always(HVT_LOG_WARN, b.at);
        }
        HVT_CHECK(!is_over(&wait), E_COMM,
                  "rank %d (%s) did not reach rank 0 at %s within %.0f s (--stall-abort): %s", t->rank, host,
                  m->shown, hvt__watch_default.abort, why);
        nap(pause);
    }
    return HVT_OK;
}

/* ---- options and environment ---- */

/* HOST:PORT or [ADDRESS]:PORT */
static hvt_status read_address(const char *text, const char *from, hvt__meeting *m)
{
    const char *colon = strrchr(text, ':'), *host = text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    int64_t port = 0;

    if (n >= 2 && *host == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    } else if (colon && memchr(text, ':', n)) {
        n = 0; /* an IPv6 address needs brackets */
    }
    if (colon)
        colon++;
    HVT_CHECK(n && n < sizeof m->host && hvt__scan_whole(&colon, 65535, &port) && !*colon && port > 0, E_ARG,
              "%s: expected tcp://HOST:PORT, as in tcp://10.1.1.20:23456 or tcp://[fd00::1]:23456, got '%s'",
              from, text);
    snprintf(m->host, sizeof m->host, "%.*s", (int)n, host);
    m->port = (int)port;
    snprintf(m->shown, sizeof m->shown, "%s", text);
    return HVT_OK;
}

static hvt_status from_environment(hvt__meeting *m)
{
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"), *agent;
    char text[280];

    const bool has_host = host && *host, has_port = port && *port;
    HVT_CHECK(has_host && has_port, E_ARG,
              "env:// needs %s%s%s. torchrun and a PyTorchJob set the variables; --init-method "
              "tcp://HOST:PORT does without",
              has_host ? "" : "MASTER_ADDR, the host of rank 0", has_host || has_port ? "" : ", and ",
              has_port ? "" : "MASTER_PORT, the port where rank 0 listens");
    snprintf(text, sizeof text, strchr(host, ':') ? "[%.200s]:%.20s" : "%.200s:%.20s", host, port);
    HVT_TRY(read_address(text, "MASTER_ADDR and MASTER_PORT", m));
    /* torchrun's own store already listens at this port (torch/distributed/rendezvous.py) */
    agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (agent && !strcmp(agent, "True")) {
        m->ports = 16;
        m->port = m->port < 65535 - m->ports ? m->port + 1 : m->port - m->ports;
    }
    return HVT_OK;
}

/* Finds the rank or the world size: as given, from the environment, or from a launcher without MPI. */
static hvt_status number(int given, const char *variable, int launched, const char *flag, int *ret)
{
    const char *text = getenv(variable), *at = text;
    int64_t value;

    *ret = given >= 0 ? given : launched;
    if (given >= 0 || (!text && launched >= 0))
        return HVT_OK;
    HVT_CHECK(text && *text, E_ARG, "a job without MPI needs %s N, or the variable %s", flag, variable);
    HVT_CHECK(hvt__scan_whole(&at, 1 << 20, &value) && !*at, E_ARG, "%s: expected a whole number, got '%s'",
              variable, text);
    *ret = (int)value;
    return HVT_OK;
}

hvt_status hvt__meeting_of(const hvt_tcp_opts *opts, hvt__meeting *m)
{
    const hvt_tcp_opts none = {.rank = -1}, *o = opts ? opts : &none;
    const char *method = o->init_method && *o->init_method ? o->init_method : "env://";
    const char *secret = getenv("HVT_JOB_SECRET"), *run = getenv("TORCHELASTIC_RUN_ID");
    const hvt_launch l = hvt__launch(getenv);

    *m = (hvt__meeting){.ports = 1};
    HVT_CHECK(!strchr(method, '?'), E_ARG,
              "--init-method %s: expected no ?rank=...; use --rank N --world-size N beside it", method);
    HVT_TRY(number(o->rank, "RANK", hvt_world_launched_rank(), "--rank", &m->rank));
    HVT_TRY(number(o->size > 0 ? o->size : -1, "WORLD_SIZE", l.size ? l.size : -1, "--world-size", &m->size));
    HVT_CHECK(m->size > 0 && m->rank < m->size, E_ARG, "rank %d of %d ranks: expected 0 to %d", m->rank,
              m->size, m->size - 1);
    if (!strncmp(method, "env://", 6)) {
        HVT_TRY(from_environment(m));
    } else if (!strncmp(method, "tcp://", 6)) {
        HVT_TRY(read_address(method + 6, "--init-method", m));
    } else {
        HVT_CHECK(!strncmp(method, "file:///", 8) && method[8], E_ARG,
                  "--init-method: expected env://, tcp://HOST:PORT or file:///PATH, got '%s'", method);
        m->by = HVT__BY_FILE;
        snprintf(m->path, sizeof m->path, "%s", method + 7);
        snprintf(m->shown, sizeof m->shown, "%.299s", method);
    }
    snprintf(m->interface, sizeof m->interface, "%s", o->interface ? o->interface : "");
    hvt__secret_parse(secret ? secret : run ? run : "", m->secret);
    return HVT_OK;
}

hvt_status hvt__meet(const hvt__meeting *m, hvt__tcp *t)
{
    hvt__address own;
    hvt_status s;

    if (*m->interface)
        HVT_TRY(hvt__interface_address(m->interface, AF_UNSPEC, &own));
    t->rank = m->rank;
    t->size = m->size;
    memcpy(t->secret, m->secret, sizeof t->secret);
    if (m->by == HVT__BY_FILE && m->rank == 0)
        hvt__random_secret(t->secret);
    t->polled = malloc((size_t)(t->size + HVT__GUESTS + 2) * sizeof *t->polled);
    HVT_CHECK(t->polled, E_MEM, "no memory for the connections of %d ranks", t->size);
    s = m->rank == 0 ? host_meeting(m, t) : join_meeting(m, t);
    free(t->polled);
    t->polled = NULL;
    return s;
}
