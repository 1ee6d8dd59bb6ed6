/* --split: its devices, and the micro-batches of a rank, which are its shards. */
#include "cli_impl.h"
#include "base_impl.h"

#include <stdlib.h>

/* Reads the list of devices. All must be of one kind, and numbered from 0 without gaps, in any order. */
static hvt_status read_devices(const hvt_options *o, hvt_resolved *t)
{
    const size_t len = strcspn(o->split, ":,");
    const char *at = o->split;

    for (int n = 0; *at; n++) {
        int64_t place = 0;
        const bool known =
            n < HVT__STAGES && !strncmp(at, o->split, len) && (at += len, hvt__scan_text(&at, ":")) &&
            hvt__scan_whole(&at, HVT__STAGES - 1, &place) && (!*at || (hvt__scan_text(&at, ",") && *at));

        HVT_CHECK(known, E_ARG,
                  "--split: expected devices of one kind with their numbers, such as cpu:0,cpu:1, got '%s'",
                  o->split);
        for (int k = 0; k < n; k++)
            HVT_CHECK(t->place[k] != place, E_ARG, "--split %s names %.*s:%d twice", o->split, (int)len,
                      o->split, (int)place);
        t->place[n] = (int)place;
        t->stages = n + 1;
    }
    for (int k = 0; k < t->stages; k++)
        HVT_CHECK(t->place[k] < t->stages, E_ARG,
                  "--split %s: %.*s:%d of %d devices; they are numbered from %.*s:0 to %.*s:%d", o->split,
                  (int)len, o->split, t->place[k], t->stages, (int)len, o->split, (int)len, o->split,
                  t->stages - 1);
    return HVT_OK;
}

hvt_status hvt__resolve_split(const hvt_options *o, hvt_resolved *t)
{
    static const enum hvt__option_at own[] = {HVT__AT_split_at, HVT__AT_micro_batches, HVT__AT_pipeline};
    const size_t len = strcspn(o->split, ":,");
    const bool is_cpu =
        hvt__is_word_of("cpu|ref", t->device) && !strncmp(o->split, t->device, len) && !t->device[len];

    for (size_t i = 0; i < HVT_LEN(own) && !*o->split; i++)
        HVT_CHECK(!hvt__option_given(o, own[i]), E_ARG, "%s is for --split",
                  hvt__flag_of(&hvt__option_table[own[i]]).text);
    if (!*o->split)
        return HVT_OK;
    HVT_CHECK(strncmp(o->split, "cuda", 4), E_UNSUPPORTED,
              "--split %s: a model is split over sets of cores (cpu:0,cpu:1) only; on several GPUs use a "
              "rank for each (mpirun -np N hvtrain --device cuda)",
              o->split);
    HVT_CHECK(is_cpu, E_ARG, "--split %s: expected devices such as %s:0,%s:1, as --device is %s", o->split,
              t->device, t->device, o->device);
    HVT_TRY(read_devices(o, t));
    HVT_CHECK(t->stages > 1, E_ARG, "--split %s is one device: expected two or more, such as %s:0,%s:1",
              o->split, t->device, t->device);
    t->micro = o->micro_batches ? o->micro_batches : 2 * t->stages;
    return HVT_OK;
}

/* The divisor of a rank's batch that is nearest to twice the devices; of two, the larger one. */
static int choose_micro_batches(int batch, int stages)
{
    const int wanted = 2 * stages;
    int best = 1;

    for (int n = 1; n <= batch && n < 2 * wanted; n++)
        if (batch % n == 0 && abs(n - wanted) <= abs(best - wanted))
            best = n;
    return best;
}

/* A rank's micro-batches are its shards. They divide its --batch, unless --shards or a checkpoint gives their
 * number. */
hvt_status hvt__split_batch(const hvt_options *o, int ranks, hvt_resolved *t)
{
    HVT_CHECK(!o->shards || !hvt__option_given(o, HVT__AT_micro_batches) || o->shards == ranks * t->micro,
              E_ARG,
              "--micro-batches %d on %d rank%s are %d shards, but %s%s has %d: expected the same, or no "
              "--micro-batches",
              t->micro, ranks, ranks > 1 ? "s" : "", ranks * t->micro,
              hvt__option_given(o, HVT__AT_shards) ? "--shards" : "the run in ",
              hvt__option_given(o, HVT__AT_shards) ? "" : o->resume, o->shards);
    if (o->shards)
        return HVT_OK;
    if (!o->micro_batches && o->global_batch % t->shards == 0)
        t->micro = choose_micro_batches(o->global_batch ? o->global_batch / t->shards : t->batch, t->stages);
    HVT_CHECK(t->micro <= INT_MAX / t->shards, E_ARG, "%d micro-batches x %d are too many", t->micro,
              t->shards);
    t->shards *= t->micro;
    HVT_CHECK(o->global_batch || t->batch % t->micro == 0, E_ARG,
              "--batch %d in %d micro-batches: expected a multiple of %d", t->batch, t->micro, t->micro);
    t->batch /= t->micro;
    return HVT_OK;
}
