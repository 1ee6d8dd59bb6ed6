/* process_impl.h - this process: its age and memory, its signals, and the files it may replace. */
#ifndef HVT_TRAIN_PROCESS_IMPL_H
#define HVT_TRAIN_PROCESS_IMPL_H

#include "hvt/comm.h"

/* ---- process.c ---- */

/* Prepares the process: opens /dev/null for a closed stdin, stdout or stderr, raises low limits of files and
 * the stack, and lets the owner use new files. launched: MPI needs files, too. Errors: E_MEM, a limit is too
 * low. */
hvt_status hvt__process_open(bool launched);
double hvt__process_seconds(void);     /* since this process began */
int64_t hvt__process_clock(void);      /* milliseconds since 1970, UTC; signal handlers may call it */
int64_t hvt__process_peak_bytes(void); /* most resident memory so far */
/* "process 4711 on node1 (SLURM job 17)" */
void hvt__process_name(char *ret_text, size_t bytes);
const char *hvt__process_program(void); /* hvtrain as it was called, for hints */
/* The text as one word of a shell's command line, quoted if necessary: `text` itself, or ret_word. */
enum { HVT_SHELL_WORD = 4 * 4200 + 3 }; /* of any option's value */
const char *hvt__shell_word(const char *text, char ret_word[HVT_SHELL_WORD]);

/* ---- room.c ---- */

/* Bytes that this user can still write to this folder's file system; UINT64_MAX: unknown. Quotas are not
 * seen. */
uint64_t hvt__room_in(const char *folder);
/* Checks that files of `bytes` in all, the largest of `largest`, fit at the path of `flag`: a file or, with
 * is_folder, the folder for them. what: their name in messages. Errors: E_IO, with both numbers. */
hvt_status hvt__room_check(const char *flag, const char *path, bool is_folder, const char *what,
                           uint64_t bytes, uint64_t largest);
enum { HVT__SIZE_TEXT = 32 };
void hvt__size_text(uint64_t bytes, char ret_text[HVT__SIZE_TEXT]); /* "12.3 MiB" */

/* ---- signals.c: SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU and SIGALRM ask a run to end ---- */

/* The first statement of main(): unblocks signals and installs handlers, which note requests until it is
 * known whether the run can save. */
void hvt__signals_begin(void);
/* For a run that saves nothing: from now on a request ends it, also one that was noted. trains: the message
 * suggests --save. */
void hvt__signals_end_at_once(bool trains);
/* Shares requests among the ranks of a host. Collective. */
hvt_status hvt__signals_open(hvt_world *world);
/* True for the ranks that print an error that all ranks have: rank 0; without MPI also one rank of every
 * host, or every rank that no launcher started, because rank 0's lines are not shown there. */
bool hvt__signals_speaks(const hvt_world *world);
void hvt__signals_close(void);         /* as hvt__signals_leave(), and frees what ranks share */
void hvt__signals_exit_code(int code); /* set the code after any signal but SIGINT */
int hvt__signals_code(void);           /* the exit code after a requested end */
/* From now on requests only ask the run to save and end; a second one still ends the process. */
void hvt__signals_defer(void);
/* True if a rank of this host has got a request to end. ret_name: the signal, or NULL if time is up; may be
 * NULL. */
bool hvt__signals_requested(const char **ret_name);
void hvt__signals_leave(void); /* from now on a first signal has no effect; a second one still ends it */
/* Seconds from Ctrl-C in a terminal to mpirun's SIGKILL; 0: no mpirun. */
double hvt__signals_patience(void);
/* True once after the launcher's SIGCONT: it may be about to end the job. */
bool hvt__signals_warned(void);
enum { HVT__TIME_IS_UP = -1 };
void hvt__signals_time_is_up(void); /* a request to the ranks of this host, like a signal */
/* Call it before this rank aborts. Returns true if it may print `why`: the first rank of its host. The others
 * print nothing from then on, and get false after a moment. Rank 0 ends its log with `why`. */
bool hvt__signals_claim_report(const char *why);
/* Registers a temporary file, which is removed if a signal ends the process; exists false: it is gone. path:
 * borrowed until then. */
void hvt__signals_temp(const char *path, bool exists);
void hvt__signals_bar(bool shown); /* a progress bar is on stderr's last line */

/* ---- own_file.c: the files that hvtrain writes under a name of the user's ---- */

typedef enum hvt__own_file {
    HVT__LOG,
    HVT__PREDICTIONS,
    HVT__LOGITS,
    HVT__PAGE,
    HVT__PICTURE,
    HVT__TIMELINE,
    HVT__TUNED
} hvt__own_file;

/* True for a regular file that begins as this kind does. */
bool hvt__is_own_file(hvt__own_file kind, const char *path);
/* Refuses a file that exists and is not of this kind. Empty files, devices and pipes may be written. Call it
 * before the file is opened. Errors: E_IO naming flag and path. */
hvt_status hvt__own_file_check(hvt__own_file kind, const char *flag, const char *path);
/* True for names of open files, such as - and /dev/stdout, which cannot be locked or renamed over. */
bool hvt__is_stream_path(const char *path);

/* ---- log_file.c ---- */

/* The state of an open log. A process may have several runs. */
typedef struct hvt__log_file hvt__log_file;

/* Opens the log on fd; NULL if too many are open. */
hvt__log_file *hvt__log_open(int fd);
void hvt__log_close(hvt__log_file *log); /* does not close the file; NULL-safe */
/* Appends a line with its line feed. False, with errno set, if nothing was written. */
bool hvt__log_line(hvt__log_file *log, const char *line, size_t bytes);
/* Call them after the first and the last record; hvt__log_last() writes only in between. NULL-safe. */
void hvt__log_begun(hvt__log_file *log);
void hvt__log_ended(hvt__log_file *log);
void hvt__log_at(hvt__log_file *log, int64_t steps); /* finished updates, for the last record */

/* Writes the record `end` of every run that a signal or the watchdog ends, unless there is one. why: a JSON
 * string or NULL. For signal handlers and any thread. */
void hvt__log_last(const char *status, const char *signal_name, const char *why);

/* Text as an ASCII JSON string, without allocating; truncated if too long. */
enum { HVT__LOG_WHY = 1400 };
void hvt__log_quote(const char *text, char ret_json[HVT__LOG_WHY]);

#endif /* HVT_TRAIN_PROCESS_IMPL_H */
