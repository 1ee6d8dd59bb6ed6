/*
 * pixels: the images of a batch are those of the set, normalised, mirrored and cropped as asked.
 */
#include "batches.h"

#include <math.h>

static hvt_device *ref;

/* x = (byte/255 - mean)/std as the loader promises it: constants in double, rounded once, one fma. */
static float normalised(uint8_t byte, const hvt_loader_opts *o, int c)
{
    return fmaf(byte, (float)(1 / (255.0 * o->std[c])), (float)(-(double)o->mean[c] / o->std[c]));
}

static int reflected(int i, int size)
{
    return i < 0 ? -i : i >= size ? 2 * size - 2 - i : i;
}

/* Is image n of the batch the source's, moved by dy, dx and mirrored or not? */
static bool looks_like(const hvt_batch *b, int n, const own *src, const hvt_loader_opts *opts, int dy, int dx,
                       bool mirrored)
{
    for (int y = 0; y < src->h; y++)
        for (int x = 0; x < src->w; x++) {
            int sy = y + dy, sx = (mirrored ? src->w - 1 - x : x) + dx;
            bool inside = sy >= 0 && sy < src->h && sx >= 0 && sx < src->w;

            if (opts->reflect)
                sy = reflected(sy, src->h), sx = reflected(sx, src->w), inside = true;
            for (int c = 0; c < src->c; c++) {
                uint8_t byte = inside ? own_byte(b->ids[n], sy, sx, c) : 0;

                if (pixel(b, n, y, x)[c] != normalised(byte, opts, c))
                    return false;
            }
        }
    return true;
}

TEST(plain_images_are_normalised_bytes)
{
    for (int channels = 1; channels <= 3; channels++) {
        own o = {3, 4, channels};
        hvt_dataset *set = own_set(&o, 9);

        for (int order = 0; order < 2; order++) {
            hvt_loader_opts opts = loader_opts(5, 2);
            bool end = false;
            hvt_batch b;
            hvt_loader *l;

            opts.order = order ? HVT_ORDER_HWN : HVT_ORDER_NHW;
            l = loader_on(ref, set, &opts);
            CHECK_OK(hvt_loader_next(l, &b, &end));
            CHECK(b.images.dtype == HVT_F32 && b.images.ndim == 4 && b.images.dim[order ? 2 : 0] == 5 &&
                      b.images.dim[order ? 0 : 1] == 3 && b.images.dim[order ? 1 : 2] == 4 &&
                      b.images.dim[3] == channels && b.labels.dtype == HVT_I32 && b.labels.dim[0] == 5,
                  "another shape");
            CHECK(b.count == 5, "%d images", b.count);
            for (int n = 0; n < b.count; n++) {
                CHECK(looks_like(&b, n, &o, &opts, 0, 0, false), "order %d, %d channels: image %u", order,
                      channels, b.ids[n]);
                for (int c = 0; c < channels; c++)
                    CHECK(fabs(pixel(&b, n, 1, 2)[c] -
                               (own_byte(b.ids[n], 1, 2, c) / 255.0 - opts.mean[c]) / opts.std[c]) < 1e-6,
                          "channel %d is %g", c, (double)pixel(&b, n, 1, 2)[c]);
            }
            hvt_loader_close(&l);
        }
        hvt_dataset_close(&set);
    }
}

TEST(grey_images_have_pillows_luminance)
{
    own o = {3, 4, 3}, bare = {3, 4, 1};
    hvt_dataset *set = own_set(&o, 9), *grey = own_set(&bare, 9);
    hvt_loader_opts opts = loader_opts(5, 2);
    hvt_loader *l = NULL;

    opts.grey = true;
    for (int k = 0; k < 4; k++) {
        bool end = false;
        hvt_batch b;

        opts.order = k & 1 ? HVT_ORDER_HWN : HVT_ORDER_NHW;
        opts.workers = k & 2 ? 2 : 0;
        l = loader_on(ref, set, &opts);
        CHECK_OK(hvt_loader_next(l, &b, &end));
        CHECK(b.count == 5 && b.images.dim[3] == 1, "%d images of %d channels", b.count, b.images.dim[3]);
        for (int i = 0; i < b.count * o.h * o.w; i++) {
            const int n = i / (o.h * o.w), y = i / o.w % o.h, x = i % o.w;
            uint32_t sum = 1 << 15;

            for (int c = 0; c < 3; c++)
                sum += (uint32_t[]){19595, 38470, 7471}[c] * own_byte(b.ids[n], y, x, c);
            CHECK(*pixel(&b, n, y, x) == normalised((uint8_t)(sum >> 16), &opts, 0), "image %u, %d, %d: %g",
                  b.ids[n], y, x, (double)*pixel(&b, n, y, x));
        }
        hvt_loader_close(&l);
    }
    CHECK_FAILS(hvt_loader_open(grey, ref, &opts, &l), E_UNSUPPORTED, "grey already");
    hvt_dataset_close(&set);
    hvt_dataset_close(&grey);
}

TEST(alternate_mirroring_shows_both_sides_in_two_epochs)
{
    enum { COUNT = 500 };
    own o = {3, 6, 3};
    hvt_dataset *set = own_set(&o, COUNT);
    hvt_loader_opts opts = loader_opts(100, 1);
    int mirrored[COUNT][4] = {0}, first = 0;
    hvt_loader *l;
    hvt_batch b;

    opts.flip = opts.alternate = true;
    l = loader_on(ref, set, &opts);
    for (int epoch = 0; epoch < 4; epoch++) {
        CHECK_OK(hvt_loader_rewind(l, epoch, 0));
        for (bool end = false; !end;) {
            CHECK_OK(hvt_loader_next(l, &b, &end));
            for (int n = 0; !end && n < b.count; n++)
                mirrored[b.ids[n]][epoch] = looks_like(&b, n, &o, &opts, 0, 0, true);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        const int *at = mirrored[i];

        CHECK(at[0] != at[1] && at[0] == at[2] && at[1] == at[3], "image %d: %d %d %d %d", i, at[0], at[1],
              at[2], at[3]);
        first += at[0];
    }
    CHECK(abs(first - COUNT / 2) < 56, "%d of %d are mirrored first", first, COUNT); /* 5 sigma */
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(images_are_mirrored_half_of_the_time)
{
    own o = {3, 6, 3};
    hvt_dataset *set = own_set(&o, 2000);
    hvt_loader_opts opts = loader_opts(100, 1);
    hvt_loader *l;
    int mirrored = 0;
    bool end = false;
    hvt_batch b;

    opts.flip = true;
    l = loader_on(ref, set, &opts);
    for (;;) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            break;
        for (int n = 0; n < b.count; n++) {
            bool m = looks_like(&b, n, &o, &opts, 0, 0, true);

            mirrored += m;
            CHECK(m || looks_like(&b, n, &o, &opts, 0, 0, false), "image %u is neither", b.ids[n]);
        }
    }
    CHECK(abs(mirrored - 1000) < 120, "%d of 2000 are mirrored", mirrored); /* 5 sigma */
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

static void crops_move_the_image_evenly(bool reflect)
{
    enum { PAD = 2, PLACES = 2 * PAD + 1, COUNT = 5000 };
    own o = {5, 6, 3};
    hvt_dataset *set = own_set(&o, COUNT);
    hvt_loader_opts opts = loader_opts(100, 1);
    hvt_loader *l;
    int seen[PLACES][PLACES][2] = {0}, found = 0;
    bool end = false;
    hvt_batch b;

    opts.crop = PAD, opts.flip = true, opts.reflect = reflect;
    l = loader_on(ref, set, &opts);
    for (;;) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            break;
        for (int n = 0; n < b.count; n++)
            for (int i = 0; i < PLACES * PLACES * 2; i++) {
                int dy = i / 2 / PLACES - PAD, dx = i / 2 % PLACES - PAD;

                if (looks_like(&b, n, &o, &opts, dy, dx, i & 1))
                    seen[dy + PAD][dx + PAD][i & 1]++, found++;
            }
    }
    CHECK(found == COUNT, "%d of %d images are a crop of theirs", found, COUNT);
    for (int i = 0; i < PLACES * PLACES * 2; i++) /* 100 each, 5 sigma */
        CHECK(abs(seen[i / 2 / PLACES][i / 2 % PLACES][i & 1] - COUNT / (PLACES * PLACES * 2)) < 50,
              "place %d: %d images", i, seen[i / 2 / PLACES][i / 2 % PLACES][i & 1]);
    hvt_loader_close(&l);
    hvt_dataset_close(&set);
}

TEST(cropped_images_have_black_or_reflected_borders)
{
    crops_move_the_image_evenly(false);
    crops_move_the_image_evenly(true);
}

int main(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    RUN(plain_images_are_normalised_bytes);
    RUN(grey_images_have_pillows_luminance);
    RUN(alternate_mirroring_shows_both_sides_in_two_epochs);
    RUN(images_are_mirrored_half_of_the_time);
    RUN(cropped_images_have_black_or_reflected_borders);
    hvt_device_close(&ref);
    return check_done();
}
