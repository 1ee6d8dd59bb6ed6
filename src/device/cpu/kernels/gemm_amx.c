/*
 * Convolution kernels of up to 32 x 32 for AMX, whose tile registers have 16 rows of 64 bytes. Tiles 0 to 3
 * are C, two by two; 4 and 5 are A, rows of `depth` vnni2 k-groups; 6 and 7 are B, `depth` rows of 16
 * k-groups.
 *
 * begin configures the shapes of tiles, not the kernels: a C of `high` rows is split into two equal halves,
 * or has one part if 16 rows suffice. Rows and columns beyond the needed ones are computed from arbitrary
 * memory and not stored. Outside of begin and end the thread's tiles are in their initial state, which the
 * system need not save.
 *
 * Order of additions: by entry, then by step of `depth` k-groups; within a step the sum of the even halves,
 * that of the odd ones, then both. It depends only on `depth`, so neither a row's position nor its neighbours
 * change a bit.
 */
#include "device/cpu/cpu_impl.h"

#include "vec_avx512.h"

#include "vnni2.h"

#include <string.h>

enum { TILE_ROWS = 16, TILE_BYTES = 64, HIGH = 2 * TILE_ROWS, COLUMNS = 32 };

static int first_half(int high)
{
    return high > TILE_ROWS ? (high + 1) / 2 : high;
}

/* The tile configuration, as ldtilecfg reads it. */
typedef struct shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} shapes;

static void shape(shapes *s, int tile, int rows, int columns)
{
    s->rows[tile] = (uint8_t)rows;
    s->row_bytes[tile] = (uint16_t)(rows ? columns * 4 : 0); /* both must be zero, or neither */
}

static void begin(int high, int depth)
{
    const int first = first_half(high), rest = high - first;
    _Alignas(64) shapes s = {.palette = 1};

    for (int v = 0; v < 2; v++) {
        shape(&s, v, first, 16);
        shape(&s, 2 + v, rest, 16);
        shape(&s, 6 + v, depth, 16);
    }
    shape(&s, 4, first, depth);
    shape(&s, 5, rest, depth);
    __asm__ volatile("" : : "r"(&s) : "memory"); /* gcc 12's intrinsic names only the first 8 bytes as read */
    _tile_loadconfig(&s);
}

static void end(void)
{
    _tile_release();
}

/* C = sum of A * B, into `c`. Rows of A are a_row k-groups apart, its steps a_step, its two halves a_half.
 * `halves` and `vectors` are constants, so branches on them disappear. */
INLINE void multiply(const hvt_tile *t, const int halves, const int vectors, long a_row, long a_step,
                     long a_half, float (*c)[COLUMNS])
{
    const long b_step = t->depth * t->b_row, a_bytes = a_row * 4, b_bytes = t->b_row * 4;

    _tile_zero(0);
    if (vectors > 1)
        _tile_zero(1);
    if (halves > 1)
        _tile_zero(2);
    if (halves > 1 && vectors > 1)
        _tile_zero(3);
    for (int e = 0; e < t->entries; e++) {
        const float *a = t->a + t->e[e].a * t->a_entry, *b = t->b + t->e[e].b * t->b_entry;

        for (int k = 0; k < t->len; k += t->depth, a += a_step, b += b_step) {
            _tile_loadd(6, b, b_bytes);
            _tile_loadd(4, a, a_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if (vectors > 1) {
                _tile_loadd(7, b + VL, b_bytes);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (halves > 1) {
                _tile_loadd(5, a + a_half, a_bytes);
                _tile_dpbf16ps(2, 5, 6);
            }
            if (halves > 1 && vectors > 1)
                _tile_dpbf16ps(3, 5, 7);
        }
    }

    float *below = c[first_half(t->high)];

    _tile_stored(0, c[0], sizeof *c);
    if (vectors > 1)
        _tile_stored(1, c[0] + VL, sizeof *c);
    if (halves > 1)
        _tile_stored(2, below, sizeof *c);
    if (halves > 1 && vectors > 1)
        _tile_stored(3, below + VL, sizeof *c);
}

INLINE void product(const hvt_tile *t, long a_row, long a_step, float (*c)[COLUMNS])
{
    const int first = first_half(t->high);
    const long a_half = first * a_row;

    if (t->rows > first && t->nc > VL)
        multiply(t, 2, 2, a_row, a_step, a_half, c);
    else if (t->rows > first)
        multiply(t, 2, 1, a_row, a_step, a_half, c);
    else if (t->nc > VL)
        multiply(t, 1, 2, a_row, a_step, a_half, c);
    else
        multiply(t, 1, 1, a_row, a_step, a_half, c);
}

static void store(const hvt_tile *t, float (*c)[COLUMNS])
{
    for (int i = 0; i < t->rows; i++)
        for (int first = 0; first < t->nc; first += VL) {
            float *out = t->c + i * t->c_row + first;
            const int lanes = t->nc - first < VL ? t->nc - first : VL;
            F sum = f_load(c[i] + first, VL);

            if (t->add)
                sum = f_load_part(out, lanes) + sum;
            if (t->stream && lanes == VL)
                f_stream(out, sum);
            else
                f_store_part(out, sum, lanes);
        }
}

/* A is read in place; C is a buffer. */
static void gemm_nn(const hvt_tile *t)
{
    product(t, t->a_row, t->depth, (float(*)[COLUMNS])t->c);
}

/* A is transposed, packed by pack_a. */
static void gemm_tn(const hvt_tile *t)
{
    _Alignas(64) float c[HIGH][COLUMNS];

    product(t, t->depth, t->a_row * t->depth,
            c); /* a_row: kern.pitch k-groups per k-group along the inner dimension */
    store(t, c);
}

/* Packs panels of w <= 32 channels, each [len / depth][32 channels][depth]. */
static void pack_a(const hvt_vnni2 *p, int w, float *out)
{
    for (int first = 0; first < p->c; first += w, out += p->next)
        for (int k = 0; k < p->len; k += p->depth)
            for (int half = 0; half < w; half += VL) {
                const int channel = first + half, end_of = first + w < p->c ? first + w : p->c;
                F r[VL];

                for (int i = 0; i < VL; i++)
                    r[i] = i < p->depth && channel < end_of ? vnni2_at(p, k + i, channel, end_of - channel)
                                                            : f_splat(0);
                f_transpose(r);
                for (int i = 0; i < VL; i++)
                    f_store_part(out + k * HIGH + (half + i) * p->depth, r[i], p->depth);
            }
}

static hvt_kernel *const gemm_nn_rows[HIGH] = {[0 ... HIGH - 1] = gemm_nn};
static hvt_kernel *const gemm_tn_rows[HIGH] = {[0 ... HIGH - 1] = gemm_tn};

const hvt_conv_kernels hvt__conv_amx = {.vl = VL,
                                        .rows = {HIGH, HIGH},
                                        .pitch = HIGH,
                                        .depth = 16,
                                        .gemm_nn = {gemm_nn_rows, gemm_nn_rows},
                                        .gemm_tn = {gemm_tn_rows, gemm_tn_rows},
                                        .pack_weights = pack_weights,
                                        .pack_a = pack_a,
                                        .pack_b = pack_b,
                                        .begin = begin,
                                        .end = end};

extern const hvt_elementwise hvt__elementwise_avx512_bf16;

const hvt_isa hvt__isa_amx = {.name = "amx",
                              .needs = {AVX512_NEEDS, .edx7 = 1u << 22 | 1u << 24, /* AMX-BF16, AMX-TILE */
                                        .eax7_1 = AVX512_BF16,                     /* for .el */
                                        .xcr0 = AVX512_STATE | 3u << 17,           /* XTILECFG, XTILEDATA */
                                        .ask = 18},                                /* XTILEDATA */
                              .conv = &hvt__conv_avx512,
                              .bf16 = &hvt__conv_amx,
                              .el = &hvt__elementwise_avx512_bf16};
