/* run.h - a run in progress. */
#ifndef HVT_TRAIN_RUN_H
#define HVT_TRAIN_RUN_H

#include "train/checkpoint/checkpoint_impl.h"
#include "train/process/process_impl.h"
#include "train/report/report_impl.h"

/* Which is faster: the exchange in hvt_distopt_step(), or on a worker? */
enum { HVT__TRIES = 9, HVT__OFF = 0, HVT__WORKER, HVT__OVERLAPS };
typedef struct hvt__trial {
    const char *overlap; /* off, worker; auto: not known yet */
    const char *why;
    int on;                                    /* the present way: HVT__OFF ... */
    double seconds[HVT__OVERLAPS][HVT__TRIES]; /* of the updates each way */
    int64_t after;                             /* updates before the trial */
} hvt__trial;

/* A checkpoint that this job wrote. */
typedef struct hvt__kept {
    bool good;     /* its loss was finite, or was not evaluated; false also where there is no checkpoint */
    int epoch;     /* 1-based */
    int64_t steps; /* updates */
} hvt__kept;

typedef struct run {
    const hvt_options *opts; /* borrowed */
    hvt_world *world;        /* borrowed */
    int rank, size;
    hvt_resolved set;
    hvt_placement *placement; /* [size] */
    double *exposed;          /* [size] seconds of the epoch that each rank waited for the exchange */

    hvt_device *dev;
    hvt_dataset *train_set, *test_set; /* train_set NULL: evaluation only */
    hvt_model *model;
    hvt_loader *train_data, *test_data;
    hvt_optim *optim;
    hvt_schedule *schedule;
    hvt_comm *comm;
    hvt_distopt *dist;
    hvt__trial trial;
    hvt_graph *graph;  /* a step with full shards; NULL: none yet, or not possible */
    bool record;       /* capture one */
    hvt_reporter *rep; /* rank 0 */
    hvt_timeline *timeline;
    hvt__folder *folder; /* rank 0; NULL: nothing is saved */
    uint64_t run;        /* rank 0: the identifier of the run in its checkpoints */
    uint32_t steps_per_epoch;

    /* progress of the whole run */
    int epoch;                                    /* 0-based */
    uint32_t step;                                /* updates done in it */
    int64_t steps;                                /* updates done in all */
    int64_t end;                                  /* stop after this many */
    int64_t first_epoch, first_step, first_steps; /* epoch, step and steps when this job began */
    double best;                                  /* top-1 in percent of `best` */
    hvt_loss test;                                /* the last evaluation */
    int64_t tested, saved;                        /* number of updates then; -1: not yet */
    hvt__kept last_kept, best_kept;
    bool warned_large, warned_infinite; /* of losses in evaluation */

    /* of this job, training only */
    double seconds;
    int64_t images;
    double eval_seconds, save_seconds; /* of the last one; < 0: none yet */
    int64_t evaluated;                 /* this rank's images in the current evaluation */
    double first_update;               /* after the process began; < 0: not yet */

    int64_t step_images; /* of the current update, on all ranks */
    hvt_loss epoch_loss; /* of the current epoch */

    /* since the last step record */
    hvt_loss recent;
    double recent_seconds;
    int64_t recent_images, recent_steps;
} run;

/* ---- eval.c ---- */

/* hvt_evaluate() with a callback after each batch of this rank, and with counts of odd losses. */
typedef void hvt__evaluated_fn(void *ctx, int images);
hvt_status hvt__evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, hvt__evaluated_fn *progress,
                         void *ctx, hvt_loss *ret_loss, hvt__odd_losses *ret_odd);

/* ---- setup.c ---- */

hvt_status hvt__setup(run *t); /* Collective. t->set is given. */

/* ---- epoch.c ---- */

hvt_status hvt__step(run *t, double lr, bool *ret_end); /* *ret_end: the epoch has no more batches */
hvt_status hvt__train_epoch(run *t); /* from update t->step to the end of the epoch or of the run */
/* Adds to E_DIVERGED when it happened, what to try, and which checkpoint to resume; other errors pass. */
hvt_status hvt__name_diverged(const run *t, const char *when, hvt_status s);

/* ---- gpu.c, overlap_autotune.c ---- */

/* --overlap. Collective; hvt__trial_step() after each update, with its time. */
hvt_status hvt__trial_open(run *t);
hvt_status hvt__trial_step(run *t, double seconds);
/* The GPU that this rank's options and placement ask for. */
hvt_status hvt__open_gpu(run *t);
/* Every rank's GPU into t->placement. Collective. E_ARG: two ranks have the same, on all ranks alike. */
hvt_status hvt__gather_gpus(run *t);
void hvt__teardown(run *t); /* Collective. */
/* The options of scope RUN with the values that took effect, as a JSON object; malloc'ed. */
char *hvt__effective_options(const run *t);

/* ---- train.c, tune.c: hvt_train() and hvt_tune() of options that are resolved already ---- */

hvt_status hvt__train(const hvt_options *opts, const hvt_resolved *set, hvt_world *world,
                      hvt_report *ret_report);
hvt_status hvt__tune(const hvt_options *opts, const hvt_resolved *set, hvt_world *world);

#endif /* HVT_TRAIN_RUN_H */
