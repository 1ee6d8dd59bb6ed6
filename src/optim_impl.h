/* optim_impl.h - an optimizer's state, for src/optim and the checkpoints of src/train. */
#ifndef HVT_OPTIM_IMPL_H
#define HVT_OPTIM_IMPL_H

#include "hvt/optim.h"
#include "model_impl.h"

/*
 * powersgd.c: PowerSGD's state in a checkpoint, gathered from the ranks or loaded for them; see
 * hvt_distopt_gather().
 */
typedef struct hvt__powersgd_tensor {
    int param, m; /* Q is [r][m] */
    size_t q_at;
} hvt__powersgd_tensor;

typedef struct hvt__powersgd_state {
    int r, n;
    hvt__powersgd_tensor *tensor;   /* [n] tensors sent as factors */
    size_t q_count, residual_count; /* residual_count: that of an arena */
    const float *in_use;            /* [q_count] the Q of the next step */
    int ranks;                      /* ranks that the residuals come from */
    double residual_scale;          /* value of a mean gradient of 1 in the residuals; 0: they are empty */
    float *q;                       /* [q_count]; NULL: not gathered or loaded */
    float *residual;                /* [ranks][residual_count] in the arena's layout */
    bool loaded;                    /* loaded, but not yet sent to the ranks */
} hvt__powersgd_state;

/* Allocate it, with the Q in use and residuals of 0. */
hvt_status hvt__powersgd_state_alloc(hvt__powersgd_state *saved, int ranks);

/* Maximum numbers that an optimizer keeps per element, each in its own arena. The average of the weights, if
 * any, is one more arena, after the others, and is moved with them. */
enum { HVT__OPTIM_STATES = 2, HVT__ARENAS };

enum { HVT__RULE_PIECE = 1 << 17 /* elements, whole blocks of squares */ };

/* A parameter's own hyperparameters. */
typedef struct hvt__group {
    bool own; /* set by hvt_optim_group() */
    float lr_scale, weight_decay;
    float trust; /* LARS and LAMB: factor of this step's update */
} hvt__group;

/* Update n elements from `at` on; g as in hvt__optim_span(). */
typedef hvt_status hvt__optim_update(hvt_optim *o, size_t at, size_t n, const hvt__group *group,
                                     const float *const g[], int ng);

typedef struct hvt__optim_rule {
    const char *name;
    const char *state[HVT__OPTIM_STATES]; /* torch.optim's names, as in checkpoints */
    const char *file;        /* sidecar file of the state: momentum in gen-000012.momentum.safetensors */
    bool begins_at_any_time; /* a parameter may start without state at any update; else the common t would be
                                wrong */
    int scratch;             /* HVT__RULE_PIECE floats each */
    int (*states)(const hvt_optim_opts *o);       /* how many states these options need */
    hvt_status (*check)(const hvt_optim_opts *o); /* check its own options. Errors: E_ARG */
    hvt__optim_update *update;
    /* LARS and LAMB: the trust ratio of norms above 0, of the weights and the gradient or direction, and the
     * decay; NULL: no ratio */
    double (*ratio)(double w, double g, double decay);
    /* LAMB: writes its direction, negated, and updates the state; NULL: the gradient is the direction */
    hvt_status (*direct)(hvt_optim *o, size_t at, size_t n, const hvt__group *group, const float *g,
                         float *ret_direction);
} hvt__optim_rule;

extern const hvt__optim_rule hvt__optim_rules[]; /* by hvt_optim_kind */
/* Bytes of the state that such an optimizer keeps of a planned model, all of it on one rank. */
int hvt__optim_arenas(const hvt_optim_opts *opts); /* the rule's states, and one for an average */
size_t hvt__optim_bytes(const hvt_optim_opts *opts, const hvt_model *m);

struct hvt_optim {
    hvt_model *m; /* borrowed */
    hvt__users users;
    hvt_optim_opts opts;
    const hvt__optim_rule *rule;
    hvt__group *group;        /* [nparam_tensors] */
    float *scratch;           /* host memory; NULL: the rule needs none */
    struct hvt__trust *trust; /* trust.c; NULL: the optimizer has no ratios */
    int states;               /* 0: none */
    int arenas;               /* states, plus one for the average */
    float *v;       /* device memory: state k of element i of the arenas is v[k * v_count + i - v_at]; NULL */
    size_t v_count; /* an arena's; if sliced, this rank's */
    size_t v_at;    /* 0 unless sliced */
    bool sliced;    /* v has only this rank's slices, one after the other (slices.c) */
    float *whole; /* sliced: the gathered or loaded state, arenas one after the other; until the next step */
    bool loaded;  /* `whole` was loaded and not yet distributed to the slices */
    hvt__powersgd_state *powersgd; /* borrowed from its distributed optimizer; NULL: no PowerSGD */
    float *ema_stats; /* device memory [2][stats_count]: the average of the running statistics, and scratch to
                         swap them; NULL: none */
    bool is_averaged; /* the model has the average, and this arena the weights: see ema.c */
    int64_t tracked;  /* then: the model's num_batches_tracked */
};

/* ---- ema.c: the average of the weights ---- */

/* E_ARG while the model has the average: `what` needs its weights. */
hvt_status hvt__ema_check_place(const hvt_optim *o, const char *what);
/* Update the average of running statistics, after hvt__model_end_step(), if the step's state on the device
 * says so. */
hvt_status hvt__ema_stats(hvt_optim *o);
/* The same for n parameters from `at` on, just after their update. */
hvt_status hvt__ema_span(hvt_optim *o, size_t at, size_t n);
/* Elements that a host thread updates before it averages them. */
extern size_t hvt__ema_piece;
/* True if the decided step updates the average; always true on a device with a queue, where the host does not
 * know. */
bool hvt__ema_is_due(const hvt_optim *o);
/* The model's weights and running statistics become the average, after `count` updates of it. Errors: as
 * hvt__optim_state(). */
hvt_status hvt__ema_load(hvt_optim *o, int64_t count);

/* The whole state, to read or to write: for each of `arenas` grad_count elements, at the parameters' offsets.
 * Errors: E_ARG (sliced and not gathered), E_MEM. */
hvt_status hvt__optim_state(hvt_optim *o, bool write, float **ret_v);

/* ---- trust.c ---- */

hvt_status hvt__trust_open(hvt_optim *o); /* E_MEM */
void hvt__trust_close(hvt_optim *o);
/* Adds squares of the parameters in [first, end), of a step that is decided. g: the gradient arena; LAMB
 * overwrites it. Call it for every part, then end, then update. */
hvt_status hvt__trust_add(hvt_optim *o, float *g, size_t first, size_t end);
void hvt__trust_end(hvt_optim *o);
float hvt__trust_ratio(const hvt_optim *o, const hvt_param *p); /* 1 without ratios */

/* group.c: without decay for norms or biases that are exempt, and without the trust ratio */
hvt__group hvt__optim_group_of(const hvt_optim *o, const hvt_param *p);

/* True if no update was made yet, so that v holds nothing. Reads the model's step state, which waits for the
 * device. */
hvt_status hvt__optim_fresh(const hvt_optim *o, bool *ret_fresh);
/* Set the number of updates so far; 0 is fresh. */
hvt_status hvt__optim_set_updates(hvt_optim *o, int64_t updates);

/* Update parameters [first, end), after hvt__model_end_step(), span by span. The gradient is the sum along
 * the tree of g[r][i - first], r < ng; advances g[]. */
hvt_status hvt__optim_span(hvt_optim *o, const float *g[], int ng, size_t first, size_t end);

/* Cut the arena from `start` into buckets at layer ends, end[layers] ascending; offsets are in floats. Writes
 * the buckets' ends, at most `layers`, and returns their number. */
int hvt__bucket_cut(size_t start, const size_t *end, int layers, size_t first_bytes, size_t bytes,
                    size_t *ret_end);

/* Cut a bucket larger than twice `bytes` (at least hvt__bucket_least) into equal pieces of at most that size,
 * at multiples of 16 floats. Writes the pieces' ends, at most one per hvt__bucket_least bytes plus one, and
 * returns their number. */
extern size_t hvt__bucket_least; /* bytes */
int hvt__bucket_split(size_t first, size_t end, size_t bytes, size_t *ret_end);

/* Ends of the layers' spans in arena order; padding after a layer belongs to it. At most one per parameter
 * plus one; returns their number. */
int hvt__layer_ends(const hvt_model *m, size_t *ret_end);

struct hvt__codec;

/* A span of the gradient arena that is exchanged at once. */
typedef struct hvt_bucket {
    size_t first, end;
    const struct hvt__codec *codec; /* how it is sent */
    const char *tensor;             /* the first tensor in it */
    hvt_ticket ticket;              /* of the current step */
    bool second;                    /* PowerSGD's second round */
    size_t own_first, own_end;      /* the part that this rank updates: a slice, or all */
    size_t own_at;                  /* offset of its state in this rank's v */
    struct hvt_distopt *dist;       /* the owner, while it is exchanged */
} hvt_bucket;

/* Plan a model's buckets, *ret_count > 0. Their f32 bytes, a size_t each, follow in the same block; free()
 * it. stats_alone: step statistics are the first bucket, sent as f32. */
hvt_status hvt__bucket_plan(const hvt_model *m, const hvt_distopt_opts *opts, const struct hvt__codec *codec,
                            bool stats_alone, hvt_bucket **ret_bucket, int *ret_count);

#endif /* HVT_OPTIM_IMPL_H */
