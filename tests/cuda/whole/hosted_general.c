/* The hosted device's general ops, see hosted.c. */
#include "hosted.h"

hvt_status hvt__map_forward_hosted(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *x,
                                   void *y)
{
    stage s = begin(d);
    size_t all = n * hvt_dtype_size(t);
    int ax = in(&s, x, all), ay = out(&s, y, all);

    return RUN(s, s.h->inner->ops->general.map_forward(s.h->inner, n, t, f, dev(&s, ax), dev(&s, ay)));
}

hvt_status hvt__map_backward_hosted(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *saved,
                                    const void *dy, void *dx, bool add)
{
    stage s = begin(d);
    size_t all = n * hvt_dtype_size(t);
    int kept = in(&s, saved, all), ag = in(&s, dy, all), ax = out(&s, dx, all);

    return RUN(s, s.h->inner->ops->general.map_backward(s.h->inner, n, t, f, dev(&s, kept), dev(&s, ag),
                                                        dev(&s, ax), add));
}

/* b or its gradient */
static int operand(stage *s, const hvt_binary_args *a, const void *b, bool written)
{
    const size_t one = hvt_dtype_size(a->across < HVT_PER_CHANNEL ? a->type : HVT_F32);

    switch (a->across) {
    case HVT_SAME:
        return matrix(s, b, hvt__rows(a->order, a->pixels, a->n, a->n), (size_t)a->c * one, written);
    case HVT_PER_PIXEL:
        return matrix(s, b, hvt__rows(a->order, a->pixels, a->n, a->n), one, written);
    case HVT_PER_IMAGE:
        return note(s, b, (size_t)a->n * (size_t)a->c * one, written, (turn){0});
    case HVT_PER_CHANNEL:
        return note(s, b, (size_t)a->c * one, written, (turn){0});
    case HVT_PER_ELEMENT:
        return note(s, b, (size_t)a->at.count * (size_t)a->c * one, written, (turn){0});
    case HVT_ONE_NUMBER:
        break;
    }
    return note(s, b, one, written, (turn){0});
}

static hvt_status binary(hvt_device *d, const hvt_binary_args *a, bool forward)
{
    stage s = begin(d);
    const hvt_rows rows = hvt__rows(a->order, a->pixels, a->n, a->n);
    const size_t row = (size_t)a->c * hvt_dtype_size(a->type);
    int aa = matrix(&s, a->a, rows, row, false), b = operand(&s, a, a->b, false),
        y = forward ? matrix(&s, a->y, rows, row, true) : -1,
        dy = forward ? -1 : matrix(&s, a->dy, rows, row, false),
        da = forward ? -1 : matrix(&s, a->da, rows, row, true),
        db = forward ? -1 : operand(&s, a, a->db, true);
    bool ready = go(&s);
    hvt_binary_args k = *a;

    k.order = HVT_ORDER_NHW;
    k.a = dev(&s, aa);
    k.b = dev(&s, b);
    k.y = dev(&s, y);
    k.dy = dev(&s, dy);
    k.da = dev(&s, da);
    k.db = dev(&s, db);
    if (!ready)
        return end(&s, HVT_OK);
    return end(&s, forward ? s.h->inner->ops->general.binary_forward(s.h->inner, &k)
                           : s.h->inner->ops->general.binary_backward(s.h->inner, &k));
}

hvt_status hvt__binary_forward_hosted(hvt_device *d, const hvt_binary_args *a)
{
    return binary(d, a, true);
}

hvt_status hvt__binary_backward_hosted(hvt_device *d, const hvt_binary_args *a)
{
    return binary(d, a, false);
}

hvt_status hvt__move_hosted(hvt_device *d, const hvt_move_args *a)
{
    stage s = begin(d);
    int from = images(&s, a->from, a->order, a->type, a->n, a->src.h, a->src.w, a->src.c, false),
        to = images(&s, a->to, a->order, a->type, a->n, a->dst.h, a->dst.w, a->dst.c, true);
    bool ready = go(&s);
    hvt_move_args k = *a;

    k.order = HVT_ORDER_NHW;
    k.from = dev(&s, from);
    k.to = dev(&s, to);
    return end(&s, ready ? s.h->inner->ops->general.move(s.h->inner, &k) : HVT_OK);
}

hvt_status hvt__transpose_hosted(hvt_device *d, size_t n, hvt_dtype t, int rows, int cols, int block,
                                 const void *x, void *y, bool add)
{
    stage s = begin(d);
    size_t all = n * (size_t)rows * (size_t)cols * (size_t)block * hvt_dtype_size(t);
    int ax = in(&s, x, all), ay = out(&s, y, all);

    return RUN(s, s.h->inner->ops->general.transpose(s.h->inner, n, t, rows, cols, block, dev(&s, ax),
                                                     dev(&s, ay), add));
}

static hvt_status norm(hvt_device *d, const hvt_norm_args *a, bool forward)
{
    stage s = begin(d);
    const hvt_rows rows = hvt__rows(a->order, a->pixels, a->n, a->n);
    const size_t row = (size_t)a->c * hvt_dtype_size(a->type), group = (size_t)a->groups * sizeof(float),
                 params = (size_t)(a->per_element ? a->pixels : 1) * (size_t)a->c * sizeof(float);
    int x = matrix(&s, a->x, rows, row, false), gamma = in(&s, a->gamma, params),
        beta = in(&s, a->beta, params),
        mean = a->per_pixel ? matrix(&s, a->mean, rows, group, forward)
                            : note(&s, a->mean, (size_t)a->n * group, forward, (turn){0}),
        rstd = a->per_pixel ? matrix(&s, a->rstd, rows, group, forward)
                            : note(&s, a->rstd, (size_t)a->n * group, forward, (turn){0}),
        y = forward ? matrix(&s, a->y, rows, row, true) : -1,
        dy = forward ? -1 : matrix(&s, a->dy, rows, row, false),
        dx = forward ? -1 : matrix(&s, a->dx, rows, row, true),
        dgamma = forward ? -1 : out(&s, a->dgamma, params), dbeta = forward ? -1 : out(&s, a->dbeta, params);
    bool ready = go(&s);
    hvt_norm_args k = *a;

    k.order = HVT_ORDER_NHW;
    k.x = dev(&s, x);
    k.gamma = dev(&s, gamma);
    k.beta = dev(&s, beta);
    k.mean = dev(&s, mean);
    k.rstd = dev(&s, rstd);
    k.y = dev(&s, y);
    k.dy = dev(&s, dy);
    k.dx = dev(&s, dx);
    k.dgamma = dev(&s, dgamma);
    k.dbeta = dev(&s, dbeta);
    if (!ready)
        return end(&s, HVT_OK);
    return end(&s, forward ? s.h->inner->ops->general.norm_forward(s.h->inner, &k)
                           : s.h->inner->ops->general.norm_backward(s.h->inner, &k));
}

hvt_status hvt__norm_forward_hosted(hvt_device *d, const hvt_norm_args *a)
{
    return norm(d, a, true);
}

hvt_status hvt__norm_backward_hosted(hvt_device *d, const hvt_norm_args *a)
{
    return norm(d, a, false);
}

size_t hvt__attention_room_hosted(hvt_device *d, const hvt_attention_args *a)
{
    return inner_of(d)->ops->general.attention_room(inner_of(d), a);
}

static void *moved(void *p, size_t bytes)
{
    return p ? (char *)p + bytes : NULL;
}

/* Queries, keys and values may be columns of one matrix, which is one span then. */
static hvt_status attention(hvt_device *d, const hvt_attention_args *a, bool forward)
{
    stage s = begin(d);
    hvt_attention_args k = *a;
    const void **const x[3] = {&k.q.x, &k.k.x, &k.v.x};
    void **const dx[3] = {&k.q.dx, &k.k.dx, &k.v.dx};
    const size_t size = hvt_dtype_size(a->type),
                 row[3] = {(size_t)a->q.pitch * size, (size_t)a->k.pitch * size, (size_t)a->v.pitch * size};
    const int queries = a->windows * a->queries, keys = a->windows * a->keys,
              count[3] = {queries, keys, keys};
    const hvt_rows out_rows = hvt__rows(a->order, queries, a->n, a->n);
    const size_t number = sizeof(float), elements = a->table ? (size_t)a->elements : 0,
                 scores = (size_t)a->queries * (size_t)a->keys, places = (size_t)a->heads * scores;
    const size_t out_row = (size_t)a->heads * (size_t)a->width * size;
    size_t column[3] = {0};
    int ix[3], idx[3], pixel, table, bias, mask, y, dy, dtable = -1, first = -1, where = -1, ws;
    bool ready;

    for (int i = 1; i < 3; i++)
        if (*x[i] >= *x[0] && (size_t)((const char *)*x[i] - (const char *)*x[0]) < row[0])
            column[i] = (size_t)((const char *)*x[i] - (const char *)*x[0]);
    for (int i = 0; i < 3; i++) {
        const hvt_rows rows = hvt__rows(a->order, count[i], a->n, a->n);

        ix[i] = matrix(&s, (const char *)*x[i] - column[i], rows, row[i], false);
        idx[i] = forward || !*dx[i] ? -1 : matrix(&s, (char *)*dx[i] - column[i], rows, row[i], true);
    }
    pixel = in(&s, a->pixel, (size_t)queries * sizeof *a->pixel);
    table = in(&s, a->table, elements * number);
    bias = a->table ? in(&s, a->bias, places * sizeof *a->bias) : -1;
    mask = in(&s, a->mask, (size_t)a->windows * scores * number);
    y = forward ? matrix(&s, a->y, out_rows, out_row, true) : -1;
    dy = forward ? -1 : matrix(&s, a->dy, out_rows, out_row, false);
    if (!forward && a->table && a->dtable) {
        dtable = out(&s, a->dtable, elements * number);
        first = in(&s, a->first, (elements + 1) * sizeof *a->first);
        where = in(&s, a->where, places * sizeof *a->where);
    }
    ws = out(&s, a->ws, hvt__attention_room_hosted(d, a));
    ready = go(&s);
    k.order = HVT_ORDER_NHW;
    for (int i = 0; i < 3; i++) {
        *x[i] = moved(dev(&s, ix[i]), column[i]);
        *dx[i] = moved(dev(&s, idx[i]), column[i]);
    }
    k.pixel = dev(&s, pixel);
    k.table = dev(&s, table);
    k.bias = dev(&s, bias);
    k.mask = dev(&s, mask);
    k.y = dev(&s, y);
    k.dy = dev(&s, dy);
    k.dtable = dev(&s, dtable);
    k.first = dev(&s, first);
    k.where = dev(&s, where);
    k.ws = dev(&s, ws);
    if (!ready)
        return end(&s, HVT_OK);
    return end(&s, forward ? s.h->inner->ops->general.attention_forward(s.h->inner, &k)
                           : s.h->inner->ops->general.attention_backward(s.h->inner, &k));
}

hvt_status hvt__attention_forward_hosted(hvt_device *d, const hvt_attention_args *a)
{
    return attention(d, a, true);
}

hvt_status hvt__attention_backward_hosted(hvt_device *d, const hvt_attention_args *a)
{
    return attention(d, a, false);
}

hvt_status hvt__dropout_hosted(hvt_device *d, const hvt_dropout_args *a)
{
    stage s = begin(d);
    const hvt_rows rows = hvt__rows(a->order, a->pixels, a->n, a->n);
    const size_t row = (size_t)a->c * hvt_dtype_size(a->type);
    int x = matrix(&s, a->x, rows, row, false), y = matrix(&s, a->y, rows, row, true),
        keys = in(&s, a->keys, (size_t)a->n * sizeof *a->keys);
    bool ready = go(&s);
    hvt_dropout_args k = *a;

    k.order = HVT_ORDER_NHW;
    k.x = dev(&s, x);
    k.y = dev(&s, y);
    k.keys = dev(&s, keys);
    return end(&s, ready ? s.h->inner->ops->general.dropout(s.h->inner, &k) : HVT_OK);
}

hvt_status hvt__rotary_hosted(hvt_device *d, const hvt_rotary_args *a)
{
    stage s = begin(d);
    const hvt_rows rows = hvt__rows(a->order, a->pixels, a->n, a->n);
    const size_t row = (size_t)a->c * hvt_dtype_size(a->type),
                 factors = (size_t)a->pixels * (size_t)a->width * sizeof(float);
    int x = matrix(&s, a->x, rows, row, false), y = matrix(&s, a->y, rows, row, true),
        own = in(&s, a->own, factors), other = in(&s, a->other, factors);
    bool ready = go(&s);
    hvt_rotary_args k = *a;

    k.order = HVT_ORDER_NHW;
    k.x = dev(&s, x);
    k.y = dev(&s, y);
    k.own = dev(&s, own);
    k.other = dev(&s, other);
    return end(&s, ready ? s.h->inner->ops->general.rotary(s.h->inner, &k) : HVT_OK);
}
