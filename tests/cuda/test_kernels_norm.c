/*
 * cuda-kernels-norm: batch norm and bias on the emulator equal ref: random shapes, odd channels, one image,
 * short batches, every type, arrays that begin anywhere.
 */
#include "emulated.h"

#include "device/scalar.h"

/* ---- batch norm ---- */

TEST(batch_norm_in_training_equals_ref)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        matrix_shape m = random_matrix();
        float mean = between(0, 1) ? 0 : 30, eps = 1e-3f;
        double *mean_off = slacks(m.c), *rstd_off = slacks(m.c), *moments_off = slacks(2 * m.c),
               *y_off = slacks(m.all);
        const void *x, *residual;
        const float *gamma, *beta;
        bool relu = between(0, 1);
        int y, o_mean, o_rstd, o_moments;

        begin(&r, "bn_train");
        x = matrix_of(&r, &m, mean);
        residual = between(0, 1) ? matrix_of(&r, &m, 0) : NULL;
        gamma = per_channel(&r, &m, 1);
        beta = per_channel(&r, &m, 0);
        for (int c = 0; c < m.c; c++) {
            double sum = 0, size = 0, m2 = 0, rstd;

            for (size_t i = 0; i < m.count; i++) {
                sum += x_at(x, &m, i, c);
                size += fabs(x_at(x, &m, i, c));
            }
            sum /= (double)m.count + !m.count;
            size /= (double)m.count + !m.count;
            for (size_t i = 0; i < m.count; i++)
                m2 += (x_at(x, &m, i, c) - sum) * (x_at(x, &m, i, c) - sum);
            rstd = 1 / sqrt(m2 / ((double)m.count + !m.count) + eps);
            mean_off[c] = FEW * size;
            /* squares of deviations from a mean that is off */
            rstd_off[c] = rstd * FEW * (1 + size * rstd);
            moments_off[c] = FEW * size;
            moments_off[m.c + c] = FEW * (m2 + size * sqrt(m2)) / ((double)m.count - 1 + 2 * (m.count < 2));
            for (size_t i = 0; i < m.count; i++) {
                double off = fabs(x_at(x, &m, i, c) - sum), all = fabs(beta[c]);

                all += residual ? fabs(x_at(residual, &m, i, c)) : 0;
                y_off[i * m.c + c] = fabs(gamma[c]) * (rstd * mean_off[c] + off * rstd_off[c]) + FEW * all;
            }
        }
        y = output(&r, "y", m.t, m.all, m.real, NULL, y_off, m.skew);
        o_mean = output(&r, "mean", HVT_F32, m.c, m.c, NULL, mean_off, 4);
        o_rstd = output(&r, "rstd", HVT_F32, m.c, m.c, NULL, rstd_off, 8);
        o_moments = output(&r, "moments", HVT_F32, 2 * m.c, 2 * m.c, NULL, moments_off, 12);
        for (int run = 0; run < RUNS; run++) {
            hvt_bn_args a = {m.rows,
                             m.c,
                             m.t,
                             eps,
                             x,
                             gamma,
                             beta,
                             of(&r, o_mean, run),
                             of(&r, o_rstd, run),
                             residual,
                             relu,
                             NULL,
                             of(&r, y, run),
                             of(&r, o_moments, run),
                             0.25f};

            set_order(run);
            if (run)
                CHECK_OK(hvt__bn_train_cuda(&emulated, &a));
            else
                CHECK_OK(ref->ops->matrix.bn_train(ref, &a));
        }
        judge(&r);
        free(mean_off);
        free(rstd_off);
        free(moments_off);
        free(y_off);
    }
}

TEST(batch_norm_at_inference_equals_ref_bit_for_bit)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        matrix_shape m = random_matrix();
        hvt_bn_args a = {.rows = m.rows, .c = m.c, .type = m.t, .eps = 1e-5f, .relu = between(0, 1)};
        float *variance;
        int y;

        begin(&r, "bn_infer");
        a.x = matrix_of(&r, &m, 1);
        a.residual = between(0, 1) ? matrix_of(&r, &m, 0) : NULL;
        a.gamma = per_channel(&r, &m, 1);
        a.beta = per_channel(&r, &m, 0);
        a.mean = per_channel(&r, &m, 1);
        a.rstd = variance = per_channel(&r, &m, 2);
        a.is_variance = true;
        y = output(&r, "y", m.t, m.all, m.real, NULL, NULL, m.skew);
        for (int run = 0; run < RUNS; run++) {
            a.y = of(&r, y, run);
            set_order(run);
            if (run)
                CHECK_OK(hvt__bn_infer_cuda(&emulated, &a));
            else
                CHECK_OK(ref->ops->matrix.bn_infer(ref, &a));
        }
        judge(&r);
    }
}

/* where dx and dresidual are written: into arrays of their own, added there, or over dy */
enum { OWN, ADDED, OVER_DY, ABSENT };

TEST(batch_norm_backward_equals_ref)
{
    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        matrix_shape m = random_matrix();
        enum { NONE, FROM_Y, FROM_X } mask = between(0, 2);
        int to_dx = between(OWN, OVER_DY), to_residual = between(OWN, ABSENT);
        double *dgamma_off = slacks(m.c), *dbeta_off = slacks(m.c), *dx_off = slacks(m.all);
        const void *x, *dy, *y;
        const float *gamma, *mean, *rstd, *beta;
        int o_dx, o_residual = -1, o_dgamma, o_dbeta;

        if (to_dx == OVER_DY && to_residual == OVER_DY)
            to_residual = OWN;
        begin(&r, "bn_backward");
        x = matrix_of(&r, &m, 0.5f);
        dy = matrix_of(&r, &m, 0);
        gamma = per_channel(&r, &m, 1);
        beta = per_channel(&r, &m, 0);
        mean = per_channel(&r, &m, 0.5f);
        rstd = per_channel(&r, &m, 2);
        y = matrix_of(&r, &m, 0);
        for (size_t i = 0; mask == FROM_X && i < m.real; i++) { /* forward's, so that both give one mask */
            int c = (int)(i % m.c);
            float z = bn_value((float)element(x, m.t, i), mean[c], gamma[c] * rstd[c], beta[c]);

            hvt__store((void *)y, m.t, i, f_relu(z));
        }
        for (int c = 0; c < m.c; c++) {
            double sum = 0, dot = 0, n = (double)m.count + !m.count;

            for (size_t i = 0; i < m.count; i++) {
                sum += fabs(x_at(dy, &m, i, c));
                dot += fabs(x_at(dy, &m, i, c) * (x_at(x, &m, i, c) - mean[c]));
            }
            dbeta_off[c] = FEW * sum;
            dgamma_off[c] = FEW * dot * fabs(rstd[c]);
            for (size_t i = 0; i < m.count; i++)
                dx_off[i * m.c + c] = FEW * fabs(gamma[c] * rstd[c]) *
                                          (fabs(x_at(dy, &m, i, c)) + sum / n +
                                           fabs(x_at(x, &m, i, c) - mean[c]) * rstd[c] * rstd[c] * dot / n) +
                                      (to_dx == ADDED ? FEW : 0);
        }
        o_dx = output(&r, "dx", m.t, m.all, m.real,
                      to_dx == OWN       ? NULL
                      : to_dx == OVER_DY ? dy
                                         : matrix_of(&r, &m, 0),
                      dx_off, m.skew);
        if (to_residual != ABSENT)
            o_residual = output(&r, "dresidual", m.t, m.all, m.real,
                                to_residual == OWN       ? NULL
                                : to_residual == OVER_DY ? dy
                                                         : matrix_of(&r, &m, 0),
                                NULL, m.skew);
        o_dgamma = output(&r, "dgamma", HVT_F32, m.c, m.c, NULL, dgamma_off, 4);
        o_dbeta = output(&r, "dbeta", HVT_F32, m.c, m.c, NULL, dbeta_off, 8);
        for (int run = 0; run < RUNS; run++) {
            hvt_bn_grad_args a = {.rows = m.rows,
                                  .c = m.c,
                                  .type = m.t,
                                  .x = x,
                                  .y = mask == NONE ? NULL : y,
                                  .dy = to_dx == OVER_DY         ? of(&r, o_dx, run)
                                        : to_residual == OVER_DY ? of(&r, o_residual, run)
                                                                 : dy,
                                  .gamma = gamma,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .beta = mask == FROM_X ? beta : NULL,
                                  .dx = of(&r, o_dx, run),
                                  .add = to_dx == ADDED,
                                  .dresidual = o_residual < 0 ? NULL : of(&r, o_residual, run),
                                  .add_residual = to_residual == ADDED,
                                  .dgamma = of(&r, o_dgamma, run),
                                  .dbeta = of(&r, o_dbeta, run)};

            set_order(run);
            if (run)
                CHECK_OK(hvt__bn_backward_cuda(&emulated, &a));
            else
                CHECK_OK(ref->ops->matrix.bn_backward(ref, &a));
        }
        judge(&r);
        free(dgamma_off);
        free(dbeta_off);
        free(dx_off);
    }
}

TEST(moving_statistics_follow_unless_the_run_has_stopped)
{
    for (int c = 1; c < 600; c += 83) {
        hvt_step_state step = {.stop = c % 2 ? HVT_STOP_NOT : HVT_STOP_LOSS};
        runs r;
        const float *moments, *was;
        int mean, var;

        begin(&r, "bn_update");
        moments = input(&r, HVT_F32, 2 * c, 2 * c, 0, 4);
        was = input(&r, HVT_F32, c, c, 1, 0);
        mean = output(&r, "mean", HVT_F32, c, c, was, NULL, 4);
        var = output(&r, "variance", HVT_F32, c, c, was, NULL, 8);
        for (int run = 0; run < RUNS; run++) {
            hvt_bn_update_args a = {&step, c, 0.1f, 0.125f, moments, of(&r, mean, run), of(&r, var, run)};

            set_order(run);
            CHECK_OK(run ? hvt__bn_update_cuda(&emulated, &a) : ref->ops->matrix.bn_update(ref, &a));
        }
        CHECK(!step.stop || !memcmp(of(&r, mean, 1), was, c * sizeof *was), "moved after the stop");
        judge(&r);
    }
}

/* Parts of shards in any places, between them NaNs: of shards without images, and what fills up a part. */
TEST(shards_are_joined_as_by_ref_bit_for_bit)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        const int c = random_matrix().c, all = between(1, 9), first = between(0, all - 1);
        const size_t stride = (2 * (size_t)c + 15) / 16 * 16;
        hvt_bn_shard shard[9];
        hvt_bn_join_args a = {.c = c, .pixels = between(1, 60), .stride = stride, .eps = 1e-5f};
        float *part;
        int moments, joined[2];

        begin(&r, "bn_join");
        part = input(&r, HVT_F32, all * stride, 0, 0, 4 * between(0, 3));
        for (int i = 0; i < all; i++) {
            const hvt_bn_shard one = {(i + first) % all, between(1, 3)};

            if (i && !between(0, 3))
                continue;
            shard[a.shards++] = one;
            for (int col = 0; col < c; col++) {
                part[one.place * stride + col] = value() + 3;
                part[one.place * stride + c + col] = 20 * (value() + 1);
            }
        }
        a.shard = shard;
        a.part = part;
        joined[0] = output(&r, "mean and deviation", HVT_F32, 2 * c, 2 * c, NULL, NULL, 4);
        moments = output(&r, "moments", HVT_F32, 2 * c, 2 * c, NULL, NULL, 8);
        joined[1] = output(&r, "share and slope", HVT_F32, 2 * c, 2 * c, NULL, NULL, 12);
        for (int run = 0; run < RUNS; run++) {
            hvt_bn_join_args sums = a;

            a.joined = of(&r, joined[0], run);
            a.moments = of(&r, moments, run);
            sums.joined = of(&r, joined[1], run);
            set_order(run);
            CHECK_OK(run ? hvt__bn_join_moments_cuda(&emulated, &a)
                         : ref->ops->matrix.bn_join_moments(ref, &a));
            CHECK_OK(run ? hvt__bn_join_sums_cuda(&emulated, &sums)
                         : ref->ops->matrix.bn_join_sums(ref, &sums));
        }
        judge(&r);
    }
}

/* ---- bias ---- */

/* Of values whose sums are exact, so that a part that is lost or counted twice shows; and twice, so that
 * counters show that are not set back. */
TEST(the_last_block_to_come_finishes_the_sums_of_all_whoever_it_is)
{
    static const struct {
        int rows, c;
        hvt_dtype t;
    } all[] = {{5, 3, HVT_F32},       {300, 64, HVT_F32},   {2000, 37, HVT_F32},  {2100, 256, HVT_F16},
               {1100, 1000, HVT_F16}, {9000, 260, HVT_F32}, {20000, 64, HVT_BF16}};

    for (size_t k = 0; k < HVT_LEN(all) - (IS_TSAN ? 3 : 0); k++) {
        const size_t rows = (size_t)all[k].rows, c = (size_t)all[k].c;
        void *dy = malloc(rows * c * hvt_dtype_size(all[k].t));
        float *want = calloc(c, sizeof *want), *got = malloc(c * sizeof *got);

        for (size_t i = 0; i < rows * c; i++) {
            float x = (float)between(-3, 3);

            hvt__store(dy, all[k].t, i, x);
            want[i % c] += x;
        }
        for (int run = 1; run < RUNS + 2; run++) {
            set_order(run < RUNS ? run : 3);
            launches = 0;
            CHECK_OK(hvt__bias_backward_cuda(&emulated, (hvt_rows){1, all[k].rows, all[k].rows}, all[k].c,
                                             all[k].t, dy, got));
            CHECK(launches == 1, "%d kernels", launches);
            CHECK(!memcmp(got, want, c * sizeof *got), "case %zu, run %d: other sums", k, run);
        }
        for (size_t i = 0; i < HVT__CUDA_COUNTERS; i++)
            CHECK(!((char *)scratch)[i], "case %zu: byte %zu of the counters is not set back", k, i);
        free(dy);
        free(want);
        free(got);
    }
}

TEST(bias_is_added_and_its_gradient_summed_as_ref_does)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        matrix_shape m = random_matrix();
        double *off = slacks(m.c);
        const float *b;
        const void *dy;
        int y, db;

        begin(&r, "bias");
        b = per_channel(&r, &m, 0);
        dy = matrix_of(&r, &m, 0);
        for (size_t i = 0; i < m.real; i++)
            off[i % m.c] += FEW * fabs(element(dy, m.t, i));
        y = output(&r, "y", m.t, m.all, m.real, matrix_of(&r, &m, 0), NULL, m.skew);
        db = output(&r, "db", HVT_F32, m.c, m.c, NULL, off, 4);
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run) {
                CHECK_OK(hvt__bias_forward_cuda(&emulated, m.rows, m.c, m.t, b, of(&r, y, run)));
                CHECK_OK(hvt__bias_backward_cuda(&emulated, m.rows, m.c, m.t, dy, of(&r, db, run)));
            } else {
                CHECK_OK(ref->ops->matrix.bias_forward(ref, m.rows, m.c, m.t, b, of(&r, y, run)));
                CHECK_OK(ref->ops->matrix.bias_backward(ref, m.rows, m.c, m.t, dy, of(&r, db, run)));
            }
        }
        judge(&r);
        free(off);
    }
}

int main(void)
{
    open_emulated();
    RUN(batch_norm_in_training_equals_ref);
    RUN(batch_norm_at_inference_equals_ref_bit_for_bit);
    RUN(batch_norm_backward_equals_ref);
    RUN(moving_statistics_follow_unless_the_run_has_stopped);
    RUN(shards_are_joined_as_by_ref_bit_for_bit);
    RUN(the_last_block_to_come_finishes_the_sums_of_all_whoever_it_is);
    RUN(bias_is_added_and_its_gradient_summed_as_ref_does);
    return close_emulated();
}
