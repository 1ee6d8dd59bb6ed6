/*
 * typed_map.h - a part of typed_tmpl.c: the functions of HVT__MAPS and their gradients on a span.
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
#define MAP_ENTRY(constant, name, from_x)   [HVT_##constant] = map_##name,
#define SLOPE_ENTRY(constant, name, from_x) [HVT_##constant] = slope_##name,
