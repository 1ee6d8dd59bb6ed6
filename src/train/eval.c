/*
 * Exact evaluation. Each image's loss is rounded to 2^-24 nats and added as an integer, so the sum depends
 * neither on the order nor on the partition of the images; top-1 and top-5 are counts.
 *
 * The integer holds every finite float: the largest is below 2^128 nats, that is 2^152 units, and at most
 * 2^32 images make 2^184. It consists of limbs of 30 bits in words of 64, so that additions do not carry: a
 * float touches two limbs, and 2^32 additions of less than 2^30 stay below 2^62, on one rank and over all of
 * them alike. Carries are propagated once, at the end.
 *
 * With targets, mean absolute errors are summed in the same way. With labels of pixels, each labelled pixel
 * counts like an image, and carries are propagated after each batch, because there may be more than 2^32
 * pixels.
 *
 * Infinite losses and NaN are counted instead, and if there are any, they determine the sum.
 *
 * An evaluation within a run can be interrupted. From time to time the ranks agree whether any of them wants
 * to stop, so all stop after the same number of batches, which hold the first images of the set. The
 * checkpoint has their number and the sums. Because the sums are exact, another job on any number of ranks
 * can continue with the next image and gets the same result.
 */
#include "run.h"
#include "base_impl.h"

#include <inttypes.h>
#include <math.h>

enum { LIMB = 30, LIMBS = 7, UNIT = 24 /* a loss is counted in 2^-UNIT nats */ };
#define LARGE 0x1p30f /* nats */

enum { TOP1, TOP5, COUNT, OF_LARGE, OF_INF, OF_NAN, COUNTS }; /* of images; OF_: with such a loss */

typedef struct tally {
    int64_t limb[LIMBS]; /* the sum is that of limb[i] * 2^(LIMB * i) */
    int64_t n[COUNTS];
} tally;

/* Adds units * 2^shift. |units| < 2^55 if shift is 0, otherwise < 2^24. */
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
    } else if (isfinite(loss)) { /* none of its 24 bits is below the unit */
        int64_t units = llrintf(ldexpf(frexpf(loss, &exponent), 24));

        add_units(t, units, exponent - 24 + UNIT);
        t->n[OF_LARGE]++;
    } else {
        t->n[loss > 0 ? OF_INF : OF_NAN]++;
    }
}

/* True for a hit among the `top` best. With NaN among the logits the label's rank is meaningless: a miss. */
static bool is_hit(float loss, int32_t label_rank, int top)
{
    return !isnan(loss) && label_rank < top;
}

static void add_row(tally *t, float loss, int32_t label_rank)
{
    add_loss(t, loss);
    t->n[TOP1] += is_hit(loss, label_rank, 1);
    t->n[TOP5] += is_hit(loss, label_rank, 5);
    t->n[COUNT]++;
}

/* Propagates carries: all limbs but the last, which holds the sign, are then below 2^LIMB. */
static void carry(tally *t)
{
    for (int i = 0; i + 1 < LIMBS; i++) {
        t->limb[i + 1] += t->limb[i] >> LIMB;
        t->limb[i] &= ((int64_t)1 << LIMB) - 1;
    }
}

/* The sum in nats, rounded once. */
static double sum_of(tally *t)
{
    __int128 v;
    int scale = -UNIT;
    bool rest = false;

    if (t->n[OF_NAN] || t->n[OF_INF])
        return t->n[OF_NAN] ? (double)NAN : (double)INFINITY;
    carry(t);
    v = t->limb[LIMBS - 1];
    for (int i = LIMBS - 2; i >= 0; i--) {
        if (v < (__int128)1 << 90 && v >= -((__int128)1 << 90)) {
            v = v * ((__int128)1 << LIMB) + t->limb[i];
        } else { /* v has enough bits: only a sticky bit is left for the remaining ones */
            rest = rest || t->limb[i];
            scale += LIMB;
        }
    }
    return ldexp((double)(rest ? v | 1 : v), scale);
}

/* One evaluation on this rank. */
typedef struct pass {
    hvt_model *m;
    hvt_loader *loader;
    bool unlabelled, mse; /* without labels; with targets instead */
    bool flip, shift;     /* --tta; shift: with flip */
    bool masks;           /* with labels of pixels */
    float *loss, *error;  /* [batch], or of pixels [batch,H,W] */
    int32_t *label_rank, *labels;
    hvt__per_class *per_class; /* NULL: not counted */
    hvt__per_class own;        /* of masks, without a run */
    hvt_device *dev;           /* that has the labels; NULL without per_class */
    tally t;
    tally errors; /* mse: only limbs and counts of odd losses */

    /* when the ranks agree on stopping; to_agree is 0 if they never do */
    uint32_t stretch, to_agree; /* batches between two agreements; batches left until the next */
    double agreed_at;
    bool stopped;
} pass;

/* Allocates memory for the losses of a batch, once: every batch has the planned size. */
static hvt_status make_room(pass *p, size_t rows)
{
    if (p->loss)
        return HVT_OK;
    p->loss = malloc(rows * sizeof *p->loss);
    p->error = malloc(rows * sizeof *p->error);
    p->label_rank = malloc(rows * sizeof *p->label_rank);
    p->labels = malloc(rows * sizeof *p->labels);
    HVT_CHECK(p->loss && p->error && p->label_rank && p->labels, E_MEM, "no memory for %zu losses", rows);
    return HVT_OK;
}

static hvt_status count_errors(pass *p, int count)
{
    HVT_TRY(hvt_model_errors(p->m, p->loss, p->error));
    for (int i = 0; i < count; i++) {
        add_loss(&p->t, p->loss[i]);
        add_loss(&p->errors, p->error[i]);
    }
    p->t.n[COUNT] += count;
    return HVT_OK;
}

static hvt_status count_classes(pass *p, const hvt_batch *b)
{
    HVT_TRY(hvt_device_download(p->dev, p->labels, b->labels.data, (size_t)b->count * sizeof *p->labels));
    for (int i = 0; i < b->count; i++)
        hvt__per_class_count(p->per_class, p->labels[i], is_hit(p->loss[i], p->label_rank[i], 1));
    return HVT_OK;
}

static hvt_status forward(const pass *p, const hvt_batch *b)
{
    return p->flip ? hvt_model_forward_flipped(p->m, b, p->shift) : hvt_model_forward(p->m, b, false);
}

/* Counts labelled pixels. Devices that compute outputs of pixels have labels in host memory. */
static hvt_status count_pixels(pass *p, const hvt_batch *b)
{
    const bool hwn = hvt_model_order(p->m) == HVT_ORDER_HWN;
    const int *dim = b->labels.dim, batch = dim[hwn ? 2 : 0];
    const size_t pixels = hvt_tensor_count(&b->labels) / (size_t)batch, all = pixels * (size_t)b->count;
    const int32_t *labels = b->labels.data;

    HVT_TRY(hvt_model_rows(p->m, p->loss, p->label_rank));
    HVT_TRY(hvt_model_predicted(p->m, p->labels));
    for (size_t i = 0; i < all; i++) {
        const size_t row = hwn ? i % pixels * (size_t)batch + i / pixels : i;

        if (labels[row] < 0)
            continue;
        add_row(&p->t, p->loss[i], p->label_rank[i]);
        hvt__per_class_pixel(p->per_class, labels[row], p->labels[i],
                             is_hit(p->loss[i], p->label_rank[i], 1));
    }
    carry(&p->t);
    return HVT_OK;
}

static hvt_status count_batch(pass *p, const hvt_batch *b)
{
    hvt_batch images = *b;

    if (!b->count)
        return HVT_OK;
    if (p->unlabelled) {
        images.labels.data = NULL;
        p->t.n[COUNT] += b->count;
        return forward(p, &images);
    }
    HVT_TRY(make_room(p, hvt_tensor_count(&b->labels)));
    if (p->mse)
        images.labels.data = NULL;
    HVT_TRY(forward(p, &images));
    if (p->mse)
        return count_errors(p, b->count);
    if (p->masks)
        return count_pixels(p, b);
    HVT_TRY(hvt_model_rows(p->m, p->loss, p->label_rank));
    for (int i = 0; i < b->count; i++)
        add_row(&p->t, p->loss[i], p->label_rank[i]);
    return p->per_class ? count_classes(p, b) : HVT_OK;
}

/* Sets p->stopped if a rank has failed or wants to stop. The ranks agree on that after the first batch, and
 * then whenever the slowest of them has worked for about PERIOD. A failed rank waits here for the others. */
static hvt_status agree(pass *p, bool failed, bool stop, hvt_world *world, run *of)
{
    enum { FAILED, STOP, MICROSECONDS, WORDS };
    const double PERIOD = 0.2; /* s */
    double seconds = hvt__running() - p->agreed_at;
    int64_t any[WORDS] = {failed, stop, (int64_t)(1e6 * seconds)};

    if (--p->to_agree)
        return HVT_OK;
    HVT_TRY(hvt_world_allreduce_i64(world, HVT_MAX, any, WORDS));
    p->stopped = any[FAILED] || any[STOP];
    seconds = 1e-6 * (double)(any[MICROSECONDS] + 1);
    if (of)
        of->preempt.slowest = fmax(of->preempt.slowest, seconds);
    p->stretch = (uint32_t)fmin(fmax(1, p->stretch * PERIOD / seconds), 2.0 * p->stretch);
    p->to_agree = p->stretch;
    p->agreed_at = hvt__running();
    return HVT_OK;
}

/* Evaluates all batches; all ranks have the same number. With predictions the ranks handle each batch
 * together, and do not stop. *ret_batches: the number evaluated. */
static hvt_status count_images(pass *p, hvt_world *world, bool show(run *t, int images), run *of,
                               uint32_t *ret_batches)
{
    hvt__predictions *predictions = of ? of->predictions : NULL;
    const uint32_t batches = hvt_loader_left(p->loader);
    hvt_status s = HVT_OK, agreed;
    hvt_batch b = {0};
    bool end;

    for (uint32_t i = 0; i < batches && !p->stopped; *ret_batches = ++i) {
        s = s ? s : hvt_loader_next(p->loader, &b, &end);
        s = s ? s : count_batch(p, &b);
        if (predictions)
            s = hvt__predictions_add(predictions, p->m, p->loader, &b, s);
        if (s && !p->to_agree)
            return s;
        bool stop = show && !show(of, b.count) && !predictions;

        if (p->to_agree && i + 1 < batches && (agreed = agree(p, s, stop, world, of)))
            return agreed;
    }
    return predictions && !s ? hvt__predictions_end(predictions) : s;
}

static void add(tally *t, const int64_t *sums)
{
    for (int i = 0; i < LIMBS; i++)
        t->limb[i] += sums[i];
    for (int i = 0; i < COUNTS; i++)
        t->n[i] += sums[LIMBS + i];
}

/* Adds the sums from before the interruption, and stores them if it is interrupted again. */
static void join_begun(pass *p, hvt__begun *begun, int64_t images)
{
    hvt__per_class *c = p->per_class;
    const size_t counts = c ? hvt__per_class_counts(c) : 0;
    enum { HALF = HVT__BEGUN_SUMS / 2 };
    _Static_assert(sizeof(tally) == HALF * sizeof(int64_t), "a tally is these sums");

    add(&p->t, begun->sums);
    add(&p->errors, begun->sums + HALF);
    begun->images = p->stopped ? images : 0;
    memset(begun->sums, 0, sizeof begun->sums);
    for (size_t i = 0; i < counts; i++) {
        c->now[i] += c->begun[i];
        c->begun[i] = p->stopped ? c->now[i] : 0;
    }
    if (!p->stopped)
        return;
    memcpy(begun->sums, &p->t, sizeof p->t);
    memcpy(begun->sums + HALF, &p->errors, sizeof p->errors);
}

/* Starts at the first image, or where an interrupted evaluation stopped. A run that only evaluates is not
 * interrupted. */
static hvt_status begin(pass *p, bool can_stop, run *of)
{
    p->stretch = p->to_agree = can_stop && !(of && of->opts->evaluate);
    p->agreed_at = hvt__running();
    if (p->per_class)
        memset(p->per_class->now, 0, hvt__per_class_counts(p->per_class) * sizeof *p->per_class->now);
    if (of && of->test.begun.steps != of->at.steps) {
        of->test.begun = (hvt__begun){.steps = of->at.steps};
        if (p->per_class)
            memset(p->per_class->begun, 0, hvt__per_class_counts(p->per_class) * sizeof *p->per_class->begun);
    }
    return hvt_loader_seek(p->loader, 0, of ? (uint32_t)of->test.begun.images : 0);
}

/* Chooses what is counted. */
static hvt_status prepare(pass *p, hvt_world *world, run *of)
{
    hvt_loader_info info;

    hvt_loader_describe(p->loader, &info);
    p->mse = info.targets > 0;
    p->masks = info.masks;
    p->unlabelled = info.unlabelled && !p->mse && !p->masks;
    p->flip = of && of->opts && strcmp(of->opts->tta, "none");
    p->shift = p->flip && !strcmp(of->opts->tta, "shift");
    p->per_class = of && of->test.per_class.classes ? &of->test.per_class : NULL;
    p->dev = p->per_class ? of->dev : NULL;
    if (!p->masks || p->per_class)
        return HVT_OK;
    p->per_class = &p->own;
    return hvt__per_class_init(&p->own, hvt_model_classes(p->m), true, world);
}

/* The mean IoU over all ranks, which rank 0 has counted. */
static hvt_status find_iou(const pass *p, hvt_world *world, double *ret_iou)
{
    *ret_iou = p->masks ? hvt__per_class_iou(p->per_class) : 0;
    return p->masks ? hvt_world_broadcast(world, ret_iou, sizeof *ret_iou, 0) : HVT_OK;
}

static void end(pass *p)
{
    free(p->loss);
    free(p->error);
    free(p->label_rank);
    free(p->labels);
}

/* Adds the counts of all ranks. */
static hvt_status add_ranks(pass *p, hvt_world *world)
{
    tally *t = &p->t;

    HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, t->limb, LIMBS)); /* two calls need no memory */
    HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, t->n, COUNTS));
    if (p->mse) {
        HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, p->errors.limb, LIMBS));
        HVT_TRY(hvt_world_allreduce_i64(world, HVT_SUM, p->errors.n, COUNTS));
    }
    return p->per_class ? hvt__per_class_sum(p->per_class, world) : HVT_OK;
}

hvt_status hvt__evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, bool show(run *t, int images),
                         run *of, hvt_loss *ret_loss, hvt__odd_losses *ret_odd, bool *ret_whole)
{
    pass p = {.m = m, .loader = loader};
    const tally *t = &p.t;
    uint32_t batches = 0;
    double iou = 0;
    hvt_status s = prepare(&p, world, of);

    s = s ? s : begin(&p, show, of);
    s = s ? s : count_images(&p, world, show, of, &batches);
    end(&p);
    HVT_TRY_OR(done, hvt_world_agree(world, s));
    HVT_TRY_OR(done, add_ranks(&p, world));
    if (of)
        join_begun(&p, &of->test.begun,
                   of->test.begun.images + (int64_t)batches * of->set.batch * hvt_world_size(world));
    HVT_TRY_OR(done, find_iou(&p, world, &iou));
    *ret_loss = (hvt_loss){.sum = p.unlabelled ? (double)NAN : sum_of(&p.t),
                           .top1 = t->n[TOP1],
                           .top5 = p.masks ? 0 : t->n[TOP5],
                           .count = t->n[COUNT],
                           .error = p.mse ? sum_of(&p.errors) : 0,
                           .iou = iou};
    *ret_odd = (hvt__odd_losses){t->n[OF_LARGE], t->n[OF_INF], t->n[OF_NAN]};
    *ret_whole = !p.stopped;
done:
    hvt__per_class_free(&p.own);
    return s;
}

static uint64_t test_set(const run *of)
{
    const hvt_dataset_info *set = hvt_dataset_describe(of->test_set);

    return hvt__hash(set->fingerprint, &set->count, sizeof set->count);
}

char *hvt__begun_text(const run *of)
{
    const hvt__begun *b = &of->test.begun;
    json_t *all, *sums = json_array();
    char set[17], *text;

    for (int i = 0; i < HVT__BEGUN_SUMS; i++)
        json_array_append_new(sums, json_integer(b->sums[i]));
    snprintf(set, sizeof set, "%016" PRIx64, test_set(of));
    all = json_pack("{s:s, s:I, s:o}", "set", set, "images", (json_int_t)b->images, "sums", sums);
    if (of->test.per_class.classes)
        json_object_set_new(all, "classes", hvt__per_class_begun(&of->test.per_class));
    text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

void hvt__begun_read(run *of, const char *text)
{
    json_t *all = text ? json_loads(text, 0, NULL) : NULL, *sums = json_object_get(all, "sums");
    const char *set = json_string_value(json_object_get(all, "set"));
    json_int_t images = json_integer_value(json_object_get(all, "images"));

    if (set && strtoull(set, NULL, 16) == test_set(of) && json_array_size(sums) == HVT__BEGUN_SUMS &&
        images > 0 && images < hvt_dataset_describe(of->test_set)->count &&
        hvt__per_class_resume(&of->test.per_class, json_object_get(all, "classes"))) {
        of->test.begun = (hvt__begun){.steps = of->at.steps, .images = images};
        for (int i = 0; i < HVT__BEGUN_SUMS; i++)
            of->test.begun.sums[i] = json_integer_value(json_array_get(sums, (size_t)i));
    }
    json_decref(all);
}

hvt_status hvt_evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt_loss *ret_loss)
{
    hvt_loader_info info;
    hvt__odd_losses odd;
    bool whole;

    HVT_GIVEN(m, "a model");
    HVT_GIVEN(loader, "a loader");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_loss, "an output pointer for the loss");
    hvt_loader_describe(loader, &info);
    HVT_TRY(hvt_world_agree(world, !info.unlabelled || info.targets || info.masks
                                       ? HVT_OK
                                       : HVT_FAIL(E_ARG, "the images of this loader have no labels to "
                                                         "evaluate with; hvt_model_predict() or "
                                                         "hvt_model_logits() needs none")));
    return hvt__evaluate(m, loader, world, NULL, NULL, ret_loss, &odd, &whole);
}
