/**
 * @file train.h
 * hvtrain as library calls: the table of options, a whole run, exact evaluation, checkpoints.
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

HVT_C_BEGIN

/* ---- options ------------------------------------------------------------------------------ */

/*
 * The list of options. The struct, defaults, parser, --help and docs/options.md are generated from it.
 *
 *     G(title)                                                  begins a group
 *     X(kind, field, preset, low, scope, form, help)            the flag is --field with '_' as '-'
 *
 * kind   str    text; a flag's must not be empty
 *        pick   one of the words of `form`
 *        int    whole number >= low
 *        word   whole number >= low, or the word `preset`, which reads as 0; as -1 if low is 0
 *        num    number >= low; if `preset` is the word auto, also auto, which reads as NaN
 *        bool   --flag, --flag=on|off, --flag on|off, --no-flag
 *        size   bytes with a unit (64KiB, 25MiB, 1MB), 0, or all
 *        time   seconds; with units (500ms, 30s, 5m, 1h30m) or 0
 *        rgb    three values with commas, 0.49,0.48,0.45, or one for all; imagenet; auto reads as NaN
 * scope  RUN    decides what is computed: equal on all ranks, kept in checkpoints
 *        JOB    decides how this job runs: equal on all ranks
 *        RANK   may differ from rank to rank
 */
#define HVT_ZOO_WORD(name, stem, shortcut) #name "|"
#define HVT_OPTIONS(G, X)                                                                                    \
    G("Model")                                                                                               \
    X(pick, model, "auto", 0, RUN, HVT_ZOO(HVT_ZOO_WORD) "auto|FILE.pt2",                                    \
      "torchvision's ResNets (18 to 152), ResNeXt, Wide ResNet and MobileNetV2, He's ResNets for CIFAR (20 " \
      "to 110), airbench94 for 32x32, a perceptron of two hidden layers of 512, or any model that "          \
      "torch.export.save() wrote (auto: resnet18 for folder and tar unless --size is below 64, else "        \
      "resnet20)")                                                                                           \
    X(pick, stem, "imagenet", 0, RUN, "imagenet|cifar",                                                      \
      "torchvision's models: unchanged (ResNets: 7x7 stride 2 and max-pool), or 3x3 stride 1; for cifar "    \
      "mobilenet_v2 also keeps the size in its second stage")                                                \
    X(pick, shortcut, "A", 0, RUN, "A|B",                                                                    \
      "resnet20 to 110: zero-padded identity, or 1x1 convolution where shapes change")                       \
    X(word, classes, "data", 1, RUN, "N", "outputs of the head; also the classes of synth")                  \
    G("Data")                                                                                                \
    X(pick, data, "synth", 0, RUN, "synth|cifar10|cifar100|stl10|npy|folder|tar",                            \
      "synthetic images; the binary files of CIFAR-10, CIFAR-100 or STL-10; arrays of NumPy; pictures "      \
      "(JPEG, PNG, PPM, BMP, WebP, TIFF) in a folder or in WebDataset's tar shards")                         \
    X(str, data_dir, "", 0, RUN, "DIR",                                                                      \
      "folder with the files of --data; folder: DIR/train/CLASS/... and DIR/val/CLASS/... (or test, "        \
      "valid, ...), or DIR/CLASS/...")                                                                       \
    X(word, size, "data", 8, RUN, "PIXELS",                                                                  \
      "height and width of the model's images (data: 224 for folder and tar, 32 for synth, else the "        \
      "data's)")                                                                                             \
    X(word, eval_size, "auto", 0, RUN, "PIXELS|0",                                                           \
      "resize the shorter side to this, then crop the centre, in evaluation and in training without "        \
      "rrc; 0: only crop (auto: 256 for --size 224 and in proportion; 0 for CIFAR, STL-10, npy and "         \
      "synth in their own size)")                                                                            \
    X(int, samples, "10000", 1, RUN, "N", "synth: training images; the test split has a fifth as many")      \
    X(word, limit, "all", 1, RUN, "N",                                                                       \
      "use a sample of N images of each split, stratified by class and drawn by --seed")                     \
    X(num, val_split, "0", 0, RUN, "FRACTION",                                                               \
      "evaluate on this fraction of the training images, stratified and the same ones in every run, and "    \
      "train on the others")                                                                                 \
    X(bool, exif, "off", 0, RUN, "on|off",                                                                   \
      "turn pictures by their EXIF orientation, as Pillow's exif_transpose(), before all else; off: as "     \
      "stored, as in torchvision")                                                                           \
    X(bool, grey, "off", 0, RUN, "on|off",                                                                   \
      "images have one channel: Pillow's L of red, green and blue, as torchvision's Grayscale()")            \
    X(str, augment, "none", 0, RUN, "none|rrc[:LEAST-MOST]|crop:PIXELS[:reflect]|flip|trivial,...",          \
      "training images: a random box of LEAST to MOST (0.08-1) of the area, resized (torchvision's "         \
      "RandomResizedCrop); shift by up to PIXELS (at most 127), with black or reflected borders; mirror "    \
      "half of them; altflip: mirror each in every second epoch; color:B,C,S,H: "                            \
      "ColorJitter; trivial, rand:N,M or auto: TrivialAugmentWide, RandAugment of N operations of "          \
      "magnitude M, or AutoAugment (ImageNet's); several with commas")                                       \
    X(num, erase, "0", 0, RUN, "P",                                                                          \
      "training images: set a random box to 0 (the mean) with probability P, torchvision's RandomErasing")   \
    X(num, mixup, "0", 0, RUN, "ALPHA",                                                                      \
      "training: mix each image and its target with another one's of the shard's batch, as torchvision's "   \
      "MixUp; 0: off")                                                                                       \
    X(num, cutmix, "0", 0, RUN, "ALPHA",                                                                     \
      "training: paste a box of another image, as torchvision's CutMix; with --mixup each batch draws one "  \
      "of both; 0: off")                                                                                     \
    X(int, repeat_augment, "1", 1, RUN, "N",                                                                 \
      "training: each image N times in a row, changed anew, in an epoch of as many images (torchvision's "   \
      "RASampler)")                                                                                          \
    X(pick, sample, "all", 0, RUN, "all|balanced",                                                           \
      "training: each image once an epoch, or as many draws with replacement, equally many of each class "   \
      "(WeightedRandomSampler with 1 / the class's images)")                                                 \
    X(rgb, mean, "auto", -1e30, RUN, "X[,X,X]|imagenet|auto",                                                \
      "x = (byte/255 - mean) / std: in units of 0..1, not 0..255; of floats x = (value - mean) / std "       \
      "(auto: imagenet for folder and tar, 0 for floats, else 0.5)")                                         \
    X(rgb, std, "auto", 1e-30, RUN, "X[,X,X]|imagenet|auto",                                                 \
      "in the same units (auto: imagenet for folder and tar, 1 for floats, else 0.5)")                       \
    X(word, workers, "auto", 0, RANK, "N",                                                                   \
      "threads that fetch images ahead; 0: none (auto: one per core for pictures, and for synth on a GPU; "  \
      "else none)")                                                                                          \
    X(int, skip_damaged, "0", 0, RUN, "N",                                                                   \
      "skip up to N damaged images, each named in a warning: training uses the set's next image "            \
      "instead, evaluation a black one, and packing omits it")                                               \
    X(bool, shuffle, "on", 0, RUN, "on|off",                                                                 \
      "use another order in every epoch (that of PyTorch's DistributedSampler)")                             \
    X(pick, last_batch, "keep", 0, RUN, "keep|pad|drop",                                                     \
      "if shards do not divide the set: each image once, PyTorch's padding, or full batches only")           \
    G("Training")                                                                                            \
    X(int, epochs, "10", 1, RUN, "N", "passes over the training set, including those before --resume")       \
    X(word, steps, "none", 1, JOB, "N",                                                                      \
      "stop after N updates of the whole run, or after --epochs if that is given and comes first")           \
    X(word, batch, "auto", 1, RUN, "N",                                                                      \
      "images per shard and update, so per rank by default (auto: 128, or a quarter of a shard's images if " \
      "there are fewer)")                                                                                    \
    X(word, global_batch, "none", 1, RUN, "N", "images per update, all shards together; instead of --batch") \
    X(pick, loss, "ce", 0, RUN, "ce|bce|mse|mae",                                                            \
      "softmax cross-entropy of labels; binary cross-entropy of each class (BCEWithLogitsLoss), on CPUs; "   \
      "or mean squared or absolute error (MSELoss, L1Loss) of float targets")                                \
    X(pick, target, "label", 0, RUN, "label|image",                                                          \
      "what mse and mae compare outputs with: the float labels of npy; or each image itself, as the model "  \
      "gets it (autoencoders), on CPUs")                                                                     \
    X(str, class_weights, "none", 0, RUN, "none|balanced|FILE",                                              \
      "ce, in training: the mean is weighted by the label's class, on CPUs (balanced: images / classes / "   \
      "the class's images; FILE: a number for each class, or JSON by class name)")                           \
    X(num, label_smoothing, "0", 0, RUN, "X",                                                                \
      "ce and bce, in training: the target is 1 - X for the label, and X shared by all classes (0 to 1)")    \
    X(num, lr, "auto", 0, RUN, "X",                                                                          \
      "learning rate (auto: 0.1 for sgd, 0.001 for adam, adamw and lamb, 0.01 for rmsprop, 1 for lars; a "   \
      "tenth of it with --init, and for trained weights in a .pt2 file)")                                    \
    X(pick, lr_scale, "none", 0, RUN, "none|linear", "linear: the rate is --lr times --shards")              \
    X(str, schedule, "constant", 0, RUN, "constant|step:SIZE|multistep:E,E|cosine|poly|onecycle|plateau",    \
      "of the learning rate, over epochs; with all their values step:SIZE,GAMMA, multistep:E,E@GAMMA, "      \
      "cosine:MIN, poly:POWER,MIN, onecycle:PART, plateau:PATIENCE,FACTOR")                                  \
    X(pick, schedule_by, "update", 0, RUN, "update|epoch",                                                   \
      "cosine, poly and onecycle change the rate with every update, or once an epoch as PyTorch's "          \
      "schedulers do")                                                                                       \
    X(str, group_lr, "none", 0, RUN, "none|PREFIX=X[,PREFIX=X...]",                                          \
      "factors of the learning rate for parameters with these name prefixes: fc=10,conv1=0.1")               \
    X(num, warmup_epochs, "0", 0, RUN, "X", "the rate rises linearly over the first X epochs")               \
    X(num, warmup_from, "0", 0, RUN, "X", "from this fraction of it; 1/ranks is Horovod's callback")         \
    X(pick, optimizer, "sgd", 0, RUN, "sgd|adam|adamw|rmsprop|lars|lamb",                                    \
      "torch.optim's, and timm's LARS and LAMB; rmsprop, lars and lamb on CPUs")                             \
    X(num, momentum, "0.9", 0, RUN, "X", "sgd, lars and rmsprop")                                            \
    X(bool, nesterov, "off", 0, RUN, "on|off", "sgd and lars: Nesterov's momentum")                          \
    X(str, betas, "0.9,0.999", 0, RUN, "X,X",                                                                \
      "adam, adamw and lamb: decay rates of the averages of gradients and of their squares")                 \
    X(num, alpha, "0.99", 0, RUN, "X", "rmsprop: decay rate of the average of squares")                      \
    X(num, eps, "auto", 0, RUN, "X",                                                                         \
      "adam, adamw, lamb and rmsprop: added to the denominator (auto: 1e-8, for lamb 1e-6)")                 \
    X(num, weight_decay, "0", 0, RUN, "X",                                                                   \
      "added to the gradient, times the weight; adamw: subtracted from the weight, times rate and "          \
      "weight (0 for all optimizers, although torch.optim.AdamW has 0.01)")                                  \
    X(str, no_decay, "none", 0, RUN, "none|norm,bias", "parameters without weight decay")                    \
    X(num, clip_grad_norm, "0", 0, RUN, "X",                                                                 \
      "scale gradients down to this norm, over all parameters, if theirs is larger; 0: never")               \
    X(str, ema, "none", 0, RUN, "none|DECAY[:every=N]",                                                      \
      "average the weights exponentially, after every Nth update (1), and evaluate and save the average")    \
    X(str, lookahead, "none", 0, RUN, "none|N,DECAY[,POWER]",                                                \
      "after every Nth update average the weights with DECAY, which grows over the run as its part to the "  \
      "POWER (0: constant), and continue from the average (Zhang et al. 2019), on CPUs; evaluate and save "  \
      "the average")                                                                                         \
    X(word, swa, "none", 1, RUN, "EPOCH",                                                                    \
      "stochastic weight averaging: average the weights and batch norms' statistics equally, after each "    \
      "epoch from this one on, and evaluate and save the average")                                           \
    X(str, freeze, "auto", 0, RUN, "auto|none|PREFIX[,PREFIX...]",                                           \
      "do not train parameters with these name prefixes: conv1,bn1,layer1. (none: train all; auto: "         \
      "freeze those with requires_grad=False in a .pt2 file)")                                               \
    X(bool, whiten, "off", 0, RUN, "on|off",                                                                 \
      "new weights: the first convolution whitens the patches of 5000 training images, as airbench's; "      \
      "--freeze keeps it")                                                                                   \
    X(bool, fix_norms, "off", 0, RUN, "on|off",                                                              \
      "batch norms use their running statistics in training, too, and do not update them (PyTorch's "        \
      "eval()); --init or a .pt2 file provides the statistics")                                              \
    X(int, seed, "0", 0, RUN, "N", "for initialisation, order and augmentation")                             \
    X(word, early_stop, "none", 1, RUN, "N",                                                                 \
      "end after N evaluations without a better one: a higher top-1 or, if equal, a lower loss")             \
    G("Precision")                                                                                           \
    X(pick, amp, "f32", 0, RUN, "f32|f16|bf16|O0|O1|O2|O3",                                                  \
      "type of activations, their gradients and the weights that convolutions read; Apex's O0 is f32, "      \
      "O1 and O2 are f16 (parameters, batch norm, sums and loss are always f32; O3 is refused)")             \
    X(word, loss_scale, "dynamic", 1, RUN, "N",                                                              \
      "f16: factor of the loss; dynamic: 65536, halved on overflow, doubled after 2000 updates without")     \
    G("Ranks")                                                                                               \
    X(int, accumulate, "1", 1, RUN, "N",                                                                     \
      "accumulate the gradients of N batches: N times as many shards, of which each rank works through its " \
      "own one after the other")                                                                             \
    X(word, shards, "ranks", 1, RUN, "N",                                                                    \
      "shards in the global batch (PyTorch's world size, virtually); at least one for each rank")            \
    X(str, balance, "off", 0, JOB, "off|auto|N,N,...",                                                       \
      "shards of each rank: equal numbers (off), fewer for slower ranks (auto), or these; no bit of a run "  \
      "depends on it")                                                                                       \
    X(bool, sync_bn, "off", 0, RUN, "on|off",                                                                \
      "batch norms use mean and variance over all images of an update, not only a shard's "                  \
      "(SyncBatchNorm)")                                                                                     \
    X(str, device, "cpu", 0, JOB, "ref|cpu|cuda|cuda:N",                                                     \
      "plain C, vector kernels, or CUDA: a GPU for each rank of a host, or its GPU N for all of them")       \
    X(str, devices, "", 0, JOB, "cpu:0,cpu:1|cuda|cuda:0,cuda:1",                                            \
      "train on all of these in one process, without mpirun (DataParallel): a rank on each; cpu:N is an "    \
      "equal part of the cores, cuda all GPUs; under mpirun every process has so many ranks")                \
    X(str, split, "", 0, JOB, "cpu:0,cpu:1,...",                                                             \
      "put consecutive layers of the model on each of these devices, equal sets of a rank's cores (model "   \
      "and pipeline parallelism)")                                                                           \
    X(str, split_at, "auto", 0, JOB, "auto|NAME,...",                                                        \
      "split: layers or modules before which the model is cut (auto: by estimated times)")                   \
    X(word, micro_batches, "auto", 1, JOB, "N",                                                              \
      "split: parts of --batch that follow each other through the devices; each is a shard of its own "      \
      "(auto: twice the number of devices, or the nearest number that divides the batch)")                   \
    X(pick, pipeline, "1f1b", 0, JOB, "1f1b|gpipe",                                                          \
      "split: backward passes begin as early as possible, which needs less memory, or after all forward "    \
      "passes; with the same result")                                                                        \
    X(size, memory_limit, "0", 0, JOB, "SIZE|0",                                                             \
      "refuse a model that needs more on a device: parameters, gradients, activations and workspace; split " \
      "plans its cuts within it (0: no limit)")                                                              \
    X(bool, deterministic, "off", 0, RUN, "on|off",                                                          \
      "cuda: bit-identical results in every run, at some cost (ref and cpu: always)")                        \
    X(bool, tf32, "off", 0, RUN, "on|off",                                                                   \
      "cuda: allow TF32, which rounds the factors of f32 products to 10 bits")                               \
    X(str, isa, "auto", 0, JOB, "NAME", "cpu: instruction set; auto: the best that all ranks support")       \
    X(word, threads, "auto", 1, RANK, "N", "per rank; auto: its share of the available cores")               \
    X(pick, comm, "auto", 0, JOB, "auto|self|shm|mpi|tcp|hier|nccl", "how gradients are exchanged")          \
    X(pick, optimizer_state, "auto", 0, JOB, "auto|replicated|sharded",                                      \
      "each rank keeps all of it, or a slice that it updates for all ranks (ZeRO stage 1)")                  \
    X(size, bucket, "25MiB", 0, RUN, "SIZE|0|all",                                                           \
      "a bucket of gradients ends with the layer that reaches this size (the first: 1 MiB), and is "         \
      "split, into pieces of 1 MiB at least, if over twice as large; 0: one per layer; all: one. "           \
      "Statistics get one more if the update is sharded or gradients are compressed (tune finds the "        \
      "fastest)")                                                                                            \
    X(str, comm_cutoffs, "", 0, JOB, "NAME=N,...",                                                           \
      "message sizes at which comms mpi, tcp and hier change algorithms: mpi-short, mpi-packet (see tune)")  \
    X(pick, compression, "f32", 0, RUN, "f32|f16|bf16|powersgd:R",                                           \
      "exchange gradients in this type (f32: uncompressed), or as factors of rank R; sums are in f32 (comm " \
      "nccl: in that type)")                                                                                 \
    X(pick, reduction, "mean", 0, RUN, "mean|adasum",                                                        \
      "how the gradients of shards become one: their mean, or Horovod's Adasum, which adds orthogonal ones " \
      "and averages equal ones, so that the rate of one shard serves for many")                              \
    X(pick, overlap, "auto", 0, JOB, "auto|off|worker",                                                      \
      "exchange gradients during backward, in a worker thread; auto: if each rank has a free processor for " \
      "it")                                                                                                  \
    X(int, check_replicas, "0", 0, JOB, "N",                                                                 \
      "compare the ranks' copies of the parameters every N updates; 0: never")                               \
    X(pick, graph, "auto", 0, JOB, "auto|on|off",                                                            \
      "cuda: capture a step as a CUDA graph, and then launch it as a whole")                                 \
    X(time, stall_warn, "30s", 0, JOB, "TIME",                                                               \
      "warn when a rank has waited this long, and name the rank that it waits for; 0: never")                \
    X(time, stall_abort, "300s", 0, JOB, "TIME", "end the job when a rank has waited this long; 0: never")   \
    G("Starting without MPI")                                                                                \
    X(int, spawn, "0", 0, RANK, "N", "start N ranks on this host; 0: none (mpirun, srun or torchrun do)")    \
    X(str, init_method, "", 0, RANK, "env://|tcp://HOST:PORT|file:///PATH",                                  \
      "how ranks that no launcher of MPI started find rank 0; env: by MASTER_ADDR and MASTER_PORT, as "      \
      "torchrun and a PyTorchJob set them, which needs no option")                                           \
    X(word, rank, "auto", 0, RANK, "N", "this rank's number, from 0; auto: the variable RANK")               \
    X(word, world_size, "auto", 1, RANK, "N", "number of ranks; auto: the variable WORLD_SIZE")              \
    X(str, interface, "", 0, RANK, "NAME", "network interface for these ranks' connections (eth0)")          \
    G("Files")                                                                                               \
    X(str, recipe, "", 0, JOB, "NAME|list",                                                                  \
      "options of a recipe, or a list of all recipes with their sources; --config and flags override it")    \
    X(str, config, "", 0, JOB, "FILE", "options from a JSON object, read by rank 0; flags override it")      \
    X(str, init, "", 0, JOB, "FILE",                                                                         \
      "start with the weights of a safetensors file (hvtrain's or PyTorch's), or of the last one in a "      \
      "folder; hvtrain's also set --size, --eval-size, --mean, --std, --grey and --exif unless other "       \
      "options do")                                                                                          \
    X(bool, reset_head, "off", 0, JOB, "on|off", "--init: initialise the head (fc) instead of loading it")   \
    X(str, save, "", 0, JOB, "DIR|none",                                                                     \
      "write checkpoints here; last and best link to two of them; none: do not save, even with --resume")    \
    X(str, save_every, "1epoch", 0, JOB, "Nepochs|Nsteps|TIME",                                              \
      "--save: after so many epochs or updates, or this long after the last time; and at the end")           \
    X(int, keep, "3", 1, JOB, "N", "--save: keep the newest N checkpoints, and the best")                    \
    X(bool, overwrite, "off", 0, JOB, "on|off",                                                              \
      "--save: replace another run's checkpoint when this run saves for the first time")                     \
    X(str, resume, "", 0, JOB, "DIR|FILE|auto",                                                              \
      "continue from the newest whole checkpoint in DIR, and save there unless --save is given; or from "    \
      "one file; auto: from the folder of --save if it has a checkpoint, else start")                        \
    X(pick, data_changed, "refuse", 0, JOB, "refuse|ok",                                                     \
      "--resume, if the training set differs from the checkpoint's: refuse: an error inside an epoch, a "    \
      "warning between two; ok: continue")                                                                   \
    X(str, max_time, "auto", 0, JOB, "TIME|auto|none",                                                       \
      "save and end before the process is this old (23h50m); auto: before SLURM's limit, if it is set")      \
    X(int, preempt_exit, "143", 0, JOB, "CODE",                                                              \
      "exit code of a run that saved and ended early: by SIGTERM, SIGUSR1, SIGUSR2 or --max-time")           \
    X(bool, evaluate, "off", 0, JOB, "on|off",                                                               \
      "with --init or --resume: evaluate and print the result on stdout")                                    \
    X(str, predict, "", 0, JOB, "FILE",                                                                      \
      "--evaluate: write the five most probable classes of each image as CSV (-: to stdout); with masks, a " \
      "folder of mask PNGs")                                                                                 \
    X(str, predict_logits, "", 0, JOB, "FILE",                                                               \
      "--evaluate: write the logits as a NumPy array (.npy), f32 [images, classes]")                         \
    X(int, eval_freq, "1", 0, RUN, "N", "epochs between evaluations; 0: only at the end")                    \
    X(pick, tta, "none", 0, RUN, "none|flip|shift",                                                          \
      "evaluation and predictions use the mean of the logits of each image and of its mirror image "         \
      "(test-time augmentation, as timm), on CPUs; shift: also of both moved by a pixel (airbench)")         \
    X(bool, per_class, "off", 0, JOB, "on|off", "the last evaluation prints the accuracy of every class")    \
    X(str, log, "", 0, RANK, "FILE", "JSON lines, written by rank 0; --resume appends")                      \
    X(int, print_freq, "10", 1, JOB, "N", "updates between step records")                                    \
    X(str, report, "", 0, RANK, "FILE.html|FILE.svg",                                                        \
      "at the end, write a page with the curves of the run, or a picture of them (see hvtrain report)")      \
    X(str, tensorboard, "", 0, RANK, "DIR", "write loss, accuracy, rate and speed for TensorBoard")          \
    X(str, timeline, "", 0, JOB, "FILE", "phases of every rank as a Chrome trace (ui.perfetto.dev)")         \
    X(str, timeline_steps, "all", 0, JOB, "FIRST-LAST|all", "--timeline: only these updates of the run")     \
    X(bool, quiet, "off", 0, RANK, "on|off", "print only errors, warnings and the result of --evaluate")     \
    X(bool, verbose, "off", 0, RANK, "on|off",                                                               \
      "print all of the table at the start: memory, exchange, the cores of each rank, all defaults")         \
    X(bool, passes, "off", 0, RANK, "on|off",                                                                \
      "hvtrain inspect FILE.pt2: print the model's graph after each pass of the import")                     \
    G("Packing (hvtrain pack)")                                                                              \
    X(str, output, "", 0, JOB, "DIR/train-%06d.tar",                                                         \
      "names of the shards: train- packs the training images, val- those of the evaluation; report: the "    \
      "page (report.html); inspect: a folder for training images as PNG")                                    \
    X(word, resize, "none", 1, JOB, "PIXELS",                                                                \
      "larger pictures get this shorter side, as JPEG of quality 92 (none: files are copied as they are)")   \
    X(bool, raw, "off", 0, JOB, "on|off", "pixels (NAME.npy), which need no decoding, instead of files")     \
    X(int, shard_images, "5000", 1, JOB, "N", "images in a shard")

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
typedef double hvt_opt_time;
typedef hvt_rgb hvt_opt_rgb;

#define HVT_OPT_NO_GROUP(title)
#define HVT_OPT_ONE(kind, field, preset, low, scope, form, help) +1
enum { HVT_OPTION_COUNT = 0 HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT_OPT_ONE) };
#undef HVT_OPT_ONE

/** What a command line asks for. */
typedef enum hvt_ask {
    HVT_ASK_TRAIN,
    HVT_ASK_TUNE,
    HVT_ASK_PACK,
    HVT_ASK_CHECK,
    HVT_ASK_INSPECT,
    HVT_ASK_REPORT,
    HVT_ASK_HELP
} hvt_ask;

/** The source of an option's value; a later one in this list wins. */
typedef enum hvt_from {
    HVT_FROM_DEFAULT,
    HVT_FROM_CHECKPOINT,
    HVT_FROM_RECIPE,
    HVT_FROM_CONFIG,
    HVT_FROM_FLAG
} hvt_from;

typedef struct hvt_options {
#define HVT_OPT_FIELD(kind, field, preset, low, scope, form, help) hvt_opt_##kind field;
    HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT_OPT_FIELD)
#undef HVT_OPT_FIELD
    hvt_ask ask;            ///< by "tune", "pack", "check", "inspect" or "report" first, --help or --version
    const char *help_topic; ///< "--help TOPIC", "version" for --version: borrowed; see hvt_options_help()
    hvt_from from[HVT_OPTION_COUNT]; ///< in the table's order
    const char *tune_file;           ///< "tune FILE SECONDS": borrowed; "": none
    double tune_seconds;
    bool tune_lr;             ///< "tune lr FILE": a range test of the learning rate
    const char *const *files; ///< "inspect FILE ...", "report RUN ...": [nfiles], borrowed
    int nfiles;
    /** The caller's data sets instead of --data, on every rank; borrowed until the run is over. NULL: --data.
     * A run that only evaluates needs no train_set. */
    const hvt_dataset *train_set, *test_set;
    void *from_files[3]; ///< private: texts of hvt_options_prepare(), until hvt_options_release()
} hvt_options;

/** Set all options to their defaults. */
HVT_API void hvt_options_default(hvt_options *ret_opts);
/**
 * Parse argv[1..] over the defaults, optionally with "tune FILE [SECONDS]", "pack DIR", "check", "inspect
 * FILE ..." or "report RUN ..." first. Flags are `--name value` or `--name=value`; '_' in a name reads as
 * '-'; the last of repeated flags wins. Values are checked one by one here, and against each other in
 * hvt_options_prepare(). Errors: E_ARG names the flag, what was expected and what came, or suggests the
 * nearest flag for an unknown one.
 */
HVT_API hvt_status hvt_options_parse(int argc, char **argv, hvt_options *ret_opts);
/** Set one option by its flag's name, without "--", as the parser does. value is borrowed. */
HVT_API hvt_status hvt_options_set(hvt_options *opts, const char *name, const char *value);
/**
 * Prepare parsed options for hvt_train(), hvt_tune() or hvt_pack(), in this order:
 *
 *  1. Compare the options that must be equal on all ranks.
 *  2. --config: set the options that the file opts->config has and no flag gives. The file is one JSON
 *     object. Its keys are options without "--"; its values are texts, as after the flag, or a number, true,
 *     false, or a list for values with commas ({"betas": [0.8, 0.99], "group-lr": {"fc": 10}}). Rank 0 reads
 *     the file and broadcasts it. Then --recipe sets options that neither flags nor the file give.
 *  3. --resume, --init and --save:
 *     - `--resume auto` becomes `--resume DIR` with the folder of --save if that holds a checkpoint, and
 *       --init is dropped; else --resume is dropped.
 *     - `--resume DIR` also sets `--save DIR`, unless --save is given or the run only evaluates.
 *     - `--save none` clears --save.
 *     - Options of scope RUN that neither a flag nor --config gives take the checkpoint's value, so that
 *       `--resume DIR` alone continues the run.
 *     - With --init and a file that hvtrain wrote, size, eval_size, mean, std, grey and exif take the file's
 *       values in the same way, so that the model gets images as in training.
 *  4. Check that the options fit together on this many ranks.
 *
 * opts then refers to texts that hvt_options_release() frees; a copy of opts borrows them. Collective.
 * Errors, on all ranks alike: E_MISMATCH naming flag, values and ranks; E_ARG naming the flags and their
 * values, or the file of --config and the key; E_IO (no readable checkpoint), E_FORMAT (a checkpoint's option
 * with an invalid value), E_MEM.
 */
HVT_API hvt_status hvt_options_prepare(hvt_options *opts, hvt_world *world);
/** Free the texts of hvt_options_prepare(), and reset all options to their defaults. NULL is fine. */
HVT_API void hvt_options_release(hvt_options *opts);
/** The text of --help TOPIC, malloc'ed. topic: "" for the most used options on one screen of 80 columns;
 * "all" for all options with meanings and defaults, in at most 100 columns; a group ("data", "training", ...)
 * or an option ("lr") for that part of "all"; "markdown" for a table; "man" for a page for man(1); "version".
 * Returns NULL for an unknown topic, or if out of memory. */
HVT_API char *hvt_options_help(const char *topic);

/* ---- a run -------------------------------------------------------------------------------- */

/** The result of a run. */
typedef struct hvt_report {
    int epochs;       ///< epochs finished or begun, over the whole run
    int64_t steps;    ///< updates, over the whole run
    hvt_loss test;    ///< the final evaluation
    double img_s;     ///< training images per second on all ranks, evaluation and saving excluded
    double seconds;   ///< since the process began
    uint64_t weights; ///< hvt_model_hash(), with averaged weights that of the average
    bool preempted;   ///< ended early, by a signal (in hvtrain) or --max-time; continue with --resume
} hvt_report;

/**
 * Train (or only evaluate) by the options: data, model, exchange, epochs, evaluation, checkpoints, log. For
 * the caller's own data see train_set and test_set of hvt_options.
 *
 * Progress and results are lines on stderr and stdout. With a function of hvt_log_to() they are its lines of
 * level HVT_LOG_INFO instead, without a progress bar. The same holds for hvt_tune() and hvt_pack(). Data that
 * an option sends to "-" goes to stdout.
 *
 * Sets hvt_world_watch() to --stall-warn and --stall-abort until the world is closed. A rank that gives up
 * waiting calls the function of hvt_world_on_stall().
 *
 * Collective: every rank of the world. On failure the message is in hvt_last_error(). If
 * hvt_last_error_is_agreed(), all ranks return it. If not, the other ranks may be waiting for this one: print
 * it, then call hvt_world_abort(); the run's memory is not freed in that case. Errors: those of the calls it
 * makes; E_DIVERGED if the loss of an update is not finite, naming the update, remedies, and the last good
 * checkpoint. A loss of the evaluation never ends a run.
 */
HVT_API hvt_status hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report);

/**
 * hvt_train() by a command line, for languages other than C: hvt_options_parse(), train_set and test_set
 * (NULL: --data), hvt_options_prepare(), hvt_train(). argv[0] is ignored. Collective. Errors: those of these
 * calls.
 */
HVT_API hvt_status hvt_train_args(int argc, char **argv, const hvt_dataset *train_set,
                                  const hvt_dataset *test_set, hvt_world *world, hvt_report *ret_report);

/**
 * Find the fastest bucket size and cutoffs for this world and model, in about opts->tune_seconds. Prints the
 * measurements on stdout, and writes opts->tune_file for --config and opts->tune_file.svg, a plot of the
 * times by bucket size. Steps are whole training steps with a learning rate of 0. A value replaces the
 * current one only if the upper quartile of its times is below the lower quartile of the current one's.
 *
 * With opts->tune_lr, find a learning rate instead: train for up to 100 updates while the rate grows from
 * 1e-6 to 10, and propose the rate at which the smoothed loss falls fastest.
 *
 * Collective. Errors: those of hvt_train().
 */
HVT_API hvt_status hvt_tune(const hvt_options *opts, hvt_world *world);

/**
 * Write the data set that opts->data and opts->data_dir name as tar shards: hvt_dataset_pack() with the
 * options of the group Packing. opts->output's name, train- or val-, selects the split. Prints what was
 * written. Collective; errors are agreed: E_MISMATCH, E_ARG, those of hvt_dataset_open() and
 * hvt_dataset_pack().
 */
HVT_API hvt_status hvt_pack(const hvt_options *opts, hvt_world *world);

/**
 * Exact loss, top-1 and top-5 (with targets loss and error) over a loader's images on all ranks. Each
 * image's loss is rounded to 2^-24 nats and summed in an integer wide enough for any number of floats, then
 * summed over ranks. So the result does not depend on how images are distributed.
 *
 * With labels of pixels, each labelled pixel counts like an image, and iou is the mean, over the classes that
 * occur among labels or predictions, of
 *
 *     pixels labelled and predicted as the class / pixels labelled or predicted as the class
 *
 * If the loss of an image is infinite, the sum is infinite; if one is NaN (or -infinity, which no
 * cross-entropy is), the sum is NaN, and that image counts as a miss. Neither is an error. Collective.
 * Errors, on all ranks alike: E_ARG (images without labels; use hvt_model_predict() or hvt_model_logits()),
 * those of the loader and the model.
 */
HVT_API hvt_status hvt_evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt_loss *ret_loss);

/**
 * Write one HTML page, or one SVG picture, of the runs in opts->files to opts->output: files of --log,
 * folders that hold one, tables of --predict. Needs no world. Errors: E_ARG, E_IO and E_FORMAT naming the
 * file, E_MEM.
 */
HVT_API hvt_status hvt_report_write(const hvt_options *opts);

/* ---- files -------------------------------------------------------------------------------- */

/**
 * Load weights from a safetensors file (F32, F16 or BF16), by torchvision's names, also behind the prefixes
 * of DataParallel ("module.") and torch.compile ("_orig_mod."); from a folder, its newest readable
 * checkpoint. skip_head: the last layer keeps its weights. Errors: E_IO, E_FORMAT (also non-finite numbers),
 * E_SHAPE naming file, tensor and both shapes, or the missing or unknown names.
 */
HVT_API hvt_status hvt_weights_load(const char *file, hvt_model *m, bool skip_head);

/** The state of --early-stop and --schedule plateau. */
typedef struct hvt_patience {
    double top1, loss; ///< of the best evaluation
    int stale;         ///< evaluations since the best one
    double least;      ///< the least loss; 0: none yet
    int bad, cuts;     ///< evaluations without a lower loss; reductions of the rate
} hvt_patience;

/**
 * State of a run in a checkpoint. A checkpoint is DIR/NAME.safetensors, which holds exactly the tensors of
 * torchvision's state_dict(), and sidecar files named in its metadata: DIR/STEM.momentum.safetensors or
 * DIR/STEM.adam.safetensors with optimizer state, and DIR/STEM.powersgd.safetensors with PowerSGD. If the
 * optimizer averages weights (hvt_ema), DIR/NAME.safetensors has the average, which was evaluated, and
 * DIR/STEM.raw.safetensors, with the same names and shapes, the weights that training continues with. Every
 * file has hashes of its header and its data.
 *
 * Sidecar files are written first, under unique names; the rename of the weights' file commits the
 * checkpoint. So a crash, a full disk or a kill at any moment leaves either the previous checkpoint or the
 * whole new one. Files are written under temporary names, synced and renamed, and then the folder is synced.
 *
 * A run writes *generations* with ascending numbers, DIR/gen-000012.safetensors with STEM gen-000012.
 * `last.safetensors` and `best.safetensors` are symbolic links to two of them, replaced by a rename (copies,
 * if the file system has no links). hvt_train() copies the state between two updates; a low-priority thread
 * on rank 0 writes it while training continues. All ranks learn the outcome at the next save, which waits for
 * the previous one, or at the end of the run.
 */
typedef struct hvt_progress {
    int epoch;     ///< epoch to continue with, 0-based
    uint32_t step; ///< update of that epoch to continue with, 0-based
    int64_t steps; ///< updates so far
    double top1;   ///< percent, from the evaluation of these weights; < 0: not evaluated
    double loss;   ///< mean, of the same evaluation; 0: unknown
    uint64_t run;  ///< the same in all checkpoints of a run, also after --resume; 0: unknown
    char *options; ///< JSON object {"flag": "value"} of the options of scope RUN; load: malloc'ed, free() it
    char *class_names; ///< JSON array of the data's class names, by class number; NULL: none; load:
                       ///< malloc'ed, free() it
    char *begun; ///< JSON with the sums so far of an interrupted evaluation; NULL: none; load: malloc'ed,
                 ///< free() it
    int64_t averages; ///< load: number of updates of the file's average; 0: it has no average. save:
                      ///< ignored
    /* the position in the epoch, which older files lack */
    uint32_t sample;     ///< images of the epoch's order used so far; 0 with step > 0: unknown
    bool untested;       ///< an evaluation is due before the next update
    int64_t epoch_steps; ///< updates of this epoch that epoch_loss covers
    hvt_loss epoch_loss; ///< sums over the epoch so far, for its record in the log; older files have no error
    hvt_loss recent;     ///< sums since the last record of a step
    uint32_t images;     ///< of the training set
    hvt_patience patience;
    uint64_t data; ///< digest of the training set: --resume compares both; 0: unknown, as in older files
} hvt_progress;

/** Write a checkpoint now, with STEM NAME-HASH, replacing the one of that name. Creates the folder, but not
 * its parents; hvt_checkpoint_load() takes DIR/NAME. o may be NULL (no optimizer). If ranks hold slices of
 * its state or PowerSGD residuals, call hvt_distopt_gather() first. Needs memory for a copy of all that is
 * saved. Errors, which leave existing files intact: E_IO naming file and cause, E_DIVERGED naming a
 * non-finite tensor, E_ARG (not gathered; a name that is empty or has a '/'), E_MEM. */
HVT_API hvt_status hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                                       const hvt_progress *progress);
/** Load a checkpoint. path: a file, also without .safetensors, or a folder. A folder's checkpoint is its
 * newest intact generation, else `last`, else `best`, else the one of hvt_checkpoint_save() with the most
 * updates; a warning names damaged ones that were skipped. m NULL: progress only, of the newest with an
 * intact header. o NULL: the file's weights, which may be an average. Errors: E_IO, E_FORMAT (damaged:
 * hashes differ; not a checkpoint of libhvt), E_SHAPE, E_ARG (saved with another optimizer; nothing was
 * loaded). An optimizer without an average gets the raw weights; one that finds no average in the file
 * begins it with the next update. */
HVT_API hvt_status hvt_checkpoint_load(const char *path, hvt_model *m, hvt_optim *o,
                                       hvt_progress *ret_progress);

HVT_C_END
#endif /* HVT_TRAIN_H */
