/*
 * typed_general.h - part of typed_tmpl.c: binary operations, moves, layer and group norm, dropout, rotary
 * embeddings.
 */

/* ---- binary operations ---- */

/* The second operand: a vector of this type, a vector of floats, or one number. */
INLINE F other(const hvt_operand *b, size_t i, hvt_operand_kind kind, int lanes)
{
    return kind == HVT_OPERAND_TYPED    ? get(b->p, i, lanes)
           : kind == HVT_OPERAND_FLOATS ? f_load((const float *)b->p + i, lanes)
                                        : f_splat(b->x);
}

INLINE void value_span(hvt_binary op, bool swapped, size_t n, const void *a, const hvt_operand *b,
                       hvt_operand_kind kind, void *y)
{
    const hvt_operand k = *b;

    SPAN(n, put(y, i, combine(op, swapped, get(a, i, lanes), other(&k, i, kind, lanes)), lanes););
}

INLINE void slope_span(hvt_binary op, bool swapped, size_t n, const void *dy, const void *a,
                       const hvt_operand *b, hvt_operand_kind kind, void *da, bool add)
{
    const hvt_operand k = *b;

    SPAN(n, put_or_add(da, i,
                       pulled(op, !swapped, get(dy, i, lanes), get(a, i, lanes), other(&k, i, kind, lanes)),
                       add, lanes););
}

/* Run a function with the operation (and the kind of operand) as constants. */
#define BY_OP(op, swapped, RUN)                                                                              \
    switch ((op)*2 + (swapped)) {                                                                            \
    case HVT_ADD * 2:                                                                                        \
    case HVT_ADD * 2 + 1:                                                                                    \
        RUN(HVT_ADD, false);                                                                                 \
        break;                                                                                               \
    case HVT_SUB * 2:                                                                                        \
        RUN(HVT_SUB, false);                                                                                 \
        break;                                                                                               \
    case HVT_SUB * 2 + 1:                                                                                    \
        RUN(HVT_SUB, true);                                                                                  \
        break;                                                                                               \
    case HVT_MUL * 2:                                                                                        \
    case HVT_MUL * 2 + 1:                                                                                    \
        RUN(HVT_MUL, false);                                                                                 \
        break;                                                                                               \
    case HVT_MAXIMUM * 2:                                                                                    \
    case HVT_MAXIMUM * 2 + 1:                                                                                \
        RUN(HVT_MAXIMUM, false);                                                                             \
        break;                                                                                               \
    case HVT_MINIMUM * 2:                                                                                    \
    case HVT_MINIMUM * 2 + 1:                                                                                \
        RUN(HVT_MINIMUM, false);                                                                             \
        break;                                                                                               \
    case HVT_DIV * 2:                                                                                        \
        RUN(HVT_DIV, false);                                                                                 \
        break;                                                                                               \
    case HVT_DIV * 2 + 1:                                                                                    \
        RUN(HVT_DIV, true);                                                                                  \
        break;                                                                                               \
    }

static void binary(const hvt_binary_args *k, size_t n, const void *a, const hvt_operand *b, void *y)
{
#define RUN(op, swapped)                                                                                     \
    b->kind == HVT_OPERAND_TYPED    ? value_span(op, swapped, n, a, b, HVT_OPERAND_TYPED, y)                 \
    : b->kind == HVT_OPERAND_FLOATS ? value_span(op, swapped, n, a, b, HVT_OPERAND_FLOATS, y)                \
                                    : value_span(op, swapped, n, a, b, HVT_OPERAND_NUMBER, y)
    BY_OP(k->op, k->swapped, RUN)
#undef RUN
}

static void binary_slope(const hvt_binary_args *k, bool swapped_, size_t n, const void *dy, const void *a,
                         const hvt_operand *b, void *da, bool add){
#define RUN(op, swapped)                                                                                     \
    b->kind == HVT_OPERAND_TYPED    ? slope_span(op, swapped, n, dy, a, b, HVT_OPERAND_TYPED, da, add)       \
    : b->kind == HVT_OPERAND_FLOATS ? slope_span(op, swapped, n, dy, a, b, HVT_OPERAND_FLOATS, da, add)      \
                                    : slope_span(op, swapped, n, dy, a, b, HVT_OPERAND_NUMBER, da, add)
    BY_OP(k->op, swapped_, RUN)
#undef RUN
}

INLINE void columns_at(hvt_binary op, bool swapped, int count, size_t step, size_t i, const void *dy,
                       const void *a, const hvt_operand *b, float *sum, const int vectors, int lanes)
{
    F all[SUMS_AT_ONCE], with[SUMS_AT_ONCE];

    UNROLL
    for (int v = 0; v < vectors; v++)
        with[v] = other(b, i + (size_t)(v * VL), b->kind, lanes);
    SUM_PIXELS(count, step, vectors, all, fetch_pixel(dy, i + at, step, vectors);
               fetch_pixel(a, i + at, step, vectors),
               pulled(op, swapped, get(dy, i + at + (size_t)(v * VL), lanes), with[v],
                      get(a, i + at + (size_t)(v * VL), lanes)));
    UNROLL
    for (int v = 0; v < vectors; v++)
        f_store(sum + i + v * VL, f_load(sum + i + v * VL, lanes) + all[v], lanes);
}

INLINE void columns_of(hvt_binary op, bool swapped, size_t n, int count, size_t step, const void *dy,
                       const void *a, const hvt_operand *b, float *sum)
{
    SPAN_OF_SUMS(n, columns_at(op, swapped, count, step, i, dy, a, b, sum, vectors, lanes););
}

static void binary_columns(const hvt_binary_args *k, size_t n, int count, size_t step, const void *dy,
                           const void *a, const hvt_operand *b, float *sum){
#define RUN(op, swapped) columns_of(op, swapped, n, count, step, dy, a, b, sum)
    BY_OP(k->op, k->swapped, RUN)
#undef RUN
}

INLINE float join(F x)
{
    float sum = 0;

    for (int l = 0; l < VL; l++)
        sum += x[l];
    return sum;
}

INLINE float dot_of(hvt_binary op, bool swapped, size_t n, const void *dy, const void *a, float b)
{
    F sum = f_zero();

    SPAN(n, F t = pulled(op, swapped, get(dy, i, lanes), f_splat(b), get(a, i, lanes));
         if ((int)lanes < VL) for (int l = lanes; l < VL; l++) t[l] = 0; sum = sum + t;);
    return join(sum);
}

static float binary_dot(const hvt_binary_args *k, size_t n, const void *dy, const void *a, float b)
{
    float sum = 0;

#define RUN(op, swapped) sum = dot_of(op, swapped, n, dy, a, b)
    BY_OP(k->op, k->swapped, RUN)
#undef RUN
    return sum;
}

/* ---- moves ---- */

static void move_rows(size_t rows, int cols, const void *from, size_t from_step, void *to, size_t to_step,
                      bool add)
{
    if (from_step == (size_t)cols && to_step == (size_t)cols) {
        cols = (int)(rows * (size_t)cols);
        rows = 1;
    }
    for (size_t r = 0; r < rows; r++) {
        const void *x = hvt__at(from, TYPE, r * from_step);
        void *y = hvt__at(to, TYPE, r * to_step);

        if (add)
            SPAN(cols, put(y, i, get(y, i, lanes) + get(x, i, lanes), lanes););
        else
            memcpy(y, x, (size_t)cols * ELEMENT);
    }
}

/* Transpose few rows or columns, element by element. */
INLINE void transpose_few(int rows, int cols, const void *x, void *y, bool add)
{
    for (int k = 0, to = 0; k < cols; k++)
        for (int j = 0; j < rows; j++, to++) {
            const size_t from = (size_t)j * (size_t)cols + (size_t)k;

            if (add)
                hvt__store(y, TYPE, (size_t)to, hvt__load(y, TYPE, (size_t)to) + hvt__load(x, TYPE, from));
            else if (TYPE == HVT_F32)
                ((float *)y)[to] = ((const float *)x)[from];
            else
                ((uint16_t *)y)[to] = ((const uint16_t *)x)[from];
        }
}

/* Transpose the `high` rows and `wide` columns that exist in a square of VL x VL from (j, k) on. */
INLINE void transpose_square(int rows, int cols, const void *x, void *y, bool add, int j, int k, int high,
                             int wide)
{
    F v[VL];

    for (int i = 0; i < VL; i++)
        v[i] = i < high ? get(x, (size_t)(j + i) * (size_t)cols + (size_t)k, wide) : f_zero();
    f_transpose(v);
    for (int i = 0; i < wide; i++)
        put_or_add(y, (size_t)(k + i) * (size_t)rows + (size_t)j, v[i], add, high);
}

static void transpose(int rows, int cols, int block, const void *x, void *y, bool add)
{
    if (block > 1) {
        for (int j = 0; j < rows; j++)
            move_rows((size_t)cols, block, hvt__at(x, TYPE, (size_t)j * (size_t)cols * (size_t)block),
                      (size_t)block, hvt__at(y, TYPE, (size_t)j * (size_t)block),
                      (size_t)rows * (size_t)block, add);
    } else if (rows == 2) {
        transpose_few(2, cols, x, y, add);
    } else if (cols == 2) {
        transpose_few(rows, 2, x, y, add);
    } else if (rows < VL || cols < VL) {
        transpose_few(rows, cols, x, y, add);
    } else {
        for (int j = 0; j < rows; j += VL)
            for (int k = 0; k < cols; k += VL) {
                const int high = rows - j < VL ? rows - j : VL, wide = cols - k < VL ? cols - k : VL;

                if (high == VL && wide == VL)
                    transpose_square(rows, cols, x, y, add, j, k, VL, VL);
                else
                    transpose_square(rows, cols, x, y, add, j, k, high, wide);
            }
    }
}

/* ---- layer and group norm: one group of an image or pixel ---- */

/* Run the statements for every vector of a group, with `at` (element of x) and `k` (of gamma). */
#define GROUP(a, g, ...)                                                                                     \
    for (int p_ = 0; p_ < (g)->pixels; p_++)                                                                 \
    SPAN((a)->c / (a)->groups, const size_t at = (g)->at + p_ * (g)->step + i;                               \
         const size_t k = (g)->first + p_ * (g)->gamma_step + i; (void)k; __VA_ARGS__)

/* x with unused lanes set to zero */
INLINE F only(F x, int lanes)
{
    for (int l = lanes; (int)lanes < VL && l < VL; l++)
        x[l] = 0;
    return x;
}

static void group_forward(const hvt_norm_args *args, const hvt_group *g)
{
    const hvt_norm_args a = *args;
    const float part = 1 / ((float)g->pixels * (float)(a.c / a.groups));
    F sum = f_zero(), square = f_zero(), mean, rstd;

    GROUP(&a, g, sum = sum + get(a.x, at, lanes););
    mean = f_splat(join(sum) * part);
    GROUP(&a, g, const F off = only(get(a.x, at, lanes) - mean, lanes); square = f_fma(off, off, square););
    rstd = f_splat((float)(1 / sqrt((double)join(square) * part + a.eps)));
    a.mean[g->index] = mean[0];
    a.rstd[g->index] = rstd[0];
    if (a.gamma)
        GROUP(&a, g,
              put(a.y, at,
                  f_fma((get(a.x, at, lanes) - mean) * rstd, f_load(a.gamma + k, lanes),
                        f_load(a.beta + k, lanes)),
                  lanes););
    else
        GROUP(&a, g, put(a.y, at, (get(a.x, at, lanes) - mean) * rstd, lanes););
}

/* Adds the group's sums to dgamma and dbeta. */
static void group_backward(const hvt_norm_args *args, const hvt_group *g, float *dgamma, float *dbeta)
{
    const hvt_norm_args a = *args;
    const float part = 1 / ((float)g->pixels * (float)(a.c / a.groups));
    const F mean = f_splat(a.mean[g->index]), rstd = f_splat(a.rstd[g->index]);
    F share = f_zero(), dot = f_zero();

    GROUP(
        &a, g, const F dy = get(a.dy, at, lanes); const F xhat = (get(a.x, at, lanes) - mean) * rstd;
        const F dz = a.gamma ? dy * f_load(a.gamma + k, lanes) : dy; share = share + dz;
        dot = f_fma(dz, xhat, dot); if (a.gamma) {
            f_store(dgamma + k, f_fma(dy, xhat, f_load(dgamma + k, lanes)), lanes);
            f_store(dbeta + k, f_load(dbeta + k, lanes) + dy, lanes);
        });
    if (!a.dx)
        return;
    share = f_splat(join(share) * part);
    dot = f_splat(join(dot) * part);
    GROUP(&a, g, const F dy = get(a.dy, at, lanes); const F xhat = (get(a.x, at, lanes) - mean) * rstd;
          const F dz = a.gamma ? dy * f_load(a.gamma + k, lanes) : dy;
          put_or_add(a.dx, at, rstd * (dz - f_fma(xhat, dot, share)), a.add, lanes););
}

/* ---- dropout ---- */

/* Dropout of a pixel's channels, whose element numbers begin with `index` and increase by `next` per vector.
 */
INLINE void drop_pixel(const hvt_dropout_args *a, uint64_t key, U index, uint32_t next, const void *x,
                       void *y, bool add)
{
    const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    const I scale = (I)f_splat(a->scale);

    SPAN(a->c, const F noise = (F)(drop_keeps(drop_bits(index, low, high), a->least) & scale);
         put_or_add(y, i, get(x, i, lanes) * noise, add, lanes); index = index + next;);
}

static void drop(const hvt_dropout_args *args, uint64_t key, size_t first, size_t end, size_t step,
                 const void *x, void *y)
{
    const hvt_dropout_args a = *args;
    const bool elements = a.what == HVT_DROP_ELEMENTS;
    const uint32_t channel = elements ? (uint32_t)a.pixels : a.what == HVT_DROP_CHANNELS;
    U index;

    for (int l = 0; l < VL; l++)
        index[l] = (uint32_t)l * channel;
    for (size_t p = first, at = 0; p < end; p++, at += step) {
        const U start = index + (elements ? (uint32_t)p : 0);
        const void *from = hvt__at(x, TYPE, at);
        void *to = hvt__at(y, TYPE, at);

        if (a.add)
            drop_pixel(&a, key, start, VL * channel, from, to, true);
        else
            drop_pixel(&a, key, start, VL * channel, from, to, false);
    }
}

/* ---- rotary embeddings ---- */

/* Rotate both halves of a block, which begins at x, y, own and other. */
INLINE void rotate_block(int apart, bool add, const float *own, const float *other, const void *x, void *y)
{
    SPAN((size_t)apart, const size_t k = i + (size_t)apart; const F a = get(x, i, lanes);
         const F b = get(x, k, lanes);
         put_or_add(y, i, f_fma(f_load(other + i, lanes), b, f_load(own + i, lanes) * a), add, lanes);
         put_or_add(y, k, f_fma(f_load(other + k, lanes), a, f_load(own + k, lanes) * b), add, lanes););
}

/* Rotate a vector if SIMD vectors hold whole blocks. */
INLINE void rotate_within(int width, int apart, bool add, const float *own, const float *other, const void *x,
                          void *y)
{
    SPAN((size_t)width, const F a = get(x, i, lanes); float at[VL]; float of[VL]; f_store(at, a, VL);
         for (int l = 0; l < VL; l++) of[l] = at[l ^ apart]; put_or_add(
             y, i, f_fma(f_load(other + i, lanes), f_load(of, VL), f_load(own + i, lanes) * a), add, lanes););
}

static void rotary(const hvt_rotary_args *args, const float *own, const float *other, const void *x, void *y)
{
    const hvt_rotary_args a = *args;
    const bool within = a.apart < VL && !(a.apart & (a.apart - 1));

    for (int v = 0; v < a.vectors; v++) {
        const void *from = hvt__at(x, TYPE, (size_t)(v * a.width));
        void *to = hvt__at(y, TYPE, (size_t)(v * a.width));

        if (within && a.apart == 1)
            rotate_within(a.width, 1, a.add, own, other, from, to);
        else if (within)
            rotate_within(a.width, a.apart, a.add, own, other, from, to);
        for (int b = 0; b < a.width && !within; b += 2 * a.apart)
            rotate_block(a.apart, a.add, own + b, other + b, hvt__at(from, TYPE, (size_t)b),
                         hvt__at(to, TYPE, (size_t)b));
    }
}
