/* run.h - a run in progress: what setup.c opens and train.c works with. */
#ifndef HVT_TRAIN_RUN_H
#define HVT_TRAIN_RUN_H

#include "train/report/timeline.h"

/* Which is faster: the exchange in hvt_distopt_step(), or on a worker? */
enum { HVT__TRIES = 9, HVT__OFF = 0, HVT__WORKER, HVT__OVERLAPS };
typedef struct hvt__trial {
    const char *overlap; /* off, worker; auto: not known yet */
    const char *why;
    int on;                                    /* of HVT__OFF ... */
    double seconds[HVT__OVERLAPS][HVT__TRIES]; /* of updates each way */
    int64_t after;                             /* updates that come before */
} hvt__trial;

/* A checkpoint that this job wrote. */
typedef struct hvt__kept {
    bool good; /* its loss in evaluation was finite, or was not asked for; false too where there is none */
    int epoch; /* 1-based */
    int64_t steps; /* updates */
} hvt__kept;

typedef struct run {
    const hvt_options *opts; /* borrowed */
    hvt_world *world;        /* borrowed */
    int rank, size;
    hvt_settled set;
    hvt_place *place; /* [size] */
    double *exposed;  /* [size] s of the epoch, for which each rank waited for the exchange */

    hvt_device *dev;
    hvt_dataset *train_set, *test_set; /* train_set NULL: evaluation only */
    hvt_model *model;
    hvt_loader *train_data, *test_data;
    hvt_optim *optim;
    hvt_schedule *schedule;
    hvt_comm *comm;
    hvt_distopt *dist;
    hvt__trial trial;
    hvt_graph *graph;  /* a step of full shards; NULL: none yet, or not to be had */
    bool record;       /* make one */
    hvt_reporter *rep; /* rank 0 */
    hvt_timeline *timeline;
    hvt__folder *folder; /* rank 0; NULL: nothing is saved */
    uint64_t run;        /* rank 0: which run this is, for its checkpoints */
    uint32_t steps_per_epoch;

    /* where the whole run stands */
    int epoch;                                    /* 0-based */
    uint32_t step;                                /* updates done in it */
    int64_t steps;                                /* updates done in all */
    int64_t end;                                  /* stop after this many */
    int64_t first_epoch, first_step, first_steps; /* what this job began with: epoch, step, steps */
    double best;                                  /* top-1 in percent of `best` */
    hvt_loss test;                                /* the last evaluation */
    int64_t tested, saved;                        /* at how many updates; -1: not yet */
    hvt__kept last_kept, best_kept;
    bool warned_large, warned_infinite; /* of losses in evaluation */

    /* of this job, in seconds and images of training alone */
    double seconds;
    int64_t images;
    double eval_seconds, save_seconds; /* of the last one; < 0: there was none */
    int64_t evaluated;                 /* this rank's images, of the evaluation under way */
    double first_update;               /* after the process began; < 0: not yet */

    int64_t step_images; /* of the update under way, on all ranks */
    hvt_loss epoch_loss; /* of the epoch under way */

    /* since the last step record */
    hvt_loss recent;
    double recent_seconds;
    int64_t recent_images, recent_steps;
} run;

hvt_status hvt__setup(run *t);
hvt_status hvt__step(run *t, double lr, bool *ret_end); /* *ret_end: no batch was left in this epoch */
/* overlap.c: --overlap. Collective; the second after each update, which took so long. */
hvt_status hvt__trial_open(run *t);
hvt_status hvt__trial_step(run *t, double seconds);
/* The GPU that this rank's options and place ask for. */
hvt_status hvt__open_gpu(run *t);
/* Every rank's GPU into t->place. Collective. E_ARG: two ranks have the same, on all ranks alike. */
hvt_status hvt__gather_gpus(run *t);
void hvt__teardown(run *t); /* Collective. */
/* The options of scope RUN as they took effect, "--flag=value\n" each; malloc'ed. */
char *hvt__effective_options(const run *t);

#endif /* HVT_TRAIN_RUN_H */
