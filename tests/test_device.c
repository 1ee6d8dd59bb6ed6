/* device: every op of every device and instruction set equals ref; ref equals central differences. */
#include "base_impl.h"
#include "check.h"
#include "device/cpu/cpu_impl.h"

#include <math.h>

enum { MOST_DEVS = 32 };
static hvt_device *ref, *devs[MOST_DEVS]; /* ref, then cpu: every instruction set x 1, 2, 3 threads */
static int ndevs;

static void open_devices(void)
{
    CHECK_OK(hvt_device_open("ref", NULL, &ref));
    devs[ndevs++] = ref;
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        if (!hvt_cpu_isa_supported(i)) {
            check_skip(hvt_cpu_isa_name(i), "this processor does not have it");
            continue;
        }
        for (int threads = 1; threads <= 3; threads++) {
            hvt_device_opts opts = {.threads = threads, .isa = hvt_cpu_isa_name(i)};

            CHECK_OK(hvt_device_open("cpu", &opts, &devs[ndevs]));
            CHECK(!strcmp(hvt_device_isa(devs[ndevs]), opts.isa), "%s", hvt_device_isa(devs[ndevs]));
            ndevs++;
        }
    }
}

TEST(a_wrong_device_is_refused_with_the_known_ones)
{
    hvt_device *d = NULL;
    int cpu = 0;

    CHECK_FAILS(hvt_device_open("gpu", NULL, &d), E_ARG, "ref");
    CHECK_FAILS(hvt_device_open("cuda", NULL, &d), E_UNSUPPORTED, "cuda");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.threads = -1}, &d), E_ARG, "-1");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.threads = 257}, &d), E_ARG, "257");
    CHECK_FAILS(hvt_device_open("ref", &(hvt_device_opts){.ncpus = 1}, &d), E_ARG, "1");
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

        CHECK_OK(ref->ops->alloc(ref, bytes, (void **)&p));
        CHECK((uintptr_t)p % 64 == 0, "%zu bytes at %p", bytes, (void *)p);
        for (size_t i = 0; i < bytes; i++)
            bad += p[i] != 0;
        CHECK(!bad, "%zu of %zu bytes are not zero", bad, bytes);
        memset(p, 1, bytes);
        ref->ops->release(ref, p);
    }
    void *p = NULL;
    CHECK_FAILS(ref->ops->alloc(ref, SIZE_MAX - 3, &p), E_MEM, "18446744073709551612");
    CHECK_FAILS(ref->ops->alloc(ref, (size_t)1 << 60, &p), E_MEM, "1152921504606846976");
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

        a.lr = .1f;
        a.scale = 1;
        for (int t = 0; t < 4; t++) {
            a.first = t == 0;
            CHECK_OK(d->ops->sgd(d, 1, &a, gs, 4, &w, a.momentum != 0 ? &v : NULL));
            CHECK(fabs(w - cases[i % HVT_LEN(cases)].want[t]) < 2e-7, "case %zu step %d: %.9g, not %.9g", i,
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
            hvt_pool *pool = NULL;

            CHECK_OK(hvt__pool_open(threads, NULL, 0, yield, &pool));
            CHECK(hvt__pool_threads(pool) == threads, "%d threads", hvt__pool_threads(pool));
            for (int round = 0; round < 2000; round++) {
                tally t = {.threads = threads};
                int jobs = round % 7 == 0 ? round / 2 : round % 40, bad = 0;

                hvt__pool_run(pool, jobs, count_job, &t);
                for (int i = 0; i < (int)HVT_LEN(t.seen); i++)
                    bad += t.seen[i] != (i < jobs);
                CHECK(!bad && !t.bad, "%d threads, round %d: %d jobs wrong, %d threads", threads, round, bad,
                      t.bad);
            }
            hvt__pool_close(&pool);
        }
}

int main(void)
{
    open_devices();
    RUN(a_wrong_device_is_refused_with_the_known_ones);
    RUN(memory_comes_zeroed_and_aligned);
    RUN(a_pool_does_every_job_once);
    RUN(sgd_takes_pytorch_s_steps);
    while (ndevs)
        hvt_device_close(&devs[--ndevs]);
    return check_done();
}
