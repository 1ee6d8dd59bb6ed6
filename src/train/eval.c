/*
 * Exact evaluation. Each image's loss is rounded to 2^-24 nats and added as an integer, so the sum depends
 * neither on the order nor on the partition of the images; top-1 and top-5 are counts.
 *
 * The integer is wide enough for every finite float: the largest is below 2^128 nats, which is 2^152 units,
 * and at most 2^32 images make that 2^184. It is kept as limbs of 30 bits in words of 64, so that no addition
 * carries: a float touches two limbs, and 2^32 additions of less than 2^30 stay below 2^62, on one rank and
 * over all of them alike. Carries are propagated once, at the end.
 *
 * Infinite losses and NaN are counted instead, and if there are any, they determine the sum.
 */
#include "run.h"
#include "base_impl.h"

#include <math.h>
#include <stdlib.h>

enum { LIMB = 30, LIMBS = 7, UNIT = 24 /* a loss is counted in 2^-UNIT nats */ };
#define LARGE 0x1p30f /* nats */

typedef struct tally {
    int64_t limb[LIMBS]; /* the sum is that of limb[i] * 2^(LIMB * i) */
    int64_t top1, top5, count;
    int64_t large, inf, nan; /* images with such a loss */
} tally;

/* Add units * 2^shift. |units| < 2^55 where shift is 0, else < 2^24. */
static void add_units(tally *t, int64_t units, int shift)
{
    int64_t low = units * ((int64_t)1 << shift % LIMB);
    int64_t *limb = t->limb + shift / LIMB;

    limb[0] += low & (((int64_t)1 << LIMB) - 1);
    limb[1] += low >> LIMB;
}

static void add_loss(tally *t, float loss)
{
    int exponent;

    if (fabsf(loss) < LARGE) {
        add_units(t, llrint((double)loss * (1 << UNIT)), 0);
    } else if (isfinite(loss)) { /* all 24 bits of it lie above the unit */
        int64_t units = llrintf(ldexpf(frexpf(loss, &exponent), 24));

        add_units(t, units, exponent - 24 + UNIT);
        t->large++;
    } else if (loss > 0) {
        t->inf++;
    } else {
        t->nan++;
    }
}

/* With a NaN among the logits the label's rank is meaningless: the image counts as a miss. */
static void add_row(tally *t, float loss, int32_t label_rank)
{
    add_loss(t, loss);
    t->top1 += !isnan(loss) && label_rank < 1;
    t->top5 += !isnan(loss) && label_rank < 5;
    t->count++;
}

/* In nats, rounded once. */
static double sum_of(tally *t)
{
    __int128 v;
    int scale = -UNIT;
    bool rest = false;

    if (t->nan || t->inf)
        return t->nan ? (double)NAN : (double)INFINITY;
    for (int i = 0; i + 1 < LIMBS; i++) { /* the last limb holds the sign */
        t->limb[i + 1] += t->limb[i] >> LIMB;
        t->limb[i] &= ((int64_t)1 << LIMB) - 1;
    }
    v = t->limb[LIMBS - 1];
    for (int i = LIMBS - 2; i >= 0; i--) {
        if (v < (__int128)1 << 90 && v >= -((__int128)1 << 90)) {
            v = v * ((__int128)1 << LIMB) + t->limb[i];
        } else { /* v has enough bits: of the remaining ones it only matters whether any is set */
            rest = rest || t->limb[i];
            scale += LIMB;
        }
    }
    return ldexp((double)(rest ? v | 1 : v), scale);
}

/* This rank's images. */
static hvt_status count_images(hvt_model *m, hvt_loader *loader, hvt__evaluated_fn *progress, void *ctx,
                               tally *t)
{
    float *loss = NULL;
    int32_t *label_rank = NULL;
    bool end = false;
    hvt_batch b;
    hvt_status s;

    HVT_TRY_OR(done, hvt_loader_rewind(loader, 0, 0));
    for (;;) {
        HVT_TRY_OR(done, hvt_loader_next(loader, &b, &end));
        if (end)
            break;
        if (!loss) { /* every batch has the planned size */
            loss = malloc((size_t)b.labels.dim[0] * sizeof *loss);
            label_rank = malloc((size_t)b.labels.dim[0] * sizeof *label_rank);
            HVT_CHECK_OR(done, loss && label_rank, E_MEM, "no memory for %d losses", b.labels.dim[0]);
        }
        if (!b.count)
            continue;
        HVT_TRY_OR(done, hvt_model_forward(m, &b, false));
        HVT_TRY_OR(done, hvt_model_rows(m, loss, label_rank));
        for (int i = 0; i < b.count; i++)
            add_row(t, loss[i], label_rank[i]);
        if (progress)
            progress(ctx, b.count);
    }
done:
    free(loss);
    free(label_rank);
    return s;
}

hvt_status hvt__evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt__evaluated_fn *progress,
                         void *ctx, hvt_loss *ret_loss, hvt__odd_losses *ret_odd)
{
    tally t = {0};
    int64_t counts[6];

    HVT_TRY(hvt_world_agree(world, count_images(m, loader, progress, ctx, &t)));
    counts[0] = t.top1;
    counts[1] = t.top5;
    counts[2] = t.count;
    counts[3] = t.large;
    counts[4] = t.inf;
    counts[5] = t.nan;
    HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, t.limb, LIMBS)); /* two calls, which need no memory */
    HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, counts, 6));
    t.inf = counts[4];
    t.nan = counts[5];
    *ret_loss = (hvt_loss){sum_of(&t), counts[0], counts[1], counts[2]};
    *ret_odd = (hvt__odd_losses){counts[3], counts[4], counts[5]};
    return HVT_OK;
}

hvt_status hvt_evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt_loss *ret_loss)
{
    hvt__odd_losses odd;

    HVT_GIVEN(m, "a model");
    HVT_GIVEN(loader, "a loader");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_loss, "a label_rank for the loss");
    return hvt__evaluate(m, loader, world, NULL, NULL, ret_loss, &odd);
}
