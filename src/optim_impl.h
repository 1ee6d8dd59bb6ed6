/* optim_impl.h - an optimizer's state and its parts, for src/optim and checkpoints in src/train. */
#ifndef HVT_OPTIM_IMPL_H
#define HVT_OPTIM_IMPL_H

#include "hvt/optim.h"
#include "model_impl.h"

/*
 * powersgd.c: what a run whose gradients travel as factors needs to go on besides the optimizer's state. As
 * gathered from the ranks, or loaded for them; see hvt_distopt_gather().
 */
typedef struct hvt__powersgd_tensor {
    int param, m; /* Q is [r][m] */
    size_t q_at;
} hvt__powersgd_tensor;

typedef struct hvt__powersgd_state {
    int r, n;
    hvt__powersgd_tensor *tensor;   /* [n] that travel as factors */
    size_t q_count, residual_count; /* residual_count: an arena */
    const float *in_use;            /* [q_count] the Q of the next step */
    int ranks;                      /* that the residuals are of */
    double residual_scale;          /* what a mean gradient of 1 is in them; 0: they hold nothing */
    float *q;                       /* [q_count]; NULL: it is not here */
    float *residual;                /* [ranks][residual_count] in the arena's layout */
    bool loaded;                    /* and not at the ranks yet */
} hvt__powersgd_state;

/* Memory for it, with the Q in use and residuals of 0. */
hvt_status hvt__powersgd_state_alloc(hvt__powersgd_state *saved, int ranks);

/* What an optimizer keeps of each element: a number in each of so many arenas. One more has the average of
 * the weights, if there is one: it lies behind the others, and goes wherever they go. */
enum { HVT__OPTIM_STATES = 2, HVT__ARENAS };

/* What an update does to a parameter besides the optimizer's own numbers. */
typedef struct hvt__group {
    bool own; /* it is in a group that was made */
    float lr_scale, weight_decay;
} hvt__group;

/* An update of n elements from `at` on, in one run; g as in hvt__optim_span(). */
typedef hvt_status hvt__optim_update(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                                     const float *const g[], int ng);

typedef struct hvt__optim_rule {
    const char *name;
    const char *state[HVT__OPTIM_STATES]; /* torch.optim's names, as in checkpoints */
    const char *file;        /* of a checkpoint, for the state: momentum in gen-000012.momentum.safetensors */
    bool begins_at_any_time; /* a parameter without state goes on as from 0; else t, which is of all, is wrong
                              */
    int (*states)(const hvt_optim_opts *o);       /* how many of them these options need */
    hvt_status (*check)(const hvt_optim_opts *o); /* its own options. Errors: E_ARG */
    hvt__optim_update *update;
} hvt__optim_rule;

extern const hvt__optim_rule hvt__optim_rules[]; /* by hvt_optim_kind */
/* Bytes of the state that such an optimizer keeps of a planned model, all of it on one rank. */
size_t hvt__optim_bytes(const hvt_optim_opts *opts, const hvt_model *m);

struct hvt_optim {
    hvt_model *m; /* borrowed */
    hvt__users users;
    hvt_optim_opts opts;
    const hvt__optim_rule *rule;
    hvt__group *group; /* [nparam_tensors] */
    int states;        /* 0: it keeps none */
    int arenas;        /* `states`, and the average */
    float *v;       /* device memory: state k of element i of the arenas is v[k * v_count + i - v_at]; NULL */
    size_t v_count; /* an arena's, but in slices */
    size_t v_at;    /* 0, but in slices */
    bool sliced;    /* v has this rank's slices alone, one after the other (slices.c) */
    float *whole;   /* then, for a while: all of it, arenas one after the other, as gathered or loaded */
    bool loaded;    /* `whole` was written and is not in the ranks' slices yet */
    hvt__powersgd_state *powersgd; /* borrowed from its distributed optimizer; NULL: gradients travel whole */
    float *ema_stats; /* device memory [2][stats_count]: the average of the running statistics, and room to
                         exchange them; NULL: there is none */
    bool is_averaged; /* the model has the average, and this the weights: see ema.c */
    int64_t tracked;  /* then: the model's num_batches_tracked */
};

/* ---- ema.c: the average of the weights ---- */

/* E_ARG while the model has it: for `what` it must have its weights. */
hvt_status hvt__ema_check_place(const hvt_optim *o, const char *what);
/* The device knows when a step takes it. The running statistics' part of it, after hvt__model_end_step(). */
hvt_status hvt__ema_stats(hvt_optim *o);
/* The same of n parameters from `at` on, which the update has just written. */
hvt_status hvt__ema_span(hvt_optim *o, size_t at, size_t n);
/* Elements of a host's thread that are updated before they are averaged. */
extern size_t hvt__ema_piece;
/* Does a step that is decided take it? On a device that queues the host does not know: true. */
bool hvt__ema_is_due(const hvt_optim *o);
/* The weights and running statistics that the model has are `count` averages' result. Errors: as
 * hvt__optim_state(). */
hvt_status hvt__ema_load(hvt_optim *o, int64_t count);

/* All of the state, to be read or to be written: an arena of grad_count elements, at the parameters' offsets,
 * for each of `arenas`. Errors: E_ARG it lies in slices and was not gathered, E_MEM. */
hvt_status hvt__optim_state(hvt_optim *o, bool write, float **ret_v);

/* group.c: with no decay where norms or biases have none */
hvt__group hvt__optim_group_of(const hvt_optim *o, const hvt_param *p);

/* No update was made yet: v holds nothing. The model's step state knows; asking waits. */
hvt_status hvt__optim_fresh(const hvt_optim *o, bool *ret_fresh);
/* `updates` were made before: 0 is fresh. */
hvt_status hvt__optim_set_updates(hvt_optim *o, int64_t updates);

/* An update, after hvt__model_end_step(): spans [first, end) until all are done. The gradient is the sum
 * along the tree of g[r][i - first], r < ng; g[] is moved on.
 */
hvt_status hvt__optim_span(hvt_optim *o, const float *g[], int ng, size_t first, size_t end);

/* Cut the arena from `start` into buckets that end at layers' ends, end[layers] ascending; offsets count
 * floats. Writes the buckets' ends, at most `layers` of them, and returns how many. */
int hvt__bucket_cut(size_t start, const size_t *end, int layers, size_t first_bytes, size_t bytes,
                    size_t *ret_end);

/* Cut a bucket that holds more than twice `bytes` into equal pieces of at most that, but no limit below
 * hvt__bucket_least, at multiples of 16 floats. Writes the pieces' ends, at most 1 for each hvt__bucket_least
 * bytes and one more, and returns how many. */
extern size_t hvt__bucket_least; /* bytes */
int hvt__bucket_split(size_t first, size_t end, size_t bytes, size_t *ret_end);

/* Ends of the layers' spans in arena order; padding behind a layer belongs to it. At most one for each
 * parameter and one more; returns how many. */
int hvt__layer_ends(const hvt_model *m, size_t *ret_end);

struct hvt__codec;

/* A span of the gradient arena that travels at once. */
typedef struct hvt_bucket {
    size_t first, end;
    const struct hvt__codec *codec; /* how it travels */
    const char *tensor;             /* the first of which it holds a part */
    hvt_ticket ticket;              /* of the step under way */
    bool second;                    /* round of it */
    size_t own_first, own_end;      /* what this rank updates of it: a slice, or all */
    size_t own_at;                  /* where its state lies in that which this rank has */
} hvt_bucket;

/* The plan of buckets for a model, *ret_count > 0, and in the same block, behind them, their f32 bytes, a
 * size_t each; free() it. stats_alone: step statistics are the first
 * bucket, and travel as f32. */
hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, const struct hvt__codec *codec,
                            bool stats_alone, hvt_bucket **ret_bucket, int *ret_count);

#endif /* HVT_OPTIM_IMPL_H */
