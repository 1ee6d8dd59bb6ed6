/*
 * NumPy arrays: {train,test}_images.npy and {train,test}_labels.npy.
 *
 * Images are uint8, float32 or float64, [N,H,W,C], [N,C,H,W] or [N,H,W] (one channel). The axis of channels
 * is the one with 1 to 3 values; if both the second and the last axis qualify, the file is refused. Floats
 * are used as they are and must be finite; float64 is rounded to float32. Labels are integers from 0 on or
 * bool, [N] or [N,1]; the largest label gives the number of classes, unless the options give more. Floats,
 * [N] or [N,K], are targets, and floats [N,H,W] or [N,C,H,W] are images as targets. Labels of uint8 [N,H,W]
 * are masks. A test split without labels is unlabelled. Values may be big endian. Images in Fortran order are
 * scattered over the whole file, so they are converted into memory at open.
 */
#include "npy.h"

#include <endian.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

enum { PART = 1 << 14 /* bytes of a file that are read at once */ };

typedef struct npy {
    hvt__data_file images;
    hvt__npy form;                       /* of images */
    uint8_t *memory;                     /* the data in C order; NULL: the file is in C order */
    bool planes;                         /* [N,C,H,W] */
    size_t h, w, c;                      /* of an image */
    uint32_t count;                      /* images */
    int32_t *labels;                     /* [count]; NULL: none */
    float *targets;                      /* [count,ntargets]; NULL: none */
    size_t ntargets, target_h, target_w; /* target_h 0: targets are vectors */
    hvt__data_file masks;                /* fd -1: none */
    hvt__npy mask_form;
} npy;

static void close_npy(void *ctx)
{
    npy *d = ctx;

    hvt__data_close(&d->images);
    hvt__data_close(&d->masks);
    free(d->memory);
    free(d->targets);
    free(d->labels);
    free(d);
}

/* ---- images ---- */

static double float_at(const uint8_t *from, const hvt__npy *form)
{
    uint32_t half;
    uint64_t whole;
    float single;
    double twice;

    if (form->size == sizeof single) {
        memcpy(&half, from, sizeof half);
        half = form->big ? be32toh(half) : le32toh(half);
        memcpy(&single, &half, sizeof single);
        return (double)single;
    }
    memcpy(&whole, from, sizeof whole);
    whole = form->big ? be64toh(whole) : le64toh(whole);
    memcpy(&twice, &whole, sizeof twice);
    return twice;
}

/* Returns the index in C order of value i of an array in Fortran order. */
static uint64_t place_of(const hvt__npy *form, uint64_t i)
{
    uint64_t at = 0, step = form->bytes / (uint64_t)form->size;

    for (int k = 0; k < form->dims; k++) { /* the first index runs slowest in C order */
        step /= form->shape[k];
        at += i % form->shape[k] * step;
        i /= form->shape[k];
    }
    return at;
}

/* Converts all data of a file from Fortran to C order; *ret_data is malloc'ed. */
static hvt_status convert(const hvt__data_file *f, const hvt__npy *form, uint8_t **ret_data)
{
    const uint64_t size = (uint64_t)form->size, all = form->bytes / size;
    uint8_t part[PART], *data = malloc(form->bytes + 1);
    hvt_status s = HVT_OK;

    HVT_CHECK(data, E_MEM,
              "%s is in Fortran order: no memory to convert its %" PRIu64
              " bytes; np.save(FILE, np.ascontiguousarray(np.load(FILE))) does it once",
              f->path, form->bytes);
    for (uint64_t first = 0; first < all && s == HVT_OK;) {
        size_t left = (size_t)(all - first), n = left < PART / size ? left : PART / size;

        s = hvt__data_read(f, form->header + first * size, n * size, part,
                           (hvt__data_unit){"value", first, all});
        for (size_t i = 0; i < n && s == HVT_OK; i++)
            memcpy(data + place_of(form, first + i) * size, part + i * size, size);
        first += n;
    }
    if (s == HVT_OK)
        *ret_data = data;
    else
        free(data);
    return s;
}

/* Reads bytes of a file's data in C order, from `at` on; from `memory` if the file has another order. */
static hvt_status read_data(const hvt__data_file *f, const hvt__npy *form, const uint8_t *memory, uint64_t at,
                            size_t bytes, void *ret_bytes, hvt__data_unit unit)
{
    if (!memory)
        return hvt__data_read(f, form->header + at, bytes, ret_bytes, unit);
    memcpy(ret_bytes, memory + at, bytes);
    return HVT_OK;
}

/* Writes values first ... first + n - 1 of an image, given in the file's order, to their places in
 * [h,w,c]. */
static hvt_status put_values(const npy *d, uint32_t index, size_t first, size_t n, const uint8_t *from,
                             void *ret_pixels)
{
    size_t area = d->h * d->w, size = (size_t)d->form.size;
    size_t step = d->planes ? d->c : 1, end = d->planes ? area : SIZE_MAX; /* output step; values per plane */
    size_t channel = d->planes ? first / area : 0, pixel = d->planes ? first % area : first;

    for (size_t i = 0; i < n; i++, pixel++) {
        if (pixel == end) {
            pixel = 0;
            channel++;
        }
        size_t to = pixel * step + channel;
        if (size == 1) {
            ((uint8_t *)ret_pixels)[to] = from[i];
            continue;
        }
        double value = float_at(from + i * size, &d->form);
        HVT_CHECK(fabs(value) <= FLT_MAX, E_FORMAT,
                  "%s, image %u: value %zu is %g, expected a finite float32", d->images.path, index,
                  first + i, value);
        ((float *)ret_pixels)[to] = (float)value;
    }
    return HVT_OK;
}

static hvt_status read_pixels(const npy *d, uint32_t index, void *ret_pixels)
{
    size_t size = (size_t)d->form.size, values = d->h * d->w * d->c;
    uint64_t at = (uint64_t)index * values * size;
    hvt__data_unit unit = {"image", index, d->count};
    uint8_t part[PART];

    if (size == 1 && !d->planes)
        return read_data(&d->images, &d->form, d->memory, at, values, ret_pixels, unit);
    for (size_t first = 0; first < values;) {
        size_t left = values - first, n = left < PART / size ? left : PART / size;
        HVT_TRY(read_data(&d->images, &d->form, d->memory, at + first * size, n * size, part, unit));
        HVT_TRY(put_values(d, index, first, n, part, ret_pixels));
        first += n;
    }
    return HVT_OK;
}

static int label_npy(void *ctx, uint32_t index)
{
    const npy *d = ctx;

    return d->labels ? d->labels[index] : -1;
}

static hvt_status get_npy(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const npy *d = ctx;

    *ret_label = label_npy(ctx, index);
    return read_pixels(d, index, ret_pixels);
}

static hvt_status read_npy(void *ctx, uint32_t index, hvt_record *r)
{
    const npy *d = ctx;

    HVT_TRY(hvt_record_reserve(r, d->h * d->w * d->c * sizeof(float)));
    r->encoding = HVT_IMAGE_F32;
    r->height = (int)d->h;
    r->width = (int)d->w;
    r->label = label_npy(ctx, index);
    return read_pixels(d, index, r->data);
}

/* Finds the axes of channels, height and width. */
static hvt_status find_axes(npy *d)
{
    const char *path = d->images.path;
    const uint64_t *shape = d->form.shape;
    bool first, last;
    char text[100];

    HVT_CHECK(d->form.dims == 3 || d->form.dims == 4, E_FORMAT,
              "%s has %d dimensions, expected [N,H,W,C], [N,C,H,W] or [N,H,W]", path, d->form.dims);
    first = d->form.dims == 4 && shape[1] >= 1 && shape[1] <= 3;
    last = d->form.dims == 3 || (shape[3] >= 1 && shape[3] <= 3);
    snprintf(text, sizeof text, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, shape[0], shape[1], shape[2],
             d->form.dims == 3 ? 1 : shape[3]);
    HVT_CHECK(first || last, E_FORMAT,
              "%s has the shape [%s], expected [N,H,W,C] or [N,C,H,W] with 1 to 3 channels", path, text);
    HVT_CHECK(
        !first || !last, E_FORMAT,
        "%s has the shape [%s], which may be [N,H,W,C] or [N,C,H,W]: pad the images to more than 3 rows "
        "and columns",
        path, text);
    d->planes = first;
    for (int i = 0; i < d->form.dims; i++) /* so that sizes fit an int */
        HVT_CHECK(shape[i] >= 1 && shape[i] <= (i ? HVT_SIDE_MAX : UINT32_MAX), E_FORMAT,
                  "%s has the shape [%s], expected 1 to %u images and sides of 1 to %d", path, text,
                  UINT32_MAX, HVT_SIDE_MAX);
    d->count = (uint32_t)shape[0];
    d->h = (size_t)shape[first ? 2 : 1];
    d->w = (size_t)shape[first ? 3 : 2];
    d->c = first ? (size_t)shape[1] : d->form.dims == 3 ? 1 : (size_t)shape[3];
    return HVT_OK;
}

static hvt_status open_images(npy *d, const char *dir, const char *split)
{
    HVT_TRY(hvt__data_open(&d->images, "%s/%s_images.npy", dir, split));
    HVT_TRY(hvt__npy_open(&d->images, &d->form));
    HVT_CHECK((d->form.kind == 'u' && d->form.size == 1) ||
                  (d->form.kind == 'f' && (d->form.size == 4 || d->form.size == 8)),
              E_FORMAT,
              "%s holds '%s', expected uint8, float32 or float64: np.save(FILE, np.load(FILE).astype(np.%s))",
              d->images.path, d->form.type,
              d->form.kind == 'f'   ? "float32"
              : d->form.kind == 'b' ? "uint8) * 255"
                                    : "uint8");
    HVT_TRY(find_axes(d));
    HVT_TRY(hvt__npy_check_size(&d->images, &d->form));
    return d->form.fortran ? convert(&d->images, &d->form, &d->memory) : HVT_OK;
}

/* ---- labels ---- */

/* Reads an integer of the file; UINT64_MAX if it is negative. */
static uint64_t integer_at(const uint8_t *from, const hvt__npy *form)
{
    uint64_t value = 0;

    for (int i = form->size; i-- > 0;)
        value = value << 8 | from[form->big ? form->size - 1 - i : i];
    return form->kind == 'i' && value >> (8 * form->size - 1) ? UINT64_MAX : value;
}

static hvt_status read_labels(npy *d, const hvt__data_file *f, const hvt__npy *form, int *ret_classes)
{
    size_t size = (size_t)form->size;
    uint8_t part[PART];

    for (uint32_t first = 0; first < d->count;) {
        size_t left = d->count - first, n = left < PART / size ? left : PART / size;
        HVT_TRY(hvt__data_read(f, form->header + first * size, n * size, part,
                               (hvt__data_unit){"label", first, d->count}));
        for (size_t i = 0; i < n; i++) {
            uint64_t label = integer_at(part + i * size, form);
            HVT_CHECK(label < INT_MAX, E_FORMAT, "%s: label %zu is %s, expected 0 to %d", f->path, first + i,
                      label == UINT64_MAX ? "negative" : "too large", INT_MAX - 1);
            d->labels[first + i] = (int32_t)label;
            if ((int)label >= *ret_classes)
                *ret_classes = (int)label + 1;
        }
        first += (uint32_t)n;
    }
    return HVT_OK;
}

static hvt_status get_targets(void *ctx, uint32_t index, float *ret_targets)
{
    const npy *d = ctx;

    memcpy(ret_targets, d->targets + index * d->ntargets, d->ntargets * sizeof *ret_targets);
    return HVT_OK;
}

static hvt_status read_targets(npy *d, const hvt__data_file *f, const hvt__npy *form)
{
    size_t size = (size_t)form->size, all = d->count * d->ntargets;
    uint8_t part[PART], *memory = NULL;
    hvt_status s = HVT_OK;

    if (form->fortran)
        HVT_TRY(convert(f, form, &memory));

    for (size_t first = 0; first < all;) {
        size_t left = all - first, n = left < PART / size ? left : PART / size;
        HVT_TRY_OR(done, read_data(f, form, memory, first * size, n * size, part,
                                   (hvt__data_unit){"label", (uint32_t)(first / d->ntargets), d->count}));
        for (size_t i = 0; i < n; i++) {
            double v = float_at(part + i * size, form);
            HVT_CHECK_OR(done, fabs(v) <= FLT_MAX, E_FORMAT,
                         "%s: target %zu of image %zu is %g, expected a finite number", f->path,
                         (first + i) % d->ntargets, (first + i) / d->ntargets, v);
            d->targets[first + i] = (float)v;
        }
        first += n;
    }
done:
    free(memory);
    return s;
}

/* Opens float labels as targets, [N] or [N,K]. */
static hvt_status open_targets(npy *d, const hvt__data_file *f, const hvt__npy *form)
{
    enum { MOST = 1 << 16 };
    const uint64_t *shape = form->shape;

    HVT_CHECK(form->size == 4 || form->size == 8, E_FORMAT, "%s holds '%s', expected float32 or float64",
              f->path, form->type);
    HVT_CHECK(form->dims >= 1 && form->dims <= 4, E_FORMAT,
              "%s has %d dimensions, expected targets of the shape [N], [N,K], [N,H,W] or [N,C,H,W]", f->path,
              form->dims);
    d->ntargets = 1;
    for (int i = 1; i < form->dims; i++) {
        HVT_CHECK(shape[i] >= 1 && shape[i] <= MOST && d->ntargets * shape[i] <= INT_MAX, E_FORMAT,
                  "%s: dimension %d of the targets is %" PRIu64 ", expected 1 to %d", f->path, i, shape[i],
                  MOST);
        d->ntargets *= shape[i];
    }
    d->target_h = form->dims > 2 ? (size_t)shape[form->dims - 2] : 0;
    d->target_w = form->dims > 2 ? (size_t)shape[form->dims - 1] : 0;
    HVT_CHECK(form->shape[0] == d->count, E_FORMAT,
              "%s holds targets of %" PRIu64 " images, but %s %u images", f->path, form->shape[0],
              d->images.path, d->count);
    HVT_TRY(hvt__npy_check_size(f, form));
    d->targets = malloc(d->count * d->ntargets * sizeof *d->targets);
    HVT_CHECK(d->targets, E_MEM, "no memory for %zu targets of each of %u images", d->ntargets, d->count);
    return read_targets(d, f, form);
}

/* ---- masks ---- */

static hvt_status read_mask(void *ctx, uint32_t index, hvt_record *r)
{
    const npy *d = ctx;
    const size_t bytes = d->h * d->w;

    HVT_TRY(hvt_record_reserve(r, bytes));
    r->encoding = HVT_IMAGE_U8;
    r->height = (int)d->h;
    r->width = (int)d->w;
    return hvt__data_read(&d->masks, d->mask_form.header + index * bytes, bytes, r->data,
                          (hvt__data_unit){"mask", index, d->count});
}

static hvt_status name_mask(void *ctx, uint32_t index, char *ret_name, size_t room)
{
    const npy *d = ctx;

    snprintf(ret_name, room, "%s, mask %u", d->masks.path, index);
    return HVT_OK;
}

/* Opens masks. The number of classes comes from the options or, without it, from the largest label. */
static hvt_status open_masks(npy *d, const hvt__data_file *f, const hvt__npy *form, int *ret_classes)
{
    const int given = *ret_classes;
    hvt_record r = {0};
    hvt_status s = HVT_OK;

    HVT_CHECK(form->shape[0] == d->count && form->shape[1] == d->h && form->shape[2] == d->w, E_FORMAT,
              "%s has the shape [%" PRIu64 ",%" PRIu64 ",%" PRIu64 "], expected a mask for each image of %s, "
              "[%u,%zu,%zu]",
              f->path, form->shape[0], form->shape[1], form->shape[2], d->images.path, d->count, d->h, d->w);
    HVT_CHECK(!form->fortran, E_FORMAT,
              "%s is in Fortran order: np.save(FILE, np.ascontiguousarray(np.load(FILE)))", f->path);
    HVT_TRY(hvt__npy_check_size(f, form));
    HVT_TRY(hvt__data_open(&d->masks, "%s", f->path));
    d->mask_form = *form;
    for (uint32_t i = 0; i < d->count && given == 0 && s == HVT_OK; i++) {
        s = read_mask(d, i, &r);
        for (size_t p = 0; p < d->h * d->w && s == HVT_OK; p++)
            if (r.data[p] != HVT_IGNORED && r.data[p] >= *ret_classes)
                *ret_classes = r.data[p] + 1;
    }
    free(r.data);
    return s;
}

static hvt_status check_labels(const npy *d, const hvt__data_file *f, const hvt__npy *form)
{
    bool table = form->dims == 2 && form->shape[0] == d->count && form->shape[1] > 1;
    bool row = form->dims == 2 && form->shape[0] == 1 && form->shape[1] == d->count && d->count > 1;

    HVT_CHECK((form->kind == 'i' || form->kind == 'u' || form->kind == 'b') && form->size <= 8, E_FORMAT,
              "%s holds '%s', expected integers: np.save(FILE, np.load(FILE).astype(np.int64))", f->path,
              form->type);
    HVT_CHECK(!table, E_FORMAT,
              "%s has %" PRIu64 " numbers for each image, expected one label; if they are one-hot: "
              "np.save(FILE, np.load(FILE).argmax(1))",
              f->path, form->shape[1]);
    HVT_CHECK(!row, E_FORMAT,
              "%s is one row of %u labels, expected [N] or [N,1]: np.save(FILE, np.load(FILE).ravel())",
              f->path, d->count);
    HVT_CHECK(form->dims == 1 || (form->dims == 2 && form->shape[1] == 1), E_FORMAT,
              "%s has %d dimensions, expected one label for each image, [N] or [N,1]", f->path, form->dims);
    HVT_CHECK(form->shape[0] == d->count, E_FORMAT, "%s holds %" PRIu64 " labels, but %s %u images", f->path,
              form->shape[0], d->images.path, d->count);
    return HVT_OK;
}

static hvt_status open_labels(npy *d, const char *dir, const char *split, int *ret_classes)
{
    hvt__data_file f;
    hvt__npy form;
    hvt_status s;

    HVT_TRY(hvt__data_open(&f, "%s/%s_labels.npy", dir, split));
    HVT_TRY_OR(done, hvt__npy_open(&f, &form));
    if (form.kind == 'f') {
        s = open_targets(d, &f, &form);
        *ret_classes = 0;
        goto done;
    }
    if (form.dims == 3 && form.kind == 'u' && form.size == 1) {
        s = open_masks(d, &f, &form, ret_classes);
        goto done;
    }
    HVT_TRY_OR(done, check_labels(d, &f, &form));
    HVT_TRY_OR(done, hvt__npy_check_size(&f, &form));
    d->labels = malloc(d->count * sizeof *d->labels);
    HVT_CHECK_OR(done, d->labels, E_MEM, "no memory for %u labels", d->count);
    HVT_TRY_OR(done, read_labels(d, &f, &form, ret_classes));
done:
    hvt__data_close(&f);
    return s;
}

/* ---- the data set ---- */

static bool is_missing(const char *dir, const char *name)
{
    char path[PATH_MAX];

    return hvt__path(path, "%s/%s", dir, name) == HVT_OK && access(path, F_OK) != 0 && errno == ENOENT;
}

/* Opens images and labels of a split; returns the labels' number of classes. */
static hvt_status open_split(npy *d, const hvt_dataset_opts *opts, int *ret_classes)
{
    const char *split = opts->train ? "train" : "test";

    HVT_TRY(open_images(d, opts->dir, split));
    if (opts->reconstruct || (!opts->train && is_missing(opts->dir, "test_labels.npy")))
        return HVT_OK;
    *ret_classes = opts->classes;
    return open_labels(d, opts->dir, split, ret_classes);
}

static uint64_t fingerprint(const npy *d)
{
    uint64_t shape[] = {d->count, d->h, d->w, d->c, (uint64_t)d->form.size};
    uint64_t h = hvt__hash(HVT_HASH_INIT, shape, sizeof shape);

    if (d->targets)
        return hvt__hash(h, d->targets, d->count * d->ntargets * sizeof *d->targets);
    return d->labels ? hvt__hash(h, d->labels, d->count * sizeof *d->labels) : h;
}

static hvt_status open_npy(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    hvt_source source = {.info = {"npy"}, .close = close_npy};
    npy *d;
    hvt_status s;

    HVT_CHECK(opts->dir && *opts->dir, E_ARG, "data set npy needs --data-dir, the folder with %s_images.npy",
              opts->train ? "train" : "test");
    d = calloc(1, sizeof *d);
    HVT_CHECK(d, E_MEM, "no memory for data set 'npy' (%zu bytes)", sizeof *d);
    d->images.fd = d->masks.fd = -1;
    HVT_TRY_OR(fail, open_split(d, opts, &source.info.classes));
    source.info.count = d->count;
    source.info.height = (int)d->h;
    source.info.width = (int)d->w;
    source.info.channels = (int)d->c;
    source.info.fingerprint = fingerprint(d);
    source.info.type = d->form.kind == 'f' ? HVT_F32 : HVT_U8;
    source.info.unlabelled = !d->labels;
    source.info.targets = (int)d->ntargets;
    source.info.target_h = (int)d->target_h;
    source.info.target_w = (int)d->target_w;
    source.info.masks = d->masks.fd >= 0;
    source.mask = source.info.masks ? read_mask : NULL;
    source.mask_name = source.info.masks ? name_mask : NULL;
    source.target = d->targets ? get_targets : NULL;
    source.label = label_npy;
    if (d->form.kind == 'f')
        source.read = read_npy;
    else
        source.get = get_npy;
    source.ctx = d;
    *ret_source = source;
    return HVT_OK;

fail:
    close_npy(d);
    return s;
}

const hvt_format hvt_format_npy = {"npy", open_npy};
