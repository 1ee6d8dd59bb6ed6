/*
 * PowerSGD's state as a file: the matrix Q of each compressed tensor, and the residual of each rank, in the
 * tensor's canonical layout.
 *
 * Tensors are matched by name and shape. Without a match, as after a change of R, a tensor keeps its initial
 * Q and a residual of zero.
 */
#include "snapshot.h"
#include "base_impl.h"

#include <float.h>

enum { Q = -1 }; /* instead of a rank: Q */

/* Tensor i's matrix Q, or its residual on a rank; id: (rank + 1) * n + i. */
static hvt_st_item item_of(const hvt_model *m, const hvt__powersgd_state *state, int rank, int i)
{
    const hvt__powersgd_tensor *t = &state->tensor[i];
    const hvt_param *p = &m->param[t->param];
    hvt_st_item item = {.type = HVT_ST_F32, .ndim = 2, .dim = {state->r, t->m}};

    item.id = (rank + 1) * state->n + i;
    if (rank == Q) {
        snprintf(item.name, sizeof item.name, "powersgd.q.%s", p->name);
        return item;
    }
    snprintf(item.name, sizeof item.name, "powersgd.rest.%d.%s", rank, p->name);
    item.ndim = p->ndim;
    for (int d = 0; d < p->ndim; d++)
        item.dim[d] = p->dim[d];
    return item;
}

/* A rank's residuals: one arena. */
static float *residuals_of(const hvt__powersgd_state *state, int rank)
{
    return state->residual + (size_t)rank * state->residual_count;
}

/* The number of ranks whose residuals are in the file. */
static int ranks_of(const hvt__powersgd_state *state)
{
    return state->residual_scale != 0 ? state->ranks : 0;
}

static hvt_status fetch(void *ctx, const hvt_st_item *item, const void **ret_data)
{
    const hvt__snapshot *of = ctx;
    const hvt__powersgd_state *state = &of->powersgd;
    int i = item->id % state->n, rank = item->id / state->n - 1;

    *ret_data = rank == Q ? state->q + state->tensor[i].q_at
                          : hvt__snapshot_tensor(of, residuals_of(state, rank),
                                                 &of->m->param[state->tensor[i].param]);
    return HVT_OK;
}

hvt_status hvt__powersgd_state_save(const char *path, hvt__snapshot *of, json_t *meta)
{
    const hvt__powersgd_state *state = &of->powersgd;
    int n = 0;
    hvt_st_item *items = calloc((size_t)state->n * (size_t)(1 + ranks_of(state)) + 1, sizeof *items);
    hvt_status s;

    json_object_set_new(meta, "ranks", json_integer(state->ranks));
    json_object_set_new(meta, "unit", json_real(state->residual_scale));
    HVT_CHECK(items, E_MEM, "no memory to list the residuals of %d ranks", state->ranks);
    for (int rank = Q; rank < ranks_of(state); rank++)
        for (int i = 0; i < state->n; i++)
            items[n++] = item_of(of->m, state, rank, i);
    s = hvt__st_write(path, items, n, meta, fetch, of);
    free(items);
    return s;
}

static hvt_status load_tensor(hvt_st *st, hvt_optim *o, int rank, int i, float *buf)
{
    const hvt_st_item want = item_of(o->m, o->powersgd, rank, i);
    const hvt_st_tensor *t = hvt__st_find(st, want.name);

    if (!t || t->type != HVT_ST_F32 || t->ndim != want.ndim ||
        memcmp(t->dim, want.dim, (size_t)want.ndim * sizeof *want.dim) != 0)
        return HVT_OK;
    if (rank == Q)
        return hvt__st_f32(st, t, o->powersgd->q + o->powersgd->tensor[i].q_at);
    HVT_TRY(hvt__st_f32(st, t, buf));
    return hvt__model_import(o->m, &o->m->param[o->powersgd->tensor[i].param],
                             residuals_of(o->powersgd, rank), buf);
}

hvt_status hvt__powersgd_state_load(hvt_st *st, const json_t *meta, hvt_optim *o)
{
    enum { RANKS_MOST = 1 << 20 };
    hvt__powersgd_state *state = o->powersgd;
    double ranks, unit;
    float *buf;
    hvt_status s = HVT_OK;

    HVT_TRY(hvt__metadata_number(st, meta, "ranks", RANKS_MOST, &ranks));
    HVT_TRY(hvt__metadata_number(st, meta, "unit", FLT_MAX, &unit));
    HVT_CHECK(ranks >= 1 && unit >= 0, E_FORMAT,
              "%s: metadata ranks is %g and unit %g, expected a count, and a number that is 0 or more",
              st->path, ranks, unit);
    HVT_TRY(hvt__powersgd_state_alloc(state, (int)ranks));
    state->residual_scale = unit;
    buf = malloc(hvt__model_largest(o->m) * sizeof *buf);
    HVT_CHECK(buf, E_MEM, "no memory to read %s", st->path);
    for (int rank = Q; rank < ranks_of(state); rank++)
        for (int i = 0; i < state->n; i++)
            HVT_TRY_OR(done, load_tensor(st, o, rank, i, buf));
    state->loaded = true;
done:
    free(buf);
    return s;
}
