/*
 * Convolution by cuDNN: a plan for each pass, chosen when the layer is planned, for the whole batch.
 *
 * Weights are [K,R,S,cx], which is cuDNN's K,C,R,S with channels last. A short batch runs the same plans over
 * all n images: what forward and backward_x compute for images past `real` is never read, and before
 * backward_w sums over all images, x and dy are zeroed there.
 *
 * The choice of engines. cuDNN lists engines in the order in which it expects them to be fast. A
 * deterministic run takes the first suitable one, the same every time; else the first few are timed on this
 * GPU, once per shape, and the result is stored in the plan cache.
 */
#include "conv_impl.h"
#include "kernels.h"
#include "plan_cache.h"
#include "plan_cudnn.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { FORWARD, BACKWARD_X, BACKWARD_X_ADD, BACKWARD_W, PLANS };
enum {
    WS_ALIGN = 256,
    TIMED_RUNS = 5,
    DELAY_US = 100,
    FILL = 0x3c /* a small positive number in every type */
};

typedef struct conv {
    hvt_op op;
    hvt_conv_desc d;
    size_t weights, image_x, image_y; /* elements */
    linear *linear;                   /* for 1x1 images; else the plans: */
    conv_plan plan[PLANS];
    hvt_dtype dw_type; /* type written by the plan for the gradient of w; if not f32, it is cast */
    struct pack {      /* variant pack of the last call's addresses, reused if they are the same */
        cudnnBackendDescriptor_t pack;
        void *address[3], *ws;
    } pack[PLANS];
} conv;

static void free_conv(hvt_op *op)
{
    conv *o = (conv *)op;

    for (int i = 0; i < PLANS; i++) {
        if (o->pack[i].pack)
            cudnnBackendDestroyDescriptor(o->pack[i].pack);
        hvt__cudnn_plan_free(&o->plan[i]);
    }
    hvt__linear_free_cublas(o->linear);
    free(o);
}

static size_t up(size_t bytes)
{
    return (bytes + WS_ALIGN - 1) / WS_ALIGN * WS_ALIGN;
}

/* ---- run ---- */

static hvt_status make_variant_pack(const hvt_device *d, void *address[3], void *ws,
                                    cudnnBackendDescriptor_t *ret_pack)
{
    int64_t uid[3] = {CUDNN_X, CUDNN_W, CUDNN_Y};
    cudnnBackendDescriptor_t p = NULL;
    hvt_status s;

    HVT_TRY(CUDNN(d, cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &p)));
    HVT_TRY_OR(fail, CUDNN(d, cudnnBackendSetAttribute(p, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                       CUDNN_TYPE_INT64, 3, uid)));
    HVT_TRY_OR(fail, CUDNN(d, cudnnBackendSetAttribute(p, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                       CUDNN_TYPE_VOID_PTR, 3, address)));
    HVT_TRY_OR(fail, CUDNN(d, cudnnBackendSetAttribute(p, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                       CUDNN_TYPE_VOID_PTR, 1, &ws)));
    HVT_TRY_OR(fail, CUDNN(d, cudnnBackendFinalize(p)));
    *ret_pack = p;
    return HVT_OK;
fail:
    cudnnBackendDestroyDescriptor(p);
    return s;
}

static hvt_status run(conv *o, int which, const void *x, const void *w, const void *y, void *ws)
{
    const hvt_device *d = o->op.dev;
    struct pack *p = &o->pack[which];
    void *address[3] = {(void *)x, (void *)w, (void *)y};

    if (!p->pack || p->address[0] != address[0] || p->address[1] != address[1] ||
        p->address[2] != address[2] || p->ws != ws) {
        cudnnBackendDescriptor_t pack;

        HVT_TRY(make_variant_pack(d, address, ws, &pack));
        if (p->pack)
            cudnnBackendDestroyDescriptor(p->pack);
        *p = (struct pack){pack, {address[0], address[1], address[2]}, ws};
    }
    return CUDNN(d, cudnnBackendExecute(cuda_of(d)->dnn, o->plan[which].plan, p->pack));
}

static void *aligned(void *ws)
{
    return (void *)up((size_t)ws);
}

hvt_status hvt__conv_forward_cuda(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    conv *o = (conv *)op;

    if (real == 0)
        return HVT_OK;
    HVT_TRY(hvt__cuda_use(op->dev));
    if (o->linear)
        return hvt__linear_forward_cublas(o->linear, x, w, y, aligned(ws));
    return run(o, FORWARD, x, w, y, aligned(ws));
}

hvt_status hvt__conv_backward_x_cuda(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                     void *ws)
{
    conv *o = (conv *)op;
    char *result;

    if (real == 0)
        return HVT_OK;
    HVT_TRY(hvt__cuda_use(op->dev));
    ws = aligned(ws);
    if (o->linear)
        return hvt__linear_backward_x_cublas(o->linear, w, dy, dx, add, ws);
    if (!add)
        return run(o, BACKWARD_X, dx, w, dy, ws);
    if (o->plan[BACKWARD_X_ADD].plan)
        return run(o, BACKWARD_X_ADD, dx, w, dy, ws);
    result = (char *)ws + up(o->plan[BACKWARD_X].ws);
    HVT_TRY(run(o, BACKWARD_X, result, w, dy, ws));
    return CUDA(op->dev, hvt__cuda_add(cuda_of(op->dev)->stream, (size_t)o->d.n * o->image_x, o->d.type, dx,
                                       result, dx));
}

/* Zero the images past `real`, which are uninitialised, so that they add nothing. */
static hvt_status clear_padding(const conv *o, int real, const void *images, size_t image)
{
    size_t bytes = image * hvt_dtype_size(o->d.type);

    return CUDA(o->op.dev, cudaMemsetAsync((char *)images + (size_t)real * bytes, 0,
                                           (size_t)(o->d.n - real) * bytes, cuda_of(o->op.dev)->stream));
}

hvt_status hvt__conv_backward_w_cuda(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    conv *o = (conv *)op;
    cudaStream_t stream = cuda_of(op->dev)->stream;
    char *result;

    HVT_TRY(hvt__cuda_use(op->dev));
    if (real == 0)
        return CUDA(op->dev, cudaMemsetAsync(dw, 0, o->weights * sizeof *dw, stream));
    if (real < o->d.n) {
        HVT_TRY(clear_padding(o, real, x, o->image_x));
        HVT_TRY(clear_padding(o, real, dy, o->image_y));
    }
    ws = aligned(ws);
    if (o->linear)
        return hvt__linear_backward_w_cublas(o->linear, x, dy, dw, ws);
    if (o->dw_type == HVT_F32)
        return run(o, BACKWARD_W, x, dw, dy, ws);
    result = (char *)ws + up(o->plan[BACKWARD_W].ws);
    HVT_TRY(run(o, BACKWARD_W, x, result, dy, ws));
    return CUDA(op->dev, hvt__cuda_cast(stream, o->weights, 1, result, o->dw_type, dw, HVT_F32));
}

/* ---- the choice ---- */

static const char *const pass_name[CONV_PASSES] = {"forward", "backward_x", "backward_w"};

static void key_of(const hvt_device *d, const conv_request *w, char *text, size_t size)
{
    snprintf(text, size, "%s, cuDNN %zu, %s %s to %s n%d h%d w%d c%d k%d r%d s%d stride%d pad%d%s%s%s",
             cuda_of(d)->info.name, cudnnGetVersion(), pass_name[w->pass], hvt_dtype_name(w->type),
             hvt_dtype_name(w->out), w->n, w->h, w->w, w->c, w->k, w->r, w->s, w->stride, w->pad,
             w->add ? " add" : "", w->tf32 ? " tf32" : "", w->ws_most > CUDNN_WORKSPACE_MOST ? " large" : "");
}

/* Microseconds of one run; FLT_MAX if it fails. A delay kernel keeps the GPU busy until the host has queued
 * everything, else a short run would be timed by the host's calls. */
static float time_once(hvt_device *d, const conv_plan *p, cudnnBackendDescriptor_t pack, cudaEvent_t event[2])
{
    cuda_device *s = cuda_of(d);
    float ms = 0;
    bool ok = hvt__cuda_delay(s->stream, DELAY_US) == cudaSuccess &&
              cudaEventRecord(event[0], s->stream) == cudaSuccess &&
              cudnnBackendExecute(s->dnn, p->plan, pack) == CUDNN_STATUS_SUCCESS &&
              cudaEventRecord(event[1], s->stream) == cudaSuccess &&
              cudaEventSynchronize(event[1]) == cudaSuccess &&
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

/* Candidates are interleaved, so that a temporary slowdown of the GPU affects all; the first round warms
 * up. */
static hvt_status time_plans(hvt_device *d, const conv_plan plans[], int count,
                             const cudnnBackendDescriptor_t pack, plan_choice *ret_best)
{
    float us[CUDNN_PLANS_MOST][TIMED_RUNS], least = FLT_MAX;
    cudaEvent_t event[2] = {NULL, NULL};
    hvt_status s;

    HVT_TRY_OR(done, CUDA(d, cudaEventCreate(&event[0])));
    HVT_TRY_OR(done, CUDA(d, cudaEventCreate(&event[1])));
    for (int r = -1; r < TIMED_RUNS; r++)
        for (int i = 0; i < count; i++) {
            float took = time_once(d, &plans[i], pack, event);

            if (r >= 0)
                us[i][r] = took;
        }
    for (int i = 0; i < count; i++) {
        qsort(us[i], TIMED_RUNS, sizeof us[i][0], compare_floats);
        if (us[i][TIMED_RUNS / 2] < least) {
            least = us[i][TIMED_RUNS / 2];
            *ret_best = (plan_choice){i, plans[i].engine, least};
        }
    }
    HVT_CHECK_OR(done, least < FLT_MAX, E_DEVICE, "cuda:%d (%s): none of %d algorithms of a convolution runs",
                 cuda_of(d)->index, cuda_of(d)->info.name, count);
done:
    for (int i = 0; i < 2; i++)
        if (event[i])
            cudaEventDestroy(event[i]);
    return s;
}

/* Measured on temporary memory. If there is not enough, the first candidate is taken, untimed. */
static hvt_status measure(hvt_device *d, const conv_request *w, const conv_plan plans[], int count,
                          plan_choice *ret_best)
{
    size_t p = (size_t)hvt__conv_out(w->h, w->r, w->stride, w->pad);
    size_t q = (size_t)hvt__conv_out(w->w, w->s, w->stride, w->pad), n = (size_t)w->n, c = (size_t)w->c;
    size_t k = (size_t)w->k;
    size_t bytes[3] = {up(4 * n * (size_t)w->h * (size_t)w->w * c),
                       up(4 * k * (size_t)w->r * (size_t)w->s * c), up(4 * n * p * q * k)};
    size_t ws = 0;
    cudnnBackendDescriptor_t pack = NULL;
    char *memory = NULL;
    hvt_status s;

    *ret_best = (plan_choice){0, plans[0].engine, 0};
    for (int i = 0; i < count; i++)
        ws = plans[i].ws > ws ? plans[i].ws : ws;
    if (cudaMalloc((void **)&memory, bytes[0] + bytes[1] + bytes[2] + up(ws)) != cudaSuccess) {
        cudaGetLastError();
        return HVT_OK;
    }
    HVT_TRY_OR(done,
               CUDA(d, cudaMemsetAsync(memory, FILL, bytes[0] + bytes[1] + bytes[2], cuda_of(d)->stream)));
    HVT_TRY_OR(done, make_variant_pack(d, (void *[]){memory, memory + bytes[0], memory + bytes[0] + bytes[1]},
                                       memory + bytes[0] + bytes[1] + bytes[2], &pack));
    HVT_TRY_OR(done, time_plans(d, plans, count, pack, ret_best));
done:
    if (pack)
        cudnnBackendDestroyDescriptor(pack);
    cudaFree(memory);
    return s;
}

/* Select a candidate: from the cache if the entry still matches, else by measuring. */
static hvt_status pick(hvt_device *d, const conv_request *w, const conv_plan plans[], int count,
                       int *ret_index)
{
    char key[PLAN_KEY_MOST];
    plan_choice c;

    *ret_index = 0;
    if (count == 1)
        return HVT_OK;
    key_of(d, w, key, sizeof key);
    if (!hvt__plan_cache_find(cuda_of(d)->plans, key, &c) || c.index >= count ||
        plans[c.index].engine != c.engine) {
        HVT_TRY(measure(d, w, plans, count, &c));
        if (c.us > 0)
            HVT_TRY(hvt__plan_cache_put(cuda_of(d)->plans, key, c));
    }
    HVT_DEBUG("%s: engine %" PRId64 ", candidate %d of %d, %.1f us", key, c.engine, c.index, count,
              (double)c.us);
    *ret_index = c.index;
    return HVT_OK;
}

/* *ret_plan is empty if no engine satisfies the request. */
static hvt_status choose(hvt_device *d, const conv_request *w, conv_plan *ret_plan)
{
    conv_plan plans[CUDNN_PLANS_MOST];
    plan_target on = {.handle = cuda_of(d)->dnn};
    int count = 0, index = 0;
    hvt_status s;

    *ret_plan = (conv_plan){0};
    HVT_TRY(hvt__cudnn_plan(&on, w, d->deterministic ? 1 : CUDNN_PLANS_MOST, plans, &count));
    cudaGetLastError(); /* engines that did not fit may have left one */
    if (count == 0)
        return HVT_OK;
    s = pick(d, w, plans, count, &index);
    if (s == HVT_OK) {
        *ret_plan = plans[index];
        plans[index] = (conv_plan){0};
    }
    for (int i = 0; i < count; i++)
        hvt__cudnn_plan_free(&plans[i]);
    return s;
}

static hvt_status choose_one(hvt_device *d, const conv_request *w, conv_plan *ret_plan)
{
    conv_request large = *w;

    large.ws_most = SIZE_MAX;
    HVT_TRY(choose(d, w, ret_plan));
    if (!ret_plan->plan)
        HVT_TRY(choose(d, &large, ret_plan));
    HVT_CHECK(
        ret_plan->plan, E_UNSUPPORTED,
        "device cuda: cuDNN %zu has no engine for %s of a convolution in %s: input %dx%dx%dx%d, %d filters "
        "%dx%d, stride %d, padding %d%s",
        cudnnGetVersion(), pass_name[w->pass], hvt_dtype_name(w->type), w->n, w->h, w->w, w->c, w->k, w->r,
        w->s, w->stride, w->pad, w->deterministic ? ", deterministic" : "");
    return HVT_OK;
}

static hvt_status plan_passes(conv *o)
{
    hvt_device *d = o->op.dev;
    const hvt_conv_desc *c = &o->d;
    conv_request w = {.n = c->n,
                      .h = c->h,
                      .w = c->w,
                      .c = c->cx,
                      .k = c->k,
                      .r = c->r,
                      .s = c->s,
                      .stride = c->stride,
                      .pad = c->pad,
                      .type = c->type,
                      .out = c->type,
                      .ws_most = CUDNN_WORKSPACE_MOST,
                      .deterministic = d->deterministic,
                      .tf32 = d->tf32,
                      .compile = true};

    w.pass = CONV_FORWARD;
    HVT_TRY(choose_one(d, &w, &o->plan[FORWARD]));
    if (!c->no_dx) {
        w.pass = CONV_BACKWARD_X;
        HVT_TRY(choose_one(d, &w, &o->plan[BACKWARD_X]));
        w.add = true;
        w.compile = false; /* a separate add is faster than compiling an engine */
        HVT_TRY(choose(d, &w, &o->plan[BACKWARD_X_ADD]));
        w.add = false;
    }
    w.pass = CONV_BACKWARD_W;
    w.out = HVT_F32;
    w.compile = c->type == HVT_F32; /* else a cast is faster */
    HVT_TRY(choose(d, &w, &o->plan[BACKWARD_W]));
    o->dw_type = HVT_F32;
    if (!o->plan[BACKWARD_W].plan) {
        o->dw_type = w.out = c->type;
        w.compile = true;
        HVT_TRY(choose_one(d, &w, &o->plan[BACKWARD_W]));
    }
    return HVT_OK;
}

/* Workspace, and after it temporary results that are then cast or added. */
static size_t ws_bytes(const conv *o)
{
    size_t size = hvt_dtype_size(o->d.type), most = 0;

    for (int i = 0; i < PLANS; i++) {
        size_t bytes = up(o->plan[i].ws);

        if (i == BACKWARD_X && !o->d.no_dx && !o->plan[BACKWARD_X_ADD].plan)
            bytes += (size_t)o->d.n * o->image_x * size;
        if (i == BACKWARD_W && o->dw_type != HVT_F32)
            bytes += o->weights * size;
        most = bytes > most ? bytes : most;
    }
    return most;
}

hvt_status hvt__conv_plan_cuda(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                               size_t *ret_ws)
{
    bool is_linear = c->h == 1 && c->w == 1 && c->r == 1 && c->s == 1 && c->stride == 1 && c->pad == 0;
    size_t ws = 0;
    conv *o;
    hvt_status s;

    HVT_CHECK(c->order == HVT_ORDER_NHW, E_UNSUPPORTED, "device cuda keeps images in the order NHW only");
    HVT_CHECK(c->n > 0 && c->h > 0 && c->w > 0 && c->c > 0 && c->cx >= c->c && c->k > 0 && c->r > 0 &&
                  c->s > 0 && c->stride > 0 && c->pad >= 0 && c->h + 2 * c->pad >= c->r &&
                  c->w + 2 * c->pad >= c->s,
              E_SHAPE, "no convolution: input %dx%dx%dx%d, %d filters %dx%d, stride %d, padding %d", c->n,
              c->h, c->w, c->c, c->k, c->r, c->s, c->stride, c->pad);
    HVT_TRY(hvt__cuda_use(d));
    o = calloc(1, sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a convolution's plan", sizeof *o);
    o->op = (hvt_op){d, free_conv};
    o->d = *c;
    o->weights = (size_t)c->k * (size_t)c->r * (size_t)c->s * (size_t)c->cx;
    o->image_x = (size_t)c->h * (size_t)c->w * (size_t)c->cx;
    o->image_y = (size_t)hvt__conv_out(c->h, c->r, c->stride, c->pad) *
                 (size_t)hvt__conv_out(c->w, c->s, c->stride, c->pad) * (size_t)c->k;
    if (is_linear)
        HVT_TRY_OR(fail, hvt__linear_plan_cublas(d, c, &o->linear, &ws));
    else
        HVT_TRY_OR(fail, plan_passes(o));
    *ret_op = &o->op;
    *ret_weights = o->weights;
    *ret_ws = (is_linear ? ws : ws_bytes(o)) + WS_ALIGN;
    return HVT_OK;
fail:
    hvt__op_free(&o->op);
    return s;
}

/* ---- weights ---- */

void hvt__conv_permute_cuda(const hvt_op *op, bool to_file, float *mine, float *kcrs)
{
    const hvt_conv_desc *d = &((const conv *)op)->d;

    for (int k = 0; k < d->k; k++)
        for (int r = 0; r < d->r; r++)
            for (int s = 0; s < d->s; s++)
                for (int c = 0; c < d->cx; c++) {
                    float *here = mine + (((size_t)k * d->r + r) * d->s + s) * d->cx + c;
                    float *file = c < d->c ? kcrs + (((size_t)k * d->c + c) * d->r + r) * d->s + s : NULL;

                    if (to_file && file)
                        *file = *here;
                    else if (!to_file)
                        *here = file ? *file : 0;
                }
}

/* No packing: every plan reads the weights in their layout. */
hvt_status hvt__conv_pack_weights_cuda(hvt_op *op, const void *w)
{
    (void)op;
    (void)w;
    return HVT_OK;
}
