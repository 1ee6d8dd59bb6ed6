/* Facts about MPI, the launcher and this host, for messages and `hvtrain check`. */
#define _GNU_SOURCE
#include "base_impl.h"
#include "facts.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

void hvt__launch_variables(char ret_text[HVT__FACT_TEXT])
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_SIZE", "PMI_RANK",
        "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"};
    size_t used = 0;

    *ret_text = 0;
    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (getenv(names[i]) && used < HVT__FACT_TEXT)
            used += (size_t)snprintf(ret_text + used, HVT__FACT_TEXT - used, "%s%s=%.20s", used ? ", " : "",
                                     names[i], getenv(names[i]));
}

static bool is_inside(const char *name)
{
    static const char *const kinds[] = {"docker", "br-", "virbr", "veth", "cni", "flannel", "podman", "lxc"};

    for (size_t i = 0; i < HVT_LEN(kinds); i++)
        if (!strncmp(name, kinds[i], strlen(kinds[i])))
            return true;
    return false;
}

static int mbits_of(const char *name)
{
    char path[80];
    int mbits = 0;
    FILE *f;

    snprintf(path, sizeof path, "/sys/class/net/%.16s/speed", name);
    f = fopen(path, "re");
    if (f && fscanf(f, "%d", &mbits) != 1) /* the read fails if no cable is plugged in */
        mbits = 0;
    if (f)
        fclose(f);
    return mbits > 0 ? mbits : 0;
}

static uint32_t address_of(const struct sockaddr *a)
{
    return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr);
}

static void address_text(uint32_t address, char ret_text[16])
{
    struct in_addr in = {htonl(address)};

    inet_ntop(AF_INET, &in, ret_text, 16);
}

static void describe(const struct ifaddrs *from, hvt__net *n)
{
    uint32_t address = address_of(from->ifa_addr);
    uint32_t mask = from->ifa_netmask ? address_of(from->ifa_netmask) : UINT32_MAX;
    char text[16];

    *n = (hvt__net){.mbits = mbits_of(from->ifa_name), .is_inside = is_inside(from->ifa_name)};
    snprintf(n->name, sizeof n->name, "%.15s", from->ifa_name);
    address_text(address, n->address);
    address_text(address & mask, text);
    snprintf(n->network, sizeof n->network, "%s/%d", text, __builtin_popcount(mask));
}

int hvt__nets(hvt__net ret_nets[HVT__NETS_MOST])
{
    struct ifaddrs *all = NULL;
    int n = 0;

    if (getifaddrs(&all))
        return 0;
    for (const struct ifaddrs *i = all; i && n < HVT__NETS_MOST; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
            !(i->ifa_flags & IFF_LOOPBACK))
            describe(i, &ret_nets[n++]);
    freeifaddrs(all);
    return n;
}

double hvt__shm_room(double *ret_due)
{
    static const char *const kinds[] = {"vader_segment.", "sm_segment."}; /* of Open MPI 4 and 5 */
    DIR *d = opendir("/dev/shm");
    struct statvfs info;
    struct dirent *e;
    struct stat file;

    *ret_due = 0;
    while (d && (e = readdir(d)))
        for (size_t i = 0; i < HVT_LEN(kinds); i++)
            if (!strncmp(e->d_name, kinds[i], strlen(kinds[i])) &&
                fstatat(dirfd(d), e->d_name, &file, 0) == 0)
                *ret_due += fmax(0, (double)file.st_size - 512.0 * (double)file.st_blocks);
    if (d)
        closedir(d);
    if (statvfs("/dev/shm", &info) || !info.f_blocks)
        return -1;
    return (double)info.f_bavail * (double)(info.f_frsize ? info.f_frsize : info.f_bsize);
}
