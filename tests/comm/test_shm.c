/*
 * The comm of one node: what only ranks with shared memory can do, and what happens when one of them ends or
 * shared memory is not available. Alone, over forked processes too, and on 2 to 4 ranks.
 */
#define _GNU_SOURCE
#include "comm/shm.h"
#include "logged.h"
#include "sums.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>

TEST(shm_sums_equal_the_plain_tree)
{
    sums_equal_the_plain_tree("shm");
}

TEST(shm_broadcasts_reach_everyone)
{
    broadcasts_reach_everyone("shm");
}

TEST(shm_runs_a_thousand_rounds)
{
    a_thousand_rounds("shm");
}

TEST(a_buffer_may_be_shared_on_one_rank_and_plain_on_another)
{
    enum { COUNT = 300007 };
    hvt_comm *c = NULL;
    hvt_ticket ticket;
    void *mine = NULL, *plain = aligned_alloc(64, 4 * COUNT / 64 * 64 + 64), *buf;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 4 * COUNT, &mine));
    buf = rank % 2 ? plain : mine;
    for (int root = 0; root < size; root++) {
        fill_mine(buf, COUNT, 5, HVT_F32);
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &ticket));
        CHECK_OK(hvt_comm_wait(c, ticket));
        CHECK(equals_plain_sum(c, buf, COUNT, 0, COUNT, 5, HVT_F32), "root %d", root);
        memset(buf, rank == root ? root + 1 : 99, 4 * COUNT);
        CHECK_OK(hvt_comm_broadcast(c, buf, 4 * COUNT, root));
        CHECK(((char *)buf)[0] == root + 1 && ((char *)buf)[4 * COUNT - 1] == root + 1, "root %d", root);
    }
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    free(plain);
}

TEST(a_shared_buffer_may_go_on_from_a_staged_sum)
{
    enum { COUNT = 5000, ROUNDS = 300 };
    hvt_comm *c = NULL;
    hvt_ticket first, second;
    float *mine = NULL, *plain = aligned_alloc(64, 4 * COUNT / 64 * 64 + 64);
    int odd = size / 2, even = size - odd;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 4 * COUNT, (void **)&mine));
    for (int round = 0; round < ROUNDS && !check_now; round++) {
        float sum = (float)(size * (size - 1) / 2 + size * round);
        float last = (float)even * sum + (float)odd * 1000;

        for (int i = 0; i < COUNT; i++) {
            mine[i] = rank % 2 ? 1000 : (float)(rank + round);
            plain[i] = (float)(rank + round);
        }
        if (hvt__draw(1, (uint64_t)round, (uint64_t)rank, 0) % 4 == 0)
            usleep(200);
        CHECK_OK(hvt_comm_allreduce(c, rank % 2 ? plain : mine, COUNT, HVT_F32, &first));
        CHECK_OK(hvt_comm_allreduce(c, mine, COUNT, HVT_F32, &second));
        CHECK_OK(hvt_comm_wait(c, second));
        for (int i = 0; i < COUNT && !check_now; i++)
            CHECK(mine[i] == last && (rank % 2 == 0 || plain[i] == sum), "round %d, element %d: %g and %g",
                  round, i, (double)mine[i], (double)plain[i]);
    }
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    free(plain);
}

TEST(shm_operations_keep_their_order)
{
    operations_keep_their_order("shm");
}

TEST(issuing_waits_for_nobody)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 4000 * sizeof *buf, (void **)&buf));
    if (rank == size - 1) /* issues nothing until all others have: if they waited for it, none would go on */
        CHECK_OK(hvt_world_barrier(world));
    for (int i = 0; i < 1000; i++)
        CHECK_OK(hvt_comm_allreduce(c, buf + 4 * i, 4, HVT_F32, &t));
    if (rank < size - 1)
        CHECK_OK(hvt_world_barrier(world));
    CHECK_OK(hvt_comm_wait(c, t));
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(different_operations_are_told_apart_on_every_rank)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float x[32] = {0};

    if (size == 1)
        SKIP("it takes two ranks");
    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_allreduce(c, x, rank == 1 ? 31 : 32, HVT_F32, &t));
    CHECK_FAILS(hvt_comm_wait(c, t), E_MISMATCH, "allreduce of 32 f32");
    CHECK(strstr(hvt_last_error(), "rank 1 (") && hvt_last_error_is_agreed(), "%s", hvt_last_error());
    CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "E_MISMATCH");
    hvt_comm_close(&c);
}

/* ---- when shared memory cannot be had ------------------------------------------------------- */

static int creations; /* that still work */
static int (*real_create)(size_t bytes);
static int (*real_attach)(int pid, int fd);

static int create_some(size_t bytes)
{
    if (creations-- > 0)
        return real_create(bytes);
    errno = ENOSPC;
    return -1;
}

static int attach_never(int pid, int fd)
{
    (void)pid, (void)fd;
    errno = EACCES;
    return -1;
}

TEST(without_shared_memory_auto_takes_mpi_and_says_why)
{
    hvt_comm *c = NULL;
    void *p = NULL;

    if (size == 1 || ranks_are_threads())
        SKIP("it takes two ranks with functions of their own");
    real_create = hvt__shm_create;
    real_attach = hvt__shm_attach;
    log_keep(HVT_LOG_WARN);

    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "shm") && !*logged, "%s: %s", hvt_comm_name(c), logged);
    hvt_comm_close(&c);

    hvt__shm_create = create_some;
    creations = 0;
    CHECK_FAILS(hvt_comm_open("shm", world, dev, &c), E_MEM, "memfd");
    CHECK(hvt_last_error_is_agreed() && !c, "%s", hvt_last_error());
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), over_messages()), "%s", hvt_comm_name(c));
    CHECK(!!*logged == (rank == 0) && (rank || strstr(logged, "No space left")), "said: %s", logged);
    hvt_comm_close(&c);

    creations = 1; /* the control segment, but no arena */
    log_forget();
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "shm"), "%s", hvt_comm_name(c));
    CHECK_OK(hvt_comm_alloc(c, 1000, &p));
    CHECK(!strcmp(hvt_comm_name(c), over_messages()) && p, "%s", hvt_comm_name(c));
    CHECK(!!*logged == (rank == 0), "said: %s", logged);
    every_sum(c, p, "after falling back", &(size_t){200}, 1);
    hvt_comm_release(c, p);
    hvt_comm_close(&c);

    creations = 1;
    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    p = NULL;
    CHECK_FAILS(hvt_comm_alloc(c, 1000, &p), E_MEM, "memfd");
    CHECK(!p, "something was given");
    creations = 1;
    CHECK_OK(hvt_comm_alloc(c, 1000, &p)); /* and it can go on */
    every_sum(c, p, "after a failed alloc", &(size_t){200}, 1);
    CHECK_FAILS(hvt_comm_alloc(c, (size_t)1 << 50, &p), E_MEM, "available");
    hvt_comm_release(c, p);
    creations = 1;
    CHECK_FAILS(hvt_comm_alloc(c, (size_t)(1000 + rank), &p), E_MISMATCH, "rank 1");
    hvt_comm_close(&c);
    hvt__shm_create = real_create;

    if (rank == size - 1) /* one rank alone fails */
        hvt__shm_attach = attach_never;
    CHECK_FAILS(hvt_comm_open("shm", world, dev, &c), E_UNSUPPORTED, "Permission denied");
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), over_messages()), "%s", hvt_comm_name(c));
    hvt_comm_close(&c);
    hvt__shm_attach = real_attach;
    log_release();
}

/* ---- what becomes of processes: only alone, where children may be made freely ---------------- */

/* A world of forked processes over one page of shared memory: ranks that can be killed. */
typedef struct village {
    pthread_barrier_t gate;
    char board[16][1 << 12];
} village;

static hvt_status village_gather(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    village *v = w->state;

    memcpy(v->board[w->rank], mine, bytes);
    pthread_barrier_wait(&v->gate);
    for (int r = 0; r < w->size; r++)
        memcpy((char *)all + (size_t)r * bytes, v->board[r], bytes);
    pthread_barrier_wait(&v->gate);
    return HVT_OK;
}

static hvt_status village_broadcast(hvt_world *w, void *channel, void *data, size_t bytes, int root)
{
    village *v = w->state;

    if (w->rank == root)
        memcpy(v->board[root], data, bytes);
    pthread_barrier_wait(&v->gate);
    memcpy(data, v->board[root], bytes);
    pthread_barrier_wait(&v->gate);
    return HVT_OK;
}

static const hvt_world_ops village_ops = {
    .name = "village", .allgather = village_gather, .broadcast = village_broadcast};

/* Run `live` on n forked ranks; the wait statuses come back. */
static void settle_village(int n, void (*live)(void), int ret_status[])
{
    hvt_world *alone = world;
    village *v = mmap(NULL, sizeof *v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attr;
    pid_t child[16];

    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&v->gate, &attr, (unsigned)n);
    for (int r = 0; r < n; r++) {
        fflush(NULL);
        child[r] = fork();
        if (child[r])
            continue;
        hvt_world w = {.ops = &village_ops,
                       .rank = r,
                       .size = n,
                       .local_rank = r,
                       .local_size = n,
                       .nodes = 1,
                       .state = v,
                       .node_of = calloc((size_t)n, sizeof(int)),
                       .host = calloc((size_t)n, sizeof *w.host),
                       .scratch = calloc((size_t)n, HVT__SCRATCH)};

        for (int q = 0; q < n; q++)
            strcpy(w.host[q], "village");
        world = &w;
        rank = r;
        size = n;
        check_now = 0;
        live();
        fflush(NULL);
        _exit(check_now ? 1 : 0);
    }
    for (int r = 0; r < n; r++)
        waitpid(child[r], &ret_status[r], 0);
    world = alone;
    munmap(v, sizeof *v);
}

static void every_shm_sum(void)
{
    const size_t counts[] = {1, 100, 5000, 100003};
    hvt_comm *c = NULL;
    void *mine = NULL;

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 500000, &mine));
    every_sum(c, mine, "own memory", counts, HVT_LEN(counts));
    hvt_comm_release(c, mine);
    hvt_comm_close(&c);
    operations_keep_their_order("shm");
}

TEST(shm_works_for_any_number_of_processes)
{
    for (int n = 2; n <= 8; n++) {
        int status[16];

        settle_village(n, every_shm_sum, status);
        for (int r = 0; r < n; r++)
            CHECK(status[r] == 0, "rank %d of %d ended with %x", r, n, (unsigned)status[r]);
    }
}

static void give_up_on_rank_one(void)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float x[32] = {0};

    CHECK_OK(open_comm("shm", &c));
    CHECK_OK(hvt_comm_allreduce(c, x, 32, HVT_F32, &t));
    if (rank == 1)
        hvt_comm_close(&c); /* its operation never runs, though the process lives on */
    else
        CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "rank 1 (village) has left");
    hvt_comm_close(&c);
    if (rank == 1)
        usleep(500000);
}

TEST(a_rank_that_leaves_early_is_named)
{
    int status[16];

    for (workers = NO_RANK; workers <= EVEN_RANKS; workers++) { /* rank 1 has none: it would do its part */
        settle_village(3, give_up_on_rank_one, status);
        for (int r = 0; r < 3; r++)
            CHECK(status[r] == 0, "rank %d: %x, workers %d", r, (unsigned)status[r], (int)workers);
    }
    workers = NO_RANK;
}

static void lose_rank_two(void)
{
    enum { COUNT = 100000 };
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;

    CHECK_OK(open_comm("shm", &c));
    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *buf, (void **)&buf));
    for (int i = 0; i < 5; i++) {
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
        CHECK_OK(hvt_comm_wait(c, t));
    }
    if (rank != 2 || workers == NO_RANK) /* issued, but its part is never done: a worker would do it */
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
    if (rank == 2)
        raise(SIGKILL);
    CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "rank 2 (village) has ended");
    CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "earlier operation");
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(a_killed_rank_is_named_and_leaves_nothing)
{
    int status[16];
    char line[512];
    FILE *maps;

    for (workers = NO_RANK; workers <= EVERY_RANK; workers++) {
        settle_village(4, lose_rank_two, status);
        for (int r = 0; r < 4; r++)
            CHECK(r == 2 ? WIFSIGNALED(status[r]) : status[r] == 0, "rank %d: %x, workers %d", r,
                  (unsigned)status[r], (int)workers);
    }
    workers = NO_RANK;
    maps = popen("ls /dev/shm | grep hvt", "r");
    CHECK(!fgets(line, sizeof line, maps), "left behind: %s", line);
    pclose(maps);
}

static int create_in_a_small_folder(size_t bytes)
{
    int fd = open("/mnt", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void ask_for_too_much(void)
{
    hvt__segment s = {0};

    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) {
        puts("no mounts here: not tested");
        return;
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/mnt", "tmpfs", 0, "size=1m")) {
        puts("no tmpfs here: not tested");
        return;
    }
    hvt__shm_create = create_in_a_small_folder;
    CHECK_OK(hvt__segment_open(world, 1 << 18, &s));
    hvt__segment_close(&s);
    CHECK_FAILS(hvt__segment_open(world, 8 << 20, &s), E_MEM, "No space left on device");
    CHECK(!s.base, "a segment without memory is open");
}

TEST(a_file_without_room_is_an_error_and_no_signal)
{
    int status[16];

    settle_village(1, ask_for_too_much, status);
    CHECK(status[0] == 0, "ended with %x", (unsigned)status[0]);
}

/* Do those who ask get huge pages, and are some free? */
static bool has_huge_pages(void)
{
    char line[512] = "", *at, *last = NULL;
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    long of_4_mib = 0;

    if (!f || !fgets(line, sizeof line, f) || strstr(line, "[never]") || strstr(line, "[deny]")) {
        if (f)
            fclose(f);
        return false;
    }
    fclose(f);
    f = fopen("/proc/buddyinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        for (at = strtok(line, " \n"); at; at = strtok(NULL, " \n"))
            last = at;
        of_4_mib += last ? atol(last) : 0;
    }
    if (f)
        fclose(f);
    return of_4_mib > 64;
}

static long huge_kib(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[512];
    long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "ShmemPmdMapped: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

static void take_huge_pages(void)
{
    hvt__segment s = {0};

    CHECK_OK(hvt__segment_open(world, 16 << 20, &s));
    CHECK(huge_kib() >= 8 << 10, "%ld KiB of 16 MiB are in huge pages", huge_kib());
    hvt__segment_close(&s);
}

TEST(segments_are_of_huge_pages_where_the_machine_gives_them)
{
    int status[16];

    settle_village(2, take_huge_pages, status);
    for (int r = 0; r < 2; r++)
        CHECK(status[r] == 0, "rank %d ended with %x", r, (unsigned)status[r]);
}

static int open_files(void)
{
    int files = 0;

    for (int fd = 0; fd < 256; fd++)
        files += fcntl(fd, F_GETFD) >= 0;
    return files;
}

static void open_and_close(void)
{
    hvt_comm *c = NULL;
    void *p = NULL;
    char line[512];
    FILE *maps;
    int before = open_files();

    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    CHECK_OK(hvt_comm_alloc(c, 5000, &p));
    hvt_comm_release(c, p);
    hvt_comm_close(&c);
    maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        CHECK(!strstr(line, "memfd:hvt"), "still mapped: %s", line);
    fclose(maps);
    CHECK(open_files() == before, "%d files open, not %d", open_files(), before);
}

TEST(close_leaves_no_memory_and_no_file)
{
    int status[16];

    settle_village(3, open_and_close, status);
    for (int r = 0; r < 3; r++)
        CHECK(status[r] == 0, "rank %d: %x", r, (unsigned)status[r]);
}

int main(void)
{
    if (!ranks_open())
        return 1;
    RUN(shm_sums_equal_the_plain_tree);
    RUN(shm_broadcasts_reach_everyone);
    RUN(shm_runs_a_thousand_rounds);
    RUN(shm_operations_keep_their_order);
    RUN(a_buffer_may_be_shared_on_one_rank_and_plain_on_another);
    RUN(a_shared_buffer_may_go_on_from_a_staged_sum);
    RUN(issuing_waits_for_nobody);
    RUN(different_operations_are_told_apart_on_every_rank);
    RUN(without_shared_memory_auto_takes_mpi_and_says_why);
    if (ranks_are_alone()) {
        RUN(shm_works_for_any_number_of_processes);
        RUN(a_rank_that_leaves_early_is_named);
        RUN(a_killed_rank_is_named_and_leaves_nothing);
        RUN(a_file_without_room_is_an_error_and_no_signal);
        if (has_huge_pages())
            RUN(segments_are_of_huge_pages_where_the_machine_gives_them);
        else
            check_skip("segments_are_of_huge_pages_where_the_machine_gives_them",
                       "none for shared memory here");
        RUN(close_leaves_no_memory_and_no_file);
    }
    return ranks_done();
}
