/*
 * Initial values. A draw is keyed by (seed, parameter's name, element in canonical order), so it depends
 * neither on the device's layout nor on other parameters. Source: the distributions (not the bits) of
 * torchvision's resnet.py and torch.nn.Linear.
 */
#include "base_impl.h"
#include "layers.h"
#include "loops.h"

#include <math.h>

enum { BLOCK = 1 << 14 }; /* elements of a job, an even number */

typedef struct drawing {
    const hvt_param *p;
    uint64_t seed, name;
    float *x;
} drawing;

/* Box and Muller 1958: one draw gives the pair of elements 2i and 2i+1. */
static void draw_normal(const drawing *w, size_t first, size_t end)
{
    const double two_pi = 6.283185307179586476925, deviation = w->p->init_arg;

    for (size_t i = first; i < end; i += 2) {
        double u = ((double)(hvt__draw(w->seed, w->name, i, 0) >> 11) + 1) * 0x1p-53; /* (0, 1] */
        double v = (double)(hvt__draw(w->seed, w->name, i, 1) >> 11) * 0x1p-53;       /* [0, 1) */
        double radius = deviation * sqrt(-2 * log(u));

        w->x[i] = (float)(radius * cos(two_pi * v));
        if (i + 1 < end)
            w->x[i + 1] = (float)(radius * sin(two_pi * v));
    }
}

static void draw_job(void *ctx, int job, int thread)
{
    const drawing *w = ctx;
    const size_t first = (size_t)job * BLOCK, left = w->p->elements - first,
                 end = left < BLOCK ? w->p->elements : first + BLOCK;

    (void)thread;
    switch (w->p->init) {
    case HVT_INIT_NORMAL:
        draw_normal(w, first, end);
        break;
    case HVT_INIT_UNIFORM:
    case HVT_INIT_DIRAC:
        for (size_t i = first; i < end; i++)
            w->x[i] = w->p->init_arg * (2 * hvt__unit(hvt__draw(w->seed, w->name, i, 0)) - 1);
        break;
    case HVT_INIT_FILL:
        for (size_t i = first; i < end; i++)
            w->x[i] = w->p->init_arg;
    }
}

/* Filter k becomes 1 at the centre of channel k, and 0 elsewhere. */
static void set_identity(const hvt_param *p, float *x)
{
    const size_t taps = (size_t)p->dim[2] * (size_t)p->dim[3], channels = (size_t)p->dim[1];
    const size_t centre = (size_t)(p->dim[2] / 2 * p->dim[3] + p->dim[3] / 2);

    for (size_t k = 0; k < channels && k < (size_t)p->dim[0]; k++) {
        memset(x + k * channels * taps, 0, channels * taps * sizeof *x);
        x[(k * channels + k) * taps + centre] = 1;
    }
}

static void fill(hvt_device *d, const hvt_param *p, uint64_t seed, float *x)
{
    drawing w = {p, seed, hvt__hash_text(HVT_HASH_INIT, p->name), x};
    const int jobs = (int)((p->elements + BLOCK - 1) / BLOCK);

    hvt__jobs(d, jobs, draw_job, &w);
    if (p->init == HVT_INIT_DIRAC)
        set_identity(p, x);
}

hvt_status hvt_model_restart(hvt_model *m, uint64_t seed)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch, E_ARG, "call hvt_model_plan() before initialisation");

    m->tracked = 0;
    m->seed = seed;
    m->inits++;
    m->backward_pending = false;
    HVT_TRY(hvt__step_restart(m));
    return hvt_model_take_loss(m, &(hvt_loss){0});
}

hvt_status hvt_model_set_tracked(hvt_model *m, int64_t batches)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(m->batch && batches >= 0, E_ARG, "%lld tracked batches; expected %s", (long long)batches,
              m->batch ? "0 or more" : "hvt_model_plan() before");
    m->tracked = batches;
    return HVT_OK;
}

hvt_status hvt_model_init(hvt_model *m, uint64_t seed)
{
    HVT_TRY(hvt_model_restart(m, seed));

    hvt_status s = HVT_OK;
    size_t most = hvt__model_largest(m);
    float *x = malloc(most * sizeof *x);

    HVT_CHECK(x, E_MEM, "no memory for %zu floats of a parameter", most);
    for (int i = 0; i < m->nparam_tensors; i++) {
        fill(m->dev, &m->param[i], seed, x);
        HVT_TRY_OR(done, hvt__model_import(m, &m->param[i], m->params, x));
    }
    for (const hvt_stat *t = m->stat; t < m->stat + m->nstat; t++) {
        for (size_t i = 0; i < t->count; i++)
            x[i] = t->fill;
        HVT_TRY_OR(done, hvt_device_upload(m->dev, m->stats + t->offset, x, t->count * sizeof *x));
    }
done:
    free(x);
    return s;
}
