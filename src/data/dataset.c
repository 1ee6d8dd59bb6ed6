/*
 * The registry of data set formats and their common part: checks, the limit, the split of a training set, the
 * fingerprint.
 *
 * A data set is a source (count, shape, get or read, close) behind one set of checks, the same for built-in
 * formats and user-defined sources. Invariant: whatever a source does, an index passed to it is below its
 * count, and a label returned from here is below its classes, or -1 in a set without labels.
 */
#include "data_impl.h"
#include "image/image_impl.h"
#include "base/users.h"
#include "world/node.h"

#include <math.h>
#include <stdatomic.h>

struct hvt_dataset {
    hvt_source source;
    hvt_dataset_info info; /* the source's with split and limit applied; info.name is `name` */
    uint32_t *part;        /* [count] images' numbers in the source; NULL: all */
    int32_t *map;  /* [source.info.classes] the set's class for each class of the source; NULL: the same */
    int32_t *back; /* [info.classes] the inverse; -1: no class of the source */
    char name[64];
    hvt__users users;
    hvt__node named; /* a bit per damaged image that this node has named; no block: not shared */
};

static const hvt_format *const formats[] = {&hvt_format_synth, &hvt_format_cifar10, &hvt_format_cifar100,
                                            &hvt_format_stl10, &hvt_format_npy,     &hvt_format_tar,
                                            &hvt_format_folder};

static hvt_status check_size(const hvt_source *s, const char *name)
{
    const hvt_dataset_info *i = &s->info;
    bool any = s->read && i->height == 0 && i->width == 0;

    HVT_CHECK(any ||
                  (i->height >= 1 && i->height <= HVT_SIDE_MAX && i->width >= 1 && i->width <= HVT_SIDE_MAX),
              E_ARG, "data set '%s' has images of %d x %d pixels, expected sides of 1 to %d", name, i->height,
              i->width, HVT_SIDE_MAX);
    HVT_CHECK(i->channels >= 1 && i->channels <= 3, E_ARG,
              "data set '%s' has images of %d channels, expected 1 to 3", name, i->channels);
    HVT_CHECK(s->get || i->type == HVT_U8 || (i->type == HVT_F32 && !any), E_ARG,
              "data set '%s' has images in %s, expected u8, or f32 of one size", name,
              hvt_dtype_name(i->type));
    return HVT_OK;
}

static hvt_status check_source(const hvt_source *s, const char *name)
{
    const hvt_dataset_info *i = &s->info;
    bool named = i->classes == 1 && s->class_name && s->class_name(s->ctx, 0); /* one of a model's classes */

    HVT_CHECK(s->get || s->read, E_ARG, "data set '%s' has neither get() nor read()", name);
    HVT_CHECK(!s->get || !s->read, E_ARG, "data set '%s' has both get() and read(), expected one of them",
              name);
    HVT_CHECK(i->count > 0, E_ARG, "data set '%s' has 0 images, at least 1 is needed", name);
    HVT_CHECK(i->classes >= (named ? 1 : 2) || (i->unlabelled && i->classes >= 0), E_ARG,
              "data set '%s' has %d classes, at least 2 are needed", name, i->classes);
    HVT_CHECK(i->targets >= 0 && !i->targets == !s->target && (!i->targets || i->unlabelled), E_ARG,
              "data set '%s' has %d targets per image, %s target() and %s: expected none of these, or "
              "targets, target() and no labels",
              name, i->targets, s->target ? "a" : "no", i->unlabelled ? "no labels" : "labels");
    HVT_CHECK(!i->masks == !s->mask &&
                  (!i->masks || (i->unlabelled && !i->targets && i->classes <= HVT_IGNORED)),
              E_ARG,
              "data set '%s' has %d classes, %s mask(), %s and %d targets: expected none of these masks, or "
              "mask(), at most %d classes, and neither labels nor targets",
              name, i->classes, s->mask ? "a" : "no", i->unlabelled ? "no labels" : "labels", i->targets,
              HVT_IGNORED);
    HVT_CHECK(!i->target_h == !i->target_w && i->target_h >= 0 && i->target_w >= 0 &&
                  (!i->target_h || (i->targets && i->targets % (i->target_h * i->target_w) == 0)),
              E_ARG, "data set '%s' has %d targets per image, which are no images of %d x %d", name,
              i->targets, i->target_h, i->target_w);
    return check_size(s, name);
}

/* Makes a set of all images of a source. On success the set owns the source. */
static hvt_status make_set(const hvt_source *source, hvt_dataset **ret_set)
{
    const char *name = source->info.name ? source->info.name : "user";
    hvt_dataset *d;

    HVT_TRY(check_source(source, name));
    d = calloc(1, sizeof *d);
    HVT_CHECK(d, E_MEM, "no memory for data set '%s' (%zu bytes)", name, sizeof *d);
    d->source = *source;
    d->info = source->info;
    snprintf(d->name, sizeof d->name, "%s", name);
    d->info.name = d->name;
    if (source->get)
        d->info.type = HVT_U8;
    *ret_set = d;
    return HVT_OK;
}

static hvt_status open_format(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set)
{
    char known[128] = "";

    for (size_t i = 0; i < HVT_LEN(formats); i++) {
        hvt_source source = {0};
        hvt_status s;

        if (strcmp(name, formats[i]->name) != 0) {
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                     formats[i]->name);
            continue;
        }
        HVT_TRY(formats[i]->open(opts, &source));
        s = make_set(&source, ret_set);
        if (s != HVT_OK && source.close)
            source.close(source.ctx);
        return s;
    }
    return HVT_FAIL(E_ARG, "unknown data set '%s'; the data sets are: %s", name, known);
}

/* Checks a label of the source and converts it to the set's. */
static hvt_status take_label(const hvt_dataset *set, uint32_t index, int *label)
{
    const hvt_dataset_info *from = &set->source.info;

    if (from->unlabelled)
        HVT_CHECK(*label == -1, E_FORMAT, "data set '%s', image %u: label is %d, but the set is unlabelled",
                  set->name, index, *label);
    else
        HVT_CHECK(*label >= 0 && *label < from->classes, E_FORMAT,
                  "data set '%s', image %u: label is %d, expected 0 to %d", set->name, index, *label,
                  from->classes - 1);
    *label = set->info.unlabelled ? -1 : set->map ? set->map[*label] : *label;
    return HVT_OK;
}

static uint32_t in_source(const hvt_dataset *set, uint32_t index)
{
    return set->part ? set->part[index] : index;
}

hvt_status hvt_dataset_labels(const hvt_dataset *d, int32_t *ret_labels)
{
    HVT_GIVEN(d, "a data set");
    HVT_GIVEN(ret_labels, "an output pointer for the labels");
    HVT_CHECK(!d->info.unlabelled, E_ARG, "data set '%s' has no labels", d->name);
    HVT_CHECK(d->source.label, E_UNSUPPORTED,
              "data set '%s' does not tell labels without reading images: its source has no label()",
              d->name);
    for (uint32_t i = 0; i < d->info.count; i++) {
        ret_labels[i] = d->source.label(d->source.ctx, in_source(d, i));
        HVT_TRY(take_label(d, i, &ret_labels[i]));
    }
    return HVT_OK;
}

/* The label of every image, for hvt__sample(); NULL if the source has none or no label(). */
static hvt_status list_labels(const hvt_dataset *d, int32_t **ret_labels)
{
    *ret_labels = NULL;
    if (d->info.unlabelled || !d->source.label)
        return HVT_OK;
    *ret_labels = calloc(d->info.count, sizeof **ret_labels);
    HVT_CHECK(*ret_labels, E_MEM, "no memory for the labels of %u images", d->info.count);
    return hvt_dataset_labels(d, *ret_labels);
}

/* Keeps a sample of `wanted` images, or all others, in the set's order. */
static hvt_status keep_sample(hvt_dataset *d, uint32_t wanted, uint64_t seed, bool leave_one, bool others)
{
    uint32_t all = d->info.count, n = 0, *part = malloc(all * sizeof *part);
    bool *chosen = calloc(all, sizeof *chosen);
    int32_t *labels = NULL;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, part && chosen, E_MEM, "no memory to choose %u of %u images", wanted, all);
    HVT_TRY_OR(done, list_labels(d, &labels));
    HVT_TRY_OR(done, hvt__sample(labels, all, wanted, seed, leave_one, chosen));
    for (uint32_t i = 0; i < all; i++)
        if (chosen[i] != others)
            part[n++] = in_source(d, i);
    free(d->part);
    d->part = part;
    d->info.count = n;
    part = NULL;
done:
    free(labels);
    free(chosen);
    free(part);
    return s;
}

static hvt_status apply_limit(hvt_dataset *d, uint32_t limit, uint64_t seed)
{
    if (limit && limit < d->info.count) {
        HVT_TRY(keep_sample(d, limit, seed, false, false));
        d->info.fingerprint = hvt__mix(d->info.fingerprint ^ hvt__mix(seed));
    }
    d->info.fingerprint = hvt__mix(d->info.fingerprint ^ hvt__mix(d->info.count));
    return HVT_OK;
}

/* Keeps the images that --val-split holds out of a training set, or the others. The seed is always 0: a run
 * with another seed must not train on images held out before. */
static hvt_status divide(hvt_dataset *d, double fraction, bool others)
{
    uint32_t all = d->info.count, held = (uint32_t)(all * fraction + 0.5);

    HVT_CHECK(held > 0 && held < all, E_ARG,
              "a split of %g holds out %u of the %u training images of '%s'; expected at least 1 held out "
              "and 1 left",
              fraction, held, all, d->name);
    HVT_TRY(keep_sample(d, held, 0, true, others));
    d->info.fingerprint = hvt__mix(d->info.fingerprint ^ hvt__mix(2 * (uint64_t)held + others));
    return HVT_OK;
}

static hvt_status open_set(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set)
{
    hvt_dataset_opts whole = *opts;
    hvt_dataset *set = NULL;
    hvt_status s;

    HVT_CHECK(opts->val_split >= 0 && opts->val_split < 1, E_ARG,
              "val_split is %g, expected a fraction, 0 or more and below 1", opts->val_split);
    whole.train |= opts->val_split > 0;
    HVT_TRY(open_format(name, &whole, &set));
    if (opts->val_split > 0 &&
        (opts->train || opts->reconstruct || !set->info.unlabelled || set->info.targets ||
         set->info.masks)) /* a set without labels is not a training set */
        HVT_TRY_OR(fail, divide(set, opts->val_split, opts->train));
    HVT_TRY_OR(fail, apply_limit(set, opts->limit, opts->seed));
    *ret_set = set;
    return HVT_OK;

fail:
    hvt_dataset_close(&set);
    return s;
}

/* Shares the record of damaged images that were named: ranks of a node find the same ones, and only the first
 * rank names each. */
static hvt_status share_names(hvt_dataset *set, hvt_world *w)
{
    return hvt_world_size(w) > 1 ? hvt__node_open(w, set->info.count / 8 + 1, &set->named) : HVT_OK;
}

bool hvt__dataset_name_damaged(const hvt_dataset *set, uint32_t index)
{
    _Atomic uint8_t *named = set->named.block;
    uint8_t bit = (uint8_t)(1 << index % 8);

    return !named || !(atomic_fetch_or(&named[index / 8], bit) & bit);
}

bool hvt__dataset_is_shared(const hvt_dataset *set)
{
    return set->named.block;
}

/* Warns of hosts on which pictures decode to other pixels than on rank 0's, for example with another version
 * of the JPEG library: results would depend on which rank reads what. */
static hvt_status compare_pixels(hvt_world *w)
{
    int size = hvt_world_size(w), others = 0;
    uint64_t mine = hvt__picture_digest(), *all = calloc((size_t)size, sizeof *all);
    const char *last = "";
    char hosts[400] = "";

    HVT_TRY(hvt_world_agree(w, all ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare %d ranks", size)));
    hvt_status s = hvt_world_allgather(w, &mine, sizeof mine, all);
    for (int r = 0; s == HVT_OK && r < size; r++) {
        size_t used = strlen(hosts);

        if (all[r] == all[0] || !strcmp(last, hvt_world_host(w, r)))
            continue;
        last = hvt_world_host(w, r);
        snprintf(hosts + used, sizeof hosts - used, "%s%s", others++ ? ", " : "", last);
    }
    free(all);
    if (s == HVT_OK && others)
        HVT_WARN("pictures decode to other pixels on %s than on %s, because their JPEG libraries differ: the "
                 "results depend on which rank reads what",
                 hosts, hvt_world_host(w, 0));
    return s;
}

hvt_status hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set)
{
    HVT_GIVEN(name, "a data set's name");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_set, "an output pointer for the data set");

    hvt_dataset *set = NULL;
    hvt_status s = open_set(name, opts, &set);

    if (opts->world)
        s = hvt_world_agree(opts->world, s);
    if (opts->world && s == HVT_OK && !set->info.height)
        s = compare_pixels(opts->world);
    if (opts->world && s == HVT_OK && set->source.read)
        s = share_names(set, opts->world);
    if (s != HVT_OK)
        hvt_dataset_close(&set); /* another rank has failed */
    else
        *ret_set = set;
    return s;
}

hvt_status hvt_record_reserve(hvt_record *r, size_t bytes)
{
    HVT_GIVEN(r, "a record");
    if (bytes > r->room) {
        size_t room = bytes + bytes / 4; /* room for larger pictures, so that it grows only a few times */

        free(r->data);
        r->data = malloc(room);
        r->room = r->data ? room : 0;
        HVT_CHECK(r->data, E_MEM, "no memory for an image of %zu bytes", bytes);
    }
    r->bytes = bytes;
    return HVT_OK;
}

hvt_status hvt_dataset_from(const hvt_source *source, uint32_t limit, hvt_dataset **ret_set)
{
    HVT_GIVEN(source, "a source");
    HVT_GIVEN(ret_set, "an output pointer for the data set");

    hvt_dataset *set;
    hvt_status s;

    HVT_TRY(make_set(source, &set));
    s = apply_limit(set, limit, 0);
    if (s == HVT_OK) {
        *ret_set = set;
    } else {
        set->source.close = NULL; /* the caller owns the source */
        hvt_dataset_close(&set);
    }
    return s;
}

void hvt_dataset_close(hvt_dataset **set)
{
    hvt_dataset *d = set ? *set : NULL;
    char what[80];

    if (!d)
        return;
    snprintf(what, sizeof what, "data set '%s'", d->name);
    if (hvt__in_use(&d->users, what))
        return;
    if (d->source.close)
        d->source.close(d->source.ctx);
    free(d->part);
    free(d->map);
    free(d->back);
    hvt__node_close(&d->named);
    free(d);
    *set = NULL;
}

void hvt__dataset_use(const hvt_dataset *set, int by)
{
    hvt__use(&((hvt_dataset *)(uintptr_t)set)->users, HVT__USER_LOADER, by); /* only counts */
}

bool hvt__dataset_has_get(const hvt_dataset *set)
{
    return set->source.get;
}

const hvt_dataset_info *hvt_dataset_describe(const hvt_dataset *set)
{
    return set ? &set->info : NULL;
}

static hvt_status check_index(const hvt_dataset *set, uint32_t index)
{
    HVT_CHECK(index < set->info.count, E_ARG, "data set '%s' has %u images; number %u was requested",
              set->name, set->info.count, index);
    return HVT_OK;
}

/* Checks that a record's pixels are as the set's info says. */
static hvt_status check_record(const hvt_dataset *set, uint32_t index, hvt_record *r)
{
    const hvt_dataset_info *i = &set->info;
    size_t bytes = r->encoding == HVT_IMAGE_F32 ? sizeof(float) : 1;

    HVT_TRY(take_label(set, index, &r->label));
    if (r->encoding == HVT_IMAGE_FILE)
        return HVT_OK;
    HVT_CHECK((r->encoding == HVT_IMAGE_F32) == (i->type == HVT_F32), E_FORMAT,
              "data set '%s', image %u: its pixels are not %s", set->name, index, hvt_dtype_name(i->type));
    HVT_CHECK(i->height
                  ? r->height == i->height && r->width == i->width
                  : r->height >= 1 && r->height <= HVT_SIDE_MAX && r->width >= 1 && r->width <= HVT_SIDE_MAX,
              E_FORMAT, "data set '%s', image %u: %d x %d pixels do not fit the set's %d x %d", set->name,
              index, r->height, r->width, i->height, i->width);
    bytes *= (size_t)r->height * (size_t)r->width * (size_t)i->channels;
    HVT_CHECK(r->bytes == bytes, E_FORMAT, "data set '%s', image %u: %zu bytes, expected %zu", set->name,
              index, r->bytes, bytes);
    return HVT_OK;
}

/* For a source with get(). */
static hvt_status read_pixels(const hvt_dataset *set, uint32_t index, hvt_record *r)
{
    const hvt_dataset_info *i = &set->info;

    HVT_TRY(hvt_record_reserve(r, (size_t)i->height * (size_t)i->width * (size_t)i->channels));
    r->encoding = HVT_IMAGE_U8;
    r->height = i->height;
    r->width = i->width;
    return set->source.get(set->source.ctx, in_source(set, index), r->data, &r->label);
}

hvt_status hvt_dataset_read(const hvt_dataset *set, uint32_t index, hvt_record *r)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(r, "a record");

    HVT_TRY(check_index(set, index));
    r->label = -1;
    if (set->source.get)
        HVT_TRY(read_pixels(set, index, r));
    else
        HVT_TRY(set->source.read(set->source.ctx, in_source(set, index), r));
    return check_record(set, index, r);
}

/* For a source with read(). */
static hvt_status get_record(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const hvt_dataset_info *i = &set->info;
    hvt_record r = {0};
    hvt_status s;

    HVT_CHECK(i->height && i->type == HVT_U8, E_UNSUPPORTED,
              "data set '%s' has images in %s%s: use hvt_dataset_read()", set->name, hvt_dtype_name(i->type),
              i->height ? "" : " and of different sizes");
    HVT_TRY_OR(done, hvt_dataset_read(set, index, &r));
    HVT_CHECK_OR(done, r.encoding == HVT_IMAGE_U8, E_UNSUPPORTED,
                 "data set '%s' has picture files: use hvt_dataset_read()", set->name);
    memcpy(ret_pixels, r.data, r.bytes);
    *ret_label = r.label;
done:
    free(r.data);
    return s;
}

hvt_status hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(ret_pixels, "an output pointer for the pixels");
    HVT_GIVEN(ret_label, "an output pointer for the label");

    int label = -1;

    HVT_TRY(check_index(set, index));
    if (set->source.read)
        return get_record(set, index, ret_pixels, ret_label);
    HVT_TRY(set->source.get(set->source.ctx, in_source(set, index), ret_pixels, &label));
    HVT_TRY(take_label(set, index, &label));
    *ret_label = label;
    return HVT_OK;
}

hvt_status hvt_dataset_targets(const hvt_dataset *set, uint32_t index, float *ret_targets)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(ret_targets, "an output pointer for the targets");
    HVT_TRY(check_index(set, index));
    HVT_CHECK(set->info.targets, E_ARG, "data set '%s' has no targets", set->name);
    HVT_TRY(set->source.target(set->source.ctx, in_source(set, index), ret_targets));
    for (int i = 0; i < set->info.targets; i++)
        HVT_CHECK(isfinite(ret_targets[i]), E_FORMAT,
                  "data set '%s', image %u: target %d is %g, expected finite numbers", set->name, index, i,
                  (double)ret_targets[i]);
    return HVT_OK;
}

hvt_status hvt_dataset_mask(const hvt_dataset *set, uint32_t index, hvt_record *r, char *ret_name,
                            size_t room)
{
    char name[PATH_MAX];

    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(r, "a record");
    HVT_TRY(check_index(set, index));
    HVT_CHECK(set->info.masks, E_ARG, "data set '%s' has no masks", set->name);
    if (ret_name && set->source.mask_name) {
        HVT_TRY(set->source.mask_name(set->source.ctx, in_source(set, index), ret_name, room));
    } else if (ret_name) {
        HVT_TRY(hvt_dataset_name(set, index, name, sizeof name));
        snprintf(ret_name, room, "the mask of %s", name);
    }
    return set->source.mask(set->source.ctx, in_source(set, index), r);
}

void hvt__dataset_ahead(const hvt_dataset *set, uint32_t index)
{
    if (set->source.ahead)
        set->source.ahead(set->source.ctx, in_source(set, index));
}

hvt_status hvt_dataset_name(const hvt_dataset *set, uint32_t index, char *ret_name, size_t room)
{
    HVT_GIVEN(set, "a data set");
    HVT_CHECK(ret_name && room > 0, E_ARG, "%s() needs room for a name", __func__);

    HVT_TRY(check_index(set, index));
    if (set->source.name)
        return set->source.name(set->source.ctx, in_source(set, index), ret_name, room);
    snprintf(ret_name, room, "image %u", in_source(set, index));
    return HVT_OK;
}

const char *hvt_dataset_class_name(const hvt_dataset *set, int label)
{
    bool known = set && set->source.class_name && label >= 0 && label < set->info.classes;

    if (known && set->back)
        label = set->back[label];
    return known && label >= 0 ? set->source.class_name(set->source.ctx, label) : NULL;
}

hvt_status hvt_dataset_relabel(hvt_dataset *set, const int32_t *map, int classes)
{
    HVT_GIVEN(set, "a data set");
    HVT_CHECK(!set->map && !set->info.unlabelled, E_ARG, "the labels of data set '%s' are mapped already",
              set->name);

    const size_t own = (size_t)set->info.classes, all = (size_t)classes;

    for (size_t i = 0; map && i < own; i++)
        HVT_CHECK(map[i] >= 0 && map[i] < classes, E_ARG, "label %zu is mapped to %d, expected 0 to %d", i,
                  map[i], classes - 1);
    if (!map) {
        set->info.unlabelled = true;
        set->info.classes = 0;
        return HVT_OK;
    }
    set->map = malloc(own * sizeof *map);
    set->back = malloc(all * sizeof *set->back);
    HVT_CHECK(set->map && set->back, E_MEM, "no memory to match %zu classes with %zu", own, all);
    memcpy(set->map, map, own * sizeof *map);
    for (size_t i = 0; i < all; i++)
        set->back[i] = -1;
    for (size_t i = 0; i < own; i++)
        set->back[map[i]] = (int32_t)i;
    set->info.classes = classes;
    return HVT_OK;
}
