/*
 * Hosts whose pictures have other pixels: this file replaces hvt__picture_digest() (by the linker's wrap),
 * with a different result if a test asks for it.
 */
#include "folder.h"
#include "hvt/data.h"
#include "logged.h"
#include "ranks.h"

static uint64_t digest;

uint64_t __wrap_hvt__picture_digest(void);

uint64_t __wrap_hvt__picture_digest(void)
{
    return digest;
}

static void open_and_close(void)
{
    hvt_dataset *set = NULL;

    log_keep(HVT_LOG_WARN);
    CHECK_OK(
        hvt_dataset_open("folder", &(hvt_dataset_opts){.dir = folder, .train = true, .world = world}, &set));
    log_release();
    hvt_dataset_close(&set);
}

TEST(a_host_with_other_pixels_is_named)
{
    char want[200];

    if (size == 1)
        SKIP("one rank has nobody to differ from");
    digest = 5;
    open_and_close();
    CHECK(logged_lines == 0, "%s", logged);
    digest = rank == size - 1 ? 6 : 5;
    open_and_close();
    snprintf(want, sizeof want, "pictures decode to other pixels on %s than on %s",
             hvt_world_host(world, size - 1), hvt_world_host(world, 0));
    CHECK(logged_lines == 1 && strstr(logged, want), "%s", logged);
}

int main(void)
{
    char command[400];
    bool made;

    if (!ranks_open())
        return 1;
    made = rank > 0 || folder_make();
    snprintf(
        command, sizeof command,
        "cd %s && mkdir ant bee && for f in ant/1 bee/1; do printf 'P6\\n1 1\\n255\\nabc' > $f.ppm; done",
        folder);
    made = made && (rank > 0 || system(command) == 0);
    hvt_world_broadcast(world, folder, sizeof folder, 0);
    if (!made)
        return 1;
    RUN(a_host_with_other_pixels_is_named);
    hvt_world_barrier(world);
    if (rank == 0)
        CHECK(folder_remove(), "%s is left", folder);
    return ranks_done();
}
