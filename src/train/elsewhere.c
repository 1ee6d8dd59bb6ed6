/*
 * Flags of other trainers and launchers, and what stands in their place here: for the one line that refuses
 * them.
 */
#include "options.h"
#include "base_impl.h"

#include <string.h>

static const struct {
    const char *names, *here; /* names with a blank on either side, without dashes */
} table[] = {
    {" a arch ", "--model"},
    {" b batch-size per-device-train-batch-size ", "--batch (of a rank) or --global-batch"},
    {" learning-rate base-lr ", "--lr"},
    {" wd ", "--weight-decay"},
    {" p ", "--print-freq"},
    {" e eval evaluate-only ", "--evaluate"},
    {" num-epochs num-train-epochs max-epochs ", "--epochs"},
    {" max-steps ", "--steps"},
    {" opt-level ", "--amp"},
    {" fp16 use-amp mixed-precision ", "--amp f16 or bf16"},
    {" fp16-allreduce compression ", "--wire f16 or bf16"},
    {" fusion-threshold-mb bucket-cap-mb message-size ", "--bucket"},
    {" autotune autotune-log-file ", "hvtrain tune --output FILE"},
    {" timeline-filename ", "--timeline"},
    {" backward-passes-per-step batches-per-allreduce gradient-accumulation-steps accum-iter ", "--shards"},
    {" pretrained ", "--init FILE"},
    {" output-dir save-dir checkpoint-dir ", "--save DIR"},
    {" gpu gpus cuda no-cuda use-cuda ", "--device"},
    {" backend dist-backend ", "--comm"},
    {" np n num-proc nproc nprocs nproc-per-node world-size multiprocessing-distributed ",
     "mpirun -np N hvtrain"},
    {" H hosts host hostfile nnodes ", "mpirun --host A:4,B:4 (or --hostfile FILE) hvtrain"},
    {" rank local-rank node-rank master-addr master-port ", "nothing, mpirun or srun tells each rank"},
    {" dist-url dist-file init-method rdzv-endpoint rdzv-id rdzv-backend ",
     "nothing, the ranks find each other"},
    {" j workers num-workers ", "nothing, images are read without worker processes"},
    {" cycle-time-ms cache-capacity ", "nothing, a bucket leaves when it is full"},
    {" opt optimizer ", "nothing, SGD with --momentum is the one optimizer"},
    {" sync-bn sync-batchnorm use-adasum clip-grad max-grad-norm gradient-clip-val ", "nothing"},
};

const char *hvt__option_elsewhere(const char *name)
{
    char whole[64];

    if (strlen(name) + 3 > sizeof whole)
        return NULL;
    snprintf(whole, sizeof whole, " %s ", name);
    for (size_t i = 0; i < HVT_LEN(table); i++)
        if (strstr(table[i].names, whole))
            return table[i].here;
    return NULL;
}
