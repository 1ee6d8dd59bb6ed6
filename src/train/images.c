/*
 * The images for which weights were trained. If pictures are resized or normalised differently than in
 * training, the logits differ, and no error shows it. Checkpoints therefore describe their images. --init
 * adopts the description where no flag is given (checkpoint/resume.c); a remaining difference is a warning.
 */
#include "run.h"
#include "base_impl.h"

json_t *hvt__describe_images(const run *t)
{
    const bool floats = hvt_dataset_describe(t->test_set)->type == HVT_F32;

    return json_pack("{s:i, s:i, s:s}", "height", t->loading.test.height, "width", t->loading.test.width,
                     "pixels", floats ? "floats" : "bytes");
}

/* " images of 32x32 bytes --mean 0.5 --std 0.5": the known values that differ from the others'. */
static void images_text(const json_t *options, const json_t *others, char *ret_text, size_t bytes)
{
    static const char *const flags[] = {"eval-size", "mean", "std", "grey", "exif"};
    const json_t *a = json_object_get(options, "images"), *b = json_object_get(others, "images");
    const int height = (int)json_integer_value(json_object_get(a, "height"));
    const int width = (int)json_integer_value(json_object_get(a, "width"));
    const char *pixels = json_string_value(json_object_get(a, "pixels"));
    size_t n = 0;

    *ret_text = 0;
    if (a && b && !json_equal(a, b))
        n = (size_t)snprintf(ret_text, bytes, " images of %dx%d %s", height, width, pixels ? pixels : "?");
    for (size_t i = 0; i < HVT_LEN(flags) && n < bytes; i++) {
        const json_t *value = json_object_get(options, flags[i]), *other = json_object_get(others, flags[i]);

        if (json_is_string(value) && json_is_string(other) && !json_equal(value, other))
            n += (size_t)snprintf(ret_text + n, bytes - n, " --%s %s", flags[i], json_string_value(value));
    }
}

void hvt__warn_of_images(const run *t, const json_t *now)
{
    json_t *was = NULL;
    char saved[300] = "", here[300] = "";

    if (hvt__weights_options(t->opts->init, &was) || !was)
        return;
    images_text(was, now, saved, sizeof saved);
    images_text(now, was, here, sizeof here);
    if (*saved)
        HVT_WARN("the weights of %s were trained with%s, but this run has%s", t->opts->init, saved, here);
    json_decref(was);
}
