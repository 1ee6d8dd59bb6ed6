/*
 * Random operations on pixels: torchvision's bytes by committed hashes; the same images whatever the loader;
 * refusals. (All strengths against torchvision itself: test_enhance.py.)
 */
#include "data/image/image_impl.h"
#include "own_set.h"

#include <stdio.h>

static hvt_device *ref;

static uint64_t fnv(const uint8_t *x, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ x[i]) * 0x100000001b3u;
    return h;
}

/* Source: golden/enhance.txt by torchvision on Pillow. */
TEST(operations_have_torchvisions_bytes)
{
    FILE *f = fopen(check_file("golden/enhance.txt"), "r");
    uint8_t from[4096], to[4096];
    int op, h, w, c, cases = 0;
    unsigned long long want;
    double value;

    CHECK(f, "golden/enhance.txt cannot be read");
    if (!f)
        return;
    while (fscanf(f, "%d %lf %d %d %d %llx", &op, &value, &h, &w, &c, &want) == 6) {
        size_t bytes = (size_t)(h * w * c);

        for (size_t i = 0; i < bytes; i++)
            from[i] = (uint8_t)(i * i * 7 + (i >> 3) * 13 + i % (size_t)c * 40);
        hvt__enhance(&(hvt__edit){(hvt__op)op, value}, h, w, c, from, to);
        CHECK(fnv(to, bytes) == want, "operation %d, %g, %d x %d x %d: other bytes", op, value, h, w, c);
        cases++;
    }
    CHECK(cases == 120, "%d cases", cases);
    fclose(f);
}

static hvt_loader_opts loader_opts(int batch, int shards)
{
    return (hvt_loader_opts){.batch = batch,
                             .shards = shards,
                             .shard_count = shards,
                             .shuffle = true,
                             .seed = 11,
                             .std = {1 / 255.f, 1 / 255.f, 1 / 255.f}}; /* bytes stay as they are */
}

/* Epoch 2's images as bytes, by sample. */
static void read_all(const hvt_dataset *set, const hvt_loader_opts *opts, size_t bytes, uint8_t *ret_images)
{
    hvt_loader *l = NULL;
    hvt_batch b;
    bool end = false;

    CHECK_OK(hvt_loader_open(set, ref, opts, &l));
    CHECK_OK(hvt_loader_rewind(l, 2, 0));
    for (;;) {
        CHECK_OK(hvt_loader_next(l, &b, &end));
        if (end)
            break;
        for (int n = 0; n < b.count; n++)
            for (size_t i = 0; i < bytes; i++)
                ret_images[b.ids[n] * bytes + i] =
                    (uint8_t)(((const float *)b.images.data)[(size_t)n * bytes + i] + .5f);
    }
    hvt_loader_close(&l);
}

enum { COUNT = 90, H = 12, W = 11, BYTES = H * W * 3 };

static const hvt_edits all_edits[] = {{.policy = HVT_POLICY_TRIVIAL},
                                      {.policy = HVT_POLICY_RAND, .ops = 3, .magnitude = 12},
                                      {.policy = HVT_POLICY_AUTO},
                                      {.jitter = {.4f, .4f, .4f, .1f}, .policy = HVT_POLICY_TRIVIAL}};

TEST(images_are_those_of_the_drawn_operations_whatever_the_loader)
{
    const struct {
        int batch, shards, workers;
    } way[] = {{90, 1, 0}, {4, 3, 0}, {7, 2, 3}, {1, 1, 1}};
    static uint8_t plain[COUNT * BYTES], got[COUNT * BYTES], from[BYTES + HVT__ROW_SLACK], to[BYTES];
    own o = {H, W, 3};
    hvt_dataset *set = own_set(&o, COUNT);

    for (size_t k = 0; k < HVT_LEN(all_edits); k++)
        for (size_t t = 0; t < HVT_LEN(way); t++) {
            hvt_loader_opts opts = loader_opts(way[t].batch, way[t].shards);
            int changed = 0;

            opts.crop = 2, opts.flip = true, opts.workers = way[t].workers;
            read_all(set, &opts, BYTES, plain);
            opts.edits = all_edits[k];
            read_all(set, &opts, BYTES, got);
            for (uint32_t i = 0; i < COUNT; i++) {
                hvt__edit edits[HVT__EDITS];
                int n = hvt__edits_draw(&opts.edits, H, W, opts.seed, 2, i, edits);

                memcpy(from, plain + i * BYTES, BYTES);
                for (int j = 0; j < n; j++) {
                    hvt__enhance(&edits[j], H, W, 3, from, to);
                    memcpy(from, to, BYTES);
                }
                CHECK(!memcmp(from, got + i * BYTES, BYTES), "edits %zu, way %zu: image %u differs", k, t, i);
                changed += memcmp(from, plain + i * BYTES, BYTES) != 0;
            }
            CHECK(changed > COUNT / 2, "edits %zu change only %d images", k, changed);
        }
    hvt_dataset_close(&set);
}

TEST(grey_images_are_made_grey_first)
{
    static uint8_t plain[COUNT * H * W], got[COUNT * H * W], from[H * W + HVT__ROW_SLACK], to[H * W];
    own o = {H, W, 3};
    hvt_dataset *set = own_set(&o, COUNT);
    hvt_loader_opts opts = loader_opts(8, 1);

    opts.grey = opts.flip = true;
    read_all(set, &opts, H * W, plain);
    opts.edits.policy = HVT_POLICY_TRIVIAL;
    read_all(set, &opts, H * W, got);
    for (uint32_t i = 0; i < COUNT; i++) {
        hvt__edit edit[HVT__EDITS];

        hvt__edits_draw(&opts.edits, H, W, opts.seed, 2, i, edit);
        memcpy(from, plain + i * H * W, H * W);
        hvt__enhance(edit, H, W, 1, from, to);
        CHECK(!memcmp(to, got + i * H * W, H * W), "image %u differs", i);
    }
    hvt_dataset_close(&set);
}

static void refused(const hvt_dataset *set, const hvt_loader_opts *opts, hvt_status want, const char *words)
{
    hvt_loader *l = NULL;
    hvt_status s = hvt_loader_open(set, ref, opts, &l);

    CHECK(s == want && strstr(hvt_last_error(), words), "status %d, not %d: %s", s, want, hvt_last_error());
    hvt_loader_close(&l);
}

TEST(impossible_operations_are_refused)
{
    own o = {H, W, 3}, two = {H, W, 2};
    hvt_dataset *set = own_set(&o, COUNT), *pairs = own_set(&two, COUNT);
    const struct {
        hvt_edits edits;
        const char *words;
    } bad[] = {{{.jitter = {-1}}, "brightness by up to -1"},
               {{.jitter = {0, 0, 0, .75f}}, "at most 0.5"},
               {{.policy = HVT_POLICY_RAND}, "of 0 operations, expected 1 to"},
               {{.policy = HVT_POLICY_RAND, .ops = 1, .magnitude = 31}, "magnitude 31"},
               {{.policy = (hvt_policy)9}, "policy 9"}};
    hvt_loader_opts opts = loader_opts(8, 1);

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        opts.edits = bad[i].edits;
        refused(set, &opts, HVT_E_ARG, bad[i].words);
    }
    opts.edits = (hvt_edits){.policy = HVT_POLICY_TRIVIAL};
    refused(pairs, &opts, HVT_E_UNSUPPORTED, "2 channels in u8");
    hvt_dataset_close(&pairs);
    hvt_dataset_close(&set);
}

int main(void)
{
    if (hvt_device_open("ref", NULL, &ref) != HVT_OK) {
        fprintf(stderr, "cannot begin: %s\n", hvt_last_error());
        return 1;
    }

    RUN(operations_have_torchvisions_bytes);
    RUN(images_are_those_of_the_drawn_operations_whatever_the_loader);
    RUN(grey_images_are_made_grey_first);
    RUN(impossible_operations_are_refused);

    hvt_device_close(&ref);
    return check_done();
}
