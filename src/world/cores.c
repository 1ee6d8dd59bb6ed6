/*
 * How the ranks of a node share its CPUs.
 *
 * Ranks with equal affinity masks are not bound, so they split the mask by local rank into contiguous parts;
 * a rank with a mask of its own was bound by its launcher and keeps it. Threads are pinned only if every
 * thread of the node gets its own CPU. Partly overlapping masks cannot guarantee that, nor can a cgroup's
 * time limit, which does not say which CPUs. A rank alone in its mask that does not fill it is not pinned
 * either: the next job on this host would choose the same CPUs.
 */
#define _GNU_SOURCE
#include "base_impl.h"
#include "world_internal.h"

#include <math.h>
#include <sched.h>

enum { WORDS = HVT__MAX_CPUS / 64 };

static int count_bits(const uint64_t *mask)
{
    int n = 0;

    for (int i = 0; i < WORDS; i++)
        n += __builtin_popcountll(mask[i]);
    return n;
}

static int nth_bit(const uint64_t *mask, int n)
{
    for (int i = 0; i < HVT__MAX_CPUS; i++)
        if (mask[i / 64] >> (i % 64) & 1 && n-- == 0)
            return i;
    return -1;
}

static bool equal(const uint64_t *a, const uint64_t *b)
{
    return !memcmp(a, b, WORDS * sizeof *a);
}

static bool intersect(const uint64_t *a, const uint64_t *b)
{
    for (int i = 0; i < WORDS; i++)
        if (a[i] & b[i])
            return true;
    return false;
}

/* CPUs of a mask that its ranks may use under the node's quota. */
static int granted(const uint64_t *mask, int all, double quota)
{
    int n = count_bits(mask);

    if (quota > 0 && quota < all)
        n = (int)floor(n * quota / all + 1e-6);
    return n > 1 ? n : 1;
}

/* One rank's part of its mask: the CPUs [first, first + share) in the mask's order. */
typedef struct part {
    int first, share, threads;
    int before, wanted; /* threads of the lower ranks with this mask, and of all ranks with it */
    bool alone;         /* no other rank has this mask */
    bool spread;        /* no rank with this mask wants more threads than its share */
} part;

static part part_of(const hvt__claim *claims, int n, int me, int all)
{
    int64_t room = granted(claims[me].mask, all, claims[me].quota), members = 0, place = 0;
    part p = {.spread = true};

    for (int r = 0; r < n; r++)
        members += equal(claims[r].mask, claims[me].mask);
    p.alone = members == 1;
    for (int r = 0; r < n; r++) {
        int first = (int)(room * place / members), share, threads;

        if (!equal(claims[r].mask, claims[me].mask))
            continue;
        share = (int)(room * ++place / members) - first;
        share = share < 1 ? 1 : share;
        threads = claims[r].threads ? claims[r].threads : share < HVT_MAX_THREADS ? share : HVT_MAX_THREADS;
        p.wanted += threads;
        p.spread = p.spread && threads <= share;
        if (r < me)
            p.before += threads;
        if (r == me) {
            p.first = first;
            p.share = share;
            p.threads = threads;
        }
    }
    return p;
}

void hvt__cores_split(const hvt__claim *claims, int n, int me, hvt_cores *ret_cores)
{
    uint64_t united[WORDS] = {0};
    int all, most, threads = 0;
    bool pinned;
    part mine;

    for (int r = 0; r < n; r++)
        for (int i = 0; i < WORDS; i++)
            united[i] |= claims[r].mask[i];
    all = count_bits(united);
    most = granted(united, all, claims[me].quota);
    mine = part_of(claims, n, me, all);
    pinned = most == all && mine.threads <= (int)HVT_LEN(ret_cores->cpus) &&
             (!mine.alone || mine.threads >= mine.share);
    for (int r = 0; r < n; r++) {
        part p = part_of(claims, n, r, all);

        threads += p.threads;
        pinned = pinned && p.wanted <= count_bits(claims[r].mask);
        for (int q = 0; q < r && pinned; q++)
            pinned = equal(claims[q].mask, claims[r].mask) || !intersect(claims[q].mask, claims[r].mask);
    }

    *ret_cores = (hvt_cores){.threads = mine.threads,
                             .ncpus = pinned ? mine.threads : 0,
                             .spare = -1,
                             .share = mine.share,
                             .mask = count_bits(claims[me].mask),
                             .crowded = threads > most};
    if (!pinned)
        return;
    /* CPUs of the rank's part; if some rank wants more than its part, the next CPUs after the lower ranks'
     * threads */
    for (int i = 0; i < mine.threads; i++)
        ret_cores->cpus[i] = nth_bit(claims[me].mask, (mine.spread ? mine.first : mine.before) + i);
    if (mine.spread && mine.threads < mine.share)
        ret_cores->spare = nth_bit(claims[me].mask, mine.first + mine.threads);
}

hvt_status hvt_world_cores(hvt_world *world, int threads, hvt_cores *ret_cores)
{
    hvt__claim *mine, *all;
    hvt_status s = HVT_OK;
    int n = 0, me = 0;

    HVT_CHECK(world, E_ARG, "no world to split processors of");
    mine = calloc(1, sizeof *mine);
    all = malloc((size_t)world->size * sizeof *all);
    if (!ret_cores)
        s = HVT_FAIL(E_ARG, "no output pointer for this rank's processors");
    else if (!mine || !all)
        s = HVT_FAIL(E_MEM, "no memory for the affinity masks of %d ranks", world->size);
    else if (threads < 0 || threads > HVT_MAX_THREADS)
        s = HVT_FAIL(E_ARG, "%d threads for a rank, expected 0 to %d", threads, HVT_MAX_THREADS);
    HVT_TRY_OR(done, hvt_world_agree(world, s));

    if (sched_getaffinity(0, sizeof mine->mask, (cpu_set_t *)mine->mask) || !count_bits(mine->mask))
        mine->mask[0] = 1; /* unreadable mask: assume one CPU */
    mine->quota = hvt__cgroup_cpus("");
    mine->threads = threads;
    mine->node = world->node_of[world->rank];
    HVT_TRY_OR(done, hvt_world_allgather(world, mine, sizeof *mine, all));
    for (int r = 0; r < world->size; r++) {
        if (all[r].node != mine->node)
            continue;
        me = r == world->rank ? n : me;
        all[n++] = all[r];
    }
    hvt__cores_split(all, n, me, ret_cores);
    hvt__domains("", ret_cores->cpus, ret_cores->ncpus, &ret_cores->caches, &ret_cores->nodes);
done:
    free(mine), free(all);
    return s;
}
