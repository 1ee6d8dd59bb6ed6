/*
 * The functions of .pt2 files in a build without libzip: each returns an error that says so.
 */
#include "base_impl.h"
#include "hvt/model.h"
#include "passes.h"

hvt_status hvt_pt2_open(const char *path, hvt_pt2 **ret_file)
{
    HVT_GIVEN(path, "the path of a .pt2 file");
    HVT_GIVEN(ret_file, "an output pointer for the file");
    return HVT_FAIL(E_UNSUPPORTED,
                    "%s: this build reads no .pt2 files, since libzip was missing when it was made", path);
}

void hvt_pt2_close(hvt_pt2 **file)
{
    (void)file;
}

hvt_pt2_info hvt_pt2_describe(const hvt_pt2 *file)
{
    (void)file;
    return (hvt_pt2_info){0};
}

hvt_status hvt_pt2_build(const hvt_pt2 *file, hvt_model *m, hvt_value images, int classes,
                         hvt_value *ret_logits)
{
    (void)m, (void)images, (void)classes, (void)ret_logits;
    HVT_GIVEN(file, "a .pt2 file");
    return HVT_FAIL(E_UNSUPPORTED, "this build reads no .pt2 files");
}

hvt_status hvt_pt2_load(const hvt_pt2 *file, hvt_model *m)
{
    (void)m;
    HVT_GIVEN(file, "a .pt2 file");
    return HVT_FAIL(E_UNSUPPORTED, "this build reads no .pt2 files");
}

hvt_status hvt__pt2_print_passes(const char *path, FILE *f)
{
    hvt_pt2 *none;

    (void)f;
    return hvt_pt2_open(path, &none);
}
