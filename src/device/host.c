/*
 * Functions shared by the devices that compute on the host: memory, losses, statistics of shards. Ops have
 * completed when they return, so there is nothing to wait for.
 *
 * A block starts with a 64-byte header that says how to free it. Small blocks come from the heap. Blocks of
 * at least a huge page are mapped: zero pages cost nothing until they are touched, by the thread that uses
 * them.
 */
#include "host.h"
#include "base_impl.h"
#include "join.h"
#include "scalar.h"
#include "step.h"

#include <math.h>
#include <sys/mman.h>

enum { HEAD = 64, HUGE_PAGE = 2 << 20 };

typedef struct head {
    void *base;
    size_t mapped; /* bytes of the mapping; 0: from the heap */
} head;

/* Map `bytes` from the start of a huge page on; NULL on failure. Surrounding pages are never touched. */
static char *map(size_t bytes)
{
    size_t all = bytes + HUGE_PAGE;
    char *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p;

    if (base == MAP_FAILED)
        return NULL;
    p = base + (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    madvise(p, bytes, MADV_HUGEPAGE); /* optional; reduces page faults */
    *(head *)p = (head){base, all};
    return p;
}

static char *from_heap(size_t bytes)
{
    char *p = aligned_alloc(64, bytes);

    if (p) {
        memset(p, 0, bytes);
        *(head *)p = (head){p, 0};
    }
    return p;
}

hvt_status hvt__host_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    size_t total = (bytes + HEAD + 4095) & ~(size_t)4095;
    char *p = NULL;

    if (bytes <= SIZE_MAX / 2)
        p = bytes >= HUGE_PAGE ? map(total) : from_heap((bytes + HEAD + 63) & ~(size_t)63);
    HVT_CHECK(p, E_MEM, "no memory for %zu bytes", bytes);
    *ret_ptr = p + HEAD;
    return HVT_OK;
}

void hvt__host_release(hvt_device *d, void *ptr)
{
    head h;

    if (!ptr)
        return;
    h = *(head *)((char *)ptr - HEAD);
    if (h.mapped)
        munmap(h.base, h.mapped);
    else
        free(h.base);
}

hvt_status hvt__host_copy(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    if (bytes)
        memcpy(dst, src, bytes);
    return HVT_OK;
}

/* Returns the target of class k in a row of a cross-entropy. */
static float target_of(const hvt_xent_args *a, size_t row, int k)
{
    return a->soft ? xent_smooth_soft(a->smoothing, a->classes, a->soft[row * (size_t)a->classes + (size_t)k])
                   : xent_smooth_hit(a->smoothing, a->classes, k == a->labels[row]);
}

/* Returns the number of classes before the label. *ret_max: the largest logit; *ret_poison: NaN if a logit is
 * not finite. */
static int rank_of(const hvt_xent_args *a, size_t row, double *ret_max, float *ret_poison)
{
    const size_t at = row * (size_t)a->classes;
    const int label = a->labels[row];
    const float target = hvt__load(a->logits, a->type, at + (size_t)label);
    int before = 0;

    *ret_max = -INFINITY;
    *ret_poison = 0;
    for (int k = 0; k < a->classes; k++) {
        float x = hvt__load(a->logits, a->type, at + (size_t)k);

        *ret_max = (double)x > *ret_max ? (double)x : *ret_max;
        *ret_poison += xent_poison(x);
        before += xent_before(x, target, k, label);
    }
    return before;
}

/* Returns log(1 + exp(x)) - t * x for a logit x and a target t, without overflow. */
static double binary_loss(double x, double t)
{
    return (x > 0 ? x : 0) - x * t + log1p(exp(-fabs(x)));
}

/* Loss: the mean over classes of binary_loss(x, t). Gradient: (sigmoid(x) - t) / classes. */
static void binary_row(const hvt_xent_args *a, size_t row, float scale)
{
    const size_t at = row * (size_t)a->classes;
    double max, sum = 0;
    float poison;

    a->label_rank[row] = rank_of(a, row, &max, &poison);
    for (int k = 0; k < a->classes; k++) {
        double x = (double)hvt__load(a->logits, a->type, at + (size_t)k), t = (double)target_of(a, row, k);

        sum += binary_loss(x, t);
        if (a->dlogits)
            hvt__store(a->dlogits, a->type, at + (size_t)k,
                       (float)((1 / (1 + exp(-x)) - t) / a->classes) * scale);
    }
    a->loss[row] = (float)(sum / a->classes) + poison;
}

/* With targets t and weights w: loss = sum of w[k] * t[k] * -log(softmax(x)[k]) over k; gradient =
 * softmax(x)[k] * sum(w * t) - w[k] * t[k]. */
static void weighted_row(const hvt_xent_args *a, size_t row, float scale)
{
    const size_t at = row * (size_t)a->classes;
    double max, sum = 0, loss = 0, all = 0, log_sum;
    float poison;

    a->label_rank[row] = rank_of(a, row, &max, &poison);
    for (int k = 0; k < a->classes; k++)
        sum += exp((double)hvt__load(a->logits, a->type, at + (size_t)k) - max);
    log_sum = log(sum) + max;
    for (int k = 0; k < a->classes; k++) {
        double wt = (double)a->weights[k] * (double)target_of(a, row, k);

        all += wt;
        loss += wt * (log_sum - (double)hvt__load(a->logits, a->type, at + (size_t)k));
    }
    for (int k = 0; a->dlogits && k < a->classes; k++) {
        double softmax = exp((double)hvt__load(a->logits, a->type, at + (size_t)k) - log_sum);
        double wt = (double)a->weights[k] * (double)target_of(a, row, k);

        hvt__store(a->dlogits, a->type, at + (size_t)k, (float)(softmax * all - wt) * scale);
    }
    a->loss[row] = (float)loss + poison;
}

void hvt__host_xent_row(const hvt_xent_args *a, size_t row, float scale)
{
    if (a->binary || a->weights) {
        (a->binary ? binary_row : weighted_row)(a, row, scale);
        return;
    }

    size_t at = row * (size_t)a->classes;
    int label = a->labels[row], label_rank = 0;
    float target = hvt__load(a->logits, a->type, at + label), max = hvt__load(a->logits, a->type, at),
          poison = 0;
    const float *soft = a->soft ? a->soft + at : NULL;
    double sum = 0, all = 0, weighted = 0;

    for (int k = 0; k < a->classes; k++) {
        float x = hvt__load(a->logits, a->type, at + k);

        max = x > max ? x : max;
        poison += xent_poison(x);
        label_rank += xent_before(x, target, k, label);
        all += (double)x;
        weighted += soft ? (double)soft[k] * (double)x : 0;
    }
    for (int k = 0; k < a->classes; k++)
        sum += exp((double)hvt__load(a->logits, a->type, at + k) - max);
    for (int k = 0; a->dlogits && k < a->classes; k++) {
        double softmax = exp((double)hvt__load(a->logits, a->type, at + k) - max) / sum;

        hvt__store(a->dlogits, a->type, at + k, (float)(softmax - (double)target_of(a, row, k)) * scale);
    }
    if (soft)
        target = (float)weighted;
    if (a->smoothing > 0)
        target = xent_smooth_target(a->smoothing, a->classes, target, all);
    a->loss[row] = xent_loss(sum, target, max, poison);
    a->label_rank[row] = label_rank;
}

bool hvt__host_xent_ignores(const hvt_xent_args *a, size_t row)
{
    if (!a->pixels || a->labels[row] >= 0)
        return false;
    if (a->dlogits)
        memset((char *)a->dlogits + row * (size_t)a->classes * hvt_dtype_size(a->type), 0,
               (size_t)a->classes * hvt_dtype_size(a->type));
    a->loss[row] = 0;
    a->label_rank[row] = -1;
    return true;
}

/* Returns what a row adds to the divisor of a weighted loss, or of a loss of pixels. */
static double weight_of(const hvt_xent_args *a, size_t row)
{
    if (a->pixels && a->labels[row] < 0)
        return 0;
    return !a->weights ? a->pixels > 0 : a->soft ? 1 : (double)a->weights[a->labels[row]];
}

void hvt__host_xent_sums(const hvt_xent_args *a)
{
    double sum = 0, top1 = 0, top5 = 0, weight = 0;

    for (size_t i = 0; i < (size_t)a->rows.blocks * a->rows.block; i++)
        if (i % a->rows.block < (size_t)a->rows.real) {
            sum += a->loss[i];
            top1 += (unsigned)a->label_rank[i] < 1;
            top5 += a->pixels ? a->label_rank[i] >= 0 : a->label_rank[i] < 5;
            weight += weight_of(a, i);
        }
    a->sums[HVT__SUM_LOSS] = (float)sum;
    a->sums[HVT__SUM_TOP1] = (float)top1;
    a->sums[HVT__SUM_TOP5] = (float)top5;
    a->sums[HVT__SUM_WEIGHT] = (float)weight;
}

static void mse_row(const hvt_mse_args *a, size_t row, float scale)
{
    double squares = 0, absolute = 0;

    for (size_t k = row * (size_t)a->outputs; k < (row + 1) * (size_t)a->outputs; k++) {
        float off = hvt__load(a->y, a->type, k) - a->targets[k];

        squares += (double)off * (double)off;
        absolute += fabs((double)off);
        if (a->dy)
            hvt__store(a->dy, a->type, k,
                       a->absolute ? mae_grad(off, a->outputs, scale) : mse_grad(off, a->outputs, scale));
    }
    a->loss[row] = (float)((a->absolute ? absolute : squares) / a->outputs);
    a->error[row] = (float)(absolute / a->outputs);
}

void hvt__host_mse_rows(const hvt_mse_args *a, size_t first, size_t end)
{
    float scale = (a->scale ? *a->scale : 1) / (float)(a->pixels ? a->pixels : 1);

    for (size_t i = first; i < end; i++)
        if (i % a->rows.block < (size_t)a->rows.real)
            mse_row(a, i, scale);
        else
            for (int k = 0; a->dy && k < a->outputs; k++)
                hvt__store(a->dy, a->type, i * a->outputs + k, 0);
}

void hvt__host_mse_sums(const hvt_mse_args *a)
{
    const int pixels = a->pixels ? a->pixels : 1;
    double sum = 0, error = 0;

    for (size_t i = 0; i < (size_t)a->rows.blocks * a->rows.block; i++)
        if (i % a->rows.block < (size_t)a->rows.real) {
            sum += a->loss[i];
            error += a->error[i];
        }
    a->sums[HVT__SUM_LOSS] = (float)(sum / pixels);
    a->sums[HVT__SUM_ERROR] = (float)(error / pixels);
    a->sums[HVT__SUM_TOP5] = a->sums[HVT__SUM_WEIGHT] = 0;
}

/* on one thread, since these are few numbers */
hvt_status hvt__host_join_moments(hvt_device *d, const hvt_bn_join_args *a)
{
    HVT_FLOATS;
    for (int i = 0; i < a->c; i++)
        hvt__join_moments(a, i);
    return HVT_OK;
}

hvt_status hvt__host_join_sums(hvt_device *d, const hvt_bn_join_args *a)
{
    HVT_FLOATS;
    for (int i = 0; i < a->c; i++)
        hvt__join_sums(a, i);
    return HVT_OK;
}

void hvt__host_squares(size_t n, const float *g, int64_t *bin)
{
    for (size_t i = 0; i < n; i += HVT__SQUARES_BLOCK) {
        int64_t part[3];
        int at = hvt__squares_cut(
            hvt__squares_block(g + i, n - i < HVT__SQUARES_BLOCK ? (int)(n - i) : HVT__SQUARES_BLOCK), part);

        for (int k = 0; k < 3; k++)
            bin[at + k] += part[k];
    }
}

hvt_status hvt__host_decide(hvt_device *d, hvt_step_state *step, const float *sums)
{
    HVT_FLOATS;
    hvt__step_decide(step, sums);
    return HVT_OK;
}
