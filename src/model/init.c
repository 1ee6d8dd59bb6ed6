/*
 * Initial values. A draw is keyed by (seed, parameter's name, element in canonical order), so it depends
 * neither on the device's layout nor on what else the model holds.
 * Source: torchvision's resnet.py and torch.nn.Linear, for the distributions (not for the bits).
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

/* Box and Muller 1958: one draw gives the pair of elements 2i and 2i+1. */
static void fill_normal(uint64_t seed, uint64_t name, double deviation, float *x, size_t n)
{
    const double two_pi = 6.283185307179586476925;

    for (size_t i = 0; i < n; i += 2) {
        double u = ((double)(hvt__draw(seed, name, i, 0) >> 11) + 1) * 0x1p-53; /* (0, 1] */
        double v = (double)(hvt__draw(seed, name, i, 1) >> 11) * 0x1p-53;       /* [0, 1) */
        double radius = deviation * sqrt(-2 * log(u));

        x[i] = (float)(radius * cos(two_pi * v));
        if (i + 1 < n)
            x[i + 1] = (float)(radius * sin(two_pi * v));
    }
}

static void fill(const hvt_param *p, uint64_t seed, float *x)
{
    uint64_t name = hvt__hash_text(HVT_HASH_INIT, p->name);

    switch (p->init) {
    case HVT_INIT_NORMAL:
        fill_normal(seed, name, p->init_arg, x, p->elements);
        break;
    case HVT_INIT_UNIFORM:
        for (size_t i = 0; i < p->elements; i++)
            x[i] = p->init_arg * (2 * hvt__unit(hvt__draw(seed, name, i, 0)) - 1);
        break;
    case HVT_INIT_FILL:
        for (size_t i = 0; i < p->elements; i++)
            x[i] = p->init_arg;
    }
}

hvt_status hvt_model_init(hvt_model *m, uint64_t seed)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch, E_ARG, "initialisation before hvt_model_plan()");

    hvt_status s = HVT_OK;
    size_t most = hvt__model_largest(m);
    float *x = malloc(most * sizeof *x);

    HVT_CHECK(x, E_MEM, "no memory for %zu floats of a parameter", most);
    for (int i = 0; i < m->nparam_tensors; i++) {
        fill(&m->param[i], seed, x);
        HVT_TRY_OR(done, hvt__model_import(m, &m->param[i], m->params, x));
    }
    for (const hvt_stat *t = m->stat; t < m->stat + m->nstat; t++) {
        for (size_t i = 0; i < t->count; i++)
            x[i] = t->fill;
        HVT_TRY_OR(done, hvt_device_upload(m->dev, m->stats + t->offset, x, t->count * sizeof *x));
    }
    m->tracked = 0;
    m->seed = seed;
    m->inits++;
    m->backward_pending = false;
    HVT_TRY_OR(done, hvt__step_restart(m));
    HVT_TRY_OR(done, hvt_model_take_loss(m, &(hvt_loss){0}));
done:
    free(x);
    return s;
}
