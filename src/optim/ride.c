/*
 * What rides with the rider: a few words of every rank, which all ranks are to know before the step is
 * settled.
 *
 * Where each rank sees a slice of the sums only, it has to learn whether the others' are finite: a flag. The
 * rider, which is all-reduced in any case, then waits until the sums were looked at. And every few updates,
 * where asked for, ranks compare what each has a copy of: parameters, unless all ranks or those of a node
 * have one between them, and their 16-bit copy. Hashes ride along; only when they differ do ranks talk about
 * it.
 *
 * Rank r writes its words and leaves the others' zero, so that the "sum" is everybody's words, exactly. Words
 * are whole numbers below 2^24, which f32 holds.
 */
#include "dist.h"
#include "base_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAG, PARAMS, COPY = PARAMS + 2, ALL = COPY + 2 /* hashes are two words each; 0, 0: has none */ };
enum { HALF = 23 /* bits of a hash in a word; the second one's next bit says that it is there */ };

static int ranks_of(const hvt_distopt *d)
{
    return hvt_world_size(hvt_comm_world(d->comm));
}

static size_t ride_count(const hvt_distopt *d)
{
    return d->optim->m->step_stats_count + (size_t)d->words * (size_t)ranks_of(d);
}

size_t hvt__ride_bytes(const hvt_distopt *d)
{
    return d->words ? ride_count(d) * sizeof *d->ride : 0;
}

/* Parameters that other ranks have copies of; of a node's page one rank speaks. */
static bool has_params(const hvt_distopt *d)
{
    bool sharded = d->opts.update == HVT_UPDATE_SHARDED;

    if (sharded && (hvt_comm_can(d->comm) & HVT_COMM_REDUCE_APPLY))
        return false;
    return !sharded || !(hvt_comm_can(d->comm) & HVT_COMM_SHARE) ||
           !hvt_world_local_rank(hvt_comm_world(d->comm));
}

int hvt__ride_words(const hvt_distopt *d)
{
    return d->opts.replica_check ? ALL : d->late ? FLAG + 1 : 0;
}

static bool is_due(const hvt_distopt *d)
{
    return d->words == ALL && d->optim->m->step->steps % d->opts.replica_check == 0;
}

/* ---- on the way ---- */

static uint64_t hash_span(uint64_t h, const void *arena, size_t size, size_t first, size_t end)
{
    return hvt__hash(h, (const char *)arena + first * size, (end - first) * size);
}

static void write_hash(const hvt_model *m, const void *arena, size_t size, float word[2])
{
    uint64_t h = hash_span(HVT_HASH_INIT, arena, size, m->step_stats_count, m->arena_count);

    word[0] = (float)(h & ((1 << HALF) - 1));
    word[1] = (float)((h >> HALF & ((1 << HALF) - 1)) | 1 << HALF);
}

/* The parameter that arena element `at` belongs to. */
static int param_of(const hvt_model *m, uint64_t at)
{
    int i = m->nparam_tensors - 1;

    while (i > 0 && m->param[i].offset > at)
        i--;
    return i;
}

hvt_status hvt__ride_launch(hvt_distopt *d, hvt_ticket *ret_ticket)
{
    const hvt_model *m = d->optim->m;
    float *word = d->ride + m->step_stats_count;
    int rank = hvt_world_rank(hvt_comm_world(d->comm));

    memcpy(d->ride, d->grads, m->step_stats_count * sizeof *d->ride);
    memset(word, 0, (ride_count(d) - m->step_stats_count) * sizeof *word);
    word += rank * d->words;
    if (d->late && m->step->bad != UINT64_MAX)
        word[FLAG] = (float)(1 + param_of(m, m->step->bad));
    if (is_due(d) && has_params(d))
        write_hash(m, m->params, sizeof *m->params, word + PARAMS);
    if (is_due(d) && m->copy && !m->copy_stale)
        write_hash(m, m->copy, sizeof *m->copy, word + COPY);
    return hvt_comm_allreduce(d->comm, d->ride, ride_count(d), HVT_F32, ret_ticket);
}

/* ---- there ---- */

/* The first parameter that any rank has flagged. */
static uint64_t least_bad(const hvt_distopt *d)
{
    const hvt_model *m = d->optim->m;
    int first = 0;

    for (int r = 0; r < ranks_of(d); r++) {
        int flag = (int)d->ride[m->step_stats_count + (size_t)(r * d->words) + FLAG];

        first = flag && (!first || flag < first) ? flag : first;
    }
    return first ? m->param[first - 1].offset : UINT64_MAX;
}

/* Have all ranks that have one the same? All see the same words. */
static bool equal(const hvt_distopt *d, int at)
{
    const float *first = NULL;

    for (int r = 0; r < ranks_of(d); r++) {
        const float *word = d->ride + d->optim->m->step_stats_count + r * d->words + at;

        if (!word[1])
            continue;
        if (first && (word[0] != first[0] || word[1] != first[1]))
            return false;
        first = word;
    }
    return true;
}

/* Tensor by tensor; a node's ranks all look at their one page. */
static hvt_status name_difference(const hvt_distopt *d, const void *arena, size_t size, const char *what)
{
    enum { VALUE = 20 };
    const hvt_model *m = d->optim->m;
    hvt_world *world = hvt_comm_world(d->comm);
    int n = m->nparam_tensors;
    hvt_item *item = malloc((size_t)n * sizeof *item);
    char(*text)[VALUE] = malloc((size_t)n * sizeof *text);
    hvt_status s = item && text ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare %d tensors", n);

    HVT_TRY_OR(done, hvt_world_agree(world, s));
    for (int i = 0; i < n; i++) {
        const hvt_param *p = &m->param[n - 1 - i]; /* in the order of the forward pass */

        snprintf(text[i], sizeof text[i], "%016" PRIx64,
                 hash_span(HVT_HASH_INIT, arena, size, p->offset, p->offset + p->count));
        item[i] = (hvt_item){p->name, text[i]};
    }
    s = hvt_world_compare(world, item, n);
    s = HVT_FAIL(E_MISMATCH, "after %" PRId64 " updates ranks have different %s: %s", m->step->steps, what,
                 s == HVT_OK ? "between tensors" : hvt_last_error());
    hvt__error_agreed(true);
done:
    free(item);
    free(text);
    return s;
}

hvt_status hvt__ride_land(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;

    memcpy(d->grads, d->ride, m->step_stats_count * sizeof *d->ride);
    if (d->late)
        m->step->bad = least_bad(d);
    if (!is_due(d))
        return HVT_OK;
    if (!equal(d, PARAMS))
        return name_difference(d, m->params, sizeof *m->params, "parameters");
    if (!equal(d, COPY))
        return name_difference(d, m->copy, sizeof *m->copy, "16-bit copies of parameters");
    return HVT_OK;
}
