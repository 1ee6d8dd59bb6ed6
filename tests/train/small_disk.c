/*
 * hvtrain on a disk with HVT_TEST_FREE bytes free, for test_room.py; "none": unknown size, as on some network
 * file systems.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

int __wrap_statvfs(const char *path, struct statvfs *ret_info);
int __wrap_statvfs64(const char *path, struct statvfs *ret_info); /* glibc's name with 64-bit offsets */

int __wrap_statvfs(const char *path, struct statvfs *ret_info)
{
    enum { BLOCK = 512 };
    const char *bytes = getenv("HVT_TEST_FREE");
    fsblkcnt_t blocks = bytes ? strtoull(bytes, NULL, 10) / BLOCK : 1 << 30;

    (void)path;
    memset(ret_info, 0, sizeof *ret_info);
    if (!bytes || strcmp(bytes, "none") != 0)
        *ret_info = (struct statvfs){
            .f_bsize = BLOCK, .f_frsize = BLOCK, .f_blocks = 1 << 30, .f_bfree = blocks, .f_bavail = blocks};
    return 0;
}

int __wrap_statvfs64(const char *path, struct statvfs *ret_info)
{
    return __wrap_statvfs(path, ret_info);
}
