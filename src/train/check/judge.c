/*
 * Judges the facts of all ranks: what is good, doubtful, or must be fixed, with the command that fixes it.
 * Pure functions of the facts.
 */
#include "check_impl.h"
#include "base_impl.h"

#include <math.h>

static double gib(double bytes)
{
    return bytes / (1 << 30);
}

static void set(hvt__line *l, size_t used, const char *fmt, va_list ap)
{
    if (used < sizeof l->text)
        vsnprintf(l->text + used, sizeof l->text - used, fmt, ap);
}

void hvt__line_set(hvt__line *l, hvt__grade grade, const char *fmt, ...)
{
    va_list ap;

    l->grade = grade;
    va_start(ap, fmt);
    set(l, 0, fmt, ap);
    va_end(ap);
}

void hvt__line_add(hvt__line *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    set(l, strlen(l->text), fmt, ap);
    va_end(ap);
}

/* True if rank r is the first of its host. *ret_count: the ranks there. */
static bool is_first(const hvt__ranks *r, int rank, int *ret_count)
{
    *ret_count = 0;
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->host[i], r->host[rank])) {
            if (i < rank)
                return false;
            ++*ret_count;
        }
    return true;
}

void hvt__hosts_text(const hvt__ranks *r, char ret_text[200])
{
    int hosts = 0, least = r->n, most = 0, count;

    for (int i = 0; i < r->n; i++)
        if (is_first(r, i, &count)) {
            hosts++;
            least = count < least ? count : least;
            most = count > most ? count : most;
        }
    if (r->n == 1)
        snprintf(ret_text, 200, "one process on %.100s", r->host[0]);
    else if (hosts == 1)
        snprintf(ret_text, 200, "%d ranks on 1 host (%.100s)", r->n, r->host[0]);
    else if (least == most)
        snprintf(ret_text, 200, "%d ranks on %d hosts, %d each", r->n, hosts, most);
    else
        snprintf(ret_text, 200, "%d ranks on %d hosts, %d to %d each", r->n, hosts, least, most);
}

/* Adds the ranks with in[r]: "all ranks", "rank 3 (node2)", "ranks 2-3 (node2)", "5 ranks on 2 hosts, such as
 * rank 1 (node1)". */
static void add_ranks(hvt__line *l, const hvt__ranks *r)
{
    int first = -1, last = -1, count = 0, hosts = 0, ignored;

    for (int i = 0; i < r->n; i++)
        if (r->in[i]) {
            bool is_new = true;
            first = count++ ? first : i;
            for (int k = first; k < i; k++)
                is_new = is_new && !(r->in[k] && !strcmp(r->host[k], r->host[i]));
            hosts += is_new;
            last = i;
        }
    if (count == r->n && r->n > 1)
        hvt__line_add(l, is_first(r, 0, &ignored) && hosts == 1 ? "all ranks" : "all ranks on %d hosts",
                      hosts);
    else if (count == 1)
        hvt__line_add(l, "rank %d (%s)", first, r->host[first]);
    else if (hosts == 1 && count == last - first + 1)
        hvt__line_add(l, "ranks %d-%d (%s)", first, last, r->host[first]);
    else if (hosts == 1)
        hvt__line_add(l, "%d ranks on %s, such as rank %d", count, r->host[first], first);
    else
        hvt__line_add(l, "%d ranks on %d hosts, such as rank %d (%s)", count, hosts, first, r->host[first]);
}

/* ---- the processor ---- */

static int strength(const char *isa)
{
    int best = -1;

    for (int i = 0; i < HVT__SET_NAMES; i++)
        if (!strncmp(isa, hvt__set_name[i], strlen(hvt__set_name[i]))) /* avx512_bf16 */
            best = i;
    return best;
}

static bool is_built(const char *set)
{
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        if (!strcmp(hvt_cpu_isa_name(i), set))
            return true;
    return false;
}

hvt__line hvt__judge_build(const hvt__ranks *r, const char *isa)
{
    hvt__line l = {HVT__GOOD, ""};
    int chosen = isa ? strength(isa) : HVT__SET_NAMES, common = -1;

    hvt__line_add(&l, "hvtrain %s, kernels for", hvt_version());
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        hvt__line_add(&l, " %s", hvt_cpu_isa_name(i));
    if (isa)
        hvt__line_add(&l, "; this run uses %s", isa);
    for (int set = 0; set < HVT__SET_NAMES; set++) {
        int having = 0;

        for (int i = 0; i < r->n; i++)
            having += r->in[i] = r->fact[i].has[set];
        common = having == r->n ? set : common;
        for (int i = 0; i < r->n; i++) /* the ranks without it */
            r->in[i] = !r->in[i];
        if (having && having < r->n && set > chosen && is_built(hvt__set_name[set])) {
            l.grade = HVT__DOUBTFUL;
            hvt__line_add(&l, "; %d of %d ranks have %s, but ", having, r->n, hvt__set_name[set]);
            add_ranks(&l, r);
            hvt__line_add(&l, " not: hosts of one kind would be faster");
        }
    }
    if (common > chosen && !is_built(hvt__set_name[common])) {
        l.grade = HVT__DOUBTFUL;
        hvt__line_add(&l,
                      "; %s %s, for which this build has no kernels: a build with -Disa=all, or made here, "
                      "would be faster",
                      r->n > 1 ? "the processors have" : "this processor has", hvt__set_name[common]);
    }
    return l;
}

/* The number of processors in the union of the masks of a host's ranks. */
static int processors(const hvt__ranks *r, int first)
{
    int count = 0;

    for (int w = 0; w < HVT__MASK_CPUS / 64; w++) {
        uint64_t all = 0;

        for (int i = first; i < r->n; i++)
            if (!strcmp(r->host[i], r->host[first]))
                all |= r->fact[i].mask[w];
        count += __builtin_popcountll(all);
    }
    return count;
}

/* Names the ranks of a host that are bound to fewer processors than they are. */
static bool is_bound_together(const hvt__ranks *r, hvt__line *l)
{
    for (int first = 0, count; first < r->n; first++) {
        int have, may;

        if (!is_first(r, first, &count))
            continue;
        have = processors(r, first);
        may = r->place[first].allowed;
        if (count <= have || may <= have)
            continue;
        hvt__line_set(
            l, HVT__WRONG,
            "%d ranks on %s are bound to %d processor%s of %d, and take turns: start them with mpirun "
            "--bind-to none, or srun --cpu-bind=none",
            count, r->host[first], have, have > 1 ? "s" : "", may);
        return true;
    }
    return false;
}

hvt__line hvt__judge_cores(const hvt__ranks *r)
{
    hvt__line l = {HVT__GOOD, ""};
    char text[HVT_PLACEMENT_TEXT];
    int least = INT_MAX, most = 0, pinned = 0;

    if (is_bound_together(r, &l))
        return l;
    for (int i = 0; i < r->n; i++) {
        const hvt_cores *c = &r->place[i].cores;

        least = c->threads < least ? c->threads : least;
        most = c->threads > most ? c->threads : most;
        pinned += c->ncpus > 0;
    }
    hvt__placement_warning(r->n, r->host, r->place, text);
    if (!*text)
        hvt__domains_advice(r->n, r->host, r->place, text);
    if (*text)
        hvt__line_set(&l, HVT__DOUBTFUL, "%s", text);
    else if (least < most)
        hvt__line_set(&l, HVT__DOUBTFUL,
                      "ranks have %d to %d threads, and all wait for the slowest: give each rank as many "
                      "processors, or --threads %d",
                      least, most, least);
    else
        hvt__line_set(&l, HVT__GOOD, "%d thread%s%s, %s", most, most > 1 ? "s" : "",
                      r->n > 1 ? " for each rank" : "",
                      pinned == r->n ? "each pinned to a processor of its own" : "not pinned");
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->fact[i].governor, "powersave")) {
            l.grade = l.grade > HVT__DOUBTFUL ? l.grade : HVT__DOUBTFUL;
            hvt__line_add(
                &l,
                "; the clock of %s's processors is held down (powersave): cpupower frequency-set -g "
                "performance",
                r->host[i]);
            break;
        }
    return l;
}

hvt__line hvt__judge_gpus(const hvt__ranks *r, bool used, bool built)
{
    hvt__line l = {HVT__GOOD, ""};
    char text[HVT_PLACEMENT_TEXT];
    int drivers = 0, none = 0, most = 0;

    for (int i = 0; i < r->n; i++) {
        drivers += r->fact[i].driver;
        none += r->in[i] = used && !r->place[i].gpus;
        most = r->place[i].gpus > most ? r->place[i].gpus : most;
    }
    if (used && !built) {
        hvt__line_set(&l, HVT__WRONG,
                      "this build has no device cuda: build with -Dgpu=enabled, or use --device "
                      "cpu");
    } else if (none) {
        hvt__line_set(&l, HVT__WRONG, "no GPU is visible to ");
        add_ranks(&l, r);
        hvt__line_add(&l, drivers ? ": see CUDA_VISIBLE_DEVICES, and srun --gpus-per-node=N --gpu-bind=none"
                                  : ": NVIDIA's driver is not loaded there");
    } else if (used) {
        hvt__gpu_warning(r->n, r->host, r->place, text);
        hvt__line_set(&l, *text ? HVT__DOUBTFUL : HVT__GOOD, "%s, one for each rank%s%s",
                      r->place[0].gpu.name, *text ? "; " : "", text);
        for (int b = 1; b < r->n; b++)
            for (int a = 0; a < b; a++)
                if (!strcmp(r->host[a], r->host[b]) && hvt__same_gpu(&r->place[a], &r->place[b]))
                    hvt__line_set(
                        &l, HVT__WRONG,
                        "ranks %d and %d (%s) use the same GPU, %s: start no more ranks on a host than it "
                        "has GPUs",
                        a, b, r->host[a], r->place[a].gpu.bus);
    } else if (drivers && !built) {
        hvt__line_set(&l, HVT__DOUBTFUL,
                      "NVIDIA's driver is loaded, but this build has no device cuda: -Dgpu=enabled "
                      "builds it");
    } else if (most) {
        hvt__line_set(&l, HVT__GOOD, "%d here, which --device cuda would use", most);
    } else {
        hvt__line_set(&l, HVT__GOOD, "none, and none is asked for");
    }
    return l;
}

/* ---- the host ---- */

/* The interface of a rank in another rank's network; NULL if it has none. */
static const hvt__net *net_in(const hvt__facts *f, const char *network)
{
    for (int i = 0; i < f->nets; i++)
        if (!strcmp(f->net[i].network, network))
            return &f->net[i];
    return NULL;
}

/* Finds host-internal interfaces with the same address on several hosts. */
static const hvt__net *find_twin(const hvt__ranks *r)
{
    for (int k = 0; k < r->fact[0].nets; k++)
        for (int i = 1; i < r->n; i++) {
            const hvt__net *mine = &r->fact[0].net[k], *other = net_in(&r->fact[i], mine->network);

            if (strcmp(r->host[i], r->host[0]) != 0 && other && !strcmp(other->address, mine->address))
                return mine;
        }
    return NULL;
}

hvt__line hvt__judge_network(const hvt__ranks *r)
{
    hvt__line l = {HVT__GOOD, "one host: nothing goes over a network"};
    const hvt__net *twin = find_twin(r);
    const char *choice = NULL;
    int shared = 0, count, hosts = 0, rdma = INT_MAX;

    for (int i = 0; i < r->n; i++) {
        hosts += is_first(r, i, &count);
        rdma = r->fact[i].rdma_gbits < rdma ? r->fact[i].rdma_gbits : rdma;
    }
    if (hosts < 2)
        return l;
    hvt__line_set(&l, HVT__GOOD, "the hosts share");
    for (int k = 0; k < r->fact[0].nets; k++) {
        const hvt__net *net = &r->fact[0].net[k];
        bool all = !(twin && !strcmp(twin->network, net->network));

        for (int i = 0; i < r->n; i++)
            all = all && net_in(&r->fact[i], net->network);
        if (!all)
            continue;
        choice = choice ? choice : net->network;
        hvt__line_add(&l, "%s %s (%s", shared++ ? "," : "", net->network, net->name);
        hvt__line_add(&l,
                      net->mbits >= 1000 ? ", %g Gb/s)"
                      : net->mbits       ? ", %g Mb/s)"
                                         : ")",
                      net->mbits >= 1000 ? net->mbits / 1000.0 : net->mbits);
    }
    if (rdma)
        hvt__line_add(&l, "%s InfiniBand or RoCE of %d Gb/s", shared++ ? " and" : "", rdma);
    if (!shared)
        hvt__line_set(&l, HVT__GOOD,
                      "the hosts have no network in common, so packets are routed between networks");
    if (twin && choice)
        hvt__line_set(&l, HVT__DOUBTFUL,
                      "%s has the address %s on several hosts, and MPI may try to reach others there: mpirun "
                      "--mca btl_tcp_if_include %s --mca oob_tcp_if_include %s",
                      twin->name, twin->address, choice, choice);
    return l;
}

hvt__line hvt__judge_memory(const hvt__ranks *r)
{
    enum { LEAST = 256 << 20 }; /* bytes per rank */
    hvt__line l = {HVT__GOOD, ""};
    double least = INFINITY, shm = INFINITY;

    for (int i = 0, count; i < r->n; i++) {
        const hvt__facts *f = &r->fact[i];
        double each;

        if (!is_first(r, i, &count))
            continue;
        each = f->memory > 0 ? f->memory / count : INFINITY;
        if (each < LEAST && l.grade == HVT__GOOD)
            hvt__line_set(&l, HVT__DOUBTFUL,
                          "%s has only %.2f GiB of memory left for %d rank%s: fewer ranks, or "
                          "a larger limit (srun --mem)",
                          r->host[i], gib(f->memory), count, count > 1 ? "s" : "");
        if (f->shm >= 0 && f->shm < f->shm_due && l.grade < HVT__WRONG)
            hvt__line_set(
                &l, HVT__WRONG,
                "/dev/shm of %s has %.1f MiB free, but MPI may still write %.1f MiB there, and ends by "
                "SIGBUS if it cannot: free some, make it larger (docker run --shm-size 1g), or use "
                "mpirun --mca btl_vader_backing_directory /tmp",
                r->host[i], f->shm / (1 << 20), f->shm_due / (1 << 20));
        least = each < least ? each : least;
        shm = f->shm >= 0 && f->shm < shm ? f->shm : shm;
    }
    if (l.grade == HVT__GOOD && least < INFINITY)
        hvt__line_add(&l, "%.1f GiB%s", gib(least), r->n > 1 ? " for each rank" : "");
    if (l.grade == HVT__GOOD && shm < INFINITY)
        hvt__line_add(&l, "%s%.1f GiB in /dev/shm", *l.text ? ", " : "", gib(shm));
    if (!*l.text)
        hvt__line_set(&l, HVT__GOOD, "unknown");
    return l;
}

/* Adds the limits of the ranks with in[r] to l, if there are any. */
static void add_limit(hvt__line *l, const hvt__ranks *r, const char *fmt, double value)
{
    bool any = false;

    for (int i = 0; i < r->n; i++)
        any = any || r->in[i];
    if (!any)
        return;
    l->grade = HVT__DOUBTFUL;
    if (*l->text)
        hvt__line_add(l, "; ");
    add_ranks(l, r);
    hvt__line_add(l, " ");
    hvt__line_add(l, fmt, value);
}

hvt__line hvt__judge_limits(const hvt__ranks *r)
{
    enum { FILES = 1024, LOCKED = 1 << 30 };
    static const char *const texts[] = {
        "may open only %.0f files: ulimit -n 4096",
        "may lock only %.0f bytes, which InfiniBand needs to: ulimit -l unlimited",
        "may use only %.0f bytes of addresses: ulimit -v unlimited",
        "will be ended after %.0f s of processor time: ulimit -t unlimited"};
    hvt__line l = {HVT__GOOD, ""};

    for (size_t k = 0; k < HVT_LEN(texts); k++) {
        double least = INFINITY;

        for (int i = 0; i < r->n; i++) {
            const hvt__facts *f = &r->fact[i];
            const double value[] = {f->files, f->memlock, f->address_space, f->cpu_seconds};

            r->in[i] = k == 0   ? f->files < FILES
                       : k == 1 ? f->rdma_gbits && f->memlock < LOCKED
                                : value[k] < INFINITY;
            least = r->in[i] && value[k] < least ? value[k] : least;
        }
        add_limit(&l, r, texts[k], least);
    }
    if (!*l.text)
        hvt__line_set(&l, HVT__GOOD, "none that a run would meet (files, locked memory, addresses, time)");
    return l;
}

hvt__line hvt__judge_clocks(const hvt__ranks *r)
{
    const double most = 1; /* s */
    hvt__line l = {HVT__GOOD, "one host has one clock"};
    double worst = -1;
    int at = 0;

    for (int i = 1; i < r->n; i++)
        if (strcmp(r->host[i], r->host[0]) != 0 && fabs(r->ahead[i]) > worst)
            worst = fabs(r->ahead[at = i]);
    if (worst > most)
        hvt__line_set(
            &l, HVT__DOUBTFUL,
            "%s's clock is %.1f s %s that of %s: times in logs and of files do not fit together; let "
            "chrony or ntpd set the clocks",
            r->host[at], worst, r->ahead[at] > 0 ? "ahead of" : "behind", r->host[0]);
    else if (worst >= 0)
        hvt__line_set(&l, HVT__GOOD, "hosts agree within %.3f ms", 1e3 * (worst + r->unsure[at]));
    return l;
}

/* ---- what the run needs ---- */

/* Adds the ranks that cannot read the path of `flag`. Returns their number. */
static int add_unreadable(hvt__line *l, const hvt__ranks *r, bool data, const char *flag, const char *path)
{
    int count = 0, first = 0;

    for (int i = r->n - 1; i >= 0; i--) {
        count += r->in[i] = data ? *r->fact[i].data : *r->fact[i].model;
        first = r->in[i] ? i : first;
    }
    if (!count)
        return 0;
    hvt__line_add(l, "%s%s %s: ", *l->text ? "; " : "", flag, path);
    hvt__line_add(l, "%s, on ", data ? r->fact[first].data : r->fact[first].model);
    add_ranks(l, r);
    if (count < r->n)
        hvt__line_add(l, ": it must be there on every host");
    return count;
}

hvt__line hvt__judge_files(const hvt__ranks *r, const hvt_options *opts)
{
    hvt__line l = {HVT__GOOD, ""};

    if (add_unreadable(&l, r, true, "--data-dir", opts->data_dir) +
        add_unreadable(&l, r, false, "--model", opts->model))
        l.grade = HVT__WRONG;
    return l;
}

hvt__line hvt__judge_needs(const hvt__ranks *r, const hvt__needs *needs, const hvt_options *opts, bool on_gpu)
{
    hvt__line l = {HVT__GOOD, ""};

    hvt__line_set(&l, HVT__GOOD, "%s, images of %s, --batch %d: %.2f GiB for each rank", opts->model,
                  needs->images, needs->batch, gib(needs->memory));
    for (int i = 0, count; i < r->n; i++) {
        const double there = on_gpu ? (double)r->place[i].gpu.total_bytes : r->fact[i].memory;

        if (!is_first(r, i, &count) || there <= 0 || needs->memory * (on_gpu ? 1 : count) <= there)
            continue;
        hvt__line_set(
            &l, HVT__WRONG,
            "%s, images of %s, --batch %d: %d rank%s on %s take%s %.1f GiB, but only %.1f GiB are there: a "
            "lower --batch, --amp bf16 or fewer ranks",
            opts->model, needs->images, needs->batch, on_gpu ? 1 : count, count > 1 && !on_gpu ? "s" : "",
            r->host[i], count > 1 && !on_gpu ? "" : "s", gib(needs->memory) * (on_gpu ? 1 : count),
            gib(there));
        break;
    }
    return l;
}

/* The fastest network common to all hosts, in GB/s; 0: unknown. */
static double network_speed(const hvt__ranks *r)
{
    double most = 0;

    for (int k = 0; k < r->fact[0].nets; k++) {
        double least = r->fact[0].net[k].mbits;

        for (int i = 0; i < r->n; i++) {
            const hvt__net *n = net_in(&r->fact[i], r->fact[0].net[k].network);

            least = !n ? 0 : n->mbits < least ? n->mbits : least;
        }
        most = least > most ? least : most;
    }
    for (int i = 0; i < r->n; i++)
        if (!r->fact[i].rdma_gbits)
            return most / 8e3;
    return fmax(most / 8e3, r->fact[0].rdma_gbits / 8.0);
}

hvt__line hvt__judge_sums(const hvt__ranks *r, const hvt__sums *s, const char *asked)
{
    hvt__line l = {HVT__GOOD, ""};
    double speed = (double)s->large_bytes / s->large / 1e9, wire = network_speed(r);
    int count = 0, hosts = 0, shared = 0;

    for (int i = 0; i < r->n; i++)
        if (is_first(r, i, &count)) {
            hosts++;
            shared += count > 1;
        }
    hvt__line_set(&l, HVT__GOOD, "comm %s: %zu bytes in %.1f us; %zu MiB in %.2f ms, %.2f GB/s", s->comm,
                  s->small_bytes, 1e6 * s->small, s->large_bytes >> 20, 1e3 * s->large, speed);
    if (s->wrong)
        hvt__line_set(
            &l, HVT__WRONG,
            "comm %s: %d elements of sums are wrong: memory or network of one of the hosts is faulty, or "
            "MPI is; --comm mpi with --mca btl self,tcp tells which",
            s->comm, s->wrong);
    else if (!strcmp(asked, "auto") && hosts == 1 && r->n > 1 && !strcmp(s->comm, "mpi")) {
        l.grade = HVT__DOUBTFUL;
        hvt__line_add(
            &l, "; the ranks cannot share memory, which would be faster: run them in one container, with "
                "/proc");
    } else if (!strcmp(asked, "auto") && hosts > 1 && shared && !strcmp(s->comm, "mpi")) {
        l.grade = HVT__DOUBTFUL;
        hvt__line_add(&l,
                      "; comm hier would be faster: 1, 2, 4, 8, ... neighbouring ranks on each host (mpirun "
                      "--map-by ppr:2:node)");
    } else if (hosts > 1 && wire > 0 && speed < 0.1 * wire) {
        l.grade = HVT__DOUBTFUL;
        hvt__line_add(
            &l,
            "; the network could carry %.1f GB/s: see which one MPI uses (--mca btl_tcp_if_include, "
            "UCX_NET_DEVICES)",
            wire);
    }
    return l;
}
