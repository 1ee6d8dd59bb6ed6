/*
 * A model's layers, as torchinfo prints them, and the needs of a run. The model is planned as in a run with
 * these options on one rank, so that the numbers are those of the run, but its arenas are not allocated.
 */
#include "inspect_impl.h"
#include "optim_impl.h"
#include "train/cli/cli_impl.h"
#include "base_impl.h"

#include <inttypes.h>
#include <limits.h>

/* Sets sizes and classes: the data's or, if unknown, those for which the model was made. */
static void find_images(const run *t, int hwc[3], int *ret_classes)
{
    enum { IMAGENET = 224, IMAGENET_CLASSES = 1000, CIFAR = 32, CIFAR_CLASSES = 10 };
    const hvt_options *o = t->opts;
    const bool large = hvt_zoo_takes(o->model).imagenet_stem && !strcmp(o->stem, "imagenet");
    const hvt_pt2_info net = hvt_pt2_describe(t->file);
    const int side = o->size ? o->size : large ? IMAGENET : CIFAR;

    for (int i = 0; i < 2; i++)
        hwc[i] = t->file ? (i ? net.width : net.height) : hwc[i] ? hwc[i] : side;
    hwc[2] = t->file ? net.channels : o->grey ? 1 : 3;
    *ret_classes = o->classes ? o->classes : t->file ? net.classes : large ? IMAGENET_CLASSES : CIFAR_CLASSES;
}

static hvt_status measure(run *t, hvt_value logits)
{
    const char *freeze = t->opts->freeze;

    if (t->opts->fix_norms)
        HVT_TRY(hvt_model_fix_norms(t->model));
    if (t->opts->evaluate)
        HVT_TRY(hvt_model_set_inference(t->model));
    else if (strcmp(freeze, "auto") != 0)
        HVT_TRY(hvt_model_freeze(t->model, strcmp(freeze, "none") ? freeze : ""));
    return hvt__model_measure(t->model, t->set.batch, logits);
}

hvt_status hvt__measure_model(run *t, int hwc[3])
{
    const hvt_options *o = t->opts;
    const hvt_zoo_opts zoo = {.imagenet_stem = !strcmp(o->stem, "imagenet"),
                              .projection = !strcmp(o->shortcut, "B")};
    hvt_value images, logits;

    if (hvt__is_model_file(o->model))
        HVT_TRY(hvt_pt2_open(o->model, &t->file));
    if (t->file && hvt_pt2_describe(t->file).classes == 1 && !hvt__option_given(o, HVT__AT_loss))
        t->set.loss.kind = HVT_LOSS_MSE; /* one output cannot be classes */
    find_images(t, hwc, &t->classes);
    HVT_CHECK(!t->file || !o->size || (o->size == hwc[0] && o->size == hwc[1]), E_ARG,
              "--size %d: %s was exported for images of %d x %d", o->size, o->model, hwc[0], hwc[1]);
    HVT_TRY(hvt_model_create(t->dev, &t->model));
    HVT_TRY(hvt_model_set_type(t->model, t->set.amp));
    HVT_TRY(hvt_model_set_loss(t->model, &t->set.loss));
    images = hvt_input(t->model, hwc[0], hwc[1], hwc[2]);
    if (t->file)
        HVT_TRY(hvt_pt2_build(t->file, t->model, images, t->classes, &logits));
    else
        logits = hvt_zoo(t->model, o->model, images, t->classes, &zoo);
    return measure(t, logits);
}

/* "[128, 64, 112, 112]", in PyTorch's order; "[128, 512]" for one pixel. */
static void shape_text(int batch, const hvt__layer_facts *l, char *ret_text, size_t bytes)
{
    if (l->height == 1 && l->width == 1)
        snprintf(ret_text, bytes, "[%d, %d]", batch, l->channels);
    else
        snprintf(ret_text, bytes, "[%d, %d, %d, %d]", batch, l->channels, l->height, l->width);
}

static hvt_status print_layers(const run *t, FILE *f, int64_t *ret_sum)
{
    hvt__grid table = {.form = "llrrr"};
    hvt__layer_facts l;
    char shape[80], parameters[HVT__DIGITS], products[HVT__DIGITS], kind[400], name[HVT_NAME_MAX];

    *ret_sum = 0;
    hvt__grid_row(&table, "layer", "kind", "output", "parameters", "multiply-adds");
    hvt__grid_rule(&table);
    for (int i = 0; hvt__model_describe(t->model, i, &l); i++) {
        snprintf(kind, sizeof kind, l.shares ? "%s, parameters of %.200s" : "%s", l.kind, l.shares);
        shape_text(t->set.batch, &l, shape, sizeof shape);
        snprintf(name, sizeof name, "%s", l.is_input ? "images" : l.name);
        if (*name && name[strlen(name) - 1] == '_') /* its parameters are named in_proj_weight, ... */
            name[strlen(name) - 1] = 0;
        hvt__grid_row(&table, name, kind, shape, hvt__digits((int64_t)l.parameters, true, parameters),
                      hvt__digits(l.multiply_adds, true, products));
        *ret_sum += l.multiply_adds;
    }
    return hvt__grid_print(&table, f);
}

static void print_memory(const run *t, FILE *f)
{
    const hvt_memory m = hvt_model_memory(t->model);
    const size_t optimizer = hvt__optim_bytes(&t->set.optim, t->model);

    fprintf(f,
            "memory         of a rank alone, MiB: %.1f activations, %.1f parameters, %.1f gradients, %.1f "
            "optimizer, "
            "%.1f workspace\n",
            hvt__mib((double)m.activations), hvt__mib((double)m.parameters), hvt__mib((double)m.gradients),
            hvt__mib((double)optimizer), hvt__mib((double)m.workspace));
    fprintf(f, "               %.1f MiB in all, for --batch %d --amp %s --optimizer %s --device %s\n",
            hvt__mib((double)(hvt_model_bytes(t->model) + optimizer)), t->set.batch,
            hvt_dtype_name(t->set.amp), t->opts->optimizer, t->opts->device);
}

static void print_totals(const run *t, const int hwc[3], int64_t products, FILE *f)
{
    const size_t all = hvt_model_parameters(t->model), frozen = hvt_model_frozen(t->model);
    const hvt_pt2_info net = hvt_pt2_describe(t->file);
    char a[HVT__DIGITS], b[HVT__DIGITS];

    fprintf(f, "\nmodel          %s, for images of %dx%dx%d, %d output%s\n", t->opts->model, hwc[0], hwc[1],
            hwc[2], hvt_model_classes(t->model), hvt_model_classes(t->model) > 1 ? "s" : "");
    if (t->file)
        fprintf(f, "weights        %s\n",
                net.weights ? "in the file" : "none that can be read without Python's pickle");
    fprintf(f, "parameters     %s", hvt__digits((int64_t)all, false, a));
    fprintf(f, frozen ? ", of which %s are frozen\n" : "\n", hvt__digits((int64_t)frozen, false, b));
    fprintf(f, "multiply-adds  %s for an image (%.2f G)\n", hvt__digits(products, false, a),
            1e-9 * (double)products);
    print_memory(t, f);
}

static hvt_status inspect(run *t, FILE *f)
{
    hvt_placement place = {.cores = {.threads = 1}};
    int64_t products;
    int hwc[3] = {0};

    HVT_TRY(hvt__resolve(t->opts, 1, &t->set));
    HVT_TRY(hvt_world_cores(t->world, t->opts->threads, &place.cores));
    t->placement = &place;
    HVT_TRY(hvt__open_device(t));
    HVT_TRY(hvt__measure_model(t, hwc));
    HVT_TRY(print_layers(t, f, &products));
    print_totals(t, hwc, products, f);
    return HVT_OK;
}

hvt_status hvt__inspect_model(const hvt_options *opts, FILE *f)
{
    run t = {.opts = opts, .size = 1};
    hvt_status s;

    HVT_TRY(hvt_world_open("singleton", &t.world));
    s = inspect(&t, f);
    hvt_model_free(&t.model);
    hvt_pt2_close(&t.file);
    hvt_device_close(&t.dev);
    hvt_world_close(&t.world);
    return s;
}
