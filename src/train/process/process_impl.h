/* process_impl.h - this process: its age and memory, its signals, and the file of its log. */
#ifndef HVT_TRAIN_PROCESS_IMPL_H
#define HVT_TRAIN_PROCESS_IMPL_H

#include "hvt/comm.h"

/* ---- process.c ---- */

int hvt__process_launched_rank(void);  /* from the launcher, before or without MPI; -1: no launcher */
double hvt__process_seconds(void);     /* since this process began */
int64_t hvt__process_peak_bytes(void); /* most resident memory so far */
/* "process 4711 on node1 (SLURM job 17)" */
void hvt__process_name(char *ret_text, size_t bytes);
const char *hvt__process_program(void); /* hvtrain as it was called, for hints */
/* The text as one word of a shell's command line, in quotes if need be: `text` itself, or ret_word. */
enum { HVT_SHELL_WORD = 4 * 4200 + 3 }; /* of any option's value */
const char *hvt__shell_word(const char *text, char ret_word[HVT_SHELL_WORD]);

/* ---- signals.c: SIGINT and SIGTERM ---- */

hvt_status hvt__signals_open(hvt_world *world); /* Collective. */
void hvt__signals_close(void);
/* This rank is about to abort: may it print `why`? True for the first rank of its host that asks; the others
 * print nothing from then on, and get false after a moment. Rank 0 ends its log with `why`. */
bool hvt__signals_claim_report(const char *why);
void hvt__signals_tmp_path(const char *path); /* borrowed: remove this file on a signal; NULL: no more */
void hvt__signals_bar(bool shown);            /* a progress bar is on stderr's last line */

/* ---- log_file.c ---- */

/* Append a line with its line feed; false: nothing was written, and errno is set. */
bool hvt__log_line(int fd, const char *line, size_t bytes);

/* After the first and the last record; hvt__log_last() writes only between the two. */
void hvt__log_begun(int fd);
void hvt__log_ended(void);
void hvt__log_at(int64_t steps); /* the number of finished updates, for the last record */

/* Write the record `end` of a run that a signal or the watchdog ends, unless there is one. why: a JSON string
 * or NULL. May be called by signal handlers and by any thread. */
void hvt__log_last(const char *status, const char *signal_name, const char *why);

/* Text as a JSON string in ASCII, without allocating; it is cut off if too long. */
enum { HVT__LOG_WHY = 1400 };
void hvt__log_quote(const char *text, char ret_json[HVT__LOG_WHY]);

#endif /* HVT_TRAIN_PROCESS_IMPL_H */
