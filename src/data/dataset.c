/*
 * The registry of data set formats, and what all of them share: checks, the limit, the fingerprint.
 *
 * A data set is a source (count, shape, get, close) behind one set of checks, the same for built-in formats
 * and user-defined sources. Invariant: whatever a source does, an index passed to it is below its count, and
 * a label returned from here is below its classes.
 */
#include "data_impl.h"
#include "base/users.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hvt_dataset {
    hvt_source source;
    hvt_dataset_info info; /* the source's with the limit applied; info.name is `name` */
    char name[64];
    hvt__users users;
};

static const hvt_format *const formats[] = {&hvt_format_synth, &hvt_format_cifar10};

static const char *known_names(char *buffer, size_t bytes)
{
    size_t used = 0;

    buffer[0] = '\0';
    for (size_t i = 0; i < HVT_LEN(formats) && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%s", i ? ", " : "", formats[i]->name);
    return buffer;
}

hvt_status hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set)
{
    HVT_GIVEN(name, "a data set's name");
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(ret_set, "an output pointer for the data set");

    char known[128];

    for (size_t i = 0; i < HVT_LEN(formats); i++) {
        hvt_source source = {0};
        hvt_status s;

        if (strcmp(name, formats[i]->name) != 0)
            continue;
        HVT_TRY(formats[i]->open(opts, &source));
        s = hvt_dataset_from(&source, opts->limit, ret_set);
        if (s != HVT_OK && source.close)
            source.close(source.ctx);
        return s;
    }
    return HVT_FAIL(E_ARG, "no data set is called '%s'; there are: %s", name,
                    known_names(known, sizeof known));
}

hvt_status hvt_dataset_from(const hvt_source *source, uint32_t limit, hvt_dataset **ret_set)
{
    HVT_GIVEN(source, "a source");
    HVT_GIVEN(ret_set, "an output pointer for the data set");

    const hvt_dataset_info *i = &source->info;
    const char *name = i->name ? i->name : "user";
    hvt_dataset *d;

    HVT_CHECK(source->get, E_ARG, "data set '%s' has no get()", name);
    HVT_CHECK(i->count > 0, E_ARG, "data set '%s' has 0 images, at least 1 is needed", name);
    HVT_CHECK(i->classes >= 2, E_ARG, "data set '%s' has %d classes, at least 2 are needed", name,
              i->classes);
    HVT_CHECK(i->height >= 1 && i->height <= HVT_SIDE_MAX && i->width >= 1 && i->width <= HVT_SIDE_MAX, E_ARG,
              "data set '%s' has images of %d x %d pixels, expected sides of 1 to %d", name, i->height,
              i->width, HVT_SIDE_MAX);
    HVT_CHECK(i->channels >= 1 && i->channels <= 3, E_ARG,
              "data set '%s' has images of %d channels, expected 1 to 3", name, i->channels);

    d = calloc(1, sizeof *d);
    HVT_CHECK(d, E_MEM, "no memory for data set '%s' (%zu bytes)", name, sizeof *d);
    d->source = *source;
    d->info = source->info;
    snprintf(d->name, sizeof d->name, "%s", name);
    d->info.name = d->name;
    if (limit && limit < d->info.count)
        d->info.count = limit;
    d->info.fingerprint = hvt__mix(d->info.fingerprint ^ hvt__mix(d->info.count));
    *ret_set = d;
    return HVT_OK;
}

void hvt_dataset_close(hvt_dataset **set)
{
    hvt_dataset *d = set ? *set : NULL;
    char what[80];

    if (!d)
        return;
    snprintf(what, sizeof what, "data set '%s'", d->name);
    if (hvt__in_use(&d->users, what))
        return;
    if (d->source.close)
        d->source.close(d->source.ctx);
    free(d);
    *set = NULL;
}

void hvt__dataset_use(const hvt_dataset *set, int by)
{
    hvt__use(&((hvt_dataset *)(uintptr_t)set)->users, HVT__USER_LOADER, by); /* counting does not change it */
}

const hvt_dataset_info *hvt_dataset_describe(const hvt_dataset *set)
{
    return set ? &set->info : NULL;
}

hvt_status hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    HVT_GIVEN(set, "a data set");
    HVT_GIVEN(ret_pixels, "an output pointer for the pixels");
    HVT_GIVEN(ret_label, "an output pointer for the label");

    int label = -1;

    HVT_CHECK(index < set->info.count, E_ARG, "data set '%s' has %u images, asked for number %u", set->name,
              set->info.count, index);
    HVT_TRY(set->source.get(set->source.ctx, index, ret_pixels, &label));
    HVT_CHECK(label >= 0 && label < set->info.classes, E_FORMAT,
              "data set '%s', image %u: label is %d, expected 0 to %d", set->name, index, label,
              set->info.classes - 1);
    *ret_label = label;
    return HVT_OK;
}
