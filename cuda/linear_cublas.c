/*
 * Linear layers: three matrix products by cuBLASLt, with algorithms chosen at plan time. cuBLASLt's matrices
 * are column-major, so our rows are its columns:
 *
 *     x   [n,c] is X  c x n        forward     Y  = W^T X
 *     w   [k,c] is W  c x k        backward_x  DX = W   DY  (+ DX)
 *     y   [n,k] is Y  k x n        backward_w  DW = X   DY^T
 *
 * Sums are f32, and gradients of w are stored as f32, whatever the other types.
 */
#include "conv_impl.h"
#include "cuda_impl.h"

enum { WORKSPACE_MOST = 32 * 1024 * 1024, ALIGNMENT = 16 };

typedef struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d; /* borrowed */
    cublasLtMatmulAlgo_t algo;
    size_t ws;
} product;

struct linear {
    hvt_device *dev;
    cublasLtMatrixLayout_t x, w, y, dw;
    product product[CONV_PASSES];
};

static cudaDataType_t data_type(hvt_dtype t)
{
    return t == HVT_F16 ? CUDA_R_16F : t == HVT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Constraints on algorithms. Split-K sums go through workspace in f32; deterministic runs do not split.
 * Arenas guarantee 16 bytes of alignment. */
static hvt_status prefer(hvt_device *d, cublasLtMatmulPreference_t p)
{
    uint64_t ws = WORKSPACE_MOST;
    uint32_t alignment = ALIGNMENT, schemes = d->deterministic ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

    HVT_TRY(CUBLAS(d, cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws,
                                                           sizeof ws)));
    HVT_TRY(CUBLAS(d, cublasLtMatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                           &schemes, sizeof schemes)));
    for (int name = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         name <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; name++) /* for A, B, C and D */
        HVT_TRY(CUBLAS(d, cublasLtMatmulPreferenceSetAttribute(p, (cublasLtMatmulPreferenceAttributes_t)name,
                                                               &alignment, sizeof alignment)));
    return HVT_OK;
}

static hvt_status choose(hvt_device *d, product *p)
{
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int count = 0;
    hvt_status s;

    HVT_TRY(CUBLAS(d, cublasLtMatmulPreferenceCreate(&wish)));
    HVT_TRY_OR(done, prefer(d, wish));
    HVT_TRY_OR(done, CUBLAS(d, cublasLtMatmulAlgoGetHeuristic(cuda_of(d)->blas, p->desc, p->a, p->b, p->d,
                                                              p->d, wish, 1, &best, &count)));
    HVT_CHECK_OR(done, count == 1 && best.state == CUBLAS_STATUS_SUCCESS, E_UNSUPPORTED,
                 "device cuda: cuBLASLt has no algorithm for this product");
    p->algo = best.algo;
    p->ws = best.workspaceSize;
done:
    hvt__nv.cublasLtMatmulPreferenceDestroy(wish);
    return s;
}

static hvt_status plan_product(linear *l, int which, bool f32, cublasOperation_t op_a, cublasOperation_t op_b)
{
    hvt_device *d = l->dev;
    product *p = &l->product[which];
    cublasComputeType_t compute = f32 && d->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

    HVT_TRY(CUBLAS(d, cublasLtMatmulDescCreate(&p->desc, compute, CUDA_R_32F)));
    HVT_TRY(
        CUBLAS(d, cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a)));
    HVT_TRY(
        CUBLAS(d, cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b)));
    return choose(d, p);
}

static hvt_status plan(linear *l, const hvt_conv_desc *c)
{
    hvt_device *d = l->dev;
    cudaDataType_t t = data_type(c->type);
    uint64_t n = (uint64_t)c->n, cx = (uint64_t)c->cx, k = (uint64_t)c->k;
    bool f32 = c->type == HVT_F32;

    HVT_TRY(CUBLAS(d, cublasLtMatrixLayoutCreate(&l->x, t, cx, n, (int64_t)cx)));
    HVT_TRY(CUBLAS(d, cublasLtMatrixLayoutCreate(&l->w, t, cx, k, (int64_t)cx)));
    HVT_TRY(CUBLAS(d, cublasLtMatrixLayoutCreate(&l->y, t, k, n, (int64_t)k)));
    HVT_TRY(CUBLAS(d, cublasLtMatrixLayoutCreate(&l->dw, CUDA_R_32F, cx, k, (int64_t)cx)));
    l->product[CONV_FORWARD] = (product){.a = l->w, .b = l->x, .d = l->y};
    l->product[CONV_BACKWARD_X] = (product){.a = l->w, .b = l->y, .d = l->x};
    l->product[CONV_BACKWARD_W] = (product){.a = l->x, .b = l->y, .d = l->dw};
    HVT_TRY(plan_product(l, CONV_FORWARD, f32, CUBLAS_OP_T, CUBLAS_OP_N));
    if (!c->no_dx)
        HVT_TRY(plan_product(l, CONV_BACKWARD_X, f32, CUBLAS_OP_N, CUBLAS_OP_N));
    return plan_product(l, CONV_BACKWARD_W, f32, CUBLAS_OP_N, CUBLAS_OP_T);
}

hvt_status hvt__linear_plan_cublas(hvt_device *d, const hvt_conv_desc *c, linear **ret_linear, size_t *ret_ws)
{
    linear *l = calloc(1, sizeof *l);
    size_t ws = 0;
    hvt_status s;

    HVT_CHECK(l, E_MEM, "no memory for %zu bytes of a linear layer's plan", sizeof *l);
    l->dev = d;
    HVT_TRY_OR(fail, plan(l, c));
    for (int i = 0; i < CONV_PASSES; i++)
        ws = l->product[i].ws > ws ? l->product[i].ws : ws;
    *ret_linear = l;
    *ret_ws = ws;
    return HVT_OK;
fail:
    hvt__linear_free_cublas(l);
    return s;
}

void hvt__linear_free_cublas(linear *l)
{
    if (!l)
        return;
    for (int i = 0; i < CONV_PASSES; i++)
        if (l->product[i].desc)
            hvt__nv.cublasLtMatmulDescDestroy(l->product[i].desc);
    for (int i = 0; i < 4; i++) {
        cublasLtMatrixLayout_t layout[] = {l->x, l->w, l->y, l->dw};

        if (layout[i])
            hvt__nv.cublasLtMatrixLayoutDestroy(layout[i]);
    }
    free(l);
}

hvt_status hvt__linear_run_cublas(linear *l, conv_pass pass, const void *a, const void *b, void *d, bool add,
                                  void *ws)
{
    const product *p = &l->product[pass];
    const cuda_device *s = cuda_of(l->dev);
    float alpha = 1, beta = add ? 1 : 0;

    return CUBLAS(l->dev, cublasLtMatmul(s->blas, p->desc, &alpha, a, p->a, b, p->b, &beta, d, p->d, d, p->d,
                                         &p->algo, ws, p->ws, s->stream));
}
