/*
 * Reductions over ranks, and agreement on an outcome. Every rank computes the result from the same gathered
 * bytes in rank order, so all get the same bits and the same message.
 */
#include "base_impl.h"
#include "world_impl.h"

/* Values per gather that fit in the world's scratch. A reduction allocates nothing, because one rank might
 * fail while the others wait for it. */
enum { AT_ONCE = HVT__SCRATCH / 8 };

typedef union word {
    double real;
    int64_t whole;
} word;

static word reduce(hvt_reduction how, bool real, word v, word x)
{
    if (how == HVT_SUM && real)
        v.real += x.real;
    else if (how == HVT_SUM)
        v.whole = (int64_t)((uint64_t)v.whole + (uint64_t)x.whole);
    else if (how == HVT_AND)
        v.whole &= x.whole;
    else if (real ? x.real != x.real || (how == HVT_MIN ? x.real < v.real : x.real > v.real)
                  : (how == HVT_MIN ? x.whole < v.whole : x.whole > v.whole))
        v = x; /* once NaN, v stays NaN */
    return v;
}

static hvt_status allreduce(hvt_world *w, hvt_reduction how, bool real, void *values, int n)
{
    HVT_CHECK(w, E_ARG, "a reduction of %d values: no world", n);
    HVT_CHECK(n >= 0 && (values || !n), E_ARG, "a reduction of %d values%s", n, values ? "" : ": no buffer");
    HVT_CHECK(how == HVT_SUM || how == HVT_MIN || how == HVT_MAX || (how == HVT_AND && !real), E_ARG,
              real ? "expected sum, minimum or maximum to reduce doubles, got reduction %d"
                   : "expected sum, minimum, maximum or and to reduce integers, got reduction %d",
              how);
    for (int at = 0, m; at < n; at += m) {
        char *mine = (char *)values + sizeof(word) * (size_t)at;
        const word *all = w->scratch;

        m = n - at < AT_ONCE ? n - at : AT_ONCE;
        HVT_TRY(hvt_world_allgather(w, mine, sizeof(word) * (size_t)m, w->scratch));
        for (int i = 0; i < m; i++) {
            word v = all[i];

            for (int r = 1; r < w->size; r++)
                v = reduce(how, real, v, all[r * m + i]);
            memcpy(mine + sizeof v * (size_t)i, &v, sizeof v);
        }
    }
    return HVT_OK;
}

hvt_status hvt_world_allreduce(hvt_world *world, hvt_reduction how, double *values, int n)
{
    return allreduce(world, how, true, values, n);
}

hvt_status hvt_world_allreduce_i64(hvt_world *world, hvt_reduction how, int64_t *values, int n)
{
    return allreduce(world, how, false, values, n);
}

hvt_status hvt_world_agree(hvt_world *world, hvt_status mine)
{
    char text[1024] = "";
    int32_t code = (int32_t)mine, *all;
    int first = 0;
    hvt_status s;

    if (!world)
        return mine == HVT_OK ? HVT_FAIL(E_ARG, "no world to agree with") : mine;
    all = world->scratch;
    if (world->size == 1) {
        hvt__error_agreed(mine != HVT_OK);
        return mine;
    }
    HVT_TRY(hvt_world_allgather(world, &code, sizeof code, all));
    while (first < world->size && all[first] == HVT_OK)
        first++;
    if (first == world->size)
        return HVT_OK;
    s = (hvt_status)all[first];
    if (first == world->rank)
        snprintf(text, sizeof text, "%s", hvt_last_error());
    HVT_TRY(world->ops->broadcast(world, NULL, text, sizeof text, first));
    if (first)
        hvt__fail(s, __FILE__, __LINE__, "rank %d (%s): %s", hvt__job_rank(world, first), world->host[first],
                  text);
    else if (world->rank) /* on rank 0 the trace stays */
        hvt__fail(s, __FILE__, __LINE__, "%s", text);
    hvt__error_agreed(true);
    return s;
}
