/*
 * The rounds of an operation in NCCL's double: in each one every rank puts a part of its data on its seat and
 * reads the others'.
 */
#include "double_nccl_impl.h"

#include "device/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const hvt__nccl_names[KINDS] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                            "ncclBroadcast"};
pthread_mutex_t hvt__nccl_desk = PTHREAD_MUTEX_INITIALIZER;

static float load(const char *p, ncclDataType_t t)
{
    uint16_t half;
    float f;

    if (t == ncclFloat32) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&half, p, sizeof half);
    return t == ncclFloat16 ? hvt__from_f16(half) : hvt__from_bf16(half);
}

static void store(char *p, ncclDataType_t t, float f)
{
    uint16_t half = t == ncclFloat16 ? hvt__to_f16(f) : hvt__to_bf16(f);

    if (t == ncclFloat32)
        memcpy(p, &f, sizeof f);
    else
        memcpy(p, &half, sizeof half);
}

/* The sum over ranks of the bytes [at, at + n) of the round, rounded at every addition. */
static void sum(const task *t, size_t at, size_t n, char *out)
{
    const struct ncclComm *c = t->comm;

    for (size_t i = 0; i < n; i += t->bytes) {
        store(out + i, t->type, load(c->board->seat[0].data + at + i, t->type));
        for (int r = 1; r < c->size; r++)
            store(out + i, t->type, load(out + i, t->type) + load(c->board->seat[r].data + at + i, t->type));
    }
}

/* Bytes of its two buffers; a rank lays down all of `in`, round by round. */
size_t hvt__nccl_in_bytes(const task *t)
{
    return t->count * t->bytes * (t->kind == REDUCE_SCATTER ? (size_t)t->comm->size : 1);
}

size_t hvt__nccl_out_bytes(const task *t)
{
    return t->count * t->bytes * (t->kind == ALLGATHER ? (size_t)t->comm->size : 1);
}

/* Take what this round brought: bytes [done, done + n) of the way. */
static void take(const task *t, size_t n)
{
    const struct ncclComm *c = t->comm;
    size_t mine = t->count * t->bytes, first = mine * (size_t)c->rank, end = first + mine;

    switch (t->kind) {
    case ALLREDUCE:
        sum(t, 0, n, t->out + t->done);
        break;
    case REDUCE_SCATTER:
        first = first > t->done ? first : t->done;
        end = end < t->done + n ? end : t->done + n;
        if (first < end)
            sum(t, first - t->done, end - first, t->out + first - mine * (size_t)c->rank);
        break;
    case ALLGATHER:
        for (int r = 0; r < c->size; r++)
            memcpy(t->out + mine * (size_t)r + t->done, c->board->seat[r].data, n);
        break;
    case BROADCAST:
        memcpy(t->out + t->done, c->board->seat[t->root].data, n);
        break;
    }
}

static void describe(const task *t, char *text, size_t room)
{
    snprintf(text, room, "%s of %zu of type %d, root %d", hvt__nccl_names[t->kind], t->count, (int)t->type,
             t->root);
}

/* One round, or not yet. */
static bool play(task *t)
{
    struct ncclComm *c = t->comm;
    seat *me = &c->board->seat[c->rank];
    size_t left = hvt__nccl_in_bytes(t) - t->done, n = left < PART ? left : PART;

    if (!t->laid) {
        for (int r = 0; r < c->size; r++)
            if (c->board->seat[r].read < c->round)
                return false;
        describe(t, me->asks, sizeof me->asks);
        memcpy(me->data, t->in + t->done, n);
        me->laid = c->round + 1;
        t->laid = true;
    }
    for (int r = 0; r < c->size; r++)
        if (c->board->seat[r].laid <= c->round)
            return false;
    for (int r = 0; r < c->size; r++)
        if (strcmp(c->board->seat[r].asks, me->asks))
            hvt_double_fault("nccl: rank %d asks for %s, rank %d for %s", c->rank, me->asks, r,
                             c->board->seat[r].asks);
    take(t, n);
    me->read = ++c->round;
    t->done += n;
    t->laid = false;
    return true;
}

bool hvt__nccl_run(void *ctx)
{
    task *t = ctx;

    if (t->comm->aborted)
        return true;
    while (t->done < hvt__nccl_in_bytes(t))
        if (!play(t))
            return false;
    t->done = 0; /* for the next launch of a graph */
    return true;
}

void hvt__nccl_unref(ncclComm_t c)
{
    if (--c->refs)
        return;
    munmap(c->board, sizeof *c->board);
    close(c->fd);
    free(c);
}

void hvt__nccl_drop(void *ctx)
{
    task *t = ctx;

    pthread_mutex_lock(&hvt__nccl_desk);
    for (task **at = &t->comm->tasks; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    pthread_mutex_unlock(&hvt__nccl_desk);
    t->comm->captured -= t->captured;
    hvt__nccl_unref(t->comm);
    free(t);
}
