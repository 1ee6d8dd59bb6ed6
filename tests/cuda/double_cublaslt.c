/*
 * The double of cuBLASLt: products of column-major matrices, as far as linear_cublas.c uses them. It is
 * compiled against cublasLt.h and linked in its place.
 *
 * A mistake returns cuBLASLt's code (test_mistakes_cublaslt.c), and a line on stderr names it: descriptors
 * and layouts accept any value, and the product refuses it. Stricter than the library: addresses must be as
 * aligned as the preference said when the algorithm was chosen (256 bytes by default), an algorithm runs only
 * the product for which it was chosen, C is D, and nothing else may overlap D or the workspace, which is
 * filled with NaNs.
 *
 * The heuristics' first answer splits the sum if there is workspace for that and the preference's mask of
 * reduction schemes allows it, so it rounds differently from the next; one answer has a state that says that
 * it is unavailable.
 */
#include "double.h"

#include "device/half.h"

#include <cublasLt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct matrix {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
} matrix;

typedef struct product {
    cublasComputeType_t compute;
    cudaDataType scale;
    int32_t trans[2]; /* cublasOperation_t of A and B */
    matrix a, b, d;
} product;

typedef struct preference {
    uint64_t workspace;
    uint32_t schemes, alignment[4]; /* of A, B, C, D */
} preference;

/* What is kept in a cublasLtMatmulAlgo_t. */
typedef struct algorithm {
    uint32_t of; /* a checksum of the product */
    uint32_t splits;
    uint64_t workspace;
    uint32_t alignment[4];
} algorithm;
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits into cuBLASLt's");

typedef struct job {
    product p;
    algorithm algo;
    float alpha, beta;
    const void *a, *b;
    void *d, *workspace;
} job;

struct cublasLtContext {
    int unused;
};

enum { SPLITS = 2, SPLIT_WORKSPACE = 65536 };

__attribute__((format(printf, 2, 3))) static cublasStatus_t refuse(cublasStatus_t code, const char *fmt, ...)
{
    va_list args;

    fputs("double of cuBLASLt: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return code;
}

#define REQUIRE(cond, code, ...)                                                                             \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return refuse(CUBLAS_STATUS_##code, __VA_ARGS__);                                                \
    } while (0)
#define ENTER(call)                                                                                          \
    do {                                                                                                     \
        int e_ = hvt_double_enter(call);                                                                     \
        if (e_)                                                                                              \
            return (cublasStatus_t)e_;                                                                       \
    } while (0)

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_ALLOC_FAILED  ? "CUBLAS_STATUS_ALLOC_FAILED"
                                                   : "CUBLAS_STATUS_NOT_INITIALIZED";
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "the double refused; stderr says why";
}

/* ---- handles, descriptors ----------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int count = 0;

    ENTER("cublasLtCreate");
    REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess && count, NOT_INITIALIZED, "no GPU for a handle");
    REQUIRE(handle, INVALID_VALUE, "no place for a handle");
    *handle = calloc(1, sizeof **handle);
    REQUIRE(*handle, ALLOC_FAILED, "no memory for a handle");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    REQUIRE(handle, INVALID_VALUE, "no handle");
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    product *p;

    ENTER("cublasLtMatmulDescCreate");
    p = calloc(1, sizeof *p);
    REQUIRE(p, ALLOC_FAILED, "no memory for a descriptor");
    p->compute = compute;
    p->scale = scale;
    *ret = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr,
                                              const void *buf, size_t bytes)
{
    product *p = (void *)desc;
    int32_t op;

    ENTER("cublasLtMatmulDescSetAttribute");
    REQUIRE(p && buf, INVALID_VALUE, "no descriptor or no value");
    REQUIRE(attr == CUBLASLT_MATMUL_DESC_TRANSA || attr == CUBLASLT_MATMUL_DESC_TRANSB, INVALID_VALUE,
            "the double has no attribute %d of a product", (int)attr);
    REQUIRE(bytes == sizeof op, INVALID_VALUE, "attribute %d has %zu bytes, not %zu", (int)attr, sizeof op,
            bytes);
    memcpy(&op, buf, sizeof op);
    p->trans[attr == CUBLASLT_MATMUL_DESC_TRANSB] = op;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    matrix *m;

    ENTER("cublasLtMatrixLayoutCreate");
    m = calloc(1, sizeof *m);
    REQUIRE(m, ALLOC_FAILED, "no memory for a layout");
    *m = (matrix){type, rows, cols, ld};
    *ret = (void *)m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    preference *p;

    ENTER("cublasLtMatmulPreferenceCreate");
    p = calloc(1, sizeof *p);
    REQUIRE(p, ALLOC_FAILED, "no memory for a preference");
    *p = (preference){0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    *ret = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    free(pref);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t bytes)
{
    preference *p = (void *)pref;
    void *at;
    size_t size = sizeof(uint32_t);

    ENTER("cublasLtMatmulPreferenceSetAttribute");
    REQUIRE(p && buf, INVALID_VALUE, "no preference or no value");
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        at = &p->workspace;
        size = sizeof p->workspace;
        break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        at = &p->schemes;
        break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        at = &p->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
        break;
    default:
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the double has no attribute %d of a preference",
                      (int)attr);
    }
    REQUIRE(bytes == size, INVALID_VALUE, "attribute %d has %zu bytes, not %zu", (int)attr, size, bytes);
    memcpy(at, buf, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- choosing ----------------------------------------------------------------------------------- */

static size_t element(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static cublasStatus_t check_layout(const matrix *m)
{
    REQUIRE(m->rows && m->cols && m->ld >= (int64_t)m->rows, INVALID_VALUE,
            "%llu x %llu with columns %lld apart", (unsigned long long)m->rows, (unsigned long long)m->cols,
            (long long)m->ld);
    REQUIRE(m->type == CUDA_R_32F || m->type == CUDA_R_16F || m->type == CUDA_R_16BF, NOT_SUPPORTED,
            "data type %d", (int)m->type);
    return CUBLAS_STATUS_SUCCESS;
}

/* The document's table of types, as far as the double goes: f32 for alpha, beta and sums; TF32 is of f32
 * alone. */
static cublasStatus_t check_types(const product *p, const matrix *a, const matrix *b, const matrix *d)
{
    REQUIRE(p->compute == CUBLAS_COMPUTE_32F || p->compute == CUBLAS_COMPUTE_32F_FAST_TF32, NOT_SUPPORTED,
            "compute type %d", (int)p->compute);
    REQUIRE(p->scale == CUDA_R_32F, NOT_SUPPORTED, "alpha and beta of type %d", (int)p->scale);
    REQUIRE(a->type == b->type && (d->type == a->type || d->type == CUDA_R_32F), NOT_SUPPORTED,
            "types %d and %d do not give %d", (int)a->type, (int)b->type, (int)d->type);
    REQUIRE(p->compute == CUBLAS_COMPUTE_32F || a->type == CUDA_R_32F, NOT_SUPPORTED, "TF32 of type %d",
            (int)a->type);
    return CUBLAS_STATUS_SUCCESS;
}

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        cublasStatus_t s_ = (call);                                                                          \
        if (s_ != CUBLAS_STATUS_SUCCESS)                                                                     \
            return s_;                                                                                       \
    } while (0)

/* Fill in the matrices of p and check that they can be multiplied. */
static cublasStatus_t complete(product *p, const matrix *a, const matrix *b, const matrix *c, const matrix *d)
{
    const matrix *const all[] = {a, b, c, d};
    uint64_t m, k, k2, n;

    REQUIRE(a && b && c && d, INVALID_VALUE, "a layout is missing");
    for (int i = 0; i < 4; i++)
        TRY(check_layout(all[i]));
    for (int i = 0; i < 2; i++)
        REQUIRE(p->trans[i] == CUBLAS_OP_N || p->trans[i] == CUBLAS_OP_T, INVALID_VALUE,
                "%d is neither N nor T", p->trans[i]);
    m = p->trans[0] == CUBLAS_OP_N ? a->rows : a->cols;
    k = p->trans[0] == CUBLAS_OP_N ? a->cols : a->rows;
    k2 = p->trans[1] == CUBLAS_OP_N ? b->rows : b->cols;
    n = p->trans[1] == CUBLAS_OP_N ? b->cols : b->rows;
    REQUIRE(k == k2 && d->rows == m && d->cols == n, INVALID_VALUE,
            "[%llu,%llu] x [%llu,%llu] does not give [%llu,%llu]", (unsigned long long)m,
            (unsigned long long)k, (unsigned long long)k2, (unsigned long long)n, (unsigned long long)d->rows,
            (unsigned long long)d->cols);
    REQUIRE(!memcmp(c, d, sizeof *c), INVALID_VALUE, "C and D have different layouts");
    TRY(check_types(p, a, b, d));
    p->a = *a;
    p->b = *b;
    p->d = *d;
    return CUBLAS_STATUS_SUCCESS;
}

/* FNV-1a over the fields, not over the bytes between them. */
static uint32_t checksum(const product *p)
{
    const matrix *const m[] = {&p->a, &p->b, &p->d};
    uint64_t word[15] = {(uint64_t)p->compute, (uint64_t)p->trans[0], (uint64_t)p->trans[1]};
    uint32_t hash = 2166136261u;

    for (int i = 0; i < 3; i++)
        memcpy(&word[3 + 4 * i],
               (uint64_t[4]){(uint64_t)m[i]->type, m[i]->rows, m[i]->cols, (uint64_t)m[i]->ld},
               4 * sizeof *word);
    for (size_t i = 0; i < sizeof word; i++)
        hash = (hash ^ ((unsigned char *)word)[i]) * 16777619u;
    return hash;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t pref, int most,
                                              cublasLtMatmulHeuristicResult_t results[], int *ret_count)
{
    product p;
    const preference *wish = (void *)pref;
    algorithm algo = {0};
    int n = 0;

    ENTER("cublasLtMatmulAlgoGetHeuristic");
    REQUIRE(handle, NOT_INITIALIZED, "no handle");
    REQUIRE(desc && wish && results && ret_count && most > 0, INVALID_VALUE,
            "no descriptor, preference or place for results");
    p = *(product *)(void *)desc;
    TRY(complete(&p, (void *)a, (void *)b, (void *)c, (void *)d));
    algo.of = checksum(&p);
    memcpy(algo.alignment, wish->alignment, sizeof algo.alignment);
    for (int i = 0; i < 3 && n < most; i++) {
        cublasLtMatmulHeuristicResult_t *r = &results[n];

        algo.splits = i == 0 ? SPLITS : 1;
        algo.workspace = i == 0 ? SPLIT_WORKSPACE : 0;
        if (i == 0 &&
            (wish->workspace < SPLIT_WORKSPACE || !(wish->schemes & CUBLASLT_REDUCTION_SCHEME_MASK)))
            continue;
        if (i == 1 && n == 0)
            continue; /* the best answer can be had */
        memset(r, 0, sizeof *r);
        memcpy(&r->algo, &algo, sizeof algo);
        r->workspaceSize = algo.workspace;
        r->state = i == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
        n++;
    }
    *ret_count = n;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running ------------------------------------------------------------------------------------ */

static double load(const matrix *m, const void *data, size_t at)
{
    return m->type == CUDA_R_32F   ? ((const float *)data)[at]
           : m->type == CUDA_R_16F ? hvt__from_f16(((const uint16_t *)data)[at])
                                   : hvt__from_bf16(((const uint16_t *)data)[at]);
}

static void store(const matrix *m, void *data, size_t at, float v)
{
    if (m->type == CUDA_R_32F)
        ((float *)data)[at] = v;
    else
        ((uint16_t *)data)[at] = m->type == CUDA_R_16F ? hvt__to_f16(v) : hvt__to_bf16(v);
}

static size_t place(const matrix *m, bool transposed, uint64_t row, uint64_t col)
{
    return (size_t)(transposed ? row * (uint64_t)m->ld + col : col * (uint64_t)m->ld + row);
}

/* row of A times column of B, over the sum's part `part` of `parts`, in double */
static double dot(const job *j, uint64_t row, uint64_t col, uint64_t part, uint64_t parts)
{
    const product *p = &j->p;
    bool ta = p->trans[0] == CUBLAS_OP_T, tb = p->trans[1] == CUBLAS_OP_T;
    uint64_t depth = ta ? p->a.rows : p->a.cols;
    double sum = 0;

    for (uint64_t k = depth * part / parts; k < depth * (part + 1) / parts; k++) {
        double a = load(&p->a, j->a, place(&p->a, ta, row, k));
        double b = load(&p->b, j->b, place(&p->b, tb, k, col));

        if (p->compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
            a = hvt__from_bits((hvt__bits((float)a) + 0x1000) & 0xffffe000);
            b = hvt__from_bits((hvt__bits((float)b) + 0x1000) & 0xffffe000);
        }
        sum += a * b;
    }
    return sum;
}

static void run(void *ctx)
{
    const job *j = ctx;
    const matrix *d = &j->p.d;

    if (j->workspace)
        memset(j->workspace, 0xff, j->algo.workspace);
    for (uint64_t col = 0; col < d->cols; col++)
        for (uint64_t row = 0; row < d->rows; row++) {
            size_t at = place(d, false, row, col);
            float sum = 0;

            for (uint32_t i = 0; i < j->algo.splits; i++)
                sum += (float)dot(j, row, col, i, j->algo.splits);
            store(d, j->d, at, j->alpha * sum + (j->beta != 0 ? j->beta * (float)load(d, j->d, at) : 0));
        }
}

static size_t bytes_of(const matrix *m)
{
    return ((m->cols - 1) * (uint64_t)m->ld + m->rows) * element(m->type);
}

static bool apart(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (const char *)a + a_bytes <= (const char *)b || (const char *)b + b_bytes <= (const char *)a;
}

/* What a GPU does not check, but computes wrongly or dies of. */
static bool is_sound(const job *j)
{
    const void *data[] = {j->a, j->b, j->d};
    const size_t bytes[] = {bytes_of(&j->p.a), bytes_of(&j->p.b), bytes_of(&j->p.d)};

    for (int i = 0; i < 3; i++) {
        if (!hvt_double_need_device("cublasLtMatmul", data[i], bytes[i]))
            return false;
        if ((i < 2 && !apart(data[i], bytes[i], data[2], bytes[2])) ||
            !apart(data[i], bytes[i], j->workspace, j->algo.workspace)) {
            hvt_double_fault("cublasLtMatmul: operand %d overlaps D or the workspace", i);
            return false;
        }
    }
    return !j->algo.workspace ||
           hvt_double_need_device("cublasLtMatmul: workspace", j->workspace, j->algo.workspace);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *ws, size_t ws_bytes,
                              cudaStream_t stream)
{
    const void *data[] = {a, b, c, d};
    job *j, fresh;

    ENTER("cublasLtMatmul");
    REQUIRE(handle, NOT_INITIALIZED, "no handle");
    REQUIRE(desc && alpha && beta && a && b && c && d && algo, INVALID_VALUE,
            "a descriptor, factor, matrix or algorithm is missing");
    fresh =
        (job){.p = *(product *)(void *)desc, .alpha = *(float *)alpha, .beta = *(float *)beta, a, b, d, ws};
    memcpy(&fresh.algo, algo, sizeof fresh.algo);
    TRY(complete(&fresh.p, (void *)la, (void *)lb, (void *)lc, (void *)ld));
    REQUIRE(c == d, NOT_SUPPORTED, "the double writes to C");
    REQUIRE(fresh.algo.of == checksum(&fresh.p), INVALID_VALUE, "the algorithm is that of another product");
    for (int i = 0; i < 4; i++)
        REQUIRE((uintptr_t)data[i] % fresh.algo.alignment[i] == 0, INVALID_VALUE,
                "matrix %d of A, B, C, D is not aligned to the %u bytes that were promised", i,
                (unsigned)fresh.algo.alignment[i]);
    REQUIRE(ws_bytes >= fresh.algo.workspace && (ws || !fresh.algo.workspace), INVALID_VALUE,
            "workspace of %zu bytes at %p, not %llu", ws_bytes, ws, (unsigned long long)fresh.algo.workspace);
    REQUIRE((uintptr_t)ws % 256 == 0, INVALID_VALUE, "the workspace at %p is not aligned to 256 bytes", ws);
    if (!is_sound(&fresh))
        return CUBLAS_STATUS_SUCCESS; /* the fault shows at the next call of the runtime */
    j = malloc(sizeof *j);
    REQUIRE(j, ALLOC_FAILED, "no memory for a launch");
    *j = fresh;
    hvt_double_launch(stream, run, j, free);
    return CUBLAS_STATUS_SUCCESS;
}
