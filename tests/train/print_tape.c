/*
 * print_tape FILE.pt2 ...: prints what hvtrain makes of models of PyTorch, for test_corpus.py: each layer
 * that leads to the logits with its inputs, arguments, parameters and shape, inputs before their readers. The
 * order in which layers were appended does not show. Of a file that is refused it prints the message.
 */
#include "base_impl.h"
#include "hvt/model.h"
#include "model/layers.h"

typedef struct walk {
    const hvt_model *m;
    int *number, count; /* [nlayer] of the layers printed so far; 0: none yet */
} walk;

static void print_window(const hvt_pooling_desc *p)
{
    const hvt_window *w[2] = {&p->rows, &p->columns};

    for (int i = 0; i < 2; i++)
        printf(" %d/%d-%d>%d", w[i]->size, w[i]->stride, w[i]->pad, w[i]->out);
    printf(" pad %d, windows %d", p->count_pad, p->windows);
}

/* The arguments of layers whose kind, inputs and shapes do not say everything. */
static void print_arguments(const hvt_layer *l)
{
    const hvt_conv2d_opts *c = &l->conv;
    const hvt_layer_ops *o = l->ops;

    if (o == &hvt_layer_conv || o == &hvt_layer_conv_transpose)
        printf(" %dx%d /%d,%d pad %d,%d,%d,%d by %d,%d groups %d%s%s", c->kernel_h, c->kernel_w, c->stride_h,
               c->stride_w, c->top, c->left, c->bottom, c->right, c->dilation_h, c->dilation_w, c->groups,
               c->bias ? " bias" : "", c->line ? " line" : "");
    else if (o == &hvt_layer_linear)
        printf("%s", c->bias ? " bias" : "");
    else if (o == &hvt_layer_maxpool || o == &hvt_layer_avgpool)
        printf(" %d/%d-%d", l->size, l->stride, l->pad), print_window(&l->is.pooling);
    else if (o == &hvt_layer_norm)
        printf(" eps %g rate %g%s", (double)l->is.batchnorm.eps, (double)l->is.batchnorm.rate,
               l->is.batchnorm.fixed ? " fixed" : "");
    else if (o == &hvt_layer_layernorm || o == &hvt_layer_groupnorm)
        printf(" eps %g groups %d %d %d", (double)l->is.norm.eps, l->is.norm.groups, l->is.norm.per_pixel,
               l->is.norm.per_element);
    else if (o == &hvt_layer_pad || o == &hvt_layer_slice)
        printf(" y %d x %d first %d", l->is.box.y, l->is.box.x, l->is.box.first);
    else if (o == &hvt_layer_interpolate || o == &hvt_layer_border)
        printf(" kind %d %d %d by %g,%g pad %d,%d", l->is.resample.kind, l->is.resample.aligned,
               l->is.resample.smoothed, l->is.resample.scale[0], l->is.resample.scale[1],
               l->is.resample.pad[0], l->is.resample.pad[1]);
    else if (o == &hvt_layer_shuffle || o == &hvt_layer_transpose)
        printf(" %d x %d of %d", l->is.transpose.rows, l->is.transpose.cols, l->is.transpose.block);
    else if (o == &hvt_layer_weight_view)
        printf(" first %d by %d,%d,%d,%d", l->is.weight.first, l->is.weight.stride[0], l->is.weight.stride[1],
               l->is.weight.stride[2], l->is.weight.stride[3]);
    else if (o == &hvt_layer_weight_standardise)
        printf(" eps %g", (double)l->is.weight.eps);
    else if (o == &hvt_layer_subsample)
        printf(" /%d", l->stride);
    else if (o >= hvt_layer_map && o < hvt_layer_map + HVT_FUNCTIONS)
        printf(" %.7g %.7g", (double)l->is.map.a, (double)l->is.map.b);
    else if (o >= hvt_layer_binary && o < hvt_layer_binary + HVT_BINARIES)
        printf(" %s across %d first %d", l->is.binary.swapped ? "swapped" : "", (int)l->is.binary.across,
               l->is.binary.at.first);
    else if (o == &hvt_layer_attention)
        printf(" heads %d scale %.7g windows %d", l->is.attention.heads, (double)l->is.attention.scale,
               l->is.attention.windows);
    else if (o == &hvt_layer_maxima || o == &hvt_layer_amax)
        printf(" %d %d", l->is.maxima.groups, l->is.maxima.out);
    else if (o == &hvt_layer_matmul)
        printf("%s", l->is.matmul.b_transposed ? " transposed" : "");
    else if (o == &hvt_layer_rotary)
        printf(" first %d, %d of %d, apart %d", l->is.rotary.first, l->is.rotary.vectors, l->is.rotary.width,
               l->is.rotary.apart);
    else if (o == &hvt_layer_dropout)
        printf(" %d scale %.7g of %d%s", l->is.dropout.args.least, (double)l->is.dropout.args.scale,
               (int)l->is.dropout.args.what, l->is.dropout.whole_batch ? " batch" : "");
    if (l->is_weight && !l->has_parameter)
        printf(" [%d,%d,%d,%d]", l->dim[0], l->dim[1], l->dim[2], l->dim[3]);
}

static void print_layer(walk *w, hvt_value v)
{
    const hvt_model *m = w->m;
    const hvt_layer *l = &m->layer[v];
    const int inputs =
        l->ops == &hvt_layer_zeros || l->ops == &hvt_layer_constant ? 0 : l->nin; /* for a place only */

    for (int i = 0; i < inputs; i++)
        if (l->in[i] >= 0 && !w->number[l->in[i]])
            print_layer(w, l->in[i]);
    w->number[v] = ++w->count;
    printf("%4d %s(", w->count, l->ops->name);
    for (int i = 0; i < inputs; i++)
        if (l->in[i] >= 0)
            printf("%s%d", i ? ", " : "", w->number[l->in[i]]);
    printf(")");
    print_arguments(l);
    if (l->constants)
        printf(" constants %zu %08x", l->constants->all,
               (unsigned)hvt__hash(HVT_HASH_INIT, l->constants->data,
                                   l->constants->all * sizeof *l->constants->data));
    if (l->has_parameter) {
        printf(" %s%s", m->layer[l->shares >= 0 ? l->shares : v].name, l->constant ? " constant" : "");
        for (int i = 0; i < l->ndim; i++)
            printf("%s%d", i ? "," : " [", l->dim[i]);
        if (l->ndim)
            printf("] %g", (double)l->init);
    }
    printf(" -> %dx%dx%d\n", l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

static hvt_status print(const char *path, hvt_device *dev)
{
    hvt_pt2 *file = NULL;
    hvt_model *m = NULL;
    hvt_value logits = -1;
    hvt_pt2_info is;
    hvt_status s;
    walk w;

    HVT_TRY(hvt_pt2_open(path, &file));
    is = hvt_pt2_describe(file);
    printf("%dx%dx%d, %d classes, %d outputs, %d unused %s, %d of %d norms fixed, %d %d changed %s, %d, head "
           "%s\n",
           is.height, is.width, is.channels, is.classes, is.outputs, is.unused,
           is.first_unused ? is.first_unused : "", is.fixed_norms, is.norms, is.eval_mode, is.changed,
           is.first_changed ? is.first_changed : "", is.log_softmax, is.head ? is.head : "none");
    HVT_TRY_OR(done, hvt_model_create(dev, &m));
    HVT_TRY_OR(done, hvt_pt2_build(file, m, hvt_input(m, is.height, is.width, is.channels), 0, &logits));
    printf("attached");
    for (int i = 0; i < m->nattached; i++)
        printf(" %s", m->attached[i].name);
    printf("; frozen %s; %d aliases\n", m->freeze ? m->freeze : "none", m->naliases);
    w = (walk){m, calloc((size_t)m->nlayer, sizeof *w.number), 0};
    HVT_CHECK_OR(done, w.number, E_MEM, "no memory");
    print_layer(&w, logits);
    free(w.number);
done:
    hvt_model_free(&m);
    hvt_pt2_close(&file);
    return s;
}

int main(int argc, char **argv)
{
    hvt_device *dev = NULL;

    if (hvt_device_open("ref", NULL, &dev) != HVT_OK)
        return 1;
    for (int i = 1; i < argc; i++) {
        const char *name = strrchr(argv[i], '/');

        printf("== %s\n", name ? name + 1 : argv[i]);
        if (print(argv[i], dev) != HVT_OK) {
            const char *text = hvt_last_error(), *colon = strstr(text, ".pt2: ");

            printf("refused: %s\n", colon ? colon + 6 : text);
        }
        fflush(stdout);
    }
    hvt_device_close(&dev);
    return 0;
}
