/*
 * Dropout and stochastic depth. PyTorch exports dropout as an operation; stochastic depth is arithmetic on
 * random numbers, which are followed from where they are made to the product that they are made for.
 */
#include "import.h"

#include <math.h>

/* Its tensor and probability; NULL: it drops nothing, as in a file that was exported in eval mode, and its
 * output is its input. */
static const tensor *dropped(importer *p, double *ret_p)
{
    const tensor *t = hvt__pt2_tensor(p, hvt__pt2_first_argument(p));

    *ret_p = hvt__pt2_bool(p, "train", true) ? hvt__pt2_float(p, "p", 0.5) : 0;
    if (t && t->kind == HVT__PT2_SCORES && *ret_p != 0)
        hvt__pt2_refuse(p, "it drops out %g of attention's weights; expected 0, or an export in eval() mode",
                        *ret_p);
    if (p->failed || (!(t && t->kind == HVT__PT2_SCORES) && !hvt__pt2_is_computed(p, t)))
        return NULL;
    if (*ret_p != 0)
        return t;
    hvt__pt2_out(p, 0, *t, t);
    return NULL;
}

void hvt__pt2_dropout(importer *p)
{
    double drop;
    const tensor *t = dropped(p, &drop);
    hvt__pt2_axes axes;

    if (!t)
        return;
    axes = t->axes;
    hvt__pt2_out_like(p, hvt_dropout(p->m, t->v, drop), &axes);
}

void hvt__pt2_feature_dropout(importer *p)
{
    double drop;
    hvt_value x = dropped(p, &drop) ? hvt__pt2_image(p, hvt__pt2_first_argument(p)) : -1;

    if (x >= 0 && !p->failed)
        hvt__pt2_out_value(p, hvt_dropout_channels(p->m, x, drop));
}

/* What random numbers of these sizes are for; false: nothing that is known. */
static bool shared_by(int n, const int64_t *size, int batch, hvt__pt2_share *ret_like)
{
    int many = size[0] == batch, i;

    while (many && many < n && size[many] != 1)
        many++;
    for (i = many; i < n && size[i] == 1;)
        i++;
    *ret_like = many == n && n > 2 ? HVT__PT2_ELEMENTS
                : many == 2        ? HVT__PT2_CHANNELS
                : many == 1        ? HVT__PT2_IMAGES
                                   : HVT__PT2_BATCH;
    return i == n && (many <= 2 || many == n);
}

/* Stochastic depth is a product of an image with noise, which torchvision/ops/stochastic_depth.py and timm's
 * DropPath make by empty(sizes), bernoulli_(keep), div_(keep). */
void hvt__pt2_noise(importer *p)
{
    const json_t *out = json_array_get(json_object_get(p->node, "outputs"), 0);
    const char *name = json_string_value(json_object_get(json_object_get(out, "as_tensor"), "name"));
    tensor t = {.kind = HVT__PT2_NOISE, .v = -1, .keep = -1, .factor = 1};
    int64_t size[HVT__PT2_DIMS];
    int n = name ? hvt__pt2_sizes(p->file, name, HVT__PT2_DIMS, size) : -1;

    if (n < 1 || !shared_by(n, size, p->file->batch, &t.like))
        hvt__pt2_refuse(p, "it makes numbers of its own; expected one to an image, as stochastic depth does");
    hvt__pt2_out(p, 0, t, NULL);
}

void hvt__pt2_bernoulli(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    tensor y;

    if (!t || t->kind != HVT__PT2_NOISE || t->keep >= 0) {
        hvt__pt2_refuse(p, "it is known in stochastic depth only");
        return;
    }
    y = *t;
    y.keep = hvt__pt2_float(p, "p", 0.5);
    hvt__pt2_out(p, 0, y, NULL);
}

bool hvt__pt2_divide_noise(importer *p)
{
    const tensor *a = hvt__pt2_tensor(p, "self");
    tensor y;
    double x;

    if (!a || a->kind != HVT__PT2_NOISE)
        return false;
    y = *a;
    if (!hvt__pt2_number(p, &x) || y.keep < 0)
        hvt__pt2_refuse(p, "it divides random numbers by something other than their probability");
    y.factor /= x;
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

/* x times noise, whose expectation must be 1. */
static void with_noise(importer *p, const tensor *x, const tensor *noise)
{
    const hvt__pt2_axes axes = x->axes;
    const double drop = 1 - noise->keep;
    hvt_value v = x->v;

    if (noise->keep < 0 || noise->keep > 1 ||
        (noise->keep > 0 && fabs(noise->keep * noise->factor - 1) > 1e-6))
        hvt__pt2_refuse(p, "its random numbers are not 0 or 1 / probability, as in stochastic depth");
    else if (noise->like == HVT__PT2_CHANNELS && !hvt__pt2_is(&axes, 1, 'C'))
        hvt__pt2_refuse(p, "its random numbers are for dimension 1, which is not the channels");
    if (p->failed)
        return;
    v = noise->like == HVT__PT2_ELEMENTS   ? hvt_dropout(p->m, v, drop)
        : noise->like == HVT__PT2_CHANNELS ? hvt_dropout_channels(p->m, v, drop)
                                           : hvt_drop_path(p->m, v, drop, noise->like == HVT__PT2_BATCH);
    hvt__pt2_out_like(p, v, &axes);
}

bool hvt__pt2_multiply_noise(importer *p, const tensor *a, const tensor *b)
{
    const tensor *noise = a->kind == HVT__PT2_NOISE ? a : b, *x = noise == a ? b : a;

    if (noise->kind != HVT__PT2_NOISE || x->v < 0)
        return false;
    with_noise(p, x, noise);
    return true;
}
