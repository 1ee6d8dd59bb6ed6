/*
 * threads.h - runs a test's main() on ranks that are threads, as run_ranks.sh runs it on processes: the
 * variable HVT_TEST_THREADS is their number.
 */
#ifndef HVT_THREADS_H
#define HVT_THREADS_H

#include "check.h"
#include "hvt/world.h"

#ifndef RANKS_ARE_PROCESSES /* a test whose main() has arguments defines it */
int main(void);
#endif

static __thread hvt_world *rank_thread; /* borrowed; NULL: this rank is a process */

#ifndef RANKS_ARE_PROCESSES
static inline hvt_status threads_main(hvt_world *w, void *ctx)
{
    struct check_state state = {0};
    int code, *worst = ctx;

    check_of_rank = &state;
    rank_thread = w;
    code = main();
    if (code != 77)
        __atomic_or_fetch(worst, code ? 2 : 1, __ATOMIC_SEQ_CST);
    return HVT_OK;
}

#endif

/* At the beginning of main(): does not return from the process's thread if there are to be more. */
static inline void threads_begin(void)
{
#ifndef RANKS_ARE_PROCESSES
    const char *n = getenv("HVT_TEST_THREADS");
    int worst = 0;

    if (!n || rank_thread)
        return;
    CHECK_OK(hvt_world_open_threads(atoi(n), threads_main, &worst));
    exit(check_now || worst & 2 ? 1 : worst ? 0 : 77);
#endif
}

/* The world of all ranks. */
static inline hvt_status threads_open(hvt_world **ret_world)
{
    if (!rank_thread)
        return hvt_world_open(NULL, ret_world);
    *ret_world = rank_thread;
    return HVT_OK;
}

static inline void threads_close(hvt_world **world)
{
    if (!rank_thread)
        hvt_world_close(world);
}

static inline bool ranks_are_threads(void)
{
    return rank_thread;
}

#endif /* HVT_THREADS_H */
