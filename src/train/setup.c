/*
 * Sets up a run, in order of dependence. After each step the ranks agree on its status, so that an error on
 * one rank is one message from rank 0 and the same status on all ranks, and no rank waits for one that has
 * returned.
 */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <math.h>

hvt_status hvt__run_begin(const hvt_options *opts, hvt_world *world, run *ret_run)
{
    *ret_run = (run){.given = opts,
                     .settled = hvt__options_settled(opts),
                     .opts = &ret_run->settled,
                     .world = world,
                     .rank = hvt_world_rank(world),
                     .size = hvt_world_size(world),
                     .test.steps = -1,
                     .save.steps = -1,
                     .job.first_update = -1,
                     .preempt.deadline = INFINITY};
    HVT_TRY(hvt__options_agree(opts, world));
    HVT_CHECK(!*opts->devices || !strcmp(hvt_world_name(world), "threads"), E_ARG,
              "--devices is an option of hvtrain's command line; a program calls hvt_world_open_threads()");
    return hvt_world_agree(world, hvt__resolve(opts, ret_run->size, &ret_run->set));
}

hvt_status hvt__setup(run *t)
{
    AGREE(t, t->rank == 0 ? hvt__folder_open(t->opts, &t->save.folder) : HVT_OK); /* the log may be in it */
    AGREE(t, t->rank == 0 ? hvt__report_open(t->opts, &t->rep) : HVT_OK);
    AGREE(t, hvt__pages_open(t));
    HVT_TRY(hvt__find_placements(t));
    AGREE(t, hvt__open_device(t));
    HVT_TRY(hvt__gather_gpus(t));
    HVT_TRY(hvt__open_data(t));
    HVT_TRY(hvt__find_class_weights(t));
    AGREE(t, hvt__plan_model(t));
    AGREE(t, hvt__per_class_open(t));
    AGREE(t, hvt__balance_open(t));
    AGREE(t, hvt__open_loaders(t));
    AGREE(t, hvt__check_least(t));
    HVT_TRY(hvt__open_predictions(t));
    AGREE(t, hvt__open_optim(t));
    AGREE(t, hvt_comm_set_cutoffs(t->opts->comm_cutoffs, false));
    AGREE(t, hvt_comm_open(t->opts->comm, t->world, t->dev, &t->comm));
    AGREE(t, hvt__open_distopt(t));
    AGREE(t, t->rank == 0 ? hvt__first_weights(t) : HVT_OK);
    AGREE(t, hvt_distopt_broadcast(t->dist, 0));
    HVT_TRY(hvt__share_progress(t));
    AGREE(t, t->rank == 0 ? hvt__check_room(t) : HVT_OK);
    t->preempt.deadline = t->train_set && t->rank == 0 && t->opts->ask == HVT_ASK_TRAIN
                              ? hvt__now() + hvt__preempt_limit(t)
                              : INFINITY;
    HVT_TRY(hvt__overlap_open(t));
    HVT_TRY(hvt__timeline_open(t->opts, &t->set, t->world, &t->timeline));
    AGREE(t, hvt__report_start(t));
    return hvt__timeline_at(t->timeline, t->at.steps);
}

void hvt__teardown(run *t)
{
    hvt__folder_close(&t->save.folder); /* a save in progress uses the model and the optimizer */
    hvt__timeline_close(&t->timeline);
    hvt__predictions_close(&t->predictions);
    hvt_graph_free(&t->graph); /* before the comm, which waits until it is freed */
    hvt_distopt_discard(&t->dist);
    hvt_loader_close(&t->train_data);
    hvt_loader_close(&t->test_data);
    hvt_schedule_free(&t->schedule);
    hvt_optim_free(&t->optim);
    hvt_comm_close(&t->comm);
    hvt_model_free(&t->model);
    hvt_pt2_close(&t->file);
    hvt_dataset_close(&t->opened[0]);
    hvt_dataset_close(&t->opened[1]);
    hvt_device_close(&t->dev);
    for (int k = 0; k < t->set.stages; k++)
        hvt_device_close(&t->stage[k]);
    hvt__report_close(&t->rep);
    hvt__pages_close(t);
    json_decref(t->class_names);
    free(t->class_weights);
    hvt__per_class_close(t);
    hvt__balance_close(t);
    free(t->spents);
    free(t->placement);
}
