/* hvtrain as a library call. It runs alone and under mpirun. README.md contains this file. */
#include <hvt/hvt.h>

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    hvt_options opts;
    hvt_world *world = NULL;
    void *memory[2] = {NULL, NULL}; /* for options that come from --config, and from a checkpoint */
    hvt_report report;

    if (hvt_options_parse(argc, argv, &opts) || hvt_world_open(NULL, &world) ||
        hvt_options_agree(&opts, world) || (*opts.config && hvt_options_config(&opts, world, &memory[0])) ||
        hvt_options_resume(&opts, world, &memory[1]) || hvt_options_check(&opts, hvt_world_size(world)) ||
        hvt_train(&opts, world, &report)) {
        fprintf(stderr, "%s\n", hvt_last_error());
        if (world && !hvt_last_error_is_agreed()) /* other ranks may be waiting for this one */
            hvt_world_abort(world, 1);
        return 1;
    }
    if (hvt_world_rank(world) == 0)
        printf("top-1 of %d images: %.2f %%\n", (int)report.test.count,
               100.0 * (double)report.test.top1 / (double)report.test.count);
    free(memory[0]);
    free(memory[1]);
    hvt_world_close(&world);
    return 0;
}
