/* --class-weights: a weight for each class of the model, by the training labels or from a file. */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <ctype.h>
#include <errno.h>

/* w = images / (classes with images * images of the class); 1 for a class without images. */
static hvt_status balance(const run *t, float *w)
{
    const uint32_t count = hvt_dataset_describe(t->train_set)->count;
    int32_t *labels = malloc(count * sizeof *labels);
    uint32_t *images = calloc((size_t)t->classes, sizeof *images);
    int present = 0;
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, labels && images, E_MEM, "no memory for the labels of %u images", count);
    HVT_TRY_OR(done, hvt_dataset_labels(t->train_set, labels));
    for (uint32_t i = 0; i < count; i++)
        present += !images[labels[i]]++;
    for (int k = 0; k < t->classes; k++)
        w[k] = images[k] ? (float)((double)count / ((double)present * images[k])) : 1;
done:
    free(labels);
    free(images);
    return s;
}

static hvt_status check_weight(const char *path, int k, double x)
{
    HVT_CHECK(x >= 1e-30 && x <= 1e30, E_FORMAT,
              "--class-weights %s: the weight of class %d is %g, expected a "
              "number above 0",
              path, k, x);
    return HVT_OK;
}

static hvt_status read_numbers(const char *path, FILE *f, int classes, float *w)
{
    double x;
    int n = 0, got;

    while ((got = fscanf(f, "%lf%*[ \t\r\n,]", &x)) == 1) {
        if (n < classes) {
            HVT_TRY(check_weight(path, n, x));
            w[n] = (float)x;
        }
        n++;
    }
    HVT_CHECK(
        got == EOF && n == classes, E_FORMAT,
        "--class-weights %s: expected %d numbers, one a class, or a JSON object by class name; got %d%s",
        path, classes, n, got == EOF ? "" : " and then other text");
    return HVT_OK;
}

static hvt_status read_named(const run *t, const char *path, FILE *f, float *w)
{
    json_error_t why;
    json_t *all = json_loadf(f, JSON_REJECT_DUPLICATES, &why);
    hvt_status s = HVT_OK;

    HVT_CHECK_OR(done, all, E_FORMAT, "--class-weights %s: line %d: %s", path, why.line, why.text);
    HVT_CHECK_OR(done, t->class_names, E_FORMAT,
                 "--class-weights %s is by class name, but the data have no names: expected %d numbers", path,
                 t->classes);
    for (int k = 0; k < t->classes; k++) {
        const char *name = json_string_value(json_array_get(t->class_names, (size_t)k));
        const json_t *x = name ? json_object_get(all, name) : NULL;

        HVT_CHECK_OR(done, json_is_number(x), E_FORMAT,
                     "--class-weights %s: expected a number for class %d, '%s'", path, k, name ? name : "");
        HVT_TRY_OR(done, check_weight(path, k, json_number_value(x)));
        w[k] = (float)json_number_value(x);
    }
    HVT_CHECK_OR(done, json_object_size(all) == (size_t)t->classes, E_FORMAT,
                 "--class-weights %s: expected the names of %d classes, got %zu", path, t->classes,
                 json_object_size(all));
done:
    json_decref(all);
    return s;
}

static hvt_status read_file(const run *t, const char *path, float *w)
{
    FILE *f = fopen(path, "re");
    hvt_status s;
    int c;

    HVT_CHECK(f, E_IO, "--class-weights %s: %s; expected balanced, or a file of %d numbers", path,
              strerror(errno), t->classes);
    while (isspace(c = fgetc(f)))
        ;
    ungetc(c, f);
    s = c == '{' ? read_named(t, path, f, w) : read_numbers(path, f, t->classes, w);
    fclose(f);
    return s;
}

hvt_status hvt__find_class_weights(run *t)
{
    const char *from = t->opts->class_weights;
    const size_t bytes = (size_t)t->classes * sizeof *t->class_weights;

    if (!strcmp(from, "none") || !t->train_set)
        return HVT_OK;
    t->class_weights = malloc(bytes);
    AGREE(t, t->class_weights ? HVT_OK : HVT_FAIL(E_MEM, "no memory for weights of %d classes", t->classes));
    if (!strcmp(from, "balanced"))
        return hvt_world_agree(t->world, balance(t, t->class_weights));
    AGREE(t, t->rank == 0 ? read_file(t, from, t->class_weights) : HVT_OK);
    return hvt_world_broadcast(t->world, t->class_weights, bytes, 0);
}
