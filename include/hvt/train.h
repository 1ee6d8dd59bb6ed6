/**
 * @file train.h
 * What hvtrain does, as library calls: the table of options, a whole run, exact evaluation, checkpoints.
 *
 *     hvt_options o;
 *     hvt_options_default(&o);
 *     o.model = "resnet56";
 *     HVT_TRY(hvt_train(&o, world, &report));
 */
#ifndef HVT_TRAIN_H
#define HVT_TRAIN_H

#include "hvt/data.h"
#include "hvt/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- options ------------------------------------------------------------------------------ */

/*
 * The one list of options: struct, defaults, parser, --help and the README's table are made of it.
 *
 *     G(title)                                                  begins a group
 *     X(kind, field, preset, low, scope, form, help)            the flag is --field with '_' as '-'
 *
 * kind   str    text
 *        pick   one of the words of `form`
 *        int    whole number >= low
 *        word   whole number >= low, or the word `preset`, which reads as 0
 *        num    number >= low
 *        bool   --flag, --flag=on|off, --flag on|off, --no-flag
 *        size   bytes with a unit (64KiB, 25MiB, 1MB); 0; all
 *        rgb    one value for all three channels, or three: 0.49,0.48,0.45
 * scope  RUN    decides what is computed: equal on all ranks, kept in checkpoints
 *        JOB    decides how this job runs: equal on all ranks
 *        RANK   may differ from rank to rank
 */
#define HVT_OPTIONS(G, X)                                                                                    \
    G("Model")                                                                                               \
    X(pick, model, "resnet20", 0, RUN,                                                                       \
      "resnet18|resnet34|resnet50|resnet101|resnet152|resnet20|resnet32|resnet44|resnet56|resnet110",        \
      "torchvision's ResNets (18 to 152), or He's for CIFAR (20 to 110)")                                    \
    X(pick, stem, "imagenet", 0, RUN, "imagenet|cifar",                                                      \
      "resnet18 to 152: 7x7 stride 2 and max-pool, or 3x3 stride 1")                                         \
    X(pick, shortcut, "A", 0, RUN, "A|B",                                                                    \
      "resnet20 to 110: zero-padded identity, or 1x1 convolution where shapes change")                       \
    X(word, classes, "data", 2, RUN, "N", "outputs of the head; also the classes that synth draws")          \
    G("Data")                                                                                                \
    X(pick, data, "synth", 0, RUN, "synth|cifar10", "drawn images, or CIFAR-10's binary files")              \
    X(str, data_dir, "", 0, RUN, "DIR", "folder that holds the data set's files")                            \
    X(word, image_size, "data", 8, RUN, "PIXELS", "synth: side of an image (data: 32)")                      \
    X(int, samples, "10000", 1, RUN, "N", "synth: training images; the test split has a fifth as many")      \
    X(word, limit, "all", 1, RUN, "N", "only the first N images of each split")                              \
    X(str, augment, "none", 0, RUN, "none|flip|crop:PIXELS,flip",                                            \
      "of training images: mirror half of them, shift by up to PIXELS (at most 127)")                        \
    X(rgb, mean, "0.5", -1e30, RUN, "X[,X,X]", "x = (byte/255 - mean) / std")                                \
    X(rgb, std, "0.5", 1e-30, RUN, "X[,X,X]", "")                                                            \
    X(bool, shuffle, "on", 0, RUN, "on|off", "a new order every epoch (PyTorch's DistributedSampler)")       \
    X(pick, tail, "exact", 0, RUN, "exact|pad|drop",                                                         \
      "a set that shards do not divide: each image once, PyTorch's padding, or full batches only")           \
    G("Training")                                                                                            \
    X(int, epochs, "10", 1, RUN, "N", "passes over the training set, those before --resume included")        \
    X(word, steps, "none", 1, JOB, "N", "stop after N updates of the whole run, whatever --epochs says")     \
    X(int, batch, "128", 1, RUN, "N", "images per shard and update, so per rank by default")                 \
    X(word, global_batch, "none", 1, RUN, "N", "images per update, all shards together; instead of --batch") \
    X(num, lr, "0.1", 0, RUN, "X", "learning rate")                                                          \
    X(pick, lr_scale, "none", 0, RUN, "none|linear", "linear: the rate is --lr times --shards")              \
    X(str, schedule, "constant", 0, RUN, "constant|step:SIZE[,GAMMA]|multistep:E,E[@GAMMA]|cosine[:MIN]",    \
      "of the learning rate, over epochs")                                                                   \
    X(num, warmup_epochs, "0", 0, RUN, "X", "the rate rises linearly over the first X epochs")               \
    X(num, momentum, "0.9", 0, RUN, "X", "")                                                                 \
    X(num, dampening, "0", 0, RUN, "X", "")                                                                  \
    X(bool, nesterov, "off", 0, RUN, "on|off", "Nesterov's momentum")                                        \
    X(num, weight_decay, "0", 0, RUN, "X", "added to the gradient, as torch.optim.SGD does")                 \
    X(str, no_decay, "none", 0, RUN, "none|norm,bias", "parameters without weight decay")                    \
    X(int, seed, "0", 0, RUN, "N", "drives initialisation, order and augmentation")                          \
    G("Ranks")                                                                                               \
    X(word, shards, "ranks", 1, RUN, "N", "shards in the global batch; a multiple of the ranks")             \
    X(pick, device, "cpu", 0, JOB, "ref|cpu|cuda", "vector kernels, plain C, or CUDA")                       \
    X(str, isa, "auto", 0, JOB, "NAME", "cpu: instruction set; auto: the best that every rank has")          \
    X(word, threads, "auto", 1, RANK, "N", "per rank; auto: its share of the cores it may use")              \
    X(pick, comm, "auto", 0, JOB, "auto|self|shm|mpi", "how gradients travel")                               \
    X(size, bucket, "25MiB", 0, RUN, "SIZE|0|all", "gradients sent together; 0: layer by layer; all: once")  \
    X(size, first_bucket, "1MiB", 0, RUN, "SIZE", "the first one, small so that the exchange starts early")  \
    X(pick, wire, "f32", 0, RUN, "f32|f16|bf16", "type of gradients on the way; sums are f32")               \
    G("Files")                                                                                               \
    X(str, init, "", 0, JOB, "FILE", "start from weights in safetensors (ours or PyTorch's)")                \
    X(bool, init_skip_head, "off", 0, JOB, "on|off", "--init: leave the head (fc) as initialised")           \
    X(str, save, "", 0, JOB, "DIR", "write last and best after every epoch")                                 \
    X(str, resume, "", 0, JOB, "DIR", "go on from DIR's last, or from one file of a --save folder")          \
    X(bool, evaluate, "off", 0, JOB, "on|off", "with --init or --resume: evaluate, and end")                 \
    X(int, eval_freq, "1", 0, JOB, "N", "epochs between evaluations; 0: only at the end")                    \
    X(str, log, "", 0, RANK, "FILE", "JSON lines, written by rank 0")                                        \
    X(int, print_freq, "10", 1, JOB, "N", "updates between step records and lines")                          \
    X(bool, quiet, "off", 0, RANK, "on|off", "no table, no progress: errors and warnings only")

typedef struct hvt_rgb {
    float v[3];
} hvt_rgb;

typedef const char *hvt_opt_str; /* borrowed: argv's, or a literal */
typedef const char *hvt_opt_pick;
typedef int hvt_opt_int;
typedef int hvt_opt_word;
typedef double hvt_opt_num;
typedef bool hvt_opt_bool;
typedef size_t hvt_opt_size;
typedef hvt_rgb hvt_opt_rgb;

#define HVT_OPT_NO_GROUP(title)
#define HVT_OPT_ONE(kind, field, preset, low, scope, form, help) +1
enum { HVT_OPTION_COUNT = 0 HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT_OPT_ONE) };
#undef HVT_OPT_ONE

typedef enum hvt_ask { HVT_ASK_TRAIN, HVT_ASK_HELP, HVT_ASK_MARKDOWN, HVT_ASK_VERSION } hvt_ask;

typedef struct hvt_options {
#define HVT_OPT_FIELD(kind, field, preset, low, scope, form, help) hvt_opt_##kind field;
    HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT_OPT_FIELD)
#undef HVT_OPT_FIELD
    hvt_ask ask;                  ///< --help, --help=markdown, --version
    bool given[HVT_OPTION_COUNT]; ///< set by flag, in the table's order
} hvt_options;

HVT_API void hvt_options_default(hvt_options *ret_opts);
/**
 * argv[1..] over the defaults. `--name value` and `--name=value`; '_' in a name reads as '-'; of a repeated
 * flag the last wins. Values are checked one by one here, together in hvt_options_check().
 * Errors: E_ARG names the flag, what was expected and what came; for an unknown flag the nearest known one.
 */
HVT_API hvt_status hvt_options_parse(int argc, char **argv, hvt_options *ret_opts);
/** Set one option by its flag (without "--"), as the parser does. value is borrowed. */
HVT_API hvt_status hvt_options_set(hvt_options *opts, const char *name, const char *value);
/** Do the options fit together on this many ranks? Errors: E_ARG naming the flags and their values. */
HVT_API hvt_status hvt_options_check(const hvt_options *opts, int ranks);
/** Are the options that must be equal on all ranks equal? Collective. Errors: E_MISMATCH naming flag, values
 *  and ranks. */
HVT_API hvt_status hvt_options_agree(const hvt_options *opts, hvt_world *world);
/** Help to print: all options with their defaults, as text of at most 100 columns or as a Markdown table.
 *  malloc'ed; NULL without memory. */
HVT_API char *hvt_options_help(bool markdown);

/* ---- a run -------------------------------------------------------------------------------- */

typedef struct hvt_report {
    int epochs;       ///< finished or begun, over the whole run
    int64_t steps;    ///< updates, over the whole run
    hvt_loss test;    ///< the final evaluation
    double img_s;     ///< training images per second on all ranks, evaluation and saving excluded
    double seconds;   ///< since the process began
    uint64_t weights; ///< hvt_model_hash()
} hvt_report;

/**
 * Train (or only evaluate) as the options say: data, model, exchange, epochs, evaluation, checkpoints, log.
 *
 * Collective: every rank of the world. On failure the message is in hvt_last_error(). If
 * hvt_last_error_is_agreed(), all ranks return it. If not, the other ranks may be waiting for this one: print
 * it, then call hvt_world_abort(); what the run held is not freed in that case.
 * Errors: as the parts'; E_DIVERGED naming step and loss.
 */
HVT_API hvt_status hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report);

/** Exact loss, top-1 and top-5 over a loader's images on all ranks: each image's loss is rounded to 2^-24 and
 *  summed as an integer, counts are counts, and one sum over ranks ends it; so the result is equal for every
 *  partition. Collective. Errors: E_DIVERGED naming the first image whose loss is not finite. */
HVT_API hvt_status hvt_evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt_loss *ret_loss);

/* ---- files -------------------------------------------------------------------------------- */

/**
 * Weights from a safetensors file (F32, F16 or BF16), by torchvision's names, with or without the prefix
 * "module.". skip_head: the last layer keeps what it has. Errors: E_IO, E_FORMAT, E_SHAPE naming file, tensor
 * and both shapes, or the names that are missing or unknown.
 */
HVT_API hvt_status hvt_weights_load(const char *file, hvt_model *m, bool skip_head);

/**
 * A checkpoint is DIR/NAME.safetensors, which holds what torchvision's state_dict() holds and nothing else,
 * and, with momentum, DIR/NAME-HASH.momentum.safetensors, which its metadata names.
 *
 * The momentum is written first, under a name of its own; renaming the weights' file over the old one
 * is the one moment at which the new checkpoint replaces the old; then the old momentum goes. So a crash,
 * a full disk or a kill at any moment leaves a whole checkpoint, old or new. Files are written beside their
 * place, synced, renamed, and the folder is synced.
 */
typedef struct hvt_progress {
    int epoch;     ///< to go on with, 0-based
    uint32_t step; ///< of that epoch, 0-based
    int64_t steps; ///< updates so far
    double top1;   ///< percent, of the evaluation made with these weights; < 0 if none was
    char *options; ///< "--flag=value\n" for each option of scope RUN; load: malloc'ed, free() it
} hvt_progress;

/** o may be NULL (no momentum). Errors: E_IO naming file and cause; files of before are whole then. */
HVT_API hvt_status hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                                       const hvt_progress *progress);
/** path: a folder (its `last`) or one of its files. m NULL: progress only; o NULL: no momentum.
 *  Errors: E_IO, E_FORMAT (damaged: hashes differ; no checkpoint of ours), E_SHAPE. */
HVT_API hvt_status hvt_checkpoint_load(const char *path, hvt_model *m, hvt_optim *o,
                                       hvt_progress *ret_progress);

/**
 * For --resume: options of scope RUN that the command line does not give (opts->given) take the checkpoint's
 * value, so that `--resume DIR` alone goes on as before. Rank 0 reads. The texts set in opts lie in
 * *ret_memory: free() it after opts. Collective.
 */
HVT_API hvt_status hvt_options_resume(hvt_options *opts, hvt_world *world, void **ret_memory);

#ifdef __cplusplus
}
#endif
#endif /* HVT_TRAIN_H */
