/* run.h - a run in progress: what setup.c opens and train.c works with. */
#ifndef HVT_TRAIN_RUN_H
#define HVT_TRAIN_RUN_H

#include "train_impl.h"

typedef struct run {
    const hvt_options *opts; /* borrowed */
    hvt_world *world;        /* borrowed */
    int rank, size;
    hvt_settled set;
    hvt_place *place; /* [size] */

    hvt_device *dev;
    hvt_dataset *train_set, *test_set; /* train_set NULL: evaluation only */
    hvt_model *model;
    hvt_loader *train_data, *test_data;
    hvt_optim *optim;
    hvt_schedule *schedule;
    hvt_comm *comm;
    hvt_distopt *dist;
    hvt_reporter *rep; /* rank 0 */
    uint32_t steps_per_epoch;

    /* where the whole run stands */
    int epoch;             /* 0-based */
    uint32_t step;         /* updates done in it */
    int64_t steps;         /* updates done in all */
    int64_t end;           /* stop after this many */
    double best;           /* top-1 in percent of `best` */
    hvt_loss test;         /* the last evaluation */
    int64_t tested, saved; /* at how many updates; -1: not yet */

    /* of this job, in seconds and images of training alone */
    double seconds, waited, exposed;
    int64_t images;
    double first_update; /* after the process began; < 0: not yet */

    int64_t step_images; /* of the update under way, on all ranks */
    hvt_loss epoch_loss; /* of the epoch under way */

    /* since the last step record */
    hvt_loss recent;
    double recent_seconds;
    int64_t recent_images, recent_steps;
} run;

hvt_status hvt__setup(run *t);
void hvt__teardown(run *t); /* Collective. */
/* The options of scope RUN as they took effect, "--flag=value\n" each; malloc'ed. */
char *hvt__effective_options(const run *t);

#endif /* HVT_TRAIN_RUN_H */
