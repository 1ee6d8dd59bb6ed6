/*
 * sums.h - truths about every comm, whatever its implementation: sums that equal the plain tree to the bit,
 * buckets in flight, operations in order. Sums depend on their order, so another tree is noticed.
 */
#ifndef HVT_SUMS_H
#define HVT_SUMS_H

#include "heap.h"
#include "ranks.h"

#include <unistd.h>

/* Ranks on which open_comm() gives the comm a worker. */
static __thread enum { NO_RANK, EVEN_RANKS, EVERY_RANK } workers;

static inline hvt_status open_comm(const char *name, hvt_comm **ret_comm)
{
    const hvt_overlap worker = {.yield = true};

    HVT_TRY(hvt_comm_open(name, world, dev, ret_comm));
    if (workers == EVERY_RANK || (workers == EVEN_RANKS && rank % 2 == 0))
        HVT_TRY(hvt_comm_overlap(*ret_comm, &worker));
    return HVT_OK;
}

static const hvt_dtype dtypes[] = {HVT_F32, HVT_F16, HVT_BF16};

/* Rank r's contribution to element i: signs and magnitudes that make sums depend on their order. */
static inline float leaf(int r, size_t i, uint64_t seed)
{
    uint64_t d = hvt__draw(seed, (uint64_t)r, i, 0);

    return (hvt__unit(d) - 0.5f) * (float)(1 << (d & 7));
}

static inline void fill(int r, size_t first, size_t count, uint64_t seed, hvt_dtype t, void *out, float *f)
{
    for (size_t i = 0; i < count; i++)
        f[i] = leaf(r, first + i, seed);
    dev->ops->vector.cast(dev, count, 1, f, HVT_F32, out, t);
}

/* The tree by its definition, level by level, over one block of elements of all ranks. Above the lowest
 * `inside` levels partial sums travel, and 16-bit ones are rounded. */
static inline void plain_sum(size_t first, size_t count, uint64_t seed, hvt_dtype t, int inside, void *out)
{
    static __thread float level[64][1024], f[1024];
    static __thread uint16_t half[1024];
    int n = size;

    for (int r = 0; r < n; r++) {
        fill(r, first, count, seed, t, t == HVT_F32 ? (void *)level[r] : half, f);
        if (t != HVT_F32)
            dev->ops->vector.cast(dev, count, 1, half, t, level[r], HVT_F32);
    }
    for (int above = 1 - inside; n > 1; n = (n + 1) / 2, above++) {
        for (int i = 0; 2 * i < n; i++) {
            bool pair = 2 * i + 1 < n;

            for (size_t k = 0; k < count; k++)
                level[i][k] = pair ? level[2 * i][k] + level[2 * i + 1][k] : level[2 * i][k];
            if (above >= 0 && t != HVT_F32) {
                dev->ops->vector.cast(dev, count, 1, level[i], HVT_F32, half, t);
                dev->ops->vector.cast(dev, count, 1, half, t, level[i], HVT_F32);
            }
        }
    }
    dev->ops->vector.cast(dev, count, 1, level[0], HVT_F32, out, t);
}

/* This rank's contribution and, from the first comparison on, the sum by the tree: computed once, however
 * many comms and buffers are compared with it. */
typedef struct known_sum {
    struct known_sum *next;
    size_t count;
    uint64_t seed;
    hvt_dtype type;
    int inside, rank, size;
    char *mine, *sum;
} known_sum;

static inline known_sum *known_of(int inside, size_t count, uint64_t seed, hvt_dtype t)
{
    static __thread known_sum *all;
    size_t bytes = count * hvt_dtype_size(t);
    float f[1024];
    known_sum *p;

    inside = t == HVT_F32 ? 32 : inside; /* f32 is not rounded on the wire */
    for (p = all; p; p = p->next)
        if (p->count == count && p->seed == seed && p->type == t && p->inside == inside && p->rank == rank &&
            p->size == size)
            return p;
    p = malloc(sizeof *p);
    *p = (known_sum){all, count, seed, t, inside, rank, size, malloc(bytes + 1), NULL};
    for (size_t at = 0; at < count; at += 1024)
        fill(rank, at, count - at < 1024 ? count - at : 1024, seed, t, p->mine + at * hvt_dtype_size(t), f);
    return all = p;
}

static inline const char *sum_of(known_sum *p)
{
    size_t bytes = hvt_dtype_size(p->type);

    if (p->sum)
        return p->sum;
    p->sum = malloc(p->count * bytes + 1);
    for (size_t at = 0; at < p->count; at += 1024)
        plain_sum(at, p->count - at < 1024 ? p->count - at : 1024, p->seed, p->type, p->inside,
                  p->sum + at * bytes);
    return p->sum;
}

/* Checks elements from first to end of a sum of `count` elements in buf. */
static inline bool equals_plain_sum(const hvt_comm *c, const void *buf, size_t count, size_t first,
                                    size_t end, uint64_t seed, hvt_dtype t)
{
    int inside = 32;
    size_t bytes = hvt_dtype_size(t);

    if (!strcmp(hvt_comm_name(c), over_messages()))
        inside = 0;
    else if (!strcmp(hvt_comm_name(c), "hier"))
        CHECK_OK(hvt__levels_inside(hvt_comm_world(c), &inside));
    return !memcmp((const char *)buf + first * bytes,
                   sum_of(known_of(inside, count, seed, t)) + first * bytes, (end - first) * bytes);
}

static inline void fill_mine(void *buf, size_t count, uint64_t seed, hvt_dtype t)
{
    memcpy(buf, known_of(32, count, seed, t)->mine, count * hvt_dtype_size(t));
}

static inline void every_sum(hvt_comm *c, void *buf, const char *where, const size_t *counts, int ncounts)
{
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < ncounts; i++) {
            size_t n = counts[i], bytes = hvt_dtype_size(dtypes[t]), first, end;
            uint64_t seed = (uint64_t)(100 * t + i);
            char *past = (char *)buf + n * bytes;
            hvt_ticket ticket;

            memset(past, 0x5a, 64);
            fill_mine(buf, n, seed, dtypes[t]);
            CHECK_OK(hvt_comm_allreduce(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            CHECK(equals_plain_sum(c, buf, n, 0, n, seed, dtypes[t]), "allreduce: comm %s, %s, %zu %s",
                  hvt_comm_name(c), where, n, hvt_dtype_name(dtypes[t]));

            fill_mine(buf, n, seed, dtypes[t]);
            CHECK_OK(hvt_comm_reduce_scatter(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            hvt_comm_slice(c, n, rank, &first, &end);
            CHECK(equals_plain_sum(c, buf, n, first, end, seed, dtypes[t]),
                  "reduce_scatter: comm %s, %s, %zu %s, slice %zu-%zu", hvt_comm_name(c), where, n,
                  hvt_dtype_name(dtypes[t]), first, end);
            memset(buf, 0x11, first * bytes); /* other ranks' elements must come from them */
            memset((char *)buf + end * bytes, 0x11, (n - end) * bytes);
            CHECK_OK(hvt_comm_allgather(c, buf, n, dtypes[t], &ticket));
            CHECK_OK(hvt_comm_wait(c, ticket));
            CHECK(equals_plain_sum(c, buf, n, 0, n, seed, dtypes[t]), "allgather: comm %s, %s, %zu %s",
                  hvt_comm_name(c), where, n, hvt_dtype_name(dtypes[t]));
            for (int k = 0; k < 64; k++)
                if (past[k] != 0x5a) {
                    CHECK(false, "comm %s, %s, %zu %s: byte %d past the end was written", hvt_comm_name(c),
                          where, n, hvt_dtype_name(dtypes[t]), k);
                    break;
                }
        }
}

static inline void sums_equal_the_plain_tree(const char *name)
{
    const size_t counts[] = {0, 1, 15, 16, 17, 1000, 4096, 100003, ((size_t)1 << 20) + 1};
    size_t bytes = 4 * counts[8] + 64;
    hvt_comm *c = NULL;
    void *mine = NULL, *plain = aligned_alloc(64, (bytes + 63) / 64 * 64);

    CHECK_OK(open_comm(name, &c));
    if (!c)
        return;
    CHECK_OK(hvt_comm_alloc(c, bytes, &mine));
    CHECK((uintptr_t)mine % 64 == 0, "alignment of %p", mine);
    for (size_t i = 0; i < bytes; i++)
        if (((char *)mine)[i]) {
            CHECK(false, "byte %zu is not zero", i);
            break;
        }
    every_sum(c, mine, "own memory", counts, (int)HVT_LEN(counts) - heap_memcheck());
    every_sum(c, plain, "plain memory", counts, (int)HVT_LEN(counts) - heap_memcheck());
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    CHECK(!c, "close leaves NULL");
    free(plain);
}

static inline void broadcasts_reach_everyone(const char *name)
{
    const size_t sizes[] = {0, 1, 1000, heap_memcheck() ? 300001 : 3000001};
    hvt_comm *c = NULL;
    void *mine = NULL;
    char *plain = malloc(sizes[3]);

    CHECK_OK(open_comm(name, &c));
    CHECK_OK(hvt_comm_alloc(c, sizes[3], &mine));
    for (int own = 0; own < 2; own++)
        for (size_t i = 0; i < HVT_LEN(sizes); i++)
            for (int root = 0; root < size; root++) {
                char *buf = own ? mine : plain;

                for (size_t k = 0; k < sizes[i]; k++)
                    buf[k] = rank == root ? (char)hvt__mix(k + (size_t)root) : 0;
                CHECK_OK(hvt_comm_broadcast(c, buf, sizes[i], root));
                for (size_t k = 0; k < sizes[i]; k++)
                    if (buf[k] != (char)hvt__mix(k + (size_t)root)) {
                        CHECK(false, "comm %s, byte %zu of %zu from %d", name, k, sizes[i], root);
                        break;
                    }
            }
    CHECK_FAILS(hvt_comm_broadcast(c, plain, 1, -1), E_ARG, "root");
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    free(plain);
}

/* Buckets in flight, and the same memory reused at once, while one rank after the other is late. */
static inline void a_thousand_rounds(const char *name)
{
    enum { BUCKETS = 90, EACH = 48 };
    const int rounds = heap_memcheck() ? 40 : 1000;
    hvt_comm *c = NULL;
    float *buf = NULL;
    hvt_ticket ticket[BUCKETS], last = 0;
    int wrong = 0;

    CHECK_OK(open_comm(name, &c));
    CHECK_OK(hvt_comm_alloc(c, BUCKETS * EACH * sizeof *buf, (void **)&buf));
    for (int round = 0; round < rounds && !check_now; round++) {
        int buckets = round % 10 ? 3 : BUCKETS;

        for (int b = 0; b < buckets; b++) {
            for (int i = 0; i < EACH; i++)
                buf[b * EACH + i] = (float)(rank + 1) * (float)(round + b + i);
            if (hvt__draw((uint64_t)rank, (uint64_t)round, (uint64_t)b, 1) % 64 == 0)
                usleep((useconds_t)(hvt__draw((uint64_t)rank, (uint64_t)round, (uint64_t)b, 2) % 500));
            CHECK_OK(hvt_comm_allreduce(c, buf + b * EACH, EACH, HVT_F32, &ticket[b]));
            CHECK(ticket[b] == ++last, "ticket %llu, not %llu", (unsigned long long)ticket[b],
                  (unsigned long long)last);
        }
        for (int b = 0; b < buckets; b++) {
            CHECK_OK(hvt_comm_wait(c, ticket[b]));
            for (int i = 0; i < EACH; i++) {
                wrong += buf[b * EACH + i] != (float)(size * (size + 1) / 2) * (float)(round + b + i);
                buf[b * EACH + i] = -1e30f; /* a rank that still reads this gets a wrong sum */
            }
        }
    }
    CHECK(!wrong, "comm %s: %d of the sums", name, wrong);
    CHECK_FAILS(hvt_comm_wait(c, last + 1), E_ARG, "never issued");
    CHECK_FAILS(hvt_comm_allreduce(c, buf, 1, HVT_I32, ticket), E_ARG, "i32");
    CHECK_FAILS(hvt_comm_allreduce(c, NULL, 1, HVT_F32, ticket), E_ARG, "buffer");
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

/* More operations in flight than the ring has places, on the same and on overlapping memory, without
 * waiting. */
static inline void operations_keep_their_order(const char *name)
{
    enum { COUNT = 1000, DEEP = 700 };
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;
    int wrong = 0;

    CHECK_OK(open_comm(name, &c));
    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *buf, (void **)&buf));
    for (int round = 0; round < (heap_memcheck() ? 2 : 20); round++) {
        for (int i = 0; i < COUNT; i++)
            buf[i] = (float)(rank + i % 8);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
            CHECK_OK(hvt_comm_reduce_scatter(c, buf + 100, COUNT - 100, HVT_F32, &t));
            CHECK_OK(hvt_comm_allgather(c, buf + 100, COUNT - 100, HVT_F32, &t));
            CHECK_OK(hvt_comm_allreduce(c, buf + 500, COUNT - 700, HVT_F32, &t));
        }
        CHECK_OK(hvt_comm_wait(c, t));
        for (int i = 0; i < COUNT; i++) {
            double v = (double)size * (i % 8) + size * (size - 1) / 2.0; /* the first sum */

            for (int k = 0; k < 2; k++) {
                v *= k ? size : 1;
                v *= i >= 100 ? size : 1;
                v *= i >= 500 && i < 800 ? size : 1;
            }
            wrong += buf[i] != (float)v;
        }
    }
    CHECK(!wrong, "comm %s: %d wrong", name, wrong);
    for (int i = 0; i < DEEP; i++) {
        buf[i] = 1;
        CHECK_OK(hvt_comm_allreduce(c, buf + i, 1, HVT_F32, &t));
    }
    CHECK_OK(hvt_comm_wait(c, t - DEEP / 2));
    CHECK_OK(hvt_comm_wait(c, t));
    for (int i = 0; i < DEEP; i++)
        CHECK(buf[i] == (float)size, "comm %s: element %d is %g", name, i, (double)buf[i]);
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

#endif /* HVT_SUMS_H */
