/*
 * PowerSGD's state as a file: for each compressed tensor the matrix Q, and for each rank the residual, in the
 * tensor's canonical layout.
 *
 * Tensors are matched by name and shape. Where there is no match, as after a change of R, a tensor keeps its
 * initial Q and a residual of zero.
 */
#include "powersgd_state.h"
#include "checkpoint_impl.h"
#include "base_impl.h"

#include "config.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

typedef struct file {
    hvt_model *m;
    const hvt__powersgd_state *state;
} file;

/* item.id: -1 - i for tensor i's Q, rank * n + i for its residual. */
static void name_q(const file *f, int i, hvt_st_item *ret_item)
{
    const hvt__powersgd_tensor *t = &f->state->tensor[i];

    *ret_item = (hvt_st_item){.type = HVT_ST_F32, .ndim = 2, .dim = {f->state->r, t->m}, .id = -1 - i};
    snprintf(ret_item->name, sizeof ret_item->name, "powersgd.q.%s", f->m->param[t->param].name);
}

static void name_residual(const file *f, int rank, int i, hvt_st_item *ret_item)
{
    const hvt_param *p = &f->m->param[f->state->tensor[i].param];

    *ret_item = (hvt_st_item){.type = HVT_ST_F32, .ndim = p->ndim, .id = rank * f->state->n + i};
    for (int d = 0; d < p->ndim; d++)
        ret_item->dim[d] = p->dim[d];
    snprintf(ret_item->name, sizeof ret_item->name, "powersgd.rest.%d.%s", rank, p->name);
}

/* The residual of tensor i on rank r. */
static float *residual_of(const hvt__powersgd_state *state, int rank, int i)
{
    return state->residual + (size_t)rank * state->residual_count + state->tensor[i].residual_at;
}

/* The parameter, with an offset of 0. */
static hvt_param at_zero(const file *f, int i)
{
    hvt_param p = f->m->param[f->state->tensor[i].param];

    p.offset = 0;
    return p;
}

/* ---- saving ---- */

static hvt_status fetch(void *ctx, const hvt_st_item *item, void *data)
{
    const file *f = ctx;
    const hvt__powersgd_state *state = f->state;
    int i = item->id < 0 ? -1 - item->id : item->id % state->n;
    const hvt_param p = at_zero(f, i);

    if (item->id < 0)
        memcpy(data, state->q + state->tensor[i].q_at,
               (size_t)state->r * (size_t)state->tensor[i].m * sizeof(float));
    else
        HVT_TRY(hvt__model_export(f->m, &p, residual_of(state, item->id / state->n, i), data));
    return HVT_OK;
}

hvt_status hvt__powersgd_state_save(const char *path, hvt_model *m, const hvt__powersgd_state *state,
                                    const char *weights)
{
    json_t *meta = json_pack("{s:s, s:s, s:i, s:f}", "version", HVT_VERSION, "weights", weights, "ranks",
                             state->ranks, "unit", state->residual_scale);
    file f = {m, state};
    int with_residuals = state->residual_scale != 0 ? state->ranks : 0, n = 0;
    hvt_st_item *items = calloc((size_t)state->n * (size_t)(1 + with_residuals) + 1, sizeof *items);
    hvt_status s;

    HVT_CHECK_OR(done, items, E_MEM, "no memory to list the residuals of %d ranks", state->ranks);
    for (int i = 0; i < state->n; i++)
        name_q(&f, i, &items[n++]);
    for (int r = 0; r < with_residuals; r++)
        for (int i = 0; i < state->n; i++)
            name_residual(&f, r, i, &items[n++]);
    s = hvt__st_write(path, items, n, meta, fetch, &f);
done:
    json_decref(meta);
    free(items);
    return s;
}

/* ---- loading ---- */

static const hvt_st_tensor *find(const hvt_st *st, const hvt_st_item *want)
{
    const hvt_st_tensor *t = hvt__st_find(st, want->name);

    if (!t || t->type != HVT_ST_F32 || t->ndim != want->ndim ||
        memcmp(t->dim, want->dim, (size_t)want->ndim * sizeof *want->dim) != 0)
        return NULL;
    return t;
}

static hvt_status load_tensors(hvt_st *st, hvt_model *m, hvt__powersgd_state *state)
{
    file f = {m, state};
    hvt_st_item want;
    const hvt_st_tensor *t;
    float *buf = malloc(hvt__model_largest(m) * sizeof *buf);
    hvt_status s = HVT_OK;

    HVT_CHECK(buf, E_MEM, "no memory to read %s", hvt__st_path(st));
    for (int i = 0; i < state->n; i++) {
        const hvt_param p = at_zero(&f, i);

        name_q(&f, i, &want);
        t = find(st, &want);
        if (t)
            HVT_TRY_OR(done, hvt__st_f32(st, t, state->q + state->tensor[i].q_at));
        for (int r = 0; state->residual_scale != 0 && r < state->ranks; r++) {
            name_residual(&f, r, i, &want);
            t = find(st, &want);
            if (!t)
                continue;
            HVT_TRY_OR(done, hvt__st_f32(st, t, buf));
            HVT_TRY_OR(done, hvt__model_import(m, &p, residual_of(state, r, i), buf));
        }
    }
done:
    free(buf);
    return s;
}

hvt_status hvt__powersgd_state_load(hvt_st *st, const json_t *meta, hvt_model *m, hvt__powersgd_state *state)
{
    enum { RANKS_MOST = 1 << 20 };
    double ranks, unit;

    HVT_TRY(hvt__metadata_number(st, meta, "ranks", RANKS_MOST, &ranks));
    HVT_TRY(hvt__metadata_number(st, meta, "unit", FLT_MAX, &unit));
    HVT_CHECK(ranks >= 1 && unit >= 0, E_FORMAT,
              "%s: metadata ranks is %g and unit %g, expected a count and a number from 0 on",
              hvt__st_path(st), ranks, unit);
    HVT_TRY(hvt__powersgd_state_alloc(state, (int)ranks));
    state->residual_scale = unit;
    HVT_TRY(load_tensors(st, m, state));
    state->loaded = true;
    return HVT_OK;
}
