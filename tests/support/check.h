/*
 * check.h - a test is a sentence that must be true.
 *
 *     TEST(ranks_times_batch_equals_big_batch) { CHECK(a == b, "%d and %d", a, b); }
 *     int main(int argc, char **argv) { RUN(ranks_times_batch_equals_big_batch); return check_done(); }
 *
 * A failed CHECK prints file, line, condition and message, and the test goes on to its end. The exit code is
 * 0, 1, or 77 when everything was skipped. CHECK_OK shows the library's error. A test that has nothing to
 * check here says so by SKIP; one that returns without any CHECK and without a SKIP has failed. SIGTERM,
 * which Meson sends after the time limit, prints the test's name and the stack.
 */
#ifndef HVT_CHECK_H
#define HVT_CHECK_H

#include "hvt/base.h"

#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef CHECK_EMULATED
#define CHECK_EMULATED 0 /* 1: the processor is emulated, at a hundredth of the speed */
#endif
/* A tenth of the speed: tests with many random cases draw fewer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define CHECK_SANITIZED 1
#endif
#endif
#ifndef CHECK_SANITIZED
#define CHECK_SANITIZED 0
#endif

/* A rank that is a thread has its own (ranks.h), other threads count for the program. */
static struct check_state {
    int failed, ran, skipped, now;
    int count;       /* CHECKs made by this test, in any of its threads */
    const char *why; /* why it is skipped */
    const char *name;
} check_all;
static __thread struct check_state *check_of_rank;

static inline struct check_state *check_mine(void)
{
    return check_of_rank ? check_of_rank : &check_all;
}

#define check_failed  (check_mine()->failed)
#define check_ran     (check_mine()->ran)
#define check_skipped (check_mine()->skipped)
#define check_now     (check_mine()->now)
#define check_count   (check_mine()->count)
#define check_why     (check_mine()->why)
#define check_name    (check_mine()->name)

#define TEST(name) static void name(void)

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        __atomic_add_fetch(&check_count, 1, __ATOMIC_RELAXED);                                               \
        if (!(cond)) {                                                                                       \
            check_now++;                                                                                     \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);                                       \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
        }                                                                                                    \
    } while (0)

#define CHECK_OK(call)                                                                                       \
    do {                                                                                                     \
        hvt_status s_ = (call);                                                                              \
        CHECK(s_ == HVT_OK, "%s: %s\n%s", hvt_status_name(s_), hvt_last_error(), hvt_last_trace());          \
    } while (0)

/* The call must fail with this code, and its message must name `part`. */
#define CHECK_FAILS(call, code, part)                                                                        \
    do {                                                                                                     \
        hvt_status s_ = (call);                                                                              \
        CHECK(s_ == HVT_##code, "gave %s, not " #code, hvt_status_name(s_));                                 \
        CHECK(s_ == HVT_OK || strstr(hvt_last_error(), part), "message does not name '%s': %s", part,        \
              hvt_last_error());                                                                             \
    } while (0)

#ifndef HVT_TESTS
#define HVT_TESTS "tests" /* set by Meson */
#endif

/* A file below tests/. A bundle of bench/gpu/pack has it elsewhere; its runner sets HVT_TESTS. */
static inline const char *check_file(const char *name)
{
    static char path[4096];
    const char *tests = getenv("HVT_TESTS");

    snprintf(path, sizeof path, "%s/%s", tests ? tests : HVT_TESTS, name);
    return path;
}

#define RUN(name) check_run(#name, name)

/* Leaves the test: it cannot run here, or has nothing for this rank to check. */
#define SKIP(why)                                                                                            \
    do {                                                                                                     \
        check_why = (why);                                                                                   \
        return;                                                                                              \
    } while (0)

static inline void check_skip(const char *name, const char *why)
{
    check_skipped++;
    printf("skip %s: %s\n", name, why);
    fflush(stdout);
}

static void check_terminated(int signal_number)
{
    void *stack[64];

    dprintf(2, "signal %d during %s\n", signal_number, check_name);
    backtrace_symbols_fd(stack, backtrace(stack, 64), 2);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static inline void check_run(const char *name, void (*fn)(void))
{
    int count;

    if (!check_name) {
        void (*before)(int) = signal(SIGTERM, check_terminated);

        if (before != SIG_DFL)
            signal(SIGTERM, before);
    }
    check_name = name;
    check_now = check_count = 0;
    check_why = NULL;
    fn();
    if (check_why && !check_now) {
        check_skip(name, check_why);
        return;
    }
    count = check_count; /* before the next CHECK increments it */
    CHECK(count, "%s has checked nothing", name);
    check_ran++;
    check_failed += check_now > 0;
    printf("%s %s\n", check_now ? "FAIL" : "ok  ", name);
    fflush(stdout);
}

/* Ends a program that needs a GPU (HVT_HOSTED) if there is none. */
static inline void check_gpu(bool there)
{
    if (there)
        return;
    check_skip("cuda", "no GPU");
    exit(77);
}

static inline int check_done(void)
{
    printf("%d passed, %d failed, %d skipped\n", check_ran - check_failed, check_failed, check_skipped);
    return check_failed ? 1 : check_ran ? 0 : 77;
}

#endif /* HVT_CHECK_H */
