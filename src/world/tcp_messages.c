/*
 * Messages over TCP. Each has a head and then its bytes, which go from the sender's memory to the receiver's
 * without a copy if the receive is posted in time. The lower rank of a pair connects when it first posts a
 * message; messages of the higher rank wait for that.
 *
 * A thread that waits moves the bytes itself; there is no thread for messages. It tries for a moment, then
 * sleeps in epoll_wait(), and then serves every ready connection, since other threads may wait for it.
 *
 * If the next message of a connection has no receive yet, the connection rests: nothing more is read from it.
 * If a receive waits for another message, which may be behind this one, this one is stored (*early*).
 */
#define _GNU_SOURCE
#include "tcp.h"
#include "base_impl.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

/* A message that arrived before its receive was posted. */
typedef struct early {
    struct early *next;
    hvt__tcp_head head;
    char at[];
} early;

typedef struct fifo {
    hvt__tcp_request *first, **last;
} fifo;

struct hvt__tcp_pair {
    int fd; /* -1: none yet */
    bool broken, rests, wants_out;
    double broken_at;
    fifo sends, recvs;
    size_t head_sent; /* bytes of the first send's header that are sent */
    hvt__tcp_head in;
    size_t head_got, got;
    hvt__tcp_request *into; /* receive that the current message goes to; NULL: */
    early *stores;          /* where it is stored; NULL: it is thrown away */
    bool in_body;
    early *early, **early_last;
};

static const double GRACE = 1;     /* s, from the end of a connection to the news about its rank */
static const double TRIES = 40e-6; /* s, before a waiting thread sleeps */
static const double CONNECT = 20;  /* s */
static char thrown_away[64 << 10]; /* destination of discarded bytes */

hvt_status hvt__tcp_messages_open(hvt__tcp *t)
{
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL};

    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->pair = calloc((size_t)t->size, sizeof *t->pair);
    HVT_CHECK(t->pair && t->epoll >= 0 && t->wake >= 0 && !epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->wake, &wake),
              E_MEM, "no memory for messages of %d ranks: %s", t->size, strerror(errno));
    for (int r = 0; r < t->size; r++) {
        hvt__tcp_pair *p = &t->pair[r];

        p->fd = -1;
        p->sends.last = &p->sends.first;
        p->recvs.last = &p->recvs.first;
        p->early_last = &p->early;
    }
    return HVT_OK;
}

void hvt__tcp_messages_close(hvt__tcp *t)
{
    for (int r = 0; t->pair && r < t->size; r++) {
        hvt__tcp_pair *p = &t->pair[r];

        if (p->fd >= 0)
            close(p->fd);
        free(p->stores);
        for (early *e = p->early, *next; e; e = next) {
            next = e->next;
            free(e);
        }
        for (hvt__tcp_request *q = p->sends.first, *next; q; q = next) {
            next = q->next;
            if (q->owned)
                free(q);
        }
    }
    free(t->pair);
    t->pair = NULL;
    if (t->epoll >= 0)
        close(t->epoll);
    if (t->wake >= 0)
        close(t->wake);
    t->epoll = t->wake = -1;
}

static void push(fifo *f, hvt__tcp_request *q)
{
    q->next = NULL;
    *f->last = q;
    f->last = &q->next;
}

static void pull(fifo *f, hvt__tcp_request *q)
{
    hvt__tcp_request **at = &f->first;

    while (*at && *at != q)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = q->next;
    if (f->last == &q->next)
        f->last = at;
}

static void break_pair(hvt__tcp *t, hvt__tcp_pair *p)
{
    p->broken = true;
    p->broken_at = hvt__now();
    epoll_ctl(t->epoll, EPOLL_CTL_DEL, p->fd, NULL);
}

/* Sets the events that epoll reports for this pair. */
static void set_events(hvt__tcp *t, hvt__tcp_pair *p, bool rests, bool wants_out)
{
    struct epoll_event e = {.events = (rests ? 0 : EPOLLIN) | (wants_out ? EPOLLOUT : 0), .data.ptr = p};

    if (p->fd < 0 || p->broken || (p->rests == rests && p->wants_out == wants_out))
        return;
    p->rests = rests;
    p->wants_out = wants_out;
    epoll_ctl(t->epoll, EPOLL_CTL_MOD, p->fd, &e);
}

/* Sends as much as the socket takes. True if a message was completed. */
static bool send_some(hvt__tcp *t, hvt__tcp_pair *p)
{
    bool completed = false;

    while (p->fd >= 0 && !p->broken && p->sends.first) {
        hvt__tcp_request *q = p->sends.first;
        struct iovec part[2] = {{(char *)&q->head + p->head_sent, sizeof q->head - p->head_sent},
                                {q->at + q->moved, q->head.bytes - q->moved}};
        struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
        ssize_t n = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        size_t of_head;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            break_pair(t, p);
        if (n < 0)
            break;
        of_head = (size_t)n < part[0].iov_len ? (size_t)n : part[0].iov_len;
        p->head_sent += of_head;
        q->moved += (size_t)n - of_head;
        if (q->moved < q->head.bytes || p->head_sent < sizeof q->head)
            continue;
        pull(&p->sends, q);
        p->head_sent = 0;
        q->done = completed = true;
        if (q->owned)
            free(q);
    }
    set_events(t, p, p->rests, p->sends.first);
    return completed;
}

static bool same(const hvt__tcp_head *a, const hvt__tcp_head *b)
{
    return a->channel == b->channel && a->tag == b->tag;
}

/* Chooses the destination of the message whose header has arrived. False: the connection rests. */
static bool direct(hvt__tcp_pair *p)
{
    hvt__tcp_request *q = p->recvs.first;

    while (q && !same(&q->head, &p->in))
        q = q->next;
    if (!q && !p->recvs.first)
        return false;
    if (q && q->head.bytes == p->in.bytes) {
        pull(&p->recvs, q);
        p->into = q;
    } else if (!q) {
        p->stores = malloc(sizeof *p->stores + p->in.bytes);
        if (p->stores)
            *p->stores = (early){.head = p->in};
    } /* otherwise the lengths differ: the ranks disagree, and the receive never completes */
    p->in_body = true;
    p->got = 0;
    return true;
}

static bool end_message(hvt__tcp_pair *p)
{
    hvt__tcp_request *q = p->into;

    p->in_body = false;
    p->head_got = 0;
    if (q)
        q->done = true;
    p->into = NULL;
    if (p->stores) {
        q = p->recvs.first;
        while (q && !same(&q->head, &p->stores->head))
            q = q->next;
        if (q && q->head.bytes == p->stores->head.bytes) { /* posted meanwhile */
            memcpy(q->at, p->stores->at, q->head.bytes);
            pull(&p->recvs, q);
            q->done = true;
            free(p->stores);
        } else {
            *p->early_last = p->stores;
            p->early_last = &p->stores->next;
        }
        p->stores = NULL;
    }
    return q;
}

static bool receive_some(hvt__tcp *t, hvt__tcp_pair *p)
{
    bool completed = false, rests = false;

    while (p->fd >= 0 && !p->broken) {
        size_t left = p->in_body ? p->in.bytes - p->got : sizeof p->in - p->head_got;
        char *to = !p->in_body ? (char *)&p->in + p->head_got
                   : p->into   ? p->into->at + p->got
                   : p->stores ? p->stores->at + p->got
                               : thrown_away;
        ssize_t n;

        if (to == thrown_away && left > sizeof thrown_away)
            left = sizeof thrown_away;
        n = left ? recv(p->fd, to, left, MSG_DONTWAIT) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if ((n == 0 && left) || (n < 0 && errno != EAGAIN)) {
            break_pair(t, p);
            break;
        }
        if (n < 0)
            break;
        if (p->in_body)
            p->got += (size_t)n;
        else
            p->head_got += (size_t)n;
        if (!p->in_body && p->head_got == sizeof p->in && !direct(p)) {
            rests = true;
            break;
        }
        if (p->in_body && p->got == p->in.bytes)
            completed = end_message(p) || completed;
        else if (p->in_body && p->got && (size_t)n < left)
            break; /* the socket is empty */
    }
    set_events(t, p, rests, p->wants_out);
    return completed;
}

static void progress(hvt__tcp *t, hvt__tcp_pair *p)
{
    const uint64_t one = 1;
    bool completed = p->sends.first && send_some(t, p);

    if (p->rests && p->recvs.first && direct(p))
        set_events(t, p, false, p->wants_out);
    if (p->fd >= 0 && !p->rests)
        completed = receive_some(t, p) || completed;
    if (completed && t->sleepers)
        completed = write(t->wake, &one, sizeof one) == sizeof one;
}

static void adopt(hvt__tcp *t, hvt__tcp_pair *p, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};

    p->fd = fd;
    p->broken = p->rests = p->wants_out = false;
    epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e);
    progress(t, p);
}

void hvt__tcp_adopt(hvt__tcp *t, int fd, int peer)
{
    pthread_mutex_lock(&t->lock);
    if (t->pair[peer].fd < 0)
        adopt(t, &t->pair[peer], fd);
    else
        close(fd);
    pthread_mutex_unlock(&t->lock);
}

/* The address at which this rank reaches its peer. */
static hvt__address address_of(const hvt__tcp *t, int peer)
{
    hvt__address to = t->place[peer].at;
    const int port = hvt__address_port(&to);

    if (t->rank == 0)
        return to;
    if (peer && t->place[peer].near_zero) {
        to = t->zero;
        hvt__address_set_port(&to, port);
    } else if (peer == 0) {
        to = t->zero;
    } else if (to.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&to.v6.sin6_addr)) {
        to.v6.sin6_scope_id = t->zero.any.sa_family == AF_INET6 ? t->zero.v6.sin6_scope_id : 0;
    }
    return to;
}

static hvt_status connect_to(hvt__tcp *t, int peer)
{
    hvt__hello hello = {.kind = HVT__IS_PEER, .rank = t->rank, .size = t->size, .pid = getpid()};
    hvt__address to = address_of(t, peer);
    char text[HVT__ADDRESS_TEXT];
    int fd = hvt__connect(&to, NULL, CONNECT);

    memcpy(hello.magic, hvt__tcp_magic, sizeof hello.magic);
    memcpy(hello.secret, t->secret, sizeof hello.secret);
    hvt__address_text(&to, text);
    HVT_CHECK(
        fd >= 0, E_COMM,
        "rank %d (%s) does not reach rank %d (%s) at %s: %s; if that is the wrong network, name the right "
        "one with --interface on every host",
        t->rank, t->place[t->rank].host, peer, t->place[peer].host, text, strerror(errno));
    hvt__connection_options(fd);
    if (!hvt__send_all(fd, &hello, sizeof hello, CONNECT)) {
        close(fd);
        return HVT_FAIL(E_COMM, "rank %d does not reach rank %d (%s) at %s: %s", t->rank, peer,
                        t->place[peer].host, text, strerror(errno));
    }
    adopt(t, &t->pair[peer], fd);
    return HVT_OK;
}

/* Completes a receive from the early messages; false if none matches. */
static bool take_early(hvt__tcp_pair *p, hvt__tcp_request *q)
{
    early **at = &p->early, *e;

    while (*at && !same(&(*at)->head, &q->head))
        at = &(*at)->next;
    e = *at;
    if (!e || e->head.bytes != q->head.bytes)
        return false;
    memcpy(q->at, e->at, q->head.bytes);
    *at = e->next;
    if (p->early_last == &e->next)
        p->early_last = at;
    free(e);
    return true;
}

hvt_status hvt__tcp_post(hvt__tcp *t, hvt__flight *f, uint32_t channel, bool send, void *at, size_t bytes,
                         int peer)
{
    hvt__tcp_request *q = (hvt__tcp_request *)f->request + f->n;
    hvt__tcp_pair *p = &t->pair[peer];
    hvt_status s = HVT_OK;

    *q = (hvt__tcp_request){.at = at, .head = {channel, (uint32_t)f->tag, bytes}, .peer = peer, .send = send};
    pthread_mutex_lock(&t->lock);
    if (p->fd < 0 && t->rank < peer && atomic_load(&t->gone[peer]) == HVT__HERE)
        s = connect_to(t, peer);
    if (s == HVT_OK && send) {
        push(&p->sends, q);
        if (p->sends.first == q)
            send_some(t, p);
    } else if (s == HVT_OK) {
        q->done = take_early(p, q);
        if (!q->done)
            push(&p->recvs, q);
    }
    pthread_mutex_unlock(&t->lock);
    return s;
}

/* If the connection to a peer ended a while ago but no news says that the peer has, it is unreachable and
 * counts as ended. */
static void check_broken(hvt__tcp *t, int peer)
{
    const hvt__news news = {.kind = HVT__RANK_ENDED, .rank = peer};

    if (!t->pair[peer].broken || atomic_load(&t->gone[peer]) != HVT__HERE ||
        hvt__now() - t->pair[peer].broken_at < GRACE)
        return;
    atomic_store(&t->gone[peer], HVT__ENDED);
    hvt__tell(t, &news);
}

static bool look(hvt__tcp *t, hvt__flight *f)
{
    hvt__tcp_request *q = f->request;
    bool done = true;

    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < f->n; i++)
        if (!q[i].done)
            progress(t, &t->pair[q[i].peer]);
    for (int i = 0; i < f->n; i++) {
        done = done && q[i].done;
        if (!q[i].done)
            check_broken(t, q[i].peer);
    }
    pthread_mutex_unlock(&t->lock);
    return done;
}

static void sleep_until_ready(hvt__tcp *t)
{
    enum { EVENTS = 16, MS = 20, MS_OF_SEVERAL = 2 };
    struct epoll_event e[EVENTS];
    uint64_t count;
    int n, several;

    pthread_mutex_lock(&t->lock);
    several = t->sleepers++;
    pthread_mutex_unlock(&t->lock);
    n = epoll_wait(t->epoll, e, EVENTS, several ? MS_OF_SEVERAL : MS);
    pthread_mutex_lock(&t->lock);
    t->sleepers--;
    for (int i = 0; i < n; i++)
        if (e[i].data.ptr)
            progress(t, e[i].data.ptr);
        else if (read(t->wake, &count, sizeof count) < 0)
            continue; /* another thread has read it */
    pthread_mutex_unlock(&t->lock);
}

bool hvt__tcp_test(hvt__tcp *t, hvt__flight *f, bool again)
{
    static _Thread_local double since;

    if (!again)
        since = hvt__now();
    else if (hvt__now() - since < TRIES)
        sched_yield();
    else
        sleep_until_ready(t);
    return look(t, f);
}

bool hvt__tcp_test_one(hvt__tcp *t, hvt__flight *f, int i)
{
    bool done;

    pthread_mutex_lock(&t->lock);
    done = ((hvt__tcp_request *)f->request)[i].done;
    pthread_mutex_unlock(&t->lock);
    return done;
}

/* Drops a send. A message that was sent in part must be completed; a copy is sent, since the caller may reuse
 * its memory. */
static void drop_send(hvt__tcp *t, hvt__tcp_pair *p, hvt__tcp_request *q)
{
    hvt__tcp_request *copy;

    if (p->sends.first != q || !p->head_sent) {
        pull(&p->sends, q);
        return;
    }
    copy = malloc(sizeof *copy + q->head.bytes);
    if (!copy) {
        pull(&p->sends, q);
        break_pair(t, p);
        return;
    }
    *copy = *q;
    copy->at = (char *)(copy + 1);
    copy->owned = true;
    memcpy(copy->at, q->at, q->head.bytes);
    p->sends.first = copy;
    if (p->sends.last == &q->next)
        p->sends.last = &copy->next;
}

void hvt__tcp_drop(hvt__tcp *t, hvt__flight *f)
{
    hvt__tcp_request *q = f->request;

    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < f->n; i++) {
        hvt__tcp_pair *p = &t->pair[q[i].peer];

        if (q[i].done)
            continue;
        if (q[i].send)
            drop_send(t, p, &q[i]);
        else if (p->into == &q[i])
            p->into = NULL;
        else
            pull(&p->recvs, &q[i]);
    }
    pthread_mutex_unlock(&t->lock);
}

void hvt__tcp_forget(hvt__tcp *t, uint32_t channel)
{
    int n = 0;

    pthread_mutex_lock(&t->lock);
    for (int r = 0; r < t->size; r++) {
        early **at = &t->pair[r].early;

        while (*at) {
            early *e = *at;

            if (e->head.channel == channel) {
                *at = e->next;
                free(e);
            } else {
                at = &e->next;
            }
        }
        t->pair[r].early_last = at;
    }
    for (int i = 0; i < t->words; i++)
        if (t->word[i].channel != (int32_t)channel)
            t->word[n++] = t->word[i];
    t->words = n;
    pthread_mutex_unlock(&t->lock);
}
