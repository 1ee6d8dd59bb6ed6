/* options.h - the table of options, for what reads, writes and explains their values. */
#ifndef HVT_TRAIN_OPTIONS_H
#define HVT_TRAIN_OPTIONS_H

#include "cli_impl.h"

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
    const char *group; /* a group's title; the other fields are not set then */
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

/* ---- option_table.c ---- */

extern const hvt__option hvt__option_table[HVT_OPTION_COUNT];
const hvt__option *hvt__option_named(const char *name, size_t len); /* without dashes; NULL: there is none */
hvt__flag hvt__flag_of(const hvt__option *o);

/* ---- option_value.c ---- */

bool hvt__is_word_of(const char *form, const char *value); /* one of those between '|' */
/* False: the value is not valid, and opts is unchanged. */
bool hvt__value_read(hvt_options *opts, const hvt__option *o, const char *value);
void hvt__value_write(const hvt_options *opts, const hvt__option *o, char *ret_text, size_t bytes);
/* A description of valid values, for messages. */
void hvt__value_expected(const hvt__option *o, char *ret_text, size_t bytes);

/* ---- foreign_flags.c ---- */

/* What to write instead of a flag of another program, or of one that hvtrain once had. name: without dashes,
 * with
 * '-' for '_'; value: what was given to it, or NULL. False: unknown. */
bool hvt__foreign_flag(const char *name, const char *value, char *ret_here, size_t bytes);

/* ---- suggest.c ---- */

/* Edit distance: letters inserted, deleted, replaced, or two swapped. */
int hvt__distance(const char *a, const char *b);
/* The word of form (separated by '|') that was probably meant; false: none is similar. */
bool hvt__suggest(const char *form, const char *value, char *ret_word, size_t bytes);

/* ---- hints.c: suggestions that error messages add; "": none ---- */

enum { HVT_HINT = 200 };
/* For an unknown flag, the first len letters of arg. value: what was given to it, or NULL. */
void hvt__hint_flag(const char *arg, size_t len, const char *value, char ret_text[HVT_HINT]);
/* For argv[at], which does not begin with two dashes. Never "". */
void hvt__hint_stray(char **argv, int at, const char *value, char ret_text[HVT_HINT]);
/* For an invalid value; begins with "; ". */
void hvt__hint_value(const hvt__option *o, const char *value, char ret_text[HVT_HINT]);

#endif /* HVT_TRAIN_OPTIONS_H */
