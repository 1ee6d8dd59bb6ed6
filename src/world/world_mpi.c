/*
 * The world over MPI. It uses its own communicator, duplicated from MPI_COMM_WORLD or from the host
 * program's, and returns MPI's errors instead of aborting. It initialises MPI unless the program has, and
 * then finalises it on close.
 *
 * A comm's worker may call MPI at the same time as the main thread. Below MPI_THREAD_MULTIPLE a lock admits
 * one of them. No thread holds it while it waits for messages, because the other thread's calls may have to
 * make them progress. Collectives of the world do hold it: all ranks call them from their main threads in the
 * same order, and they need no worker. Two threads with a world each could deadlock on the lock, so that is
 * refused below MPI_THREAD_MULTIPLE. With MPI_THREAD_MULTIPLE there is no lock.
 */
#include "config.h"
#include "base_impl.h"
#include "facts.h"
#include "watch.h"
#include "world_internal.h"

#include <mpi.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

typedef struct world_mpi {
    MPI_Comm comm;
    bool started; /* this world initialised MPI */
    int key;      /* of an attribute that MPI_Finalize() deletes first */
    bool closes;
} world_mpi;

/* A channel is a communicator. A rank that leaves it sends all others a message with a tag of its own. */
typedef struct channel {
    MPI_Comm comm;
    int word[2];        /* this rank's words, the messages' content: [1] is its last */
    MPI_Request told[]; /* [size] the last word to each, in flight */
} channel;

enum { DATA, WORDS }; /* tags of a channel's messages */

static pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int wanting; /* threads waiting for the lock */
static atomic_int workers;
static atomic_bool multiple;   /* MPI_THREAD_MULTIPLE */
static atomic_bool collective; /* below it: a thread is in a call that waits for other ranks */
static bool started_here;      /* libhvt initialised MPI, and no other code calls it */

/* Called before every MPI call. Below MPI_THREAD_MULTIPLE it admits one thread at a time, since a comm's
 * worker calls MPI, too. Pass the result to leave(). */
static bool enter(void)
{
    if (atomic_load_explicit(&multiple, memory_order_relaxed))
        return false;
    if (!pthread_mutex_trylock(&mpi_lock))
        return true;
    atomic_fetch_add(&wanting, 1);
    pthread_mutex_lock(&mpi_lock);
    atomic_fetch_sub(&wanting, 1);
    return true;
}

static void leave(bool entered)
{
    if (entered)
        pthread_mutex_unlock(&mpi_lock);
}

static bool is_up(void)
{
    int up, down;

    return MPI_Initialized(&up) == MPI_SUCCESS && up && MPI_Finalized(&down) == MPI_SUCCESS && !down;
}

/* Called before an MPI call that returns only when other ranks have called, too. E_COMM: MPI is finalised,
 * or, below MPI_THREAD_MULTIPLE, another thread is in such a call, so that both might deadlock. */
static hvt_status enter_wait(bool *ret_entered)
{
    HVT_CHECK(is_up(), E_COMM, "MPI has been finalised: no rank can be reached any more");
    *ret_entered = false;
    if (atomic_load(&multiple))
        return HVT_OK;
    HVT_CHECK(!atomic_exchange(&collective, true), E_COMM,
              "two threads wait for other ranks at once, which may never end: MPI must have been initialised "
              "with MPI_THREAD_MULTIPLE");
    *ret_entered = enter();
    return HVT_OK;
}

static void leave_wait(bool entered)
{
    leave(entered);
    if (entered)
        atomic_store(&collective, false);
}

/* Lets other threads take the lock, since a mutex is not fair. */
static void step_aside(void)
{
    enum { NAP_US = 100 };

    if (hvt__awaited && !atomic_load_explicit(hvt__awaited, memory_order_relaxed))
        nanosleep(&(struct timespec){0, NAP_US * 1000}, NULL);
    do
        sched_yield();
    while (atomic_load(&wanting));
}

static hvt_status mpi_fail(int rc, const char *file, int line, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    MPI_Error_string(rc, text, &length);
    return hvt__fail(HVT_E_COMM, file, line, "%.*s: %s", (int)strcspn(call, "("), call, text);
}

#define HVT_TRY_MPI(call)                                                                                    \
    do {                                                                                                     \
        bool in_ = enter();                                                                                  \
        int rc_ = (call);                                                                                    \
                                                                                                             \
        leave(in_);                                                                                          \
        if (rc_ != MPI_SUCCESS)                                                                              \
            return mpi_fail(rc_, __FILE__, __LINE__, #call);                                                 \
    } while (0)

/* Makes an MPI call that waits for every rank of w, or for `peer`, and tells the watchdog about the wait. */
#define HVT_TRY_MPI_WAIT(w, peer, what, call)                                                                \
    do {                                                                                                     \
        bool in_;                                                                                            \
        int wait_, done_;                                                                                    \
                                                                                                             \
        HVT_TRY(enter_wait(&in_));                                                                           \
        wait_ = hvt__wait_begin(w, peer, what);                                                              \
        done_ = (call);                                                                                      \
        hvt__wait_end(wait_);                                                                                \
        leave_wait(in_);                                                                                     \
        if (done_ != MPI_SUCCESS)                                                                            \
            return mpi_fail(done_, __FILE__, __LINE__, #call);                                               \
    } while (0)

static hvt_status world_another_thread_mpi(hvt_world *w, bool comes)
{
    int level;

    if (!comes) {
        atomic_fetch_sub(&workers, 1);
        return HVT_OK;
    }
    HVT_TRY_MPI(MPI_Query_thread(&level));
    HVT_CHECK(level == MPI_THREAD_MULTIPLE || (started_here && level == MPI_THREAD_SERIALIZED), E_UNSUPPORTED,
              "%s, so a comm's worker cannot call it",
              started_here ? "this MPI does not offer MPI_THREAD_SERIALIZED"
                           : "MPI was not initialised with MPI_THREAD_MULTIPLE");
    atomic_fetch_add(&workers, 1);
    return HVT_OK;
}

static MPI_Comm world_comm(const hvt_world *w)
{
    return ((world_mpi *)w->state)->comm;
}

/*
 * MPI_Init(). Open MPI spends most of it probing networks (0.25 s). If all ranks are on one node and the user
 * chose no transport, it would pick ob1 over shared memory, so request that (0.045 s). The variable is set
 * only during the call, so that child processes do not inherit it.
 */
static int initialise(const hvt_launch *l, int *provided)
{
    bool hint = false;
    int rc;

#ifdef OPEN_MPI
    char own[4096];
    const char *const files[] = {own, HVT_MPI_SYSCONFDIR "/openmpi-mca-params.conf", NULL};
    const char *home = getenv("HOME");

    snprintf(own, sizeof own, "%s/.openmpi/mca-params.conf", home ? home : "");
    hint = l->one_node && !hvt__transport_chosen(getenv, files);
    if (hint)
        setenv("OMPI_MCA_pml", "ob1", 1);
#endif
    rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, provided);
    if (hint)
        unsetenv("OMPI_MCA_pml");
    return rc;
}

#ifdef OPEN_MPI
/* Warns if shared memory is too small: MPI_Init() would print a page without a remedy and end the process. */
static void warn_of_shm(void)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK"), *size = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    char host[64] = "?";
    double due, room = hvt__shm_room(&due);

    if (!local || strcmp(local, "0") != 0 || !size || atoi(size) < 2 || room < 0 || room >= HVT__SHM_PER_RANK)
        return;
    gethostname(host, sizeof host - 1);
    HVT_WARN("%s: /dev/shm has %.1f MiB free, and Open MPI takes %d MiB there for each rank, or ends: free "
             "some, make it larger (docker run --shm-size 1g), or use mpirun --mca "
             "btl_vader_backing_directory /tmp",
             host, room / (1 << 20), HVT__SHM_PER_RANK >> 20);
}
#endif

static hvt_status start(bool *started)
{
    hvt_launch l = hvt__launch(getenv); /* before MPI_Init(), which sets some of these variables itself */
    int up, down, provided, size;

    HVT_TRY_MPI(MPI_Finalized(&down));
    HVT_CHECK(!down, E_COMM, "MPI was finalised already: a process can join a world only once");
    HVT_TRY_MPI(MPI_Initialized(&up));
    if (!up) {
#ifdef OPEN_MPI
        /* Open MPI would print two pages and exit inside MPI_Init. */
        if (l.unwired)
            HVT_TRY(hvt__launch_check(&l, 1));
        /* Built without PMI-2 and started with it, it would also print them and _exit(), so warn first. */
        if (l.by_srun && !getenv("PMIX_RANK") && getenv("PMI_RANK") && !strcmp(getenv("PMI_RANK"), "0"))
            HVT_WARN("srun offers PMI, not PMIx; if MPI cannot use it, start with `srun --mpi=pmix ...`");
        warn_of_shm();
#endif
        HVT_TRY(hvt__launch_mark(getenv));
        HVT_TRY_MPI(initialise(&l, &provided));
        hvt__startup_connected();
        *started = started_here = true;
    }
    HVT_TRY_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    return up ? HVT_OK : hvt__launch_check(&l, size);
}

/* Check a host program's communicator: on an invalid one MPI would end the process. */
static hvt_status check_lent(MPI_Comm comm)
{
    int up, down, inter;

    HVT_TRY_MPI(MPI_Initialized(&up));
    HVT_CHECK(up, E_COMM, "a communicator cannot be wrapped before MPI_Init()");
    HVT_TRY_MPI(MPI_Finalized(&down));
    HVT_CHECK(!down, E_COMM, "a communicator cannot be wrapped after MPI_Finalize()");
    HVT_CHECK(comm != MPI_COMM_NULL, E_ARG, "the communicator to wrap is MPI_COMM_NULL");
    HVT_TRY_MPI(MPI_Comm_test_inter(comm, &inter));
    HVT_CHECK(!inter, E_ARG, "the communicator to wrap is an intercommunicator; expected one group of ranks");
    return HVT_OK;
}

static hvt_status world_allgather_mpi(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    HVT_CHECK(bytes <= INT_MAX, E_ARG, "a gather of %zu bytes a rank; at most %d", bytes, INT_MAX);
    HVT_TRY_MPI_WAIT(w, HVT__ANYONE, "take part in a gather",
                     MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, world_comm(w)));
    return HVT_OK;
}

static hvt_status world_gather_mpi(hvt_world *w, const void *mine, size_t bytes, void *all, int root)
{
    HVT_CHECK(bytes <= INT_MAX, E_ARG, "a gather of %zu bytes a rank; at most %d", bytes, INT_MAX);
    HVT_TRY_MPI_WAIT(w, w->rank == root ? HVT__ANYONE : root, "take part in a gather",
                     MPI_Gather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, root, world_comm(w)));
    return HVT_OK;
}

/* Agrees on whether every rank has memory for its world; if not, no rank continues. Also queries the thread
 * level. */
static hvt_status all_have(MPI_Comm comm, bool mine)
{
    int all = mine, size, level;

    HVT_TRY_MPI(MPI_Comm_size(comm, &size));
    HVT_TRY_MPI(MPI_Query_thread(&level));
    atomic_store(&multiple, level == MPI_THREAD_MULTIPLE);
    HVT_TRY_MPI_WAIT(NULL, HVT__ANYONE, "open a world",
                     MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm));
    if (all)
        return HVT_OK;
    HVT_FAIL(E_MEM, "%s has no memory for a world of %d ranks", mine ? "another rank" : "this rank", size);
    hvt__error_agreed(true); /* all ranks fail here: print one line */
    return HVT_E_MEM;
}

/* Find out which ranks share a node, the host names, and the ranks' numbers in the job. `of`: the world that
 * was split; NULL: none. */
static hvt_status look_around(hvt_world *w, const hvt_world *of)
{
    struct place {
        int leader; /* lowest rank on the node */
        int job_rank;
        char host[sizeof *w->host];
    } mine = {0}, *all = NULL;
    world_mpi *st = w->state;
    MPI_Comm comm = st->comm, node;
    bool ready;
    hvt_status s;

    HVT_TRY_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    HVT_TRY_MPI(MPI_Comm_rank(comm, &w->rank));
    HVT_TRY_MPI(MPI_Comm_size(comm, &w->size));
    HVT_TRY_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &node));
    HVT_TRY_MPI(MPI_Comm_rank(node, &w->local_rank));
    HVT_TRY_MPI(MPI_Comm_size(node, &w->local_size));
    mine.leader = w->rank;
    HVT_TRY_MPI(MPI_Bcast(&mine.leader, 1, MPI_INT, 0, node));
    HVT_TRY_MPI(MPI_Comm_free(&node));
    mine.job_rank = of ? hvt__job_rank(of, of->rank) : w->rank;
    gethostname(mine.host, sizeof mine.host - 1);

    all = calloc((size_t)w->size, sizeof *all);
    w->node_of = calloc((size_t)w->size, sizeof *w->node_of);
    w->host = calloc((size_t)w->size, sizeof *w->host);
    w->job_rank = calloc((size_t)w->size, sizeof *w->job_rank);
    w->scratch = malloc((size_t)w->size * HVT__SCRATCH);
    ready = all && w->node_of && w->host && w->job_rank && w->scratch &&
            hvt__flight_reserve(&w->flight, 2 * w->size) == HVT_OK;
    HVT_TRY_OR(done, all_have(comm, ready));
    HVT_TRY_OR(done, world_allgather_mpi(w, &mine, sizeof mine, all));
    for (int r = 0; r < w->size; r++) {
        memcpy(w->host[r], all[r].host, sizeof *w->host);
        w->job_rank[r] = all[r].job_rank;
        w->node_of[r] = all[r].leader == r ? w->nodes++ : w->node_of[all[r].leader];
    }
    s = HVT_OK;
done:
    free(all);
    return s;
}

/* MPI_Finalize() waits for the other ranks, which must not wait for this one. */
static int on_finalize(MPI_Comm self, int key, void *world, void *extra)
{
    hvt_world *w = world;
    const world_mpi *st = w->state;

    (void)self, (void)key, (void)extra;
    if (st->closes || !w->comms)
        return MPI_SUCCESS;
    if (!w->parent)
        HVT_WARN("rank %d (%s) finalises MPI without having closed its nets and comms: close them first",
                 hvt__job_rank(w, w->rank), w->host[w->rank]);
    w->ends(w);
    return MPI_SUCCESS;
}

static hvt_status await_finalize(hvt_world *w)
{
    world_mpi *st = w->state;

    HVT_TRY_MPI(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &st->key, NULL));
    HVT_TRY_MPI(MPI_Comm_set_attr(MPI_COMM_SELF, st->key, w));
    return HVT_OK;
}

static hvt_status world_open_mpi(hvt_world *w, const void *mpi_comm)
{
    world_mpi *st = calloc(1, sizeof *st);
    bool started = false;
    MPI_Comm from;
    hvt_status s = HVT_OK;

    from = mpi_comm ? *(const MPI_Comm *)mpi_comm : MPI_COMM_WORLD;
    HVT_TRY_OR(fail, mpi_comm ? check_lent(from) : start(&started));
    HVT_TRY_OR(fail, all_have(from, w && st));
    *st = (world_mpi){.comm = MPI_COMM_NULL, .started = started, .key = MPI_KEYVAL_INVALID};
    w->state = st;
    HVT_TRY_MPI(MPI_Comm_dup(from, &st->comm));
    HVT_TRY(look_around(w, NULL));
    return await_finalize(w);
fail:
    free(st);
    if (started)
        MPI_Finalize();
    return s;
}

static hvt_status world_split_mpi(hvt_world *w, int color, int key, hvt_world *fresh)
{
    world_mpi *st = calloc(1, sizeof *st);
    hvt_status s;

    HVT_TRY_OR(fail, all_have(world_comm(w), st));
    st->comm = MPI_COMM_NULL;
    st->key = MPI_KEYVAL_INVALID;
    fresh->state = st;
    HVT_TRY_MPI_WAIT(w, HVT__ANYONE, "take part in a split",
                     MPI_Comm_split(world_comm(w), color < 0 ? MPI_UNDEFINED : color, key, &st->comm));
    if (st->comm == MPI_COMM_NULL)
        return HVT_OK;
    HVT_TRY(look_around(fresh, w));
    return await_finalize(fresh);
fail:
    free(st);
    return s;
}

static void world_close_mpi(hvt_world *w)
{
    world_mpi *st = w->state;
    bool entered;
    int wait;

    if (!st)
        return;
    if (is_up()) {
        wait = hvt__wait_begin(w, HVT__ANYONE, "leave MPI");
        entered = enter();
        if (st->comm != MPI_COMM_NULL)
            MPI_Comm_free(&st->comm);
        st->closes = true;
        if (st->key != MPI_KEYVAL_INVALID) {
            MPI_Comm_delete_attr(MPI_COMM_SELF, st->key);
            MPI_Comm_free_keyval(&st->key);
        }
        leave(entered);
        if (st->started)
            MPI_Finalize();
        hvt__wait_end(wait);
    } else {
        HVT_WARN("a world is closed after MPI_Finalize(): close it earlier, or its communicator leaks");
    }
    free(st);
}

static hvt_status world_broadcast_mpi(hvt_world *w, void *state, void *data, size_t bytes, int root)
{
    MPI_Comm comm = state ? ((channel *)state)->comm : world_comm(w);

    for (size_t at = 0, part; at < bytes; at += part) {
        part = bytes - at < INT_MAX ? bytes - at : INT_MAX;
        HVT_TRY_MPI_WAIT(w, root, "broadcast", MPI_Bcast((char *)data + at, (int)part, MPI_BYTE, root, comm));
    }
    return HVT_OK;
}

static hvt_status world_barrier_mpi(hvt_world *w)
{
    HVT_TRY_MPI_WAIT(w, HVT__ANYONE, "take part in a barrier", MPI_Barrier(world_comm(w)));
    return HVT_OK;
}

static hvt_status open_channel_mpi(hvt_world *w, void **ret_channel)
{
    channel *ch = malloc(sizeof *ch + (size_t)w->size * sizeof *ch->told);
    hvt_status s;

    HVT_TRY_OR(fail, hvt_world_agree(w, ch ? HVT_OK
                                           : HVT_FAIL(E_MEM, "no memory for messages of %d ranks", w->size)));
    *ch = (channel){.comm = MPI_COMM_NULL};
    for (int r = 0; r < w->size; r++)
        ch->told[r] = MPI_REQUEST_NULL;
    *ret_channel = ch;
    HVT_TRY_MPI_WAIT(w, HVT__ANYONE, "open a comm", MPI_Comm_dup(world_comm(w), &ch->comm));
    HVT_TRY_MPI(MPI_Comm_set_errhandler(ch->comm, MPI_ERRORS_RETURN));
    return HVT_OK;
fail:
    free(ch);
    return s;
}

/* Free the communicator only after all others have left: a late message might reach another communicator with
 * the same number. Otherwise it stays open. */
static void close_channel_mpi(hvt_world *w, void *state, bool quiet)
{
    channel *ch = state;
    bool entered;

    if (is_up() && ch->comm != MPI_COMM_NULL) {
        entered = enter();
        for (int r = 0; r < w->size; r++)
            if (ch->told[r] != MPI_REQUEST_NULL)
                MPI_Request_free(&ch->told[r]);
        if (quiet)
            MPI_Comm_free(&ch->comm);
        leave(entered);
    }
    free(ch);
}

/* True if every earlier word has been sent. */
static bool is_told(const hvt_world *w, channel *ch)
{
    int told;

    return MPI_Testall(w->size, ch->told, &told, MPI_STATUSES_IGNORE) == MPI_SUCCESS && told;
}

/* Sends a word to all others. A word below 0 is dropped while an earlier one is in flight. */
static void tell_mpi(hvt_world *w, void *state, int word)
{
    channel *ch = state;
    const bool last = word > 0;
    bool entered;

    if (ch->comm == MPI_COMM_NULL || !is_up())
        return;
    entered = enter();
    if (is_told(w, ch) || last) {
        ch->word[last] = word;
        for (int r = 0; r < w->size; r++) {
            if (ch->told[r] != MPI_REQUEST_NULL)
                MPI_Request_free(&ch->told[r]);
            if (r != w->rank)
                MPI_Isend(&ch->word[last], 1, MPI_INT, r, WORDS, ch->comm, &ch->told[r]);
        }
    }
    leave(entered);
}

static hvt_status hear_mpi(hvt_world *w, void *state, int *word)
{
    channel *ch = state;
    MPI_Status from;
    int there = 1, heard;

    while (ch->comm != MPI_COMM_NULL) {
        HVT_TRY_MPI(MPI_Iprobe(MPI_ANY_SOURCE, WORDS, ch->comm, &there, &from));
        if (!there)
            break;
        HVT_TRY_MPI(MPI_Recv(&heard, 1, MPI_INT, from.MPI_SOURCE, WORDS, ch->comm, MPI_STATUS_IGNORE));
        word[from.MPI_SOURCE] = heard;
    }
    return HVT_OK;
}

static hvt_status post_mpi(hvt__flight *f, bool send, void *at, size_t count, int peer)
{
    MPI_Request *r = (MPI_Request *)f->request + f->n;
    MPI_Datatype type = f->element == 4 ? MPI_FLOAT : f->element == 2 ? MPI_UINT16_T : MPI_BYTE;
    MPI_Comm comm = f->channel ? ((channel *)f->channel)->comm : world_comm(f->world);
    int tag = f->channel ? DATA + 2 * f->tag : f->tag % 32768; /* MPI guarantees tags up to 32767 */

    if (send)
        HVT_TRY_MPI(MPI_Isend(at, (int)count, type, peer, tag, comm, r));
    else
        HVT_TRY_MPI(MPI_Irecv(at, (int)count, type, peer, tag, comm, r));
    return HVT_OK;
}

static hvt_status test_mpi(hvt__flight *f, bool again, bool *ret_done)
{
    int done;

    if (again && atomic_load(&workers))
        step_aside();
    HVT_TRY_MPI(MPI_Testall(f->n, f->request, &done, MPI_STATUSES_IGNORE));
    *ret_done = done;
    return HVT_OK;
}

static hvt_status test_one_mpi(hvt__flight *f, int i, bool *ret_done)
{
    int done;

    HVT_TRY_MPI(MPI_Request_get_status(((MPI_Request *)f->request)[i], &done, MPI_STATUS_IGNORE));
    *ret_done = done;
    return HVT_OK;
}

static void drop_mpi(hvt__flight *f)
{
    bool entered = enter();
    MPI_Request *request = f->request;
    int done;

    for (int i = 0; i < f->n; i++) {
        if (request[i] == MPI_REQUEST_NULL)
            continue;
        MPI_Cancel(&request[i]);
        MPI_Test(&request[i], &done, MPI_STATUS_IGNORE);
        if (!done)
            MPI_Request_free(&request[i]);
    }
    leave(entered);
}

static void world_abort_mpi(hvt_world *w, int exit_code)
{
    struct timespec soon;

    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec++;
    pthread_mutex_timedlock(
        &mpi_lock,
        &soon); /* a worker releases the lock within this time; a thread that waits in MPI does not */
    if (is_up())
        MPI_Abort(world_comm(w), exit_code);
    _exit(exit_code);
}

static void world_describe_mpi(hvt__mpi_facts *ret_facts)
{
    static const struct {
        int level;
        const char *name;
    } levels[] = {{MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE"},
                  {MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED"},
                  {MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED"},
                  {MPI_THREAD_MULTIPLE, "MPI_THREAD_MULTIPLE"}};
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int level, length;

    if (MPI_Get_library_version(text, &length) == MPI_SUCCESS)
        snprintf(ret_facts->library, HVT__FACT_TEXT, "%.*s", (int)strcspn(text, ",\n"), text);
    for (char *p = ret_facts->library; *p; p++) /* MPICH's has tabs */
        *p = *p == '\t' ? ' ' : *p;
    if (!is_up() || MPI_Query_thread(&level) != MPI_SUCCESS)
        return;
    for (size_t i = 0; i < HVT_LEN(levels); i++)
        if (levels[i].level == level)
            ret_facts->threads = levels[i].name;
    ret_facts->worker = level == MPI_THREAD_SERIALIZED || level == MPI_THREAD_MULTIPLE;
}

const hvt_world_ops hvt_world_mpi = {
    .name = "mpi",
    .open = world_open_mpi,
    .close = world_close_mpi,
    .allgather = world_allgather_mpi,
    .broadcast = world_broadcast_mpi,
    .gather = world_gather_mpi,
    .barrier = world_barrier_mpi,
    .abort = world_abort_mpi,
    .split = world_split_mpi,
    .comm = "mpi",
    .request = sizeof(MPI_Request),
    .is_up = is_up,
    .open_channel = open_channel_mpi,
    .close_channel = close_channel_mpi,
    .tell = tell_mpi,
    .hear = hear_mpi,
    .post = post_mpi,
    .test = test_mpi,
    .test_one = test_one_mpi,
    .drop = drop_mpi,
    .another_thread = world_another_thread_mpi,
    .describe = world_describe_mpi,
};
