/*
 * An optimizer's state, and the walk over a span of the arenas.
 *
 * An update is elementwise, so a step may be done span by span, cut anywhere. Parameters differ only in
 * whether they are decayed; neighbours that agree in this are updated in one run, together with the padding
 * between them, which is zero in every arena and stays zero.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <stdlib.h>

hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim)
{
    HVT_GIVEN(m, "a model");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_optim, "a place for the optimizer");

    const hvt_optim_ops *ops = &hvt_optim_sgd;
    hvt_optim *o = NULL;
    hvt_status s;

    HVT_CHECK(m->arena_count, E_ARG, "an optimizer needs a planned model; call hvt_model_plan() first");
    HVT_TRY(ops->check(opts));
    o = calloc(1, sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for an optimizer (%zu bytes)", sizeof *o);
    *o = (hvt_optim){.ops = ops, .m = m, .opts = *opts};
    hvt__use(&m->users, HVT__USER_OPTIM, 1);
    HVT_TRY_OR(fail, hvt__optim_set_fresh(o, true));
    if (ops->keeps_state(opts))
        HVT_TRY_OR(fail, m->dev->ops->alloc(m->dev, m->arena_count * sizeof *o->v, (void **)&o->v));
    *ret_optim = o;
    return HVT_OK;
fail:
    hvt_optim_free(&o);
    return s;
}

void hvt_optim_free(hvt_optim **optim)
{
    hvt_optim *o = optim ? *optim : NULL;

    if (!o)
        return;
    if (hvt__in_use(&o->users, "an optimizer"))
        return;
    o->m->dev->ops->release(o->m->dev, o->v);
    o->m->dev->ops->release(o->m->dev, o->whole);
    hvt__use(&o->m->users, HVT__USER_OPTIM, -1);
    free(o);
    *optim = NULL;
}

hvt_status hvt__optim_state(hvt_optim *o, bool write, float **ret_v)
{
    hvt_device *dev = o->m->dev;

    if (o->sliced && !o->whole && write)
        HVT_TRY(dev->ops->alloc(dev, o->m->arena_count * sizeof *o->whole, (void **)&o->whole));
    HVT_CHECK(!o->sliced || o->whole, E_ARG,
              "the optimizer's state lies in slices on the ranks; hvt_distopt_gather() brings it here");
    o->loaded = o->loaded || (o->sliced && write);
    *ret_v = o->sliced ? o->whole : o->v;
    return HVT_OK;
}

hvt_status hvt__optim_fresh(const hvt_optim *o, bool *ret_fresh)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(o->m, &s));
    *ret_fresh = s.fresh && !s.apply;
    return HVT_OK;
}

hvt_status hvt__optim_set_fresh(hvt_optim *o, bool fresh)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(o->m, &s));
    s.fresh = fresh;
    s.apply = 0;
    return hvt__model_set_state(o->m, &s);
}

static bool decayed(const hvt_optim *o, const hvt_param *p)
{
    if (p->role == HVT_ROLE_NORM && o->opts.no_decay_norm)
        return false;
    if (p->role == HVT_ROLE_BIAS && o->opts.no_decay_bias)
        return false;
    return o->opts.weight_decay != 0;
}

/* The last parameter that begins at or before `offset`; the first one if none does. */
static int param_at(const hvt_model *m, size_t offset)
{
    int low = 0, high = m->nparam_tensors;

    while (low < high) {
        int mid = low + (high - low) / 2;

        if (m->param[mid].offset <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? low - 1 : 0;
}

hvt_status hvt__optim_span(hvt_optim *o, const float *const g[], int ng, const float *at[], size_t first,
                           size_t end)
{
    const hvt_model *m = o->m;
    const hvt_param *p = m->param + param_at(m, first), *last = m->param + m->nparam_tensors;

    while (p < last && p->offset < end) {
        bool decay = decayed(o, p);
        size_t from = p->offset < first ? first : p->offset, to = from;

        for (; p < last && p->offset < end && decayed(o, p) == decay; p++)
            to = p->offset + p->count;
        to = to < end ? to : end;
        if (to <= from) /* `first` lies in padding */
            continue;
        for (int r = 0; r < ng; r++)
            at[r] = g[r] + (from - first);
        HVT_TRY(o->ops->update(o, decay ? o->opts.weight_decay : 0, at, ng, from, to - from));
    }
    return HVT_OK;
}
