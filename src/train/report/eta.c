/*
 * How long the rest of a run takes: its updates, the evaluations and the checkpoints that come between and
 * after them. Each at the pace of the last one; of what has not happened yet the caller makes a guess.
 */
#include "train_impl.h"

/* Of the epochs from `first` on to `end`, those after which an evaluation comes. */
static int64_t evaluations(int64_t first, int64_t end, int freq)
{
    return freq ? end / freq - first / freq : 0;
}

double hvt__seconds_left(const hvt__rest *r)
{
    int64_t updates = r->done + r->left; /* at the end, since the epoch under way began */
    int64_t end = r->epoch + updates / r->per_epoch;
    bool within = updates % r->per_epoch != 0; /* it ends within an epoch */
    int64_t evals = evaluations(r->epoch, end, r->eval_freq) +
                    (within || !r->eval_freq || end % r->eval_freq != 0); /* the last one comes in any case */
    int64_t saves = end - r->epoch + within;

    return (double)r->left * r->update_seconds + (double)evals * r->eval_seconds +
           (double)saves * r->save_seconds;
}
