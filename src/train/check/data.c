/*
 * Opens the data as the run does, with the same errors. A thread does it, because listing a large folder may
 * take longer than a check.
 */
#include "check_impl.h"
#include "train/run.h"
#include "base/thread.h"
#include "base_impl.h"

#include <errno.h>
#include <math.h>
#include <time.h>

typedef struct opening {
    hvt_options opts;
    run t;
    hvt_world *world; /* of this process alone */
    hvt_placement place;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    hvt_status status;
    hvt__error why;
} opening;

static void *open_data(void *arg)
{
    opening *x = arg;

    x->status = hvt__open_data(&x->t);
    if (x->status)
        hvt__error_take(&x->why);
    pthread_mutex_lock(&x->lock);
    x->done = true;
    pthread_cond_signal(&x->changed);
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* Waits so many seconds, or without limit if 0. False if the data are not open by then. */
static bool wait_for(opening *x, double seconds)
{
    struct timespec end;
    bool done;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)seconds;
    end.tv_nsec += (long)(1e9 * fmod(seconds, 1));
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&x->lock);
    while (!x->done && (seconds <= 0 ? pthread_cond_wait(&x->changed, &x->lock)
                                     : pthread_cond_timedwait(&x->changed, &x->lock, &end)) != ETIMEDOUT)
        ;
    done = x->done;
    pthread_mutex_unlock(&x->lock);
    return done;
}

/* "38 training and 10 test images, 3 classes: bird, dog, vehicle" */
static void describe(const run *t, hvt__line *l)
{
    enum { NAMED = 10 };
    const hvt_dataset *set = t->train_set ? t->train_set : t->test_set;
    const hvt_dataset_info *test = hvt_dataset_describe(t->test_set), *info = hvt_dataset_describe(set);
    int named = 0;

    if (t->train_set)
        hvt__line_add(l, "%u training and ", info->count);
    hvt__line_add(l, "%u test images, ", test->count);
    if (info->masks)
        hvt__line_add(l, "with masks");
    else if (info->targets)
        hvt__line_add(l, "%d targets each", info->targets);
    else if (info->unlabelled)
        hvt__line_add(l, "without labels");
    else
        hvt__line_add(l, "%d classes", info->classes);
    for (int i = 0; i < info->classes && !info->unlabelled && named <= NAMED; i++) {
        const char *name = hvt_dataset_class_name(set, i);

        if (name)
            hvt__line_add(l, "%s%.60s", !named ? ": " : ", ", named < NAMED ? name : "...");
        named += name != NULL;
    }
}

static hvt_status start(const hvt_options *opts, const hvt__ranks *r, opening **ret_opening)
{
    opening *x = calloc(1, sizeof *x);
    hvt_status s;

    HVT_CHECK(x, E_MEM, "no memory to open the data");
    x->opts = hvt__options_settled(opts);
    x->place = r->place[0];
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->changed, NULL);
    HVT_TRY_OR(fail, hvt_world_open("singleton", &x->world));
    x->t = (run){.opts = &x->opts, .world = x->world, .size = 1, .placement = &x->place};
    HVT_TRY_OR(fail, hvt__resolve(&x->opts, r->n, &x->t.set));
    HVT_CHECK_OR(fail, !hvt__thread_start(&x->thread, open_data, x), E_MEM, "no thread to open the data");
    *ret_opening = x;
    return HVT_OK;
fail:
    hvt_world_close(&x->world);
    free(x);
    return s;
}

hvt__line hvt__check_data(const hvt_options *opts, const hvt__ranks *r, double seconds, bool *ret_opens)
{
    hvt__line l = {HVT__GOOD, ""};
    opening *x = NULL;

    if (start(opts, r, &x)) {
        hvt__line_set(&l, HVT__WRONG, "%s", hvt_last_error());
        return l;
    }
    *ret_opens = !wait_for(x, seconds);
    if (*ret_opens) {
        hvt__line_set(&l, HVT__DOUBTFUL,
                      "%s: still being listed after %.3g s; --stall-abort 10m waits longer for it",
                      *opts->data_dir ? opts->data_dir : opts->data, seconds);
        pthread_detach(x->thread);
        return l;
    }
    pthread_join(x->thread, NULL);
    hvt__line_set(&l, HVT__GOOD,
                  *opts->data_dir ? "%s: " : "--data %s: ", *opts->data_dir ? opts->data_dir : opts->data);
    if (x->status)
        hvt__line_set(&l, HVT__WRONG, "%s", x->why.text);
    else
        describe(&x->t, &l);
    x->t.placement = NULL;
    hvt__teardown(&x->t);
    hvt_world_close(&x->world);
    pthread_cond_destroy(&x->changed);
    pthread_mutex_destroy(&x->lock);
    free(x);
    return l;
}
