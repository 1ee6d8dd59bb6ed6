/*
 * hvtrain with a place to get stuck in, for test_stall.py. HVT_TEST_STUCK=PHASE:RANK:FIFO: in that phase
 * (data or save) this rank opens the FIFO to read, which takes until somebody opens it to write.
 */
#include "hvt/train.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

hvt_status __real_hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels,
                                  int *ret_label);
hvt_status __real_hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                                      const hvt_progress *progress);
hvt_status __wrap_hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels,
                                  int *ret_label);
hvt_status __wrap_hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                                      const hvt_progress *progress);

static void get_stuck(const char *phase)
{
    const char *place = getenv("HVT_TEST_STUCK"), *rank = getenv("OMPI_COMM_WORLD_RANK"), *fifo;
    size_t n = strlen(phase);

    if (!place || !rank || strncmp(place, phase, n) ||
        strtol(place + n + 1, NULL, 10) != strtol(rank, NULL, 10))
        return;
    fifo = strchr(place + n + 1, ':') + 1;
    close(open(fifo, O_RDONLY | O_CLOEXEC));
    unsetenv("HVT_TEST_STUCK");
}

hvt_status __wrap_hvt_dataset_get(const hvt_dataset *set, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    get_stuck("data");
    return __real_hvt_dataset_get(set, index, ret_pixels, ret_label);
}

hvt_status __wrap_hvt_checkpoint_save(const char *dir, const char *name, hvt_model *m, hvt_optim *o,
                                      const hvt_progress *progress)
{
    get_stuck("save");
    return __real_hvt_checkpoint_save(dir, name, m, o, progress);
}
