/*
 * This process: what it inherits, its age and peak memory from /proc/self, and its names in messages to other
 * jobs and in command lines that a user can copy.
 */
#define _GNU_SOURCE /* program_invocation_name */

#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Raises a limit that the parent process lowered, as far as possible. */
static hvt_status raise_limit(int which, rlim_t wanted, rlim_t least, const char *name, const char *command)
{
    struct rlimit now;

    if (getrlimit(which, &now))
        return HVT_OK;
    if (now.rlim_cur < wanted) {
        now.rlim_cur = now.rlim_max < wanted ? now.rlim_max : wanted;
        setrlimit(which, &now);
    }
    HVT_CHECK(now.rlim_cur >= least, E_MEM, "the limit of %s is %llu (%s): expected at least %llu", name,
              (unsigned long long)now.rlim_cur, command, (unsigned long long)least);
    return HVT_OK;
}

hvt_status hvt__process_open(bool launched)
{
    enum { KIB = 1024, FILES = 1024, STACK = 8 * 1024 * KIB };
    mode_t mask = umask(0);
    pthread_attr_t threads;
    size_t bytes;

    umask(mask & ~(mode_t)S_IRWXU);                        /* a run reads its own files */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) /* else an opened file would get the warnings */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY) < 0)
            break;
    HVT_TRY(raise_limit(RLIMIT_NOFILE, FILES, launched ? 64 : 16, "open files", "ulimit -n"));
    HVT_TRY(raise_limit(RLIMIT_STACK, STACK, 512 * KIB, "the stack in bytes", "ulimit -s"));
    /* new threads get the limit from the start of the process */
    if (pthread_getattr_default_np(&threads) == 0 && pthread_attr_getstacksize(&threads, &bytes) == 0 &&
        bytes < STACK / 4 && pthread_attr_setstacksize(&threads, STACK) == 0)
        pthread_setattr_default_np(&threads);
    return HVT_OK;
}

double hvt__process_seconds(void)
{
    static _Atomic double first; /* start of the process, in seconds since boot */
    double began = first;
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    if (!began) {
        FILE *f = fopen("/proc/self/stat", "r");
        char text[1024], *p;
        unsigned long long ticks = 0;
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = 0;
        p = strrchr(text, ')'); /* the program's name may contain anything; field 22 is the 20th after it */
        for (int i = 0; p && i < 20; i++)
            p = strchr(p + 1, ' ');
        if (p)
            ticks = strtoull(p, NULL, 10);
        if (f)
            fclose(f);
        first = began = ticks ? (double)ticks / (double)sysconf(_SC_CLK_TCK)
                              : (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - began;
}

int64_t hvt__process_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
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

void hvt__process_name(char *ret_text, size_t bytes)
{
    static const struct {
        const char *variable, *scheduler;
    } jobs[] = {{"SLURM_JOB_ID", "SLURM"}, {"PBS_JOBID", "PBS"}, {"LSB_JOBID", "LSF"}, {"JOB_ID", "SGE"}};
    char host[256] = "?";
    size_t n;

    gethostname(host, sizeof host - 1);
    n = (size_t)snprintf(ret_text, bytes, "process %ld on %s", (long)getpid(), host);
    for (size_t i = 0; i < HVT_LEN(jobs) && n < bytes; i++) {
        const char *id = getenv(jobs[i].variable);
        if (id && *id) {
            snprintf(ret_text + n, bytes - n, " (%s job %.60s)", jobs[i].scheduler, id);
            break;
        }
    }
}

const char *hvt__process_program(void)
{
    const char *slash = strrchr(program_invocation_name, '/');

    return strcmp(slash ? slash + 1 : program_invocation_name, "hvtrain") ? "hvtrain"
                                                                          : program_invocation_name;
}

const char *hvt__shell_word(const char *text, char ret_word[HVT_SHELL_WORD])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-:,@%=";
    size_t n = 0;

    if (*text && !text[strspn(text, plain)])
        return text;
    ret_word[n++] = '\'';
    for (const char *p = text; *p && n + 6 < HVT_SHELL_WORD; p++)
        if (*p == '\'') {
            memcpy(ret_word + n, "'\\''", 4);
            n += 4;
        } else {
            ret_word[n++] = *p;
        }
    ret_word[n++] = '\'';
    ret_word[n] = 0;
    return ret_word;
}
