/*
 * --balance: how many shards of an update each rank works through.
 *
 * The sums of gradients do not depend on the division (hvt_distopt_opts), so `auto` may change it between two
 * updates: a slower rank gets fewer shards. Each rank measures its forward and backward passes over a window
 * of updates. The windows grow, because the speed of a shared machine varies.
 */
#include "run.h"

#include <ctype.h>

enum { FIRST_WINDOW = 8, LAST_WINDOW = 128 /* updates */ };
#define WORTH 0.95 /* a new division is taken if the slowest rank's time falls below this fraction */

/* Divides shards equally; the first ranks get one more if there is a remainder. */
static void divide_equally(int shards, int ranks, int *ret_first)
{
    for (int r = 0; r <= ranks; r++)
        ret_first[r] = r * (shards / ranks) + (r < shards % ranks ? r : shards % ranks);
}

hvt_status hvt__divide_shards(const char *balance, int shards, int ranks, int *ret_first)
{
    const char *at = balance;
    int64_t sum = 0;
    int n = 0;

    HVT_CHECK(shards >= ranks, E_ARG,
              "--shards %d on %d ranks: expected a shard for each rank; use at most %d rank%s", shards, ranks,
              shards, shards > 1 ? "s" : "");
    if (!isdigit((unsigned char)*balance)) {
        HVT_CHECK(!strcmp(balance, "off") || !strcmp(balance, "auto"), E_ARG,
                  "--balance %s: expected off, auto, or a number of shards for each rank, such as 5,3",
                  balance);
        divide_equally(shards, ranks, ret_first);
        return HVT_OK;
    }
    for (ret_first[0] = 0; *at && n < ranks; n++) {
        char *end;
        const long local = strtol(at, &end, 10);

        HVT_CHECK(isdigit((unsigned char)*at) && (*end == ',' || !*end) && local > 0 &&
                      local <= shards - sum && (!*end || end[1]),
                  E_ARG,
                  "--balance %s: expected a number of shards for each of %d ranks, %d in all, as in %s",
                  balance, ranks, shards, ranks == 2 ? "5,3" : "4,2,2");
        sum += local;
        ret_first[n + 1] = (int)sum;
        at = *end ? end + 1 : end;
    }
    HVT_CHECK(n == ranks && !*at && sum == shards, E_ARG,
              "--balance %s has %lld shards on %d%s ranks; expected %d (--shards) on %d", balance,
              (long long)sum, n, *at ? " or more" : "", shards, ranks);
    return HVT_OK;
}

/* Finds the division with the least time of the slowest rank, if a shard takes seconds[r] on rank r. Each
 * shard goes to the rank that would finish first with one more. */
static void divide_by_speed(const double *seconds, int shards, int ranks, int *ret_first)
{
    int left = shards - ranks;

    for (int r = 0; r < ranks; r++)
        ret_first[r + 1] = 1; /* numbers, until they are added up */
    for (; left; left--) {
        int best = 0;

        for (int r = 1; r < ranks; r++)
            if ((ret_first[r + 1] + 1) * seconds[r] < (ret_first[best + 1] + 1) * seconds[best])
                best = r;
        ret_first[best + 1]++;
    }
    ret_first[0] = 0;
    for (int r = 0; r < ranks; r++)
        ret_first[r + 1] += ret_first[r];
}

static double slowest(const double *seconds, const int *first, int ranks)
{
    double most = 0;

    for (int r = 0; r < ranks; r++)
        if ((first[r + 1] - first[r]) * seconds[r] > most)
            most = (first[r + 1] - first[r]) * seconds[r];
    return most;
}

static double computed(void)
{
    double phase[HVT__PHASE_COUNT];

    hvt__trace_seconds(phase);
    return phase[HVT__FORWARD] + phase[HVT__BACKWARD];
}

static void begin_window(run *t, int updates)
{
    t->balance.left = t->balance.window = updates;
    t->balance.began = computed();
}

hvt_status hvt__balance_open(run *t)
{
    t->first_of = calloc(2 * ((size_t)t->size + 1), sizeof *t->first_of);
    t->balance.seconds = calloc((size_t)t->size, sizeof *t->balance.seconds);
    HVT_CHECK(t->first_of && t->balance.seconds, E_MEM, "no memory for the shards of %d ranks", t->size);
    begin_window(t, FIRST_WINDOW);
    if (t->rank == 0 && !t->opts->evaluate && !strcmp(t->opts->balance, "auto") && t->set.shards == t->size)
        HVT_WARN(
            "--balance auto has nothing to divide: there %s %d shard%s on %d rank%s; --accumulate 4 makes "
            "four times as many",
            t->size > 1 ? "are" : "is", t->size, t->size > 1 ? "s" : "", t->size, t->size > 1 ? "s" : "");
    return t->opts->evaluate ? hvt__divide_shards("off", t->size, t->size, t->first_of)
                             : hvt__divide_shards(t->opts->balance, t->set.shards, t->size, t->first_of);
}

void hvt__balance_close(run *t)
{
    free(t->first_of);
    free(t->balance.seconds);
}

/* On rank 0: reports how many shards each rank has now, and why. */
static hvt_status report(const run *t)
{
    json_t *shards, *seconds;
    int slowest = 0;

    if (!t->rep)
        return HVT_OK;
    shards = json_array();
    seconds = json_array();
    for (int r = 0; r < t->size; r++) {
        slowest = t->balance.seconds[r] > t->balance.seconds[slowest] ? r : slowest;
        json_array_append_new(shards, json_integer(t->first_of[r + 1] - t->first_of[r]));
        json_array_append_new(seconds, hvt__number(t->balance.seconds[r]));
    }
    hvt__report_print(t->rep, "from update %lld on rank %d (%s), the slowest, has %d of %d shards",
                      (long long)t->at.steps + 1, slowest, hvt_world_host(t->world, slowest),
                      t->first_of[slowest + 1] - t->first_of[slowest], t->set.shards);
    return hvt__report_put(t->rep,
                           json_pack("{s:s, s:I, s:o, s:o}", "record", "balance", "step",
                                     (json_int_t)t->at.steps + 1, "shards", shards, "seconds", seconds));
}

/* Moves shards to other ranks, from the next update on. */
static hvt_status divide_anew(run *t, const int *first)
{
    const int local = first[t->rank + 1] - first[t->rank];
    const hvt_status s = hvt_loader_divide(t->train_data, first[t->rank], local);

    HVT_TRY(hvt_world_agree(t->world, s));
    HVT_TRY(hvt_distopt_divide(t->dist, local));
    memcpy(t->first_of, first, ((size_t)t->size + 1) * sizeof *first);
    return report(t);
}

hvt_status hvt__balance_step(run *t)
{
    int *now = t->first_of, *better = now + t->size + 1;
    const double *seconds = t->balance.seconds;
    double mine;

    if (strcmp(t->opts->balance, "auto") || t->size == 1 || --t->balance.left)
        return HVT_OK;
    mine = (computed() - t->balance.began) / (t->balance.window * (now[t->rank + 1] - now[t->rank]));
    HVT_TRY(hvt_world_allgather(t->world, &mine, sizeof mine, t->balance.seconds));
    divide_by_speed(seconds, t->set.shards, t->size, better);
    if (t->at.step < t->steps_per_epoch && t->at.steps < t->end &&
        slowest(seconds, better, t->size) < WORTH * slowest(seconds, now, t->size))
        HVT_TRY(divide_anew(t, better));
    begin_window(t, t->balance.window < LAST_WINDOW ? 2 * t->balance.window : LAST_WINDOW);
    return HVT_OK;
}
