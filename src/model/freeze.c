/* Frozen parameters: matches parameter names with a list of prefixes. */
#include "base_impl.h"
#include "layers.h"

hvt_status hvt_model_freeze(hvt_model *m, const char *prefixes)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_freeze() before hvt_model_plan()");

    const char *at = prefixes && *prefixes ? prefixes : NULL;
    char *copy = at ? strdup(at) : NULL;
    size_t len;

    HVT_CHECK(copy || !at, E_MEM, "no memory for the names of frozen parameters");
    while (hvt__next_item(&at, &len))
        if (!len) {
            free(copy);
            return HVT_FAIL(E_ARG, "frozen parameters '%s': expected names separated by single commas",
                            prefixes);
        }
    free(m->freeze);
    m->freeze = copy;
    return HVT_OK;
}

hvt_status hvt_model_set_inference(hvt_model *m)
{
    HVT_GIVEN(m, "a model");
    HVT_CHECK(!m->batch, E_ARG, "call hvt_model_set_inference() before hvt_model_plan()");
    m->inference = true;
    return HVT_OK;
}

bool hvt__begins_with(const char *name, const char *prefix, size_t len)
{
    const bool whole = prefix[len - 1] == '$';

    len -= whole;
    return !strncmp(name, prefix, len) && !(whole && name[len]);
}

bool hvt__freeze_fits(const hvt_model *m, const char *name)
{
    const char *at = m->freeze, *prefix;
    size_t len;

    while ((prefix = hvt__next_item(&at, &len)))
        if (hvt__begins_with(name, prefix, len))
            return true;
    return false;
}

/* Returns the name of the layer's first parameter, which another layer may own; NULL if it has none. */
static const char *first_name(const hvt_model *m, const hvt_layer *l)
{
    return l->param[0] < 0 ? NULL : m->param[l->param[0]].name;
}

void hvt__model_names(const hvt_model *m, char *ret_text, size_t room)
{
    size_t used = 0;

    *ret_text = 0;
    for (const hvt_layer *l = m->layer; l < m->layer + m->nlayer && used < room; l++) {
        const char *name = first_name(m, l), *other;
        const size_t len = name ? strcspn(name, ".") : 0;
        bool listed = !name;

        for (const hvt_layer *k = m->layer; k < l && !listed; k++)
            listed = (other = first_name(m, k)) && strcspn(other, ".") == len && !strncmp(other, name, len);
        if (!listed)
            used +=
                (size_t)snprintf(ret_text + used, room - used, "%s%.*s", used ? ", " : "", (int)len, name);
    }
}

hvt_status hvt__freeze_check(const hvt_model *m)
{
    const char *at = m->freeze, *prefix;
    char names[600];
    size_t len;

    while ((prefix = hvt__next_item(&at, &len))) {
        bool any = false;

        for (int i = 0; i < m->nparam_tensors; i++)
            any = any || hvt__begins_with(m->param[i].name, prefix, len);
        if (!any)
            hvt__model_names(m, names, sizeof names);
        HVT_CHECK(any, E_ARG, "no parameter's name begins with '%.*s'; they begin with %s", (int)len, prefix,
                  names);
    }
    HVT_CHECK(!m->freeze || m->ntrained || m->inference, E_ARG,
              "all parameters are frozen: nothing is left to train");
    return HVT_OK;
}
