/*
 * hvtrain with a place to get stuck, for test_stall.py, test_preempt.py, test_signals.py, test_progress.py
 * and test_hvtrain_check.py.
 *
 * HVT_TEST_STUCK=PHASE:RANK:FIFO: in that phase (data, save, or open and sums of a check), if this FIFO
 * exists, this rank creates a file FIFO.in and opens the FIFO for reading, which blocks until another process
 * opens it for writing.
 *
 * HVT_TEST_FAIL=RANK: on this rank the 20th image cannot be read.
 * HVT_TEST_SLOW=RANK:MS: on this rank an image takes so many milliseconds.
 * HVT_TEST_SLOW_FORWARD=RANK:MS: on this rank a forward pass does.
 * HVT_TEST_JUMP=SECONDS: the clock jumps by so much with every image.
 */
#include "train/check/check_impl.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "base/trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

hvt_status __real_hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels,
                                  int *ret_label);
hvt_status __real_hvt__checkpoint_write(const char *dir, const char *name, const char *stem,
                                        hvt__snapshot *snapshot);
hvt_status __real_hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train);
hvt_status __wrap_hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train);
hvt_status __wrap_hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels,
                                  int *ret_label);
hvt_status __wrap_hvt__checkpoint_write(const char *dir, const char *name, const char *stem,
                                        hvt__snapshot *snapshot);

hvt_status __real_hvt__check_sums(const hvt_options *opts, hvt_world *world, hvt_device *dev,
                                  hvt__sums *ret_sums);
hvt_status __wrap_hvt__check_sums(const hvt_options *opts, hvt_world *world, hvt_device *dev,
                                  hvt__sums *ret_sums);
hvt_status __real_hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set);
hvt_status __wrap_hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set);
double __real_hvt__now(void);
double __wrap_hvt__now(void);

hvt_status __real_hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report);
hvt_status __wrap_hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report);

static _Atomic int images;
static _Thread_local int rank_of_thread = -1; /* of --devices, whose ranks share their environment */

hvt_status __wrap_hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report)
{
    rank_of_thread = hvt_world_rank(world);
    return __real_hvt_train(opts, world, ret_report);
}

static bool is_here(const char *place)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");

    return strtol(place, NULL, 10) == (rank_of_thread >= 0 ? rank_of_thread
                                       : rank              ? strtol(rank, NULL, 10)
                                                           : 0);
}

double __wrap_hvt__now(void)
{
    const char *jump = getenv("HVT_TEST_JUMP");

    return __real_hvt__now() + (jump ? strtod(jump, NULL) * images : 0);
}

static void get_stuck(const char *phase)
{
    const char *place = getenv("HVT_TEST_STUCK"), *fifo;
    size_t n = strlen(phase);
    char in[4096];

    if (!place || strncmp(place, phase, n) || !is_here(place + n + 1))
        return;
    fifo = strchr(place + n + 1, ':') + 1;
    if (access(fifo, F_OK))
        return;
    snprintf(in, sizeof in, "%s.in", fifo);
    close(open(in, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    close(open(fifo, O_RDONLY | O_CLOEXEC));
    unsetenv("HVT_TEST_STUCK");
}

static void be_slow(const char *variable)
{
    const char *place = getenv(variable);

    if (place && is_here(place))
        usleep((useconds_t)(1000 * strtol(strchr(place, ':') + 1, NULL, 10)));
}

hvt_status __wrap_hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const char *fails = getenv("HVT_TEST_FAIL");

    images++;
    if (fails && is_here(fails) && images >= 20)
        return HVT_FAIL(E_IO, "image %u: the disk does not answer", index);
    be_slow("HVT_TEST_SLOW");
    get_stuck("data");
    return __real_hvt_dataset_get(set, index, ret_pixels, ret_label);
}

hvt_status __wrap_hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train)
{
    hvt__trace_begin(HVT__FORWARD, -1);
    be_slow("HVT_TEST_SLOW_FORWARD");
    hvt__traced(HVT_OK);
    return __real_hvt_model_forward(m, batch, train);
}

hvt_status __wrap_hvt__checkpoint_write(const char *dir, const char *name, const char *stem,
                                        hvt__snapshot *snapshot)
{
    get_stuck("save");
    return __real_hvt__checkpoint_write(dir, name, stem, snapshot);
}

hvt_status __wrap_hvt__check_sums(const hvt_options *opts, hvt_world *world, hvt_device *dev,
                                  hvt__sums *ret_sums)
{
    get_stuck("sums");
    return __real_hvt__check_sums(opts, world, dev, ret_sums);
}

hvt_status __wrap_hvt_dataset_open(const char *name, const hvt_dataset_opts *opts, hvt_dataset **ret_set)
{
    get_stuck("open");
    return __real_hvt_dataset_open(name, opts, ret_set);
}
