/* options.h - the table of options, for what reads, writes and explains their values. */
#ifndef HVT_TRAIN_OPTIONS_H
#define HVT_TRAIN_OPTIONS_H

#include "train_impl.h"

typedef enum hvt__kind {
    KIND_str,
    KIND_pick,
    KIND_int,
    KIND_word,
    KIND_num,
    KIND_bool,
    KIND_size,
    KIND_time,
    KIND_rgb
} hvt__kind;

typedef struct hvt__option {
    const char *group; /* title, where a group begins; then nothing else is set */
    hvt__kind kind;
    const char *field;
    size_t offset;
    const char *preset;
    double low;
    hvt_scope scope;
    const char *form, *help;
} hvt__option;

/* A row of HVT_OPTIONS. */
#define HVT__OPTION(k, f, preset_, low_, s, form_, help_)                                                    \
    {.kind = KIND_##k,                                                                                       \
     .field = #f,                                                                                            \
     .offset = offsetof(hvt_options, f),                                                                     \
     .preset = preset_,                                                                                      \
     .low = low_,                                                                                            \
     .scope = HVT_SCOPE_##s,                                                                                 \
     .form = form_,                                                                                          \
     .help = help_},

const char *hvt__flag_of(const hvt__option *o, char ret_flag[HVT_OPTION_FLAG]); /* "--weight-decay" */

/* ---- option_table.c ---- */

extern const hvt__option hvt__option_table[HVT_OPTION_COUNT];
const hvt__option *hvt__option_named(const char *name, size_t len); /* without dashes; NULL: there is none */

/* ---- hints.c: what a message adds about what was probably meant; "": nothing is like it ---- */

enum { HVT_HINT = 200 };
/* A flag that is none: arg's first len letters; value: what was given to it, NULL: nothing. */
void hvt__hint_flag(const char *arg, size_t len, const char *value, char ret_text[HVT_HINT]);
/* argv[at], which does not begin with two dashes. Never "". */
void hvt__hint_stray(int argc, char **argv, int at, const char *value, char ret_text[HVT_HINT]);
/* A value that is none of this option's: begins with "; ". */
void hvt__hint_value(const hvt__option *o, const char *value, char ret_text[HVT_HINT]);

/* ---- elsewhere.c ---- */

/* What stands for a flag of other trainers or launchers, named without dashes and with '-' for '_', and given
 * this value (NULL: none); false: unknown. */
bool hvt__option_elsewhere(const char *name, const char *value, char *ret_here, size_t bytes);
/* What stands for a value that this option took in earlier versions; NULL: it never did. */
const char *hvt__value_was(const char *field, const char *value);

/* ---- suggest.c ---- */

/* Changes (a letter more, less, other, or two swapped) that turn a into b. */
int hvt__distance(const char *a, const char *b);
/* The word of form (parted by '|') that was probably meant by value; false: none is like it. */
bool hvt__suggest(const char *form, const char *value, char *ret_word, size_t bytes);

/* ---- option_value.c ---- */

bool hvt__is_word_of(const char *form, const char *value); /* one of those that '|' parts */

/* False: the value is none of this option's, and opts is as it was. */
bool hvt__value_read(hvt_options *opts, const hvt__option *o, const char *value);
void hvt__value_write(const hvt_options *opts, const hvt__option *o, char *ret_text, size_t bytes);
/* What a value must look like, for messages. */
void hvt__value_expected(const hvt__option *o, char *ret_text, size_t bytes);

#endif /* HVT_TRAIN_OPTIONS_H */
