/*
 * Predictions of a whole data set in its order, on any number of ranks.
 *
 * The i-th image of rank r in an evaluation is image r + i*ranks of the set. So the k-th batches of all ranks
 * together hold one contiguous span of the set, and so does any range of their rows. Each rank writes its
 * results into its slots, rows of fixed size; rank 0 gathers and writes them, a span at a time. Rank 0 needs
 * memory for a span, SPAN bytes or one row of every rank, and the others for a batch, whatever the size of
 * the set.
 *
 * The rank that computes a mask writes it as a file NUMBER_NAME.png, with the number of the image and the
 * name of its file.
 *
 * A damaged image that was skipped, and is black in its batch, still has its row: without class and
 * probability in the CSV, NaN in the array. It has no mask.
 */
#include "predict_impl.h"
#include "data/image/image_impl.h"
#include "train/process/process_impl.h"
#include "base_impl.h"

#include <math.h>

enum { SPAN = 16 << 20, ROW = 4, FIELDS = 4 }; /* ROW, FIELDS: least bytes of a line of the table */

struct hvt__predictions {
    hvt__predictions_opts opts;
    int rank, ranks;
    uint32_t count;
    uint32_t first;   /* slot of the next batch's first image: the number of images before it on this rank */
    size_t row;       /* bytes: an hvt__prediction and, if wanted, the logits */
    char *mine, *all; /* [batch] rows; rank 0: [ranks][chunk] rows */
    int chunk;        /* slots gathered at once */
    size_t outputs;   /* logits of an image */
    float *logits;    /* [batch,outputs] */
    int32_t *predicted;   /* [batch,h,w] if masks are wanted */
    uint8_t *mask;        /* [h,w] */
    int32_t *labels;      /* [batch] */
    hvt__output csv, npy; /* rank 0; file NULL: none */
    hvt_status failed;    /* rank 0 could not write; the next agreement informs the others */
    hvt__error why;
};

/* Checks the room for at least so many bytes per image. */
static hvt_status check_room(const hvt__predictions *p, const hvt__output *file, const char *what,
                             size_t bytes)
{
    uint64_t all = (uint64_t)p->count * bytes;

    return *file->temp ? hvt__room_check(file->flag, file->path, false, what, all, all) : HVT_OK;
}

static hvt_status open_files(hvt__predictions *p)
{
    enum { LINES = 1 << 16 }; /* bytes: longer than any line */
    const hvt__predictions_opts *o = &p->opts;

    if (*o->csv) {
        HVT_TRY(hvt__output_open(&p->csv, HVT__PREDICTIONS, "--predict", o->csv));
        if (!*p->csv.temp) /* stdout and stderr may be one terminal: no message may split a line */
            setvbuf(p->csv.file, NULL, _IOLBF, LINES);
        HVT_TRY(check_room(p, &p->csv, "the table",
                           (size_t)(ROW + FIELDS * (o->classes < HVT__BEST ? o->classes : HVT__BEST))));
        HVT_TRY(hvt__csv_begin(&p->csv, &(hvt__table){o->set, o->classes, o->names}));
    }
    if (*o->npy) {
        HVT_TRY(hvt__output_open(&p->npy, HVT__LOGITS, "--predict-logits", o->npy));
        HVT_TRY(check_room(p, &p->npy, "the array", p->outputs * sizeof(float)));
        HVT_TRY(hvt__npy_begin(&p->npy, p->count, o->classes, o->h, o->w));
    }
    return HVT_OK;
}

static hvt_status open_local(hvt__predictions *p)
{
    const size_t batch = (size_t)p->opts.batch, ranks = (size_t)p->ranks;
    const size_t pixels = (size_t)p->opts.h * (size_t)p->opts.w;
    size_t logits = *p->opts.npy ? p->outputs * sizeof(float) : 0, unit = _Alignof(hvt__prediction);

    p->row = sizeof(hvt__prediction) + (logits + unit - 1) / unit * unit;
    p->chunk = SPAN / (ranks * p->row) < batch ? (int)(SPAN / (ranks * p->row)) : p->opts.batch;
    p->chunk += !p->chunk;
    p->mine = calloc(batch, p->row);
    p->logits = malloc(batch * p->outputs * sizeof *p->logits);
    p->predicted = malloc((*p->opts.masks ? batch * pixels : 1) * sizeof *p->predicted);
    p->mask = malloc(pixels);
    p->labels = malloc(batch * sizeof *p->labels);
    p->all = p->rank ? NULL : malloc(ranks * (size_t)p->chunk * p->row);
    HVT_CHECK(p->mine && p->logits && p->labels && p->predicted && p->mask && (p->all || p->rank), E_MEM,
              "no memory for predictions of %d images of %d classes on %d ranks", p->opts.batch,
              p->opts.classes, p->ranks);
    return p->rank ? HVT_OK : open_files(p);
}

hvt_status hvt__predictions_open(const hvt__predictions_opts *opts, hvt__predictions **ret)
{
    hvt__predictions *p = calloc(1, sizeof *p);
    hvt_status s;

    if (p) {
        *p = (hvt__predictions){.opts = *opts,
                                .rank = hvt_world_rank(opts->world),
                                .ranks = hvt_world_size(opts->world),
                                .count = hvt_dataset_describe(opts->set)->count,
                                .outputs = (size_t)opts->classes * (size_t)opts->h * (size_t)opts->w};
        s = open_local(p);
    } else {
        s = HVT_FAIL(E_MEM, "no memory for predictions");
    }
    s = hvt_world_agree(opts->world, s);
    if (s)
        hvt__predictions_close(&p);
    else
        *ret = p;
    return s;
}

void hvt__predictions_close(hvt__predictions **predictions)
{
    hvt__predictions *p = *predictions;

    if (!p)
        return;
    hvt__output_drop(&p->csv);
    hvt__output_drop(&p->npy);
    free(p->mine);
    free(p->all);
    free(p->logits);
    free(p->predicted);
    free(p->mask);
    free(p->labels);
    free(p);
    *predictions = NULL;
}

static hvt__prediction *row_of(const hvt__predictions *p, char *rows, size_t i)
{
    return (hvt__prediction *)(void *)(rows + i * p->row);
}

/* Writes the mask of image i of the batch, which is number id of the set. */
static hvt_status write_mask(hvt__predictions *p, int i, uint32_t id)
{
    const int pixels = p->opts.h * p->opts.w;
    const int32_t *from = p->predicted + (size_t)i * (size_t)pixels;
    char name[PATH_MAX], path[PATH_MAX], *base, *dot;

    HVT_TRY(hvt_dataset_name(p->opts.set, id, name, sizeof name));
    base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    dot = strrchr(base, '.');
    if (dot)
        *dot = 0;
    for (int k = 0; k < pixels; k++)
        p->mask[k] = (uint8_t)from[k];
    HVT_TRY(hvt__path(path, "%s/%06u_%s.png", p->opts.masks, id, base));
    return hvt__mask_write(path, p->mask, p->opts.h, p->opts.w);
}

/* Writes the model's results for the batch into the slots of its images. */
static hvt_status fill(hvt__predictions *p, hvt_model *m, hvt_loader *loader, const hvt_batch *b)
{
    const bool pixels = p->opts.h * p->opts.w > 1;

    for (int i = 0; i < p->opts.batch; i++)
        row_of(p, p->mine, (size_t)i)->there = false;
    if (!b->count)
        return HVT_OK;
    if (!pixels || *p->opts.npy)
        HVT_TRY(hvt_model_logits(m, p->logits));
    if (*p->opts.masks)
        HVT_TRY(hvt_model_predicted(m, p->predicted));
    HVT_TRY(
        hvt_device_download(p->opts.dev, p->labels, b->labels.data, (size_t)b->count * sizeof *p->labels));
    for (int i = 0; i < b->count; i++) {
        const float *logits = p->logits + (size_t)i * p->outputs;
        uint32_t slot = b->ids[i] / (uint32_t)p->ranks - p->first;

        HVT_CHECK(b->ids[i] % (uint32_t)p->ranks == (uint32_t)p->rank && slot < (uint32_t)p->opts.batch,
                  E_ARG, "image %u comes in a batch of rank %d that begins with its number %u", b->ids[i],
                  p->rank, p->first);
        hvt__prediction *row = row_of(p, p->mine, slot);

        row->id = b->ids[i];
        row->there = !hvt_loader_damaged(loader, b->ids[i]);
        row->label = p->labels[i];
        if (!pixels)
            hvt__predict(logits, p->opts.classes, row);
        if (*p->opts.masks && row->there)
            HVT_TRY(write_mask(p, i, row->id));
        if (*p->opts.npy)
            memcpy(row + 1, logits, p->outputs * sizeof *logits);
    }
    return HVT_OK;
}

static hvt_status write_row(hvt__predictions *p, hvt__prediction *row)
{
    float *logits = (float *)(void *)(row + 1);
    const hvt__table table = {p->opts.set, p->opts.classes, p->opts.names};

    if (p->csv.file)
        HVT_TRY(hvt__csv_put(&p->csv, &table, row));
    if (!p->npy.file)
        return HVT_OK;
    for (size_t c = 0; c < p->outputs && !row->there; c++)
        logits[c] = NAN;
    return hvt__output_put(&p->npy, logits, p->outputs * sizeof *logits);
}

/* Writes the images of all ranks' slots [first, first + n), which are in p->all. */
static hvt_status write_span(hvt__predictions *p, uint32_t first, int n)
{
    for (int i = 0; i < n; i++)
        for (int r = 0; r < p->ranks; r++) {
            hvt__prediction *row = row_of(p, p->all, (size_t)r * (size_t)n + (size_t)i);
            uint64_t id = ((uint64_t)first + (uint64_t)i) * (uint64_t)p->ranks + (uint64_t)r;

            if (id >= p->count)
                return HVT_OK;
            row->id = (uint32_t)id;
            HVT_TRY(write_row(p, row));
        }
    return HVT_OK;
}

/* Gathers all ranks' batches, span by span; a failure of rank 0 is kept until the ranks agree again. */
static hvt_status gather(hvt__predictions *p)
{
    for (int at = 0; at < p->opts.batch; at += p->chunk) {
        int n = p->opts.batch - at < p->chunk ? p->opts.batch - at : p->chunk;

        HVT_TRY(
            hvt_world_gather(p->opts.world, p->mine + (size_t)at * p->row, (size_t)n * p->row, p->all, 0));
        if (p->rank || p->failed)
            continue;
        p->failed = write_span(p, p->first + (uint32_t)at, n);
        if (p->failed)
            hvt__error_take(&p->why);
    }
    return HVT_OK;
}

/* Agrees on s, or on an earlier failure. */
static hvt_status agree(hvt__predictions *p, hvt_status s)
{
    if (p->failed) {
        hvt__error_put(&p->why);
        s = p->failed;
    }
    return hvt_world_agree(p->opts.world, s);
}

hvt_status hvt__predictions_add(hvt__predictions *p, hvt_model *m, hvt_loader *loader, const hvt_batch *b,
                                hvt_status s)
{
    HVT_TRY(agree(p, s ? s : fill(p, m, loader, b)));
    HVT_TRY(gather(p));
    p->first += (uint32_t)p->opts.batch;
    return HVT_OK;
}

/* Completes both files before it renames the first, so that a full disk leaves both or none. */
static hvt_status commit(hvt__predictions *p)
{
    bool csv = p->csv.file, npy = p->npy.file;

    if (csv)
        HVT_TRY(hvt__output_finish(&p->csv));
    if (npy)
        HVT_TRY(hvt__output_finish(&p->npy));
    if (csv)
        HVT_TRY(hvt__output_replace(&p->csv));
    return npy ? hvt__output_replace(&p->npy) : HVT_OK;
}

hvt_status hvt__predictions_end(hvt__predictions *p)
{
    return agree(p, p->failed ? HVT_OK : commit(p));
}
