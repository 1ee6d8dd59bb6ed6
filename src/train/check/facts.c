/* A rank's facts about its process and host, without other ranks. */
#define _GNU_SOURCE /* sched_getaffinity */

#include "check_impl.h"
#include "base_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const hvt__set_name[HVT__SET_NAMES] = {"avx2", "avx512", "amx"};

/* Finds the instruction sets. Linux lists only those that it supports itself. */
static void find_sets(bool has[HVT__SET_NAMES])
{
    static const char *const flags[HVT__SET_NAMES] = {
        " avx2 fma f16c ", " avx512f avx512bw avx512vl avx512dq ", " amx_tile amx_bf16 "};
    FILE *f = fopen("/proc/cpuinfo", "re");
    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;

    while (f && (n = getline(&line, &room, f)) > 0 && strncmp(line, "flags", 5) != 0)
        ;
    if (n > 0)
        line[strcspn(line, "\n")] = ' '; /* every flag is then between blanks */
    for (int i = 0; i < HVT__SET_NAMES && n > 0; i++) {
        char all[80], *rest = NULL;

        snprintf(all, sizeof all, "%s", flags[i]);
        has[i] = true;
        for (char *flag = strtok_r(all, " ", &rest); flag; flag = strtok_r(NULL, " ", &rest)) {
            char word[32];

            snprintf(word, sizeof word, " %.20s ", flag);
            has[i] = has[i] && strstr(line, word);
        }
    }
    free(line);
    if (f)
        fclose(f);
}

/* The first line of a kernel file; "" if it is missing. */
static void read_line(const char *path, char *ret_text, size_t bytes)
{
    FILE *f = fopen(path, "re");

    if (!f || !fgets(ret_text, (int)bytes, f))
        *ret_text = 0;
    ret_text[strcspn(ret_text, "\n")] = 0;
    if (f)
        fclose(f);
}

/* The fastest port of an InfiniBand or RoCE adapter that is up, in Gb/s. */
static int find_rdma(void)
{
    DIR *d = opendir("/sys/class/infiniband");
    struct dirent *e;
    int most = 0;

    while (d && (e = readdir(d))) {
        char path[400], text[80];

        if (*e->d_name == '.')
            continue;
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/state", e->d_name);
        read_line(path, text, sizeof text);
        if (!strstr(text, "ACTIVE"))
            continue;
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/rate", e->d_name);
        read_line(path, text, sizeof text);
        most = atoi(text) > most ? atoi(text) : most;
    }
    if (d)
        closedir(d);
    return most;
}

static double limit_of(int which)
{
    struct rlimit limit;

    return getrlimit(which, &limit) || limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur;
}

static void find_file(const char *path, bool is_folder, char *ret_why, size_t bytes)
{
    struct stat info;

    *ret_why = 0;
    if (stat(path, &info) || access(path, is_folder ? R_OK | X_OK : R_OK))
        snprintf(ret_why, bytes, "%s", strerror(errno));
    else if (is_folder != (bool)S_ISDIR(info.st_mode))
        snprintf(ret_why, bytes, is_folder ? "is a file, expected a folder" : "is a folder, expected a file");
}

void hvt__facts_find(const hvt_options *opts, hvt__facts *ret_facts)
{
    hvt__facts f = {.rdma_gbits = find_rdma(),
                    .memory = hvt__memory_available(),
                    .memlock = limit_of(RLIMIT_MEMLOCK),
                    .address_space = limit_of(RLIMIT_AS),
                    .cpu_seconds = limit_of(RLIMIT_CPU),
                    .files = limit_of(RLIMIT_NOFILE),
                    .driver = access("/proc/driver/nvidia/version", F_OK) == 0};
    cpu_set_t set;

    f.shm = hvt__shm_room(&f.shm_due);
    find_sets(f.has);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < HVT__MASK_CPUS && i < CPU_SETSIZE; i++)
            f.mask[i / 64] |= (uint64_t)(CPU_ISSET(i, &set) != 0) << i % 64;
    f.nets = hvt__nets(f.net);
    read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", f.governor, sizeof f.governor);
    if (*opts->data_dir)
        find_file(opts->data_dir, true, f.data, sizeof f.data);
    if (hvt__is_model_file(opts->model))
        find_file(opts->model, false, f.model, sizeof f.model);
    *ret_facts = f;
}
