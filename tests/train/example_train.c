/* hvtrain as a library call. It runs alone and under mpirun. README.md contains this file. */
#include <hvt/hvt.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    hvt_options opts;
    hvt_world *world = NULL;
    hvt_report report;

    if (hvt_options_parse(argc, argv, &opts) || hvt_world_open(NULL, &world) ||
        hvt_options_prepare(&opts, world) || hvt_train(&opts, world, &report)) {
        fprintf(stderr, "%s\n", hvt_last_error());
        if (world && !hvt_last_error_is_agreed()) /* other ranks may be waiting for this one */
            hvt_world_abort(world, 1);
        return 1;
    }
    if (hvt_world_rank(world) == 0)
        printf("top-1 of %d images: %.2f %%\n", (int)report.test.count,
               100.0 * (double)report.test.top1 / (double)report.test.count);
    hvt_options_release(&opts);
    hvt_world_close(&world);
    return 0;
}
