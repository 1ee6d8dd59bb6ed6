/*
 * Parameter groups: parameters, selected by prefixes of their names, with their own learning rate and weight
 * decay.
 */
#include "optim_impl.h"
#include "base_impl.h"

#include <math.h>

/* Marks in chosen[nparam_tensors] the parameters whose names a prefix fits. */
static hvt_status choose(const hvt_optim *o, const char *prefix, size_t len, bool *chosen)
{
    const hvt_model *m = o->m;
    char names[600];
    bool fits = false;

    HVT_CHECK(len, E_ARG, "parameter group '%s': expected names separated by commas", prefix);
    for (int i = 0; i < m->nparam_tensors; i++) {
        if (!hvt__begins_with(m->param[i].name, prefix, len))
            continue;
        HVT_CHECK(!o->group || !o->group[i].own, E_ARG,
                  "%s is in two parameter groups, '%.*s' and an earlier one", m->param[i].name, (int)len,
                  prefix);
        chosen[i] = fits = true;
    }
    if (!fits)
        hvt__model_names(m, names, sizeof names);
    HVT_CHECK(fits, E_ARG, "a parameter group: no parameter's name begins with '%.*s'; they begin with %s",
              (int)len, prefix, names);
    return HVT_OK;
}

static hvt_status check(const hvt_optim *o, double lr_scale, double weight_decay)
{
    const hvt_device *dev = o->m->dev;

    HVT_CHECK(!o->users.count[HVT__USER_DISTOPT], E_ARG,
              "parameter groups must be added before the distributed optimizer is created");
    HVT_CHECK(isfinite((float)lr_scale) && lr_scale >= 0, E_ARG,
              "a parameter group's learning rate factor is %g, expected 0 or more", lr_scale);
    HVT_CHECK(isfinite((float)weight_decay) && weight_decay >= 0, E_ARG,
              "a parameter group's weight decay is %g, expected 0 or more", weight_decay);
    HVT_CHECK(lr_scale == 1 || dev->ops->host, E_UNSUPPORTED,
              "learning rates of parameter groups need a device of the host's memory, not %s",
              dev->ops->name);
    return HVT_OK;
}

hvt_status hvt_optim_group(hvt_optim *o, const char *prefixes, double lr_scale, double weight_decay)
{
    HVT_GIVEN(o, "an optimizer");
    HVT_GIVEN(prefixes, "prefixes of names");

    size_t n = (size_t)o->m->nparam_tensors, len;
    const char *at = prefixes, *prefix;
    bool *chosen;
    hvt_status s = HVT_OK;

    HVT_TRY(check(o, lr_scale, weight_decay));
    if (!o->group)
        o->group = calloc(n, sizeof *o->group);
    chosen = calloc(n, sizeof *chosen);
    HVT_CHECK_OR(done, o->group && chosen, E_MEM, "no memory for groups of %zu parameters", n);
    while ((prefix = hvt__next_item(&at, &len)))
        HVT_TRY_OR(done, choose(o, prefix, len, chosen));
    for (size_t i = 0; i < n; i++)
        if (chosen[i])
            o->group[i] = (hvt__group){true, (float)lr_scale, (float)weight_decay, 1};
done:
    free(chosen);
    return s;
}

hvt__group hvt__optim_group_of(const hvt_optim *o, const hvt_param *p)
{
    size_t i = (size_t)(p - o->m->param);
    hvt__group group = {false, 1, o->opts.weight_decay, 1};

    if (o->group && o->group[i].own)
        group = o->group[i];
    if ((p->role == HVT_ROLE_NORM && o->opts.no_decay_norm) ||
        (p->role == HVT_ROLE_BIAS && o->opts.no_decay_bias))
        group.weight_decay = 0;
    return group;
}
