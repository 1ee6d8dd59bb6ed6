/* base_impl.h - what every .c file may use: errors, log lines, clock, random draws, hash. */
#ifndef HVT_BASE_IMPL_H
#define HVT_BASE_IMPL_H

#include "hvt/base.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Record why, where; return the code so that `return HVT_FAIL(...)` reads well. */
hvt_status hvt__fail(hvt_status code, const char *file, int line, const char *fmt, ...) HVT_PRINTF(4, 5);
/* Append one frame to the trace of the recorded error. */
hvt_status hvt__pass(hvt_status code, const char *file, int line, const char *call);
/* Mark the last error as the same on every rank, so that it is printed once. */
void hvt__error_agreed(bool agreed);

/* The last error as a value, to move it from the thread where it happened to the one that reports it. */
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

/* Refuse NULL for what a public function needs: HVT_GIVEN(m, "a model"); */
#define HVT_GIVEN(pointer, what)                                                                             \
    HVT_CHECK((pointer) != NULL, E_ARG, "%s() needs %s, but got NULL", __func__, what)

/* Call, and on failure return the same status. */
#define HVT_TRY(call)                                                                                        \
    do {                                                                                                     \
        hvt_status s_ = (call);                                                                              \
        if (s_ != HVT_OK)                                                                                    \
            return hvt__pass(s_, __FILE__, __LINE__, #call);                                                 \
    } while (0)

/* Call, and on failure go to the one cleanup label.  Needs a local `s`. */
#define HVT_TRY_OR(label, call)                                                                              \
    do {                                                                                                     \
        s = (call);                                                                                          \
        if (s != HVT_OK) {                                                                                   \
            hvt__pass(s, __FILE__, __LINE__, #call);                                                         \
            goto label;                                                                                      \
        }                                                                                                    \
    } while (0)

/* As HVT_CHECK, but to the cleanup label.  Needs a local `s`. */
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

/* Log regardless of this rank's level: one line on behalf of all ranks. */
void hvt__log_always(hvt_log_level level, const char *line);

/* Write these bytes, in one write(2) if the system takes all of them. False: errno says why. */
bool hvt__write(int fd, const char *text, size_t bytes);
/* printf() of a line, whose line feed is added, by one hvt__write(): no line of another thread, stream or
 * process gets into it. At most HVT_LINE bytes. */
enum { HVT_LINE = 20000 };
bool hvt__print_line(int fd, const char *fmt, ...) HVT_PRINTF(2, 3);
bool hvt__vprint_line(int fd, const char *fmt, va_list ap) HVT_PRINTF(2, 0);

/* A process that is about to end the job calls hvt__may_report() to decide whether it is the one to say why.
 * The program installs a vote among the ranks of a host, so that one of them reports; without it, every
 * process may. `why` is the message. */
typedef bool hvt__report_vote_fn(const char *why);
void hvt__set_report_vote(hvt__report_vote_fn *vote);
bool hvt__may_report(const char *why);

/* printf() into a path. Errors: E_IO, too long. */
hvt_status hvt__path(char ret_path[PATH_MAX], const char *fmt, ...) HVT_PRINTF(2, 3);
/* Of a file in the folder hvtrain/ of the user's cache folder (XDG_CACHE_HOME, else ~/.cache), which is made;
 * "": there is none. */
void hvt__cache_path(const char *name, char ret_path[PATH_MAX]);
/* The same for what is kept about `path`: KIND-HASH, by its real path. "": there is no such path, either. */
void hvt__cache_path_of(const char *kind, const char *path, char ret_path[PATH_MAX]);
/* Open a file without truncating it, or a pipe without waiting for its other end: a pipe opened for writing
 * without a reader is ENXIO, one opened for reading without a writer is empty. Otherwise as fopen(). */
FILE *hvt__open_stream(const char *path, bool writes);
/* Open for reading; folders, pipes and devices are refused. Errors: E_IO. */
hvt_status hvt__open_regular(const char *path, int *ret_fd, uint64_t *ret_bytes);

/*
 * Lock an open file against other processes for as long as this one has it open. The kernel releases the lock
 * when the process ends, however that happens; with O_CLOEXEC child programs do not inherit it. False:
 * another process holds it. On a file system without working locks this warns, once per process, that `path`
 * (of `flag`) is not protected, and returns true.
 */
bool hvt__file_lock(int fd, const char *flag, const char *path);

/* Parts of a value as it was typed: scan.c. */
bool hvt__scan_text(const char **at, const char *text);
bool hvt__scan_whole(const char **at, int64_t most, int64_t *ret); /* digits alone, at most `most` */
bool hvt__scan_number(const char **at, double *ret);               /* decimal, finite */
/* The item at *at, of ret_len letters, of a list with commas; *at moves past its comma, and is NULL after the
 * last one. NULL: there is none left. */
const char *hvt__next_item(const char **at, size_t *ret_len);

double hvt__now(void); /* seconds, monotonic */
/* This process gets on: a record or a piece of a file was read or written, an image decoded. Any thread calls
 * this, so that the watchdog tells a rank that works for long from one that is stuck. */
void hvt__progressed(void);
void hvt__sort(double *x, size_t n); /* ascending */

/* Seconds up to `now`, a recent hvt__now(), during which this process was stopped while a watch was open; and
 * hvt__now() without them, to measure work. A pause of less than a second may be missed. */
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
 * Stateless random draws: a draw is a pure function of its key, so it depends neither on ranks nor on threads
 * nor on order. The mixer is splitmix64's (Steele, Lea, Flood 2014), applied once per part of the key.
 */
#ifndef HVT_ANYWHERE
#define HVT_ANYWHERE static inline /* GPU code defines what precedes a function that it calls, too */
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

/* 64-bit hash of bytes, chained through h; start with HVT_HASH_INIT. Not cryptographic. */
#define HVT_HASH_INIT 0x243f6a8885a308d3u
uint64_t hvt__hash(uint64_t h, const void *data, size_t bytes);
uint64_t hvt__hash_text(uint64_t h, const char *text);

#endif /* HVT_BASE_IMPL_H */
