/*
 * mistakes.h - tables of mistakes, each of which a library of NVIDIA refuses by its documents.
 *
 * A table is compiled twice, against the double and against the library itself; the status must be the same.
 * A line of the table names the document, and states when the library can be tested:
 *
 *   ANYWHERE   the library refuses it without a GPU
 *   ON_A_GPU   with a GPU; otherwise only the double is tested
 *   UNCHECKED  the document forbids it, but the library need not notice: only the double is tested
 *
 * The table is printed as it is run: one line per mistake.
 */
#ifndef HVT_MISTAKES_H
#define HVT_MISTAKES_H

#include "check.h"

#include <dlfcn.h>

#ifdef HVT_REAL
enum { REAL = 1 };
#include "config.h"
#else
enum { REAL = 0 };
#include "double.h"
#endif

typedef enum asked { ANYWHERE, ON_A_GPU, UNCHECKED } asked;

static bool on_a_gpu = !REAL; /* what is tested has a GPU */

static inline bool can_ask(asked a)
{
    return !REAL || a == ANYWHERE || (a == ON_A_GPU && on_a_gpu);
}

static inline void refused(const char *what, const char *source, int want, int got)
{
    printf("%4d  %-55s %s\n", got, what, source);
    CHECK(got == want, "%s: gives %d, not %d (%s)", what, got, want, source);
}

#ifdef HVT_REAL
/* The library at argv[1], else at `built`; NULL: not here. */
static inline void *open_library(int argc, char **argv, const char *built)
{
    void *library = dlopen(argc > 1 ? argv[1] : built, RTLD_NOW | RTLD_GLOBAL);

    if (!library)
        check_skip("the library", dlerror());
    return library;
}
#endif

#endif /* HVT_MISTAKES_H */
