/*
 * Checks that the run's model fits into memory: plans it as the run does, without allocating its memory.
 */
#include "check_impl.h"
#include "optim_impl.h"
#include "train/inspect/inspect_impl.h"
#include "base_impl.h"

/* The side of the images of --data; 0: the files determine it. */
static int side_of(const hvt_options *o)
{
    static const struct {
        const char *data;
        int side;
    } known[] = {{"folder", 224}, {"tar", 224},    {"stl10", 96},
                 {"synth", 32},   {"cifar10", 32}, {"cifar100", 32}};

    for (size_t i = 0; i < HVT_LEN(known) && !o->size; i++)
        if (!strcmp(o->data, known[i].data))
            return known[i].side;
    return o->size;
}

hvt_status hvt__find_needs(const hvt_options *opts, const hvt_resolved *set, hvt_device *dev,
                           hvt__needs *ret_needs)
{
    run t = {.opts = opts, .set = *set, .dev = dev};
    const int side = side_of(opts);
    int hwc[3] = {side, side, 0};
    hvt_status s = hvt__measure_model(&t, hwc);

    if (s == HVT_OK) {
        const size_t state = hvt__optim_bytes(&set->optim, t.model);

        *ret_needs = (hvt__needs){.batch = set->batch,
                                  .memory = (double)(hvt_model_bytes(t.model) + state),
                                  .checkpoint = sizeof(float) * hvt_model_parameters(t.model) + state};
        snprintf(ret_needs->images, sizeof ret_needs->images, "%dx%dx%d", hwc[0], hwc[1], hwc[2]);
    }
    hvt_model_free(&t.model);
    hvt_pt2_close(&t.file);
    return s;
}
