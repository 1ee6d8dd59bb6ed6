/* cli_impl.h - the options: their table, reading, explaining and resolving them. */
#ifndef HVT_TRAIN_CLI_IMPL_H
#define HVT_TRAIN_CLI_IMPL_H

#include "hvt/train.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* ---- option_value.c: the table ---- */

typedef enum hvt_scope { HVT_SCOPE_RANK, HVT_SCOPE_JOB, HVT_SCOPE_RUN } hvt_scope;
enum { HVT_OPTION_VALUE = 4200 }; /* bytes of the longest value as text, a path */

/* Indices into the table: HVT__AT_batch, ... */
#define HVT__OPTION_AT(kind, field, preset, low, scope, form, help) HVT__AT_##field,
enum hvt__option_at { HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT__OPTION_AT) };
#undef HVT__OPTION_AT

enum hvt__kind { OPT_str, OPT_pick, OPT_int, OPT_word, OPT_num, OPT_bool, OPT_size, OPT_time, OPT_rgb };

typedef struct hvt__option {
    const char *group; /* the title of a group, whose row has no other fields; NULL: an option */
    enum hvt__kind kind;
    const char *field;
    size_t offset;
    const char *preset;
    double low;
    hvt_scope scope;
    const char *form, *help;
} hvt__option;

/* A row of HVT_OPTIONS. */
#define HVT__OPTION(kind_, f, preset, low, s, form, help)                                                    \
    {NULL, OPT_##kind_, #f, offsetof(hvt_options, f), preset, low, HVT_SCOPE_##s, form, help},

typedef struct hvt__flag {
    char text[48]; /* "--weight-decay" */
} hvt__flag;

extern const hvt__option hvt__option_table[HVT_OPTION_COUNT];
const hvt__option *hvt__option_named(const char *name, size_t len); /* without dashes; NULL: none */
hvt__flag hvt__flag_of(const hvt__option *o);
void hvt__replace(char *text, char from, char to); /* every occurrence */

bool hvt__is_word_of(const char *form, const char *value); /* the words are separated by '|' */
bool hvt__is_model_file(const char *model);                /* FILE.pt2, not a model of the zoo */
/* Sets an option from text. False if the value is invalid; opts is then unchanged. */
bool hvt__value_read(hvt_options *opts, const hvt__option *o, const char *value);
bool hvt__time_read(const char *value, double *ret_seconds);                           /* "1h30m", or 0 */
int hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE]); /* its length */
int hvt__num_text(double v, char ret_text[HVT_OPTION_VALUE]); /* the shortest text; its length */
/* False for an option that a checkpoint has set: such values are not refused as if a user had given them. */
bool hvt__option_given(const hvt_options *o, int i);
/* A description of valid values, for messages. Returns its length. */
int hvt__value_expected(const hvt__option *o, char *ret_text, size_t bytes);

/* ---- options_json.c ---- */

json_t *hvt__json_text(const char *text); /* bytes that are not UTF-8 become '?' */
/* {"flag without dashes": "value"} of the options with at least this scope. json_decref() it. */
json_t *hvt__options_json(const hvt_options *opts, hvt_scope least);
/* Sets the options of such an object, except those that a stronger source than `from` has set. Unknown
 * options of a checkpoint are ignored. text: on rank 0 the object's text, malloc'ed, which is broadcast and
 * freed; read: the status of reading it. opts refers to texts in *ret_memory: free() it after opts.
 * Collective; errors are agreed, and leave opts unchanged: that of `read`, E_FORMAT, beginning with "WHAT: "
 * and naming the option, E_MEM. */
hvt_status hvt__options_share(hvt_options *opts, hvt_from from, hvt_world *world, hvt_status read, char *text,
                              const char *what, void **ret_memory);

/* For --config: the file opts->config. opts refers to texts in *ret_memory: free() it after opts. Collective.
 * Errors, agreed: E_IO, E_FORMAT naming file and key, E_MEM. */
hvt_status hvt__options_config(hvt_options *opts, hvt_world *world, void **ret_memory);

/* ---- recipes.c ---- */

/* The options of a recipe as JSON, malloc'ed. Errors: E_ARG with the names of all recipes, E_MEM. */
hvt_status hvt__recipe_options(const char *name, char **ret_text);
void hvt__list_recipes(FILE *f);
/* Refuses a recipe's training without the options that the recipe needs from the user. Errors: E_ARG. */
hvt_status hvt__recipe_check(const hvt_options *o);

/* ---- options.c ---- */

/* Refuses NULL, and options that hvt_options_default() has not set. function: the public one, for messages.
 */
hvt_status hvt__options_given(const hvt_options *opts, const char *function);

/* Compares the options that must be equal on all ranks. Collective. Errors: E_MISMATCH naming flag, values
 * and ranks. */
hvt_status hvt__options_agree(const hvt_options *opts, hvt_world *world);

/* ---- foreign.c ---- */

enum hvt__foreign { HVT__FLAG, HVT__LIST, HVT__COMMAND, HVT__WORD, HVT__SIZE, HVT__TIME, HVT__VARIABLE };

/* For flags, commands and variables of other programs, and of older versions of hvtrain: the replacement, as
 * a phrase ("use --bucket"); for words and units our word. NULL: unknown. Flags are without dashes, with '-'
 * for '_', environment variables unchanged, all others in lower-case letters and digits only. In the phrase
 * of a flag, #N stands for its value, or for N. HVT__LIST: flags whose value is a list with commas. */
const char *hvt__foreign(enum hvt__foreign of, const char *word);

/* ---- help.c ---- */

/* Checks a topic of hvt_options_help(). Errors: E_ARG. */
hvt_status hvt__help_check(const char *topic);

/* ---- hints.c: suggestions that error messages add; "": none ---- */

enum { HVT_HINT = 200 };
/* For an unknown flag, the first len letters of arg. value: its value, or NULL. */
void hvt__hint_flag(const char *arg, size_t len, const char *value, char ret_text[HVT_HINT]);
/* For an unknown option name without dashes, as in a file of --config. Never "". */
void hvt__hint_name(const char *name, const char *value, char ret_text[HVT_HINT]);
/* For argv[at], which does not begin with two dashes. Never "". */
void hvt__hint_stray(char **argv, int at, const char *value, char ret_text[HVT_HINT]);
/* For an invalid value; begins with "; ". */
void hvt__hint_value(const hvt__option *o, const char *value, char ret_text[HVT_HINT]);
/* The same for a value that is not a word of form (separated by '|'). */
void hvt__hint_word(const char *form, const char *value, char ret_text[HVT_HINT]);
/* For a fraction above 1, which may be a percentage: " (2 % is 0.02)". Returns ret_text. */
const char *hvt__hint_fraction(double v, char ret_text[HVT_HINT]);
void hvt__hint_schedule(const char *value, char ret_text[HVT_HINT]); /* for an invalid --schedule */
/* The word of --data for the files in a folder, guessed from their names. */
const char *hvt__hint_data(const char *dir);
/* Returns s. If it is an error about the file or folder at `path` itself, names the option that gave it. */
hvt_status hvt__name_option(const char *flag, const char *path, hvt_status s);

/* ---- devices.c ---- */

enum { HVT__DEVICES_MOST = 64 };
typedef struct hvt__devices {
    bool on_gpu;
    int n; /* 0: all GPUs */
    int index[HVT__DEVICES_MOST];
} hvt__devices;

/* Reads --devices, which is not empty. Errors: E_ARG. */
hvt_status hvt__devices_parse(const char *list, hvt__devices *ret_devices);

/* ---- resolve.c, augment.c, optimizer.c, split.c ---- */

/* --save-every: exactly one is set. */
typedef struct hvt__every {
    int64_t epochs, steps;
    double seconds;
} hvt__every;

enum { HVT__STAGES = 64 }; /* most devices of --split */

/* --schedule plateau, as torch.optim.lr_scheduler.ReduceLROnPlateau. */
typedef struct hvt__plateau {
    int patience; /* evaluations; -1: another schedule */
    double factor;
} hvt__plateau;

/* The schedule by time: constant for plateau. */
const char *hvt__schedule_by_time(const hvt_options *o);

typedef struct hvt_resolved {
    int shards, batch;              /* batch: images per shard */
    int stages, place[HVT__STAGES]; /* --split: devices, and the set of cores of each; 0: not split */
    int micro;                      /* --split: shards of a rank; 0: those of a checkpoint or --shards */
    double lr;                      /* after the scaling rule */
    hvt__plateau plateau;
    hvt_loss_opts loss;
    hvt_rrc rrc;
    int crop;
    bool reflect;         /* crop pads by reflection */
    bool flip, alternate; /* alternate: with flip */
    hvt_edits edits;
    hvt_optim_opts optim;
    bool averages;     /* --ema, --lookahead or --swa */
    double look_power; /* --lookahead; -1: none */
    hvt_last_batch last_batch;
    hvt_dtype wire, amp; /* amp: of activations */
    int powersgd;        /* rank of the gradients' factors; 0: none */
    bool adasum;
    hvt_update update;
    hvt_scaling scaling;
    size_t first_bucket;
    const char *device;
    bool on_gpu;
    int gpu;                         /* --device cuda:N; -1: the local rank's */
    bool by_steps, by_epochs;        /* what limits the run; both: whichever comes first */
    int64_t first_shown, last_shown; /* updates in --timeline */
    hvt__every save_every;
    bool slurms_limit;  /* --max-time auto */
    double max_seconds; /* --max-time; 0: no limit, or SLURM's */
} hvt_resolved;

/* --balance: rank r works through the shards ret_first[r] ... ret_first[r + 1] - 1; ret_first[ranks + 1].
 * `auto` begins with equal numbers. Errors: E_ARG. */
hvt_status hvt__divide_shards(const char *balance, int shards, int ranks, int *ret_first);

/* Resolves --split to stages, place and micro of t, whose device is known. Errors: E_ARG, E_UNSUPPORTED. */
hvt_status hvt__resolve_split(const hvt_options *o, hvt_resolved *t);
/* Divides a rank's batch and the shards of t into micro-batches. Errors: E_ARG. */
hvt_status hvt__split_batch(const hvt_options *o, int ranks, hvt_resolved *t);

/* Set augmentations and optimizer of t, whose device is known. Errors: E_ARG. */
hvt_status hvt__resolve_augment(const hvt_options *o, hvt_resolved *t);
hvt_status hvt__resolve_optimizer(const hvt_options *o, hvt_resolved *t);
bool hvt__reads_pictures(const hvt_options *o); /* --data folder or tar */
/* The options with a model and a rate in place of auto. */
hvt_options hvt__options_settled(const hvt_options *o);
/* True if a run without this option has this value: its default, or what "auto" becomes. */
bool hvt__option_is_default(const hvt__option *o, const char *value);
/* Resolves all options. Errors: E_ARG. */
hvt_status hvt__resolve(const hvt_options *opts, int ranks, hvt_resolved *ret_resolved);

/* Checks that options fit together on this many ranks. Errors: E_ARG. */
hvt_status hvt__options_check(const hvt_options *opts, int ranks);

enum { HVT_GROUP_PREFIX = 128 };
/* The next PREFIX=X of --group-lr; false if there is none. */
bool hvt__next_group_lr(const char **at, char ret_prefix[HVT_GROUP_PREFIX], double *ret_x);

#endif /* HVT_TRAIN_CLI_IMPL_H */
