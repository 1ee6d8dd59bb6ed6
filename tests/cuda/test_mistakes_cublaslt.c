/*
 * What cuBLASLt refuses: each mistake is made once, in a product that is otherwise valid. Descriptors are
 * made without a GPU; the product needs one, without which only the double is tested.
 *
 * Sources: the comments of cublasLt.h, and the cuBLAS documentation, "Using the cuBLASLt API", by function.
 * "itself" is the answer of cuBLASLt 13.1 and 13.4 where both are silent.
 */
#include "mistakes.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#ifdef HVT_REAL
#define CALLS(X)                                                                                             \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtGetVersion)                                                                                    \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)
#define X(name) static __typeof__(name) *real_##name;
CALLS(X)
#undef X
#define cublasLtCreate                       real_cublasLtCreate
#define cublasLtDestroy                      real_cublasLtDestroy
#define cublasLtGetVersion                   real_cublasLtGetVersion
#define cublasLtMatmul                       real_cublasLtMatmul
#define cublasLtMatmulAlgoGetHeuristic       real_cublasLtMatmulAlgoGetHeuristic
#define cublasLtMatmulDescCreate             real_cublasLtMatmulDescCreate
#define cublasLtMatmulDescDestroy            real_cublasLtMatmulDescDestroy
#define cublasLtMatmulDescSetAttribute       real_cublasLtMatmulDescSetAttribute
#define cublasLtMatmulPreferenceCreate       real_cublasLtMatmulPreferenceCreate
#define cublasLtMatmulPreferenceDestroy      real_cublasLtMatmulPreferenceDestroy
#define cublasLtMatmulPreferenceSetAttribute real_cublasLtMatmulPreferenceSetAttribute
#define cublasLtMatrixLayoutCreate           real_cublasLtMatrixLayoutCreate
#define cublasLtMatrixLayoutDestroy          real_cublasLtMatrixLayoutDestroy
#endif

#define OK        CUBLAS_STATUS_SUCCESS
#define INVALID   CUBLAS_STATUS_INVALID_VALUE
#define NO_HANDLE CUBLAS_STATUS_NOT_INITIALIZED
#define NOT       CUBLAS_STATUS_NOT_SUPPORTED

static cublasLtHandle_t handle; /* NULL: no GPU */
static cudaStream_t stream;
static char *memory; /* of the GPU */
enum { PART = 4096 };

/* ---- descriptors -------------------------------------------------------------------------------- */

static int product_told(cublasLtMatmulDescAttributes_t attr, const void *value, size_t bytes)
{
    cublasLtMatmulDesc_t d = NULL;
    cublasStatus_t s = cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    CHECK(s == OK, "%d", (int)s);
    s = cublasLtMatmulDescSetAttribute(d, attr, value, bytes);
    cublasLtMatmulDescDestroy(d);
    return (int)s;
}

static int preference_told(cublasLtMatmulPreferenceAttributes_t attr, const void *value, size_t bytes)
{
    cublasLtMatmulPreference_t p = NULL;
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(&p);

    CHECK(s == OK, "%d", (int)s);
    s = cublasLtMatmulPreferenceSetAttribute(p, attr, value, bytes);
    cublasLtMatmulPreferenceDestroy(p);
    return (int)s;
}

TEST(every_descriptor_refuses_what_does_not_fit)
{
    const char *const product = "cublasLtMatmulDescSetAttribute(): buf, sizeInBytes",
                      *const preference = "cublasLtMatmulPreferenceSetAttribute(): buf, sizeInBytes";
    const uint64_t value = 0;

    refused("a transposition without value", product, INVALID,
            product_told(CUBLASLT_MATMUL_DESC_TRANSA, NULL, sizeof(int32_t)));
    refused("a transposition of 8 bytes", product, INVALID,
            product_told(CUBLASLT_MATMUL_DESC_TRANSB, &value, sizeof(int64_t)));
    refused("a transposition of no bytes", product, INVALID,
            product_told(CUBLASLT_MATMUL_DESC_TRANSA, &value, 0));
    refused("a product's attribute that is none", "itself", INVALID,
            product_told((cublasLtMatmulDescAttributes_t)999, &value, sizeof(int32_t)));
    refused("a workspace without value", preference, INVALID,
            preference_told(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, NULL, sizeof(uint64_t)));
    refused("a workspace of 4 bytes", preference, INVALID,
            preference_told(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &value, sizeof(uint32_t)));
    refused("an alignment of 8 bytes", preference, INVALID,
            preference_told(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &value, sizeof(uint64_t)));
    refused("a mask of schemes of 8 bytes", preference, INVALID,
            preference_told(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &value, sizeof(uint64_t)));
    refused("a preference's attribute that is none", "itself", INVALID,
            preference_told((cublasLtMatmulPreferenceAttributes_t)999, &value, sizeof(uint64_t)));
    refused("the end of no handle", "itself", INVALID, (int)cublasLtDestroy(NULL));
}

/* cublasLtMatmulDescCreate and cublasLtMatrixLayoutCreate: no status but ALLOC_FAILED. What is wrong shows
 * later. */
TEST(descriptors_are_made_of_what_no_product_takes)
{
    cublasLtMatmulDesc_t d = NULL;
    cublasLtMatrixLayout_t m = NULL;
    const int32_t op = 77;
    cublasStatus_t s = cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_8I);

    CHECK(s == OK, "%d", (int)s);
    s = cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
    CHECK(s == OK, "%d", (int)s);
    s = cublasLtMatrixLayoutCreate(&m, CUDA_R_32F, 4, 4, 3);
    CHECK(s == OK, "%d", (int)s);
    cublasLtMatrixLayoutDestroy(m);
    cublasLtMatmulDescDestroy(d);
}

/* ---- one product, with one mistake -------------------------------------------------------------- */

/* D[m,n] = A'[m,k] B[k,n], f32; what a mistake changes of it */
typedef struct product {
    cublasComputeType_t compute;
    cudaDataType_t scale, type[3]; /* A, B, D */
    int32_t trans[2];
    uint64_t rows[3], cols[3];
    int64_t ld[3];
    int answers;
    bool no_handle, no_alpha, no_beta, other_d, short_workspace;
    size_t skew_data, skew_workspace;
} product;

static const product sound = {.compute = CUBLAS_COMPUTE_32F,
                              .scale = CUDA_R_32F,
                              .type = {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
                              .trans = {CUBLAS_OP_T, CUBLAS_OP_N},
                              .rows = {8, 8, 4},
                              .cols = {4, 12, 4 * 3},
                              .ld = {8, 8, 4},
                              .answers = 4};

enum step { HEURISTIC, PRODUCT };

/* The status of the heuristics, or of the product by their first answer that can be had. */
static int multiply(const product *p, enum step step)
{
    cublasLtMatmulDesc_t desc = NULL;
    cublasLtMatrixLayout_t m[3] = {NULL}, other = NULL;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t r[8];
    const uint64_t room = 1 << 20;
    const float one = 1, none = 0;
    int count = 0, i = 0;
    cublasStatus_t s;
    size_t workspace;

    cublasLtMatmulDescCreate(&desc, p->compute, p->scale);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &p->trans[0], sizeof(int32_t));
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &p->trans[1], sizeof(int32_t));
    for (int k = 0; k < 3; k++)
        cublasLtMatrixLayoutCreate(&m[k], p->type[k], p->rows[k], p->cols[k], p->ld[k]);
    cublasLtMatrixLayoutCreate(&other, CUDA_R_32F, 4, 12, 5);
    cublasLtMatmulPreferenceCreate(&pref);
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    s = cublasLtMatmulAlgoGetHeuristic(p->no_handle ? NULL : handle, desc, m[0], m[1], m[2], m[2], pref,
                                       p->answers, r, &count);
    while (s == OK && i < count && r[i].state != OK)
        i++;
    if (step == PRODUCT && (s == OK || p->no_handle)) {
        workspace = i < count ? r[i].workspaceSize : 0;
        if (p->short_workspace)
            for (i = 0; i < count && (r[i].state != OK || !r[i].workspaceSize); i++)
                ;
        CHECK(i < count || p->no_handle, "no answer of %d", count);
        s = cublasLtMatmul(p->no_handle ? NULL : handle, desc, p->no_alpha ? NULL : &one,
                           memory + p->skew_data, m[0], memory + PART, m[1], p->no_beta ? NULL : &none,
                           memory + (2 * PART), p->other_d ? other : m[2], memory + (2 * PART),
                           p->other_d ? other : m[2], i < count ? &r[i].algo : NULL,
                           memory + (3 * PART) + p->skew_workspace,
                           p->short_workspace ? r[i].workspaceSize - 1 : workspace, stream);
    }
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatrixLayoutDestroy(other);
    for (int k = 0; k < 3; k++)
        cublasLtMatrixLayoutDestroy(m[k]);
    cublasLtMatmulDescDestroy(desc);
    return (int)s;
}

#define MISTAKE(what, source, asked, want, step, change)                                                     \
    do {                                                                                                     \
        product p = sound;                                                                                   \
        p.change;                                                                                            \
        if (can_ask(asked))                                                                                  \
            refused(what, source, want, multiply(&p, step));                                                 \
    } while (0)

TEST(every_product_refuses_what_does_not_fit)
{
    const char *const heuristic = "cublasLtMatmulAlgoGetHeuristic()",
                      *const run = "cublasLtMatmul(): INVALID_VALUE",
                      *const types = "cublasLtMatmul(): table of types",
                      *const layout = "CUBLASLT_MATRIX_LAYOUT_LD: memory that does not overlap";

    if (handle) {
        int s = multiply(&sound, PRODUCT);

        CHECK(s == OK && cudaStreamSynchronize(stream) == cudaSuccess, "a sound product gives %d", s);
    }
    MISTAKE("heuristics without handle", "itself", ANYWHERE, NO_HANDLE, HEURISTIC, no_handle = true);
    MISTAKE("heuristics for no answer", heuristic, ON_A_GPU, INVALID, HEURISTIC, answers = 0);
    MISTAKE("sums of a type that is none", types, ON_A_GPU, NOT, HEURISTIC, compute = CUBLAS_COMPUTE_32I);
    MISTAKE("alpha in 16 bits of sums in 32", types, ON_A_GPU, NOT, HEURISTIC, scale = CUDA_R_16F);
    MISTAKE("f16 times bf16", types, ON_A_GPU, NOT, HEURISTIC, type[1] = CUDA_R_16BF);
    MISTAKE("f32 into bf16", types, ON_A_GPU, NOT, HEURISTIC, type[2] = CUDA_R_16BF);
    MISTAKE("TF32 of 16 bits", types, UNCHECKED, NOT, HEURISTIC, compute = CUBLAS_COMPUTE_32F_FAST_TF32;
            p.type[0] = p.type[1] = p.type[2] = CUDA_R_16F);
    MISTAKE("columns closer than they are long", layout, ON_A_GPU, INVALID, HEURISTIC, ld[0] = 7);
    MISTAKE("columns at a negative distance", layout, ON_A_GPU, INVALID, HEURISTIC, ld[2] = -4);
    MISTAKE("no rows", layout, ON_A_GPU, INVALID, HEURISTIC, rows[2] = 0);
    MISTAKE("sums of 8 and of 7", run, ON_A_GPU, INVALID, HEURISTIC, rows[1] = 7);
    MISTAKE("a result of other columns", run, ON_A_GPU, INVALID, HEURISTIC, cols[2] = 11);
    MISTAKE("a transposition that is none", run, ON_A_GPU, INVALID, HEURISTIC, trans[0] = 77);
    MISTAKE("a product without handle", "cublasLtMatmul(): NOT_INITIALIZED", UNCHECKED, NO_HANDLE, PRODUCT,
            no_handle = true);
    MISTAKE("a product without alpha", run, ON_A_GPU, INVALID, PRODUCT, no_alpha = true);
    MISTAKE("a product without beta", run, ON_A_GPU, INVALID, PRODUCT, no_beta = true);
    MISTAKE("another product's algorithm", run, UNCHECKED, INVALID, PRODUCT, other_d = true);
    MISTAKE("a workspace that is a byte short", run, UNCHECKED, INVALID, PRODUCT, short_workspace = true);
    MISTAKE("a workspace 16 bytes past 256", "cublasLtMatmul(): workspace aligned to 256", UNCHECKED, INVALID,
            PRODUCT, skew_workspace = 16);
    MISTAKE("A 16 bytes past 256", "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: 256", UNCHECKED, INVALID,
            PRODUCT, skew_data = 16);
}

TEST(a_handle_needs_a_gpu)
{
    cublasLtHandle_t h = NULL;

#ifdef HVT_REAL
    if (on_a_gpu)
        SKIP("there is one");
#else
    hvt_double_gpus(0, 0);
#endif
    refused("a handle where no GPU is", "cublasLtCreate(): NOT_INITIALIZED", NO_HANDLE,
            (int)cublasLtCreate(&h));
#ifndef HVT_REAL
    hvt_double_gpus(0, 1);
#endif
}

int main(int argc, char **argv)
{
#ifdef HVT_REAL
    void *library = open_library(argc, argv, HVT_LIBCUBLASLT);
    int gpus = 0;

    if (!library)
        return check_done();
#define X(name) *(void **)&real_##name = dlsym(library, #name);
    CALLS(X)
#undef X
    printf("cuBLASLt %zu\n", cublasLtGetVersion());
    on_a_gpu = cudaGetDeviceCount(&gpus) == cudaSuccess && gpus;
#else
    (void)argc, (void)argv;
#endif
    if (on_a_gpu && (cublasLtCreate(&handle) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
                     cudaMalloc((void **)&memory, 4 << 20) || cudaMemset(memory, 0, 4 << 20)))
        return 1;
    RUN(every_descriptor_refuses_what_does_not_fit);
    RUN(descriptors_are_made_of_what_no_product_takes);
    RUN(every_product_refuses_what_does_not_fit);
    RUN(a_handle_needs_a_gpu);
    if (handle)
        cublasLtDestroy(handle);
    return check_done();
}
