/* choice.h - which of several measured values is the fastest, as far as that can be told. */
#ifndef HVT_TRAIN_CHOICE_H
#define HVT_TRAIN_CHOICE_H

/*
 * Candidate 0 is the value in use: a default, or what was given. Another one is chosen only if its spread
 * lies wholly below that of candidate 0, and of those the one with the lowest median. The *spread* is the
 * range from the lower to the upper quartile. A quartile that falls between two samples is the outer one, so
 * that few samples have a wide spread.
 */
typedef struct hvt__timing {
    char name[24];
    double low, median, high; /* seconds, or another unit that all candidates share */
} hvt__timing;

enum { HVT__ROUNDS_TO_TELL = 8, HVT__CHOICE_TEXT = 300 };

/* Fills low, median and high. samples: [n] in any order; sorts them. */
void hvt__timing_of(double *samples, int n, hvt__timing *ret_timing);

/* The chosen candidate. 0 where none is faster beyond the spread, or where there are fewer than
 * HVT__ROUNDS_TO_TELL samples of each. */
int hvt__choose(const hvt__timing *of, int n, int samples);

/* What hvt__choose() says and why, in one line with the two timings that decide: those of candidate 0 and of
 * the fastest other one. in_use: what candidate 0 is, "the default"; scale: of a unit in a second. "" for
 * a single candidate. */
void hvt__choice_text(const hvt__timing *of, int n, int samples, const char *in_use, double scale,
                      const char *unit, char ret_text[HVT__CHOICE_TEXT]);

#endif /* HVT_TRAIN_CHOICE_H */
