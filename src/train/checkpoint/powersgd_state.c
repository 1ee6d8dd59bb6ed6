/*
 * What gradients that travel as factors leave from step to step, as a file: of each such tensor Q, and of
 * each rank what its factors did not carry, in the tensor's canonical layout.
 *
 * Tensors are found by name and shape. Those that are not there, as with another rank of the factors, keep
 * what they have: the first Q, and nothing left.
 */
#include "powersgd_state.h"
#include "train_impl.h"
#include "base_impl.h"

#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct file {
    hvt_model *m;
    const hvt__powersgd_state *memory;
} file;

/* item.id: -1 - i for tensor i's Q, rank * n + i for what it left. */
static void name_q(const file *f, int i, hvt_st_item *ret_item)
{
    const hvt__powersgd_tensor *t = &f->memory->tensor[i];

    *ret_item = (hvt_st_item){.type = HVT_ST_F32, .ndim = 2, .dim = {f->memory->r, t->m}, .id = -1 - i};
    snprintf(ret_item->name, sizeof ret_item->name, "powersgd.q.%s", f->m->param[t->param].name);
}

static void name_rest(const file *f, int rank, int i, hvt_st_item *ret_item)
{
    const hvt_param *p = &f->m->param[f->memory->tensor[i].param];

    *ret_item = (hvt_st_item){.type = HVT_ST_F32, .ndim = p->ndim, .id = rank * f->memory->n + i};
    for (int d = 0; d < p->ndim; d++)
        ret_item->dim[d] = p->dim[d];
    snprintf(ret_item->name, sizeof ret_item->name, "powersgd.rest.%d.%s", rank, p->name);
}

/* What rank r left of tensor i, as an arena of its own. */
static float *rest_of(const hvt__powersgd_state *memory, int rank, int i)
{
    return memory->residual + (size_t)rank * memory->residual_count + memory->tensor[i].residual_at;
}

/* The tensor, as it lies there. */
static hvt_param at_zero(const file *f, int i)
{
    hvt_param p = f->m->param[f->memory->tensor[i].param];

    p.offset = 0;
    return p;
}

/* ---- saving ---- */

static hvt_status fetch(void *ctx, const hvt_st_item *item, void *data)
{
    const file *f = ctx;
    const hvt__powersgd_state *memory = f->memory;
    int i = item->id < 0 ? -1 - item->id : item->id % memory->n;
    const hvt_param p = at_zero(f, i);

    if (item->id < 0)
        memcpy(data, memory->q + memory->tensor[i].q_at,
               (size_t)memory->r * (size_t)memory->tensor[i].m * sizeof(float));
    else
        HVT_TRY(hvt__model_export(f->m, &p, rest_of(memory, item->id / memory->n, i), data));
    return HVT_OK;
}

hvt_status hvt__memory_save(const char *path, hvt_model *m, const hvt__powersgd_state *memory,
                            const char *weights)
{
    char ranks[24], unit[40];
    const hvt_st_pair meta[] = {
        {"hvtrain", HVT_VERSION}, {"weights", weights}, {"ranks", ranks}, {"unit", unit}};
    file f = {m, memory};
    int with_rest = memory->residual_scale != 0 ? memory->ranks : 0, n = 0;
    hvt_st_item *items = calloc((size_t)memory->n * (size_t)(1 + with_rest) + 1, sizeof *items);
    hvt_status s;

    HVT_CHECK(items, E_MEM, "no memory to list what the gradients of %d ranks left", memory->ranks);
    snprintf(ranks, sizeof ranks, "%d", memory->ranks);
    snprintf(unit, sizeof unit, "%.17g", memory->residual_scale);
    for (int i = 0; i < memory->n; i++)
        name_q(&f, i, &items[n++]);
    for (int r = 0; r < with_rest; r++)
        for (int i = 0; i < memory->n; i++)
            name_rest(&f, r, i, &items[n++]);
    s = hvt__st_write(path, items, n, meta, HVT_LEN(meta), fetch, &f);
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

static hvt_status load_tensors(hvt_st *st, hvt_model *m, hvt__powersgd_state *memory)
{
    file f = {m, memory};
    hvt_st_item want;
    const hvt_st_tensor *t;
    float *buf = malloc(hvt__model_largest(m) * sizeof *buf);
    hvt_status s = HVT_OK;

    HVT_CHECK(buf, E_MEM, "no memory to read %s", hvt__st_path(st));
    for (int i = 0; i < memory->n; i++) {
        const hvt_param p = at_zero(&f, i);

        name_q(&f, i, &want);
        t = find(st, &want);
        if (t)
            HVT_TRY_OR(done, hvt__st_f32(st, t, memory->q + memory->tensor[i].q_at));
        for (int r = 0; memory->residual_scale != 0 && r < memory->ranks; r++) {
            name_rest(&f, r, i, &want);
            t = find(st, &want);
            if (!t)
                continue;
            HVT_TRY_OR(done, hvt__st_f32(st, t, buf));
            HVT_TRY_OR(done, hvt__model_import(m, &p, rest_of(memory, r, i), buf));
        }
    }
done:
    free(buf);
    return s;
}

static hvt_status load(hvt_st *st, hvt_model *m, hvt__powersgd_state *memory, const char *weights)
{
    enum { RANKS_MOST = 1 << 20 };
    const char *belongs = hvt__st_meta(st, "weights"), *ranks = hvt__st_meta(st, "ranks"),
               *unit = hvt__st_meta(st, "unit");
    long n = ranks ? strtol(ranks, NULL, 10) : 0;
    double in = unit ? strtod(unit, NULL) : -1;

    HVT_CHECK(belongs && weights && !strcmp(belongs, weights), E_FORMAT,
              "%s belongs to the weights %.20s, expected %.20s", hvt__st_path(st), belongs ? belongs : "?",
              weights ? weights : "?");
    HVT_CHECK(n > 0 && n <= RANKS_MOST && in >= 0 && isfinite(in), E_FORMAT,
              "%s: metadata ranks is '%.20s' and unit '%.40s', expected a count and a number",
              hvt__st_path(st), ranks ? ranks : "", unit ? unit : "");
    HVT_TRY(hvt__st_verify(st));
    HVT_TRY(hvt__powersgd_state_alloc(memory, (int)n));
    memory->residual_scale = in;
    HVT_TRY(load_tensors(st, m, memory));
    memory->loaded = true;
    return HVT_OK;
}

hvt_status hvt__memory_load(const char *path, hvt_model *m, hvt__powersgd_state *memory, const char *weights)
{
    hvt_st *st = NULL;
    hvt_status s;

    HVT_TRY(hvt__st_open(path, &st));
    s = load(st, m, memory, weights);
    hvt__st_close(&st);
    return s;
}
