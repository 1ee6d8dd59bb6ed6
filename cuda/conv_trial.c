/*
 * Chooses the fastest of several cuDNN plans for a convolution by running them on this GPU.
 *
 * The first plan, which a run without timing uses, is the reference: a plan whose result differs from it is
 * never chosen. Engines add in different orders and round products differently, so results are compared by
 * the norm of their difference, relative to the reference's norm. Operands are random numbers: constants
 * would hide an engine that mixes up pixels or channels.
 */
#include "conv_impl.h"
#include "cuda_impl.h"
#include "device/half.h"
#include "kernels.h"

#include <float.h>
#include <math.h>

enum { TIMED_RUNS = 5, DELAY_US = 100 };
enum { PATTERN = 65521 /* elements; a prime, so that no row of an image equals the next */ };
enum { SAMPLES = 16, SAMPLE = 4096 /* compared elements of the result */ };

typedef struct trial {
    hvt_device *d;
    const conv_request *w;
    const conv_plan *plan; /* [count] */
    int count, result;     /* which operand is the result: 0 x, 1 w, 2 y */
    char *operand[4];      /* x, w, y and workspace */
    size_t elements[3];
    cudnnBackendDescriptor_t pack;
    float us[CUDNN_PLANS_MOST]; /* median; FLT_MAX: not to be chosen */
    float want[SAMPLES * SAMPLE], got[SAMPLES * SAMPLE];
    uint32_t pattern[PATTERN];
} trial;

static hvt_dtype type_of(const trial *t, int operand)
{
    return operand == t->result ? t->w->out : t->w->conv.type;
}

/* Random numbers between -1 and 1, the same in every trial. */
static hvt_status fill(trial *t, int operand)
{
    hvt_dtype type = type_of(t, operand);
    size_t size = hvt_dtype_size(type), bytes = t->elements[operand] * size, done = PATTERN * size;
    char *to = t->operand[operand];

    for (size_t i = 0; i < PATTERN; i++)
        hvt__store(t->pattern, type, i, (float)(int32_t)hvt__draw(1, i, 0, 0) * 0x1p-31f);
    done = done < bytes ? done : bytes;
    HVT_TRY(t->d->ops->memory.upload(t->d, to, t->pattern, done));
    for (size_t n; done < bytes; done += n) {
        n = bytes - done < done ? bytes - done : done;
        HVT_TRY(t->d->ops->memory.copy(t->d, to + done, to, n));
    }
    return HVT_OK;
}

/* ---- time ---- */

/* Microseconds of one run; FLT_MAX if it fails. A delay kernel keeps the GPU busy until the host has queued
 * everything; otherwise the host's calls would determine the time of a short run. */
static float time_once(const trial *t, int plan, cudaEvent_t event[2])
{
    hvt_device *d = t->d;
    cuda_device *s = cuda_of(d);
    float ms = 0;
    bool ok = hvt__cuda_delay(d, DELAY_US) == HVT_OK && cudaEventRecord(event[0], s->stream) == cudaSuccess &&
              hvt__nv.cudnnBackendExecute(s->dnn, t->plan[plan].plan, t->pack) == CUDNN_STATUS_SUCCESS &&
              cudaEventRecord(event[1], s->stream) == cudaSuccess &&
              CUDA_WAIT(d, cudaEventSynchronize(event[1])) == HVT_OK &&
              cudaEventElapsedTime(&ms, event[0], event[1]) == cudaSuccess;

    if (!ok)
        cudaGetLastError();
    return ok ? ms * 1000 : FLT_MAX;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Plans alternate, so that a temporary slowdown of the GPU affects all; the first round warms up. */
static hvt_status time_plans(trial *t)
{
    float us[CUDNN_PLANS_MOST][TIMED_RUNS];
    cudaEvent_t event[2] = {NULL, NULL};
    hvt_status s;

    HVT_TRY_OR(done, CUDA(t->d, cudaEventCreate(&event[0])));
    HVT_TRY_OR(done, CUDA(t->d, cudaEventCreate(&event[1])));
    for (int r = -1; r < TIMED_RUNS; r++)
        for (int i = 0; i < t->count; i++) {
            float took = time_once(t, i, event);

            if (r >= 0)
                us[i][r] = took;
        }
    for (int i = 0; i < t->count; i++) {
        qsort(us[i], TIMED_RUNS, sizeof us[i][0], compare_floats);
        t->us[i] = us[i][TIMED_RUNS / 2];
    }
done:
    for (int i = 0; i < 2; i++)
        if (event[i])
            cudaEventDestroy(event[i]);
    return s;
}

/* The fastest remaining plan, or -1. */
static int fastest(const trial *t)
{
    int best = -1;

    for (int i = 0; i < t->count; i++)
        if (t->us[i] < (best < 0 ? FLT_MAX : t->us[best]))
            best = i;
    return best;
}

/* ---- results ---- */

/* Run a plan and take evenly spaced samples of its result. Plans that add start from the same numbers. */
static hvt_status sample(trial *t, int plan, float *ret_samples, size_t *ret_count)
{
    hvt_dtype type = type_of(t, t->result);
    size_t count = t->elements[t->result], size = hvt_dtype_size(type), done = 0;

    HVT_TRY(fill(t, t->result));
    HVT_TRY(CUDNN(t->d, cudnnBackendExecute(cuda_of(t->d)->dnn, t->plan[plan].plan, t->pack)));
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = count / SAMPLES * i, end = i + 1 < SAMPLES ? count / SAMPLES * (i + 1) : count;
        size_t n = end - at < SAMPLE ? end - at : SAMPLE;

        HVT_TRY(t->d->ops->memory.download(t->d, t->pattern, t->operand[t->result] + at * size, n * size));
        for (size_t k = 0; k < n; k++)
            ret_samples[done++] = hvt__load(t->pattern, type, k);
    }
    *ret_count = done;
    return HVT_OK;
}

/* |got - want| / |want|; infinite if any number is not finite */
static double distance(const float *got, const float *want, size_t count)
{
    double square = 0, norm = 0, ratio;

    for (size_t i = 0; i < count; i++) {
        square += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    ratio = sqrt(square / (norm > 0 ? norm : 1));
    return isfinite(ratio) ? ratio : INFINITY;
}

/* The largest distance that rounding explains: about ten times that of one rounding to the type. */
static double tolerance(const conv_request *w)
{
    return w->conv.type == HVT_BF16 ? 2e-2 : w->conv.type == HVT_F16 ? 5e-3 : w->tf32 ? 5e-3 : 1e-3;
}

/* Drop the fastest plan while its result disagrees with the reference. */
static hvt_status verify(trial *t, const char *key)
{
    int reference = 0;
    size_t count = 0;

    while (reference < t->count - 1 && t->us[reference] == FLT_MAX)
        reference++;
    for (int best; (best = fastest(t)) >= 0 && best != reference;) {
        double off;

        if (!count)
            HVT_TRY(sample(t, reference, t->want, &count));
        HVT_TRY(sample(t, best, t->got, &count));
        off = distance(t->got, t->want, count);
        if (off <= tolerance(t->w))
            break;
        HVT_WARN("cuda:%d (%s): cuDNN's configuration %s is wrong by %.2g %% (%s) and is not used",
                 cuda_of(t->d)->index, cuda_of(t->d)->info.name, t->plan[best].name, 100 * off, key);
        t->us[best] = FLT_MAX;
    }
    return HVT_OK;
}

/* ---- the whole trial ---- */

static hvt_status run(trial *t, const char *key, char *memory, int *ret_best, float *ret_us)
{
    int best;

    for (int i = 0; i < 3; i++) {
        t->operand[i] = memory;
        memory += cuda_align(t->elements[i] * sizeof(float));
        HVT_TRY(fill(t, i));
    }
    t->operand[3] = memory;
    HVT_TRY(hvt__conv_pack(t->d, (void **)t->operand, &t->pack));
    HVT_TRY(time_plans(t));
    HVT_TRY(verify(t, key));
    best = fastest(t);
    HVT_CHECK(best >= 0, E_DEVICE, "cuda:%d (%s): none of %d algorithms of a convolution runs",
              cuda_of(t->d)->index, cuda_of(t->d)->info.name, t->count);
    *ret_best = best;
    *ret_us = t->us[best];
    return HVT_OK;
}

hvt_status hvt__conv_trial(hvt_device *d, const conv_request *w, const char *key, const conv_plan plans[],
                           int count, int *ret_best, float *ret_us)
{
    const hvt_conv_desc *c = &w->conv;
    trial *t = calloc(1, sizeof *t);
    size_t bytes = 0, ws = 0;
    char *memory = NULL;
    hvt_status s = HVT_OK;

    HVT_CHECK(t, E_MEM, "no memory for %zu bytes to compare convolutions", sizeof *t);
    t->d = d;
    t->w = w;
    t->plan = plans;
    t->count = count;
    t->result = w->pass == CONV_FORWARD ? 2 : w->pass == CONV_BACKWARD_X ? 0 : 1;
    t->elements[0] = (size_t)c->n * (size_t)c->h * (size_t)c->w * (size_t)c->cx;
    t->elements[1] = (size_t)c->k * (size_t)c->r * (size_t)c->s * (size_t)hvt__conv_depth(c);
    t->elements[2] = (size_t)c->n * (size_t)hvt__conv_height(c) * (size_t)hvt__conv_width(c) * (size_t)c->k;
    for (int i = 0; i < 3; i++)
        bytes += cuda_align(t->elements[i] * sizeof(float));
    for (int i = 0; i < count; i++)
        ws = plans[i].ws > ws ? plans[i].ws : ws;
    *ret_best = 0;
    *ret_us = 0;
    if (cudaMalloc((void **)&memory, bytes + cuda_align(ws)) == cudaSuccess)
        s = run(t, key, memory, ret_best, ret_us);
    else
        cudaGetLastError();
    if (t->pack)
        hvt__nv.cudnnBackendDestroyDescriptor(t->pack);
    cudaFree(memory);
    free(t);
    return s;
}
