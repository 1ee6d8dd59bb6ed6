/* snapshot.h - the parts of a snapshot, for the files that write them. */
#ifndef HVT_TRAIN_CHECKPOINT_SNAPSHOT_H
#define HVT_TRAIN_CHECKPOINT_SNAPSHOT_H

#include "checkpoint_impl.h"
#include "optim_impl.h"

struct hvt__snapshot {
    hvt_model *m;    /* borrowed, for names, shapes and layouts, which do not change */
    hvt_device *dev; /* borrowed; the block's device */
    float *block;    /* [count] host memory of the parts below */
    size_t count;
    float *room;   /* for the largest tensor */
    float *params; /* at the arenas' offsets: */
    float *arenas; /* the optimizer's, one after the other: */
    float *state;  /* an arena for each of `states`; NULL: no update yet, or none */
    int states;
    float *average; /* an arena, then the stats' average; NULL: none (yet) */
    bool takes_average;
    const hvt__optim_rule *rule; /* NULL: weights only */
    float *stats, *average_stats;
    hvt__powersgd_state powersgd; /* q NULL: no PowerSGD */
    int64_t tracked;
    hvt_step_state step;
    hvt_progress progress; /* with its own copies of texts */
    uint64_t hash;         /* hvt_model_hash(); after hvt__snapshot_arrange() */
};

/* Converts the parameters to canonical layout, once, and hashes the weights. Does not use the device. */
void hvt__snapshot_arrange(hvt__snapshot *s);
/* A tensor of another arena in canonical layout: in place, or in the room until the next call. */
const float *hvt__snapshot_tensor(const hvt__snapshot *s, const float *arena, const hvt_param *p);

/* The same for a parameter of the checkpoint's weights, averaged if there is an average. */
const float *hvt__snapshot_weight(const hvt__snapshot *s, const hvt_param *p);
const float *hvt__snapshot_stat(const hvt__snapshot *s, const hvt_stat *t); /* the same */

/* Saves the weights, the raw weights of an average, or the optimizer's state. E_DIVERGED: a number is not
 * finite; the file at `path` is unchanged. */
typedef enum hvt__save { HVT__SAVE_WEIGHTS, HVT__SAVE_RAW, HVT__SAVE_STATE } hvt__save;
hvt_status hvt__weights_save(const char *path, const hvt__snapshot *of, hvt__save what, const json_t *meta);
/* Bytes of the tensors in a file of weights or, with a rule, of optimizer state of so many arenas. Errors:
 * E_MEM. */
hvt_status hvt__weights_bytes(const hvt_model *m, const hvt__optim_rule *rule, int states,
                              uint64_t *ret_bytes);
/* Saves PowerSGD's state, and adds its metadata to meta. */
hvt_status hvt__powersgd_state_save(const char *path, hvt__snapshot *of, json_t *meta);

#endif /* HVT_TRAIN_CHECKPOINT_SNAPSHOT_H */
