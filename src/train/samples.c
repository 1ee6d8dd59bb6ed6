/* Statistics of some images, spread over a set: whether two sets are the same, and the range of floats. */
#include "run.h"
#include "base_impl.h"

#include <math.h>

enum { SOME = 8 };

static uint32_t sample_at(const hvt_dataset *set, uint32_t i)
{
    return (uint32_t)((uint64_t)i * hvt_dataset_describe(set)->count / SOME);
}

bool hvt__same_images(const hvt_dataset *a, const hvt_dataset *b)
{
    const hvt_dataset_info *x = hvt_dataset_describe(a), *y = hvt_dataset_describe(b);
    hvt_record of[2] = {{0}};
    bool same = x->fingerprint == y->fingerprint && x->count == y->count;

    for (uint32_t i = 0; same && i < SOME; i++)
        same = !hvt_dataset_read(a, sample_at(a, i), &of[0]) &&
               !hvt_dataset_read(b, sample_at(b, i), &of[1]) && of[0].bytes == of[1].bytes &&
               !memcmp(of[0].data, of[1].data, of[0].bytes);
    free(of[0].data);
    free(of[1].data);
    return same;
}

/* The least and the largest value of some float images. False if one of them cannot be read. */
static bool find_range(const hvt_dataset *set, float *ret_least, float *ret_most)
{
    hvt_record r = {0};
    bool good = true;

    *ret_least = INFINITY;
    *ret_most = -INFINITY;
    for (uint32_t i = 0; good && i < SOME; i++) {
        good = !hvt_dataset_read(set, sample_at(set, i), &r) && r.encoding == HVT_IMAGE_F32;
        for (size_t k = 0; good && k < r.bytes / sizeof(float); k++) {
            float v = ((const float *)(const void *)r.data)[k];

            *ret_least = fminf(*ret_least, v);
            *ret_most = fmaxf(*ret_most, v);
        }
    }
    free(r.data);
    return good;
}

void hvt__warn_of_range(const run *t)
{
    const float LARGE = 30, NARROW = 0.1f; /* standardised values are within about +-3 */
    const hvt_loader_opts *l = &t->loading.test;
    float least, most, from = INFINITY, to = -INFINITY, widest = 0;
    const char *advice = "--mean and --std of the values themselves";

    if (hvt_dataset_describe(t->test_set)->type != HVT_F32 || !find_range(t->test_set, &least, &most))
        return;
    for (int c = 0; c < 3; c++) {
        from = fminf(from, (least - l->mean[c]) / l->std[c]);
        to = fmaxf(to, (most - l->mean[c]) / l->std[c]);
        widest = fmaxf(widest, (most - least) / l->std[c]);
    }
    if (least >= 0 && most <= 255)
        advice = most <= 1 ? "--mean 0.5 --std 0.5" : "--mean 127.5 --std 127.5";
    if (most > least && (fmaxf(-from, to) > LARGE || widest < NARROW))
        HVT_WARN(
            "the data's floats from %g to %g become %g to %g (x = (value - mean) / std): expected about -1 "
            "to 1, as with %s",
            (double)least, (double)most, (double)from, (double)to, advice);
}
