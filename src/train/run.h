/* run.h - a run in progress. */
#ifndef HVT_TRAIN_RUN_H
#define HVT_TRAIN_RUN_H

#include "train/checkpoint/checkpoint_impl.h"
#include "train/predict/predict_impl.h"
#include "train/report/report_impl.h"
#include "base/trace.h"

#include <string.h>

/* --balance auto (balance.c). */
typedef struct hvt__balance {
    int window, left; /* updates of the window, and those of it that are left */
    double began;     /* seconds of forward and backward passes when the window began */
    double *seconds;  /* [size] seconds of a shard on each rank */
} hvt__balance;

/* A checkpoint that this job wrote. */
typedef struct hvt__kept {
    bool good;     /* its loss was finite, or not evaluated; false also without a checkpoint */
    int epoch;     /* 1-based */
    int64_t steps; /* updates */
    hvt__score score;
} hvt__kept;

/* An evaluation that was interrupted: its sums over the first images of the test set. */
enum { HVT__BEGUN_SUMS = 26 };
typedef struct hvt__begun {
    int64_t steps;  /* the weights are those after this many updates */
    int64_t images; /* 0: none was interrupted */
    int64_t sums[HVT__BEGUN_SUMS];
} hvt__begun;

/* Counts per class: the test images of each class, then the hits of each, [2 * classes]. With labels of
 * pixels [3 * classes]: labelled pixels, hits, and pixels predicted as the class. classes 0: not counted. */
typedef struct hvt__per_class {
    int classes, kinds; /* kinds: 2 or 3 */
    int64_t *now;       /* the last evaluation's counts: this rank's; on rank 0, after the sum, all ranks' */
    int64_t *begun;     /* rank 0: those of an interrupted evaluation, over all ranks */
    int64_t *all;       /* rank 0: [ranks * chunk] */
    int chunk;          /* counts that are gathered at once */
} hvt__per_class;

/* Loader options of both splits, without the shards and the model's values. */
typedef struct hvt__loading {
    hvt_loader_opts train, test;
} hvt__loading;

/* Resolves the loader options. data: either split; file: the model's, or NULL; cores: borrowed. Errors:
 * E_ARG. */
hvt_status hvt__resolve_loading(const hvt_options *o, const hvt_resolved *set, const hvt_dataset_info *data,
                                const hvt_pt2 *file, const hvt_cores *cores, hvt__loading *ret_loading);

/* Seconds of this job on this rank. compute, exposed and data are those of its updates: computing, waiting
 * for the exchange, waiting for data. startup is from the start of the process to the end of setting up. */
typedef struct hvt__spent {
    double compute, exposed, data, evaluate, save, startup;
} hvt__spent;

/* Updates and their training time (speed.c). Updates that the device has not done yet are queued: their time
 * is known after a wait for the device. Begin with {0}. */
typedef struct hvt__speed {
    double seconds, done_seconds; /* in all; up to the last wait for the device */
    int64_t images, updates;      /* until then */
    int64_t queued_images, queued_updates;
} hvt__speed;

/* Adds an update of `images` images, for which the host took `seconds`. */
void hvt__speed_add(hvt__speed *s, double seconds, int64_t images);
/* Adds a wait for the device, after which all queued updates are done. */
void hvt__speed_waited(hvt__speed *s, double seconds);
/* NaN if no update is known to be done. */
double hvt__speed_update(const hvt__speed *s); /* seconds of one */
double hvt__speed_img_s(const hvt__speed *s);

/* A rank's times, and the seconds in which it was stopped. */
typedef struct hvt__rank_spent {
    hvt__spent spent;
    double paused;
} hvt__rank_spent;

/* A place in the whole run. */
typedef struct hvt__place {
    int epoch;       /* 0-based */
    uint32_t step;   /* finished updates of the epoch */
    uint32_t sample; /* finished images of the epoch's order */
    int64_t steps;   /* finished updates in all */
} hvt__place;

/* The updates since a record. */
typedef struct hvt__recent {
    hvt_loss loss;
    hvt__speed speed;
} hvt__recent;

/* The training of this job (epoch.c). */
typedef struct hvt__job {
    hvt__spent spent; /* up to the end of the last epoch */
    double seconds;   /* training only */
    int64_t images;
    double first_update; /* seconds after the start of the process; < 0: not yet */
    double first_loss;   /* mean of the first update; its images */
    int64_t first_images;
    bool warned_growth; /* about losses */
} hvt__job;

/* The current epoch, since it began or was resumed (epoch.c, spent.c). */
typedef struct hvt__lap {
    bool open;
    double seconds, paused, phases[HVT__PHASE_COUNT]; /* when it began */
    int64_t images;
} hvt__lap;

/* Evaluations (train.c). */
typedef struct hvt__testing {
    hvt_loss loss;    /* of the last one; of an unlabelled set the sum is NaN */
    int64_t steps;    /* number of updates at that time; -1: not yet */
    double seconds;   /* of the last one, 0: none yet */
    int64_t images;   /* this rank's images in the current evaluation */
    bool due;         /* an evaluation precedes the next update */
    hvt__begun begun; /* the progress of an interrupted one */
    hvt__per_class per_class;
    bool warned_large, warned_infinite; /* about losses */
} hvt__testing;

/* Checkpoints (train.c). */
typedef struct hvt__saving {
    hvt__folder folder; /* rank 0 */
    uint64_t run;       /* rank 0: the identifier of the run in its checkpoints */
    uint64_t data;      /* rank 0: the digest of train_set; 0: no set */
    bool pending;       /* a checkpoint is being written */
    hvt__kept writing;
    int64_t steps;             /* number of updates at the last save; -1: not yet */
    hvt__kept last, best_kept; /* that this job wrote */
    hvt__score best;           /* of `best` */
    bool due;                  /* save after this update */
    bool untested;             /* the checkpoint of these weights says that they are untested */
    bool test_unsaved;         /* the checkpoint of these weights lacks progress of their evaluation */
    double at;                 /* hvt__now() */
    double seconds;            /* of saving on this thread */
    bool noted_patience;       /* that mpirun's patience is too short for a save */
} hvt__saving;

/* The early end of this job (preempt.c). */
typedef struct hvt__preempt {
    bool stopping;
    double deadline;          /* hvt__now(); INFINITY: none */
    double slowest;           /* the longest recent time between two polls, s */
    double since_poll;        /* s of the updates since the last poll */
    int64_t votes[HVT_VOTES]; /* at the last poll */
} hvt__preempt;

typedef struct run {
    const hvt_options *given; /* the caller's, borrowed */
    hvt_options settled;      /* the same with values in place of auto */
    const hvt_options *opts;  /* settled */
    hvt_world *world;         /* borrowed */
    int rank, size;
    hvt_resolved set;
    hvt_placement *placement; /* [size] */
    hvt__rank_spent *spents;  /* [size] */

    hvt_device *dev;
    hvt_device *stage[HVT__STAGES];          /* of --split: parts of dev's cores */
    const hvt_dataset *train_set, *test_set; /* train_set NULL: evaluation only */
    hvt_dataset *opened[2];                  /* the sets that are not the caller's */
    hvt_pt2 *file;                           /* the model's; NULL: a model of the zoo */
    hvt__loading loading;
    int classes; /* of the model */
    bool masks;  /* each pixel has a label */
    /* rank 0: the classes' names, an array of text; NULL: none or, in an evaluation, those of test_set */
    json_t *class_names;
    float *class_weights; /* [classes] --class-weights; NULL: none */
    hvt_model *model;
    hvt_loader *train_data, *test_data;
    hvt__predictions *predictions; /* NULL: not wanted */
    hvt_optim *optim;
    hvt_schedule *schedule;
    hvt_comm *comm;
    hvt_distopt *dist;
    int *first_of; /* [size + 1] the first shard of each rank; behind them, room for the next division */
    hvt__balance balance;
    const char *overlap, *overlap_why; /* off, worker */
    hvt_graph *graph;                  /* a step with full shards; NULL: none yet, or not possible */
    bool record;                       /* capture a graph */
    hvt_reporter *rep;                 /* rank 0 */
    struct hvt__history *history;      /* rank 0, of --report; else NULL */
    hvt_timeline *timeline;
    int64_t averages; /* rank 0: the number of weights averaged in the initial ones */
    uint32_t steps_per_epoch;
    int64_t end; /* stop after this many updates */
    hvt_patience patience;

    hvt__place at, began; /* now, and when this job began */
    int64_t step_images;  /* of the current update, on all ranks */
    hvt__recent recent;   /* since the last step record */
    hvt__recent shown;    /* before that record: shown in the bar until newer ones are known */
    struct {
        hvt_loss loss;
        int64_t steps;
    } epoch_sum; /* updates of the current epoch, earlier jobs included */
    hvt__job job;
    hvt__lap lap;
    hvt__testing test;
    hvt__saving save;
    hvt__preempt preempt;
} run;

/* Images whose loss is 2^30 nats or more, infinite, or NaN. */
typedef struct hvt__odd_losses {
    int64_t large, inf, nan;
} hvt__odd_losses;

/* hvt_evaluate() with counts of odd losses and, for a run t, with its predictions; images without labels have
 * no losses. show: called after each batch of this rank, or NULL; if it returns false, the evaluation is
 * interrupted. t: NULL without a run. *ret_whole: false if the evaluation was interrupted; then t->test.begun
 * has its partial result, and the next call continues from it. */
hvt_status hvt__evaluate(hvt_model *m, hvt_loader *loader, hvt_world *world, bool show(run *t, int images),
                         run *t, hvt_loss *ret_loss, hvt__odd_losses *ret_odd, bool *ret_whole);

/* Converts of->test.begun to the JSON of a checkpoint, malloc'ed, and back. Invalid text, or that of another
 * test set, is ignored: the evaluation then starts anew. */
char *hvt__begun_text(const run *of);
void hvt__begun_read(run *of, const char *text);

/* Begins a run: checks that ranks agree on the options, and resolves them in its `set`. Collective; errors
 * are agreed, and leave nothing to tear down. */
hvt_status hvt__run_begin(const hvt_options *opts, hvt_world *world, run *ret_run);
hvt_status hvt__setup(run *t); /* Collective. */
/* Opens data and --model FILE.pt2, and checks that they, the batch and the classes of the weights fit
 * together. Collective. */
hvt_status hvt__open_data(run *t);
/* Opens the device of `set` on the cores of `placement`. Collective. Errors are not agreed. */
hvt_status hvt__open_device(run *t);
void hvt__teardown(run *t); /* Collective. */
/* The options of scope RUN with the values that took effect, as a JSON object; malloc'ed. */
char *hvt__effective_options(const run *t);

/* True if two sets have the same description and the same images in a sample: descriptions may agree by
 * chance. */
bool hvt__same_images(const hvt_dataset *a, const hvt_dataset *b);
/* Warns of --mean and --std that do not fit floats, on rank 0. */
void hvt__warn_of_range(const run *t);

/* Finds the names of classes, and matches labels by name if data and weights number classes differently. Call
 * when the sets are open and before the model is built. Collective. Errors: E_ARG for data that cannot be
 * compared. */
hvt_status hvt__find_class_names(run *t);
/* The images that the model sees, as a JSON object for the options of a checkpoint. */
json_t *hvt__describe_images(const run *t);
/* On rank 0: warns if the images differ from those with which the weights of --init were trained. now: the
 * run's options, as hvt__effective_options() has them. */
void hvt__warn_of_images(const run *t, const json_t *now);
hvt_status hvt__report_start(const run *t); /* summary.c */
/* True if the schedule covers all epochs, so that more epochs change earlier rates. */
static inline bool hvt__schedule_ends(const run *t)
{
    const char *name = t->opts->schedule;

    return !strncmp(name, "cosine", 6) || !strncmp(name, "poly", 4) || !strncmp(name, "onecycle", 8);
}
/* The options to open a split of --data (setup/data.c). */
hvt_dataset_opts hvt__set_opts(const hvt_options *o, bool train);
/* On rank 0: the digest of the training set (same_data.c). Errors: E_MEM. */
hvt_status hvt__find_data(run *t);
/* On rank 0, for a run that continues from p, with t->at.epoch and t->at.sample: checks that its training set
 * is the checkpoint's. Errors: E_ARG. */
hvt_status hvt__compare_data(run *t, const hvt_progress *p);
hvt_status hvt__step(run *t, double lr, bool *ret_end); /* *ret_end: the epoch has no more batches */
/* Trains from update t->at.step to the end of the epoch or of the run, or to an update that sets t->save.due
 * or t->preempt.stopping; the next call continues the epoch. */
hvt_status hvt__train_epoch(run *t);
/* Adds to E_DIVERGED the time, remedies, and the checkpoint to resume; other errors pass unchanged. */
hvt_status hvt__name_diverged(run *t, const char *when, hvt_status s);
void hvt__saved(run *t); /* the save in progress is complete */

/* Estimates the time to the end of the run: updates, evaluations and checkpoints take as long as the last
 * ones. */
double hvt__seconds_left(const run *t);

/* open: call before the run is set up. vote: before each update, this rank's wish. poll: after it, what all
 * ranks must do. */
void hvt__preempt_open(run *t);
void hvt__preempt_vote(run *t);
hvt_status hvt__preempt_poll(run *t, double seconds); /* of the update */
bool hvt__preempt_requested(run *t);                  /* true if this rank should end early */
hvt_status hvt__preempt_agree(run *t);    /* sets t->preempt.stopping if any rank should. Collective. */
double hvt__preempt_limit(const run *t);  /* seconds until the job must have ended; INFINITY: no limit */
double hvt__preempt_margin(const run *t); /* seconds before the limit at which the run begins to end */
bool hvt__save_due_after_epoch(const run *t);
/* On rank 0, after a save: notes once that Ctrl-C leaves less time than an update and a save take. */
void hvt__note_patience(run *t);
/* On rank 0, for a run with a time limit: reports the time reserved for saving and ending, at the start, and
 * when the run ends for that reason. */
void hvt__report_limit(const run *t, bool ends);
/* Reports that the run ends early. */
hvt_status hvt__report_preempted(run *t, uint64_t weights);

/* begin: starts counting the time of an epoch's updates. take: adds the time since then, or since the last
 * take, to t->job.spent, and returns it. */
void hvt__spent_begin(run *t);
hvt__spent hvt__spent_take(run *t);
/* Adds the parts to a record, as fractions of `seconds`. */
void hvt__spent_record(const hvt__spent *s, double seconds, json_t *record);
/* Adds `by_rank` to a record: seconds of all ranks, with the parts of the whole job or of updates alone. */
void hvt__spent_by_rank(const hvt__rank_spent *of, int ranks, bool job, json_t *record);
/* "71.3 % computing, 12.0 % evaluating", without parts that round to 0.0 %. */
enum { HVT__SPENT_TEXT = 300 };
void hvt__spent_text(const hvt__spent *s, double seconds, char ret_text[HVT__SPENT_TEXT]);

/* Counts per class (per_class.c), if the run has labels and at most 1,000 classes or --per-class. */
hvt_status hvt__per_class_open(run *t); /* after the model is planned. Errors: E_MEM. */
void hvt__per_class_close(run *t);
hvt_status hvt__per_class_init(hvt__per_class *c, int classes, bool pixels, hvt_world *world);
void hvt__per_class_free(hvt__per_class *c);
static inline size_t hvt__per_class_counts(const hvt__per_class *c)
{
    return (size_t)c->kinds * (size_t)c->classes;
}
void hvt__per_class_count(hvt__per_class *c, int32_t label, bool hit);
void hvt__per_class_pixel(hvt__per_class *c, int32_t label, int32_t predicted, bool hit);
/* Mean over the classes that are labelled or predicted anywhere: hits / (labelled + predicted - hits). */
double hvt__per_class_iou(const hvt__per_class *c);
hvt_status hvt__per_class_sum(hvt__per_class *c, hvt_world *world); /* to rank 0. Collective. */
void hvt__per_class_record(const hvt__per_class *c,
                           json_t *record); /* adds class_images, class_hits, class_predicted */
/* Converts counts of an interrupted evaluation to JSON, and back; false if it has none for these classes. */
json_t *hvt__per_class_begun(const hvt__per_class *c);
bool hvt__per_class_resume(hvt__per_class *c, const json_t *begun);
/* On rank 0: prints the table of --per-class, the least accurate class first. result: on stdout. */
hvt_status hvt__per_class_print(const run *t, bool result);
/* On rank 0: the names of the classes, an array of text; null: no names, or more than 1,000 classes. */
json_t *hvt__class_names(const run *t);

/* --report (pages.c), on rank 0: keeps the records from here on; writes the page, and warns if it cannot. */
hvt_status hvt__pages_open(run *t);
void hvt__pages_write(const run *t);
void hvt__pages_close(run *t);

/* --balance. Collective; hvt__balance_step() after each update. */
hvt_status hvt__balance_open(run *t);
void hvt__balance_close(run *t);
hvt_status hvt__balance_step(run *t);

/* --overlap. Collective. */
hvt_status hvt__overlap_open(run *t);

#endif /* HVT_TRAIN_RUN_H */
