/*
 * bench_ops - convolutions of whole models, layer by layer and pass by pass.
 *
 *     bench_ops [OPTION VALUE] ...        --help lists them
 *
 * Each pass is verified on sampled elements against a loop in double, then timed for S seconds: the median of
 * its rounds, or with --least the minimum in the thread's own time. GF/s counts multiplications and additions
 * of existing pixels (not of padding), by the definition of convolution: Winograd's 3x3 do fewer and may
 * exceed the peak. Columns: GF/s and a share for forward, backward data, backward weights; microseconds to
 * convert the weights' layout; "g" after the stride: depthwise. The share is of the bound of the pass,
 * measured in the same run: "%" of the peak (multiply-adds in registers of all threads; of pairs of bf16 if
 * the set multiplies these) or, if reading and writing the pass's arrays once would take longer than the
 * multiply-adds, "m" of the bandwidth of copying as many bytes repeatedly. Last: the model's convolutions,
 * each as often as it occurs, in milliseconds per batch and images/s.
 *
 * --errors: instead, for each layer, the root mean square of the errors of y, dx and dw against sums in
 * double, relative to the sums of the absolute products.
 */
#include "bench.h"
#include "base_impl.h"
#include "device/cpu/cpu_impl.h"
#include "device/host.h"
#include "device/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct layer {
    int c, k, window, stride, size, count; /* size: height and width of the input */
    int groups;                            /* 0: one */
} layer;

typedef struct net {
    const char *name;
    int batch, layers;
    layer layer[32];
} net;

static const net nets[] = {
    {"resnet50", 64, 24, {{3, 64, 7, 2, 32, 1},     {64, 64, 1, 1, 8, 1},    {64, 64, 3, 1, 8, 3},
                          {64, 256, 1, 1, 8, 4},    {256, 64, 1, 1, 8, 2},   {256, 128, 1, 1, 8, 1},
                          {128, 128, 3, 2, 8, 1},   {128, 128, 3, 1, 4, 3},  {128, 512, 1, 1, 4, 4},
                          {256, 512, 1, 2, 8, 1},   {512, 128, 1, 1, 4, 3},  {512, 256, 1, 1, 4, 1},
                          {256, 256, 3, 2, 4, 1},   {256, 256, 3, 1, 2, 5},  {256, 1024, 1, 1, 2, 6},
                          {512, 1024, 1, 2, 4, 1},  {1024, 256, 1, 1, 2, 5}, {1024, 512, 1, 1, 2, 1},
                          {512, 512, 3, 2, 2, 1},   {512, 512, 3, 1, 1, 2},  {512, 2048, 1, 1, 1, 3},
                          {1024, 2048, 1, 2, 2, 1}, {2048, 512, 1, 1, 1, 2}, {2048, 10, 1, 1, 1, 1}}},
    {"resnet20",
     128,
     7,
     {{3, 16, 3, 1, 32, 1},
      {16, 16, 3, 1, 32, 6},
      {16, 32, 3, 2, 32, 1},
      {32, 32, 3, 1, 16, 5},
      {32, 64, 3, 2, 16, 1},
      {64, 64, 3, 1, 8, 5},
      {64, 10, 1, 1, 1, 1}}},
    {"resnet18",
     64,
     12,
     {{3, 64, 3, 1, 32, 1},
      {64, 64, 3, 1, 32, 4},
      {64, 128, 3, 2, 32, 1},
      {128, 128, 3, 1, 16, 3},
      {64, 128, 1, 2, 32, 1},
      {128, 256, 3, 2, 16, 1},
      {256, 256, 3, 1, 8, 3},
      {128, 256, 1, 2, 16, 1},
      {256, 512, 3, 2, 8, 1},
      {512, 512, 3, 1, 4, 3},
      {256, 512, 1, 2, 8, 1},
      {512, 10, 1, 1, 1, 1}}},
    {"resnet50-224", 8, 24, {{3, 64, 7, 2, 224, 1},     {64, 64, 1, 1, 56, 1},    {64, 64, 3, 1, 56, 3},
                             {64, 256, 1, 1, 56, 4},    {256, 64, 1, 1, 56, 2},   {256, 128, 1, 1, 56, 1},
                             {128, 128, 3, 2, 56, 1},   {128, 128, 3, 1, 28, 3},  {128, 512, 1, 1, 28, 4},
                             {256, 512, 1, 2, 56, 1},   {512, 128, 1, 1, 28, 3},  {512, 256, 1, 1, 28, 1},
                             {256, 256, 3, 2, 28, 1},   {256, 256, 3, 1, 14, 5},  {256, 1024, 1, 1, 14, 6},
                             {512, 1024, 1, 2, 28, 1},  {1024, 256, 1, 1, 14, 5}, {1024, 512, 1, 1, 14, 1},
                             {512, 512, 3, 2, 14, 1},   {512, 512, 3, 1, 7, 2},   {512, 2048, 1, 1, 7, 3},
                             {1024, 2048, 1, 2, 14, 1}, {2048, 512, 1, 1, 7, 2},  {2048, 1000, 1, 1, 1, 1}}},
    {"mobilenet_v2-224",
     16,
     31,
     {{3, 32, 3, 2, 224, 1},        {32, 32, 3, 1, 112, 1, 32},   {32, 16, 1, 1, 112, 1},
      {16, 96, 1, 1, 112, 1},       {96, 96, 3, 2, 112, 1, 96},   {96, 24, 1, 1, 56, 1},
      {24, 144, 1, 1, 56, 2},       {144, 144, 3, 1, 56, 1, 144}, {144, 24, 1, 1, 56, 1},
      {144, 144, 3, 2, 56, 1, 144}, {144, 32, 1, 1, 28, 1},       {32, 192, 1, 1, 28, 3},
      {192, 192, 3, 1, 28, 2, 192}, {192, 32, 1, 1, 28, 2},       {192, 192, 3, 2, 28, 1, 192},
      {192, 64, 1, 1, 14, 1},       {64, 384, 1, 1, 14, 4},       {384, 384, 3, 1, 14, 4, 384},
      {384, 64, 1, 1, 14, 3},       {384, 96, 1, 1, 14, 1},       {96, 576, 1, 1, 14, 3},
      {576, 576, 3, 1, 14, 2, 576}, {576, 96, 1, 1, 14, 2},       {576, 576, 3, 2, 14, 1, 576},
      {576, 160, 1, 1, 7, 1},       {160, 960, 1, 1, 7, 3},       {960, 960, 3, 1, 7, 3, 960},
      {960, 160, 1, 1, 7, 2},       {960, 320, 1, 1, 7, 1},       {320, 1280, 1, 1, 7, 1},
      {1280, 1000, 1, 1, 1, 1}}},
    {"convnext_tiny-224",
     16,
     17,
     {{3, 96, 4, 4, 224, 1},
      {96, 96, 7, 1, 56, 3, 96},
      {96, 384, 1, 1, 56, 3},
      {384, 96, 1, 1, 56, 3},
      {96, 192, 2, 2, 56, 1},
      {192, 192, 7, 1, 28, 3, 192},
      {192, 768, 1, 1, 28, 3},
      {768, 192, 1, 1, 28, 3},
      {192, 384, 2, 2, 28, 1},
      {384, 384, 7, 1, 14, 9, 384},
      {384, 1536, 1, 1, 14, 9},
      {1536, 384, 1, 1, 14, 9},
      {384, 768, 2, 2, 14, 1},
      {768, 768, 7, 1, 7, 3, 768},
      {768, 3072, 1, 1, 7, 3},
      {3072, 768, 1, 1, 7, 3},
      {768, 1000, 1, 1, 1, 1}}},
};

typedef struct bench {
    hvt_device *dev;
    hvt_conv_desc d;
    hvt_op *op;
    int p; /* height and width of the output */
    size_t nx, ny, nw, file;
    void *x, *y, *dx, *dy, *w; /* of d.type */
    float *dw, *canonical, *dcanonical;
    void *ws;
    double error[3]; /* squared errors of y, dx and dw, relative to the sums of their absolute products */
} bench;

static void must(hvt_status s)
{
    bench_must("bench_ops", NULL, s);
}

/* Allocated like a model's arenas: on huge pages if there are any. */
static float *floats(size_t count)
{
    void *p = NULL;

    must(hvt__host_alloc(NULL, count * sizeof(float) + 64, &p));
    return p;
}

static void *elements(const hvt_conv_desc *d, size_t count)
{
    return floats((count * hvt_dtype_size(d->type) + sizeof(float) - 1) / sizeof(float));
}

static void fill(hvt_dtype t, void *a, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++)
        hvt__store(a, t, i, hvt__unit(hvt__draw(key, i, 0, 0)) - 0.5f);
}

static void forward(void *ctx)
{
    bench *b = ctx;
    must(hvt__conv_forward_cpu(b->op, b->d.n, b->x, b->w, b->y, b->ws));
}

static void backward_x(void *ctx)
{
    bench *b = ctx;
    must(hvt__conv_backward_x_cpu(b->op, b->d.n, b->w, b->dy, b->dx, false, b->ws));
}

static void backward_w(void *ctx)
{
    bench *b = ctx;
    must(hvt__conv_backward_w_cpu(b->op, b->d.n, b->x, b->dy, b->dw, b->ws));
}

static const struct {
    void (*fn)(void *ctx);
    bool of_dx; /* false for a first layer */
} pass[] = {{forward, false}, {backward_x, true}, {backward_w, false}};

/* ---- verification ---- */

static size_t row(const bench *b, int n, int h, int w, int size)
{
    return b->d.order == HVT_ORDER_HWN ? ((size_t)h * size + w) * b->d.n + n
                                       : ((size_t)n * size + h) * size + w;
}

static double weight(const bench *b, int k, int c, int r, int s)
{
    return b->canonical[(((size_t)k * (size_t)hvt__conv_depth(&b->d) + c) * b->d.r + r) * b->d.s + s];
}

/* element i of an array of activations */
static double value(const bench *b, const void *p, size_t i)
{
    return hvt__load(p, b->d.type, i);
}

static bool near(hvt_dtype t, double got, double sum, double size, double *error)
{
    double rounding = t == HVT_F32 ? 0 : t == HVT_F16 ? 0x1p-11 : 0x1p-8;

    *error += size > 0 ? (got - sum) / size * ((got - sum) / size) : 0;
    return fabs(got - sum) <= 1e-5 * size + rounding * fabs(sum);
}

enum { ERROR_SAMPLES = 2000 };

/* Checks one element of each result, chosen by draw number i. Padding, stride and taps as in the
 * definition. */
static bool right(bench *b, uint64_t i)
{
    const hvt_conv_desc *d = &b->d;
    uint64_t z = hvt__draw(7, i, 0, 0);
    const int depth = hvt__conv_depth(d), filters = d->k / d->groups;
    int n = (int)(z % (uint64_t)d->n), k = (int)((z >> 8) % (uint64_t)d->k),
        c = (int)((z >> 20) % (uint64_t)d->c);
    const int first = k / filters * depth, wc = c % depth,
              wx = first + wc; /* of dw: a channel that k reads */
    int p = (int)((z >> 32) % (uint64_t)b->p), q = (int)((z >> 40) % (uint64_t)b->p);
    int h = (int)((z >> 32) % (uint64_t)d->h), w = (int)((z >> 40) % (uint64_t)d->w);
    int tr = (int)((z >> 48) % (uint64_t)d->r), ts = (int)((z >> 56) % (uint64_t)d->s);
    double y = 0, ya = 0, dx = 0, dxa = 0, dw = 0, dwa = 0;

    for (int r = 0; r < d->r; r++)
        for (int s = 0; s < d->s; s++) {
            int ih = p * d->stride_h + r - d->top, iw = q * d->stride_h + s - d->top;
            int oh = h + d->top - r, ow = w + d->top - s;

            for (int j = 0; j < depth && ih >= 0 && iw >= 0 && ih < d->h && iw < d->w; j++) {
                double t = value(b, b->x, row(b, n, ih, iw, d->h) * d->c + first + j) * weight(b, k, j, r, s);
                y += t, ya += fabs(t);
            }
            if (oh < 0 || ow < 0 || oh % d->stride_h || ow % d->stride_h || oh / d->stride_h >= b->p ||
                ow / d->stride_h >= b->p)
                continue;
            for (int j = c / depth * filters; j < (c / depth + 1) * filters; j++) {
                size_t at = row(b, n, oh / d->stride_h, ow / d->stride_h, b->p) * d->k + j;
                double t = value(b, b->dy, at) * weight(b, j, wc, r, s);
                dx += t, dxa += fabs(t);
            }
        }
    for (int m = 0; m < d->n; m++)
        for (int u = 0; u < b->p; u++)
            for (int v = 0; v < b->p; v++) {
                int ih = u * d->stride_h + tr - d->top, iw = v * d->stride_h + ts - d->top;

                if (ih < 0 || iw < 0 || ih >= d->h || iw >= d->w)
                    continue;
                double t = value(b, b->x, row(b, m, ih, iw, d->h) * d->c + wx) *
                           value(b, b->dy, row(b, m, u, v, b->p) * d->k + k);
                dw += t, dwa += fabs(t);
            }
    return near(d->type, value(b, b->y, row(b, n, p, q, b->p) * d->k + k), y, ya, &b->error[0]) &&
           (d->no_dx ||
            near(d->type, value(b, b->dx, row(b, n, h, w, d->h) * d->c + c), dx, dxa, &b->error[1])) &&
           near(HVT_F32, b->dcanonical[(((size_t)k * depth + wc) * d->r + tr) * d->s + ts], dw, dwa,
                &b->error[2]);
}

static bool verify(bench *b, int samples)
{
    bool good = true;

    memset(b->y, 0xff, b->ny * hvt_dtype_size(b->d.type));
    memset(b->dx, 0xff, b->nx * hvt_dtype_size(b->d.type));
    memset(b->dw, 0xff, b->nw * sizeof *b->dw);
    forward(b);
    if (!b->d.no_dx)
        backward_x(b);
    backward_w(b);
    hvt__conv_permute_cpu(b->op, true, b->dw, b->dcanonical);
    for (int i = 0; i < samples; i++)
        good &= right(b, (uint64_t)i);
    return good;
}

/* ---- a model ---- */

static void open_layer(bench *b, hvt_device *dev, const layer *l, int batch, hvt_order order, hvt_dtype type)
{
    size_t ws;
    float *wide;

    *b = (bench){.dev = dev};
    b->d = (hvt_conv_desc){.order = order,
                           .type = type,
                           .n = batch,
                           .h = l->size,
                           .w = l->size,
                           .c = l->c,
                           .cx = l->c,
                           .k = l->k,
                           .r = l->window,
                           .s = l->window,
                           HVT_CONV_EVEN(l->stride, l->window % 2 ? l->window / 2 : 0),
                           .no_dx = l->c == 3};
    b->d.groups = l->groups ? l->groups : 1;
    b->p = hvt__conv_height(&b->d);
    must(hvt__conv_plan_cpu(dev, &b->d, &b->op, &b->nw, &ws));
    b->nx = (size_t)batch * l->size * l->size * l->c;
    b->ny = (size_t)batch * b->p * b->p * l->k;
    b->file = (size_t)l->k * hvt__conv_depth(&b->d) * l->window * l->window;
    b->x = elements(&b->d, b->nx);
    b->dx = elements(&b->d, b->nx);
    b->y = elements(&b->d, b->ny);
    b->dy = elements(&b->d, b->ny);
    b->w = elements(&b->d, b->nw);
    b->dw = floats(b->nw);
    b->canonical = floats(b->file);
    b->dcanonical = floats(b->file);
    b->ws = floats(ws / sizeof(float));
    fill(type, b->x, b->nx, 1);
    fill(type, b->dy, b->ny, 2);
    fill(type, b->w, b->file, 3); /* through w, so that the values are representable */
    for (size_t i = 0; i < b->file; i++)
        b->canonical[i] = hvt__load(b->w, type, i);
    wide = floats(b->nw);
    hvt__conv_permute_cpu(b->op, false, wide, b->canonical);
    for (size_t i = 0; i < b->nw; i++)
        hvt__store(b->w, type, i, wide[i]);
    hvt__host_release(NULL, wide);
}

static void close_layer(bench *b)
{
    hvt__op_free(b->op);
    hvt__host_release(NULL, b->x);
    hvt__host_release(NULL, b->dx);
    hvt__host_release(NULL, b->y);
    hvt__host_release(NULL, b->dy);
    hvt__host_release(NULL, b->w);
    hvt__host_release(NULL, b->dw);
    hvt__host_release(NULL, b->canonical);
    hvt__host_release(NULL, b->dcanonical);
    hvt__host_release(NULL, b->ws);
}

/* 2 * multiply-adds of one image with existing pixels */
static double work(const bench *b)
{
    double places = 0;

    for (int o = 0; o < b->p; o++)
        for (int t = 0; t < b->d.r; t++) {
            int i = o * b->d.stride_h + t - b->d.top;

            places += i >= 0 && i < b->d.h;
        }
    return 2 * places * places * hvt__conv_depth(&b->d) * b->d.k;
}

/* The options of a run. */
typedef struct choice {
    const char *model, *isa, *order, *type, *pass;
    int batch, layer, threads, least, tile, errors;
    double seconds;
} choice;

static choice o = {
    .model = "resnet50", .order = "hwn", .type = "f32", .pass = "all", .threads = 1, .seconds = 0.1};

static const bench_row options[] = {
    {"--model", "resnet50|resnet20|resnet18|resnet50-224|mobilenet_v2-224|convnext_tiny-224",
     "(resnet50; resnet18 has the CIFAR stem)", &o.model, .one_of = true},
    {"--batch", "N", "images (the model's own: 64, 128, 64, 8, 16, 16)", .number = &o.batch, .least = 1},
    {"--layer", "N", "only the model's N-th (0: all)", .number = &o.layer},
    {"--type", "f32|bf16|f16", "of activations (f32)", &o.type, .one_of = true},
    {"--isa", "NAME", "instruction set (auto's)", &o.isa},
    {"--tile", "4|2|1", "most outputs in each direction of Winograd's tiles; 1: direct (4)",
     .number = &o.tile, .one_of = true},
    {"--threads", "N", "(1)", .number = &o.threads, .least = 1, .most = HVT_MAX_THREADS},
    {"--order", "hwn|nhw", "of rows (hwn)", &o.order, .one_of = true},
    {"--pass", "all|forward|data|weights", "which is timed; all are verified (all)", &o.pass, .one_of = true},
    {"--errors", "", "not the times but the errors of y, dx and dw against f64", .flag = &o.errors},
    {"--seconds", "S", "for each layer and pass (0.1)", .real = &o.seconds},
    {"--least", "", "the shortest round in processor time, not the median by the clock", .flag = &o.least},
};

/* GFLOP/s and GB/s of all threads */
typedef struct limits {
    hvt_thread_pool *pool;
    const char *isa;
    bool pairs;
    size_t bytes; /* of a thread's copies */
    double each[HVT_MAX_THREADS];
} limits;

static void peak_job(void *ctx, int job, int thread)
{
    limits *l = ctx;

    (void)thread;
    l->each[job] = l->pairs ? bench_peak_bf16(l->isa) : bench_peak(l->isa);
}

static void copy_job(void *ctx, int job, int thread)
{
    limits *l = ctx;

    (void)thread;
    l->each[job] = bench_copy(l->bytes);
}

static double measure(limits *l, hvt_job_fn *fn)
{
    double sum = 0;

    hvt__parallel_for(l->pool, o.threads, fn, l);
    for (int t = 0; t < o.threads; t++)
        sum += l->each[t];
    return sum;
}

static void print_share(double gflop, double gbytes, double peak, double copy, double seconds)
{
    const double compute = gflop / peak, move = gbytes / copy;

    if (seconds > 0)
        printf("  %6.1f %4.0f %c", gflop / seconds, 100 * (move > compute ? move : compute) / seconds,
               move > compute ? 'm' : '%');
    else
        printf("       -      ");
}

static int run_net(const net *m, hvt_device *dev, limits *lim, double peak)
{
    static const char *const names[] = {"forward", "data", "weights"};
    const hvt_order order = strcmp(o.order, "nhw") ? HVT_ORDER_HWN : HVT_ORDER_NHW;
    const hvt_dtype type = !strcmp(o.type, "f16") ? HVT_F16 : !strcmp(o.type, "bf16") ? HVT_BF16 : HVT_F32;
    const int batch = o.batch ? o.batch : m->batch;
    double total[3] = {0}, flops = 0, sum;

    printf("%-28s x  forward        backward data  backward weights\n", m->name);
    for (const layer *l = m->layer; l < m->layer + m->layers; l++) {
        double time[3] = {0}, gf, bytes, copy;
        bench b;

        if (o.layer && l != m->layer + o.layer - 1)
            continue;
        open_layer(&b, dev, l, batch, order, type);
        if (!verify(&b, o.errors ? ERROR_SAMPLES : 100)) {
            printf("%4d -> %4d, %dx%d/%d at %d: WRONG\n", l->c, l->k, l->window, l->window, l->stride,
                   l->size);
            close_layer(&b);
            return 1;
        }
        if (o.errors) {
            printf("%4d -> %4d, %dx%d/%d at %3d   batch %d errors", l->c, l->k, l->window, l->window,
                   l->stride, l->size, batch);
            for (int i = 0; i < 3; i++)
                printf(" %.3g", sqrt(b.error[i] / ERROR_SAMPLES));
            printf("\n");
            close_layer(&b);
            continue;
        }
        gf = work(&b) * batch * 1e-9;
        for (int i = 0; i < 3; i++) {
            bench_seconds t = {0};

            if (strcmp(o.pass, "all") && strcmp(o.pass, names[i]))
                continue;
            if (!(b.d.no_dx && pass[i].of_dx)) {
                t = bench_time(pass[i].fn, &b, o.seconds);
                flops += gf * l->count;
            }
            time[i] = o.least ? t.least : t.median;
        }
        bytes = (double)(b.nx + b.ny + b.nw) * (double)hvt_dtype_size(type);
        lim->bytes = (size_t)(bytes / o.threads);
        copy = measure(lim, copy_job);
        printf("%4d -> %4d, %dx%d/%d%c at %3d  %d", l->c, l->k, l->window, l->window, l->stride,
               b.d.groups > 1 ? 'g' : ' ', l->size, l->count);
        for (int i = 0; i < 3; i++)
            print_share(gf, 1e-9 * bytes, peak, copy, time[i]);
        printf("\n");
        fflush(stdout);
        for (int i = 0; i < 3; i++)
            total[i] += time[i] * l->count;
        close_layer(&b);
    }
    if (o.errors)
        return 0;
    sum = total[0] + total[1] + total[2];
    printf("%s batch %d %s %s: %.1f ms (forward %.1f, data %.1f, weights %.1f), %.1f GF/s, %.0f %% "
           "of %.1f, %.1f images/s\n",
           m->name, batch, o.order, o.type, sum * 1e3, total[0] * 1e3, total[1] * 1e3, total[2] * 1e3,
           flops / sum, 100 * flops / sum / peak, peak, batch / sum);
    return 0;
}

int main(int argc, char **argv)
{
    const net *chosen = NULL;
    int failed;
    hvt_cpu cpu = {0};
    hvt_device dev = {.ops = &hvt_device_cpu, .state = &cpu};
    limits lim = {0};
    double peak;

    bench_options("bench_ops", NULL, options, HVT_LEN(options), argc, argv);
    for (size_t i = 0; i < HVT_LEN(nets); i++)
        if (!strcmp(nets[i].name, o.model))
            chosen = &nets[i];
    for (int i = 0; i < hvt__isa_count; i++)
        if (o.isa ? hvt_cpu_isa_supported(i) && !strcmp(o.isa, hvt_cpu_isa_name(i)) : hvt_cpu_isa_auto(i))
            cpu.isa = hvt__isas[i];
    if (!cpu.isa)
        bench_refuse("bench_ops", NULL, "this processor has no --isa %s", o.isa);
    if (o.layer > chosen->layers)
        bench_refuse("bench_ops", NULL, "--layer is %d, and %s has %d layers", o.layer, o.model,
                     chosen->layers);
    must(hvt__thread_pool_open(o.threads, NULL, 0, false, &cpu.pool));
    hvt__floats_enter();
    dev.conv_tile = o.tile;
    bench_header("bench_ops", cpu.isa->name, o.threads);
    lim.pool = cpu.pool;
    lim.isa = cpu.isa->name;
    lim.pairs = cpu.isa->bf16 && !strcmp(o.type, "bf16");
    peak = measure(&lim, peak_job);
    printf("peak %.1f GF/s%s\n", peak, lim.pairs ? " of pairs of bf16" : "");
    failed = run_net(chosen, &dev, &lim, peak);
    hvt__thread_pool_close(&cpu.pool);
    return failed;
}
