/*
 * How the options determine the reading of images: sizes, transforms, units, workers. A transform belongs to
 * its split: training has random ones, evaluation the centre of each image.
 */
#include "run.h"
#include "base_impl.h"

#include <math.h>

/* Sets the size of the model's images, and the length to which the shorter side is resized before the centre
 * is cropped. Pictures differ in size; other images keep theirs unless --size is given. A .pt2 file takes
 * only one size. */
static hvt_status resolve_sizes(const hvt_options *o, const hvt_dataset_info *data, const hvt_pt2 *file,
                                hvt_loader_opts *l)
{
    enum { SIZE = 224, EVAL_SIZE = 256 }; /* of torchvision's recipes */
    const int channels = hvt_loader_channels(data, l);
    int size = o->size ? o->size : data->height ? 0 : SIZE, most;
    bool fits;

    l->height = size ? size : data->height;
    l->width = size ? size : data->width;
    if (file) {
        hvt_pt2_info net = hvt_pt2_describe(file);

        HVT_CHECK(net.channels == channels, E_ARG, "--model %s is for images of %d channel%s, but %s %d%s",
                  o->model, net.channels, net.channels > 1 ? "s" : "",
                  o->grey ? "--grey converts them to" : "the data have", channels,
                  net.channels == 1 && data->channels == 3 && data->type == HVT_U8
                      ? "; --grey converts them to one"
                      : "");
        HVT_CHECK(!o->size || (o->size == net.height && o->size == net.width), E_ARG,
                  "--size %d: %s was exported for images of %d x %d", o->size, o->model, net.height,
                  net.width);
        l->height = net.height;
        l->width = net.width;
    }
    most = l->height > l->width ? l->height : l->width;
    fits = data->height == l->height && data->width == l->width;
    l->resize = o->eval_size >= 0 ? o->eval_size : fits ? 0 : (most * EVAL_SIZE + SIZE / 2) / SIZE;
    HVT_CHECK(!l->resize || l->resize >= most, E_ARG,
              "--eval-size %d: expected %d or more, as images are %d x %d, or 0", l->resize, most, l->height,
              l->width);
    return HVT_OK;
}

/* Sets the units by --mean and --std; auto leaves floats unchanged. */
static void set_units(const hvt_options *o, const hvt_dataset_info *data, hvt_loader_opts *l)
{
    static const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f}; /* ImageNet's */
    const bool floats = data->type == HVT_F32, pictures = hvt__reads_pictures(o) && !o->grey;

    for (int c = 0; c < 3; c++) {
        l->mean[c] = !isnan(o->mean.v[c]) ? o->mean.v[c] : floats ? 0 : pictures ? mean[c] : 0.5f;
        l->std[c] = !isnan(o->std.v[c]) ? o->std.v[c] : floats ? 1 : pictures ? std[c] : 0.5f;
    }
}

/* Threads that fetch ahead: one per core for pictures, each of which takes a thousand times as long as a
 * small image of bytes, and for images of synth on a GPU: drawing one takes 12 us at 32 x 32 and 400 us at
 * 224 x 224, which is negligible beside training on a CPU, and more than a GPU needs for all the rest. */
static int workers_of(const hvt_options *o, const hvt_resolved *set, const hvt_dataset_info *data,
                      const hvt_loader_opts *l, int cores)
{
    enum { MOST = 64 };

    if (o->workers >= 0)
        return o->workers;
    if (hvt_loader_copies(data, l) && !(set->on_gpu && !strcmp(data->name, "synth")))
        return 0;
    return cores < 1 ? 1 : cores > MOST ? MOST : cores;
}

/* The options, without those from the file of --init that these data do not allow: only bytes of three
 * channels can be resized or made grey. */
static hvt_options allowed(const hvt_options *o, const hvt_dataset_info *data)
{
    const bool any = !data->height || (data->type == HVT_U8 && data->channels == 3);
    hvt_options mine = *o;

    if (any || !*o->init)
        return mine;
    if (o->from[HVT__AT_size] == HVT_FROM_CHECKPOINT)
        mine.size = 0;
    if (o->from[HVT__AT_eval_size] == HVT_FROM_CHECKPOINT)
        mine.eval_size = -1;
    if (o->from[HVT__AT_grey] == HVT_FROM_CHECKPOINT)
        mine.grey = false;
    return mine;
}

hvt_status hvt__resolve_loading(const hvt_options *opts, const hvt_resolved *set,
                                const hvt_dataset_info *data, const hvt_pt2 *file, const hvt_cores *cores,
                                hvt__loading *ret_loading)
{
    const hvt_options fitting = allowed(opts, data), *o = &fitting;
    hvt_loader_opts train = {.batch = set->batch,
                             .shuffle = o->shuffle,
                             .last_batch = set->last_batch,
                             .seed = (uint64_t)o->seed,
                             .rrc = set->rrc,
                             .exif = o->exif,
                             .grey = o->grey,
                             .crop = set->crop,
                             .reflect = set->reflect,
                             .flip = set->flip,
                             .alternate = set->alternate,
                             .edits = set->edits,
                             .erase = (float)o->erase,
                             .mixup = (float)o->mixup,
                             .cutmix = (float)o->cutmix,
                             .reconstruct = !strcmp(o->target, "image"),
                             .repeats = o->repeat_augment,
                             .balanced = !strcmp(o->sample, "balanced"),
                             .epochs = set->by_epochs ? o->epochs : INT_MAX,
                             .cpus = cores->cpus,
                             .ncpus = set->on_gpu ? 0 : cores->ncpus, /* no pinning with a GPU */
                             .skip_damaged = o->skip_damaged};
    hvt_loader_opts test;

    HVT_TRY(resolve_sizes(o, data, file, &train));
    set_units(o, data, &train);
    train.workers = workers_of(o, set, data, &train, cores->share);
    test = train;
    test.shuffle = test.balanced = test.flip = test.rrc.on = false;
    test.crop = test.epochs = 0;
    test.edits = (hvt_edits){0};
    test.erase = test.mixup = test.cutmix = 0;
    test.repeats = 1;
    test.last_batch = HVT_LAST_BATCH_KEEP;
    test.blank_damaged = true;
    if (train.rrc.on)
        train.resize = 0;
    *ret_loading = (hvt__loading){train, test};
    return HVT_OK;
}
