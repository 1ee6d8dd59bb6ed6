/* The optimizer's state: its size, access to all of it, and the number of updates. */
#include "optim_impl.h"
#include "base_impl.h"

int hvt__optim_arenas(const hvt_optim_opts *opts)
{
    return hvt__optim_rules[opts->kind].states(opts) + (opts->ema.decay > 0 || opts->ema.equal);
}

size_t hvt__optim_bytes(const hvt_optim_opts *opts, const hvt_model *m)
{
    return (size_t)hvt__optim_arenas(opts) * m->grad_count * sizeof(float);
}

hvt_status hvt__optim_state(hvt_optim *o, bool write, float **ret_v)
{
    hvt_device *dev = o->m->dev;

    if (o->sliced && !o->whole && write)
        HVT_TRY(dev->ops->memory.alloc(dev, hvt__optim_bytes(&o->opts, o->m), (void **)&o->whole));
    HVT_CHECK(!o->sliced || o->whole, E_ARG,
              "the optimizer's state is sharded over the ranks; call hvt_distopt_gather() first");
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

hvt_status hvt__optim_set_updates(hvt_optim *o, int64_t updates)
{
    hvt_step_state s;

    HVT_TRY(hvt__model_state(o->m, &s));
    memcpy(s.beta, o->opts.betas, sizeof s.beta);
    s.updates = updates;
    s.fresh = updates == 0;
    s.apply = 0;
    s.ema_decay = o->opts.ema.decay;
    s.ema_every = o->arenas == o->states || o->opts.ema.equal ? 0 : o->opts.ema.every ? o->opts.ema.every : 1;
    s.ema_count = 0;
    return hvt__model_set_state(o->m, &s);
}
