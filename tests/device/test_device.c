/*
 * device: opening and closing, memory, the thread pool, subnormals; and the ops on spans, on every device
 * and instruction set: against ref, against golden numbers, and bit for bit wherever a span is cut.
 */
#define _GNU_SOURCE
#include "devices.h"
#include "logged.h"
#include "device/cpu/cpu_impl.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>

TEST(a_wrong_device_is_refused_with_the_known_ones)
{
    hvt_device *d = NULL;
    int cpu = 0;

    CHECK_FAILS(hvt_device_open("gpu", NULL, &d), E_ARG, "ref");
    if (!hvt_device_count("cuda"))
        CHECK_FAILS(hvt_device_open("cuda", NULL, &d), E_UNSUPPORTED, "cuda");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.threads = -1}, &d), E_ARG, "-1");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.threads = 257}, &d), E_ARG, "257");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.ncpus = 1}, &d), E_ARG, "1");
    CHECK_FAILS(hvt_device_open("cpu", &(hvt_device_opts){.conv_tile = 3}, &d), E_ARG, "3");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.cpus = &cpu, .ncpus = -2}, &d), E_ARG, "-2");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.isa = "avx2"}, &d), E_ARG, "avx2");
    CHECK_FAILS(hvt_device_open("cpu", &(hvt_device_opts){.isa = "sse9"}, &d), E_ARG, "portable");
    CHECK(!d, "a refused device was handed out");
    hvt_device_close(&d);
}

TEST(memory_comes_zeroed_and_aligned)
{
    for (size_t bytes = 0; bytes < (size_t)20 << 20; bytes = bytes * 3 + 1) {
        char *p;
        size_t bad = 0;

        CHECK_OK(ref->ops->memory.alloc(ref, bytes, (void **)&p));
        CHECK((uintptr_t)p % 64 == 0, "%zu bytes at %p", bytes, (void *)p);
        for (size_t i = 0; i < bytes; i++)
            bad += p[i] != 0;
        CHECK(!bad, "%zu of %zu bytes are not zero", bad, bytes);
        memset(p, 1, bytes);
        ref->ops->memory.release(ref, p);
    }
    void *p = NULL;
    CHECK_FAILS(ref->ops->memory.alloc(ref, SIZE_MAX - 3, &p), E_MEM, "18446744073709551612");
    CHECK_FAILS(ref->ops->memory.alloc(ref, (size_t)1 << 60, &p), E_MEM, "1152921504606846976");
}

/* p = 1, gradient 0.5, lr 0.1, momentum 0.9, four steps of torch.optim.SGD */
TEST(sgd_takes_pytorch_s_steps)
{
    static const struct {
        hvt_sgd_args a;
        double want[4];
    } cases[] = {
        {{.momentum = .9f}, {.95, .855, .7195, .54755}},
        {{.momentum = .9f, .nesterov = true}, {.905, .7695, .59755, .392795}},
        {{.momentum = .9f, .dampening = .5f}, {.95, .88, .792, .6878}},
        {{.momentum = .9f, .weight_decay = .01f}, {.949, .852151, .71413475, .53920599}},
        {{.momentum = 0, .dampening = .5f}, {.95, .9, .85, .8}},
    };

    for (size_t i = 0; i < HVT_LEN(cases) * (size_t)ndevs; i++) {
        hvt_device *d = devs[i / HVT_LEN(cases)];
        float w = 1, v = NAN, g = .125f;
        const float *gs[4] = {&g, &g, &g, &g};
        hvt_sgd_args a = cases[i % HVT_LEN(cases)].a;
        hvt_step_state step = {.lr = .1f, .grad_scale = 1, .apply = 1};

        a.step = &step;
        for (int t = 0; t < 4; t++) {
            step.fresh = t == 0;
            CHECK_OK(d->ops->vector.sgd(d, 1, &a, gs, 4, &w, a.momentum != 0 ? &v : NULL));
            CHECK(fabs(w - cases[i % HVT_LEN(cases)].want[t]) < 2e-7, "case %zu step %d: %.9g, not %.9g", i,
                  t, w, cases[i % HVT_LEN(cases)].want[t]);
        }
    }
}

/* p = 1, gradient 0.5, rate 0.1, four steps of torch.optim's */
TEST(adam_takes_pytorch_s_steps)
{
    static const struct {
        hvt_adam_args a;
        double want[4];
    } cases[] = {
        {{.beta = {.9, .999}, .eps = 1e-8f}, {0.900000002, 0.800000004, 0.700000006, 0.600000008}},
        {{.beta = {.9, .999}, .eps = 1e-8f, .weight_decay = .1f, .decoupled = true},
         {0.890000002, 0.781100004, 0.673289006, 0.566556118}},
        {{.beta = {.5, .25}, .eps = .5f, .weight_decay = .5f},
         {0.933333333, 0.866972439, 0.800973124, 0.735444739}},
    };

    for (size_t i = 0; i < HVT_LEN(cases) * (size_t)ndevs; i++) {
        hvt_device *d = devs[i / HVT_LEN(cases)];
        float w = 1, m = NAN, v = NAN, g = .125f;
        const float *gs[4] = {&g, &g, &g, &g}, sums[HVT__STEP_SUMS] = {1};
        hvt_adam_args a = cases[i % HVT_LEN(cases)].a;
        hvt_step_state step = {.images = 1,
                               .loss_scale = 1,
                               .lr = .1f,
                               .fresh = 1,
                               .bad = UINT64_MAX,
                               .beta = {a.beta[0], a.beta[1]}};

        a.step = &step;
        for (int t = 0; t < 4; t++) {
            CHECK_OK(d->ops->step.decide(d, &step, sums));
            CHECK(step.updates == t + 1, "%lld updates", (long long)step.updates);
            CHECK_OK(d->ops->vector.adam(d, 1, &a, gs, 4, &w, &m, &v));
            CHECK(fabs(w - cases[i % HVT_LEN(cases)].want[t]) < 3e-7, "case %zu step %d: %.9g, not %.9g", i,
                  t, w, cases[i % HVT_LEN(cases)].want[t]);
        }
    }
}

/* ---- threads ---- */

typedef struct tally {
    unsigned char seen[1000];
    int threads, bad;
} tally;

static void count_job(void *ctx, int job, int thread)
{
    tally *t = ctx;

    t->seen[job]++;
    if (thread < 0 || thread >= t->threads)
        t->bad++;
}

TEST(a_pool_does_every_job_once)
{
    for (int threads = 1; threads <= 5; threads++)
        for (int yield = 0; yield < 2; yield++) {
            hvt_thread_pool *pool = NULL;

            CHECK_OK(hvt__thread_pool_open(threads, NULL, 0, yield, &pool));
            CHECK(hvt__thread_pool_size(pool) == threads, "%d threads", hvt__thread_pool_size(pool));
            for (int round = 0; round < cases(2000); round++) {
                tally t = {.threads = threads};
                int jobs = round % 7 == 0 ? round / 2 : round % 40, bad = 0;

                hvt__parallel_for(pool, jobs, count_job, &t);
                for (int i = 0; i < (int)HVT_LEN(t.seen); i++)
                    bad += t.seen[i] != (i < jobs);
                CHECK(!bad && !t.bad, "%d threads, round %d: %d jobs wrong, %d threads", threads, round, bad,
                      t.bad);
            }
            hvt__thread_pool_close(&pool);
        }
}

/* ---- spans ---- */

/* Every op on spans, as one function of arrays: a, b, c are read, y and v are read and written. `first`
 * shifts all of them. */
typedef struct arrays {
    float *a, *b, *c, *y, *v;
    uint16_t *h;    /* as many 16-bit ones */
    hvt_dtype type; /* ops that take one: values of this type, as floats */
} arrays;

typedef void op_fn(hvt_device *d, const arrays *x, size_t first, size_t n);

/* Elements [first, first + n) of p, from what an op wrote in x->type. */
static void unpack_span(const arrays *x, void *from, float *p, size_t first, size_t n)
{
    float *values = unpacked(x->type, from, n);

    memcpy(p + first, values, n * sizeof *p);
    free(values);
}

static void op_relu(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    void *a = packed(x->type, x->a + first, n), *y = packed(x->type, x->y + first, n);

    CHECK_OK(d->ops->vector.relu_forward(d, n, x->type, a, y));
    unpack_span(x, y, x->y, first, n);
    free(a);
}

static void op_relu_grad(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    void *a = packed(x->type, x->a + first, n), *b = packed(x->type, x->b + first, n),
         *c = packed(x->type, x->c + first, n), *y = packed(x->type, x->y + first, n);

    CHECK_OK(d->ops->vector.relu_backward(d, n, x->type, a, b, y, false));
    CHECK_OK(d->ops->vector.relu_backward(d, n, x->type, b, c, y, true));
    unpack_span(x, y, x->y, first, n);
    free(a);
    free(b);
    free(c);
}

static void op_add(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    void *a = packed(x->type, x->a + first, n), *b = packed(x->type, x->b + first, n),
         *y = packed(x->type, x->y + first, n), *v = packed(x->type, x->v + first, n);

    CHECK_OK(d->ops->vector.add(d, n, x->type, a, b, v));
    CHECK_OK(d->ops->vector.add(d, n, x->type, y, b, y));
    CHECK_OK(d->ops->vector.add(d, n, x->type, a, v, v));
    unpack_span(x, y, x->y, first, n);
    unpack_span(x, v, x->v, first, n);
    free(a);
    free(b);
}

static void op_cast_f16(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    CHECK_OK(d->ops->vector.cast(d, n, 0.7f, x->a + first, HVT_F32, x->h + first, HVT_F16));
    CHECK_OK(d->ops->vector.cast(d, n, 1.3f, x->h + first, HVT_F16, x->y + first, HVT_F32));
}

static void op_cast_bf16(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    CHECK_OK(d->ops->vector.cast(d, n, 0.7f, x->a + first, HVT_F32, x->h + first, HVT_BF16));
    CHECK_OK(d->ops->vector.cast(d, n, 1.3f, x->h + first, HVT_BF16, x->y + first, HVT_F32));
    CHECK_OK(d->ops->vector.cast(d, n, 0.3f, x->b + first, HVT_F32, x->v + first, HVT_F32));
}

static void op_reduce(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    const void *in[] = {x->a + first, x->y + first, x->c + first, x->b + first,
                        x->a + first, x->v + first, x->c + first};

    for (int count = 1; count <= (int)HVT_LEN(in); count++)
        CHECK_OK(d->ops->vector.reduce(d, n, HVT_F32, in, count, count % 2 ? x->y + first : x->v + first));
}

static void op_reduce_all(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    float *third = copied(x->a + first, n);
    void *io[] = {x->y + first, third, x->v + first};

    for (int count = 1; count <= (int)HVT_LEN(io); count++) {
        CHECK_OK(d->ops->host_only.reduce_all(d, n, HVT_F32, io, count));
        CHECK(!memcmp(third, count > 1 ? x->y + first : x->a + first, n * sizeof *third), "%d of them",
              count);
    }
    free(third);
}

static void op_sgd(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    const float *g[] = {x->a + first, x->b + first, x->c + first};
    hvt_step_state step = {.lr = 0.1f, .grad_scale = 0.3f, .apply = 1, .fresh = 1};
    hvt_sgd_args a = {.momentum = 0.9f, .weight_decay = 1e-2f, .step = &step};

    for (int ng = 1; ng <= 3; ng++) {
        a.nesterov = ng == 2;
        a.dampening = ng == 3 ? 0.25f : 0;
        CHECK_OK(d->ops->vector.sgd(d, n, &a, g, ng, x->y + first, x->v + first));
        step.fresh = 0;
    }
    a.momentum = 0;
    CHECK_OK(d->ops->vector.sgd(d, n, &a, g, 1, x->y + first, NULL));
}

/* The third array holds the squares: x->v takes what became of it, too, so that it is compared. */
static void op_adam(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    const float *g[] = {x->a + first, x->b + first, x->c + first};
    hvt_step_state step = {.lr = 0.1f, .grad_scale = 0.3f, .apply = 1, .fresh = 1, .bias = {4, 9}};
    hvt_adam_args a = {.beta = {0.75, 0.875}, .eps = 1e-3f, .weight_decay = 1e-2f, .step = &step};
    float *squares = room(n * sizeof *squares);

    for (int ng = 1; ng <= 3; ng++) {
        a.decoupled = ng == 2;
        CHECK_OK(d->ops->vector.adam(d, n, &a, g, ng, x->y + first, x->v + first, squares));
        step.fresh = 0;
        step.bias[0] = 2;
        step.bias[1] = 1.5f;
    }
    CHECK_OK(d->ops->vector.add(d, n, HVT_F32, x->v + first, squares, x->v + first));
    free(squares);
}

static void op_ema(hvt_device *d, const arrays *x, size_t first, size_t n)
{
    const float share[] = {1, .25f, 0, .875f};

    for (size_t i = 0; i < HVT_LEN(share); i++) {
        hvt_step_state step = {.ema_share = share[i]};

        CHECK_OK(d->ops->vector.ema(d, n, &step, (i ? x->a : x->b) + first, x->y + first));
    }
}

static const struct {
    const char *name;
    op_fn *run;
    bool exact; /* on every set, fma or not */
    hvt_dtype type;
} span_ops[] = {
    {"relu", op_relu, true, HVT_F32},
    {"relu in f16", op_relu, true, HVT_F16},
    {"relu in bf16", op_relu, true, HVT_BF16},
    {"relu_backward", op_relu_grad, true, HVT_F32},
    {"relu_backward in f16", op_relu_grad, true, HVT_F16},
    {"relu_backward in bf16", op_relu_grad, true, HVT_BF16},
    {"add", op_add, true, HVT_F32},
    {"add in f16", op_add, true, HVT_F16},
    {"add in bf16", op_add, true, HVT_BF16},
    {"cast to f16 and back", op_cast_f16, true},
    {"cast to bf16", op_cast_bf16, true},
    {"reduce", op_reduce, true},
    {"reduce_all", op_reduce_all, true},
    {"sgd", op_sgd, false},
    {"adam", op_adam, false},
    {"ema", op_ema, false},
};

static arrays copies_of(const arrays *x, size_t n)
{
    arrays r = {x->a, x->b, x->c, copied(x->y, n), copied(x->v, n), room(n * 2), x->type};

    return r;
}

static void free_copies(arrays *x)
{
    free(x->y);
    free(x->v);
    free(x->h);
}

TEST(ops_on_spans_equal_ref_at_every_cut)
{
    /* several jobs on several threads; and short ones, to cut everywhere */
    static const size_t sizes[] = {0, 1, 5, 16, 33, 100, 40007};

    for (size_t op = 0; op < HVT_LEN(span_ops); op++)
        for (size_t t = 0; t < HVT_LEN(sizes); t++) {
            size_t n = sizes[t];
            arrays x = {floats(n), floats(n), floats(n), floats(n), floats(n), NULL, span_ops[op].type}, want;

            for (size_t i = 0; i < n; i += 3) /* relu's edge */
                x.a[i] = x.b[(i + 1) % n] = i % 2 ? 0.0f : -0.0f;
            round_all(x.type, x.a, n);
            round_all(x.type, x.b, n);
            round_all(x.type, x.c, n);
            round_all(x.type, x.y, n);
            round_all(x.type, x.v, n);
            want = copies_of(&x, n);
            span_ops[op].run(ref, &want, 0, n);
            for (int dev = 0; dev < ndevs; dev++) {
                arrays whole = copies_of(&x, n);

                span_ops[op].run(devs[dev], &whole, 0, n);
                if (span_ops[op].exact || has_fma(dev)) {
                    check_same(span_ops[op].name, dev, NULL, n, whole.y, want.y);
                    check_same(span_ops[op].name, dev, NULL, n, whole.v, want.v);
                } else {
                    check_near(span_ops[op].name, dev, NULL, n, whole.y, want.y, 3e-7);
                    check_near(span_ops[op].name, dev, NULL, n, whole.v, want.v, 3e-7);
                }
                for (size_t cut = 0; cut < 32 && cut <= n; cut++) {
                    arrays part = copies_of(&x, n);

                    span_ops[op].run(devs[dev], &part, 0, cut);
                    span_ops[op].run(devs[dev], &part, cut, n - cut);
                    check_same(span_ops[op].name, dev, NULL, n, part.y, whole.y);
                    check_same(span_ops[op].name, dev, NULL, n, part.v, whole.v);
                    free_copies(&part);
                    cut += n > 1000 || heap_memcheck() ? 10 : 0;
                }
                free_copies(&whole);
            }
            free_copies(&want);
            free(x.a);
            free(x.b);
            free(x.c);
            free(x.y);
            free(x.v);
        }
}

/* Powers of two whose sum depends on the order: only the tree gives ref's bits, and the tree itself is
 * written out once. */
TEST(sums_are_taken_along_the_tree)
{
    float v[7] = {0x1p24f, 1, 1, 1, -0x1p24f, 3, 0x1p-24f}, out;
    const void *in[7];
    /* ((v0+v1)+(v2+v3)) + ((v4+v5)+v6) */
    volatile float a = v[0] + v[1], b = v[2] + v[3], c = v[4] + v[5], ab = a + b, cd = c + v[6];

    for (int i = 0; i < 7; i++)
        in[i] = &v[i];
    for (int dev = 0; dev < ndevs; dev++) {
        CHECK_OK(devs[dev]->ops->vector.reduce(devs[dev], 1, HVT_F32, in, 7, &out));
        CHECK(out == ab + cd, "%.9g, not %.9g", out, ab + cd);
        CHECK_OK(devs[dev]->ops->vector.reduce(devs[dev], 1, HVT_F32, in, 5, &out));
        CHECK(out == ab + v[4], "%.9g, not %.9g", out, ab + v[4]);
    }
    for (int count = 1; count <= 70; count++) {
        float *values = floats(70), want;
        const void *p[70];

        for (int i = 0; i < 70; i++)
            p[i] = values + i;
        CHECK_OK(ref->ops->vector.reduce(ref, 1, HVT_F32, p, count, &want));
        for (int dev = 1; dev < ndevs; dev++) {
            CHECK_OK(devs[dev]->ops->vector.reduce(devs[dev], 1, HVT_F32, p, count, &out));
            CHECK(out == want, "%d leaves: %.9g, not %.9g", count, out, want);
        }
        free(values);
    }
}

/* ---- subnormals ---- */

/* Valgrind's processor flushes nothing. */
static float tiny_sum(hvt_device *d)
{
    enum { N = 100000 }; /* jobs for every thread */
    float *a = room(N * 4), *b = room(N * 4), worst = 0;

    for (int i = 0; i < N; i++) {
        a[i] = from_pattern(i % 2 ? 5 : 0x00800000); /* a subnormal; the smallest normal number */
        b[i] = from_pattern(i % 2 ? 0 : 0x80800001); /* their sum is subnormal either way */
    }
    CHECK_OK(d->ops->vector.add(d, N, HVT_F32, a, b, a));
    for (int i = 0; i < N; i++)
        worst = bits_of(a[i]) & 0x7fffffff ? 1 : worst;
    free(a);
    free(b);
    return heap_memcheck() ? 0 : worst;
}

static void *elsewhere(void *d)
{
    return tiny_sum(d) == 0 ? d : NULL;
}

TEST(subnormals_are_flushed_in_every_thread)
{
    for (int dev = 0; dev < ndevs; dev++) {
        pthread_t t;
        void *fine = NULL;

        CHECK(tiny_sum(devs[dev]) == 0, "on %s, %d threads", hvt_device_isa(devs[dev]),
              hvt_device_threads(devs[dev]));
        CHECK(!pthread_create(&t, NULL, elsewhere, devs[dev]) && !pthread_join(t, &fine), "no thread");
        CHECK(fine, "on %s, %d threads, called by another thread", hvt_device_isa(devs[dev]),
              hvt_device_threads(devs[dev]));
    }
}

/* A new thread takes over the mode of the one that makes it; the pool's threads must not rely on that. */
TEST(threads_of_a_pool_flush_by_themselves)
{
    hvt_device *d = NULL;

    CHECK_OK(hvt_device_open("cpu", &(hvt_device_opts){.threads = 3}, &d));
    for (int i = 0; i < 100; i++)
        CHECK(tiny_sum(d) == 0, "round %d", i);
    hvt_device_close(&d);
}

static bool keeps_subnormals(void)
{
    volatile float tiny = from_pattern(5);

    return bits_of(tiny + tiny) == 10;
}

/* Also between calls, and when two are closed in the order in which they were opened. */
TEST(a_host_program_keeps_its_subnormals_while_devices_are_open)
{
    static const char *const names[] = {"ref", "cpu"};
    hvt_device *d[HVT_LEN(names)] = {NULL};

    CHECK(keeps_subnormals(), "subnormals are flushed before");
    for (size_t i = 0; i < HVT_LEN(names); i++) {
        CHECK_OK(hvt_device_open(names[i], &(hvt_device_opts){.threads = 1}, &d[i]));
        CHECK(keeps_subnormals(), "subnormals are flushed while %s is open", names[i]);
        CHECK(tiny_sum(d[i]) == 0, "%s keeps subnormals", names[i]);
        CHECK(keeps_subnormals(), "subnormals are flushed after an op of %s", names[i]);
    }
    for (size_t i = 0; i < HVT_LEN(names); i++) {
        hvt_device_close(&d[i]);
        CHECK(keeps_subnormals(), "subnormals are flushed after %s was closed", names[i]);
    }
}

/* A simulation may round upwards and trap what is invalid: ours must do neither, and it must find both again.
 */
TEST(a_host_program_s_rounding_and_traps_change_no_bits)
{
    enum { N = 4096 };
    float *a = room(N * 4), *b = room(N * 4), *want = room(N * 4), *got = room(N * 4);
    fenv_t before;

    for (int i = 0; i < N; i++) {
        a[i] = value();
        b[i] = i % 64 ? value() * 1e-3f : INFINITY;
    }
    a[64] = -INFINITY; /* infinity minus infinity is invalid */
    for (int dev = 0; dev < ndevs; dev++) {
        CHECK_OK(devs[dev]->ops->vector.add(devs[dev], N, HVT_F32, a, b, want));
        fegetenv(&before);
        feclearexcept(FE_ALL_EXCEPT);
        feenableexcept(FE_INVALID);
        fesetround(FE_UPWARD);
        CHECK_OK(devs[dev]->ops->vector.add(devs[dev], N, HVT_F32, a, b, got));
        CHECK(fegetround() == FE_UPWARD && !fetestexcept(FE_INVALID), "%s leaves the thread another",
              hvt_device_isa(devs[dev]));
#if defined(__x86_64__) /* others cannot trap */
        CHECK(fegetexcept() == FE_INVALID, "%s leaves the thread without its trap",
              hvt_device_isa(devs[dev]));
#endif
        fesetenv(&before);
        CHECK(!memcmp(got, want, N * 4), "%s rounds as its caller does", hvt_device_isa(devs[dev]));
    }
    free(a);
    free(b);
    free(want);
    free(got);
}

/* ---- opening ---- */

static int processors(void)
{
    cpu_set_t mask;

    sched_getaffinity(0, sizeof mask, &mask);
    return CPU_COUNT(&mask);
}

static int first_processor(void)
{
    cpu_set_t mask;
    int cpu = 0;

    sched_getaffinity(0, sizeof mask, &mask);
    while (!CPU_ISSET(cpu, &mask))
        cpu++;
    return cpu;
}

static void *close_it(void *d)
{
    hvt_device_close((hvt_device **)d);
    return NULL;
}

/* The caller's thread is its own unless it offers it; then the last device gives it back, whoever closes it.
 */
TEST(the_caller_is_pinned_only_if_it_asks)
{
    int cpu = first_processor(), before = processors();
    hvt_device_opts opts = {.cpus = &cpu, .ncpus = 1, .threads = 2};
    hvt_device *d = NULL, *second = NULL;
    pthread_t t;

    CHECK_OK(hvt_device_open("cpu", &opts, &d));
    CHECK(processors() == before, "the caller may use %d processors of %d", processors(), before);
    hvt_device_close(&d);
    opts.pin_caller = true;
    CHECK_OK(hvt_device_open("cpu", &opts, &d));
    CHECK(processors() == 1, "the caller may use %d processors", processors());
    CHECK(tiny_sum(d) == 0, "wrong sum");
    CHECK_OK(hvt_device_open("cpu", &opts, &second));
    hvt_device_close(&d);
    hvt_device_close(&second);
    CHECK(processors() == before, "after two devices the caller may use %d processors of %d", processors(),
          before);
    CHECK_OK(hvt_device_open("cpu", &opts, &d));
    CHECK(!pthread_create(&t, NULL, close_it, &d) && !pthread_join(t, NULL), "no thread");
    CHECK(processors() == before, "closed by another thread, the caller may use %d processors of %d",
          processors(), before);
}

TEST(a_thread_that_cannot_be_pinned_is_told)
{
    int nowhere = 1023;
    hvt_device *d = NULL;

    log_keep(HVT_LOG_WARN);
    CHECK_OK(hvt_device_open("cpu", &(hvt_device_opts){.cpus = &nowhere, .ncpus = 1, .threads = 2}, &d));
    log_release();
    CHECK(strstr(logged, "1023"), "no warning, but '%s'", logged);
    hvt_device_close(&d);
}

TEST(threads_follow_what_was_asked)
{
    int cpus[3] = {0, 0, 0};
    hvt_device *d = NULL;

    CHECK_OK(hvt_device_open("cpu", NULL, &d));
    CHECK(hvt_device_threads(d) == 1, "%d threads", hvt_device_threads(d));
    CHECK(!strcmp(hvt_device_name(d), "cpu"), "%s", hvt_device_name(d));
    hvt_device_close(&d);
    log_keep(HVT_LOG_WARN);
    CHECK_OK(hvt_device_open("cpu", &(hvt_device_opts){.cpus = cpus, .ncpus = 3, .isa = "auto"}, &d));
    log_release();
    CHECK(hvt_device_threads(d) == 3, "%d threads", hvt_device_threads(d));
    hvt_device_close(&d);
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        if (!hvt_cpu_isa_supported(i))
            CHECK_FAILS(hvt_device_open("cpu", &(hvt_device_opts){.isa = hvt_cpu_isa_name(i)}, &d),
                        E_UNSUPPORTED, hvt_cpu_isa_name(i));
}

TEST(auto_takes_the_last_set_that_pays)
{
    const char *last = NULL;
    hvt_device *d = NULL;

    CHECK(hvt_cpu_isa_auto(0), "%s is not taken", hvt_cpu_isa_name(0));
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        CHECK(hvt_cpu_isa_supported(i) || !hvt_cpu_isa_auto(i), "%s is not there", hvt_cpu_isa_name(i));
        if (hvt_cpu_isa_auto(i))
            last = hvt_cpu_isa_name(i);
    }
    CHECK_OK(hvt_device_open("cpu", NULL, &d));
    CHECK(last && !strcmp(hvt_device_isa(d), last), "%s, not %s", hvt_device_isa(d), last);
    hvt_device_close(&d);
}

int main(void)
{
    if (heap_memcheck())
        check_skip("a_host_program_keeps_its_subnormals_while_devices_are_open", "valgrind flushes none");
    else
        RUN(a_host_program_keeps_its_subnormals_while_devices_are_open);
    RUN(threads_of_a_pool_flush_by_themselves);
    open_devices();
    if (heap_memcheck())
        check_skip("a_host_program_s_rounding_and_traps_change_no_bits", "valgrind has neither");
    else
        RUN(a_host_program_s_rounding_and_traps_change_no_bits);
    RUN(a_wrong_device_is_refused_with_the_known_ones);
    RUN(auto_takes_the_last_set_that_pays);
    RUN(threads_follow_what_was_asked);
    RUN(the_caller_is_pinned_only_if_it_asks);
    RUN(a_thread_that_cannot_be_pinned_is_told);
    RUN(memory_comes_zeroed_and_aligned);
    RUN(a_pool_does_every_job_once);
    RUN(subnormals_are_flushed_in_every_thread);
    RUN(sgd_takes_pytorch_s_steps);
    RUN(adam_takes_pytorch_s_steps);
    RUN(ops_on_spans_equal_ref_at_every_cut);
    RUN(sums_are_taken_along_the_tree);
    close_devices();
    return check_done();
}
