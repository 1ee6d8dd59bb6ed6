/*
 * Samples: --limit and --val-split give every class its share.
 */
#include "check.h"
#include "data/data_impl.h"

enum { MOST = 400, CLASSES = 12 };

static void count(const int32_t *label, const bool *chosen, uint32_t n, uint32_t ret_has[CLASSES],
                  uint32_t ret_took[CLASSES])
{
    memset(ret_has, 0, CLASSES * sizeof *ret_has);
    memset(ret_took, 0, CLASSES * sizeof *ret_took);
    for (uint32_t i = 0; i < n; i++) {
        ret_has[label[i]]++;
        ret_took[label[i]] += chosen[i];
    }
}

/* Labels of some distribution: even ones, rare classes, classes without images. */
static uint32_t draw_labels(uint64_t trial, int32_t *ret_label)
{
    uint32_t n = 2 + hvt__below(hvt__draw(trial, 0, 0, 0), MOST - 2);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t a = hvt__below(hvt__draw(trial, 1, i, 0), CLASSES);
        uint32_t b = hvt__below(hvt__draw(trial, 2, i, 0), CLASSES);

        ret_label[i] = (int32_t)(trial % 3 == 0 ? a : trial % 3 == 1 ? a * b / CLASSES : a & b);
    }
    return n;
}

static void check_shares(uint64_t trial, bool leave)
{
    int32_t label[MOST];
    bool chosen[MOST];
    uint32_t n = draw_labels(trial, label), wanted = 1 + hvt__below(hvt__draw(trial, 3, 0, 0), n - 1);
    uint32_t has[CLASSES], took[CLASSES], all = 0, there = 0, free = 0, can = 0;

    CHECK_OK(hvt__sample(label, n, wanted, trial, leave, chosen));
    count(label, chosen, n, has, took);
    for (int c = 0; c < CLASSES; c++) {
        all += took[c];
        there += has[c] > 0;
        can += has[c] > 1;
        free += has[c] > 0 ? has[c] - 1 : 0;
    }
    CHECK(all == wanted, "trial %llu: %u of %u images, expected %u", (unsigned long long)trial, all, n,
          wanted);
    for (int c = 0; c < CLASSES; c++) {
        double share = (double)wanted * has[c] / n;

        if (!leave)
            CHECK((took[c] && has[c]) || !has[c] || wanted < there,
                  "trial %llu: none of class %d's %u images", (unsigned long long)trial, c, has[c]);
        else if (free >= wanted)
            CHECK((took[c] < has[c] || !has[c]) && (took[c] || has[c] < 2 || wanted < can),
                  "trial %llu: %u of class %d's %u images are held out", (unsigned long long)trial, took[c],
                  c, has[c]);
        if (!leave && wanted < there)
            CHECK(took[c] < share + 1, "trial %llu: %u images of a share of %g", (unsigned long long)trial,
                  took[c], share);
    }
}

TEST(a_sample_has_each_class_and_no_image_more)
{
    for (uint64_t trial = 0; trial < 3000; trial++) {
        check_shares(trial, false);
        check_shares(trial, true);
    }
}

TEST(shares_are_the_nearest_whole_numbers)
{
    int32_t label[1000];
    bool chosen[1000];
    uint32_t has[CLASSES], took[CLASSES];

    for (int i = 0; i < 1000; i++)
        label[i] = i < 600 ? 0 : i < 900 ? 1 : 2;
    CHECK_OK(hvt__sample(label, 1000, 100, 7, false, chosen));
    count(label, chosen, 1000, has, took);
    CHECK(took[0] == 60 && took[1] == 30 && took[2] == 10, "%u, %u, %u", took[0], took[1], took[2]);
    CHECK_OK(hvt__sample(label, 1000, 3, 7, false, chosen));
    count(label, chosen, 1000, has, took);
    CHECK(took[0] == 1 && took[1] == 1 && took[2] == 1, "%u, %u, %u", took[0], took[1], took[2]);
    for (int i = 0; i < 40; i++)
        label[i] = i >= 36;
    CHECK_OK(hvt__sample(label, 40, 4, 0, true, chosen)); /* 0 insects of 4, before */
    count(label, chosen, 40, has, took);
    CHECK(took[0] == 3 && took[1] == 1, "%u, %u", took[0], took[1]);
}

TEST(images_of_one_class_are_those_that_a_permutation_begins_with)
{
    uint32_t order[50];
    bool chosen[50];

    hvt_sampler_permutation(9, 0, 50, order);
    CHECK_OK(hvt__sample(NULL, 50, 12, 9, true, chosen));
    for (int i = 0; i < 50; i++)
        CHECK(chosen[order[i]] == (i < 12), "image %u", order[i]);
}

static hvt_status get(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    *ret_pixels = (uint8_t)index;
    *ret_label = (int)index / 50;
    return ctx ? HVT_E_IO : HVT_OK;
}

static int label_of(void *ctx, uint32_t index)
{
    return ctx ? -1 : (int)index / 50;
}

TEST(a_limit_of_sorted_images_takes_all_classes_in_their_order)
{
    hvt_source source = {
        .info = {"sorted", 200, 4, 1, 1, 1, 5, .type = HVT_U8}, .get = get, .label = label_of};
    hvt_dataset *set = NULL;
    int last = -1, of[4] = {0}, label = 0;
    uint8_t pixel;

    CHECK_OK(hvt_dataset_from(&source, 20, &set));
    CHECK(hvt_dataset_describe(set)->count == 20, "%u images", hvt_dataset_describe(set)->count);
    for (uint32_t i = 0; i < 20; i++) {
        CHECK_OK(hvt_dataset_get(set, i, &pixel, &label));
        CHECK(pixel > last && label == pixel / 50, "image %d after %d has label %d", pixel, last, label);
        last = pixel;
        of[label]++;
    }
    CHECK(of[0] == 5 && of[1] == 5 && of[2] == 5 && of[3] == 5, "%d, %d, %d, %d", of[0], of[1], of[2], of[3]);
    hvt_dataset_close(&set);
    source.ctx = &source;
    CHECK_FAILS(hvt_dataset_from(&source, 20, &set), E_FORMAT, "label is -1, expected 0 to 3");
}

TEST(the_seed_draws_another_sample_and_the_same_part)
{
    hvt_dataset *a = NULL, *b = NULL;
    hvt_dataset_opts opts = {.train = true, .limit = 100, .image_size = 8, .samples = 1000};

    for (int split = 0; split < 2; split++) {
        opts.limit = split ? 0 : 100;
        opts.val_split = split ? 0.1 : 0;
        opts.seed = 1;
        CHECK_OK(hvt_dataset_open("synth", &opts, &a));
        opts.seed = 2;
        CHECK_OK(hvt_dataset_open("synth", &opts, &b));
        CHECK((hvt_dataset_describe(a)->fingerprint == hvt_dataset_describe(b)->fingerprint) == split,
              "samples with seeds 1 and 2");
        hvt_dataset_close(&a);
        hvt_dataset_close(&b);
    }
}

int main(void)
{
    RUN(a_sample_has_each_class_and_no_image_more);
    RUN(shares_are_the_nearest_whole_numbers);
    RUN(images_of_one_class_are_those_that_a_permutation_begins_with);
    RUN(a_limit_of_sorted_images_takes_all_classes_in_their_order);
    RUN(the_seed_draws_another_sample_and_the_same_part);
    return check_done();
}
