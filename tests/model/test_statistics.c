/* The end of a step: running statistics from the shards' moments, the loss, and inference, which reads them.
 */
#include "nets.h"

static hvt_value norm_net(hvt_model *m, hvt_value x)
{
    hvt_name(m, "wide");
    x = hvt_relu(m, hvt_batchnorm(m, x));
    x = hvt_avgpool(m, hvt_conv2d(m, x, 6, 3, 1, 1));
    hvt_name(m, "point"); /* one value per image and channel */
    return hvt_linear(m, hvt_batchnorm(m, x), 4);
}

/* Mean and unbiased variance of channel c over images first .. first+count-1. */
static void moments_of(const net *n, int first, int count, int c, double *ret_mean, double *ret_var)
{
    int pixels = n->h * n->w;
    double sum = 0, square = 0, values = (double)count * pixels;

    for (int i = 0; i < count; i++)
        for (int p = 0; p < pixels; p++) {
            double x = pixel(first + i, p * n->c + c);

            sum += x;
            square += x * x;
        }
    *ret_mean = sum / values;
    *ret_var = (square - sum * sum / values) / (values - 1);
}

TEST(moving_statistics_take_the_shards_moments_by_their_images)
{
    static const int counts[] = {5, 1, 0, 3};
    how by = ref;

    for (int i = 0; i == 0 || way(i - 1, &by); i++) {
        net n;

        if (open_net(&n, by, norm_net, (shape){5, 4, 3, 2})) {
            hvt_model *m = n.m;
            float *sum = calloc(m->step_stats_count, sizeof *sum);
            double loss = 0, want_mean[2] = {0}, want_var[2] = {0};
            int first = 0, hits[2] = {0};
            hvt_loss got;
            float rows[5];
            int32_t place[5];

            for (int shard = 0; shard < 4; shard++) {
                feed(&n, first, counts[shard]);
                CHECK_OK(hvt_model_forward(m, &n.batch, true));
                CHECK_OK(hvt_model_rows(m, rows, place));
                for (size_t k = 0; k < m->step_stats_count; k++)
                    sum[k] += m->grads[k];
                for (int c = 0; c < 2 && counts[shard]; c++) {
                    double mean, var;

                    moments_of(&n, first, counts[shard], c, &mean, &var);
                    want_mean[c] += mean * counts[shard] / 9;
                    want_var[c] += var * counts[shard] / 9;
                }
                for (int k = 0; k < counts[shard]; k++) {
                    loss += rows[k];
                    hits[0] += place[k] < 1;
                    hits[1] += place[k] < 5;
                }
                first += counts[shard];
            }
            memcpy(m->grads, sum, m->step_stats_count * sizeof *sum);
            CHECK_OK(hvt__model_begin_step(m, 9, .1, NULL));
            CHECK_OK(hvt__model_end_step(m, counts, 4));
            CHECK(m->tracked == 1, "%lld steps tracked", (long long)m->tracked);
            for (int c = 0; c < 2; c++) {
                double mean = m->stats[m->stat[0].offset + c], var = m->stats[m->stat[1].offset + c];

                CHECK(fabs(mean - .1 * want_mean[c]) < 1e-6, "%s: mean %g, expected %g", way_name(by), mean,
                      .1 * want_mean[c]);
                CHECK(fabs(var - (.9 + .1 * want_var[c])) < 1e-6, "%s: variance %g, expected %g",
                      way_name(by), var, .9 + .1 * want_var[c]);
            }
            /* The shard of one image has one value per channel behind the pool, so 5 + 3 images weigh: a
             * constant moment times its weight comes back as itself. */
            for (size_t k = 0; k < m->step_stats_count - HVT__STEP_SUMS; k++)
                m->grads[k] = 8;
            memcpy(m->stats + m->stat[2].offset, (float[6]){0}, 6 * sizeof(float));
            CHECK_OK(hvt__model_end_step(m, counts, 4));
            CHECK(fabs(m->stats[m->stat[2].offset] - .1) < 1e-7, "moving mean %g, expected .1 * 8/8",
                  (double)m->stats[m->stat[2].offset]);
            CHECK_OK(hvt_model_take_loss(m, &got));
            CHECK(fabs(got.sum - 2 * loss) < 1e-4 && got.top1 == 2 * hits[0] && got.top5 == 2 * hits[1] &&
                      got.count == 18,
                  "loss %g (expected %g), hits %lld %lld (%d %d), %lld images", got.sum, 2 * loss,
                  (long long)got.top1, (long long)got.top5, 2 * hits[0], 2 * hits[1], (long long)got.count);
            CHECK_OK(hvt_model_take_loss(m, &got));
            CHECK(got.sum == 0 && got.count == 0, "the loss was not taken");
            free(sum);
        }
        close_net(&n);
    }
}

TEST(shards_without_a_variance_move_no_statistics)
{
    static const int counts[] = {1, 0, 1};
    net n;

    if (open_net(&n, ref, norm_net, (shape){5, 4, 3, 2})) {
        const hvt_stat *point = &n.m->stat[2];

        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_OK(hvt__model_end_step(n.m, counts, 3));
        CHECK(n.m->stats[point->offset] == 0 && n.m->stats[point[1].offset] == 1,
              "statistics moved to %g, %g", (double)n.m->stats[point->offset],
              (double)n.m->stats[point[1].offset]);
        CHECK(n.m->tracked == 1, "%lld steps tracked", (long long)n.m->tracked);
    }
    close_net(&n);
}

TEST(a_loss_that_is_not_finite_changes_nothing)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const text[] = {"nan", "inf", "-inf"};
    net n;

    if (open_net(&n, ref, small_net, (shape){5, 9, 11, 3})) {
        uint64_t before, after;
        hvt_step_state before_step;

        CHECK_OK(hvt_model_hash(n.m, &before));
        CHECK_OK(hvt__model_state(n.m, &before_step));
        for (int i = 0; i < 3; i++) {
            hvt_loss loss;

            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            n.m->grads[n.m->step_stats_count - HVT__STEP_SUMS] = bad[i];
            CHECK_OK(hvt__model_set_state(n.m, &before_step));
            CHECK_OK(hvt__model_begin_step(n.m, 5, .1, NULL));
            CHECK_OK(hvt__model_end_step(n.m, (int[]){5}, 1));
            CHECK_FAILS(hvt__model_stopped(n.m, n.m->step), E_DIVERGED, text[i]);
            CHECK(!n.m->step->apply, "the step may update");
            CHECK_OK(hvt_model_hash(n.m, &after));
            CHECK(before == after && n.m->tracked == 0, "the step left something");
            CHECK_OK(hvt_model_take_loss(n.m, &loss));
            CHECK(loss.count == 0, "%lld images were counted", (long long)loss.count);
        }
    }
    close_net(&n);
}

TEST(inference_reads_moving_statistics_and_touches_nothing)
{
    net n;

    if (open_net(&n, ref, norm_net, (shape){5, 4, 3, 2})) {
        hvt_model *m = n.m;
        float *step_stats = malloc(m->arena_count * sizeof *step_stats), loss[3][5];
        int32_t place[5];
        uint64_t before, after;

        CHECK_OK(hvt_model_forward(m, &n.batch, true));
        CHECK_OK(hvt_model_backward(m, NULL, NULL));
        CHECK_OK(hvt_model_rows(m, loss[0], place));
        memcpy(step_stats, m->grads, m->arena_count * sizeof *step_stats);
        CHECK_OK(hvt_model_hash(m, &before));
        CHECK_OK(hvt_model_forward(m, &n.batch, false));
        CHECK_OK(hvt_model_rows(m, loss[1], place));
        CHECK_OK(hvt_model_hash(m, &after));
        CHECK(before == after, "weights or statistics moved");
        CHECK(!memcmp(step_stats, m->grads, m->arena_count * sizeof *step_stats), "gradients moved");
        /* With the batch's own statistics as the moving ones it gives the training pass's losses. */
        for (int k = 0; k < 2; k++) {
            const hvt_stat *s = &m->stat[2 * k];
            size_t at = k ? 2 * m->stat[0].count : 0, c = s->count;
            int values = k ? 5 : 60;

            for (size_t i = 0; i < c; i++) {
                m->stats[s[0].offset + i] = step_stats[at + i] / 5;
                m->stats[s[1].offset + i] = step_stats[at + c + i] / 5 * (float)(values - 1) / (float)values;
            }
        }
        CHECK_OK(hvt_model_forward(m, &n.batch, false));
        CHECK_OK(hvt_model_rows(m, loss[2], place));
        for (int i = 0; i < 5; i++) {
            CHECK(fabsf(loss[2][i] - loss[0][i]) < 1e-4f * loss[0][i], "loss %g, expected %g",
                  (double)loss[2][i], (double)loss[0][i]);
            CHECK(loss[1][i] != loss[0][i], "image %d: running statistics made no difference", i);
        }
        free(step_stats);
    }
    close_net(&n);
}

int main(void)
{
#ifdef HVT_HOSTED
    check_gpu(hvt_device_count("cuda"));
#endif
    RUN(moving_statistics_take_the_shards_moments_by_their_images);
    RUN(shards_without_a_variance_move_no_statistics);
    RUN(a_loss_that_is_not_finite_changes_nothing);
    RUN(inference_reads_moving_statistics_and_touches_nothing);
    return check_done();
}
