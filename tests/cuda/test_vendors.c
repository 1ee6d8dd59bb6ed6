/*
 * The doubles of cuDNN and cuBLASLt compute as their engines specify, and refuse operands that would crash a
 * GPU. test_mistakes_cudnn.c and test_mistakes_cublaslt.c test what they refuse before that.
 */
#include "check.h"
#include "double.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <math.h>

typedef cudnnBackendDescriptor_t descriptor;

enum { X, W, Y }; /* unique ids, less 1 */

static descriptor made[256];
static int nmade;
static cudnnStatus_t status; /* the first that is no success */

static void note(cudnnStatus_t s)
{
    if (status == CUDNN_STATUS_SUCCESS)
        status = s;
}

static descriptor make(cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;

    note(cudnnBackendCreateDescriptor(type, &d));
    return made[nmade++] = d;
}

static void destroy_all(void)
{
    while (nmade)
        if (made[--nmade])
            cudnnBackendDestroyDescriptor(made[nmade]);
}

static void set(descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *value)
{
    note(cudnnBackendSetAttribute(d, name, type, count, value));
}

static descriptor tensor(int id, cudnnDataType_t type, int64_t n, int64_t c, int64_t h, int64_t w)
{
    descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t dim[4] = {n, c, h, w}, stride[4] = {c * h * w, 1, c * w, c}, uid = id + 1, align = 16;

    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    note(cudnnBackendFinalize(d));
    return d;
}

static descriptor convolution(int64_t stride, int64_t pad)
{
    descriptor d = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    int64_t dims = 2, strides[2] = {stride, stride}, pads[2] = {pad, pad}, one[2] = {1, 1};
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;

    set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, one);
    set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    set(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    set(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    note(cudnnBackendFinalize(d));
    return d;
}

static descriptor operation(descriptor x, descriptor w, descriptor y, descriptor conv, float alpha,
                            float beta)
{
    descriptor d = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);

    set(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    set(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    set(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    set(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &conv);
    set(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(d, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &beta);
    note(cudnnBackendFinalize(d));
    return d;
}

static descriptor graph_of(descriptor op)
{
    descriptor d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &op);
    note(cudnnBackendFinalize(d));
    return d;
}

static descriptor pack_of(void *x, void *w, void *y, void *workspace)
{
    descriptor d = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t uid[3] = {X + 1, W + 1, Y + 1};
    void *pointer[3] = {x, w, y};

    set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, uid);
    set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointer);
    set(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    note(cudnnBackendFinalize(d));
    return d;
}

/* ---- engines, plans, execution ------------------------------------------------------------------ */

static cudnnHandle_t handle;
static cudaStream_t stream;

/* [n,4,4,2] with 3 filters of 3x3: y is what the arithmetic of one's own says. */
enum { N = 2, H = 4, C = 2, K = 3, NX = N * H * H * C, NW = K * 9 * C, NY = N * H * H * K };

/* A plan by the heuristics' choice number `choice`; NULL: it cannot be finalized. */
static descriptor plan(cudnnDataType_t type, int choice, float alpha, float beta)
{
    descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), config[16], p, graph;
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;

    graph = graph_of(operation(tensor(X, type, N, C, H, H), tensor(W, type, K, C, 3, 3),
                               tensor(Y, type, N, K, H, H), convolution(1, 1), alpha, beta));
    note(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph));
    note(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    note(cudnnBackendFinalize(heuristics));
    for (int i = 0; i < 16; i++)
        config[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    note(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  16, &count, config));
    CHECK(status == CUDNN_STATUS_SUCCESS && choice < count, "status %d, %lld choices", (int)status,
          (long long)count);
    p = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    note(cudnnBackendSetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
    note(cudnnBackendSetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  1, &config[choice]));
    return cudnnBackendFinalize(p) == CUDNN_STATUS_SUCCESS ? p : NULL;
}

/* Choices that mode A has for f32, in its order. */
enum { COMPILED, UNSTEADY, HUGE_WORKSPACE, TENSOR_CORE, DOWN_CONVERT, EXACT };

static int64_t workspace_of(descriptor p)
{
    int64_t bytes = -1, count;

    note(cudnnBackendGetAttribute(p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                  &bytes));
    return bytes;
}

static float host_x[NX], host_w[NW], host_y[NY];
static float *dev_x, *dev_w, *dev_y;
static char *dev_ws;

static void upload(void *to, const void *from, size_t bytes)
{
    CHECK(!cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "upload");
}

static void prepare(void)
{
    for (int i = 0; i < NX; i++)
        host_x[i] = 1 + (float)i / 4096; /* more than TF32's 10 bits */
    for (int i = 0; i < NW; i++)
        host_w[i] = (float)(i % 7) - 3;
    for (int i = 0; i < NY; i++)
        host_y[i] = (float)i;
    upload(dev_x, host_x, sizeof host_x);
    upload(dev_w, host_w, sizeof host_w);
    upload(dev_y, host_y, sizeof host_y);
}

static double expected(int n, int p, int q, int k)
{
    double sum = 0;

    for (int r = 0; r < 3; r++)
        for (int s = 0; s < 3; s++)
            for (int c = 0; c < C; c++) {
                int h = p + r - 1, w = q + s - 1;

                if (h >= 0 && h < H && w >= 0 && w < H)
                    sum +=
                        (double)host_x[((n * H + h) * H + w) * C + c] * host_w[((k * 3 + r) * 3 + s) * C + c];
            }
    return sum;
}

/* Run choice `choice` and give the largest error against 2 * conv + 3 * y. */
static double error_of(int choice)
{
    float y[NY];
    double most = 0;
    descriptor p = plan(CUDNN_DATA_FLOAT, choice, 2, 3);
    cudnnStatus_t s =
        p ? cudnnBackendExecute(handle, p, pack_of(dev_x, dev_w, dev_y, dev_ws)) : CUDNN_STATUS_BAD_PARAM;

    CHECK(s == CUDNN_STATUS_SUCCESS, "choice %d gives %d", choice, (int)s);
    destroy_all(); /* what is queued needs them no more */
    CHECK(!cudaMemcpyAsync(y, dev_y, sizeof y, cudaMemcpyDeviceToHost, stream) &&
              !cudaStreamSynchronize(stream),
          "download");
    for (int i = 0; i < NY; i++) {
        double want = 2 * expected(i / K / H / H, i / K / H % H, i / K % H, i % K) + 3 * (double)host_y[i];

        most = fmax(most, fabs(y[i] - want));
    }
    return most;
}

TEST(an_engine_computes_as_its_notes_say)
{
    double exact, rounded;

    prepare();
    exact = error_of(EXACT);
    prepare();
    rounded = error_of(TENSOR_CORE);
    CHECK(exact < 1e-4, "the exact engine errs by %g", exact);
    CHECK(rounded > 1e-4 && rounded < 1e-1, "TF32 errs by %g", rounded);
}

TEST(an_engine_uses_up_its_workspace)
{
    unsigned char ws[4096] = {0};
    int scribbled = 0;

    prepare();
    upload(dev_ws, ws, sizeof ws);
    error_of(EXACT);
    CHECK(!cudaMemcpyAsync(ws, dev_ws, sizeof ws, cudaMemcpyDeviceToHost, stream) &&
              !cudaStreamSynchronize(stream),
          "download");
    for (size_t i = 0; i < sizeof ws; i++)
        scribbled += ws[i] == 0xff;
    CHECK(scribbled == (int)sizeof ws, "%d bytes", scribbled);
}

TEST(some_engines_cannot_be_had)
{
    int64_t bytes;

    status = CUDNN_STATUS_SUCCESS;
    CHECK(!plan(CUDNN_DATA_FLOAT, COMPILED, 1, 0), "an engine that is compiled at run time");
    CHECK(!plan(CUDNN_DATA_HALF, TENSOR_CORE, 1, 0), "2 channels on an engine for multiples of 8");
    bytes = workspace_of(plan(CUDNN_DATA_FLOAT, HUGE_WORKSPACE, 1, 0));
    CHECK(bytes >> 40, "workspace of only %lld bytes", (long long)bytes);
    destroy_all();
}

TEST(execution_refuses_bad_pointers)
{
    descriptor p;
    cudnnStatus_t s;

    status = CUDNN_STATUS_SUCCESS;
    p = plan(CUDNN_DATA_FLOAT, EXACT, 1, 0);
    s = cudnnBackendExecute(handle, p, pack_of(dev_x, dev_w, dev_y, NULL));
    CHECK(s == CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace gives %d", (int)s);
    s = cudnnBackendExecute(handle, p, pack_of(dev_x + 1, dev_w, dev_y, dev_ws));
    CHECK(s == CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "4 bytes past 16 give %d", (int)s);
    s = cudnnBackendExecute(handle, p, pack_of(dev_x, NULL, dev_y, dev_ws));
    CHECK(s == CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no filters give %d", (int)s);
    destroy_all();
}

/* ---- cuBLASLt ----------------------------------------------------------------------------------- */

TEST(a_product_runs_by_the_algorithm_that_was_chosen_for_it)
{
    enum { M = 3, DEPTH = 5, COLS = 2 };
    cublasLtHandle_t blas = NULL;
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatrixLayout_t a = NULL, b = NULL, d = NULL, other = NULL;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t r[8];
    float host_a[M * DEPTH], host_b[DEPTH * COLS], got[M * COLS], one = 1, none = 0;
    int count = 0, last;
    int32_t t = CUBLAS_OP_T;

    for (int i = 0; i < M * DEPTH; i++)
        host_a[i] = (float)i;
    for (int i = 0; i < DEPTH * COLS; i++)
        host_b[i] = (float)(i * i);
    upload(dev_x, host_a, sizeof host_a);
    upload(dev_w, host_b, sizeof host_b);
    CHECK(!cublasLtCreate(&blas) && !cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
              !cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t) &&
              !cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, DEPTH, M, DEPTH) &&
              !cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, DEPTH, COLS, DEPTH) &&
              !cublasLtMatrixLayoutCreate(&d, CUDA_R_32F, M, COLS, M) &&
              !cublasLtMatrixLayoutCreate(&other, CUDA_R_32F, M, COLS, M + 1) &&
              !cublasLtMatmulPreferenceCreate(&pref),
          "a product is described");
    CHECK(!cublasLtMatmulAlgoGetHeuristic(blas, desc, a, b, d, d, pref, 8, r, &count) && count >= 1, "%d",
          count);
    last = count - 1;
    CHECK(!cublasLtMatmul(blas, desc, &one, dev_x, a, dev_w, b, &none, dev_y, d, dev_y, d, &r[last].algo,
                          NULL, 0, stream),
          "a product");
    CHECK(!cudaMemcpyAsync(got, dev_y, sizeof got, cudaMemcpyDeviceToHost, stream) &&
              !cudaStreamSynchronize(stream),
          "download");
    for (int i = 0; i < M * COLS; i++) {
        float want = 0;

        for (int k = 0; k < DEPTH; k++)
            want += host_a[i % M * DEPTH + k] * host_b[i / M * DEPTH + k];
        CHECK(got[i] == want, "[%d] is %g, not %g", i, (double)got[i], (double)want);
    }
    CHECK(cublasLtMatmul(blas, desc, &one, dev_x, a, dev_w, b, &none, dev_y, other, dev_y, other,
                         &r[last].algo, NULL, 0, stream) == CUBLAS_STATUS_INVALID_VALUE,
          "another product's algorithm");
    CHECK(cublasLtMatmul(blas, desc, &one, dev_x + 4, a, dev_w, b, &none, dev_y, d, dev_y, d, &r[last].algo,
                         NULL, 0, stream) == CUBLAS_STATUS_INVALID_VALUE,
          "16 bytes past the 256 that a preference promises");
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatrixLayoutDestroy(other);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(blas);
}

/* ---- last: it spoils the GPU -------------------------------------------------------------------- */

TEST(execution_on_memory_that_is_not_the_gpus_is_a_fault)
{
    descriptor p;

    status = CUDNN_STATUS_SUCCESS;
    p = plan(CUDNN_DATA_FLOAT, EXACT, 1, 0);
    CHECK(!hvt_double_faults(), "%d faults before", hvt_double_faults());
    cudnnBackendExecute(handle, p, pack_of(dev_x, dev_w, dev_x, dev_ws));
    CHECK(hvt_double_faults() == 1, "y over x: %d faults", hvt_double_faults());
    cudnnBackendExecute(handle, p, pack_of(dev_x, dev_w, dev_y + NY, dev_ws));
    CHECK(hvt_double_faults() == 2, "past the end of y: %d faults", hvt_double_faults());
    destroy_all();
}

int main(void)
{
    CHECK(!cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) &&
              !cudaMalloc((void **)&dev_x, sizeof host_x) && !cudaMalloc((void **)&dev_w, sizeof host_w) &&
              !cudaMalloc((void **)&dev_y, sizeof host_y) && !cudaMalloc((void **)&dev_ws, 65536) &&
              !cudnnCreate(&handle) && !cudnnSetStream(handle, stream),
          "a GPU");
    RUN(an_engine_computes_as_its_notes_say);
    RUN(an_engine_uses_up_its_workspace);
    RUN(some_engines_cannot_be_had);
    RUN(execution_refuses_bad_pointers);
    RUN(a_product_runs_by_the_algorithm_that_was_chosen_for_it);
    RUN(execution_on_memory_that_is_not_the_gpus_is_a_fault);
    cudnnDestroy(handle);
    return check_done();
}
