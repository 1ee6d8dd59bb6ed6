/*
 * launches - what a step of ResNet-50 on 224x224 images queues on a GPU. Needs no GPU.
 *
 *     launches TYPE BATCH [GPU.json]
 *
 * Trains two steps on a device whose ops are those of device cuda, down to each launch and its blocks and
 * threads, but nothing is launched and no memory is touched. Prints the second step, a line for each launch:
 *
 *     kernel OP NAME BLOCKS THREADS READ WRITTEN
 *     cudnn  VERSION - - - 0 0
 *     conv   PASS n,h,w,c,k,r,s,stride,pad ENGINE WORKSPACE READ WRITTEN
 *     gemm   PASS n,c,k - 0 READ WRITTEN
 *     memory OP - - - READ WRITTEN
 *
 * READ and WRITTEN are bytes of arrays, each counted once per kernel, however often it is read there. c is
 * the number of stored channels. For a described GPU (tests/cuda/sm_*.json) cuDNN names the configuration
 * that it expects to be fastest; without one, as with all versions of cuDNN so far, the gradient of 16-bit
 * filters is computed in 16 bits and cast.
 */
#define _GNU_SOURCE
#include "launches.h"
#include "../../cuda/conv_impl.h"
#include "../../cuda/cuda_impl.h"
#include "../../cuda/kernels.h"
#include "hvt/hvt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SIDE = 224, CLASSES = 1000, EXPECTED_MOST = 4, JSON_MOST = 4096 };

static bool counting;
static plan_target gpu; /* .gpu NULL: no description */

static void must(hvt_status s)
{
    if (s == HVT_OK)
        return;
    fprintf(stderr, "launches: %s\n", hvt_last_error());
    exit(1);
}

static void must_cudnn(cudnnStatus_t s)
{
    must(hvt__cudnn_check(NULL, s, __FILE__, __LINE__, "a device's description"));
}

/* ---- launches ---- */

static struct {
    const char *op;
    size_t read[EXPECTED_MOST], written[EXPECTED_MOST];
    int expected, seen;
} now;

/* Sets the bytes that the next launch of the current op reads and writes. */
static void will(size_t read, size_t written)
{
    now.read[now.expected] = read;
    now.written[now.expected++] = written;
}

hvt_status note_launch(const char *kernel, size_t blocks, unsigned threads)
{
    int i = now.seen++;

    if (i < now.expected && counting)
        printf("kernel\t%s\t%s\t%zu\t%u\t%zu\t%zu\n", now.op, kernel, blocks, threads, now.read[i],
               now.written[i]);
    return HVT_OK;
}

/* Checks, after an op, that it launched what was expected. */
static hvt_status launched(const char *op, hvt_status s)
{
    HVT_CHECK(now.seen == now.expected, E_ARG, "%s launches %d kernels, not %d", op, now.seen, now.expected);
    now.seen = now.expected = 0;
    return s;
}

#define RUN(name, ...) (now.op = #name, launched(#name, hvt__##name##_cuda(__VA_ARGS__)))

static hvt_status note_memory(const char *op, size_t read, size_t written)
{
    if (counting && written)
        printf("memory\t%s\t-\t-\t-\t%zu\t%zu\n", op, read, written);
    return HVT_OK;
}

/* ---- memory, of which addresses are all that is used ---- */

static hvt_status alloc_noted(hvt_device *d, size_t bytes, void **ret_ptr)
{
    void *p = mmap(NULL, bytes + !bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    (void)d;
    HVT_CHECK(p != MAP_FAILED, E_MEM, "no addresses for %zu bytes", bytes);
    *ret_ptr = p;
    return HVT_OK;
}

static void release_noted(hvt_device *d, void *ptr)
{
    (void)d;
    (void)ptr; /* freed when the process ends */
}

static hvt_status upload_noted(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    (void)d;
    (void)dst;
    (void)host;
    (void)bytes;
    return HVT_OK;
}

static hvt_status download_noted(hvt_device *d, void *host, const void *src, size_t bytes)
{
    (void)d;
    (void)src;
    memset(host, 0, bytes);
    return HVT_OK;
}

static hvt_status put_noted(hvt_device *d, void *dst, const void *host, size_t bytes)
{
    will(bytes, bytes);
    now.op = "put";
    return launched("put", hvt__cuda_put(d, dst, host, bytes));
}

static hvt_status copy_noted(hvt_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)dst;
    (void)src;
    return note_memory("copy", bytes, bytes);
}

static hvt_status zero_noted(hvt_device *d, void *dst, size_t bytes)
{
    (void)d;
    (void)dst;
    return note_memory("zero", 0, bytes);
}

/* ---- convolutions ---- */

enum { FORWARD, BACKWARD_X, BACKWARD_X_ADD, BACKWARD_W, PLANS };
static const char *const plan_name[PLANS] = {"forward", "backward_x", "backward_x_add", "backward_w"};

typedef struct conv {
    hvt_conv head;
    bool linear, cast; /* the gradient of w is cast to f32 */
    size_t x, w, y;    /* elements */
    char engine[PLANS][PLAN_NAME_MOST];
    size_t ws[PLANS];
} conv;

/* Like plan_passes() of conv_cudnn.c. */
static hvt_status plan_pass(conv *o, int which, hvt_dtype out, bool *ret_found)
{
    const conv_pass pass = which == BACKWARD_W ? CONV_BACKWARD_W : which ? CONV_BACKWARD_X : CONV_FORWARD;
    conv_request w = {.pass = pass,
                      .conv = o->head.d,
                      .out = out,
                      .add = which == BACKWARD_X_ADD,
                      .ws_most = CUDNN_WORKSPACE_MOST};
    conv_plan p = {0};
    int count = 0;

    HVT_TRY(hvt__cudnn_plan(&gpu, &w, 1, &p, &count));
    *ret_found = count > 0;
    if (count) {
        memcpy(o->engine[which], p.name, sizeof p.name);
        o->ws[which] = p.ws;
    }
    hvt__cudnn_plan_free(&p);
    return HVT_OK;
}

static hvt_status plan_passes(conv *o)
{
    hvt_dtype t = o->head.d.type;
    bool found = false;

    for (int i = 0; i < BACKWARD_W; i++)
        if (i == FORWARD || !o->head.d.no_dx) {
            HVT_TRY(plan_pass(o, i, t, &found));
            HVT_CHECK(found, E_UNSUPPORTED, "cuDNN %zu has no engine for %s", hvt__nv.cudnnGetVersion(),
                      plan_name[i]);
        }
    HVT_TRY(plan_pass(o, BACKWARD_W, HVT_F32, &found));
    o->cast = !found;
    if (!found)
        HVT_TRY(plan_pass(o, BACKWARD_W, t, &found));
    HVT_CHECK(found, E_UNSUPPORTED, "cuDNN has no engine for backward_w");
    return HVT_OK;
}

static hvt_status conv_plan_noted(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                                  size_t *ret_ws)
{
    conv *o = calloc(1, sizeof *o);

    HVT_CHECK(o, E_MEM, "no memory for %zu bytes", sizeof *o);
    o->head = (hvt_conv){{d, hvt__op_free_plain}, *c, hvt__conv_height(c), hvt__conv_width(c)};
    o->x = (size_t)c->n * (size_t)c->h * (size_t)c->w * (size_t)c->cx;
    o->w = (size_t)c->k * (size_t)c->r * (size_t)c->s * (size_t)c->cx;
    o->y = (size_t)c->n * (size_t)o->head.p * (size_t)o->head.q * (size_t)c->k;
    o->linear = c->h == 1 && c->w == 1;
    o->cast = !o->linear && c->type != HVT_F32;
    for (int i = 0; i < PLANS; i++)
        strcpy(o->engine[i], "-");
    if (!o->linear && gpu.gpu)
        HVT_TRY(plan_passes(o));
    *ret_op = &o->head.op;
    *ret_weights = o->w;
    *ret_ws = 0;
    return HVT_OK;
}

static hvt_status note_conv(const conv *o, int which, size_t read, size_t written)
{
    const hvt_conv_desc *c = &o->head.d;

    if (!counting)
        return HVT_OK;
    printf("%s\t%s\t", o->linear ? "gemm" : "conv", plan_name[which]);
    if (o->linear)
        printf("%d,%d,%d", c->n, c->cx, c->k);
    else
        printf("%d,%d,%d,%d,%d,%d,%d,%d,%d", c->n, c->h, c->w, c->cx, c->k, c->r, c->s, c->stride_h, c->top);
    printf("\t%s\t%zu\t%zu\t%zu\n", o->engine[which], o->ws[which], read, written);
    return HVT_OK;
}

static hvt_status conv_forward_noted(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    const conv *o = (conv *)op;
    size_t size = hvt_dtype_size(o->head.d.type);

    (void)real;
    (void)x;
    (void)w;
    (void)y;
    (void)ws;
    return note_conv(o, FORWARD, (o->x + o->w) * size, o->y * size);
}

static hvt_status conv_backward_x_noted(hvt_op *op, int real, const void *w, const void *dy, void *dx,
                                        bool add, void *ws)
{
    const conv *o = (conv *)op;
    size_t size = hvt_dtype_size(o->head.d.type);

    (void)real;
    (void)w;
    (void)dy;
    (void)dx;
    (void)ws;
    return note_conv(o, add ? BACKWARD_X_ADD : BACKWARD_X, (o->y + o->w + (add ? o->x : 0)) * size,
                     o->x * size);
}

static hvt_status conv_backward_w_noted(hvt_op *op, int real, const void *x, const void *dy, float *dw,
                                        void *ws)
{
    const conv *o = (conv *)op;
    hvt_dtype t = o->head.d.type;
    size_t size = hvt_dtype_size(t), out = o->cast ? size : sizeof(float);

    (void)real;
    (void)x;
    (void)dy;
    HVT_TRY(note_conv(o, BACKWARD_W, (o->x + o->y) * size, o->w * out));
    if (!o->cast)
        return HVT_OK;
    will(o->w * size, o->w * sizeof(float));
    return RUN(cast, op->dev, o->w, 1, ws, t, dw, HVT_F32);
}

/* ---- every other op ---- */

static hvt_status pooling_forward_noted(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    const hvt_pooling *o = (hvt_pooling *)op;
    size_t size = hvt_dtype_size(o->d.type),
           out = (size_t)real * (size_t)o->p * (size_t)o->q * (size_t)o->d.c;
    size_t in = (size_t)real * (size_t)o->d.h * (size_t)o->d.w * (size_t)o->d.c * size;

    if (o->d.mean)
        will(in, (size_t)real * (size_t)o->d.c * size);
    else
        will(in, out * size + out);
    return RUN(pooling_forward, op, real, x, y, saved);
}

static hvt_status pooling_backward_noted(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                         bool add)
{
    const hvt_pooling *o = (hvt_pooling *)op;
    size_t size = hvt_dtype_size(o->d.type),
           out = (size_t)real * (size_t)o->p * (size_t)o->q * (size_t)o->d.c;
    size_t in = (size_t)real * (size_t)o->d.h * (size_t)o->d.w * (size_t)o->d.c * size;

    will((o->d.mean ? (size_t)real * (size_t)o->d.c * size : out * size + out) + (add ? in : 0), in);
    return RUN(pooling_backward, op, real, saved, dy, dx, add);
}

static size_t matrix(hvt_rows rows, int c, hvt_dtype t)
{
    return (size_t)rows.real * (size_t)c * hvt_dtype_size(t);
}

static hvt_status bn_train_noted(hvt_device *d, const hvt_bn_args *a)
{
    size_t m = matrix(a->rows, a->c, a->type);

    will(m, 0);
    will(m + (a->residual ? m : 0), m);
    now.op = !a->relu ? "bn_train" : a->residual ? "bn_train add relu" : "bn_train relu";
    return launched(now.op, hvt__bn_train_cuda(d, a));
}

static hvt_status bn_backward_noted(hvt_device *d, const hvt_bn_grad_args *a)
{
    size_t m = matrix(a->rows, a->c, a->type), y = a->y && !a->beta ? m : 0, add = a->add ? m : 0;
    bool first_has_it =
        a->dresidual && !a->add_residual; /* the second pass then reads what the first wrote */
    size_t residual = a->dresidual && a->add_residual ? m : 0;

    will(2 * m + y, first_has_it ? m : 0);
    will(2 * m + (first_has_it ? 0 : y) + add + residual, m + residual);
    now.op = !a->y ? "bn_backward" : a->dresidual ? "bn_backward add relu" : "bn_backward relu";
    return launched(now.op, hvt__bn_backward_cuda(d, a));
}

static hvt_status bn_update_noted(hvt_device *d, const hvt_bn_update_args *a)
{
    will(4 * (size_t)a->c * sizeof(float), 2 * (size_t)a->c * sizeof(float));
    return RUN(bn_update, d, a);
}

static hvt_status bias_forward_noted(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b,
                                     void *y)
{
    will(matrix(rows, c, t), matrix(rows, c, t));
    return RUN(bias_forward, d, rows, c, t, b, y);
}

static hvt_status bias_backward_noted(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                      float *db)
{
    will(matrix(rows, c, t), (size_t)c * sizeof *db);
    return RUN(bias_backward, d, rows, c, t, dy, db);
}

static hvt_status xent_noted(hvt_device *d, const hvt_xent_args *a)
{
    size_t m = matrix(a->rows, a->classes, a->type), rows = (size_t)a->rows.real;

    will(m + rows * sizeof *a->labels, m + rows * (sizeof *a->loss + sizeof *a->label_rank));
    will(rows * (sizeof *a->loss + sizeof *a->label_rank), HVT__SUMS * sizeof *a->sums);
    return RUN(xent, d, a);
}

static hvt_status relu_backward_noted(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                      void *dx, bool add)
{
    will((add ? 3 : 2) * n * hvt_dtype_size(t), n * hvt_dtype_size(t));
    return RUN(relu_backward, d, n, t, y, dy, dx, add);
}

static hvt_status add_noted(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y)
{
    will(2 * n * hvt_dtype_size(t), n * hvt_dtype_size(t));
    return RUN(add, d, n, t, a, b, y);
}

static hvt_status cast_noted(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                             hvt_dtype dt)
{
    will(n * hvt_dtype_size(st), n * hvt_dtype_size(dt));
    return RUN(cast, d, n, s, src, st, dst, dt);
}

static hvt_status sgd_noted(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                            float *w, float *v)
{
    size_t copy = a->copy ? n * hvt_dtype_size(a->copy_type) : 0;

    will(((size_t)ng + 2) * n * sizeof(float), 2 * n * sizeof(float) + copy);
    return RUN(sgd, d, n, a, g, ng, w, v);
}

static hvt_status check_noted(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step)
{
    will(n * sizeof *g, 0);
    return RUN(check, d, n, g, base, step);
}

static hvt_status decide_noted(hvt_device *d, hvt_step_state *step, const float *sums)
{
    will(sizeof *step, sizeof *step);
    return RUN(decide, d, step, sums);
}

static hvt_status augment_noted(hvt_device *d, const hvt_augment_args *a)
{
    size_t pixels = (size_t)a->real * (size_t)a->h * (size_t)a->w;

    will(pixels * (size_t)a->c * (a->floats ? sizeof(float) : 1),
         pixels * (size_t)a->cx * hvt_dtype_size(a->type));
    now.op = "augment";
    return launched("augment", hvt__cuda_augment(d, a, a->src, a->draws, a->erased, a->labels));
}

/* ---- the step ---- */

static hvt_dataset *set;
static hvt_loader *loader;
static hvt_model *model;
static hvt_distopt *dist;

static void open_all(hvt_device *d, hvt_dtype type, int batch)
{
    const hvt_dataset_opts drawn = {.train = true, .image_size = SIDE, .samples = (uint32_t)batch};
    const hvt_optim_opts sgd = {.momentum = 0.9f, .weight_decay = 1e-4f};
    const hvt_distopt_opts exchange = {
        .bucket_bytes = HVT_BUCKET_DEFAULT,
        .first_bytes = 1 << 20,
        .local_shards = 1,
        .scaling = {.scale = type == HVT_F16 ? 65536 : 0, .interval = 2000, .floor = 1}};
    hvt_loader_opts read = {.batch = batch, .shards = 1, .shard_count = 1, .std = {1, 1, 1}, .flip = true};
    hvt_world *world;
    hvt_comm *comm;
    hvt_optim *optim;

    must(hvt_world_open("singleton", &world));
    must(hvt_comm_open("self", world, d, &comm));
    must(hvt_dataset_open("synth", &drawn, &set));
    must(hvt_model_create(d, &model));
    must(hvt_model_set_type(model, type));
    must(hvt_model_plan(model, batch,
                        hvt_zoo(model, "resnet50", hvt_input(model, SIDE, SIDE, 3), CLASSES,
                                &(hvt_zoo_opts){.imagenet_stem = true})));
    must(hvt_model_init(model, 1));
    must(hvt_optim_create(model, &sgd, &optim));
    must(hvt_distopt_create(optim, comm, &exchange, NULL, 0, &dist));
    read.order = hvt_model_order(model);
    read.type = hvt_model_input_type(model);
    read.channels = hvt_model_input_channels(model);
    must(hvt_loader_open(set, d, &read, &loader));
}

static void step(int epoch)
{
    hvt_batch b;
    bool end;

    must(hvt_loader_rewind(loader, epoch, 0));
    must(hvt_loader_next(loader, &b, &end));
    must(hvt_distopt_begin(dist, b.shard_counts, b.shards, 0.1));
    must(hvt_model_forward(model, &b, true));
    must(hvt_model_backward(model, hvt_distopt_on_grad, dist));
    must(hvt_distopt_step(dist));
}

static void describe_gpu(const char *path)
{
    static char json[JSON_MOST];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(json, 1, sizeof json - 1, f) : 0;

    if (!n)
        must(HVT_FAIL(E_IO, "%s cannot be read", path));
    fclose(f);
    must(hvt__cuda_load(CUDA_CUDNN));
    must_cudnn(hvt__nv.cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &gpu.gpu));
    must_cudnn(hvt__nv.cudnnBackendSetAttribute(gpu.gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                CUDNN_TYPE_CHAR, (int64_t)n + 1, json));
    must_cudnn(hvt__nv.cudnnBackendFinalize(gpu.gpu));
}

#define ENTRY(entry, op) .entry = op##_noted

int main(int argc, char **argv)
{
    hvt_device_ops ops = {.name = "cuda",
                          .channels = hvt_device_cuda.channels,
                          .memory.alloc_host = alloc_noted,
                          .memory.release_host = release_noted,
                          .conv.permute = hvt__conv_permute_krsc,
                          .pooling.plan = hvt__pooling_plan,
                          ENTRY(memory.alloc, alloc),
                          ENTRY(memory.release, release),
                          ENTRY(memory.upload, upload),
                          ENTRY(memory.download, download),
                          ENTRY(memory.put, put),
                          ENTRY(memory.copy, copy),
                          ENTRY(memory.zero, zero),
                          ENTRY(conv.plan, conv_plan),
                          ENTRY(conv.forward, conv_forward),
                          ENTRY(conv.backward_x, conv_backward_x),
                          ENTRY(conv.backward_w, conv_backward_w),
                          ENTRY(pooling.forward, pooling_forward),
                          ENTRY(pooling.backward, pooling_backward),
                          ENTRY(matrix.bn_train, bn_train),
                          ENTRY(matrix.bn_backward, bn_backward),
                          ENTRY(matrix.bn_update, bn_update),
                          ENTRY(matrix.bias_forward, bias_forward),
                          ENTRY(matrix.bias_backward, bias_backward),
                          ENTRY(matrix.xent, xent),
                          ENTRY(vector.relu_backward, relu_backward),
                          ENTRY(vector.add, add),
                          ENTRY(vector.cast, cast),
                          ENTRY(vector.sgd, sgd),
                          ENTRY(step.check, check),
                          ENTRY(step.decide, decide),
                          ENTRY(augment, augment)};
    static cuda_device no_gpu; /* the kernels' scratch memory is at address 0 */
    hvt_device d = {.ops = &ops, .state = &no_gpu, .isa = "noted", .threads = 1};
    int batch = argc > 2 ? atoi(argv[2]) : 0;
    hvt_dtype type = HVT_F32;

    if (argc < 3 || argc > 4 || batch < 1)
        must(HVT_FAIL(E_ARG, "usage: launches f32|f16|bf16 BATCH [GPU.json]"));
    while (type < HVT_BF16 && strcmp(argv[1], hvt_dtype_name(type)))
        type++;
    if (strcmp(argv[1], hvt_dtype_name(type)))
        must(HVT_FAIL(E_ARG, "type is %s, expected f32, f16 or bf16", argv[1]));
    if (argc > 3)
        describe_gpu(argv[3]);
    open_all(&d, type, batch);
    step(0);
    counting = true;
    if (gpu.gpu)
        printf("cudnn\t%zu\t-\t-\t-\t0\t0\n", hvt__nv.cudnnGetVersion());
    step(1);
    fflush(stdout);
    _Exit(0); /* pointers are only addresses, which nothing may free */
}
