/* snapshot.h - the parts of a snapshot, for the files that write them. */
#ifndef HVT_TRAIN_CHECKPOINT_SNAPSHOT_H
#define HVT_TRAIN_CHECKPOINT_SNAPSHOT_H

#include "checkpoint_impl.h"
#include "optim_impl.h"

struct hvt__snapshot {
    hvt_model *m;    /* borrowed: names, shapes and layouts are read of it, which do not change */
    hvt_device *dev; /* borrowed, that the block is of */
    float *block;    /* [count] of host memory, which the parts below lie in */
    size_t count;
    float *room;   /* for the largest tensor */
    float *params; /* at the arenas' offsets, as is: */
    float *arenas; /* the optimizer's, one after the other: */
    float *state;  /* an arena for each of `states`; NULL: there was no update yet, or it has none */
    int states;
    float *average; /* an arena, and then that of the stats; NULL: there is none yet, or never */
    bool takes_average;
    const hvt__optim_rule *rule; /* NULL: weights alone */
    float *stats, *average_stats;
    hvt__powersgd_state powersgd; /* q NULL: gradients travel whole */
    int64_t tracked;
    hvt_step_state step;
    hvt_progress progress; /* with texts of its own */
    uint64_t hash;         /* hvt_model_hash(); after hvt__snapshot_arrange() */
};

/* Bring the parameters into canonical layout, once, and hash the weights. Touches no device. */
void hvt__snapshot_arrange(hvt__snapshot *s);
/* A tensor of another arena in canonical layout: where it lies, or in the room until the next call. */
const float *hvt__snapshot_tensor(const hvt__snapshot *s, const float *arena, const hvt_param *p);

/* A parameter as the checkpoint's weights have it, averaged if there is an average; as above. */
const float *hvt__snapshot_weight(const hvt__snapshot *s, const hvt_param *p);
const float *hvt__snapshot_stat(const hvt__snapshot *s, const hvt_stat *t); /* the same */

/* Save the weights, those that were not averaged, or the optimizer's state. E_DIVERGED: a number is not
 * finite; the file at `path` is unchanged. */
typedef enum hvt__save { HVT__SAVE_WEIGHTS, HVT__SAVE_RAW, HVT__SAVE_STATE } hvt__save;
hvt_status hvt__weights_save(const char *path, const hvt__snapshot *of, hvt__save what, const json_t *meta);
/* Bytes of the tensors in a file of weights; rule not NULL: of the optimizer's state, of so many arenas.
 * Errors: E_MEM. */
hvt_status hvt__weights_bytes(const hvt_model *m, const hvt__optim_rule *rule, int states,
                              uint64_t *ret_bytes);
/* Adds to meta what goes with it. */
hvt_status hvt__powersgd_state_save(const char *path, hvt__snapshot *of, json_t *meta);

#endif /* HVT_TRAIN_CHECKPOINT_SNAPSHOT_H */
