/* base_impl.h - shared by every .c file: errors, log lines, clock, random draws, hash. */
#ifndef HVT_BASE_IMPL_H
#define HVT_BASE_IMPL_H

#include "hvt/base.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Record an error with its place; returns code, for `return HVT_FAIL(...)`. */
hvt_status hvt__fail(hvt_status code, const char *file, int line, const char *fmt, ...) HVT_PRINTF(4, 5);
/* Append one frame to the trace of the recorded error. */
hvt_status hvt__pass(hvt_status code, const char *file, int line, const char *call);
/* Mark the last error as the same on every rank, so that it is printed once. */
void hvt__error_agreed(bool agreed);

/* The last error as a value, to pass it from the failing thread to the reporting one. */
typedef struct hvt__error {
    char text[2048], trace[4096];
    bool agreed;
} hvt__error;

void hvt__error_take(hvt__error *ret_error);
void hvt__error_put(const hvt__error *taken);

#define HVT_FAIL(code, ...) hvt__fail(HVT_##code, __FILE__, __LINE__, __VA_ARGS__)

/* Refuse bad input: HVT_CHECK(batch > 0, E_ARG, "batch is %d", batch); */
#define HVT_CHECK(cond, code, ...)                                                                           \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return HVT_FAIL(code, __VA_ARGS__);                                                              \
    } while (0)

/* Refuse a NULL argument of a public function: HVT_GIVEN(m, "a model"); */
#define HVT_GIVEN(pointer, what)                                                                             \
    HVT_CHECK((pointer) != NULL, E_ARG, "%s() needs %s, but got NULL", __func__, what)

/* Call, and on failure return the same status. */
#define HVT_TRY(call)                                                                                        \
    do {                                                                                                     \
        hvt_status s_ = (call);                                                                              \
        if (s_ != HVT_OK)                                                                                    \
            return hvt__pass(s_, __FILE__, __LINE__, #call);                                                 \
    } while (0)

/* Call, and on failure go to the cleanup label. Needs a local `s`. */
#define HVT_TRY_OR(label, call)                                                                              \
    do {                                                                                                     \
        s = (call);                                                                                          \
        if (s != HVT_OK) {                                                                                   \
            hvt__pass(s, __FILE__, __LINE__, #call);                                                         \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

/* As HVT_CHECK, but go to the cleanup label. Needs a local `s`. */
#define HVT_CHECK_OR(label, cond, code, ...)                                                                 \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            s = HVT_FAIL(code, __VA_ARGS__);                                                                 \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

#define HVT_LEN(a) (sizeof(a) / sizeof *(a))

void hvt__log(hvt_log_level level, const char *fmt, ...) HVT_PRINTF(2, 3);
#define HVT_ERROR(...) hvt__log(HVT_LOG_ERROR, __VA_ARGS__)
#define HVT_WARN(...)  hvt__log(HVT_LOG_WARN, __VA_ARGS__)
#define HVT_INFO(...)  hvt__log(HVT_LOG_INFO, __VA_ARGS__)
#define HVT_DEBUG(...) hvt__log(HVT_LOG_DEBUG, __VA_ARGS__)

/* Log whatever this rank's level: one line on behalf of all ranks. */
void hvt__log_always(hvt_log_level level, const char *line);

/* Write all bytes, in one write(2) if possible. On failure returns false with errno. */
bool hvt__write(int fd, const char *text, size_t bytes);
/* Print a line and a line feed by one hvt__write(), so that lines of other threads, streams or processes do
 * not mix with it. At most HVT_LINE bytes. */
enum { HVT_LINE = 20000 };
bool hvt__print_line(int fd, const char *fmt, ...) HVT_PRINTF(2, 3);
bool hvt__vprint_line(int fd, const char *fmt, va_list ap) HVT_PRINTF(2, 0);

/* A process that is about to end the job asks hvt__may_report() whether to print the reason, `why`. The
 * program installs a vote, so that one rank of a host reports; without a vote every process may. */
typedef bool hvt__report_vote_fn(const char *why);
void hvt__set_report_vote(hvt__report_vote_fn *vote);
bool hvt__may_report(const char *why);
/* A file that the process must not leave behind exists, or no longer does. The program installs a function
 * that remembers the path, for its handlers of signals. */
typedef void hvt__temp_fn(const char *path, bool exists);
void hvt__set_temp(hvt__temp_fn *fn);
void hvt__temp(const char *path, bool exists);

/* printf() into a path. Errors: E_IO, too long. */
hvt_status hvt__path(char ret_path[PATH_MAX], const char *fmt, ...) HVT_PRINTF(2, 3);
/* Path of a file in hvtrain/ of the user's cache folder (XDG_CACHE_HOME, else ~/.cache). Creates the folder;
 * "" without one. */
void hvt__cache_path(const char *name, char ret_path[PATH_MAX]);
/* The same for data cached about `path`: KIND-HASH, by its real path; also "" if `path` does not exist. */
void hvt__cache_path_of(const char *kind, const char *path, char ret_path[PATH_MAX]);
/* Open a file without truncating it, or a pipe without waiting for its other end: a pipe opened for writing
 * without a reader is ENXIO, one opened for reading without a writer is empty. Otherwise as fopen(). */
FILE *hvt__open_stream(const char *path, bool writes);
/* Open for reading; folders, pipes and devices are refused. Errors: E_IO. */
hvt_status hvt__open_regular(const char *path, int *ret_fd, uint64_t *ret_bytes);
enum { HVT__HEAD = 64 }; /* bytes for hvt__stand_in() */
/* Describes what was downloaded instead of a file, by its first bytes, with what to do: "a web page; download
 * the file again". NULL: nothing of this kind. */
const char *hvt__stand_in(const void *head, size_t bytes);

/*
 * Lock an open file against other processes until this one closes it or ends, however it ends; with O_CLOEXEC
 * child programs do not inherit the lock. False: another process holds it. On a file system without working
 * locks it warns, once per process, that `path` (of `flag`) is not protected, and returns true.
 */
bool hvt__file_lock(int fd, const char *flag, const char *path);

/* Parse parts of a value that the user typed (scan.c). */
bool hvt__scan_text(const char **at, const char *text);
bool hvt__scan_item(const char **at, const char *word);            /* of a list, with the comma behind it */
bool hvt__scan_whole(const char **at, int64_t most, int64_t *ret); /* digits only, at most `most` */
bool hvt__scan_number(const char **at, double *ret);               /* decimal, finite */
/* Next item of a comma-separated list, ret_len bytes at *at, which moves past the comma and is NULL after the
 * last item. NULL: no more items. */
const char *hvt__next_item(const char **at, size_t *ret_len);

double hvt__now(void); /* seconds, monotonic */
/* Report progress: a record or a piece of a file was read or written, an image decoded. Any thread may call
 * it. It lets the watchdog distinguish a slow rank from a stuck one. */
void hvt__progressed(void);
void hvt__sort(double *x, size_t n); /* ascending */

/* Seconds until `now`, a recent hvt__now(), that this process was stopped while a watch was open; and
 * hvt__now() without them, to measure work. Pauses of less than a second may be missed. */
double hvt__paused(double now);
double hvt__running(void);
bool hvt__pause_open(void); /* false: its thread could not be started, and pauses count as work */
void hvt__pause_close(void);

/* Spin-wait hint between two polls of another thread's data: some tens of cycles that leave the core's
 * resources to others. AArch64's `yield` takes no time on most processors, `isb` does. */
static inline void hvt__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" : : : "memory");
#endif
}

/*
 * Stateless random draws: a draw is a pure function of its key, so it does not depend on ranks, threads or
 * order. The mixer is splitmix64's (Steele, Lea, Flood 2014), applied once per part of the key.
 */
#ifndef HVT_ANYWHERE
#define HVT_ANYWHERE static inline /* defined by GPU code as the prefix of functions for host and device */
#endif

HVT_ANYWHERE uint64_t hvt__mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t hvt__draw(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return hvt__mix(d ^ hvt__mix(c ^ hvt__mix(b ^ hvt__mix(a))));
}

/* uniform in [0, n), n < 2^32: multiply-shift of the upper half */
static inline uint32_t hvt__below(uint64_t draw, uint32_t n)
{
    return (uint32_t)(((draw >> 32) * n) >> 32);
}

/* uniform in [0, 1), 24 bits: every value is exact in f32 */
static inline float hvt__unit(uint64_t draw)
{
    return (float)(draw >> 40) * 0x1p-24f;
}

/* The pixel at position i of a line that continues by reflection; i is at most n - 1 pixels outside. */
static inline int hvt__reflected(int i, int n)
{
    return n == 1 ? 0 : i < 0 ? -i : i < n ? i : 2 * n - 2 - i;
}

/* 64-bit hash of bytes, chained through h; start with HVT_HASH_INIT. Not cryptographic. */
#define HVT_HASH_INIT 0x243f6a8885a308d3u
uint64_t hvt__hash(uint64_t h, const void *data, size_t bytes);
uint64_t hvt__hash_text(uint64_t h, const char *text);

#endif /* HVT_BASE_IMPL_H */
