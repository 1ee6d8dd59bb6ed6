/*
 * Decides whether a measured difference is significant. Two runs of the same program differ, too, so a value
 * whose samples overlap with those of the value in use is not called faster.
 */
#include "choice.h"
#include "base_impl.h"

void hvt__timing_of(double *samples, int n, hvt__timing *ret_timing)
{
    hvt__sort(samples, (size_t)n);
    ret_timing->low = samples[(n - 1) / 4];
    ret_timing->median = samples[(n - 1) / 2];
    ret_timing->high = samples[(3 * (n - 1) + 3) / 4];
}

/* The candidate other than 0 with the lowest median; n > 1. */
static int fastest_other(const hvt__timing *of, int n)
{
    int best = 1;

    for (int i = 2; i < n; i++)
        if (of[i].median < of[best].median)
            best = i;
    return best;
}

int hvt__choose(const hvt__timing *of, int n, int samples)
{
    int best = 0;

    if (samples < HVT__ROUNDS_TO_TELL)
        return 0;
    for (int i = 1; i < n; i++)
        if (of[i].high < of[0].low && (best == 0 || of[i].median < of[best].median))
            best = i;
    return best;
}

static int format_timing(const hvt__timing *t, double scale, const char *unit, char *ret_text, size_t bytes)
{
    return snprintf(ret_text, bytes, "%s %.4g%s (%.4g-%.4g)", t->name, scale * t->median, unit,
                    scale * t->low, scale * t->high);
}

void hvt__choice_text(const hvt__timing *of, int n, int samples, const char *in_use, double scale,
                      const char *unit, char ret_text[HVT__CHOICE_TEXT])
{
    int chosen = hvt__choose(of, n, samples), other;
    char mine[100], its[100];

    *ret_text = 0;
    if (n < 2)
        return;
    other = chosen ? chosen : fastest_other(of, n);
    format_timing(&of[0], scale, unit, mine, sizeof mine);
    format_timing(&of[other], scale, unit, its, sizeof its);
    if (samples < HVT__ROUNDS_TO_TELL)
        snprintf(
            ret_text, HVT__CHOICE_TEXT,
            "%d rounds are too few to tell, expected %d or more: %s stays; tune FILE SECONDS measures longer",
            samples, HVT__ROUNDS_TO_TELL, in_use);
    else if (chosen)
        snprintf(ret_text, HVT__CHOICE_TEXT, "%s is faster than %s: %s, %s", of[chosen].name, in_use, mine,
                 its);
    else if (of[other].low > of[0].high)
        snprintf(ret_text, HVT__CHOICE_TEXT, "%s is the fastest: %s, %s", in_use, mine, its);
    else
        snprintf(ret_text, HVT__CHOICE_TEXT, "no difference beyond the spread: %s, %s; %s stays", mine, its,
                 in_use);
}
