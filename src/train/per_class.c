/*
 * Accuracy per class: how many test images (or labelled pixels) each class has, and how many of them are
 * hits; of pixels also how many are predicted as the class, which gives the intersection over union. The
 * counts are integers, summed over the ranks with the other sums of an evaluation (eval.c), so they are exact
 * on any number of ranks and across an interruption.
 */
#include "run.h"
#include "base_impl.h"

#include <math.h>

enum {
    LOGGED = 1000, /* classes that are counted in any case */
    SPAN = 1 << 16 /* counts of all ranks that rank 0 gathers at once, at most */
};

hvt_status hvt__per_class_init(hvt__per_class *c, int classes, bool pixels, hvt_world *world)
{
    const int size = hvt_world_size(world), rank = hvt_world_rank(world);
    const int kinds = pixels ? 3 : 2, n = kinds * classes;

    c->now = calloc(2 * (size_t)n, sizeof *c->now);
    c->chunk = n < SPAN / size ? n : SPAN / size;
    c->chunk += !c->chunk;
    c->all = rank ? NULL : malloc((size_t)size * (size_t)c->chunk * sizeof *c->all);
    HVT_CHECK(c->now && (c->all || rank), E_MEM, "no memory for counts of %d classes", classes);
    c->begun = c->now + n;
    c->classes = classes;
    c->kinds = kinds;
    return HVT_OK;
}

void hvt__per_class_free(hvt__per_class *c)
{
    free(c->now);
    free(c->all);
    *c = (hvt__per_class){0};
}

hvt_status hvt__per_class_open(run *t)
{
    int n = hvt_model_classes(t->model);

    if (hvt_loss_has_targets(t->set.loss.kind) ||
        (hvt_dataset_describe(t->test_set)->unlabelled && !t->masks) || (n > LOGGED && !t->opts->per_class))
        return HVT_OK;
    return hvt__per_class_init(&t->test.per_class, n, t->masks, t->world);
}

void hvt__per_class_close(run *t)
{
    hvt__per_class_free(&t->test.per_class);
}

void hvt__per_class_pixel(hvt__per_class *c, int32_t label, int32_t predicted, bool hit)
{
    c->now[label]++;
    c->now[c->classes + label] += hit;
    c->now[2 * c->classes + predicted]++;
}

/* Pixels that are labelled or predicted as class k. */
static int64_t union_of(const hvt__per_class *c, int k)
{
    return c->now[k] + c->now[2 * c->classes + k] - c->now[c->classes + k];
}

double hvt__per_class_iou(const hvt__per_class *c)
{
    double sum = 0;
    int n = 0;

    for (int k = 0; k < c->classes; k++)
        if (union_of(c, k)) {
            sum += (double)c->now[c->classes + k] / (double)union_of(c, k);
            n++;
        }
    return n ? sum / n : (double)NAN;
}

void hvt__per_class_count(hvt__per_class *c, int32_t label, bool hit)
{
    if (label < 0 || label >= c->classes)
        return;
    c->now[label]++;
    c->now[c->classes + label] += hit;
}

hvt_status hvt__per_class_sum(hvt__per_class *c, hvt_world *world)
{
    const int n = (int)hvt__per_class_counts(c), ranks = hvt_world_size(world);

    for (int at = 0; at < n; at += c->chunk) {
        int part = n - at < c->chunk ? n - at : c->chunk;

        HVT_TRY(hvt_world_gather(world, c->now + at, (size_t)part * sizeof *c->now, c->all, 0));
        for (int i = 0; c->all && i < part; i++) {
            c->now[at + i] = 0;
            for (int r = 0; r < ranks; r++)
                c->now[at + i] += c->all[r * part + i];
        }
    }
    return HVT_OK;
}

static json_t *counts(const int64_t *of, int n)
{
    json_t *all = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(all, json_integer((json_int_t)of[i]));
    return all;
}

void hvt__per_class_record(const hvt__per_class *c, json_t *record)
{
    if (!c->classes)
        return;
    json_object_set_new(record, "class_images", counts(c->now, c->classes));
    json_object_set_new(record, "class_hits", counts(c->now + c->classes, c->classes));
    if (c->kinds > 2)
        json_object_set_new(record, "class_predicted", counts(c->now + 2 * c->classes, c->classes));
}

json_t *hvt__per_class_begun(const hvt__per_class *c)
{
    return counts(c->begun, (int)hvt__per_class_counts(c));
}

bool hvt__per_class_resume(hvt__per_class *c, const json_t *begun)
{
    size_t n = hvt__per_class_counts(c);

    if (n && json_array_size(begun) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        c->begun[i] = json_integer_value(json_array_get(begun, i));
    return true;
}

json_t *hvt__class_names(const run *t)
{
    const hvt_dataset *set = t->test_set;
    int n = hvt_model_classes(t->model);
    json_t *names;

    if (n > LOGGED || (!t->class_names && !hvt_dataset_class_name(set, 0)))
        return json_null();
    if (t->class_names)
        return json_incref(t->class_names);
    names = json_array();
    for (int i = 0; i < n && i < hvt_dataset_describe(set)->classes; i++) {
        const char *name = hvt_dataset_class_name(set, i);

        json_array_append_new(names, hvt__json_text(name ? name : ""));
    }
    return names;
}

typedef struct row {
    int class;
    int64_t images, hits, of; /* hits / of is shown */
} row;

/* Orders the least accurate class first, and classes without images last. */
static int worse(const void *a, const void *b)
{
    const row *x = a, *y = b;
    __int128 d;

    if (!x->of != !y->of)
        return x->of ? -1 : 1;
    d = (__int128)x->hits * y->of - (__int128)y->hits * x->of;
    return d ? (d < 0 ? -1 : 1) : x->class - y->class;
}

static hvt_status print_rows(const run *t, const row *rows, int n, bool result)
{
    json_t *names = hvt__class_names(t);
    char text[200];
    hvt_status s = HVT_OK;

    for (int i = -1; i < n && s == HVT_OK; i++) {
        const row *r = rows + (i < 0 ? 0 : i);
        const char *name = json_string_value(json_array_get(names, (size_t)r->class));

        if (i < 0)
            snprintf(text, sizeof text,
                     t->masks ? "    IoU %%   pixels  class" : "  top-1 %%   images  class");
        else if (r->of)
            snprintf(text, sizeof text, "  %7.2f %8lld  %d%s%.100s", 100.0 * (double)r->hits / (double)r->of,
                     (long long)r->images, r->class, name ? " " : "", name ? name : "");
        else
            snprintf(text, sizeof text, "        - %8d  %d%s%.100s", 0, r->class, name ? " " : "",
                     name ? name : "");
        if (result)
            s = hvt__report_result(t->rep, text);
        else
            hvt__report_print(t->rep, "%s", text);
    }
    json_decref(names);
    return s;
}

hvt_status hvt__per_class_print(const run *t, bool result)
{
    const hvt__per_class *c = &t->test.per_class;
    row *rows = malloc((size_t)c->classes * sizeof *rows + 1);
    hvt_status s;

    HVT_CHECK(rows, E_MEM, "no memory for a table of %d classes", c->classes);
    for (int i = 0; i < c->classes; i++)
        rows[i] = (row){i, c->now[i], c->now[c->classes + i], t->masks ? union_of(c, i) : c->now[i]};
    qsort(rows, (size_t)c->classes, sizeof *rows, worse);
    s = c->classes ? print_rows(t, rows, c->classes, result) : HVT_OK;
    free(rows);
    return s;
}
