/*
 * cuda-kernels-attention: attention on the emulator equals ref: token counts around tiles, narrow and wide
 * heads, separate matrices and columns of one; windows of an image, contiguous or scattered; biases and
 * masks; gradients that are added, or not wanted; scores of which few matter; and an image's result does not
 * depend on the batch.
 */
#include "emulated.h"

enum { Q, K, V, MATRICES, MOST_WORK = IS_TSAN ? 200000 : 1000000 };
enum { BIAS = 2, MASKED = 100 }; /* of biases the largest; what a mask takes off a score */

typedef struct attention_case {
    hvt_attention_args a;
    int matrix[MATRICES], offset[MATRICES]; /* the matrix that has q's, k's, v's rows, and its column there */
    int pitch[MATRICES];                    /* of each matrix */
    bool wanted[MATRICES];
    bool sharp; /* scores differ so much that a few keys have all weight */
    bool listed, biased, masked, table_wanted;
} attention_case;

static int tokens(void)
{
    static const int counts[] = {1, 5, 17, 70, 197};

    return counts[between(0, HVT_LEN(counts) - 1)];
}

static attention_case random_attention(int number)
{
    static const int widths[] = {1, 3, 8, 64, 80, 130};
    attention_case o = {.sharp = !between(0, 3)};
    hvt_attention_args *a = &o.a;
    const int shared = between(0, 3); /* the last so many of q, k, v are columns of one matrix */
    const bool some = between(0, 5);  /* of their gradients are wanted */
    int extra;
    int64_t work;

    *a = (hvt_attention_args){.order = HVT_ORDER_NHW,
                              .type = float_types[number % 3],
                              .heads = between(1, 3),
                              .width = widths[number / 3 % (int)HVT_LEN(widths)],
                              .n = between(1, between(0, 3) ? 3 : 20),
                              .windows = between(0, 1) ? 1 : between(2, 5),
                              .queries = tokens(),
                              .keys = tokens(),
                              .elements = between(1, 300)};
    o.listed = between(0, 1) && (a->windows > 1 || !between(0, 2));
    o.biased = between(0, 1);
    o.masked = !between(0, 2);
    o.table_wanted = between(0, 3);
    if (shared == MATRICES || a->windows > 1 || o.listed)
        a->keys = a->queries;
    if ((int64_t)a->queries * a->keys * a->width > MOST_WORK)
        a->queries = a->keys = 70;
    work = (int64_t)a->queries * a->keys * a->width;
    while (a->n * a->heads * a->windows * work > MOST_WORK && a->n * a->heads * a->windows > 1)
        a->n > 2         ? a->n--
        : a->windows > 2 ? a->windows--
        : a->heads > 1   ? a->heads--
        : a->n > 1       ? a->n--
                         : a->windows--;
    a->real = between(0, 1) ? a->n : between(0, a->n);
    a->scale = 1 / sqrtf((float)a->width);
    for (int i = 0, alone = MATRICES - shared; i < MATRICES; i++) {
        extra = between(0, 1) ? 0 : between(0, 1) ? 8 : 3;
        o.matrix[i] = shared && i > alone ? alone : i;
        o.offset[i] = shared && i > alone ? (i - alone) * a->heads * a->width : 0;
        o.pitch[i] = (shared && i == alone ? shared : 1) * a->heads * a->width + extra;
        o.wanted[i] = some && between(0, 4);
    }
    a->q.add = between(0, 1);
    a->k.add = between(0, 1);
    a->v.add = between(0, 1);
    return o;
}

/* How far elements may be off: `all` of each token's `width` numbers from `offset` on. */
static void allow(double *slack, size_t rows, int pitch, int offset, int width, double all)
{
    for (size_t i = 0; i < rows; i++)
        for (int c = 0; c < width; c++)
            slack[i * (size_t)pitch + (size_t)(offset + c)] = all;
}

/* [windows,queries]: the pixels of an image in any order */
static int32_t *pixel_list(runs *r, const hvt_attention_args *a)
{
    const int all = a->windows * a->queries;
    int32_t *pixel = guarded_room(r, sizeof *pixel * (size_t)all, 0);

    for (int i = 0; i < all; i++) {
        const int other = between(0, i);

        pixel[i] = pixel[other];
        pixel[other] = i;
    }
    return pixel;
}

static float *random_mask(runs *r, const hvt_attention_args *a)
{
    const size_t all = (size_t)a->windows * a->queries * a->keys;
    float *mask = guarded_room(r, sizeof *mask * all, 0);

    for (size_t i = 0; i < all; i++)
        mask[i] = between(0, 2) ? 0 : -MASKED;
    return mask;
}

/* A table, of which each bias is some element but one of the first eighth. Returns for each the number of
 * rows of scores that it is in. */
static double *random_table(runs *r, hvt_attention_args *a)
{
    const int row = a->keys, all = a->heads * a->queries * row;
    float *table = input(r, HVT_F32, a->elements, a->elements, 0, 0);
    int32_t *bias = guarded_room(r, sizeof *bias * (size_t)all, 0),
            *first = guarded_room(r, sizeof *first * (size_t)(a->elements + 1), 0),
            *where = guarded_room(r, sizeof *where * (size_t)all, 0);
    double *rows = slacks(a->elements);
    int at = 0;

    for (int e = 0; e < a->elements; e++)
        table[e] *= BIAS;
    for (int i = 0; i < all; i++)
        bias[i] = between(a->elements / 8, a->elements - 1);
    for (int e = 0; e < a->elements; e++) {
        first[e] = at;
        for (int i = 0; i < all; i++)
            if (bias[i] == e) {
                rows[e] += at == first[e] || where[at - 1] / row != i / row;
                where[at++] = i;
            }
    }
    first[a->elements] = at;
    a->table = table;
    a->bias = bias;
    a->first = first;
    a->where = where;
    return rows;
}

TEST(attention_equals_ref)
{
    for (int number = 0; number < 2 * CASES; number++) {
        runs r;
        attention_case o = random_attention(number);
        hvt_attention_args *a = &o.a;
        const int channels = a->heads * a->width, queries = a->windows * a->queries;
        const int tokens[] = {queries, a->windows * a->keys, a->windows * a->keys};
        const size_t size = hvt_dtype_size(a->type), skew = between(0, 3) ? 0 : size * (size_t)between(1, 7);
        const size_t y_all = (size_t)a->n * queries * channels;
        const double reach = o.sharp ? 20 : 1, root = sqrt(a->width);
        /* a masked score and the largest of them are rounded once more, in places of 128 */
        const double unit = FEW * (1 + reach * root + BIAS * o.biased) + 0x1p-24 * 2 * 128 * o.masked;
        /* the weights that a key has in all queries of a window, at most */
        const double even = (1 + 4.0 * a->queries / a->keys) * (o.biased || o.masked ? 8 : 1);
        const double share = o.sharp || even > a->queries ? a->queries : even;
        const double off[] = {unit * (1 + root), unit * (1 + root) * reach * share, unit * share};
        double *y_off = slacks(y_all), *dx_off[MATRICES], *table_off = NULL;
        void *x[MATRICES], *dy, *ws[2];
        int y, dx[MATRICES], dtable = -1;

        begin(&r, "attention");
        for (int i = 0; i < MATRICES; i++)
            if (o.matrix[i] == i) {
                const size_t pitch = (size_t)o.pitch[i], all = (size_t)a->n * tokens[i] * pitch;
                const size_t real = (size_t)a->real * tokens[i] * pitch;

                x[i] = input(&r, a->type, all, real, 0, skew);
                dx_off[i] = slacks(all);
                dx[i] = output(&r, "dq, dk or dv", a->type, all, real, input(&r, a->type, all, real, 0, skew),
                               dx_off[i], skew);
            }
        for (int i = 0; i < MATRICES; i++)
            allow(dx_off[o.matrix[i]], (size_t)a->n * tokens[i], o.pitch[o.matrix[i]], o.offset[i], channels,
                  off[i]);
        for (size_t i = 0, end = (size_t)a->real * queries * channels; o.sharp && i < end; i++) {
            const size_t at = i / channels * o.pitch[Q] + i % channels;

            hvt__store(x[Q], a->type, at, (float)reach * hvt__load(x[Q], a->type, at));
        }
        dy = input(&r, a->type, y_all, y_all / a->n * a->real, 0, skew);
        allow(y_off, (size_t)a->n * queries, channels, 0, channels, unit);
        y = output(&r, "y", a->type, y_all, y_all / a->n * a->real, NULL, y_off, skew);
        a->pixel = o.listed ? pixel_list(&r, a) : NULL;
        a->mask = o.masked ? random_mask(&r, a) : NULL;
        if (o.biased) {
            table_off = random_table(&r, a);
            for (int e = 0; e < a->elements; e++) { /* a row adds up to 1, and each place has its share */
                const double places = 8.0 * (a->first[e + 1] - a->first[e]) / a->keys;

                table_off[e] = (o.sharp || places > table_off[e] ? table_off[e] : places) * unit *
                               (1 + root) * a->real * a->windows;
            }
            if (o.table_wanted)
                dtable = output(&r, "dtable", HVT_F32, a->elements, a->elements, NULL, table_off, 0);
        }
        ws[0] = guarded_room(&r, ref->ops->general.attention_room(ref, a), 0);
        ws[1] = guarded_room(&r, hvt__attention_room_cuda(&emulated, a), 0);
        memset(ws[1], 0xff, hvt__attention_room_cuda(&emulated, a));
        for (int run = 0; run < RUNS; run++) {
            char *from[MATRICES], *to[MATRICES];

            for (int i = 0; i < MATRICES; i++) {
                const size_t column = (size_t)o.offset[i] * size;

                from[i] = (char *)x[o.matrix[i]] + column;
                to[i] = o.wanted[i] ? (char *)of(&r, dx[o.matrix[i]], run) + column : NULL;
            }
            a->q.x = from[Q];
            a->q.dx = to[Q];
            a->q.pitch = o.pitch[o.matrix[Q]];
            a->k.x = from[K];
            a->k.dx = to[K];
            a->k.pitch = o.pitch[o.matrix[K]];
            a->v.x = from[V];
            a->v.dx = to[V];
            a->v.pitch = o.pitch[o.matrix[V]];
            a->dy = dy;
            a->y = of(&r, y, run);
            a->dtable = dtable < 0 ? NULL : of(&r, dtable, run);
            a->ws = ws[run > 0];
            set_order(run);
            if (run) {
                CHECK_OK(hvt__attention_forward_cuda(&emulated, a));
                CHECK_OK(hvt__attention_backward_cuda(&emulated, a));
            } else {
                CHECK_OK(ref->ops->general.attention_forward(ref, a));
                CHECK_OK(ref->ops->general.attention_backward(ref, a));
            }
        }
        judge(&r);
        for (int i = 0; i < MATRICES; i++)
            if (o.matrix[i] == i)
                free(dx_off[i]);
        free(y_off);
        free(table_off);
    }
}

TEST(an_image_s_attention_does_not_depend_on_the_batch)
{
    enum { N = 3, TOKENS = 70, HEADS = 2, WIDTH = 40, CHANNELS = HEADS * WIDTH, IMAGE = TOKENS * CHANNELS };
    float *x = malloc(sizeof *x * N * IMAGE * MATRICES), *y = malloc(sizeof *y * N * IMAGE),
          *alone = malloc(sizeof *alone * IMAGE);
    hvt_attention_args a = {.order = HVT_ORDER_NHW,
                            .type = HVT_F32,
                            .n = N,
                            .real = N,
                            .heads = HEADS,
                            .width = WIDTH,
                            .windows = 1,
                            .queries = TOKENS,
                            .keys = TOKENS,
                            .scale = 0.25f,
                            .y = y};

    for (int i = 0; i < N * IMAGE * MATRICES; i++)
        x[i] = value();
    a.q.pitch = a.k.pitch = a.v.pitch = MATRICES * CHANNELS;
    for (int i = -1; i < N; i++) {
        const float *from = x + (i < 0 ? 0 : (size_t)i * IMAGE * MATRICES);

        a.q.x = from;
        a.k.x = from + CHANNELS;
        a.v.x = from + 2 * CHANNELS;
        CHECK_OK(hvt__attention_forward_cuda(&emulated, &a));
        CHECK(i < 0 || !memcmp(alone, y + (size_t)i * IMAGE, sizeof *y * IMAGE), "image %d is another", i);
        a.n = a.real = 1;
        a.y = alone;
    }
    free(x);
    free(y);
    free(alone);
}

int main(void)
{
    open_emulated();
    RUN(attention_equals_ref);
    RUN(an_image_s_attention_does_not_depend_on_the_batch);
    return close_emulated();
}
