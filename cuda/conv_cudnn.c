/*
 * Convolution by cuDNN: one plan per pass, chosen when the layer is planned, for the whole batch.
 *
 * Weights are [K,R,S,cx/groups], which is cuDNN's K,C,R,S with channels last; cuDNN takes the number of
 * groups from the channels of x and of the weights. A short batch runs the same plans over all n images:
 * results of forward and backward_x for images past `real` are never read, and x and dy of these images are
 * zeroed before backward_w sums over all images.
 *
 * Choice of engines. cuDNN lists engine configurations in its order of expected speed. A deterministic run
 * takes the first suitable one, the same every time. Other runs time the first sixteen on this GPU, once per
 * shape (conv_trial.c), and store the name of the fastest in the plan cache.
 */
#include "conv_impl.h"
#include "cuda_impl.h"
#include "kernels.h"

#include <inttypes.h>

enum { FORWARD, BACKWARD_X, BACKWARD_X_ADD, BACKWARD_W, PLANS };
typedef struct conv {
    hvt_conv head;
    size_t weights, image_x, image_y; /* elements */
    linear *linear;                   /* for 1x1 images; else the plans: */
    conv_plan plan[PLANS];
    hvt_dtype dw_type; /* type written by the plan for the gradient of w; if not f32, it is cast */
    struct pack {      /* variant pack of the last call's addresses, reused if they are the same */
        cudnnBackendDescriptor_t pack;
        void *address[4]; /* of x, w, y and workspace */
    } pack[PLANS];
} conv;

static void free_conv(hvt_op *op)
{
    conv *o = (conv *)op;

    for (int i = 0; i < PLANS; i++) {
        if (o->pack[i].pack)
            hvt__nv.cudnnBackendDestroyDescriptor(o->pack[i].pack);
        hvt__cudnn_plan_free(&o->plan[i]);
    }
    hvt__linear_free_cublas(o->linear);
    free(o);
}

/* ---- run ---- */

hvt_status hvt__conv_pack(const hvt_device *d, void *const address[4], cudnnBackendDescriptor_t *ret_pack)
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
                                                       CUDNN_TYPE_VOID_PTR, 1, &address[3])));
    HVT_TRY_OR(fail, CUDNN(d, cudnnBackendFinalize(p)));
    *ret_pack = p;
    return HVT_OK;
fail:
    hvt__nv.cudnnBackendDestroyDescriptor(p);
    return s;
}

static hvt_status run(conv *o, int which, const void *x, const void *w, const void *y, void *ws)
{
    const hvt_device *d = o->head.op.dev;
    struct pack *p = &o->pack[which];
    void *address[4] = {(void *)x, (void *)w, (void *)y, ws};

    if (!p->pack || memcmp(p->address, address, sizeof address) != 0) {
        cudnnBackendDescriptor_t pack;

        HVT_TRY(hvt__conv_pack(d, address, &pack));
        if (p->pack)
            hvt__nv.cudnnBackendDestroyDescriptor(p->pack);
        p->pack = pack;
        memcpy(p->address, address, sizeof address);
    }
    return CUDNN(d, cudnnBackendExecute(cuda_of(d)->dnn, o->plan[which].plan, p->pack));
}

/* Workspace has 256 more bytes than planned, so that its start can be 256-byte aligned. */
static void *aligned(void *ws)
{
    return (void *)cuda_align((size_t)ws);
}

hvt_status hvt__conv_forward_cuda(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    conv *o = (conv *)op;

    if (real == 0)
        return HVT_OK;
    HVT_TRY(hvt__cuda_use(op->dev));
    if (o->linear)
        return hvt__linear_run_cublas(o->linear, CONV_FORWARD, w, x, y, false, aligned(ws));
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
        return hvt__linear_run_cublas(o->linear, CONV_BACKWARD_X, w, dy, dx, add, ws);
    if (!add)
        return run(o, BACKWARD_X, dx, w, dy, ws);
    if (o->plan[BACKWARD_X_ADD].plan)
        return run(o, BACKWARD_X_ADD, dx, w, dy, ws);
    result = (char *)ws + cuda_align(o->plan[BACKWARD_X].ws);
    HVT_TRY(run(o, BACKWARD_X, result, w, dy, ws));
    return hvt__add_cuda(op->dev, (size_t)o->head.d.n * o->image_x, o->head.d.type, dx, result, dx);
}

/* Zero the uninitialised images past `real`, so that they add nothing. */
static hvt_status clear_padding(const conv *o, int real, const void *images, size_t image)
{
    size_t bytes = image * hvt_dtype_size(o->head.d.type);

    return CUDA(o->head.op.dev,
                cudaMemsetAsync((char *)images + (size_t)real * bytes, 0,
                                (size_t)(o->head.d.n - real) * bytes, cuda_of(o->head.op.dev)->stream));
}

hvt_status hvt__conv_backward_w_cuda(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    conv *o = (conv *)op;
    char *result;

    HVT_TRY(hvt__cuda_use(op->dev));
    if (real == 0)
        return CUDA(op->dev, cudaMemsetAsync(dw, 0, o->weights * sizeof *dw, cuda_of(op->dev)->stream));
    if (real < o->head.d.n) {
        HVT_TRY(clear_padding(o, real, x, o->image_x));
        HVT_TRY(clear_padding(o, real, dy, o->image_y));
    }
    ws = aligned(ws);
    if (o->linear)
        return hvt__linear_run_cublas(o->linear, CONV_BACKWARD_W, x, dy, dw, false, ws);
    if (o->dw_type == HVT_F32)
        return run(o, BACKWARD_W, x, dw, dy, ws);
    result = (char *)ws + cuda_align(o->plan[BACKWARD_W].ws);
    HVT_TRY(run(o, BACKWARD_W, x, result, dy, ws));
    return hvt__cast_cuda(op->dev, o->weights, 1, result, o->dw_type, dw, HVT_F32);
}

/* ---- the choice ---- */

static const char *const pass_name[CONV_PASSES] = {"forward", "backward_x", "backward_w"};

static void key_of(const hvt_device *d, const conv_request *w, char *text, size_t size)
{
    const hvt_conv_desc *c = &w->conv;

    snprintf(
        text, size,
        "%s, cuDNN %zu, %s %s to %s n%d h%d w%d c%d k%d r%d s%d stride%dx%d pad%d,%d,%d,%d dilation%dx%d "
        "groups%d%s%s%s",
        cuda_of(d)->info.name, hvt__nv.cudnnGetVersion(), pass_name[w->pass], hvt_dtype_name(c->type),
        hvt_dtype_name(w->out), c->n, c->h, c->w, c->cx, c->k, c->r, c->s, c->stride_h, c->stride_w, c->top,
        c->left, c->bottom, c->right, c->dilation_h, c->dilation_w, c->groups, w->add ? " add" : "",
        w->tf32 ? " tf32" : "", w->ws_most > CUDNN_WORKSPACE_MOST ? " large" : "");
}

static hvt_status list_plans(hvt_device *d, const conv_request *w, int most, conv_plan plans[],
                             int *ret_count)
{
    plan_target on = {.handle = cuda_of(d)->dnn};

    HVT_TRY(hvt__cudnn_plan(&on, w, most, plans, ret_count));
    cudaGetLastError(); /* clears errors of engines that did not fit */
    return HVT_OK;
}

/* Get the cached choice; *ret_plan is empty without one, or if cuDNN no longer lists it. */
static hvt_status recall(hvt_device *d, const conv_request *w, const char *key, conv_plan *ret_plan)
{
    conv_request known = *w;
    plan_choice c;
    int count = 0;

    if (!hvt__plan_cache_find(cuda_of(d)->plans, key, &c))
        return HVT_OK;
    known.name = c.name;
    HVT_TRY(list_plans(d, &known, 1, ret_plan, &count));
    HVT_DEBUG("%s: configuration %s, %.1f us%s", key, c.name, (double)c.us,
              count ? "" : ", which is no longer there");
    return HVT_OK;
}

/* Select one of several candidates by measuring, and cache it. */
static hvt_status pick(hvt_device *d, const conv_request *w, const char *key, const conv_plan plans[],
                       int count, int *ret_index)
{
    plan_choice c;

    HVT_TRY(hvt__conv_trial(d, w, key, plans, count, ret_index, &c.us));
    memcpy(c.name, plans[*ret_index].name, sizeof c.name);
    HVT_DEBUG("%s: configuration %s, candidate %d of %d, %.1f us", key, c.name, *ret_index, count,
              (double)c.us);
    return c.us > 0 ? hvt__plan_cache_put(cuda_of(d)->plans, key, c) : HVT_OK;
}

/* Choose a plan; *ret_plan is empty if no engine satisfies the request. */
static hvt_status choose(hvt_device *d, const conv_request *w, conv_plan *ret_plan)
{
    conv_plan plans[CUDNN_PLANS_MOST];
    char key[PLAN_KEY_MOST];
    int count = 0, index = 0;
    hvt_status s = HVT_OK;

    *ret_plan = (conv_plan){0};
    key_of(d, w, key, sizeof key);
    if (!d->deterministic)
        HVT_TRY(recall(d, w, key, ret_plan));
    if (ret_plan->plan)
        return HVT_OK;
    HVT_TRY(list_plans(d, w, d->deterministic ? 1 : CUDNN_PLANS_MOST, plans, &count));
    if (count > 1)
        s = pick(d, w, key, plans, count, &index);
    if (s == HVT_OK && count > 0) {
        *ret_plan = plans[index];
        plans[index] = (conv_plan){0};
    }
    for (int i = 0; i < count; i++)
        hvt__cudnn_plan_free(&plans[i]);
    return s;
}

static hvt_status choose_one(hvt_device *d, const conv_request *w, conv_plan *ret_plan)
{
    const hvt_conv_desc *c = &w->conv;
    conv_request large = *w;

    large.ws_most = SIZE_MAX;
    HVT_TRY(choose(d, w, ret_plan));
    if (!ret_plan->plan)
        HVT_TRY(choose(d, &large, ret_plan));
    HVT_CHECK(
        ret_plan->plan, E_UNSUPPORTED,
        "device cuda: cuDNN %zu has no engine for %s of a convolution in %s: input %dx%dx%dx%d, %d filters "
        "%dx%d in %d groups, stride %dx%d, dilation %dx%d, padding %d above, %d left, %d below, %d right%s",
        hvt__nv.cudnnGetVersion(), pass_name[w->pass], hvt_dtype_name(c->type), c->n, c->h, c->w, c->cx, c->k,
        c->r, c->s, c->groups, c->stride_h, c->stride_w, c->dilation_h, c->dilation_w, c->top, c->left,
        c->bottom, c->right, w->deterministic ? ", deterministic" : "");
    return HVT_OK;
}

static hvt_status plan_passes(conv *o)
{
    hvt_device *d = o->head.op.dev;
    const hvt_conv_desc *c = &o->head.d;
    conv_request w = {.conv = *c,
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
    w.compile = c->type == HVT_F32; /* otherwise a cast is faster */
    HVT_TRY(choose(d, &w, &o->plan[BACKWARD_W]));
    o->dw_type = HVT_F32;
    if (!o->plan[BACKWARD_W].plan) {
        o->dw_type = w.out = c->type;
        w.compile = true;
        HVT_TRY(choose_one(d, &w, &o->plan[BACKWARD_W]));
    }
    return HVT_OK;
}

/* Bytes of workspace, followed by temporary results to cast or add. */
static size_t ws_bytes(const conv *o)
{
    size_t size = hvt_dtype_size(o->head.d.type), most = 0;

    for (int i = 0; i < PLANS; i++) {
        size_t bytes = cuda_align(o->plan[i].ws);

        if (i == BACKWARD_X && !o->head.d.no_dx && !o->plan[BACKWARD_X_ADD].plan)
            bytes += (size_t)o->head.d.n * o->image_x * size;
        if (i == BACKWARD_W && o->dw_type != HVT_F32)
            bytes += o->weights * size;
        most = bytes > most ? bytes : most;
    }
    return most;
}

hvt_status hvt__conv_plan_cuda(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                               size_t *ret_ws)
{
    bool is_linear = c->h == 1 && c->w == 1 && c->r == 1 && c->s == 1 && c->groups == 1 && !c->top &&
                     !c->left && !c->bottom && !c->right;
    size_t ws = 0;
    conv *o;
    hvt_status s;

    HVT_CHECK(c->order == HVT_ORDER_NHW, E_UNSUPPORTED, "device cuda supports only the row order NHW");
    HVT_TRY(hvt__conv_check(d, c));
    HVT_TRY(hvt__cuda_use(d));
    o = calloc(1, sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a convolution's plan", sizeof *o);
    o->head = (hvt_conv){{d, free_conv}, *c, hvt__conv_height(c), hvt__conv_width(c)};
    o->weights = (size_t)c->k * (size_t)c->r * (size_t)c->s * (size_t)hvt__conv_depth(c);
    o->image_x = (size_t)c->h * (size_t)c->w * (size_t)c->cx;
    o->image_y = (size_t)o->head.p * (size_t)o->head.q * (size_t)c->k;
    if (is_linear)
        HVT_TRY_OR(fail, hvt__linear_plan_cublas(d, c, &o->linear, &ws));
    else
        HVT_TRY_OR(fail, plan_passes(o));
    *ret_op = &o->head.op;
    *ret_weights = o->weights;
    *ret_ws = (is_linear ? ws : ws_bytes(o)) + 256;
    return HVT_OK;
fail:
    hvt__op_free(&o->head.op);
    return s;
}
