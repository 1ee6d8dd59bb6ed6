/*
 * typed_map.h - part of typed_tmpl.c, after typed_matrix.h: the functions of HVT__MAPS and their gradients,
 * on a span and after a batch norm.
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

/* After a batch norm a function reads z rounded to TYPE, as if the norm were stored. A clamp gives the same
 * result without that rounding. */
#define BETWEEN(constant, z) (HVT_##constant == HVT_HARDTANH ? (z) : stored(z))
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
               WALK(p, put(y, at, name##_value(BETWEEN(constant, normed_at(&z, i, at, lanes)), fa, fb),      \
                           lanes);););                                                                       \
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
               WALK(p, F v = BETWEEN(constant, normed_at(&z, i, at, lanes));                                 \
                    v = from_x ? v : stored(name##_value(v, fa, fb));                                        \
                    put(dz, at, name##_gradient(v, fa, fb, get(dy, at, lanes)), lanes);););                  \
    }
HVT__MAPS(BEHIND_NORM)
#define MAP_ENTRY(constant, name, from_x)      [HVT_##constant] = map_##name,
#define SLOPE_ENTRY(constant, name, from_x)    [HVT_##constant] = slope_##name,
#define BN_MAP_ENTRY(constant, name, from_x)   [HVT_##constant] = bn_map_##name,
#define BN_SLOPE_ENTRY(constant, name, from_x) [HVT_##constant] = bn_slope_##name,
