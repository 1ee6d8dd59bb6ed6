/* choice.h - selects the fastest of several measured values, if the difference is significant. */
#ifndef HVT_TRAIN_CHOICE_H
#define HVT_TRAIN_CHOICE_H

/*
 * Candidate 0 is the value in use: a default, or the given one. Another candidate is chosen only if its
 * spread lies wholly below that of candidate 0; of several the one with the lowest median. The *spread* is
 * the range from the lower to the upper quartile. A quartile that falls between two samples is the outer one,
 * so that few samples have a wide spread.
 */
typedef struct hvt__timing {
    char name[24];
    double low, median, high; /* seconds, or another unit that all candidates share */
} hvt__timing;

enum { HVT__ROUNDS_TO_TELL = 8, HVT__CHOICE_TEXT = 300 };

/* Fills low, median and high. samples: [n] in any order; sorts them. */
void hvt__timing_of(double *samples, int n, hvt__timing *ret_timing);

/* The chosen candidate; 0 if none is faster beyond the spread, or if each has fewer than HVT__ROUNDS_TO_TELL
 * samples. */
int hvt__choose(const hvt__timing *of, int n, int samples);

/* The choice and its reason in one line, with the two timings that decide: those of candidate 0 and of the
 * fastest other one. in_use: the name of candidate 0, such as "the default"; scale: units per second. "" for
 * a single candidate. */
void hvt__choice_text(const hvt__timing *of, int n, int samples, const char *in_use, double scale,
                      const char *unit, char ret_text[HVT__CHOICE_TEXT]);

#endif /* HVT_TRAIN_CHOICE_H */
