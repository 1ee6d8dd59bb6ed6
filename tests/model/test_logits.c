/*
 * Predictions: logits without labels, of a loader's batch and of images in host memory, on every device, in
 * every row order and type.
 */
#include "nets.h"

enum { IMAGES = 7, SIDE = 9, WIDE = 11, COLORS = 3, ELEMENTS = SIDE * WIDE * COLORS };

/* Images 0 .. IMAGES-1 of feed()'s endless set, N,H,W,C; free() them. */
static float *host_images(void)
{
    float *x = malloc(IMAGES * ELEMENTS * sizeof *x);

    for (int i = 0; i < IMAGES; i++)
        for (int e = 0; e < ELEMENTS; e++)
            x[i * ELEMENTS + e] = pixel(i, e);
    return x;
}

TEST(predictions_are_the_logits_of_batches_without_labels)
{
    float *images = host_images();
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        net n;

        if (open_net(&n, by, small_net, (shape){3, SIDE, WIDE, COLORS})) {
            float got[IMAGES * 4], want[IMAGES * 4];
            int32_t rank[3];
            void *labels = n.batch.labels.data;

            CHECK_OK(hvt_model_forward(n.m, &n.batch, true)); /* whose backward never comes */
            for (int at = 0; at < IMAGES; at += 3) {
                feed(&n, at, IMAGES - at < 3 ? IMAGES - at : 3);
                n.batch.labels.data = NULL;
                CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
                n.batch.labels.data = labels;
                CHECK_OK(hvt_model_logits(n.m, want + at * n.classes));
                CHECK_FAILS(hvt_model_rows(n.m, want, rank), E_ARG, "no labels");
            }
            CHECK_OK(hvt_model_predict(n.m, images, IMAGES, got));
            CHECK(!memcmp(got, want, sizeof got), "%s: other logits than a batch's", way_name(by));
            CHECK(got[0] != got[n.classes] && isfinite(got[0]), "logits %g", (double)got[0]);
            for (int k = 0; k < IMAGES; k++) /* alone, each in the first place of a batch */
                CHECK_OK(hvt_model_predict(n.m, images + k * ELEMENTS, 1, got + k * n.classes));
            CHECK(!memcmp(got, want, sizeof got), "%s: other logits in another place", way_name(by));
            CHECK_FAILS(hvt_model_backward(n.m, NULL, NULL), E_ARG, "training forward");
        }
        close_net(&n);
    }
    free(images);
}

static hvt_value rectified(hvt_model *m, hvt_value x)
{
    return hvt_relu(m, x);
}

TEST(outputs_of_pixels_are_one_plane_for_each_channel)
{
    float *images = host_images();
    how by = ref;

    for (int i = 0; (i == 0 || way(i - 1, &by)) && strcmp(by.device, "cuda") != 0; i++) {
        net n;

        if (open_net(&n, by, rectified, (shape){3, SIDE, WIDE, COLORS})) {
            static float got[IMAGES * ELEMENTS];
            int wrong = 0;

            CHECK_OK(hvt_model_predict(n.m, images, IMAGES, got));
            for (int k = 0; k < IMAGES * ELEMENTS; k++) {
                const int image = k / ELEMENTS, c = k / (SIDE * WIDE) % COLORS, at = k % (SIDE * WIDE);

                wrong += got[k] != fmaxf(0, pixel(image, at * COLORS + c));
            }
            CHECK(!wrong, "%s: %d numbers of %d are wrong", way_name(by), wrong, IMAGES * ELEMENTS);
        }
        close_net(&n);
    }
    free(images);
}

TEST(logits_and_losses_of_a_pass_belong_together)
{
    net n;

    if (open_net(&n, ref, small_net, (shape){3, SIDE, WIDE, COLORS})) {
        float logits[12], loss[3];
        int32_t rank[3];
        const int32_t *label = n.batch.labels.data;

        CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
        CHECK_OK(hvt_model_logits(n.m, logits));
        CHECK_OK(hvt_model_rows(n.m, loss, rank));
        for (int i = 0; i < 3; i++) {
            double sum = 0;

            for (int k = 0; k < 4; k++)
                sum += exp((double)logits[4 * i + k]);
            CHECK(fabs(log(sum) - (double)logits[4 * i + label[i]] - (double)loss[i]) < 1e-5,
                  "image %d: loss %g, its logits say %g", i, (double)loss[i],
                  log(sum) - (double)logits[4 * i + label[i]]);
        }
    }
    close_net(&n);
}

/* What a device was asked for by hvt_model_rows(). */
static struct {
    const hvt_device_ops *ops;
    char *block; /* of alloc_host */
    size_t bytes;
    int allocs, downloads;
} seen;

static hvt_status alloc_host_seen(hvt_device *d, size_t bytes, void **ret_ptr)
{
    HVT_TRY(seen.ops->memory.alloc_host(d, bytes, ret_ptr));
    seen.allocs++;
    seen.block = *ret_ptr;
    seen.bytes = bytes;
    return HVT_OK;
}

static hvt_status download_seen(hvt_device *d, void *host, const void *src, size_t bytes)
{
    seen.downloads++;
    CHECK(seen.block && (char *)host >= seen.block && (char *)host + bytes <= seen.block + seen.bytes,
          "%zu bytes come into memory that a GPU cannot reach by itself", bytes);
    return seen.ops->memory.download(d, host, src, bytes);
}

TEST(losses_and_ranks_come_together_into_memory_of_the_device)
{
    net n;

    if (open_net(&n, ref, small_net, (shape){3, SIDE, WIDE, COLORS})) {
        float loss[3], again[3];
        int32_t rank[3], rank_again[3];

        memset(&seen, 0, sizeof seen);
        seen.ops = n.ops;
        n.spy.memory.alloc_host = alloc_host_seen;
        n.spy.memory.download = download_seen;
        CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
        CHECK_OK(hvt_model_rows(n.m, loss, rank));
        CHECK(seen.downloads == 1, "%d copies for one batch", seen.downloads);
        feed(&n, 0, 2); /* a short one */
        CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
        CHECK_OK(hvt_model_rows(n.m, again, rank_again));
        CHECK(seen.downloads == 2 && seen.allocs == 1, "%d copies, %d allocations for two batches",
              seen.downloads, seen.allocs);
        CHECK(!memcmp(loss, again, 2 * sizeof *loss) && !memcmp(rank, rank_again, 2 * sizeof *rank),
              "the images of a short batch have other losses or ranks");
    }
    close_net(&n);
}

/* A model in type t; its predictions. */
static void predict_in(const char *device, hvt_dtype t, int batch, const float *images, float *ret_logits)
{
    hvt_device *dev = NULL;
    hvt_model *m = NULL;

    CHECK_OK(hvt_device_open(device, NULL, &dev));
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_OK(hvt_model_set_type(m, t));
    CHECK_OK(hvt_model_plan(m, batch, small_net(m, hvt_input(m, SIDE, WIDE, COLORS))));
    CHECK_OK(hvt_model_init(m, SEED));
    CHECK_OK(hvt_model_predict(m, images, IMAGES, ret_logits));
    hvt_model_free(&m);
    hvt_device_close(&dev);
}

TEST(sixteen_bits_predict_nearly_the_same)
{
    const hvt_dtype types[] = {HVT_F16, HVT_BF16};
    const char *const devices[] = {"ref", "cpu"};
    float *images = host_images(), want[IMAGES * 4], one[IMAGES * 4], other[IMAGES * 4];

    predict_in("ref", HVT_F32, 3, images, want);
    for (size_t i = 0; i < HVT_LEN(types) * HVT_LEN(devices); i++) {
        predict_in(devices[i / 2], types[i % 2], 3, images, one);
        predict_in(devices[i / 2], types[i % 2], 5, images, other);
        CHECK(!memcmp(one, other, sizeof one), "%s: another batch size, other logits", devices[i / 2]);
        for (int k = 0; k < IMAGES * 4; k++)
            CHECK(fabs((double)one[k] - (double)want[k]) < 0.1 * (1 + fabs((double)want[k])) &&
                      one[k] != want[k],
                  "%s %s: logit %g, in f32 %g", devices[i / 2], hvt_dtype_name(types[i % 2]), (double)one[k],
                  (double)want[k]);
    }
    free(images);
}

TEST(predictions_that_cannot_be_are_refused)
{
    float x[ELEMENTS] = {0}, y[4];
    net n;

    if (open_net(&n, ref, small_net, (shape){3, SIDE, WIDE, COLORS})) {
        hvt_model *m = NULL;
        void *labels = n.batch.labels.data;

        CHECK_FAILS(hvt_model_logits(n.m, y), E_ARG, "expected an inference pass");
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_FAILS(hvt_model_logits(n.m, y), E_ARG, "expected an inference pass");
        n.batch.labels.data = NULL;
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_FAILS(hvt_model_backward(n.m, NULL, NULL), E_ARG, "3 images had no labels");
        n.batch.labels.data = labels;
        CHECK_FAILS(hvt_model_predict(n.m, x, -1, y), E_ARG, "-1 images");
        CHECK_FAILS(hvt_model_predict(n.m, NULL, 1, y), E_ARG, "1 images");
        CHECK_FAILS(hvt_model_predict(n.m, x, 1, NULL), E_ARG, "1 images");
        CHECK_FAILS(hvt_model_predict(NULL, x, 1, y), E_ARG, "a model");
        CHECK_OK(hvt_model_predict(n.m, NULL, 0, NULL));
        CHECK_OK(hvt_model_create(n.dev, &m));
        CHECK_FAILS(hvt_model_predict(m, x, 1, y), E_ARG, "call hvt_model_plan() before");
        hvt_model_free(&m);
    }
    close_net(&n);
}

int main(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
#endif
    RUN(predictions_are_the_logits_of_batches_without_labels);
    RUN(outputs_of_pixels_are_one_plane_for_each_channel);
    RUN(logits_and_losses_of_a_pass_belong_together);
    RUN(losses_and_ranks_come_together_into_memory_of_the_device);
    RUN(sixteen_bits_predict_nearly_the_same);
    RUN(predictions_that_cannot_be_are_refused);
    return check_done();
}
