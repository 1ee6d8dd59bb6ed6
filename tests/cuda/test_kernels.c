/*
 * cuda-kernels: cuda/'s kernels, run on the emulator, equal ref: random shapes, odd channels, one image,
 * short batches, every type, arrays that begin anywhere.
 */
#include "runs.h"

#include "device/scalar.h"
#include "emu/faults.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef HVT_EMU_TSAN
enum { IS_TSAN = true, CASES = 4 };
#else
enum { IS_TSAN = false, CASES = 24 };
#endif

static void *scratch; /* for every op in turn, full of NaNs behind its counters */
static int launches;
static hvt_device emulated;

/* In place of launch.c: no stream. */
cudaStream_t hvt__cuda_stream(hvt_device *d)
{
    (void)d;
    return NULL;
}

void *hvt__cuda_scratch(hvt_device *d)
{
    (void)d;
    return scratch;
}

hvt_status hvt__cuda_launched(const hvt_device *d, cudaError_t e, const char *file, int line,
                              const char *kernel)
{
    (void)d;
    launches++;
    return e == cudaSuccess ? HVT_OK : hvt__fail(HVT_E_DEVICE, file, line, "%s: error %d", kernel, (int)e);
}

/* ---- matrices ---- */

typedef struct matrix_shape {
    hvt_rows rows;
    int c;
    hvt_dtype t;
    size_t all, real, skew; /* elements; bytes */
    size_t count;           /* real rows */
} matrix_shape;

static matrix_shape random_matrix(void)
{
    static const int channels[] = {1, 3, 7, 8, 16, 24, 37, 64, 100, 130, 256, 300, 2048};
    int c = channels[between(0, HVT_LEN(channels) - 1)], n = between(1, 9),
        pixels = between(1, c > 500 ? 9 : 60);
    int real = between(0, 3) ? n : between(0, n);
    matrix_shape m = {.c = c, .t = any_type()};

    if (c < 100 && !between(0, 4)) { /* rows for many parts */
        n = between(30, 40);
        pixels = 49;
        real = between(n - 2, n);
    }
    if (between(0, 3) == 0)
        m.skew = hvt_dtype_size(m.t) * between(1, 7);
    m.rows = hvt__rows(HVT_ORDER_NHW, pixels, n, real);
    m.all = (size_t)m.rows.block * c;
    m.real = (size_t)m.rows.real * c;
    m.count = (size_t)m.rows.real;
    return m;
}

static void *matrix_of(runs *r, const matrix_shape *m, float mean)
{
    return input(r, m->t, m->all, m->real, mean, m->skew);
}

static float *per_channel(runs *r, const matrix_shape *m, float mean)
{
    return input(r, HVT_F32, m->c, m->c, mean, 4 * between(0, 3));
}

static double x_at(const void *x, const matrix_shape *m, size_t row, int c)
{
    return element(x, m->t, row * m->c + c);
}

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

/* ---- pooling ---- */

/* Values with many ties, now and then a NaN or an infinity. */
static void *pool_input(runs *r, hvt_dtype t, size_t count, size_t real, size_t skew)
{
    void *x = input(r, t, count, real, 0, skew);

    for (size_t i = 0; i < real; i++)
        hvt__store(x, t, i,
                   !between(0, 40)   ? NAN
                   : !between(0, 40) ? -INFINITY
                                     : (float)between(-3, 3) * 0.25f);
    return x;
}

static void pool_case(hvt_pooling_desc p, bool finite, bool add)
{
    runs r;
    int real = between(0, 2) ? p.n : between(0, p.n);
    int rows = p.mean ? 1 : hvt__conv_out(p.h, p.size, p.stride, p.pad);
    int cols = p.mean ? 1 : hvt__conv_out(p.w, p.size, p.stride, p.pad);
    size_t in = (size_t)p.h * p.w * p.c, out = (size_t)rows * cols * p.c;
    size_t skew = between(0, 3) ? 0 : hvt_dtype_size(p.type) * between(1, 7);
    double *off = slacks(real * out);
    void *saved[RUNS], *x;
    const void *dy;
    hvt_op *op = NULL, *emu_op = NULL;
    size_t bytes = 0, emu_bytes = 0;
    int y, dx;

    begin(&r, p.mean ? "mean pool" : "max pool");
    CHECK_OK(ref->ops->pooling.plan(ref, &p, &op, &bytes));
    CHECK_OK(hvt__pooling_plan(&emulated, &p, &emu_op, &emu_bytes));
    x = finite ? input(&r, p.type, p.n * in, real * in, 0, skew)
               : pool_input(&r, p.type, p.n * in, real * in, skew);
    dy = input(&r, p.type, p.n * out, real * out, 0, skew);
    for (size_t i = 0; p.mean && i < real * in; i++)
        off[i / in * p.c + i % p.c] += FEW * fabs(element(x, p.type, i)) / (p.h * p.w);
    y = output(&r, "y", p.type, p.n * out, real * out, NULL, p.mean ? off : NULL, skew);
    dx = output(&r, "dx", p.type, p.n * in, real * in,
                add ? input(&r, p.type, p.n * in, real * in, 0, skew) : NULL, NULL, skew);
    for (int run = 0; run < RUNS; run++) {
        set_order(run);
        saved[run] = guarded_room(&r, run ? emu_bytes : bytes, 0);
        if (run) {
            CHECK_OK(hvt__pooling_forward_cuda(emu_op, real, x, of(&r, y, run), saved[run]));
            CHECK_OK(hvt__pooling_backward_cuda(emu_op, real, saved[run], dy, of(&r, dx, run), add));
        } else {
            CHECK_OK(ref->ops->pooling.forward(op, real, x, of(&r, y, run), saved[run]));
            CHECK_OK(ref->ops->pooling.backward(op, real, saved[run], dy, of(&r, dx, run), add));
        }
    }
    hvt__op_free(op);
    hvt__op_free(emu_op);
    judge(&r);
    free(off);
}

TEST(pooling_equals_ref_with_ties_and_nans)
{
    for (int k = 0; k < 2 * CASES; k++) {
        hvt_pooling_desc p = random_pool();

        p.order = HVT_ORDER_NHW;
        p.type = any_type();
        p.n = between(1, 3);
        p.c = between(0, 1) ? 8 * between(1, 9) : between(1, 70);
        pool_case(p, p.mean, between(0, 1));
    }
}

TEST(subsampling_equals_ref)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        hvt_dtype t = any_type();
        int n = between(1, 3), h = between(1, 9), w = between(1, 9), stride = between(1, 3);
        int c = between(0, 1) ? 8 * between(1, 5) : between(1, 40),
            channels = c + (between(0, 1) ? c : between(0, 20));
        hvt_subsample_desc d = {HVT_ORDER_NHW, t, n, h, w, c, stride, channels};
        int p = (h + stride - 1) / stride, q = (w + stride - 1) / stride;
        size_t in = (size_t)n * h * w * c, out = (size_t)n * p * q * channels;
        bool add = between(0, 1);
        const void *x, *dy;
        int y, dx;

        begin(&r, "subsample");
        x = input(&r, t, in, in, 0, 0);
        dy = input(&r, t, out, out, 0, 0);
        y = output(&r, "y", t, out, out, NULL, NULL, 0);
        dx = output(&r, "dx", t, in, in, add ? x : NULL, NULL, 0);
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run) {
                CHECK_OK(hvt__subsample_forward_cuda(&emulated, &d, x, of(&r, y, run)));
                CHECK_OK(hvt__subsample_backward_cuda(&emulated, &d, dy, of(&r, dx, run), add));
            } else {
                CHECK_OK(ref->ops->matrix.subsample_forward(ref, &d, x, of(&r, y, run)));
                CHECK_OK(ref->ops->matrix.subsample_backward(ref, &d, dy, of(&r, dx, run), add));
            }
        }
        judge(&r);
    }
}

/* ---- loss ---- */

/* [rows, classes], some rows with ties, NaNs and infinities */
static void *logits_of(runs *r, hvt_dtype t, int rows, int real, int classes)
{
    void *x = input(r, t, (size_t)rows * classes, (size_t)real * classes, 0, 0);

    for (int i = 0; i < real; i++) {
        bool ties = !between(0, 2), odd = !between(0, 5);

        for (int k = 0; k < classes; k++) {
            size_t e = (size_t)i * classes + k;
            float v = ties ? (float)between(-2, 2) : 8 * value();

            hvt__store(x, t, e, odd && !between(0, 3) ? (between(0, 1) ? NAN : -INFINITY) : v);
        }
    }
    return x;
}

TEST(cross_entropy_equals_ref)
{
    for (int k = 0; k < CASES; k++) {
        runs r;
        static const int many[] = {2, 5, 10, 33, 100, 257, 1000};
        hvt_dtype t = any_type();
        int classes = many[between(0, HVT_LEN(many) - 1)],
            rows = between(0, 4) ? between(1, 20) : between(250, 600);
        int real = between(0, 1) ? rows : between(0, rows), dx, loss, place, sums;
        bool wanted = between(0, 3);
        float scale = 1024;
        double *dx_off, *loss_off = slacks(rows), *sums_off = slacks(3);
        void *labels;
        hvt_xent_args a = {.rows = {1, rows, real},
                           .classes = classes,
                           .type = t,
                           .smoothing = between(0, 1) ? 0.1f * (float)between(1, 10) : 0};

        rows = classes > 100 &&rows > 20 ? a.rows.block = 21 : rows;
        real = a.rows.real = real < rows ? real : rows;
        dx_off = slacks((size_t)rows * classes);
        begin(&r, "xent");
        a.logits = logits_of(&r, t, rows, real, classes);
        a.labels = labels = guarded_room(&r, rows * sizeof(int32_t), 0);
        a.scale = between(0, 1) ? &scale : NULL;
        for (int i = 0; i < rows; i++)
            ((int32_t *)labels)[i] = between(0, classes - 1);
        for (int i = 0; i < real; i++) {
            loss_off[i] = 4 * FEW * 16; /* logits within 8 of 0: differences are off by a few places of 16 */
            sums_off[0] += loss_off[i] * 2;
            for (int c = 0; c < classes; c++)
                dx_off[(size_t)i * classes + c] = 4 * FEW * (a.scale ? scale : 1);
        }
        dx = output(&r, "dlogits", t, (size_t)rows * classes, wanted ? (size_t)rows * classes : 0, NULL,
                    dx_off, 0);
        loss = output(&r, "loss", HVT_F32, rows, real, NULL, loss_off, 4);
        place = output(&r, "place", HVT_I32, rows, real, NULL, NULL, 4);
        sums = output(&r, "sums", HVT_F32, 3, 3, NULL, sums_off, 8);
        for (int run = 0; run < RUNS; run++) {
            a.dlogits = wanted ? of(&r, dx, run) : NULL;
            a.loss = of(&r, loss, run);
            a.label_rank = of(&r, place, run);
            a.sums = of(&r, sums, run);
            set_order(run);
            if (run) {
                double sum = 0;

                CHECK_OK(hvt__xent_cuda(&emulated, &a));
                for (int i = 0; i < real; i++)
                    sum += a.loss[i];
                CHECK(a.sums[0] == (float)sum || isnan(sum), "%.9g is not the rows' sum, %.9g", a.sums[0],
                      sum);
            } else {
                CHECK_OK(ref->ops->matrix.xent(ref, &a));
            }
        }
        judge(&r);
        free(dx_off);
        free(loss_off);
        free(sums_off);
    }
}

TEST(squared_errors_equal_ref)
{
    for (int k = 0; k < CASES; k++) {
        static const int many[] = {1, 2, 10, 33, 257, 1000};
        runs r;
        hvt_dtype t = any_type();
        int outputs = many[between(0, HVT_LEN(many) - 1)], rows = between(1, 20);
        int real = between(0, 1) ? rows : between(0, rows), dy, loss, error, sums;
        size_t count = (size_t)rows * (size_t)outputs;
        bool wanted = between(0, 3);
        float scale = 1024;
        double *dy_off = slacks(count), *loss_off = slacks(rows), *sums_off = slacks(3);
        float *targets;
        void *y;
        hvt_mse_args a = {.rows = {1, rows, real}, .outputs = outputs, .type = t};

        begin(&r, "mse");
        a.y = y = guarded_room(&r, count * hvt_dtype_size(t), 0);
        a.targets = targets = guarded_room(&r, count * sizeof *targets, 0);
        a.scale = between(0, 1) ? &scale : NULL;
        for (size_t i = 0; i < count; i++) {
            hvt__store(y, t, i, 4 * value());
            targets[i] = 4 * value();
            dy_off[i] = 0; /* the same arithmetic */
        }
        for (int i = 0; i < real; i++) {
            loss_off[i] = 64 * FEW * (double)(outputs < 16 ? 4 : 16);
            sums_off[0] += 2 * loss_off[i];
        }
        dy = output(&r, "dy", t, count, wanted ? count : 0, NULL, dy_off, 0);
        loss = output(&r, "loss", HVT_F32, rows, real, NULL, loss_off, 4);
        error = output(&r, "error", HVT_F32, rows, real, NULL, loss_off, 4);
        sums = output(&r, "sums", HVT_F32, 3, 3, NULL, sums_off, 8);
        for (int run = 0; run < RUNS; run++) {
            a.dy = wanted ? of(&r, dy, run) : NULL;
            a.loss = of(&r, loss, run);
            a.error = of(&r, error, run);
            a.sums = of(&r, sums, run);
            set_order(run);
            CHECK_OK(run ? hvt__mse_cuda(&emulated, &a) : ref->ops->matrix.mse(ref, &a));
        }
        judge(&r);
        free(dy_off);
        free(loss_off);
        free(sums_off);
    }
}

/* ---- elements ---- */

/* Lengths around packs and blocks, each array beginning where it likes, or all of them alike. */
typedef struct element_shape {
    size_t n;
    bool alike;
    size_t skew;
} element_shape;

static element_shape random_elements(void)
{
    return (element_shape){between(0, 3) ? between(0, 70) : between(1000, 4200), between(0, 1),
                           between(0, 7)};
}

static size_t skew_of(const element_shape *e, hvt_dtype t)
{
    return hvt_dtype_size(t) * (e->alike ? e->skew : (size_t)between(0, 7));
}

static void *elements_of(runs *r, const element_shape *e, hvt_dtype t)
{
    return input(r, t, e->n, e->n, 0, skew_of(e, t));
}

TEST(relu_and_add_equal_ref_bit_for_bit)
{
    for (int k = 0; k < 3 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype t = any_type();
        bool add = between(0, 1);
        const void *x, *dy;
        int y, dx, sum;

        begin(&r, "relu and add");
        x = elements_of(&r, &e, t);
        dy = elements_of(&r, &e, t);
        if (e.n > 3)
            hvt__store((void *)x, t, e.n / 2, NAN);
        y = output(&r, "relu", t, e.n, e.n, NULL, NULL, skew_of(&e, t));
        dx = output(&r, "relu's gradient", t, e.n, e.n, add ? elements_of(&r, &e, t) : NULL, NULL,
                    skew_of(&e, t));
        sum = output(&r, "sum", t, e.n, e.n, x, NULL, skew_of(&e, t)); /* in place */
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run) {
                CHECK_OK(hvt__relu_forward_cuda(&emulated, e.n, t, x, of(&r, y, run)));
                CHECK_OK(hvt__relu_backward_cuda(&emulated, e.n, t, x, dy, of(&r, dx, run), add));
                CHECK_OK(hvt__add_cuda(&emulated, e.n, t, of(&r, sum, run), dy, of(&r, sum, run)));
            } else {
                CHECK_OK(ref->ops->vector.relu_forward(ref, e.n, t, x, of(&r, y, run)));
                CHECK_OK(ref->ops->vector.relu_backward(ref, e.n, t, x, dy, of(&r, dx, run), add));
                CHECK_OK(ref->ops->vector.add(ref, e.n, t, of(&r, sum, run), dy, of(&r, sum, run)));
            }
        }
        judge(&r);
    }
}

TEST(casts_of_all_types_equal_ref_bit_for_bit)
{
    for (int k = 0; k < 9 * 8; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype from = float_types[k % 3], to = float_types[k / 3 % 3];
        float scale = between(0, 1) ? 1 : 1000 * value();
        void *x;
        int y;

        begin(&r, "cast");
        x = elements_of(&r, &e, from);
        for (size_t i = 0; i < e.n; i += 7) /* to the ends of f16 and past them */
            hvt__store(x, from, i, ldexpf(value(), between(-30, 20)));
        y = output(&r, "dst", to, e.n, e.n, NULL, NULL, skew_of(&e, to));
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run)
                CHECK_OK(hvt__cast_cuda(&emulated, e.n, scale, x, from, of(&r, y, run), to));
            else
                CHECK_OK(ref->ops->vector.cast(ref, e.n, scale, x, from, of(&r, y, run), to));
        }
        judge(&r);
    }
}

TEST(sums_of_any_number_of_arrays_follow_the_tree)
{
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 31, 64};

    for (int k = 0; k < 3 * (int)HVT_LEN(counts); k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype t = float_types[k % 3];
        const void *in[64];
        int count = counts[k / 3], y;

        begin(&r, "reduce");
        for (int i = 1; i < count; i++)
            in[i] = elements_of(&r, &e, t);
        y = output(&r, "out", t, e.n, e.n, elements_of(&r, &e, t), NULL, skew_of(&e, t));
        for (int run = 0; run < RUNS; run++) {
            in[0] = of(&r, y, run); /* in place */
            set_order(run);
            if (run)
                CHECK_OK(hvt__reduce_cuda(&emulated, e.n, t, in, count, of(&r, y, run)));
            else
                CHECK_OK(ref->ops->vector.reduce(ref, e.n, t, in, count, of(&r, y, run)));
        }
        judge(&r);
    }
    CHECK_FAILS(hvt__reduce_cuda(&emulated, 1, HVT_F32, NULL, HVT__CUDA_MOST_INPUTS + 1, NULL), E_UNSUPPORTED,
                "1 to 128 arrays, not 129");
}

TEST(put_takes_its_bytes_at_the_call)
{
    for (size_t bytes = 0; bytes <= HVT__PUT_MOST; bytes += 4) {
        runs r;
        unsigned char from[HVT__PUT_MOST];
        int y;

        begin(&r, "put");
        y = output(&r, "dst", HVT_U8, bytes, bytes, NULL, NULL, 4);
        for (size_t i = 0; i < bytes; i++)
            from[i] = (unsigned char)draw();
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run)
                CHECK_OK(hvt__cuda_put(&emulated, of(&r, y, run), from, bytes));
            else
                memcpy(of(&r, y, run), from, bytes);
        }
        judge(&r);
    }
    CHECK_FAILS(hvt__cuda_put(&emulated, NULL, NULL, HVT__PUT_MOST + 4), E_ARG, "put of 260 bytes");
}

/* ---- the end of a step ---- */

TEST(sgd_equals_ref_bit_for_bit)
{
    for (int k = 0; k < 4 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype copy_type = any_type();
        int ng = between(0, 1) ? 1 : between(2, 9), w, v, copy;
        hvt_step_state step = {
            .lr = 0.1f, .grad_scale = 0.125f, .apply = between(0, 4) > 0, .fresh = !between(0, 3)};
        hvt_sgd_args a = {.momentum = between(0, 2) ? 0.9f : 0,
                          .dampening = between(0, 1) ? 0.1f : 0,
                          .weight_decay = between(0, 1) ? 1e-4f : 0,
                          .step = &step,
                          .copy_type = copy_type};
        bool copied = between(0, 2);
        const float *g[9];

        begin(&r, "sgd");
        a.nesterov = a.momentum != 0 && a.dampening == 0 && between(0, 1);
        for (int i = 0; i < ng; i++)
            g[i] = elements_of(&r, &e, HVT_F32);
        w = output(&r, "w", HVT_F32, e.n, e.n, elements_of(&r, &e, HVT_F32), NULL, skew_of(&e, HVT_F32));
        v = output(&r, "v", HVT_F32, e.n, e.n, step.fresh ? NULL : elements_of(&r, &e, HVT_F32), NULL,
                   skew_of(&e, HVT_F32));
        copy = output(&r, "copy", copy_type, e.n, e.n, NULL, NULL, skew_of(&e, copy_type));
        for (int run = 0; run < RUNS; run++) {
            a.copy = copied ? of(&r, copy, run) : NULL;
            set_order(run);
            if (run)
                CHECK_OK(hvt__sgd_cuda(&emulated, e.n, &a, g, ng, of(&r, w, run),
                                       a.momentum != 0 ? of(&r, v, run) : NULL));
            else
                CHECK_OK(ref->ops->vector.sgd(ref, e.n, &a, g, ng, of(&r, w, run), of(&r, v, run)));
        }
        judge(&r);
    }
}

TEST(adam_equals_ref_bit_for_bit)
{
    for (int k = 0; k < 4 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_dtype copy_type = any_type();
        int ng = between(0, 1) ? 1 : between(2, 9), w, m, v, copy;
        hvt_step_state step = {.lr = 0.1f,
                               .grad_scale = 0.125f,
                               .apply = between(0, 4) > 0,
                               .fresh = !between(0, 3),
                               .bias = {3, 7}};
        hvt_adam_args a = {.beta = {.9, .99},
                           .eps = 1e-3f,
                           .weight_decay = between(0, 1) ? 1e-2f : 0,
                           .decoupled = between(0, 1),
                           .step = &step,
                           .copy_type = copy_type};
        bool copied = between(0, 2);
        float *squares;
        const float *g[9];

        begin(&r, "adam");
        for (int i = 0; i < ng; i++)
            g[i] = elements_of(&r, &e, HVT_F32);
        squares = elements_of(&r, &e, HVT_F32);
        for (size_t i = 0; i < e.n; i++)
            squares[i] *= squares[i];
        w = output(&r, "w", HVT_F32, e.n, e.n, elements_of(&r, &e, HVT_F32), NULL, skew_of(&e, HVT_F32));
        m = output(&r, "m", HVT_F32, e.n, e.n, step.fresh ? NULL : elements_of(&r, &e, HVT_F32), NULL,
                   skew_of(&e, HVT_F32));
        v = output(&r, "v", HVT_F32, e.n, e.n, step.fresh ? NULL : squares, NULL, skew_of(&e, HVT_F32));
        copy = output(&r, "copy", copy_type, e.n, e.n, NULL, NULL, skew_of(&e, copy_type));
        for (int run = 0; run < RUNS; run++) {
            a.copy = copied ? of(&r, copy, run) : NULL;
            set_order(run);
            if (run)
                CHECK_OK(hvt__adam_cuda(&emulated, e.n, &a, g, ng, of(&r, w, run), of(&r, m, run),
                                        of(&r, v, run)));
            else
                CHECK_OK(ref->ops->vector.adam(ref, e.n, &a, g, ng, of(&r, w, run), of(&r, m, run),
                                               of(&r, v, run)));
        }
        judge(&r);
    }
}

TEST(ema_equals_ref_bit_for_bit)
{
    static const float share[] = {0, 1, .25f, 1e-4f, .875f};

    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_step_state step = {.ema_share = share[k % (int)HVT_LEN(share)]};
        const float *w;
        int ema;

        begin(&r, "ema");
        w = elements_of(&r, &e, HVT_F32);
        ema = output(&r, "ema", HVT_F32, e.n, e.n, step.ema_share == 1 ? NULL : elements_of(&r, &e, HVT_F32),
                     NULL, skew_of(&e, HVT_F32));
        for (int run = 0; run < RUNS; run++) {
            set_order(run);
            if (run)
                CHECK_OK(hvt__ema_cuda(&emulated, e.n, &step, w, of(&r, ema, run)));
            else
                CHECK_OK(ref->ops->vector.ema(ref, e.n, &step, w, of(&r, ema, run)));
        }
        judge(&r);
    }
}

TEST(the_lowest_gradient_that_is_not_finite_is_found)
{
    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        element_shape e = random_elements();
        hvt_step_state step[RUNS];
        uint64_t base = draw() >> 30, before = between(0, 3) ? UINT64_MAX : base + e.n / 2;
        float *g;

        begin(&r, "check");
        g = elements_of(&r, &e, HVT_F32);
        for (int bad = between(0, 3); e.n && bad; bad--)
            g[between(0, (int)e.n - 1)] = between(0, 1) ? NAN : INFINITY;
        for (int run = 0; run < RUNS; run++) {
            step[run] = (hvt_step_state){.bad = before};
            set_order(run);
            if (run)
                CHECK_OK(hvt__check_cuda(&emulated, e.n, g, base, &step[run]));
            else
                CHECK_OK(ref->ops->step.check(ref, e.n, g, base, &step[run]));
            CHECK(step[run].bad == step[0].bad, "%llu, not %llu", (unsigned long long)step[run].bad,
                  (unsigned long long)step[0].bad);
        }
        judge(&r);
    }
}

TEST(a_step_is_settled_as_on_the_host)
{
    static const float losses[] = {1.5f, 2, NAN, 3};
    hvt_step_state s[2] = {{.images = 4,
                            .loss_scale = 65536,
                            .growth = 2,
                            .backoff = 0.5f,
                            .floor = 1,
                            .interval = 2,
                            .fresh = 1,
                            .bad = UINT64_MAX}};

    s[1] = s[0];
    for (int i = 0; i < (int)HVT_LEN(losses); i++) {
        float sums[HVT__STEP_SUMS] = {losses[i], 1, 3};

        s[0].bad = s[1].bad = i == 1 ? 17 : UINT64_MAX;
        CHECK_OK(ref->ops->step.decide(ref, &s[0], sums));
        CHECK_OK(hvt__decide_cuda(&emulated, &s[1], sums));
        CHECK(!memcmp(&s[0], &s[1], sizeof s[0]), "step %d is decided differently", i);
    }
}

/* ---- images ---- */

TEST(images_equal_ref_bit_for_bit)
{
    static const int stored[] = {0, 4, 8, 5};

    for (int k = 0; k < 2 * CASES; k++) {
        runs r;
        hvt_augment_args a = {.order = HVT_ORDER_NHW,
                              .n = between(1, 5),
                              .h = between(1, 40),
                              .w = between(1, 40),
                              .c = between(1, 4),
                              .floats = between(0, 1),
                              .type = any_type()};
        uint8_t *src;
        float *floats;
        int8_t *crops;
        int32_t *labels;
        size_t pixels = (size_t)a.h * a.w, all;
        int dst, dst_labels;

        begin(&r, "augment");
        a.real = between(0, 2) ? a.n : between(0, a.n);
        a.cx = stored[between(0, 3)];
        a.cx = a.cx < a.c ? a.c : a.cx;
        all = pixels * a.cx;
        a.src = src =
            guarded_room(&r, a.real * pixels * a.c * (a.floats ? sizeof *floats : 1), a.floats ? 0 : 1);
        floats = (float *)src;
        crops = guarded_room(&r, 3 * a.real, 0);
        a.labels = labels = guarded_room(&r, a.real * sizeof *labels, 0);
        for (size_t i = 0; i < a.real * pixels * a.c; i++)
            if (a.floats)
                floats[i] = value();
            else
                src[i] = (uint8_t)draw();
        for (int i = 0; i < a.real; i++) {
            crops[3 * i] = (int8_t)between(-4, 4);
            crops[3 * i + 1] = (int8_t)between(-4, 4);
            crops[3 * i + 2] = (int8_t)between(0, 1);
            labels[i] = between(0, 9);
        }
        for (int c = 0; c < a.c; c++) {
            a.scale[c] = value() * 0.02f;
            a.shift[c] = value();
        }
        a.draws = between(0, 3) ? crops : NULL;
        dst = output(&r, "dst", a.type, a.n * all, a.real * all, NULL, NULL, 0);
        dst_labels = output(&r, "labels", HVT_I32, a.n, a.real, NULL, NULL, 0);
        for (int run = 0; run < RUNS; run++) {
            a.dst = of(&r, dst, run);
            a.dst_labels = of(&r, dst_labels, run);
            set_order(run);
            if (run)
                CHECK_OK(hvt__cuda_augment(&emulated, &a, a.src, a.draws, a.labels));
            else
                CHECK_OK(ref->ops->augment(ref, &a));
        }
        judge(&r);
    }
}

/* ---- the emulator itself ---- */

/* Launches wait here while `later`; see double.h. */
static struct {
    void (*fn)(void *ctx), (*drop)(void *ctx);
    void *ctx;
} queued[4];
static int queue_length;
static bool later;

void hvt_double_launch(void *stream, void (*fn)(void *ctx), void *ctx, void (*drop)(void *ctx));

void hvt_double_launch(void *stream, void (*fn)(void *ctx), void *ctx, void (*drop)(void *ctx))
{
    (void)stream;
    if (later) {
        queued[queue_length].fn = fn;
        queued[queue_length].ctx = ctx;
        queued[queue_length++].drop = drop;
        return;
    }
    fn(ctx);
    drop(ctx);
}

TEST(a_launch_takes_its_arguments_with_it_and_runs_again)
{
    float x[3] = {1, 2, 3}, y[3] = {10, 20, 30}, word = 7, put = 0;
    const void *in[] = {x, y};

    later = true;
    CHECK_OK(hvt__reduce_cuda(&emulated, 3, HVT_F32, in, 2, x));
    CHECK_OK(hvt__cuda_put(&emulated, &put, &word, sizeof word));
    later = false;
    in[0] = in[1] = NULL;
    word = 8;
    CHECK(x[0] == 1 && put == 0, "ran at once");
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < queue_length; q++)
            queued[q].fn(queued[q].ctx);
    CHECK(x[0] == 21 && x[1] == 42 && x[2] == 63, "%g %g %g", x[0], x[1], x[2]);
    CHECK(put == 7, "%g", put);
    while (queue_length--)
        queued[queue_length].drop(queued[queue_length].ctx);
    queue_length = 0;
}

/* Does it end the process? */
static bool aborts(emu_fault which)
{
    pid_t child = fork();
    int status = 0;
    unsigned word;

    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr) || hvt_emu_faulty(which, &word) != cudaSuccess)
            _exit(2);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) ||
           (WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

TEST(the_emulator_tells_what_is_wrong)
{
    unsigned first = 0, last = 0;

    hvt_emu_order(0);
    CHECK_CUDA(hvt_emu_faulty(FAULT_RACE, &first));
    hvt_emu_order(1);
    CHECK_CUDA(hvt_emu_faulty(FAULT_RACE, &last));
    CHECK(first == 63 && last == 0, "a race shows nothing: %u and %u", first, last);
    CHECK_CUDA(hvt_emu_faulty(FAULT_UNWRITTEN, &first));
    CHECK(first == UINT32_MAX, "shared memory begins as %u", first);
    CHECK(aborts(FAULT_EARLY_END), "a thread that never comes to the barrier");
    CHECK(aborts(FAULT_OTHER_BARRIER), "threads at two barriers");
    CHECK(hvt_emu_faulty(FAULT_BIG_BLOCK, &first) == cudaErrorInvalidConfiguration, "1025 threads");
}

int main(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    scratch = memset(aligned_alloc(64, HVT__CUDA_SCRATCH), 0xff, HVT__CUDA_SCRATCH);
    memset(scratch, 0, HVT__CUDA_COUNTERS);
    RUN(a_launch_takes_its_arguments_with_it_and_runs_again);
    if (IS_TSAN)
        check_skip("the_emulator_tells_what_is_wrong", "one of the faults is a race");
    else
        RUN(the_emulator_tells_what_is_wrong);
    RUN(batch_norm_in_training_equals_ref);
    RUN(batch_norm_at_inference_equals_ref_bit_for_bit);
    RUN(batch_norm_backward_equals_ref);
    RUN(moving_statistics_follow_unless_the_run_has_stopped);
    RUN(the_last_block_to_come_finishes_the_sums_of_all_whoever_it_is);
    RUN(bias_is_added_and_its_gradient_summed_as_ref_does);
    RUN(pooling_equals_ref_with_ties_and_nans);
    RUN(subsampling_equals_ref);
    RUN(cross_entropy_equals_ref);
    RUN(squared_errors_equal_ref);
    RUN(relu_and_add_equal_ref_bit_for_bit);
    RUN(casts_of_all_types_equal_ref_bit_for_bit);
    RUN(sums_of_any_number_of_arrays_follow_the_tree);
    RUN(put_takes_its_bytes_at_the_call);
    RUN(sgd_equals_ref_bit_for_bit);
    RUN(adam_equals_ref_bit_for_bit);
    RUN(ema_equals_ref_bit_for_bit);
    RUN(the_lowest_gradient_that_is_not_finite_is_found);
    RUN(a_step_is_settled_as_on_the_host);
    RUN(images_equal_ref_bit_for_bit);
    free(scratch);
    hvt_device_close(&ref);
    return check_done();
}
