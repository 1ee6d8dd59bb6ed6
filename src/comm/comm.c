/* The table of comms and their public functions: names, the choice of `auto`, argument checks. */
#include "base_impl.h"
#include "config.h"
#include "comm_internal.h"
#include "world/items.h"
#include "world/watch.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

/* Operations in flight without allocation. Most programs need no more, so issuing cannot fail on one rank
 * only. */
enum { OPERATIONS = 64 };

static const hvt_comm_ops *const self = &hvt_comm_self, *const shm = &hvt_comm_shm,
                                 *const messages = &hvt_comm_messages, *const hier = &hvt_comm_hier;
#if HVT_HAVE_MPI
static const hvt_comm_ops *const mpi = &hvt_comm_messages;
#else
static const hvt_comm_ops *const mpi = NULL;
#endif
#if HVT_HAVE_CUDA
static const hvt_comm_ops *const nccl = &hvt_comm_nccl;
#else
static const hvt_comm_ops *const nccl = NULL;
#endif

static const struct {
    const char *name;
    const hvt_comm_ops *const *ops; /* points to NULL: not in this build */
} comms[] = {{"self", &self},    {"shm", &shm},   {"mpi", &mpi},
             {"tcp", &messages}, {"hier", &hier}, {"nccl", &nccl}};

/* Opens c with these operations, or leaves it unchanged, on every rank alike. */
static hvt_status open_table(hvt_comm *c, const hvt_comm_ops *ops)
{
    hvt_comm fresh = *c;
    hvt_status s;

    fresh.name = ops == messages && c->world->ops->comm ? c->world->ops->comm : ops->name;
    if (ops == messages && !c->dev->ops->host)
        ops = &hvt_comm_staged;
    fresh.ops = ops;
    fresh.state = NULL;
    s = hvt_world_agree(c->world, ops->open(&fresh));
    if (s != HVT_OK) {
        if (ops->close)
            ops->close(&fresh);
        return hvt__pass(s, __FILE__, __LINE__, fresh.name);
    }
    *c = fresh;
    return HVT_OK;
}

/* Returns the first choice of `auto`. */
static const hvt_comm_ops *best(const hvt_world *w, const hvt_device *dev)
{
    int levels;

    if (w->size == 1)
        return self;
    if (!dev->ops->host)
        return nccl ? nccl : messages;
    if (w->nodes == 1)
        return shm;
    if (hvt__levels_inside(w, &levels) == HVT_OK)
        return hier;
    if (w->rank == 0)
        HVT_DEBUG("comm: %s: %s", w->ops->comm, hvt_last_error());
    return messages;
}

/* Switches to another comm because memory cannot be shared. */
static hvt_status fall_back(hvt_comm *c, const hvt_comm_ops *from)
{
    if (c->world->rank == 0)
        HVT_WARN("comm: %s instead of %s: %s", c->world->ops->comm, from->name, hvt_last_error());
    return open_table(c, messages);
}

static hvt_comm *comm_of(const hvt__rank_group *group)
{
    return (hvt_comm *)((uintptr_t)group - offsetof(hvt_comm, group));
}

/*
 * Ranks that disagree. A rank in a checked collective waits for headers, and one in an operation of the comm
 * for its data: they would wait for each other. So a collective that has waited for a while tells where it
 * waits: its kind, and its *place* among the comm's collectives and operations, which are issued in the same
 * order on all ranks. A rank that waits in an operation at the same place knows that they disagree, and its
 * last word says so: HVT__DISAGREES plus its operation, the collective's kind, and the caller's rank in the
 * job. Ranks that do not wait neither tell nor listen.
 */
enum { OPERATION_KINDS = 8, KINDS = 32, PLACES = 1 << 25 };

const char *const hvt__action_names[] = {
    [HVT__CALL_ALLREDUCE] = "allreduce", [HVT__CALL_REDUCE_SCATTER] = "reduce_scatter",
    [HVT__CALL_BROADCAST] = "broadcast", [HVT__CALL_ALLGATHER] = "allgather",
    [HVT__CALL_GATHER] = "gather",       [HVT__CALL_SCATTER] = "scatter",
    [HVT__CALL_ALLTOALL] = "alltoall",   [HVT__CALL_BARRIER] = "barrier",
    [HVT__CALL_SEND] = "send",           [HVT__CALL_RECV] = "receive",
};
static const char *const doing[] = {
    [HVT__ALLREDUCE] = "exchanges gradients",    [HVT__REDUCE_SCATTER] = "exchanges gradients",
    [HVT__ALLGATHER] = "gathers parameters",     [HVT__BROADCAST] = "broadcasts parameters",
    [HVT__REDUCE_APPLY] = "exchanges gradients",
};

static int place_of(const hvt_comm *c)
{
    return (int)((c->operations + c->collectives) % PLACES);
}

/* Fails with E_MISMATCH: the job's rank `caller` is in a collective of this kind, rank r in an operation. */
static hvt_status disagree(const hvt_comm *c, int caller, int kind, int r, int op)
{
    const hvt_world *all = c->outer ? c->outer->world : c->world, *w = c->world;
    const char *host = "?";

    for (int i = 0; i < all->size; i++)
        if (hvt__job_rank(all, i) == caller)
            host = all->host[i];
    HVT_FAIL(
        E_MISMATCH,
        "rank %d (%s) calls %s, but rank %d (%s) %s; all ranks must make the same calls in the same order",
        caller, host, hvt__action_names[kind], hvt__job_rank(w, r), w->host[r], doing[op]);
    hvt__error_agreed(true);
    return HVT_E_MISMATCH;
}

/* Returns why `rank` has left. Waiting ranks call it now and then, so it also tells and compares places. */
static hvt__departure has_left(const hvt__rank_group *group, int rank)
{
    const double soon = 0.3; /* s */
    hvt_comm *c = comm_of(group), *all = c->outer ? c->outer : c;
    int word = c->ops->word(c, rank), place = place_of(all);

    if (hvt__is_gone(word))
        return word < HVT__DISAGREES ? (hvt__departure)word : HVT__DISAGREES;
    if (all->running >= HVT__OPERATION && word < 0 && (-1 - word) / KINDS == place) {
        int kind = (-1 - word) % KINDS, caller = hvt__job_rank(c->world, rank);

        all->ops->tell(all, HVT__DISAGREES + all->running - HVT__OPERATION +
                                OPERATION_KINDS * (kind + KINDS * caller));
        return HVT__DISAGREES;
    }
    if (!all->running || all->running >= HVT__OPERATION)
        return HVT__HERE;
    if (!all->waiting)
        all->waiting = hvt__now();
    if (hvt__now() - all->waiting >= soon && all->told != place) {
        all->told = place;
        all->ops->tell(all, -1 - (place * KINDS + all->running - 1));
    }
    return HVT__HERE;
}

/* True if a rank's word says that ranks disagree; *ret_s is then an error that names them. */
static bool find_disagreement(hvt_comm *c, hvt_status *ret_s)
{
    const hvt_comm *all = c->outer ? c->outer : c;

    for (int r = 0; r < c->world->size; r++) {
        int word = c->ops->word(c, r), said = word - HVT__DISAGREES;

        if (word < HVT__DISAGREES)
            continue;
        if (all->running && all->running < HVT__OPERATION) /* this rank is a caller itself */
            *ret_s = disagree(c, hvt__job_rank(c->world, c->world->rank), all->running - 1, r,
                              said % OPERATION_KINDS);
        else
            *ret_s = disagree(c, said / OPERATION_KINDS / KINDS, said / OPERATION_KINDS % KINDS, r,
                              said % OPERATION_KINDS);
        return true;
    }
    return false;
}

/* The same, where a rank has given up because of others: the word of these may come later. */
static bool await_disagreement(hvt_comm *c, hvt_status *ret_s)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const double soon = hvt__now() + 0.2;
    bool followed = false;

    for (int r = 0; r < c->world->size; r++)
        followed = followed || (r != c->world->rank && c->ops->word(c, r) == HVT__AFTER_ANOTHER);
    while (!find_disagreement(c, ret_s)) {
        if (!followed || hvt__now() > soon)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
}

/* Leaves the comm, and names the cause before its consequences: a rank that ended before one that left by
 * itself, and that before one that gave up, as this one does now. */
static hvt_status lost(const hvt__rank_group *group, int rank, const char *what)
{
    hvt_comm *c = comm_of(group);
    const hvt_world *w = c->world;
    hvt__departure why = HVT__HERE;
    hvt_status s;
    int cause = rank;

    if (await_disagreement(c, &s)) {
        c->ops->tell(c, HVT__AFTER_ANOTHER);
        return s;
    }
    if (hvt__watch_gave_up(w)) {
        c->ops->tell(c, HVT__AFTER_ANOTHER);
        return HVT_FAIL(E_COMM, "rank %d has waited too long for rank %d (%s) to %s, and gives up",
                        hvt__job_rank(w, w->rank), hvt__job_rank(w, rank), w->host[rank], what);
    }
    for (int r = 0; r < w->size; r++) {
        int its = r == w->rank ? HVT__HERE : c->ops->word(c, r);

        if (hvt__is_gone(its) && (why == HVT__HERE || its < (int)why)) {
            cause = r;
            why = (hvt__departure)its;
        }
    }
    c->ops->tell(c, HVT__AFTER_ANOTHER);
    return HVT_FAIL(E_COMM, "rank %d (%s) has %s; rank %d was waiting for rank %d to %s",
                    hvt__job_rank(w, cause), w->host[cause],
                    why == HVT__AFTER_ANOTHER                  ? "given up waiting for another rank"
                    : why != HVT__ENDED                        ? "left the comm"
                    : w->node_of[cause] == w->node_of[w->rank] ? "ended"
                                                               : "ended, or its network",
                    hvt__job_rank(w, w->rank), hvt__job_rank(w, rank), what);
}

bool hvt__comm_disconnect(hvt_comm *c)
{
    const double most = 10; /* s */
    const hvt_world *w = c->world;
    bool first = !hvt__is_gone(c->ops->word(c, w->rank));
    double start = hvt__now(), now = start;
    int here, waited, wait;

    c->ops->tell(c, HVT__BY_ITSELF);
    wait = hvt__wait_begin(w, HVT__ANYONE, "close the comm");
    for (;;) {
        here = 0;
        waited = -1;
        for (int r = w->size - 1; r >= 0; r--) {
            int word = r == w->rank ? HVT__BY_ITSELF : c->ops->word(c, r);

            here += !hvt__is_gone(word);
            waited = word == HVT__AFTER_ANOTHER ? r : waited;
        }
        if (!here || now - start >= most)
            break;
        if (now - start < 1e-3)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, 200 * 1000}, NULL);
        now = hvt__now();
    }
    hvt__wait_end(wait);
    if (first && waited >= 0)
        HVT_ERROR(
            "comm %s: rank %d (%s) closed it while rank %d (%s) was waiting for an operation, which failed",
            c->name, hvt__job_rank(w, w->rank), w->host[w->rank], hvt__job_rank(w, waited), w->host[waited]);
    return !here;
}

/* Finds the comm that this rank asks for; *ret_ops is NULL for "auto". */
static hvt_status choose(const char *name, const hvt_world *world, const hvt_device *dev,
                         hvt_comm *const *ret_comm, const hvt_comm_ops **ret_ops)
{
    const hvt_comm_ops *ops = NULL;
    bool known = false;

    HVT_CHECK(name && dev && ret_comm, E_ARG, "a comm needs a name, a world and a device");
    for (size_t i = 0; i < HVT_LEN(comms) && !known; i++) {
        known = !strcmp(name, comms[i].name);
        ops = *comms[i].ops;
    }
    HVT_CHECK(known || !strcmp(name, "auto"), E_ARG,
              "unknown comm '%s', expected auto, self, shm, mpi, tcp, hier or nccl", name);
    HVT_CHECK(!known || ops, E_UNSUPPORTED, "comm '%s' is not in this build", name);
    HVT_CHECK(!known || dev->ops->host || (ops != shm && ops != hier), E_UNSUPPORTED,
              "comm %s is for host memory; for device %s use nccl, or %s, which copies through the host",
              name, dev->ops->name, world->ops->comm ? world->ops->comm : "mpi");
    HVT_CHECK(ops != messages || world->size == 1 || !world->ops->comm || !strcmp(name, world->ops->comm),
              E_UNSUPPORTED,
              "comm %s cannot reach the ranks of this job, which are connected by %s: use comm %s", name,
              world->ops->name, world->ops->comm);
    *ret_ops = known ? ops : NULL;
    return HVT_OK;
}

/* The process finalises MPI without having closed these: no rank must wait for it. */
static void leave_all(hvt_world *w)
{
    for (hvt_comm *c = w->comm; c; c = c->next)
        if (c->ops->tell)
            c->ops->tell(c, HVT__BY_ITSELF);
}

static void enlist(hvt_comm *c)
{
    c->next = c->world->comm;
    c->world->comm = c;
    c->world->ends = leave_all;
    c->world->comms++;
}

static void delist(hvt_comm *c)
{
    hvt_comm **at = &c->world->comm;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->world->comms--;
}

hvt_status hvt_comm_open(const char *name, hvt_world *world, hvt_device *dev, hvt_comm **ret_comm)
{
    const hvt_comm_ops *ops = NULL;
    hvt__items items = {0};
    hvt_comm *c = NULL;
    hvt_status s;

    HVT_CHECK(world, E_ARG, "a comm needs a name, a world and a device");
    s = choose(name, world, dev, ret_comm, &ops);
    if (s == HVT_OK) {
        c = calloc(1, sizeof *c);
        if (c)
            c->queue = (hvt__queue){.op = malloc(OPERATIONS * sizeof *c->queue.op), .room = OPERATIONS};
        if (!c || !c->queue.op)
            s = HVT_FAIL(E_MEM, "no memory for a comm");
    }
    HVT_TRY_OR(fail, hvt_world_agree(world, s));
    c->cutoffs = hvt__cutoffs_next;
    /* ranks with different comms or cutoffs would wait for different messages */
    hvt__items_add(&items, "comm\t%s", name);
    hvt__items_add(&items, "mpi-short\t%zu", c->cutoffs.mpi_short);
    hvt__items_add(&items, "mpi-packet\t%zu", c->cutoffs.mpi_packet);
    HVT_TRY_OR(fail, hvt__items_compare(&items, world));
    c->world = world;
    c->dev = dev;
    c->chosen = !ops;
    c->group = (hvt__rank_group){.channel = world->channels++, .has_left = has_left, .lost = lost};
    if (c->chosen)
        ops = best(world, dev);
    s = open_table(c, ops);
    if (s != HVT_OK && c->chosen && (ops == shm || ops == hier) && world->ops->comm)
        s = fall_back(c, ops);
    HVT_TRY_OR(fail, s);
    enlist(c);
    hvt__use(&dev->users, HVT__USER_COMM, 1);
    *ret_comm = c;
    return HVT_OK;
fail:
    if (c)
        free(c->queue.op);
    free(c);
    return s;
}

void hvt_comm_close(hvt_comm **comm)
{
    hvt_comm *c = comm ? *comm : NULL;

    if (!c)
        return;
    if (c->blocks) {
        HVT_ERROR(
            "comm %s is not closed: %d of its blocks of memory are still held, by distributed optimizers, "
            "fused tensors or callers of hvt_comm_alloc(); free those first",
            c->name, c->blocks);
        return;
    }
    hvt__worker_stop(c);
    if (c->ops->close)
        c->ops->close(c);
    delist(c);
    hvt__use(&c->dev->users, HVT__USER_COMM, -1);
    free(c->queue.op);
    free(c->work);
    free(c->block);
    free(c);
    *comm = NULL;
}

const char *hvt_comm_name(const hvt_comm *comm)
{
    return comm ? comm->name : "";
}

hvt_world *hvt_comm_world(const hvt_comm *comm)
{
    return comm ? comm->world : NULL;
}

unsigned hvt_comm_can(const hvt_comm *comm)
{
    return comm ? comm->ops->can | (comm->worker ? HVT_COMM_ASYNCHRONOUS : 0) : 0;
}

void hvt_comm_slice(const hvt_comm *comm, size_t count, int rank, size_t *ret_first, size_t *ret_end)
{
    int size = comm ? comm->world->size : 0, place;

    if (!ret_first || !ret_end)
        return;
    *ret_first = *ret_end = 0;
    if (rank < 0 || rank >= size)
        return;
    if (comm->ops->slice) {
        comm->ops->slice(comm, count, rank, ret_first, ret_end);
        return;
    }
    place = hvt__slice_index(rank, size);
    *ret_first = hvt__cut(count, place, size);
    *ret_end = hvt__cut(count, place + 1, size);
}

static void release(hvt_comm *c, hvt__block *b)
{
    if (c->ops->release)
        c->ops->release(c, b);
    else
        c->dev->ops->memory.release(c->dev, b->ptr);
}

/* Allocate on all ranks or on none. */
static hvt_status allocate(hvt_comm *c, size_t bytes, bool shared, void **ret_ptr)
{
    hvt__block b = {.bytes = bytes}, *more = realloc(c->block, (size_t)(c->blocks + 1) * sizeof *more);
    hvt_status s = HVT_OK;

    hvt__worker_rest(c);
    if (more)
        c->block = more;
    else
        s = HVT_FAIL(E_MEM, "no memory to keep %d blocks of a comm", c->blocks + 1);
    HVT_TRY(hvt_world_agree(c->world, s));
    s = c->ops->alloc ? c->ops->alloc(c, shared, &b) : c->dev->ops->memory.alloc(c->dev, bytes, &b.ptr);
    s = hvt_world_agree(c->world, s);
    if (s != HVT_OK) {
        release(c, &b);
        return s;
    }
    c->block[c->blocks++] = b;
    *ret_ptr = b.ptr;
    return HVT_OK;
}

hvt_status hvt_comm_alloc(hvt_comm *comm, size_t bytes, void **ret_ptr)
{
    hvt_comm old;
    hvt_status s;

    HVT_CHECK(comm && ret_ptr, E_ARG, "no comm or no output pointer for %zu bytes", bytes);
    s = allocate(comm, bytes, false, ret_ptr);
    if (s == HVT_OK || !comm->chosen || (comm->ops != shm && comm->ops != hier) || comm->worker ||
        comm->blocks || !comm->world->ops->comm || (s != HVT_E_MEM && s != HVT_E_UNSUPPORTED))
        return s;
    HVT_TRY(
        hvt_comm_wait(comm, comm->queue.issued)); /* the other comm cannot complete operations in flight */
    old = *comm;
    HVT_TRY(fall_back(comm, old.ops));
    old.ops->close(&old);
    return allocate(comm, bytes, false, ret_ptr);
}

hvt_status hvt_comm_share(hvt_comm *comm, size_t bytes, void **ret_ptr)
{
    HVT_CHECK(comm && ret_ptr, E_ARG, "no comm or no output pointer for %zu bytes", bytes);
    HVT_CHECK(comm->ops->can & HVT_COMM_SHARE, E_UNSUPPORTED, "ranks of comm '%s' do not share memory",
              comm->name);
    return allocate(comm, bytes, true, ret_ptr);
}

void hvt_comm_release(hvt_comm *comm, void *ptr)
{
    int i = 0;

    if (!comm || !ptr)
        return;
    while (i < comm->blocks && comm->block[i].ptr != ptr)
        i++;
    if (i == comm->blocks) {
        HVT_ERROR("comm %s: %p is not a block of its memory, or was released before", comm->name, ptr);
        return;
    }
    hvt_comm_wait(comm,
                  comm->queue.issued); /* operations that may use it; the next call reports a failure again */
    release(comm, &comm->block[i]);
    comm->block[i] = comm->block[--comm->blocks];
}

static hvt_status issue(hvt_comm *c, const hvt__op *op, hvt_ticket *ret_ticket)
{
    HVT_CHECK(c, E_ARG, "no comm to sum %zu elements with", op->count);
    HVT_CHECK(ret_ticket && (op->buf || !op->count), E_ARG, "no buffer or no ticket for %zu elements",
              op->count);
    HVT_CHECK(op->type == HVT_F32 || op->type == HVT_F16 || op->type == HVT_BF16, E_ARG,
              "ranks exchange f32, f16 and bf16, not %s", hvt_dtype_name(op->type));
    return hvt__queue_add(c, op, ret_ticket);
}

hvt_status hvt_comm_allreduce(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                              hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__op){HVT__ALLREDUCE, dtype, .buf = buf, .count = count}, ret_ticket);
}

hvt_status hvt_comm_reduce_scatter(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                   hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__op){HVT__REDUCE_SCATTER, dtype, .buf = buf, .count = count}, ret_ticket);
}

hvt_status hvt_comm_allgather(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                              hvt_ticket *ret_ticket)
{
    return issue(comm, &(hvt__op){HVT__ALLGATHER, dtype, .buf = buf, .count = count}, ret_ticket);
}

hvt_status hvt_comm_reduce_apply(hvt_comm *comm, void *buf, size_t count, hvt_dtype dtype,
                                 hvt_reduce_apply_fn *fn, void *ctx, hvt_ticket *ret_ticket)
{
    HVT_CHECK(comm, E_ARG, "no comm to sum %zu elements with", count);
    HVT_CHECK(fn, E_ARG, "no function to apply to %zu elements", count);
    HVT_CHECK(comm->ops->can & HVT_COMM_REDUCE_APPLY, E_UNSUPPORTED,
              "ranks of comm '%s' do not see each other's memory", comm->name);
    return issue(comm,
                 &(hvt__op){HVT__REDUCE_APPLY, dtype, .buf = buf, .count = count, .apply = fn, .ctx = ctx},
                 ret_ticket);
}

hvt_status hvt_comm_broadcast(hvt_comm *comm, void *buf, size_t bytes, int root)
{
    const hvt__op op = {.kind = HVT__BROADCAST, .buf = buf, .count = bytes, .type = HVT_U8, .root = root};
    hvt_ticket ticket;

    HVT_CHECK(comm, E_ARG, "broadcast: no comm");
    HVT_CHECK(root >= 0 && root < comm->world->size, E_ARG, "root %d is not one of %d ranks", root,
              comm->world->size);
    HVT_CHECK(buf || !bytes, E_ARG, "no buffer for a broadcast of %zu bytes", bytes);
    HVT_TRY(hvt__queue_add(comm, &op, &ticket));
    return hvt_comm_wait(comm, ticket);
}

hvt_status hvt_comm_overlap(hvt_comm *comm, const hvt_overlap *how)
{
    HVT_CHECK(comm, E_ARG, "no comm for a worker");
    HVT_CHECK(!how || (how->ncpus >= 0 && (how->cpus || !how->ncpus)), E_ARG,
              "%d processors for a worker, %s list of them: expected 0, or a list", how->ncpus,
              how->cpus ? "with a" : "without a");
    HVT_CHECK(comm->dev->ops->host, E_UNSUPPORTED, "no worker for comm %s on device %s", comm->name,
              comm->dev->ops->name);
    HVT_TRY(hvt_comm_wait(comm, comm->queue.issued));
    hvt__worker_stop(comm);
    return how ? hvt__worker_start(comm, how) : HVT_OK;
}
