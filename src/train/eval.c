/*
 * Exact evaluation. Each image's loss is rounded to 2^-24 and added as an integer, so the sum depends neither
 * on the order nor on who adds which images; top-1 and top-5 are counts anyway.
 */
#include "train_impl.h"
#include "base_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOW_BITS = 40 };
#define TOO_LARGE 0x1p30f /* nats: no loss of a network that still computes */

typedef struct tally {
    __int128 sum; /* of losses, in 2^-24 nats */
    int64_t top1, top5, count;
    int64_t bad;    /* the lowest number of an image whose loss is too large or NaN; INT64_MAX: none */
    float bad_loss; /* its loss */
} tally;

static void add_row(tally *t, uint32_t id, float loss, int32_t place)
{
    if (!(fabsf(loss) < TOO_LARGE)) {
        if ((int64_t)id < t->bad) {
            t->bad = (int64_t)id;
            t->bad_loss = loss;
        }
        return;
    }
    t->sum += llrint((double)loss * 0x1p24);
    t->top1 += place < 1;
    t->top5 += place < 5;
    t->count++;
}

/* This rank's images. */
static hvt_status count_images(hvt_model *m, hvt_loader *loader, hvt__evaluated_fn *tell, void *ctx, tally *t)
{
    float *loss = NULL;
    int32_t *place = NULL;
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
            place = malloc((size_t)b.labels.dim[0] * sizeof *place);
            HVT_CHECK_OR(done, loss && place, E_MEM, "no memory for %d losses", b.labels.dim[0]);
        }
        if (!b.count)
            continue;
        HVT_TRY_OR(done, hvt_model_forward(m, &b, false));
        HVT_TRY_OR(done, hvt_model_rows(m, loss, place));
        for (int i = 0; i < b.count; i++)
            add_row(t, b.ids[i], loss[i], place[i]);
        if (tell)
            tell(ctx, b.count);
    }
done:
    free(loss);
    free(place);
    return s;
}

/* On every rank, of the lowest such image of all ranks. Each image is one rank's, which tells its loss. */
static hvt_status refuse(hvt_world *world, int64_t bad, const tally *mine)
{
    uint32_t bits;
    int64_t told = 0;
    float loss;
    hvt_status s;

    memcpy(&bits, &mine->bad_loss, sizeof bits);
    if (mine->bad == bad)
        told = bits;
    HVT_TRY(hvt_world_fold_i64(world, HVT_FOLD_MAX, &told, 1));
    bits = (uint32_t)told;
    memcpy(&loss, &bits, sizeof loss);
    s = HVT_FAIL(E_DIVERGED, "evaluation: the loss of image %" PRId64 " is %g, expected less than %g", bad,
                 isnan(loss) ? (double)NAN : (double)loss, (double)TOO_LARGE);
    hvt__error_agreed(true);
    return s;
}

hvt_status hvt_evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt_loss *ret_loss)
{
    return hvt__evaluate(m, loader, world, NULL, NULL, ret_loss);
}

hvt_status hvt__evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt__evaluated_fn *tell,
                         void *ctx, hvt_loss *ret_loss)
{
    tally t = {.bad = INT64_MAX};
    int64_t sums[5], bad;

    HVT_TRY(hvt_world_agree(world, count_images(m, loader, tell, ctx, &t)));
    bad = t.bad;
    HVT_TRY(hvt_world_fold_i64(world, HVT_FOLD_MIN, &bad, 1));
    if (bad != INT64_MAX)
        return refuse(world, bad, &t);
    sums[0] = (int64_t)(t.sum >> LOW_BITS); /* two parts: their sums over ranks cannot overflow */
    sums[1] = (int64_t)(t.sum & (((__int128)1 << LOW_BITS) - 1));
    sums[2] = t.top1;
    sums[3] = t.top5;
    sums[4] = t.count;
    HVT_TRY(hvt_world_fold_i64(world, HVT_FOLD_SUM, sums, 5));
    t.sum = (__int128)sums[0] * ((__int128)1 << LOW_BITS) + sums[1];
    *ret_loss = (hvt_loss){(double)t.sum * 0x1p-24, sums[2], sums[3], sums[4]};
    return HVT_OK;
}
