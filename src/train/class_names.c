/*
 * What classes are called. Labels and the model's outputs are compared by number alone, so data whose classes
 * are sorted otherwise than those of training silently give a wrong accuracy. Checkpoints therefore hold the
 * names that the training data had: predictions of pictures without labels have them, too, and data with
 * other names are noticed.
 *
 * Names are JSON texts, on rank 0 alone; of what is not UTF-8 the odd bytes are '?' there.
 */
#include "run.h"
#include "base_impl.h"

/* NULL: the set has none. */
static hvt_status names_of(const hvt_dataset *set, json_t **ret_names)
{
    int n = hvt_dataset_describe(set)->classes, bad = 0;
    json_t *names = json_array();

    for (int i = 0; i < n && hvt_dataset_class_name(set, 0); i++) {
        const char *name = hvt_dataset_class_name(set, i);

        bad |= json_array_append_new(names, hvt__json_text(name ? name : ""));
    }
    *ret_names = json_array_size(names) ? json_incref(names) : NULL;
    json_decref(names);
    if (bad)
        json_decref(*ret_names);
    HVT_CHECK(names && !bad, E_MEM, "no memory for the names of %d classes", n);
    return HVT_OK;
}

/* "": there is no such class. */
static const char *name_at(const json_t *names, size_t i)
{
    const char *name = json_string_value(json_array_get(names, i));

    return name ? name : "";
}

/* Of the data's classes, which may be fewer. */
static void warn_of_others(const run *t, const char *path, const json_t *own, const json_t *saved)
{
    size_t n = json_array_size(own), first = n, others = 0;
    const char *advice = t->opts->evaluate ? "loss and top-1 are wrong"
                                           : "--init FILE --reset-head would start with a new head";

    for (size_t i = n; i-- > 0;)
        if (strcmp(name_at(own, i), name_at(saved, i))) {
            first = i;
            others++;
        }
    if (others)
        HVT_WARN("%zu of the data's %zu classes have other names than in %s: class %zu is '%.100s' here and "
                 "'%.100s' there; classes are compared by number, so %s",
                 others, n, path, first, name_at(own, first), name_at(saved, first), advice);
}

hvt_status hvt__find_class_names(run *t)
{
    const hvt_options *o = t->opts;
    const char *path = *o->init ? o->init : o->resume;
    json_t *own, *saved = NULL;

    HVT_TRY(names_of(t->train_set ? t->train_set : t->test_set, &own));
    if (*path && !o->reset_head && hvt__weights_class_names(path, &saved))
        saved = NULL; /* loading the weights tells what is wrong */
    if (own && saved)
        warn_of_others(t, path, own, saved);
    t->class_names = json_incref(own && t->train_set ? own : saved);
    if (!t->train_set && json_equal(own, saved)) { /* the data's are as good */
        json_decref(t->class_names);
        t->class_names = NULL;
    }
    json_decref(own);
    json_decref(saved);
    return HVT_OK;
}
