/*
 * Fetching an image. If images are bytes of one size and neither resampled nor cropped, the source copies
 * them to their destination; all others go through the fetching thread's record, and pictures through its
 * decoder.
 *
 * Draws are keyed by (seed, epoch, sample, operation). An image is damaged if its source or decoder says
 * E_FORMAT or E_UNSUPPORTED. The next image takes its place, as if the sampler had chosen that one. This
 * depends only on the set's files, so ranks and workers need not communicate. If each image must count once,
 * a damaged one becomes black instead. A picture is read to the end of its file the first time, so that the
 * verdict does not depend on its box; later the rest behind the box is not read.
 */
#include "fetch.h"
#include "data_impl.h"
#include "image/image_impl.h"
#include "mask.h"

#include <math.h>

/* Operations that draw. The numbers differ from those of the model's initialisation and hvt__view_rrc(),
 * which use the same seed. */
enum { DRAW_CROP_Y = 0x0d00, DRAW_CROP_X, DRAW_MIRROR };

/* A read from the page cache takes tens of microseconds. */
static const double slow_read = 300e-6; /* s */
enum { SLOW = 100 /* images */ };

typedef enum part { IDLE, READING, DECODING } part;

struct hvt__fetcher {
    hvt_record record;
    hvt__picture *picture; /* NULL: no pictures */
    uint8_t
        *work[2]; /* the image between the source and its place in the batch; NULL: it goes there directly */

    hvt_record mask, plane; /* a mask's file; its pixels, or those of an image as target */
    hvt__view view;         /* of the current image */
    int height, width;      /* size of its picture */

    int slow; /* how many more images to announce, because a read took long */

    /* read by other threads */
    _Atomic int part;
    _Atomic uint32_t index;
    _Atomic double since, read, decode, resample; /* since: hvt__now(); resample: a part of decode */
    _Atomic uint64_t images;
};

#define GET(v)    atomic_load_explicit(&(v), memory_order_relaxed)
#define PUT(v, x) atomic_store_explicit(&(v), (x), memory_order_relaxed)

static hvt_status check_rrc(const hvt_rrc *r)
{
    HVT_CHECK(!r->on || (r->least > 0 && r->least <= r->most && r->most <= 1), E_ARG,
              "random boxes of %g to %g of an image's area, expected 0 < least <= most <= 1",
              (double)r->least, (double)r->most);
    HVT_CHECK(!r->on || (r->narrow > 0 && r->narrow <= r->wide && isfinite(r->wide)), E_ARG,
              "random boxes of ratio %g to %g, expected 0 < narrow <= wide", (double)r->narrow,
              (double)r->wide);
    return HVT_OK;
}

bool hvt_loader_copies(const hvt_dataset_info *data, const hvt_loader_opts *o)
{
    if (!data || !o || !data->height || o->rrc.on || o->resize)
        return false;
    return (!o->height || o->height == data->height) && (!o->width || o->width == data->width);
}

int hvt_loader_channels(const hvt_dataset_info *data, const hvt_loader_opts *o)
{
    return !data || !o ? 0 : o->grey ? 1 : data->channels;
}

hvt_status hvt__fetch_size(const hvt_dataset_info *info, const hvt_loader_opts *o, int *ret_h, int *ret_w)
{
    int h = o->height ? o->height : info->height, w = o->width ? o->width : info->width;

    HVT_CHECK(!o->height == !o->width && o->height >= 0 && o->width >= 0 && h <= HVT_SIDE_MAX &&
                  w <= HVT_SIDE_MAX,
              E_ARG, "batches of %d x %d pixels, expected sides of 1 to %d, or 0 x 0 for the data's",
              o->height, o->width, HVT_SIDE_MAX);
    HVT_CHECK(h, E_ARG, "the images of data set '%s' differ in size: set the height and width of batches",
              info->name);
    HVT_CHECK(!o->resize || (o->resize >= h && o->resize >= w), E_ARG,
              "resizing to a shorter side of %d pixels leaves too few for a crop of %d x %d", o->resize, h,
              w);
    HVT_TRY(check_rrc(&o->rrc));
    HVT_TRY(hvt__edits_check(&o->edits));
    HVT_CHECK(o->erase >= 0 && o->erase <= 1, E_ARG, "boxes are erased with probability %g, expected 0 to 1",
              (double)o->erase);
    HVT_CHECK(
        !hvt__edits_any(&o->edits) ||
            (info->type == HVT_U8 && (o->grey || info->channels == 1 || info->channels == 3)),
        E_UNSUPPORTED,
        "the images of data set '%s' have %d channel%s in %s: colours and shapes can be changed only in u8 "
        "images of one or three channels",
        info->name, info->channels, info->channels > 1 ? "s" : "", hvt_dtype_name(info->type));
    HVT_CHECK(!o->grey || info->channels != 1, E_UNSUPPORTED,
              "the images of data set '%s' have one channel: they are grey already", info->name);
    if (!hvt_loader_copies(info, o) || o->grey)
        HVT_CHECK(info->type == HVT_U8 && info->channels == 3, E_UNSUPPORTED,
                  "the images of data set '%s' have %d channel%s of %d x %d in %s: only u8 images of three "
                  "channels can be resized, cropped (to %d x %d) or made grey",
                  info->name, info->channels, info->channels > 1 ? "s" : "", info->height, info->width,
                  hvt_dtype_name(info->type), h, w);
    *ret_h = h;
    *ret_w = w;
    return HVT_OK;
}

hvt_status hvt__fetch_open(const hvt_dataset *set, const hvt_loader_opts *opts, hvt__fetch *ret_fetch)
{
    const hvt_dataset_info *info = hvt_dataset_describe(set);
    hvt__fetch f = {.set = set, .opts = opts, .info = *info};
    size_t plane;

    HVT_TRY(hvt__fetch_size(info, opts, &f.info.height, &f.info.width));
    HVT_CHECK(opts->skip_damaged >= 0, E_ARG, "%d damaged images to skip, expected 0 or more",
              opts->skip_damaged);
    f.info.channels = hvt_loader_channels(info, opts);
    plane = (size_t)f.info.height * (size_t)f.info.width * hvt_dtype_size(info->type);
    f.source_bytes = plane * (size_t)info->channels;
    f.image_bytes = plane * (size_t)f.info.channels;
    f.mask_bytes = info->masks ? (size_t)f.info.height * (size_t)f.info.width : 0;
    f.pictures = !hvt_loader_copies(info, opts);
    f.edits = hvt__edits_any(&opts->edits) || (opts->crop && opts->reflect);
    f.reads = f.pictures || !hvt__dataset_has_get(set);
    f.damaged = calloc((size_t)opts->skip_damaged + 1, sizeof *f.damaged);
    f.sound = f.reads ? calloc(info->count / 8 + 1, 1) : NULL;
    if (!f.damaged || (f.reads && !f.sound)) {
        free(f.damaged);
        free((void *)f.sound);
        return HVT_FAIL(E_MEM, "no memory to remember which of %u images are damaged", info->count);
    }
    *ret_fetch = f;
    pthread_mutex_init(&ret_fetch->lock, NULL);
    return HVT_OK;
}

void hvt__fetch_close(hvt__fetch *f)
{
    if (!f->damaged)
        return;
    pthread_mutex_destroy(&f->lock);
    free(f->damaged);
    free((void *)f->sound);
    f->damaged = NULL;
}

hvt_status hvt__fetcher_open(const hvt__fetch *f, hvt__fetcher **ret_fetcher)
{
    hvt__fetcher *w = calloc(1, sizeof *w);
    hvt_status s;

    HVT_CHECK(w, E_MEM, "no memory to fetch images");
    if (f->reads)
        HVT_TRY_OR(fail, hvt__picture_open(&w->picture));
    if (f->reads && f->opts->exif)
        hvt__picture_turn(w->picture);
    for (int i = 0; i < 2 && (f->edits || f->opts->grey); i++) {
        w->work[i] = malloc(f->source_bytes + HVT__ROW_SLACK);
        HVT_CHECK_OR(fail, w->work[i], E_MEM, "no memory for an image of %zu bytes", f->source_bytes);
    }
    *ret_fetcher = w;
    return HVT_OK;
fail:
    hvt__fetcher_close(&w);
    return s;
}

void hvt__fetcher_close(hvt__fetcher **fetcher)
{
    hvt__fetcher *w = *fetcher;

    if (!w)
        return;
    hvt__picture_close(&w->picture);
    free(w->work[0]);
    free(w->work[1]);
    free(w->record.data);
    free(w->mask.data);
    free(w->plane.data);
    free(w);
    *fetcher = NULL;
}

/* Begins the next part of the work, and counts the time of the last one. */
static void enter(hvt__fetcher *w, part to)
{
    double now = hvt__now(), took = now - GET(w->since);

    if (GET(w->part) == READING) {
        PUT(w->read, GET(w->read) + took);
        w->slow = took > slow_read ? SLOW : w->slow - (w->slow > 0);
    } else if (GET(w->part) == DECODING)
        PUT(w->decode, GET(w->decode) + took);
    PUT(w->since, now);
    PUT(w->part, to);
}

static hvt_status decode(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, uint8_t *pixels)
{
    const hvt_loader_opts *o = f->opts;
    int out_h = f->info.height, out_w = f->info.width;
    _Atomic uint8_t *sound = &f->sound[m.index / 8];
    uint8_t bit = (uint8_t)(1 << m.index % 8);
    char path[PATH_MAX];

    HVT_TRY(hvt_dataset_name(f->set, m.index, path, sizeof path));
    HVT_TRY(hvt__picture_begin(w->picture, &w->record, path, &w->height, &w->width));
    w->view = o->rrc.on ? hvt__view_rrc(w->height, w->width, &o->rrc, m.seed, m.epoch, m.index, out_h, out_w)
                        : hvt__view_centre(w->height, w->width, o->resize, out_h, out_w);
    if (GET(*sound) & bit)
        hvt__picture_trust(w->picture);
    HVT_TRY(hvt__picture_finish(w->picture, &w->view, pixels));
    atomic_fetch_or_explicit(sound, bit, memory_order_relaxed);
    PUT(w->resample, hvt__picture_resampling(w->picture));
    return HVT_OK;
}

static hvt_status read_image(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, const hvt__target *to)
{
    HVT_TRY(hvt_dataset_read(f->set, m.index, &w->record));
    *to->label = w->record.label;
    if (!f->pictures && w->record.encoding != HVT_IMAGE_FILE) {
        memcpy(to->pixels, w->record.data, f->source_bytes);
        return HVT_OK;
    }
    enter(w, DECODING);
    return decode(f, w, m, to->pixels);
}

/* Draws the image's crop and mirroring. */
static void draw(const hvt__fetch *f, hvt__image m, int8_t ret_draw[3])
{
    uint64_t e = (uint64_t)m.epoch;
    int crop = f->opts->crop;
    uint32_t places = 2 * (uint32_t)crop + 1;

    ret_draw[0] = (int8_t)((int)hvt__below(hvt__draw(m.seed, e, m.index, DRAW_CROP_Y), places) - crop);
    ret_draw[1] = (int8_t)((int)hvt__below(hvt__draw(m.seed, e, m.index, DRAW_CROP_X), places) - crop);
    if (f->opts->flip && f->opts->alternate)
        ret_draw[2] = (hvt__below(hvt__draw(m.seed, 0, m.index, DRAW_MIRROR), 2) + e) % 2 != 0;
    else
        ret_draw[2] = f->opts->flip && hvt__below(hvt__draw(m.seed, e, m.index, DRAW_MIRROR), 2);
}

/* Fetches the image as the set has it. */
static hvt_status fetch_image(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, const hvt__target *to)
{
    int label;

    if (f->reads)
        return read_image(f, w, m, to);
    HVT_TRY(hvt_dataset_get(f->set, m.index, to->pixels, &label));
    *to->label = label;
    return HVT_OK;
}

static void make_grey(const uint8_t *rgb, size_t pixels, uint8_t *ret_grey)
{
    for (size_t i = 0; i < pixels; i++, rgb += 3)
        ret_grey[i] = (uint8_t)((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >> 16);
}

/* Changes a decoded image in torchvision's order: grey, crop and mirroring, random operations. Copies the
 * result to ret_pixels. */
static void edit(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, uint8_t *ret_pixels)
{
    const hvt_loader_opts *o = f->opts;
    const int h = f->info.height, wide = f->info.width;
    hvt__edit edits[HVT__EDITS];
    int n = hvt__edits_draw(&o->edits, h, wide, m.seed, m.epoch, m.index, edits), at = 0;
    int8_t drawn[3];

    if (o->grey) {
        make_grey(w->work[0], f->image_bytes, w->work[1]);
        at = 1;
    }
    if (f->edits && (o->crop || o->flip)) {
        draw(f, m, drawn);
        hvt__shift(h, wide, f->image_bytes / ((size_t)h * (size_t)wide), 0, o->reflect, drawn, w->work[at],
                   w->work[1 - at]);
        at = 1 - at;
    }
    for (int i = 0; i < n; i++, at = 1 - at)
        hvt__enhance(&edits[i], h, wide, f->info.channels, w->work[at], w->work[1 - at]);
    memcpy(ret_pixels, w->work[at], f->image_bytes);
}

/* Fetches the mask of the image that was fetched last, with its view, crop and mirroring. */
static hvt_status fetch_mask(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, uint8_t *ret_mask)
{
    const hvt_loader_opts *o = f->opts;
    const int h = f->info.height, wide = f->info.width;
    const hvt_record *mask = &w->mask;
    char path[PATH_MAX];
    int8_t drawn[3];

    HVT_TRY(hvt_dataset_mask(f->set, m.index, &w->mask, path, sizeof path));
    if (w->mask.encoding == HVT_IMAGE_FILE) {
        HVT_TRY(hvt__mask_decode(&w->mask, path, &w->plane));
        mask = &w->plane;
    }
    HVT_CHECK(mask->height == w->height && mask->width == w->width, E_FORMAT,
              "%s has %d x %d pixels, but its picture has %d x %d", path, mask->height, mask->width,
              w->height, w->width);
    if (o->classes)
        HVT_TRY(hvt__mask_check(mask->data, mask->height, mask->width, o->classes, path));
    hvt__mask_view(mask->data, mask->width, &w->view, ret_mask);
    if (!o->crop && !o->flip)
        return HVT_OK;
    draw(f, m, drawn);
    HVT_TRY(hvt_record_reserve(&w->plane, f->mask_bytes));
    memcpy(w->plane.data, ret_mask, f->mask_bytes);
    hvt__shift(h, wide, 1, HVT_IGNORED, o->reflect, drawn, w->plane.data, ret_mask);
    return HVT_OK;
}

/* Fetches the targets of an image. Targets that are images take the image's crop and mirroring. */
static hvt_status fetch_targets(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, float *ret_targets)
{
    const hvt_dataset_info *i = &f->info;
    const size_t plane = (size_t)i->target_h * (size_t)i->target_w;
    int8_t drawn[3];

    HVT_TRY(hvt_dataset_targets(f->set, m.index, ret_targets));
    if (!plane || (!f->opts->crop && !f->opts->flip))
        return HVT_OK;
    draw(f, m, drawn);
    HVT_TRY(hvt_record_reserve(&w->plane, plane * sizeof *ret_targets));
    for (float *p = ret_targets; p < ret_targets + i->targets; p += plane) {
        memcpy(w->plane.data, p, plane * sizeof *p);
        hvt__shift(i->target_h, i->target_w, sizeof *p, 0, f->opts->reflect, drawn, w->plane.data, p);
    }
    return HVT_OK;
}

static hvt_status fetch_one(const hvt__fetch *f, hvt__fetcher *w, hvt__image m, const hvt__target *to)
{
    hvt__target whole = *to;

    if (to->draw)
        draw(f, m, to->draw);
    if (to->erased)
        hvt__erase_box(f->info.height, f->info.width, f->opts->erase, m.seed, m.epoch, m.index, to->erased);
    if (to->targets)
        HVT_TRY(fetch_targets(f, w, m, to->targets));
    if (w->work[0])
        whole.pixels = w->work[0];
    w->height = f->info.height;
    w->width = f->info.width;
    w->view = hvt__view_whole(w->height, w->width);
    HVT_TRY(fetch_image(f, w, m, &whole));
    if (to->mask)
        HVT_TRY(fetch_mask(f, w, m, to->mask));
    if (w->work[0])
        edit(f, w, m, to->pixels);
    return HVT_OK;
}

/* True if the image is in the list of damaged ones. Call with the lock held. */
static bool listed(const hvt__fetch *f, uint32_t index)
{
    for (int i = 0; i < GET(f->ndamaged); i++)
        if (f->damaged[i] == index)
            return true;
    return false;
}

bool hvt__fetch_damaged(hvt__fetch *f, uint32_t index)
{
    bool known;

    if (!GET(f->ndamaged))
        return false;
    pthread_mutex_lock(&f->lock);
    known = listed(f, index);
    pthread_mutex_unlock(&f->lock);
    return known;
}

/* Skips a damaged image after an error: counts and names it once. */
static hvt_status skip(hvt__fetch *f, uint32_t index, hvt_status s)
{
    int most = f->opts->skip_damaged, n;
    char line[2300];
    bool known;

    pthread_mutex_lock(&f->lock);
    known = listed(f, index);
    n = GET(f->ndamaged);
    if (!known && n < most) {
        f->damaged[n] = index;
        PUT(f->ndamaged, n + 1);
    }
    pthread_mutex_unlock(&f->lock);
    if (known)
        return HVT_OK;
    if (!most)
        return hvt__fail(s, __FILE__, __LINE__, "%s (--skip-damaged N skips up to N damaged images)",
                         hvt_last_error());
    if (n == most)
        return hvt__fail(s, __FILE__, __LINE__,
                         "%s; %d damaged image%s been skipped before, the limit of --skip-damaged",
                         hvt_last_error(), n, n > 1 ? "s have" : " has");
    if (!hvt__dataset_name_damaged(f->set, index))
        return HVT_OK;
    snprintf(line, sizeof line, "%s; skipped: %s (%d of at most %d damaged images%s)", hvt_last_error(),
             f->opts->blank_damaged ? "it counts as a black image, without a prediction"
                                    : "the next one takes its place",
             n + 1, most, hvt__dataset_is_shared(f->set) ? " of a rank" : "");
    hvt__log_always(HVT_LOG_WARN, line); /* any rank may have read it */
    return HVT_OK;
}

/* Fetches the image, or the first one after it that is not damaged. */
static hvt_status fetch_next_good(hvt__fetch *f, hvt__fetcher *w, hvt__image m, const hvt__target *to)
{
    uint32_t count = f->info.count;

    for (uint32_t tried = 0; tried < count; tried++, m.index = (m.index + 1) % count) {
        hvt_status s;

        if (hvt__fetch_damaged(f, m.index))
            continue;
        PUT(w->index, m.index);
        enter(w, READING);
        s = fetch_one(f, w, m, to);
        if (!hvt__is_damage(s))
            return s;
        HVT_TRY(skip(f, m.index, s));
    }
    return HVT_FAIL(E_FORMAT, "all %u images of data set '%s' are damaged", count, f->info.name);
}

/* Fetches the image, black if it is damaged. Fails if the source cannot even give its label. */
static hvt_status fetch_or_blank(hvt__fetch *f, hvt__fetcher *w, hvt__image m, const hvt__target *to)
{
    hvt_status s;

    PUT(w->index, m.index);
    enter(w, READING);
    s = fetch_one(f, w, m, to);
    if (!hvt__is_damage(s) || !f->reads || (w->record.label < 0 && !f->info.unlabelled))
        return s;
    HVT_TRY(skip(f, m.index, s));
    memset(to->pixels, 0, f->image_bytes);
    if (to->mask)
        memset(to->mask, HVT_IGNORED, f->mask_bytes);
    *to->label = w->record.label;
    return HVT_OK;
}

hvt_status hvt__fetch_image(hvt__fetch *f, hvt__fetcher *w, hvt__image m, const hvt__target *to)
{
    hvt_status s = f->opts->blank_damaged ? fetch_or_blank(f, w, m, to) : fetch_next_good(f, w, m, to);

    enter(w, IDLE);
    PUT(w->images, GET(w->images) + 1);
    hvt__progressed();
    return s;
}

void hvt__fetch_ahead(const hvt__fetch *f, hvt__fetcher *w, uint32_t index)
{
    if (w->slow)
        hvt__dataset_ahead(f->set, index);
}

void hvt__fetch_count(const hvt__fetch *f, hvt__fetcher *const w[], int n, hvt_loader_info *ret_info)
{
    ret_info->damaged += GET(f->ndamaged);
    for (int i = 0; i < n; i++) {
        ret_info->images += GET(w[i]->images);
        ret_info->read += GET(w[i]->read);
        ret_info->decode += GET(w[i]->decode) - GET(w[i]->resample);
        ret_info->resample += GET(w[i]->resample);
    }
}

void hvt__fetch_about(const hvt__fetch *f, hvt__fetcher *const w[], int n, char *ret_text, size_t room)
{
    const hvt__fetcher *oldest = NULL;
    char path[PATH_MAX];

    *ret_text = 0;
    for (int i = 0; i < n; i++)
        if (GET(w[i]->part) != IDLE && (!oldest || GET(w[i]->since) < GET(oldest->since)))
            oldest = w[i];
    if (oldest && hvt_dataset_name(f->set, GET(oldest->index), path, sizeof path) == HVT_OK)
        snprintf(ret_text, room, "%s %s", GET(oldest->part) == DECODING ? "decoding" : "reading", path);
}
