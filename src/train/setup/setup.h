/* setup.h - the steps of hvt__setup(), which setup.c calls in order of dependence. */
#ifndef HVT_TRAIN_SETUP_H
#define HVT_TRAIN_SETUP_H

#include "train/run.h"

/* All ranks return the error of any rank. */
#define AGREE(t, call) HVT_TRY(hvt_world_agree((t)->world, (call)))

/* Errors of a step that is not collective are not agreed. */

/* device.c */
hvt_status hvt__find_placements(run *t); /* Collective. */
/* Gathers every rank's GPU into t->placement. Collective. */
hvt_status hvt__gather_gpus(run *t);

/* data.c */
hvt_status hvt__open_loaders(run *t);
/* Refuses batches that PyTorch would refuse during training. Call it for an epoch that starts anew. */
hvt_status hvt__check_least(const run *t);
/* Opens the files of predictions before anything is computed, so that an unwritable one fails at once.
 * Collective. */
hvt_status hvt__open_predictions(run *t);

/* model.c */
hvt_status hvt__open_model_file(run *t); /* does nothing for a model of the zoo */
hvt_status hvt__plan_model(run *t);

/* class_weights.c */
/* Sets t->class_weights by --class-weights; leaves NULL without them. Collective. */
hvt_status hvt__find_class_weights(run *t);

/* exchange.c */
/* Creates the schedule of a run of `epochs` epochs. */
hvt_status hvt__open_schedule(const run *t, int epochs, hvt_schedule **ret_schedule);
hvt_status hvt__open_optim(run *t); /* and the schedule of this run */
hvt_status hvt__open_distopt(run *t);

/* whiten.c */
hvt_status hvt__whiten(run *t); /* --whiten, on one rank; after the weights were initialised */

/* resume.c */
/* On rank 0: sets the initial weights and progress. */
hvt_status hvt__first_weights(run *t);
hvt_status hvt__share_progress(run *t); /* Collective. */
/* On rank 0: checks that the checkpoints fit on their disk, including those of epochs that are the best so
 * far. */
hvt_status hvt__check_room(const run *t);

#endif /* HVT_TRAIN_SETUP_H */
