/* cli_impl.h - the options, for the other rooms. */
#ifndef HVT_TRAIN_CLI_IMPL_H
#define HVT_TRAIN_CLI_IMPL_H

#include "hvt/train.h"

#include <jansson.h>

/* ---- options.c, option_table.c ---- */

typedef enum hvt_scope { HVT_SCOPE_RANK, HVT_SCOPE_JOB, HVT_SCOPE_RUN } hvt_scope;
enum { HVT_OPTION_VALUE = 4200 }; /* bytes of the longest value as text, a path */

/* Indices into the table: HVT__AT_batch, ... */
#define HVT__OPTION_AT(kind, field, preset, low, scope, form, help) HVT__AT_##field,
enum hvt__option_at { HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT__OPTION_AT) };
#undef HVT__OPTION_AT

typedef struct hvt__flag {
    char text[48]; /* "--weight-decay" */
} hvt__flag;

hvt__flag hvt__option_flag(int i);
int hvt__option_find(const char *name); /* without "--", with '-' or '_'; -1: there is none */
hvt_scope hvt__option_scope(int i);
void hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE]);

/* ---- options_json.c ---- */

json_t *hvt__json_text(const char *text); /* bytes that are not UTF-8 become '?' */
/* {"flag without dashes": "value"} of the options with at least this scope. json_decref() it. */
json_t *hvt__options_json(const hvt_options *opts, hvt_scope least);
/* Set the options that such an object gives, except those that a stronger source than `from` has set. A
 * checkpoint may contain unknown options, which are ignored. opts refers to texts in *ret_memory: free() it
 * after opts. Errors: E_FORMAT, E_ARG naming the option, E_MEM; opts is unchanged then. */
hvt_status hvt__options_fill(hvt_options *opts, hvt_from from, const char *text, void **ret_memory);

/* ---- share.c ---- */

/* Broadcast rank 0's status `read` and its *text of *bytes; on the other ranks the text is malloc'ed, and
 * ends with a 0. On failure no rank has a text. `what` names the text if memory is short. Collective. */
hvt_status hvt__share_text(hvt_world *world, hvt_status read, const char *what, char **text, size_t *bytes);

/* ---- resolve.c ---- */

enum { HVT_MAX_GPUS = 1024 };

typedef struct hvt_resolved {
    int shards, local_shards, batch; /* batch: images per shard */
    double lr;                       /* after the scaling rule */
    int crop;
    bool flip, no_decay_norm, no_decay_bias;
    hvt_last_batch last_batch;
    hvt_dtype wire, amp; /* amp: of activations */
    int powersgd;        /* rank of the gradients' factors; 0: none */
    hvt_update update;
    hvt_scaling scaling;
    size_t first_bucket;
    const char *device;
    bool on_gpu;
    int gpu;                         /* --device cuda:N; -1: that of the local rank */
    bool by_steps, by_epochs;        /* what ends the run; both: whichever comes first */
    int64_t first_shown, last_shown; /* updates in --timeline */
} hvt_resolved;

bool hvt__has_stem(const char *model); /* --stem applies to it */
/* Errors: E_ARG. */
hvt_status hvt__resolve(const hvt_options *opts, int ranks, hvt_resolved *ret_resolved);
/* Collective. Errors: as hvt_options_agree() and hvt_options_check(), on all ranks alike. */
hvt_status hvt__resolve_alike(const hvt_options *opts, hvt_world *world, hvt_resolved *ret_resolved);

#endif /* HVT_TRAIN_CLI_IMPL_H */
