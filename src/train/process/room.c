/* Room on disks: refuses a file that would not fit before hours are spent on its contents. */
#include "process_impl.h"
#include "base_impl.h"

#include <inttypes.h>
#include <libgen.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

uint64_t hvt__room_in(const char *folder)
{
    struct statvfs info;

    if (statvfs(folder, &info) || !info.f_blocks) /* some network file systems give no numbers */
        return UINT64_MAX;
    return (uint64_t)(geteuid() ? info.f_bavail : info.f_bfree) *
           (info.f_frsize ? info.f_frsize : info.f_bsize);
}

void hvt__size_text(uint64_t bytes, char ret_text[HVT__SIZE_TEXT])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    size_t i = 0;

    for (; value >= 1024 && i + 1 < HVT_LEN(units); i++)
        value /= 1024;
    snprintf(ret_text, HVT__SIZE_TEXT, "%.1f %s", value, units[i]);
}

hvt_status hvt__room_check(const char *flag, const char *path, bool is_folder, const char *what,
                           uint64_t bytes, uint64_t largest)
{
    char copy[PATH_MAX], needed[HVT__SIZE_TEXT], there[HVT__SIZE_TEXT];
    struct rlimit limit;
    uint64_t room;

    snprintf(copy, sizeof copy, "%s", path);
    room = hvt__room_in(is_folder ? copy : dirname(copy));
    hvt__size_text(bytes, needed);
    hvt__size_text(room, there);
    HVT_CHECK(bytes <= room, E_IO,
              "%s %s: %s takes %s, but the disk has only %s free: expected a larger disk", flag, path, what,
              needed, there);
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return HVT_OK;
    hvt__size_text(largest, needed);
    hvt__size_text(limit.rlim_cur, there);
    HVT_CHECK(largest <= limit.rlim_cur, E_IO,
              "%s %s: a file of %s has %s, but this process may write files of %s at most: expected a larger "
              "limit (ulimit -f)",
              flag, path, what, needed, there);
    return HVT_OK;
}
