/**
 * @file net.h
 * A network inside another program, such as a simulation: open, train and infer on the program's own arrays,
 * save, load, close.
 *
 *     hvt_net *net;
 *     hvt_net_opts opts = {.height = 32, .width = 32, .channels = 3, .outputs = 10, .lr = 0.1};
 *     HVT_TRY(hvt_net_open("resnet20", &opts, &comm, &net));
 *     HVT_TRY(hvt_net_train(net, &(hvt_net_data){.count = n, .images = x, .targets = y}, 1, &loss));
 *
 * Each rank passes its own images, any number of them, also 0. An update divides the images of all ranks, in
 * rank order, into shards of at most opts.shard images, whose sizes differ by at most 1. The shards are
 * divided among the ranks, and images travel to the rank that computes their shard. So with comms on the host
 * the weights have the same bits on any number of ranks, if the images together are the same.
 *
 * Errors of a rank's arguments are found before anything is computed, and all ranks return them. If ranks
 * make different collective calls, each returns E_MISMATCH; if a rank has closed its net, or finalised MPI,
 * the others' next call returns E_COMM, which names it. Only one thread at a time may use a net. The library
 * never ends the process. hvt_log_to() redirects log lines. If a rank does not make the call that the others
 * make, hvt_world_watch() reports it after 30 s, and hvt_world_on_stall() determines what happens then.
 */
#ifndef HVT_NET_H
#define HVT_NET_H

#include "hvt/train.h"

HVT_C_BEGIN

typedef struct hvt_net hvt_net;

/** Order of an array's elements. */
typedef enum hvt_layout {
    HVT_NHWC, ///< C: x[n][h][w][c]
    HVT_NCHW, ///< C: x[n][c][h][w], as PyTorch
    HVT_WHCN  ///< Fortran and Julia: x(w, h, c, n), the first index is the fastest; in memory as HVT_NCHW
} hvt_layout;

/** Images of this rank, with their labels or targets. */
typedef struct hvt_net_data {
    int64_t count;      ///< images; may differ from rank to rank
    const void *images; ///< [count] images of height x width x channels
    hvt_dtype type;     ///< HVT_F32, HVT_F64, HVT_F16, HVT_BF16, or HVT_U8, which is divided by 255
    hvt_layout layout;  ///< of images
    /** HVT_LOSS_CE, BCE: [count] labels, 0..outputs-1; HVT_LOSS_MSE, MAE: [count][outputs] targets. If
     * outputs are images: [count][h][w] labels, where those below 0 (and 255 of HVT_U8) are ignored, or
     * targets [count][outputs][h][w]. */
    const void *targets;
    hvt_dtype target_type; ///< labels: an integer type; MSE, MAE: f16, bf16, f32 or f64
    /** For bindings: the mistake in this rank's arguments, in the words of their language; all ranks then
     * return E_ARG with this text, and none waits. NULL: no mistake. */
    const char *refused;
} hvt_net_data;

/** A net's progress after an update. */
typedef struct hvt_net_progress {
    int64_t updates; ///< updates so far, including those before a checkpoint
    int64_t epoch;   ///< passes over the images that have begun in this call
    double loss;     ///< mean over the images of the update
    int64_t images;  ///< images of the update, on all ranks
} hvt_net_progress;

typedef struct hvt_net_opts {
    int height, width, channels; ///< of an image; 0 with a .pt2 file: the file's
    int outputs;                 ///< classes or targets; 0 with a .pt2 file: the file's
    hvt_zoo_opts zoo;            ///< variants of the zoo's models
    /** Instead of a name: the program's own model, from images to logits. */
    hvt_value (*build)(void *ctx, hvt_model *m, hvt_value images);
    hvt_loss_opts loss;
    hvt_optim_opts optim; ///< {0}: SGD without momentum
    double lr;            ///< learning rate, above 0; hvt_net_set_lr() changes it
    int64_t batch;        ///< images of an update over all ranks, in a new random order in each epoch; 0: all
    int shard;            ///< maximum number of images that a rank computes at a time; 0: 32
    uint64_t seed;        ///< of initial weights, orders and dropout
    hvt_dtype compute;    ///< HVT_F32 or HVT_BF16: see hvt_model_set_type()
    const char *device;   ///< NULL: "cpu"
    int threads;          ///< 0: this rank's share of the node's CPUs
    /** Called on every rank after every update. May be NULL. */
    void (*progress)(void *ctx, const hvt_net_progress *p);
    void *ctx; ///< passed to build and progress
    /** Split the model (hvt_model_split()) over so many sets of this rank's cores; 0 or 1: not split. */
    int devices;
    const char *split_at; ///< the cuts, as hvt_split_opts.at; NULL: balanced
    const char *refused;  ///< as in hvt_net_data
} hvt_net_opts;

/**
 * Open a net on all ranks. name: a model of the zoo (hvt_zoo_name()), a .pt2 file (with its weights, if it
 * has them), or NULL with opts->build. mpi_comm: the address of an MPI_Comm, as for hvt_world_wrap(). NULL:
 * the ranks that a launcher started, or a single process, as hvt_world_open(NULL). All ranks start with the
 * weights of rank 0.
 *
 * Collective. Errors, on every rank alike: E_ARG, E_SHAPE (a model that does not fit the images), those of
 * hvt_pt2_open(), E_MEM, E_MISMATCH (ranks have different options).
 */
HVT_API hvt_status hvt_net_open(const char *name, const hvt_net_opts *opts, const void *mpi_comm,
                                hvt_net **ret_net);
/** Close a net. NULL is fine. Collective. */
HVT_API void hvt_net_close(hvt_net **net);

/**
 * Train for `epochs` passes over the images of all ranks, in updates of opts.batch images; the last update of
 * a pass has the rest. ret_loss, which may be NULL: sums over the images of the last pass, on all ranks.
 *
 * Collective. Errors, on every rank alike: E_ARG (no images on any rank, missing pointers, types that do not
 * fit, a label out of range: the message begins with the rank), E_MISMATCH (ranks differ in type, layout or
 * epochs), E_DIVERGED, E_MEM, E_COMM.
 */
HVT_API hvt_status hvt_net_train(hvt_net *net, const hvt_net_data *data, int epochs, hvt_loss *ret_loss);
/** Infer: ret_outputs = logits or predicted targets, [count][outputs] or [count][outputs][h][w] of ret_type
 * (HVT_F32, HVT_F64, HVT_F16 or HVT_BF16), in inference mode. data->targets is not read. Not collective: a
 * rank may infer alone. Errors: E_ARG, E_MEM. */
HVT_API hvt_status hvt_net_infer(hvt_net *net, const hvt_net_data *data, void *ret_outputs,
                                 hvt_dtype ret_type);

/** Write weights, optimizer state and counters to PATH.safetensors and a sidecar file, by
 * hvt_checkpoint_save(). PATH is DIR/NAME or NAME; DIR is created if its parent exists. A net that loads the
 * files continues bit for bit, on any number of ranks. Collective; errors are agreed. */
HVT_API hvt_status hvt_net_save(hvt_net *net, const char *path);
/** Load PATH.safetensors as hvt_net_save() wrote it; without such a file, another checkpoint PATH: see
 * hvt_checkpoint_load(). Rank 0 reads. Collective; errors are agreed. */
HVT_API hvt_status hvt_net_load(hvt_net *net, const char *path);
/** Set the learning rate from the next update on, the same on all ranks. Errors: E_ARG not above 0 or not
 * finite. */
HVT_API hvt_status hvt_net_set_lr(hvt_net *net, double lr);

/** A net's objects, all borrowed, for what net.h does not offer, and its sizes. A later hvt_net_train() may
 * replace dist. */
typedef struct hvt_net_parts {
    hvt_world *world;
    hvt_device *dev;
    hvt_comm *comm;
    hvt_model *model;
    hvt_optim *optim;
    hvt_distopt *dist;
    int height, width, channels; ///< of an image
    int outputs;                 ///< per image: K, or K * h * w if outputs are images
    int labels;                  ///< per image: 1, or h * w
} hvt_net_parts;
HVT_API hvt_net_parts hvt_net_describe(const hvt_net *net); ///< zeros for NULL

HVT_C_END
#endif /* HVT_NET_H */
