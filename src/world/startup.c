/*
 * Watches the start of a job until the first collectives are done and watch.c takes over. The watch begins
 * before MPI_Init() or, without MPI, when the ranks have met.
 *
 * Until then a rank only knows how long it has waited. The usual cause is a network that drops packets to
 * some of the hosts' addresses, as container bridges do, which have the same addresses on every host. So the
 * line lists this host's interfaces and says how to choose one.
 *
 * The first rank of each host reports. Without shared memory no rank knows whether the first one is alive, so
 * the others end a moment later and report, too.
 */
#define _GNU_SOURCE
#include "base/thread.h"
#include "facts.h"
#include "text.h"
#include "watch.h"
#include "world_internal.h"

#include <math.h>
#include <net/if.h>
#include <stdatomic.h>
#include <unistd.h>

static struct {
    hvt__ticker ticker;
    hvt_stall stall;
    hvt_launch launch;
    bool speaks, ended;
    int said;
    double clock, looked;  /* s on a clock that stands still while the process is stopped, as in watch.c */
    atomic_bool connected; /* MPI_Init() has returned */
} start;

static bool speaks_for_host(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
                                        "LOCAL_RANK"};

    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (getenv(names[i]))
            return !strcmp(getenv(names[i]), "0");
    return true;
}

/* "eth0 10.0.7.1, docker0 172.17.0.1". ret_best: the interface to recommend; "": none. */
static void add_interfaces(hvt__text *b, char ret_best[IF_NAMESIZE])
{
    hvt__net net[HVT__NETS_MOST];
    int n = hvt__nets(net), best = 0;

    for (int i = 0; i < n; i++) {
        hvt__text_add(b, "%s%s %s", i ? ", " : "", net[i].name, net[i].address);
        if (net[best].is_inside && !net[i].is_inside)
            best = i;
    }
    snprintf(ret_best, IF_NAMESIZE, "%s", n ? net[best].name : "");
    if (!n)
        hvt__text_add(b, "none with an IPv4 address");
}

static void add_line(hvt__text *b)
{
    char host[64] = "?", best[IF_NAMESIZE];
    int rank = hvt_world_launched_rank();

    gethostname(host, sizeof host - 1);
    if (rank >= 0)
        hvt__text_add(b, "rank %d (%s)", rank, host);
    else
        hvt__text_add(b, "%s", host);
    hvt__text_add(
        b, start.clock < 10 ? " has waited %.1f s for %s" : " has waited %.0f s for %s", start.clock,
        atomic_load(&start.connected) ? "the first messages of other ranks" : "MPI_Init() to return");
    if (start.launch.one_node) {
        hvt__text_add(b, "; all ranks are on this host: one of them is stopped, or did not start");
        return;
    }
    if (start.launch.by) {
        hvt__text_add(b, "; one of them is stopped, or its network is lost");
        return;
    }
    hvt__text_add(b, "; packets between some network interfaces of the hosts may be lost. Those of %s are ",
                  host);
    add_interfaces(b, best);
    if (*best)
        hvt__text_add(
            b,
            ". If only some connect the hosts, choose one, such as: mpirun --mca btl_tcp_if_include %s "
            "--mca oob_tcp_if_include %s (srun: export OMPI_MCA_btl_tcp_if_include=%s)",
            best, best, best);
}

static void look(void *arg)
{
    double now = hvt__now(), due = start.stall.warn, end = start.stall.abort;
    hvt__text b = {.used = 0};
    bool over;

    start.clock += fmin(now - start.looked, 2 * start.ticker.seconds);
    start.looked = now;
    for (int i = 0; i < start.said; i++)
        due *= 2;
    over = end > 0 && start.clock >= end + (start.speaks ? 0 : 2 * HVT__WATCH_GRACE);
    if (start.ended || !(over || (start.speaks && due > 0 && start.clock >= due)))
        return;
    add_line(&b);
    if (over)
        hvt__text_add(&b, ": giving up");
    hvt__log_always(over ? HVT_LOG_ERROR : HVT_LOG_WARN, b.at);
    start.said++;
    start.ended = over;
    if (over)
        hvt__watch_give_up(b.at);
}

void hvt__startup_open(const hvt_launch *l)
{
    double warn = hvt__watch_default.warn, end = hvt__watch_default.abort,
           shortest = warn > 0 && (warn < end || !(end > 0)) ? warn : end;

    if (start.ticker.runs || !(shortest > 0))
        return;
    start.stall = hvt__watch_default;
    start.launch = *l;
    start.speaks = speaks_for_host();
    start.ended = false;
    start.said = 0;
    start.clock = 0;
    start.looked = hvt__now();
    atomic_store(&start.connected, false);
    start.ticker = (hvt__ticker){"a watch over the start", fmin(fmax(shortest / 8, 0.02), 1), look, NULL};
    if (hvt__ticker_open(&start.ticker))
        HVT_DEBUG("%s", hvt_last_error());
}

void hvt__startup_connected(void)
{
    atomic_store(&start.connected, true);
}

void hvt__startup_close(void)
{
    hvt__ticker_close(&start.ticker);
}
