/*
 * The cpu device's convolutions: shapes, and the choice of the algorithm. A new algorithm needs a file and a
 * line in the table.
 */
#include "conv_impl.h"
#include "device/host.h"

#include <assert.h>

/* The first one that suits a shape is used. */
static const conv_algorithm *const algorithms[] = {
    &hvt__conv_depthwise, &hvt__conv_stem, &hvt__conv_winograd_4, &hvt__conv_winograd_2, &hvt__conv_direct};

static const conv_algorithm *choose(const conv_op *op, int most_tile)
{
    int i = 0;

    while (algorithms[i]->suits &&
           ((most_tile && algorithms[i]->tile > most_tile) || !algorithms[i]->suits(op)))
        i++;
    return algorithms[i];
}

static hvt_status check(const hvt_device *d, const hvt_conv_desc *c)
{
    HVT_TRY(hvt__conv_check(d, c));
    HVT_CHECK((long)c->n * c->h * c->w <= INT_MAX && (long)c->r * c->s <= 1 << 20 &&
                  (c->r - 1L) * c->dilation_h <= 1 << 20 && (c->s - 1L) * c->dilation_w <= 1 << 20 &&
                  c->top <= 1 << 20 && c->left <= 1 << 20 && c->bottom <= 1 << 20 && c->right <= 1 << 20 &&
                  (long)c->r * c->s * c->c <= INT_MAX / CONV_PANEL && c->k <= INT_MAX - CONV_PANEL,
              E_SHAPE, "convolution of %d images of %dx%dx%d by %d filters of %dx%d is too large to index",
              c->n, c->h, c->w, c->c, c->k, c->r, c->s);
    return HVT_OK;
}

/* Counts the (output, tap) pairs along one dimension whose input exists. */
static long valid_products(int in, int out, int window, int dilation, int stride, int pad)
{
    long count = 0;

    for (int o = 0; o < out; o++)
        for (int t = 0; t < window; t++)
            count += hvt__input_index(o, t * dilation, in, stride, pad) >= 0;
    return count;
}

/* Returns the largest number of groups whose block fits in one or two vectors. */
static int groups_of_block(const hvt_conv_desc *c, int widest)
{
    enum { NARROW = 16 };
    int count = 1;

    for (int i = 2; i <= c->groups && i * widest <= NARROW; i++)
        if (c->groups % i == 0)
            count = i;
    return count;
}

static void set_blocks(conv_op *op, const hvt_conv_desc *c)
{
    op->depth = c->c / c->groups;
    op->filters = c->k / c->groups;
    op->depthwise = c->groups > 1 && op->depth == 1;
    op->blocks = op->depthwise
                     ? op->filters
                     : c->groups / groups_of_block(c, op->depth > op->filters ? op->depth : op->filters);
    op->c = op->depthwise ? 1 : c->c / op->blocks;
    op->k = c->k / op->blocks;
    op->x_row = c->c;
    op->y_row = c->k;
}

static void set_shape(conv_op *op, const hvt_conv_desc *c)
{
    /* flat: a 1x1 convolution of stride 1, whose pixels can be treated as images */
    const bool nhw = c->order == HVT_ORDER_NHW, flat = nhw && c->r == 1 && c->s == 1 && c->stride_h == 1 &&
                                                       c->stride_w == 1 && !c->top && !c->left &&
                                                       !c->bottom && !c->right;

    op->hwn = flat || !nhw;
    op->rows_per_image = flat ? c->h * c->w : 1;
    op->n = c->n * op->rows_per_image;
    op->h = flat ? 1 : c->h;
    op->w = flat ? 1 : c->w;
    set_blocks(op, c);
    op->r = c->r;
    op->s = c->s;
    op->taps = c->r * c->s;
    op->stride_h = c->stride_h;
    op->stride_w = c->stride_w;
    op->top = c->top;
    op->left = c->left;
    op->dilation_h = c->dilation_h;
    op->dilation_w = c->dilation_w;
    op->even = c->stride_h == c->stride_w && c->top == c->left && c->top == c->bottom && c->top == c->right &&
               c->dilation_h == 1 && c->dilation_w == 1 && c->groups == 1;
    op->oh = flat ? 1 : hvt__conv_height(c);
    op->ow = flat ? 1 : hvt__conv_width(c);
    op->x_pixel = op->x_row * (op->hwn ? (long)op->n : 1);
    op->y_pixel = op->y_row * (op->hwn ? (long)op->n : 1);
    op->x_image = op->x_row * (op->hwn ? 1 : (long)op->h * op->w);
    op->y_image = op->y_row * (op->hwn ? 1 : (long)op->oh * op->ow);
    op->products = valid_products(op->h, op->oh, op->r, op->dilation_h, op->stride_h, op->top) *
                   valid_products(op->w, op->ow, op->s, op->dilation_w, op->stride_w, op->left);
}

static conv_op describe(hvt_device *d, const hvt_conv_desc *c)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    conv_op op = {.vnni2 = c->type == HVT_BF16 && cpu->isa->bf16,
                  .type = c->type,
                  .typed = cpu->isa->el->in[c->type],
                  .no_dx = c->no_dx,
                  .pool = cpu->pool};

    op.kern = op.vnni2 ? cpu->isa->bf16 : cpu->isa->conv;
    assert(op.kern->rows[0] <= CONV_TILE_ROWS && op.kern->rows[1] <= CONV_TILE_ROWS);
    set_shape(&op, c);
    return op;
}

/* Log the choice in one line (HVT_LOG=debug). */
static void log_plan(const conv_op *op, const hvt_conv_desc *c)
{
    char how[256];

    op->algorithm->describe(op, how, sizeof how);
    HVT_DEBUG("cpu: %s conv %d -> %d, %dx%d/%dx%d at %dx%d, %d images: %s", hvt_dtype_name(op->type), c->c,
              c->k, op->r, op->s, op->stride_h, op->stride_w, c->h, c->w, c->n, how);
}

static void conv_free_cpu(hvt_op *head)
{
    conv_op *op = (conv_op *)head;

    if (op->algorithm->free)
        op->algorithm->free(op);
    free(op->scale);
    free(op);
}

hvt_status hvt__conv_plan_cpu(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                              size_t *ret_ws)
{
    conv_op shape, *op;
    hvt_status s;

    HVT_TRY(check(d, c));
    shape = describe(d, c);
    HVT_CHECK(shape.products <= INT_MAX - shape.taps && (long)shape.oh * shape.ow <= INT_MAX / shape.n,
              E_SHAPE, "convolution of %dx%d pixels by %dx%d taps is too large to index", c->h, c->w, c->r,
              c->s);
    shape.algorithm = choose(&shape, d->conv_tile);
    op = calloc(1, shape.algorithm->size);
    HVT_CHECK(op, E_MEM, "no memory for a convolution");
    *op = shape;
    op->head = (hvt_op){.dev = d, .free = conv_free_cpu};
    if (op->algorithm->plan)
        HVT_TRY_OR(fail, op->algorithm->plan(op));
    if (op->algorithm->takes_norm && op->algorithm->takes_norm(op)) {
        op->head.takes_norm = true;
        op->scale = malloc(sizeof *op->scale * (size_t)c->c);
        HVT_CHECK_OR(fail, op->scale, E_MEM, "no memory for a convolution");
    }
    *ret_op = &op->head;
    *ret_weights = conv_weights(op);
    *ret_ws = op->algorithm->bytes(op);
    log_plan(op, c);
    return HVT_OK;
fail:
    conv_free_cpu(&op->head);
    return s;
}

void hvt__conv_set_norm_cpu(hvt_op *head, const hvt_bn_args *a)
{
    HVT_FLOATS;
    conv_op *op = (conv_op *)head;

    op->normed = a;
    if (!a)
        return;
    op->norm = *a;
    for (int c = 0; c < a->c; c++)
        op->scale[c] = a->gamma[c] * a->rstd[c];
}

hvt_status hvt__conv_forward_cpu(hvt_op *head, int real, const void *x, const void *w, void *y, void *ws)
{
    const conv_op *op = (const conv_op *)head;

    if (real)
        op->algorithm->forward(op, real, x, w, y, ws);
    return HVT_OK;
}

hvt_status hvt__conv_backward_x_cpu(hvt_op *head, int real, const void *w, const void *dy, void *dx, bool add,
                                    void *ws)
{
    const conv_op *op = (const conv_op *)head;

    if (real)
        op->algorithm->backward_x(op, real, w, dy, dx, add, ws);
    return HVT_OK;
}

hvt_status hvt__conv_backward_w_cpu(hvt_op *head, int real, const void *x, const void *dy, float *dw,
                                    void *ws)
{
    const conv_op *op = (const conv_op *)head;

    if (real)
        op->algorithm->backward_w(op, real, x, dy, dw, ws);
    else
        memset(dw, 0, sizeof *dw * conv_weights(op));
    return HVT_OK;
}
