/*
 * A distributed optimizer's step: from the gradients of backward to the updated parameters.
 *
 * Terms. A *pass* is one local shard's backward. Its *mark* is how much of the arena it has finished; passes
 * run one after the other; with synchronized batch norm or on several devices they are interleaved
 * (model/sync.c). A *partial* is the sum of a complete subtree of this rank's shards: partial k holds 2^k of
 * them. A *bucket* is a span that travels at once.
 *
 * Passes are added like a binary counter: pass i adds one partial for each trailing 1 bit of i and becomes
 * the next higher partial; the last pass adds all remaining partials, lowest first, so that an odd subtree
 * moves up. This is the fixed tree over shards, which the comm continues over ranks. Spans are added as
 * backward finishes them. In the last pass a span that completes a bucket launches it: the codec encodes it,
 * and the update path (replicated, sliced or fused) sends it. Later stages of a split model add their spans
 * on their own threads; the first stage's thread launches their buckets with its own.
 *
 * Decisions are made in device memory (hvt_step_state), so no host waits for them. With a device's queue,
 * hvt_distopt_check() notices the end of a run later; until then nothing is applied.
 *
 * Invariants: buckets are launched strictly in order, so every rank issues the same operations; no parameter
 * is touched before the step is decided, and the decision uses sums, which are the same everywhere; no
 * exchange is in flight between steps.
 */
#include "dist.h"
#include "base_impl.h"

#include <math.h>

_Static_assert((int)HVT_VOTES == (int)HVT__STEP_VOTES, "a word of the step statistics for each vote");

/* Writes this rank's arguments, for hvt__step_agrees(), and its votes. Words have so few bits that the sum of
 * their squares over all ranks is exact. */
static void format_inputs(const hvt_distopt *d, float ret_words[HVT__STEP_INPUTS])
{
    int bits = 24;
    const float lr = (float)d->lr;
    uint64_t all = hvt__hash(HVT_HASH_INIT, &lr, sizeof lr);

    all = hvt__hash(all, d->counts, (size_t)d->shards * sizeof *d->counts);
    for (int n = 1; n < d->ranks; n *= 2)
        bits--;
    ret_words[0] = 1;
    for (int i = 0; i < HVT__STEP_WORDS; i++) {
        float word = (float)(hvt__draw(all, (uint64_t)i, 0, 0) >> (64 - bits / 2));

        ret_words[1 + 2 * i] = word;
        ret_words[2 + 2 * i] = word * word;
    }
    for (int i = 0; i < HVT_VOTES; i++)
        ret_words[HVT__STEP_AGREEMENT + i] = d->vote[i];
}

hvt_status hvt_distopt_begin(hvt_distopt *d, const int *shard_counts, int shards, double lr)
{
    int64_t images = 0;
    float inputs[HVT__STEP_INPUTS];

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_GIVEN(shard_counts, "the shards' counts");
    HVT_CHECK(!d->begun, E_ARG,
              "the step before has finished %d of %d backward passes; expected all before the next "
              "hvt_distopt_begin()",
              d->pass, d->opts.local_shards);
    HVT_CHECK(shards == d->shards, E_ARG, "a step of %d shards, expected %d, of which this rank has %d",
              shards, d->shards, d->opts.local_shards);
    for (int i = 0; i < shards; i++) {
        HVT_CHECK(shard_counts[i] >= 0, E_ARG, "shard %d has %d images, expected 0 or more", i,
                  shard_counts[i]);
        images += shard_counts[i];
    }
    HVT_CHECK(images > 0, E_ARG, "a step without images: all %d shards are empty", shards);
    HVT_CHECK(isfinite((float)lr) && lr >= 0, E_ARG, "learning rate is %g, expected 0 or more", lr);
    HVT_TRY(hvt__ema_check_place(d->optim, "a step"));
    HVT_TRY(hvt__slices_forget(d));
    hvt__trace_step(0);
    if (d->codec->begin)
        HVT_TRY(d->codec->begin(d, images));
    memcpy(d->counts, shard_counts, (size_t)shards * sizeof *d->counts);
    d->lr = lr;
    format_inputs(d, inputs);
    HVT_TRY(hvt__model_begin_step(d->optim->m, images, lr, inputs));
    d->pass = 0;
    d->launched = d->arrived = d->flags != NULL; /* step statistics are sent with the flags */
    memset(d->mark, 0, (size_t)d->opts.local_shards * sizeof *d->mark);
    HVT_TRY(hvt__sync_begin(d->optim->m, d->counts));
    d->begun = true;
    return HVT_OK;
}

/* Finds the leaf of a pass: returns its index among this rank's leaves, and sets its passes [*ret_first,
 * *ret_end). */
static int leaf_of_pass(const hvt_distopt *d, int pass, int *ret_first, int *ret_end)
{
    const hvt__leaves *l = d->sums.leaves;
    const int shard = d->first_of[d->rank];
    const hvt__leaf *leaf = l ? l->leaf + l->of[d->rank] : NULL;
    int i = 0;

    *ret_first = 0;
    *ret_end = d->opts.local_shards;
    if (!l)
        return 0;
    while (leaf[i].end <= shard + pass)
        i++;
    *ret_first = leaf[i].first - shard;
    *ret_end = leaf[i].end - shard;
    return i;
}

/* Adds pass i of a leaf to the binary counter of partials; the leaf's last pass adds all remaining partials,
 * lowest first. The sum of the last leaf stays in the gradient arena. */
static hvt_status add_pass(hvt_distopt *d, int pass, size_t first, size_t n)
{
    hvt_device *dev = hvt__pass_device(d->optim->m);
    int begin, end, leaf = leaf_of_pass(d, pass, &begin, &end);
    const int i = pass - begin;
    const bool last = pass + 1 == end;
    float *g = d->grads + first;

    if (!last && !(i & 1))
        return dev->ops->memory.copy(dev, d->partial[0] + first, g, n * sizeof *g);
    for (int k = 0; i >> k && (last || i >> k & 1); k++) {
        bool carried = !last && !(i >> (k + 1) & 1);

        if (i >> k & 1)
            HVT_TRY(dev->ops->vector.add(dev, n, HVT_F32, g, d->partial[k] + first,
                                         carried ? d->partial[k + 1] + first : g));
    }
    if (!last || end == d->opts.local_shards)
        return HVT_OK;
    return dev->ops->memory.copy(dev, d->sums.extra + (size_t)leaf * d->sums.stride + first, g,
                                 n * sizeof *g);
}

static hvt_status launch(hvt_distopt *d, hvt_bucket *b)
{
    b->second = false;
    if (b->codec->encode) {
        hvt__phase_begin(d, HVT__COMPRESS, b);
        HVT_TRY(hvt__traced(b->codec->encode(d, b)));
    }
    hvt__phase_begin(d, HVT__LAUNCH, b);
    return hvt__traced(d->update_path->post(d, b));
}

/* Checks that backward runs on the expected shard, with the number of images given to hvt_distopt_begin(). */
static hvt_status check_pass(const hvt_distopt *d, int pass)
{
    const hvt_model *m = d->optim->m;
    int shard = d->first_of[d->rank] + pass;

    if (!m->in_backward || hvt__pass_shard() >= 0) /* gradients from elsewhere; checked by the model */
        return HVT_OK;
    HVT_CHECK(m->shard < 0 || m->shard == shard, E_ARG,
              "a batch of shard %d is number %d of this rank's; expected shard %d", m->shard, pass, shard);
    HVT_CHECK(m->real == d->counts[shard], E_ARG,
              "a batch of %d images of shard %d, but hvt_distopt_begin() got %d", m->real, shard,
              d->counts[shard]);
    return HVT_OK;
}

/* Puts this rank's inputs into the step statistics of its last pass, and zeros into those of its other
 * passes. */
static hvt_status put_inputs(const hvt_distopt *d, bool last)
{
    const hvt_model *m = d->optim->m;
    hvt_device *dev = hvt__pass_device(m);
    float *inputs = d->grads + m->step_stats_count - HVT__STEP_INPUTS;

    return last ? dev->ops->memory.copy(dev, inputs, m->step->inputs, sizeof m->step->inputs)
                : dev->ops->memory.zero(dev, inputs, sizeof m->step->inputs);
}

hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end)
{
    hvt_distopt *d = dist;
    const hvt_model *m;
    size_t stats, *mark;
    int pass;
    bool last;

    HVT_GIVEN(d, "a distributed optimizer");
    m = d->optim->m;
    stats = m->step_stats_count;
    pass = hvt__pass_shard() >= 0 ? hvt__pass_shard() : d->pass;
    last = pass == d->opts.local_shards - 1;
    HVT_CHECK(d->begun, E_ARG, "call hvt_distopt_begin() before a backward pass");
    HVT_CHECK(pass < d->opts.local_shards, E_ARG, "more than %d backward passes in a step",
              d->opts.local_shards);
    mark = &d->mark[pass];
    HVT_CHECK(first == *mark && end >= first && end <= m->grad_count, E_ARG,
              "got gradients [%zu, %zu), expected them to continue at %zu of %zu", first, end, *mark,
              m->grad_count);
    if (first == 0)
        HVT_TRY(check_pass(d, pass));
    if (first < stats && end >= stats)
        HVT_TRY(put_inputs(d, last));
    HVT_TRY(add_pass(d, pass, first, end - first));
    *mark = end;
    if (hvt__pass_aside()) /* the first stage sends all */
        return HVT_OK;
    for (; last && d->launched < d->nbucket && d->bucket[d->launched].end <= *mark; d->launched++)
        HVT_TRY(launch(d, &d->bucket[d->launched]));
    d->pass += end == m->grad_count;
    return HVT_OK;
}

/* Posts each bucket's second sum as soon as its first has arrived. */
static hvt_status second_round(hvt_distopt *d)
{
    for (hvt_bucket *b = d->bucket + 1; b < d->bucket + d->nbucket; b++) {
        HVT_TRY(hvt__await(d, b, false));
        b->second = true;
        hvt__phase_begin(d, HVT__COMPRESS, b);
        HVT_TRY(hvt__traced(b->codec->second(d, b)));
        hvt__phase_begin(d, HVT__LAUNCH, b);
        HVT_TRY(hvt__traced(d->update_path->post(d, b)));
    }
    return HVT_OK;
}

/* Decides from the step statistics in the first bucket, after all sums that the decision needs. */
static hvt_status decide(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;

    hvt__trace_begin(HVT__UPDATE, -1);
    HVT_TRY(hvt__traced(hvt__model_end_step(m, d->counts, d->shards)));
    return m->dev->ops->host ? hvt_distopt_check(d) : HVT_OK;
}

void hvt__distopt_drop(hvt_distopt *d)
{
    d->begun = false;
    d->pass = d->launched = d->arrived = 0;
    hvt__sync_end(d->optim->m);
    if (d->codec->drop)
        d->codec->drop(d);
    d->optim->m->backward_pending = false;
    hvt__trace_step_end();
}

hvt_status hvt__await_rest(hvt_distopt *d)
{
    hvt_status s = HVT_OK;

    while (s == HVT_OK && d->arrived < d->launched)
        s = hvt__await(d, &d->bucket[d->arrived++], false);
    return s;
}

/* Ranks may be at different points. Each launches all buckets that any rank has launched, so that the comm
 * sees the same operations everywhere; the data sent are arbitrary, and the sums are discarded. */
hvt_status hvt_distopt_abandon(hvt_distopt *d)
{
    int64_t most;
    hvt_status s = HVT_OK;

    HVT_GIVEN(d, "a distributed optimizer");
    if (!d->begun)
        d->launched = d->arrived = d->flags != NULL;
    most = d->launched;
    HVT_TRY(hvt_world_allreduce_i64(d->world, HVT_MAX, &most, 1));
    for (; s == HVT_OK && d->launched < most; d->launched++)
        s = launch(d, &d->bucket[d->launched]);
    if (s == HVT_OK)
        s = hvt__await_rest(d);
    hvt__distopt_drop(d);
    return hvt_world_agree(d->world, s);
}

hvt_status hvt_distopt_step(hvt_distopt *d)
{
    hvt_status s;

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_CHECK(d->begun && d->pass == d->opts.local_shards, E_ARG,
              "hvt_distopt_step() after %d of %d backward passes, expected all", d->begun ? d->pass : 0,
              d->opts.local_shards);
    if (d->codec->second)
        HVT_TRY(second_round(d));
    while (d->arrived < d->nbucket && (d->arrived == 0 || d->needs_all))
        HVT_TRY(hvt__await(d, &d->bucket[d->arrived++], true));
    if (d->flags)
        HVT_TRY(hvt__flags_exchange(d));
    s = decide(d);
    if (s == HVT_E_DIVERGED || s == HVT_E_MISMATCH) { /* all ranks know; nothing stays in flight */
        hvt__await_rest(d);
        hvt__distopt_drop(d);
    }
    HVT_TRY(s);
    HVT_TRY(hvt__ema_stats(d->optim));
    HVT_TRY(hvt__trust_ratios(d));
    d->decided = true;
    if (!d->update_path->update && d->arrived < d->nbucket)
        d->arrived = d->nbucket - 1; /* waiting for the last one updates all */
    for (hvt_bucket *b = d->bucket; b < d->bucket + d->nbucket; b++) {
        if (b == d->bucket + d->arrived)
            HVT_TRY(hvt__await(d, &d->bucket[d->arrived++], true));
        if (!d->update_path->update || b->end <= d->optim->m->step_stats_count)
            continue;
        hvt__phase_begin(d, HVT__UPDATE, b);
        HVT_TRY(hvt__traced(d->update_path->update(d, b)));
    }
    d->decided = false;
    if (d->update_path->gathers)
        HVT_TRY(hvt__await(d, d->bucket + d->nbucket - 1, false));
    if (d->opts.update == HVT_UPDATE_SHARDED) /* each rank has written only its slice of a 16-bit copy */
        hvt__model_changed(d->optim->m);
    if (d->codec->end)
        d->codec->end(d);
    d->begun = false;
    hvt__sync_end(d->optim->m);
    hvt__trace_step_end();
    return hvt__replicas_check(d);
}
