/*
 * This process: how long it has run, and the most memory that it had, as Linux tells in /proc/self.
 */
#include "train_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double hvt__process_seconds(void)
{
    static double began; /* seconds after boot */
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    if (!began) {
        FILE *f = fopen("/proc/self/stat", "r");
        char text[1024], *p;
        unsigned long long ticks = 0;
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        p = strrchr(text, ')'); /* the program's name may hold anything; field 22 is 20 after it */
        for (int i = 0; p && i < 20; i++)
            p = strchr(p + 1, ' ');
        if (p)
            ticks = strtoull(p, NULL, 10);
        if (f)
            fclose(f);
        began = ticks ? (double)ticks / (double)sysconf(_SC_CLK_TCK)
                      : (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - began;
}

int64_t hvt__process_peak_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}
