/*
 * Names of classes. Labels and the model's outputs are numbers. Data with other classes than the training
 * data, in order or number, number them differently. Checkpoints therefore hold the names of the training
 * data's classes: labels are matched by name if both sides have names, and predictions of pictures without
 * labels have names, too.
 *
 * --classes N says that labels are numbers of the model's N outputs: then nothing is matched.
 *
 * Names are JSON texts, on rank 0 only; bytes that are not UTF-8 become '?'.
 */
#include "run.h"
#include "base_impl.h"

/* The set's names as a JSON array; NULL if it has none. */
static hvt_status names_of(const hvt_dataset *set, json_t **ret_names)
{
    int n = hvt_dataset_describe(set)->classes, bad = 0;
    json_t *names = json_array();

    for (int i = 0; i < n && hvt_dataset_class_name(set, 0); i++) {
        const char *name = hvt_dataset_class_name(set, i);

        bad |= json_array_append_new(names, hvt__json_text(name ? name : ""));
    }
    *ret_names = json_array_size(names) && !bad ? json_incref(names) : NULL;
    json_decref(names);
    HVT_CHECK(names && !bad, E_MEM, "no memory for the names of %d classes", n);
    return HVT_OK;
}

/* The name of class i; "" if there is no such class. */
static const char *name_at(const json_t *names, size_t i)
{
    const char *name = json_string_value(json_array_get(names, i));

    return name ? name : "";
}

/* How the labels of the sets that this run has opened are changed. */
typedef enum labels { AS_THEY_ARE, BY_NAME, LEFT_OUT } labels;

typedef struct matching {
    const run *t;
    const char *path; /* of the weights */
    const json_t *own, *saved;
    int32_t *map;    /* [own] index among the saved names; -1: none */
    size_t unknown;  /* names without an index */
    char names[600]; /* some of them */
} matching;

static hvt_status match_names(matching *m)
{
    size_t n = json_array_size(m->own), used = 0;
    json_t *at = json_object();

    for (size_t k = 0; k < json_array_size(m->saved); k++) {
        const char *name = name_at(m->saved, k);
        bool twice = json_object_get(at, name); /* possible for names that are not UTF-8 */

        json_object_set_new(at, name, json_integer(twice ? -1 : (json_int_t)k));
    }
    m->map = calloc(n + 1, sizeof *m->map);
    for (size_t i = 0; m->map && i < n; i++) {
        const json_t *number = json_object_get(at, name_at(m->own, i));

        m->map[i] = number ? (int32_t)json_integer_value(number) : -1;
        if (m->map[i] >= 0)
            continue;
        if (m->unknown++ < 5 && used < sizeof m->names)
            used += (size_t)snprintf(m->names + used, sizeof m->names - used, "%s%.100s", used ? ", " : "",
                                     name_at(m->own, i));
    }
    if (m->unknown > 5 && used < sizeof m->names)
        snprintf(m->names + used, sizeof m->names - used, " and %zu more", m->unknown - 5);
    json_decref(at);
    HVT_CHECK(at && m->map, E_MEM, "no memory to match %zu names of classes", n);
    return HVT_OK;
}

static bool predicts(const run *t)
{
    return *t->opts->predict || *t->opts->predict_logits;
}

/* Decides about data with names that the model does not have. */
static hvt_status judge_unknown(const matching *m, labels *ret_labels)
{
    size_t n = json_array_size(m->own), all = json_array_size(m->saved), first = n, others = 0;

    if (m->t->opts->evaluate && predicts(m->t)) {
        HVT_WARN("%s does not have these classes of the data: %s; their pictures are predicted, and labels "
                 "are not compared (--classes %zu uses labels as output numbers)",
                 m->path, m->names, all);
        *ret_labels = LEFT_OUT;
        return HVT_OK;
    }
    HVT_CHECK(m->unknown == n && n == all, E_ARG,
              "%s (%zu classes) does not have these classes of the data: %s; expected its class names, or "
              "--classes %zu, which uses labels as output numbers%s",
              m->path, all, m->names, all,
              m->t->opts->evaluate ? "" : ", or --init FILE --reset-head, which trains a new head");
    for (size_t i = n; i-- > 0;)
        if (strcmp(name_at(m->own, i), name_at(m->saved, i))) {
            first = i;
            others++;
        }
    HVT_WARN("%zu of the data's %zu classes have other names than in %s: class %zu is '%.100s' here and "
             "'%.100s' there; classes are compared by number%s",
             others, n, m->path, first, name_at(m->own, first), name_at(m->saved, first),
             m->t->opts->evaluate ? "" : ", so --init FILE --reset-head would start with a new head");
    return HVT_OK;
}

/* Decides if both sides have names. */
static hvt_status judge_names(matching *m, labels *ret_labels)
{
    if (json_equal(m->own, m->saved))
        return HVT_OK;
    HVT_TRY(match_names(m));
    if (m->unknown)
        return judge_unknown(m, ret_labels);
    *ret_labels = BY_NAME;
    HVT_INFO("note: the data have %zu of the %zu classes of %s; labels are matched by name",
             json_array_size(m->own), json_array_size(m->saved), m->path);
    return HVT_OK;
}

/* Checks numbers of classes if a side has no names. */
static hvt_status judge_numbers(const matching *m)
{
    const run *t = m->t;
    const hvt_dataset_info *data = hvt_dataset_describe(t->test_set);
    int outputs = t->file ? hvt_pt2_describe(t->file).classes : 0, n = data->classes;

    if (!t->opts->evaluate || data->unlabelled || (*m->path && hvt__weights_classes(m->path, &outputs)))
        return HVT_OK; /* loading the weights reports the error */
    HVT_CHECK(!m->own || outputs <= n, E_ARG,
              "the model has %d outputs, the data have %d classes (%s, ...), and %s does not name its "
              "classes: expected as many, --classes %d, which uses labels as output numbers, or --init FILE "
              "--reset-head, which trains a new head",
              outputs, n, name_at(m->own, 0), *m->path ? m->path : t->opts->model, outputs);
    if (outputs > n)
        HVT_WARN("the model has %d outputs, and the labels of data set '%s' go up to %d: labels are used as "
                 "output numbers",
                 outputs, data->name, n - 1);
    return HVT_OK;
}

/* On rank 0: reads the names of both sides, and decides how labels change. */
static hvt_status find_names(run *t, matching *m, json_t **ret_own, json_t **ret_saved, labels *ret_labels)
{
    const hvt_options *o = t->opts;
    bool given = o->from[HVT__AT_classes] > HVT_FROM_CHECKPOINT;

    HVT_TRY(names_of(t->train_set ? t->train_set : t->test_set, ret_own));
    if (*m->path && !o->reset_head && hvt__weights_class_names(m->path, ret_saved))
        *ret_saved = NULL; /* loading the weights reports the error */
    m->own = *ret_own;
    m->saved = *ret_saved;
    if (given || o->reset_head || hvt_loss_has_targets(t->set.loss.kind) || t->masks)
        return HVT_OK;
    return m->own && m->saved ? judge_names(m, ret_labels) : judge_numbers(m);
}

/* Changes the sets of all ranks as rank 0 has decided. */
static hvt_status apply(run *t, int32_t *map, labels found, int classes)
{
    int64_t now[2] = {found, classes};
    int n = hvt_dataset_describe(t->train_set ? t->train_set : t->test_set)->classes;
    hvt_status s = HVT_OK;

    HVT_TRY(hvt_world_broadcast(t->world, now, sizeof now, 0));
    if (now[0] == AS_THEY_ARE || !t->opened[1]) /* the caller's sets do not change */
        return HVT_OK;
    if (!map)
        map = calloc((size_t)n + 1, sizeof *map);
    s = hvt_world_agree(t->world, map ? HVT_OK : HVT_FAIL(E_MEM, "no memory to match %d classes", n));
    if (s == HVT_OK)
        s = hvt_world_broadcast(t->world, map, ((size_t)n + 1) * sizeof *map, 0);
    for (int i = 0; i < 2 && s == HVT_OK; i++)
        if (t->opened[i])
            s = hvt_dataset_relabel(t->opened[i], now[0] == BY_NAME ? map : NULL, (int)now[1]);
    free(map);
    return hvt_world_agree(t->world, s);
}

hvt_status hvt__find_class_names(run *t)
{
    const char *path = *t->opts->init ? t->opts->init : t->opts->resume;
    json_t *own = NULL, *saved = NULL;
    matching m = {.t = t, .path = path};
    labels found = AS_THEY_ARE;
    hvt_status s = t->rank == 0 ? find_names(t, &m, &own, &saved, &found) : HVT_OK;
    int classes = (int)json_array_size(saved);

    if (!t->opened[1]) /* the caller's sets */
        found = AS_THEY_ARE;
    t->class_names = json_incref(own && t->train_set && found != BY_NAME ? own : saved);
    if (!t->train_set && json_equal(own, saved)) { /* the data's names are the same */
        json_decref(t->class_names);
        t->class_names = NULL;
    }
    json_decref(own);
    json_decref(saved);
    s = hvt_world_agree(t->world, s);
    if (s == HVT_OK && found == AS_THEY_ARE) {
        free(m.map);
        m.map = NULL;
    }
    if (s != HVT_OK)
        free(m.map);
    return s ? s : apply(t, m.map, found, classes);
}
