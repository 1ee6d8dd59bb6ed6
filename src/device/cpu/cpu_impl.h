/*
 * cpu_impl.h - internals of the cpu device: threads, the table of instruction sets, and interfaces of the
 * code that is compiled once per set.
 *
 * Included by src/device/cpu. Nothing else.
 */
#ifndef HVT_CPU_IMPL_H
#define HVT_CPU_IMPL_H

#include "device_impl.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL    _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL    _Pragma("GCC unroll 32")
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif

/* For the set HVT_ISA that is being compiled: the name of a table, and the header of its vectors. */
#define HVT_NAME_OF(isa, what) hvt__##what##_##isa
#define HVT_NAME(isa, what)    HVT_NAME_OF(isa, what)
#define HVT_OF_ISA(what)       HVT_NAME(HVT_ISA, what)
#define HVT_TEXT_OF(text)      #text
#define HVT_TEXT(text)         HVT_TEXT_OF(text)
#define HVT_HEADER_OF(isa)     HVT_TEXT_OF(vec_##isa.h)
#define HVT_HEADER(isa)        HVT_HEADER_OF(isa)
#define HVT_VECTORS            HVT_HEADER(HVT_ISA)

/* ---- parallel.c: parallel_for returns when all jobs are done; the caller works too ---- */
typedef struct hvt_thread_pool hvt_thread_pool;

hvt_status hvt__thread_pool_open(int threads, const int *cpus, int ncpus, bool yield,
                                 hvt_thread_pool **ret_pool);
void hvt__thread_pool_pin_caller(hvt_thread_pool *pool, int cpu); /* until the pool is closed */
void hvt__thread_pool_enter(const hvt_thread_pool *pool);         /* pins the calling thread */
void hvt__thread_pool_close(hvt_thread_pool **pool);
int hvt__thread_pool_size(const hvt_thread_pool *pool);
void hvt__parallel_for(hvt_thread_pool *pool, int jobs, hvt_job_fn *fn, void *ctx);

/* Non-temporal stores are not ordered by the thread pool's atomics. */
static inline void hvt__fence(void)
{
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* ---- convolution kernels: kernels/gemm_tmpl.c, gemm_amx.c ---- */

/* Prefetch to the L2 cache, which can wait for more lines at a time than the L1. Sequential data is
 * prefetched about HVT_FAR bytes ahead. */
#define HVT_FAR (32 << 10)
static inline void hvt__prefetch(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/*
 * The microkernel's problem, a batch-reduce GEMM as oneDNN calls it: C[rows x nc] (+)= sum over entries e of
 * A[e.a] * B[e.b], each product with inner dimension k = len. C is kept in registers until the end.
 *
 * A and B consist of k-groups of 4 bytes: a float or, if the set has such instructions, two bf16 adjacent
 * along k (oneDNN's VNNI layout, here "vnni2": elements 2i and 2i + 1 in group i). len, strides and pitches
 * count k-groups. B is read in whole vectors.
 */
typedef struct hvt_entry {
    int a, b;
} hvt_entry;

/* Prefetch during a tile: at each entry `bytes` of pixel[e.b], if e.b < count. */
typedef struct hvt_prefetch {
    const char *from;
    const int *pixel; /* NULL: the pixel is e.b itself */
    long step;        /* bytes between pixels */
    int count;
    size_t bytes;
} hvt_prefetch;

typedef struct hvt_tile {
    const hvt_entry *e;
    int entries, len;
    int rows, high, depth; /* rows to store; the arguments of begin */
    const float *a;
    long a_entry, a_row; /* stride per entry; per row (gemm_nn) or per k-group (gemm_tn) */
    const float *b;
    long b_entry, b_row; /* stride per entry; per k-group */
    float *c;
    long c_row;
    int nc; /* columns to store */
    bool add;
    bool stream; /* store C with non-temporal stores; C is aligned to vectors */
    /* two_pixels: numbers of entries for the first target only, and for both. The remaining entries are for
     * the second target, whose B is b_next k-groups and whose C is c_next elements further on. three_taps
     * (gemm_tn): numbers of entries for the first two taps, and for all three; the remaining entries are for
     * the last two. */
    int own, shared;
    long b_next, c_next;
    long ahead; /* gemm_nn: distance from the last entry's rows to what it prefetches; 0: nothing */
    long a_ahead, b_ahead; /* gemm_tn: distance from each row read to the row it prefetches; 0: none */
    hvt_prefetch prefetch; /* gemm_tn */
    bool c_bf16; /* C is bf16, and c_row counts bf16 elements; gemm_nn of kernels with stores_bf16 */
} hvt_tile;

typedef void hvt_kernel(const hvt_tile *t);

/* Number of tiles of at most `most` rows that cover `count`; tiles are of even size, ceil(count / tiles). */
static inline int tile_count(int count, int most)
{
    return (count + most - 1) / most;
}

/* Packs bf16 into vnni2: [n][c], rows `ld` elements apart, become `len` rows of c k-groups, (row 0, row 1),
 * (row 2, row 3), ...; rows past n are zero. */
typedef struct hvt_vnni2 {
    const uint16_t *x;
    long ld, prefetch; /* x + prefetch is packed next and prefetched; 0: unknown */
    int n, c;
    int len, depth;
    int pitch; /* k-groups between rows of a panel */
    long next; /* k-groups between panels */
} hvt_vnni2;

typedef void hvt_pack_fn(const hvt_vnni2 *p, int w, float *out);

typedef struct hvt_conv_kernels {
    int vl;      /* k-groups in a vector; a tile is one or two vectors wide */
    int rows[3]; /* maximum rows of tiles one and two vectors wide, and of a three_taps tile, or 0 */
    int pitch;   /* k-groups per inner step of gemm_tn's packed A panels: >= rows[0], in whole vectors */
    bool shared_panels; /* an A panel has `pitch` channels and serves several tiles; else it has as many
                           channels as a tile */
    int depth; /* maximum k-groups that one instruction consumes; the inner dimension is a multiple of the
                  number consumed */
    /* [vectors-1][rows-1]. gemm_nn: rows of A are a_row apart, one k-group per inner step. gemm_tn: A is
     * transposed, its rows adjacent and a_row apart per inner step. */
    hvt_kernel *const *gemm_nn[2], *const *gemm_tn[3];
    hvt_kernel *const *two_pixels; /* gemm_nn for two target pixels with one vector of columns each, at most
                                      rows[1] rows; or NULL */
    /* packs weights for backward data: transposes [c][32], c <= 32, with k columns used, to [k][32] */
    void (*pack_weights)(const float *w, int c, int k, float *out, bool stream);
    /* For vnni2, else NULL: pack gemm_tn's A in panels of w columns, B and weights in panels of 32, each
     * [len][32]. typed_tmpl.c packs floats. */
    hvt_pack_fn *pack_a, *pack_b;
    /* For sets with tile registers that need configuring, else NULL: begin configures them for tiles of up to
     * `high` rows, end releases them. Tiles of gemm_nn then have exactly `high` rows and are written whole to
     * a buffer with rows of 32. */
    void (*begin)(int high, int depth);
    void (*end)(void);
    bool stores_bf16; /* gemm_nn can store C as bf16 */
} hvt_conv_kernels;

typedef struct hvt_elementwise hvt_elementwise; /* see elementwise.h */

/* ---- isa.c: the table, weakest first ---- */

/* A set's requirements, as data: a function compiled for the set might itself use the instructions it tests
 * for. */
typedef struct hvt_needs {
    /* x86: CPUID bits of leaves 1, 7 and 7 subleaf 1; XCR0 state components that the system must save; the
     * component for which permission must be requested (0: none) */
    uint32_t ecx1, ebx7, edx7, eax7_1, xcr0;
    int ask;
} hvt_needs;

typedef struct hvt_isa {
    const char *name;
    hvt_needs needs;
    const char *vendor; /* `auto` chooses it only on processors of this CPUID vendor; NULL: on all */
    const hvt_conv_kernels *conv;
    const hvt_conv_kernels *bf16; /* vnni2 kernels; NULL: bf16 is widened to f32, as f16 always is */
    const hvt_elementwise *el;
} hvt_isa;

extern const hvt_isa *const hvt__isas[];
extern const int hvt__isa_count;

/* Scratch of a matrix op between its passes. Rows are split into at most HVT_PARTS parts, fewer with many
 * channels, depending only on the shape. */
enum { HVT_PARTS = 256, HVT_CHANNELS = 1 << 16, HVT_PART_FLOATS = 1 << 18 };
typedef struct hvt_scratch {
    float part[2][HVT_PART_FLOATS]; /* [parts][c] */
    double sum[2 * HVT_CHANNELS];
    float consts[3][HVT_CHANNELS];
} hvt_scratch;

typedef struct hvt_cpu {
    hvt_thread_pool *pool;
    const hvt_isa *isa;
    hvt_scratch *scratch;
} hvt_cpu;

static inline const hvt_cpu *hvt__cpu(const hvt_device *d)
{
    return d->state;
}

/* ---- entries of hvt_device_cpu ---- */
#define DECLARE(entry, op) HVT__OP_TYPE(entry) hvt__##op##_cpu;
HVT__OPS(DECLARE)
HVT__GENERAL_OPS(DECLARE)
DECLARE(resample.forward, resample_forward)
DECLARE(resample.backward, resample_backward)
DECLARE(matmul.room, matmul_room)
DECLARE(matmul.run, matmul_run)
#undef DECLARE
HVT__OP_TYPE(conv.permute) hvt__conv_permute_cpu;
HVT__OP_TYPE(conv.set_norm) hvt__conv_set_norm_cpu;
HVT__OP_TYPE(augment) hvt__augment_cpu;

#endif /* HVT_CPU_IMPL_H */
