/*
 * The time that a run still takes: its remaining updates, evaluations and checkpoints, each as long as the
 * last one of its kind took. The caller guesses what has not happened yet.
 */
#include "report_impl.h"

/* How many evaluations follow the epochs from `first` to `end`? */
static int64_t evaluations(int64_t first, int64_t end, int freq)
{
    return freq ? end / freq - first / freq : 0;
}

double hvt__seconds_left(const hvt__remaining *r)
{
    int64_t updates = r->done + r->left; /* at the end, counted from the beginning of the current epoch */
    int64_t end = r->epoch + updates / r->per_epoch;
    bool within = updates % r->per_epoch != 0; /* the run ends in the middle of an epoch */
    int64_t evals = evaluations(r->epoch, end, r->eval_freq) +
                    (within || !r->eval_freq || end % r->eval_freq != 0); /* a run always ends with one */
    int64_t saves = end - r->epoch + within;

    return (double)r->left * r->update_seconds + (double)evals * r->eval_seconds +
           (double)saves * r->save_seconds;
}
