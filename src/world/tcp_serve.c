/*
 * The thread that serves other ranks while this one computes: it accepts peers at the door and passes on
 * news. Rank 0 receives the news of all ranks on their lines and sends them to the others, so a rank that
 * ends is known everywhere at once. The thread sleeps in poll() and sends no message of its own.
 */
#define _GNU_SOURCE
#include "tcp.h"
#include "base/thread.h"
#include "base_impl.h"
#include "watch.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { HELLO_SECONDS = 5, TELL_SECONDS = 1 };

int hvt__door_poll(const hvt__door *d, struct pollfd *p)
{
    int n = 0;

    if (d->fd >= 0)
        p[n++] = (struct pollfd){.fd = d->fd, .events = POLLIN};
    for (int i = 0; i < HVT__GUESTS; i++)
        if (d->guest[i].fd >= 0)
            p[n++] = (struct pollfd){.fd = d->guest[i].fd, .events = POLLIN};
    return n;
}

static void refuse(hvt__door *d, int i)
{
    char from[HVT__ADDRESS_TEXT];
    hvt__address a = d->guest[i].from;
    hvt__answer no = {.accepted = 0};

    memcpy(no.magic, hvt__tcp_magic, sizeof no.magic);
    snprintf(no.text, sizeof no.text, "it belongs to another job: HVT_JOB_SECRET differs");
    if (d->guest[i].got == sizeof(hvt__hello))
        hvt__send_all(d->guest[i].fd, &no, sizeof no, 0);
    close(d->guest[i].fd);
    d->guest[i].fd = -1;
    hvt__address_text(&a, from);
    if (!d->guest[i].got)
        return; /* a probe, or a rank that has ended */
    if (!d->warned)
        HVT_WARN("a connection from %s is refused: it does not know this job's secret, or is no rank of "
                 "hvtrain (further ones are refused without a line)",
                 from);
    d->warned = true;
}

/* An IPv4 peer of a socket for both families gets an IPv4 address. */
static void unmap(hvt__address *a)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = a->v6.sin6_port};

    if (a->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr))
        return;
    memcpy(&v4.sin_addr, &a->v6.sin6_addr.s6_addr[12], sizeof v4.sin_addr);
    a->v4 = v4;
}

static void let_in(hvt__door *d)
{
    hvt__address from = {.any = {.sa_family = AF_UNSPEC}};
    socklen_t bytes = sizeof from;
    int fd, slot = 0;

    while ((fd = accept4(d->fd, &from.any, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        for (int i = 0; i < HVT__GUESTS; i++)
            if (d->guest[slot].fd >= 0 && (d->guest[i].fd < 0 || d->guest[i].since < d->guest[slot].since))
                slot = i;
        if (d->guest[slot].fd >= 0)
            refuse(d, slot); /* the one that has been silent for longest */
        unmap(&from);
        d->guest[slot].fd = fd;
        d->guest[slot].got = 0;
        d->guest[slot].since = hvt__now();
        d->guest[slot].from = from;
        bytes = sizeof from;
    }
}

/* True if the hello has the secret. Compares all bytes, so the time does not tell how many are right. */
static bool knows(const hvt__hello *h, const unsigned char *secret)
{
    unsigned wrong = 0;

    for (size_t i = 0; i < HVT__SECRET; i++)
        wrong |= h->secret[i] ^ secret[i];
    return !wrong && !memcmp(h->magic, hvt__tcp_magic, sizeof h->magic);
}

void hvt__door_look(hvt__door *d, const unsigned char *secret, hvt__enter_fn *enter, void *ctx)
{
    if (d->fd >= 0)
        let_in(d);
    for (int i = 0; i < HVT__GUESTS; i++) {
        hvt__hello *h = &d->guest[i].hello;
        ssize_t n;
        int fd = d->guest[i].fd;

        if (fd < 0)
            continue;
        n = recv(fd, (char *)h + d->guest[i].got, sizeof *h - d->guest[i].got, MSG_DONTWAIT);
        if (n > 0)
            d->guest[i].got += (size_t)n;
        if (d->guest[i].got == sizeof *h && knows(h, secret)) {
            d->guest[i].fd = -1;
            h->host[sizeof h->host - 1] = 0;
            hvt__connection_options(fd);
            enter(ctx, fd, h, &d->guest[i].from);
        } else if (d->guest[i].got == sizeof *h || n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ||
                   hvt__now() - d->guest[i].since > HELLO_SECONDS) {
            refuse(d, i);
        }
    }
}

void hvt__door_close(hvt__door *d)
{
    for (int i = 0; i < HVT__GUESTS; i++)
        if (d->guest[i].fd >= 0)
            close(d->guest[i].fd);
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
}

void hvt__answer_fill(hvt__answer *a, const unsigned char *secret)
{
    memcpy(a->magic, hvt__tcp_magic, sizeof a->magic);
    memcpy(a->secret, secret, sizeof a->secret);
}

/* Handles a hello during the job: adopts a peer, and answers a rank that joins too late or twice. */
static void enter(void *ctx, int fd, const hvt__hello *h, const hvt__address *from)
{
    hvt__tcp *t = ctx;
    hvt__answer no = {.accepted = 0};

    if (h->kind == HVT__IS_PEER && h->rank >= 0 && h->rank < t->rank) {
        hvt__tcp_adopt(t, fd, h->rank);
        return;
    }
    hvt__answer_fill(&no, t->secret);
    if (h->kind == HVT__LOOKS)
        snprintf(no.text, sizeof no.text, "process %d on %s", t->place[t->rank].pid, t->place[t->rank].host);
    else if (h->rank >= 0 && h->rank < t->size)
        snprintf(no.text, sizeof no.text,
                 "the job runs already with all of its %d ranks; rank %d is process %d on %s", t->size,
                 h->rank, t->place[h->rank].pid, t->place[h->rank].host);
    else
        snprintf(no.text, sizeof no.text, "the job runs already, with %d ranks", t->size);
    hvt__send_all(fd, &no, sizeof no, 0);
    close(fd);
}

/* Sends news to the ranks that this one has lines to, except `but`. */
static void pass_on(hvt__tcp *t, const hvt__news *news, int but)
{
    pthread_mutex_lock(&t->tell);
    for (int r = 0; r < (t->rank ? 1 : t->size); r++)
        if (t->line[r].fd >= 0 && r != but)
            hvt__send_all(t->line[r].fd, news, sizeof *news, TELL_SECONDS);
    pthread_mutex_unlock(&t->tell);
}

void hvt__tell(hvt__tcp *t, const hvt__news *news)
{
    pass_on(t, news, t->rank);
}

/* Ends this process as a launcher would: SIGTERM, a second SIGTERM in case the program handles the first,
 * then _exit(). The rank that aborts has printed why, on its own host. */
static void end_process(const hvt__tcp *t, int rank, int code)
{
    const struct timespec second = {.tv_sec = 1, .tv_nsec = 100000000};
    char why[160];

    snprintf(why, sizeof why, "rank %d (%s) has ended the job; its output says why", rank,
             t->place[rank].host);
    if (hvt__may_report(why))
        hvt__log_always(HVT_LOG_INFO, why);
    hvt__watch_mute();
    for (int i = 0; i < 2; i++) {
        kill(getpid(), SIGTERM);
        nanosleep(&second, NULL);
    }
    _exit(code);
}

/* Stores a rank's last word on a channel. Call with the lock held. */
static void keep(hvt__tcp *t, const hvt__news *n)
{
    hvt__news *more;
    int i = 0;

    while (i < t->words && (t->word[i].channel != n->channel || t->word[i].rank != n->rank))
        i++;
    if (i == t->words_room) {
        more = realloc(t->word, 2 * (size_t)(t->words_room + 8) * sizeof *more);
        if (!more)
            return;
        t->word = more;
        t->words_room = 2 * (t->words_room + 8);
    }
    t->word[i] = *n;
    t->words += i == t->words;
}

static void learn(hvt__tcp *t, const hvt__news *n)
{
    if (n->rank < 0 || n->rank >= t->size)
        return;
    if (n->kind == HVT__RANK_ENDED) {
        atomic_store(&t->gone[n->rank], HVT__ENDED);
    } else if (n->kind == HVT__ABORTS) {
        end_process(t, n->rank, n->value);
    } else if (n->kind == HVT__CLOSES) {
        atomic_store(&t->gone[n->rank], HVT__BY_ITSELF);
    } else if (n->kind == HVT__WORD) {
        pthread_mutex_lock(&t->lock);
        keep(t, n);
        pthread_mutex_unlock(&t->lock);
    }
}

static void line_broke(hvt__tcp *t, int r)
{
    const int rank = t->rank ? 0 : r;
    const hvt__news news = {.kind = HVT__RANK_ENDED, .rank = rank};

    pthread_mutex_lock(&t->tell);
    close(t->line[r].fd);
    t->line[r].fd = -1;
    pthread_mutex_unlock(&t->tell);
    if (atomic_load(&t->gone[rank]) != HVT__HERE)
        return;
    learn(t, &news);
    if (t->rank == 0)
        pass_on(t, &news, rank);
}

static void listen_to(hvt__tcp *t, int r)
{
    hvt__line *l = &t->line[r];

    while (l->fd >= 0) {
        ssize_t n = recv(l->fd, (char *)&l->news + l->got, sizeof l->news - l->got, MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            line_broke(t, r);
            return;
        }
        l->got += (size_t)n;
        if (l->got < sizeof l->news)
            continue;
        l->got = 0;
        if (t->rank == 0) {
            l->news.rank = l->news.kind == HVT__RANK_ENDED ? l->news.rank : r;
            pass_on(t, &l->news, r);
        }
        learn(t, &l->news);
    }
}

static void *serve(void *arg)
{
    hvt__tcp *t = arg;
    const int lines = t->rank ? 1 : t->size;

    for (;;) {
        int n = 0;

        t->polled[n++] = (struct pollfd){.fd = t->stop, .events = POLLIN};
        for (int r = 0; r < lines; r++)
            if (t->line[r].fd >= 0)
                t->polled[n++] = (struct pollfd){.fd = t->line[r].fd, .events = POLLIN};
        n += hvt__door_poll(&t->door, t->polled + n);
        if (poll(t->polled, (nfds_t)n, 1000) < 0 && errno != EINTR)
            return NULL;
        if (t->polled[0].revents)
            return NULL;
        for (int r = 0; r < lines; r++)
            listen_to(t, r);
        hvt__door_look(&t->door, t->secret, enter, t);
    }
}

hvt_status hvt__serve_open(hvt__tcp *t)
{
    int error;

    t->polled = malloc((size_t)(t->size + HVT__GUESTS + 2) * sizeof *t->polled);
    t->stop = eventfd(0, EFD_CLOEXEC);
    HVT_CHECK(t->polled && t->stop >= 0, E_MEM, "no memory for the connections of %d ranks", t->size);
    error = hvt__thread_start(&t->thread, serve, t);
    HVT_CHECK(!error, E_MEM, "the thread for news of other ranks did not start: %s", strerror(error));
    t->runs = true;
    return HVT_OK;
}

void hvt__serve_close(hvt__tcp *t)
{
    const uint64_t one = 1;

    if (t->runs && write(t->stop, &one, sizeof one) == sizeof one)
        pthread_join(t->thread, NULL);
    t->runs = false;
    if (t->stop >= 0)
        close(t->stop);
    t->stop = -1;
    free(t->polled);
    t->polled = NULL;
}
