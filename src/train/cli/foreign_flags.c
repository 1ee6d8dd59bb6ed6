/*
 * Flags of other trainers and launchers, and old names of our own, with what to write instead: for the one
 * line that refuses them.
 */
#include "options.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>

/* names: without dashes, each between blanks. In `here`, #N is replaced by the number that was given to the
 * flag, or by the letter N. */
static const struct {
    const char *names, *here;
} table[] = {
    {" a arch model-name network net backbone ", "--model"},
    {" b batch-size per-device-train-batch-size micro-batch-size bs ",
     "--batch (of a rank) or --global-batch"},
    {" total-batch-size effective-batch-size ", "--global-batch"},
    {" test-batch-size val-batch-size eval-batch-size ", "nothing, evaluation takes --batch, too"},
    {" learning-rate base-lr initial-lr init-lr ", "--lr"},
    {" lr-scheduler lr-policy lr-schedule scheduler sched ", "--schedule"},
    {" step-size lr-step-size lr-gamma gamma milestones lr-steps lr-decay decay-epochs ",
     "--schedule step:SIZE[,GAMMA] or multistep:E,E[@GAMMA]"},
    {" min-lr eta-min ", "--schedule cosine:MIN"},
    {" warmup lr-warmup-epochs warmup-steps ", "--warmup-epochs"},
    {" wd decay l2 ", "--weight-decay"},
    {" p log-interval print-interval log-every log-freq logging-steps ", "--print-freq"},
    {" e eval evaluate-only eval-only test test-only validate val ",
     "--evaluate with --resume DIR or --init FILE"},
    {" num-epochs num-train-epochs max-epochs n-epochs nb-epochs ", "--epochs"},
    {" max-steps num-steps iterations max-iter num-iters ", "--steps"},
    {" opt-level dtype precision torch-dtype ", "--amp"},
    {" fp16 half use-amp mixed-precision ", "--amp f16 or bf16"},
    {" bf16 bfloat16 ", "--amp bf16"},
    {" fp16-allreduce grad-compression ", "--compression f16 or bf16"},
    {" wire ", "--compression"},
    {" tail ", "--last-batch"},
    {" update ", "--optimizer-state"},
    {" replica-check ", "--check-replicas"},
    {" error-feedback ", "--compression powersgd:R keeps its residual; 16-bit sums lose at most rounding"},
    {" thresholds ", "--comm-cutoffs"},
    {" fusion-threshold-mb bucket-cap-mb message-size ", "--bucket"},
    {" autotune autotune-log-file output ", "hvtrain tune FILE, then --config FILE"},
    {" budget ", "hvtrain tune FILE SECONDS"},
    {" timeline-filename profile profiler trace ", "--timeline FILE"},
    {" backward-passes-per-step batches-per-allreduce gradient-accumulation-steps accum-iter grad-accum ",
     "--shards"},
    {" pretrained weights load load-weights finetune ", "--init FILE"},
    {" checkpoint ckpt resume-from load-checkpoint restore ", "--resume DIR"},
    {" o output-dir out-dir outdir out save-dir save-path checkpoint-dir ckpt-dir model-dir ", "--save DIR"},
    {" log-dir logdir log-file logfile tensorboard wandb ", "--log FILE, JSON lines"},
    {" d dataset dataset-name ", "--data, and --data-dir for its folder"},
    {" data-path dataset-dir dataset-path data-root root train-dir train-data ", "--data-dir"},
    {" num-classes nb-classes nclass ", "--classes"},
    {" image-size img-size imgsize input-size crop-size resolution train-crop-size ",
     "--size with --data synth; images of cifar10 have a size"},
    {" num-samples dataset-size train-size ", "--samples with --data synth, --limit with cifar10"},
    {" random-crop random-flip hflip flip crop transforms data-augmentation ", "--augment crop:4,flip"},
    {" gpus num-gpus ngpus gpus-per-node ", "mpirun -np #N ./hvtrain --device cuda"},
    {" gpu gpu-id device-id ", "--device cuda:#N"},
    {" cuda use-cuda use-gpu ", "--device cuda"},
    {" no-cuda cpu no-gpu disable-cuda ", "--device cpu"},
    {" backend dist-backend ", "--comm"},
    {" np n num-proc nproc nprocs nproc-per-node num-processes ntasks world-size multiprocessing-distributed "
     "ranks distributed ddp ",
     "mpirun -np #N ./hvtrain"},
    {" H hosts host hostfile nnodes nodes N ", "mpirun --host A:4,B:4 (or --hostfile FILE) ./hvtrain"},
    {" oversubscribe allow-run-as-root bind-to map-by mca use-hwthread-cpus ",
     "mpirun --FLAG ... ./hvtrain: flags of mpirun stand before the program"},
    {" rank local-rank node-rank master-addr master-port ", "nothing, mpirun or srun sets it"},
    {" dist-url dist-file init-method rdzv-endpoint rdzv-id rdzv-backend ",
     "nothing, the ranks find each other"},
    {" num-threads nthreads omp-num-threads t ", "--threads"},
    {" j workers num-workers dataloader-workers pin-memory persistent-workers prefetch-factor ",
     "nothing, images are read without worker processes"},
    {" cycle-time-ms cache-capacity ", "nothing, a bucket leaves when it is full"},
    {" opt optimizer optim sgd ", "nothing, SGD with --momentum is the one optimizer"},
    {" adam adamw lars lamb betas eps ", "nothing, SGD with --momentum is the one optimizer"},
    {" channels-last compile torch-compile cudnn-benchmark benchmark winograd ",
     "nothing, the plan chooses by itself"},
    {" random-seed manual-seed ", "--seed"},
    {" skip-head reset-classifier init-skip-head ", "--reset-head"},
    {" start-epoch ", "nothing, --resume knows where it stands"},
    {" v verbose debug ", "HVT_LOG=debug in the environment"},
    {" share-gpu ", "--device cuda:N, a host's GPU N for all of its ranks"},
    {" plan-cache ", "nothing, plans are kept in hvtrain/plans under XDG_CACHE_HOME, or else ~/.cache"},
    {" first-bucket ", "nothing, the first bucket has at most 1 MiB"},
    {" loss-scale-min min-loss-scale ", "nothing, a dynamic loss scale falls to 1 at least"},
    {" dampening ", "nothing, --momentum takes gradients undamped"},
    {" V ", "--version"},
    {" c cfg config-file ", "--config FILE"},
    {" sync-bn sync-batchnorm use-adasum clip-grad clip-grad-norm grad-clip max-grad-norm gradient-clip-val "
     "label-smoothing smoothing mixup mixup-alpha cutmix cutmix-alpha random-erase reprob auto-augment aa "
     "model-ema ema dropout drop drop-path patience early-stopping ",
     "nothing, hvtrain does not have this"},
};

static bool is_number(const char *text)
{
    size_t digits = text ? strspn(text, "0123456789") : 0;

    return digits && digits <= 6 && !text[digits];
}

static void fill_in(const char *here, const char *value, char *ret_here, size_t bytes)
{
    const char *n = strstr(here, "#N");

    if (!n)
        snprintf(ret_here, bytes, "%s", here);
    else
        snprintf(ret_here, bytes, "%.*s%s%s", (int)(n - here), here, is_number(value) ? value : "N", n + 2);
}

bool hvt__foreign_flag(const char *name, const char *value, char *ret_here, size_t bytes)
{
    char whole[64];

    if ((size_t)snprintf(whole, sizeof whole, " %s ", name) >= sizeof whole)
        return false;
    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (strstr(table[i].names, whole)) {
            fill_in(table[i].here, value, ret_here, bytes);
            return true;
        }
    return false;
}
