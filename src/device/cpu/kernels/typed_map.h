/*
 * typed_map.h - a part of typed_tmpl.c: the functions of HVT__MAPS and their gradients, on a span and behind
 * a batch norm. After typed_matrix.h.
 */

#define SPANS(constant, name, from_x)                                                                        \
    static void map_##name(size_t n, const hvt_map *f, const void *x, void *y)                               \
    {                                                                                                        \
        const F a = f_splat(f->a), b = f_splat(f->b);                                                        \
                                                                                                             \
        SPAN(n, put(y, i, name##_value(get(x, i, lanes), a, b), lanes););                                    \
    }                                                                                                        \
    static void slope_##name(size_t n, const hvt_map *f, const void *v, const void *dy, void *dx, bool add)  \
    {                                                                                                        \
        const F a = f_splat(f->a), b = f_splat(f->b);                                                        \
                                                                                                             \
        SPAN(n, put_or_add(dx, i, name##_gradient(get(v, i, lanes), a, b, get(dy, i, lanes)), add, lanes);); \
    }
HVT__MAPS(SPANS)

/* What a function behind a batch norm reads: per column, the norm's constants; rounded as if it were stored.
 */
typedef struct normed {
    const void *x;
    const float *mean, *scale, *beta;
} normed;

INLINE normed normed_of(const void *x, const float *mean, const float *scale, const float *beta, int c,
                        int col, float scratch[3][WIDE_MAX])
{
    const int width = row_step(c) * c;

    return (normed){x, widen(mean + col, c, width, scratch[0]), widen(scale + col, c, width, scratch[1]),
                    widen(beta + col, c, width, scratch[2])};
}

INLINE F normed_at(const normed *z, size_t i, size_t at, int lanes)
{
    return stored(bn_value(get(z->x, at, lanes), f_load(z->mean + i, lanes), f_load(z->scale + i, lanes),
                           f_load(z->beta + i, lanes)));
}

#define BEHIND_NORM(constant, name, from_x)                                                                  \
    static void bn_map_##name(const hvt_bn_args *a, hvt_bn_consts k, hvt_part part)                          \
    {                                                                                                        \
        const int step = row_step(a->c);                                                                     \
        float scratch[3][WIDE_MAX];                                                                          \
        const normed z = normed_of(a->x, a->mean, k.scale, a->beta, a->c, part.col, scratch);                \
        const F fa = f_splat(a->map->a), fb = f_splat(a->map->b);                                            \
        void *const y = a->y;                                                                                \
                                                                                                             \
        PIECES(a->rows, a->c, part, step,                                                                    \
               WALK(p, put(y, at, name##_value(normed_at(&z, i, at, lanes), fa, fb), lanes);););             \
    }                                                                                                        \
    static void bn_slope_##name(const hvt_bn_grad_args *a, hvt_bn_consts k, hvt_part part)                   \
    {                                                                                                        \
        const int step = row_step(a->c);                                                                     \
        float scratch[3][WIDE_MAX];                                                                          \
        const normed z = normed_of(a->x, a->mean, k.scale, a->beta, a->c, part.col, scratch);                \
        const F fa = f_splat(a->map->a), fb = f_splat(a->map->b);                                            \
        const void *const dy = a->dy;                                                                        \
        void *const dz = a->dz;                                                                              \
                                                                                                             \
        PIECES(a->rows, a->c, part, step,                                                                    \
               WALK(p, F v = normed_at(&z, i, at, lanes); v = from_x ? v : stored(name##_value(v, fa, fb));  \
                    put(dz, at, name##_gradient(v, fa, fb, get(dy, at, lanes)), lanes);););                  \
    }
HVT__MAPS(BEHIND_NORM)
#define MAP_ENTRY(constant, name, from_x)      [HVT_##constant] = map_##name,
#define SLOPE_ENTRY(constant, name, from_x)    [HVT_##constant] = slope_##name,
#define BN_MAP_ENTRY(constant, name, from_x)   [HVT_##constant] = bn_map_##name,
#define BN_SLOPE_ENTRY(constant, name, from_x) [HVT_##constant] = bn_slope_##name,
