/*
 * cpu_impl.h - inside the cpu device: threads, the table of instruction sets, and what is
 * compiled once per set.
 *
 * Included by src/device/cpu. Nothing else.
 */
#ifndef HVT_CPU_IMPL_H
#define HVT_CPU_IMPL_H

#include "device_impl.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* ---- parallel.c: a pool made once; run() returns when all of 0 .. jobs-1 are done. The caller works too.
 * ---- */
typedef struct hvt_thread_pool hvt_thread_pool;
typedef void hvt_job_fn(void *ctx, int job, int thread); /* thread: 0 .. threads-1, for private scratch */

hvt_status hvt__thread_pool_open(int threads, const int *cpus, int ncpus, bool yield, hvt_thread_pool **ret_pool);
void hvt__thread_pool_pin_caller(hvt_thread_pool *pool, int cpu); /* until it is closed */
void hvt__thread_pool_close(hvt_thread_pool **pool);
int hvt__thread_pool_size(const hvt_thread_pool *pool);
void hvt__parallel_for(hvt_thread_pool *pool, int jobs, hvt_job_fn *fn, void *ctx);

/* ---- kernels of convolution: kern_<isa>.c ---- */

/* Ask for bytes that are read soon. */
static inline void hvt__prefetch(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)p + i);
}

/* One tile: C[rows x nc] (+)= sum over entries e of A[e.a] * B[e.b], inner length len. Everything stays in
 * registers until the end. A and B are words of 4 bytes, floats or, for sets that multiply these, pairs of
 * bf16 along the inner loop, (2i, 2i + 1) in element i; len and strides count words. B is read in whole
 * vectors. */
typedef struct hvt_entry {
    int a, b;
} hvt_entry;

/* What is asked for while a tile is computed: at each entry, `bytes` of pixel[e.b], where e.b < count. */
typedef struct hvt_prefetch {
    const char *from;
    const int *pixel; /* NULL: the pixel is e.b itself */
    long step;        /* bytes from one pixel to the next */
    int count;
    size_t bytes;
} hvt_prefetch;

typedef struct hvt_tile {
    const hvt_entry *e;
    int entries, len;
    int rows, high, depth; /* rows to store; what begin was told */
    const float *a;
    long a_entry, a_row; /* step per entry; per row (gather) or per inner step (wgrad) */
    const float *b;
    long b_entry, b_row; /* step per entry; per inner step */
    float *c;
    long c_row;
    int nc; /* columns that are stored */
    bool add;
    bool stream; /* past the caches; C is aligned to vectors */
    /* twins: entries for the first target alone, for both; the rest is for the second. That has its column of
     * B b_next words on and its C c_next elements on. Three taps in one tile of wgrad: entries for the first
     * two, for all; the rest is for the last two. */
    int own, shared;
    long b_next, c_next;
    hvt_prefetch prefetch; /* wgrad */
    bool c_bf16;       /* C is bf16, c_row counts these: gather, where the set's kernels say so */
} hvt_tile;

typedef void hvt_kernel(const hvt_tile *t);

/* [n][c] bf16, rows `ld` elements apart, to be arranged as `len` rows of c words: (row 0, row 1), (row 2, row
 * 3)
 * ...; rows past n are zero. */
typedef struct hvt_vnni2 {
    const uint16_t *x;
    long ld, prefetch; /* x + ahead is arranged next and asked for; 0: that is not known */
    int n, c;
    int len, depth;
    int pitch; /* words from one row of a panel to the next */
} hvt_vnni2;

typedef void hvt_pack_fn(const hvt_vnni2 *p, int w, float *out);

typedef struct hvt_conv_kernels {
    int vl;      /* words in a vector; a tile is one or two vectors wide */
    int rows[3]; /* most rows of a tile of one, of two vectors; of one vector for each of three taps, or 0 */
    int pitch;   /* words for one inner step in wgrad's packed A panels: >= rows[0], whole vectors */
    bool shared_panels; /* such a panel has `pitch` channels, which several tiles share, not as many as a tile */
    int depth;   /* most words that one instruction takes along the inner loop, which is a multiple of what it
                    does */
    /* [vectors-1][rows-1]; gather: A's rows lie a_row apart, one float per inner step.
     * wgrad: A's rows lie side by side, a_row apart per inner step. */
    hvt_kernel *const *gemm_nn[2], *const *gemm_tn[3];
    hvt_kernel *const
        *two_pixels; /* or NULL: gather's of two targets with a vector of columns each, rows[1] at most */
    /* one tap of one panel of weights, [c][32] of which k columns are filled -> [k][32] in each of the panels
     * along c, `panel` floats apart: for backward data */
    void (*pack_weights)(const float *w, int c, int k, float *out, long panel, bool stream);
    /* Where words are pairs, else NULL: wgrad's A in panels of w columns; B and weights in panels of 32, each
     * [len][32]. Where they are floats, typed.h does that. */
    hvt_pack_fn *pack_a, *pack_b;
    /* Where tiles are set up before use, else NULL: for tiles of up to `high` rows; and given back after it.
     * Gather's tiles then have exactly `high` rows and are written, whole, to a buffer of rows of 32. */
    void (*begin)(int high, int depth);
    void (*end)(void);
    bool stores_bf16; /* gather's tiles may be stored as bf16 */
} hvt_conv_kernels;

/* ---- elementwise.c: one text compiled per set; all ops work on a span that one thread owns ---- */
typedef struct hvt_elementwise hvt_elementwise; /* see elementwise.h */

/* ---- isa.c: the table, weakest first; kern_<isa>.c has the entry ---- */

/* What a set needs, told as data: a function there might use the very instructions that it asks for. */
typedef struct hvt_needs {
    /* x86: bits that CPUID shows in leaves 1, 7 and 7 part 1; registers that the system must save at a task
     * switch; which of these it gives only to those who ask, 0: none */
    uint32_t ecx1, ebx7, edx7, eax7_1, xcr0;
    int ask;
    uint32_t hwcap, hwcap2; /* elsewhere: bits that Linux shows by getauxval */
} hvt_needs;

typedef struct hvt_isa {
    const char *name;
    hvt_needs needs;
    const char *vendor; /* auto takes it only on processors whose CPUID names this vendor; NULL: on all */
    const hvt_conv_kernels *conv;
    const hvt_conv_kernels *bf16; /* of pairs; NULL: bf16 is widened to floats, as f16 always is */
    const hvt_elementwise *el;
} hvt_isa;

extern const hvt_isa *const hvt__isas[];
extern const int hvt__isa_count;

bool hvt__isa_supported(const hvt_isa *isa);

/* What a matrix op keeps between its passes. Parts: the rows are cut into at most HVT_PARTS of them, fewer
 * for many channels, by the shape alone. */
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
} hvt_cpu; /* d->state */

/* ---- conv: conv_plan.c gemm_nn.c gemm_tn.c weights.c; entries of hvt_device_cpu ---- */
hvt_status hvt__conv_plan_cpu(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                              size_t *ret_ws);
void hvt__conv_permute_cpu(const hvt_op *op, bool to_file, float *mine, float *kcrs);
hvt_status hvt__conv_pack_weights_cpu(hvt_op *op, const void *w);
hvt_status hvt__conv_forward_cpu(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws);
hvt_status hvt__conv_backward_x_cpu(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                    void *ws);
hvt_status hvt__conv_backward_w_cpu(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws);

/* ---- matrix.c ---- */
hvt_status hvt__bn_train_cpu(hvt_device *d, const hvt_bn_args *a);
hvt_status hvt__bn_infer_cpu(hvt_device *d, const hvt_bn_args *a);
hvt_status hvt__bn_recompute_cpu(hvt_device *d, const hvt_bn_args *a);
hvt_status hvt__bn_backward_cpu(hvt_device *d, const hvt_bn_grad_args *a);
hvt_status hvt__bn_update_cpu(hvt_device *d, const hvt_step_state *step, int c, float rate, float scale,
                              const float *moments, float *run_mean, float *run_var);
hvt_status hvt__bias_forward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y);
hvt_status hvt__bias_backward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                  float *db);
hvt_status hvt__xent_cpu(hvt_device *d, const hvt_xent_args *a);

/* ---- pooling.c ---- */
hvt_status hvt__pooling_plan_cpu(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved);
hvt_status hvt__pooling_forward_cpu(hvt_op *op, int real, const void *x, void *y, void *saved);
hvt_status hvt__pooling_backward_cpu(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                  bool add);

/* ---- images.c ---- */
hvt_status hvt__subsample_forward_cpu(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                      int stride, int channels, const void *x, void *y);
hvt_status hvt__subsample_backward_cpu(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                       int stride, int channels, const void *dy, void *dx, bool add);
hvt_status hvt__augment_cpu(hvt_device *d, const hvt_augment_args *a);

#endif /* HVT_CPU_IMPL_H */
