/*
 * The sharded update: the same bits as the replicated one on every comm, with every wire, and state in slices
 * on the ranks, which checkpoints do not show. Replicas are compared.
 *
 * Runs alone and under mpirun.
 */
#include "comm_impl.h"
#include "folder.h"
#include "heap.h"
#include "nodes.h"
#include "optim/dist.h"
#include "rig.h"
#include "hvt/train.h"

#include <stdio.h>
#include <unistd.h>

/* A comm, and the nodes that its ranks seem to lie on; none: the one they are on. */
typedef struct way {
    const char *comm;
    int nodes[8];
} way;

static const hvt_optim_opts adamw = {.kind = HVT_OPTIM_ADAMW, HVT_ADAM_DEFAULTS, .weight_decay = .01f};

static const way ways[] = {{"self", {0}},          {"shm", {0}},     {"mpi", {0}},
                           {"hier", {2, 1}},       {"hier", {2, 2}}, {"hier", {2, 2, 1}},
                           {"hier", {2, 2, 2, 2}}, {"hier", {4, 4}}, {"hier", {4, 1}}};

#define SHARDS (2 * hvt_world_size(whole)) /* so that one rank alone must arrive at the same bits */

static hvt_world *whole;
static hvt_world laid;

/* Lay the job's ranks on a way's nodes. false: not with so many ranks. */
static bool enter(const way *w)
{
    int ranks = 0;

    for (int k = 0; k < 8; k++)
        ranks += w->nodes[k];
    job = whole;
    if (ranks && ranks != hvt_world_size(whole))
        return false;
    if (ranks) {
        laid = on_nodes(whole, w->nodes);
        job = &laid;
    }
    if (can_open(w->comm))
        return true;
    job = whole;
    return false;
}

static void leave(void)
{
    if (job == &laid)
        free(laid.node_of);
    job = whole;
}

/* The next way that these ranks can take, entered; NULL: no more. */
static const way *next_way(const way *w)
{
    leave();
    for (w = w ? w + 1 : ways; w < ways + HVT_LEN(ways); w++)
        if (enter(w))
            return w;
    return NULL;
}

static setup on_way(const way *w)
{
    setup u = usual(job, SHARDS);

    u.comm = w->comm;
    u.dist.bucket_bytes = 3000;
    return u;
}

TEST(sharded_and_replicated_updates_give_the_same_bits)
{
    const int steps = heap_memcheck() ? 2 : 4;
    setup alone = usual(lone, SHARDS), adam = alone;
    result want = train(&alone, steps), want_adam;

    adam.sgd = adamw;
    adam.grouped = true;
    adam.dist.clip_norm = .05;
    want_adam = train(&adam, steps);
    for (const way *w = NULL; (w = next_way(w));) {
        for (int k = 0; k < 9; k += heap_memcheck() ? 2 : 1) {
            setup u = on_way(w), v;
            result own, shared;

            u.dist.wire = (hvt_dtype)(HVT_F32 + k % 3);
            u.dist.scaling = (hvt_scaling){.scale = k / 3 == 1 ? 1024 : 0};
            if (k >= 6) {
                u.sgd = adamw;
                u.grouped = true;
                u.dist.clip_norm = .05; /* of a few */
            }
            u.dist.bucket_bytes = k % 2 ? 3000 : HVT_BUCKET_ALL;
            v = u;
            u.dist.update = HVT_UPDATE_SHARDED;
            v.dist.update = HVT_UPDATE_REPLICATED;
            own = train(&v, steps);
            shared = train(&u, steps);
            CHECK_SAME(own, shared, "%s, wire %s, scale %g: %016llx sharded, %016llx replicated", w->comm,
                       hvt_dtype_name(u.dist.wire), u.dist.scaling.scale, (unsigned long long)shared.weights,
                       (unsigned long long)own.weights);
            check_replicas(w->comm, shared);
            if (k % 6 == 0)
                CHECK_SAME(k ? want_adam : want, shared, "%s: %016llx, on one rank %016llx", w->comm,
                           (unsigned long long)shared.weights,
                           (unsigned long long)(k ? want_adam : want).weights);
        }
    }
}

/* Where the ranks' memory can be shared: what differs from a replicated update but for the bits. */
TEST(a_sharded_update_keeps_one_copy_for_all_ranks)
{
    static const hvt_optim_opts sgd[] = {{.momentum = .9f, .weight_decay = .01f, .no_decay_norm = true},
                                         {.momentum = .9f, .nesterov = true},
                                         {.weight_decay = .01f, .no_decay_bias = true},
                                         {.kind = HVT_OPTIM_ADAMW, HVT_ADAM_DEFAULTS, .weight_decay = .01f},
                                         {0}};
    const int steps = heap_memcheck() ? 2 : 5;

    if (hvt_world_size(job) == 1 || !can_open("shm"))
        SKIP("it takes two ranks of a host");
    for (size_t i = 0; i < HVT_LEN(sgd); i++) {
        setup u = usual(job, SHARDS), v;
        result own, shared, back;
        const size_t *bytes;
        rig r;

        u.comm = "shm";
        u.sgd = sgd[i];
        v = u;
        v.dist.update = HVT_UPDATE_REPLICATED;
        own = train(&v, steps);
        CHECK_OK(rig_open(&r, &u));
        CHECK(hvt_distopt_update(r.d) == HVT_UPDATE_SHARDED, "shm, f32: %d", (int)hvt_distopt_update(r.d));
        CHECK(hvt_distopt_buckets(r.d, &bytes) == 14 && bytes[0] == r.m->step_stats_count * sizeof(float),
              "the statistics' bucket has %zu bytes", bytes[0]);
        if (hvt_world_rank(job) == 0) /* what one writes, all have */
            fill(&r, r.m->params, 7);
        CHECK_OK(hvt_world_barrier(job));
        for (int k = 0; k < r.m->nparam_tensors; k++)
            CHECK(r.m->params[r.m->param[k].offset] == 7, "%s", r.m->param[k].name);
        CHECK_OK(hvt_world_barrier(job));
        if (hvt_world_rank(job) == 0)
            CHECK_OK(hvt_model_init(r.m, u.seed));
        CHECK_OK(hvt_distopt_broadcast(r.d, 0));
        for (int t = 0; t < steps; t++)
            CHECK_OK(rig_step(&r, t));
        CHECK_OK(rig_result(&r, &shared));
        CHECK_SAME(own, shared, "sgd %zu: %016llx sharded, %016llx replicated", i,
                   (unsigned long long)shared.weights, (unsigned long long)own.weights);
        hvt_distopt_free(&r.d); /* and each has its own again */
        CHECK_OK(hvt_model_hash(r.m, &back.weights));
        CHECK(back.weights == own.weights, "%016llx after it was freed", (unsigned long long)back.weights);
        CHECK_OK(hvt_world_barrier(job));
        if (hvt_world_rank(job) == 0)
            fill(&r, r.m->params, 7);
        CHECK_OK(hvt_world_barrier(job));
        CHECK((r.m->params[r.m->param[0].offset] == 7) == (hvt_world_rank(job) == 0), "still shared");
        rig_close(&r);
    }
}

TEST(what_is_discarded_gives_nothing_back)
{
    for (const way *w = NULL; (w = next_way(w));) {
        setup u = on_way(w);
        size_t state;
        rig r;

        u.dist.update = HVT_UPDATE_SHARDED;
        u.sgd = adamw;
        CHECK_OK(rig_open(&r, &u));
        state = hvt_distopt_state_bytes(r.d);
        CHECK(state <= (size_t)r.o->states * r.m->arena_count * sizeof(float), "%zu bytes of state", state);
        for (int t = 0; t < 2; t++)
            CHECK_OK(rig_step(&r, t));
        hvt_distopt_discard(&r.d);
        CHECK(!r.d && !r.m->grads && (!r.m->params_placed || !r.m->params), "%s", w->comm);
        rig_close(&r); /* frees what is left */
    }
}

TEST(auto_shards_where_it_pays)
{
    static const struct {
        const char *comm;
        hvt_dtype wire;
        bool sharded;
    } table[] = {{"shm", HVT_F32, true},   {"shm", HVT_BF16, true}, {"mpi", HVT_F32, true},
                 {"mpi", HVT_F16, false},  {"hier", HVT_F32, true}, {"hier", HVT_BF16, false},
                 {"self", HVT_F32, false}, {"self", HVT_F16, false}};

    for (const way *w = NULL; (w = next_way(w));) {
        for (size_t i = 0; i < HVT_LEN(table); i++) {
            setup u = on_way(w);
            hvt_update update;
            rig r;

            u.dist.wire = table[i].wire;
            if (strcmp(table[i].comm, w->comm))
                continue;
            CHECK_OK(rig_open(&r, &u));
            update = hvt_distopt_update(r.d);
            CHECK((update == HVT_UPDATE_SHARDED) == (table[i].sharded && hvt_world_size(job) > 1),
                  "%s, wire %s: update %d", w->comm, hvt_dtype_name(u.dist.wire), (int)update);
            rig_close(&r);
        }
    }
}

TEST(across_nodes_a_rank_keeps_the_state_of_its_slices_alone)
{
    for (const way *w = NULL; (w = next_way(w));) {
        int64_t held = 0;
        setup u = on_way(w);
        rig r;

        u.dist.update = HVT_UPDATE_SHARDED;
        CHECK_OK(rig_open(&r, &u));
        CHECK_OK(rig_step(&r, 0));
        CHECK(r.o->sliced == !(hvt_comm_can(r.comm) & HVT_COMM_REDUCE_APPLY) && !r.o->whole, "%s: %d",
              w->comm, r.o->sliced);
        for (int b = 1; b < r.d->nbucket; b++) {
            const hvt_bucket *at = &r.d->bucket[b];
            size_t ranks = (size_t)hvt_world_size(job), most = (at->end - at->first) / ranks + 16;

            CHECK(at->own_end - at->own_first <= most, "a slice of %zu of %zu", at->own_end - at->own_first,
                  at->end - at->first);
            held += (int64_t)(at->own_end - at->own_first);
        }
        CHECK_OK(hvt_world_allreduce_i64(job, HVT_SUM, &held, 1));
        CHECK(held == (int64_t)(r.m->arena_count - r.m->step_stats_count), "%lld elements of state for %zu",
              (long long)held, r.m->arena_count);
        rig_close(&r);
    }
}

/* ---- what is not finite ---- */

static size_t large_at; /* an element of rank 0's gradient that does not fit into f16 */
static float one_large(int shard, size_t i)
{
    return i == large_at && !shard ? 3e9f : .25f;
}

static float one_infinite(int shard, size_t i)
{
    return i == large_at && !shard ? INFINITY : .25f;
}

static uint64_t hash_params(const rig *r)
{
    return hvt__hash(HVT_HASH_INIT, r->m->params, r->m->arena_count * sizeof *r->m->params);
}

TEST(an_overflow_in_any_slice_is_seen_by_all_ranks)
{
    hvt_log_to(NULL, NULL, HVT_LOG_ERROR);
    for (const way *w = NULL; (w = next_way(w));) {
        result before, after;
        setup u = on_way(w);
        rig r;

        u.dist.wire = HVT_F16;
        u.dist.update = HVT_UPDATE_SHARDED;
        CHECK_OK(rig_open(&r, &u));
        for (int p = 0; p < r.m->nparam_tensors; p++) {
            uint64_t params = hash_params(&r);

            large_at = r.m->param[p].offset + (p % 2 ? r.m->param[p].count - 1 : 0);
            CHECK_OK(rig_result(&r, &before));
            CHECK_OK(step_by_hand(&r, one_large, 2, .1));
            CHECK_OK(rig_result(&r, &after));
            CHECK(after.skipped == p + 1, "%s: %lld skipped, expected %d", w->comm, (long long)after.skipped,
                  p + 1);
            CHECK(hash_params(&r) == params && before.momentum == after.momentum,
                  "%s: a skipped update left traces", w->comm);
        }
        CHECK_OK(step_by_hand(&r, leaf, 2, .1));
        CHECK_OK(rig_result(&r, &after));
        CHECK(after.skipped == r.m->nparam_tensors && after.momentum != before.momentum,
              "a clean step was skipped");
        check_replicas("after overflows", after);
        rig_close(&r);
    }
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
}

/* At the least scale the run ends: the parameter is one that only the rank of its slice has seen. */
TEST(the_first_parameter_that_is_not_finite_is_named_on_all_ranks)
{
    for (const way *w = NULL; (w = next_way(w));) {
        int last;
        setup u = on_way(w);
        rig r;

        u.dist.scaling = (hvt_scaling){.scale = 4, .interval = 1000, .floor = 4};
        u.dist.update = HVT_UPDATE_SHARDED;
        CHECK_OK(rig_open(&r, &u));
        last = r.m->nparam_tensors - 1;
        large_at = r.m->param[last].offset;
        CHECK_FAILS(step_by_hand(&r, one_infinite, 2, .1), E_DIVERGED, r.m->param[last].name);
        CHECK(hvt_last_error_is_agreed(), "each rank would print it");
        rig_close(&r);
    }
}

/* ---- state that is not here ---- */

/* The first half of a run, saved by rank 0. */
static void half_a_run(const setup *u, bool saves)
{
    hvt_progress p = {.steps = 3};
    rig r;

    if (is_mine(u)) {
        CHECK_OK(rig_open(&r, u));
        for (int t = 0; t < 3; t++)
            CHECK_OK(rig_step(&r, t));
        if (r.o->sliced)
            CHECK_FAILS(hvt_checkpoint_save(folder, "last", r.m, r.o, &p), E_ARG, "hvt_distopt_gather()");
        CHECK_OK(hvt_distopt_gather(r.d, 0));
        if (saves)
            CHECK_OK(hvt_checkpoint_save(folder, "last", r.m, r.o, &p));
        rig_close(&r);
    }
    CHECK_OK(hvt_world_barrier(whole));
}

/* The second half, loaded by the first rank of its world. */
static result other_half(const setup *u)
{
    hvt_progress p;
    result ret = {0};
    rig r;

    if (is_mine(u)) {
        CHECK_OK(rig_open(&r, u));
        if (hvt_world_rank(u->world) == 0) {
            CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
            if (r.o->sliced)
                CHECK_FAILS(rig_step(&r, 3), E_ARG, "hvt_distopt_broadcast()");
            free(p.options);
        }
        CHECK_OK(hvt_distopt_broadcast(r.d, 0));
        ret = rig_finish(&r, 3, 6);
    }
    tell_all(u, &ret);
    CHECK_OK(hvt_world_barrier(whole));
    return ret;
}

static void check_checkpoints(bool adam)
{
    setup alone = usual(lone, SHARDS);
    result straight, got;

    if (adam)
        alone.sgd = adamw;
    straight = train(&alone, 6);
    for (const way *w = NULL; (w = next_way(w));) {
        setup u = on_way(w);

        u.dist.update = HVT_UPDATE_SHARDED;
        u.sgd = alone.sgd;
        half_a_run(&u, hvt_world_rank(job) == 0);
        got = other_half(&alone);
        CHECK(got.weights == straight.weights && got.momentum == straight.momentum,
              "%s, sharded, then one rank: %016llx, expected %016llx", w->comm,
              (unsigned long long)got.weights, (unsigned long long)straight.weights);
        got = other_half(&u);
        CHECK(got.weights == straight.weights && got.momentum == straight.momentum,
              "%s, sharded, then again: %016llx, expected %016llx", w->comm, (unsigned long long)got.weights,
              (unsigned long long)straight.weights);
    }
    half_a_run(&alone, hvt_world_rank(whole) == 0);
    for (const way *w = NULL; (w = next_way(w));) {
        setup u = on_way(w);

        u.dist.update = HVT_UPDATE_SHARDED;
        u.sgd = alone.sgd;
        got = other_half(&u);
        CHECK(got.weights == straight.weights && got.momentum == straight.momentum,
              "one rank, then %s, sharded: %016llx, expected %016llx", w->comm,
              (unsigned long long)got.weights, (unsigned long long)straight.weights);
    }
}

TEST(checkpoints_know_nothing_of_slices)
{
    if (hvt_world_rank(whole) == 0)
        CHECK(folder_make(), "no folder");
    CHECK_OK(hvt_world_broadcast(whole, folder, sizeof folder, 0));
    if (!heap_memcheck())
        check_checkpoints(false);
    check_checkpoints(true);
    CHECK_OK(hvt_world_barrier(whole));
    if (hvt_world_rank(whole) == 0)
        CHECK(folder_remove(), "%s stays behind", folder);
}

TEST(state_that_was_gathered_outlives_its_slices)
{
    for (const way *w = NULL; (w = next_way(w));) {
        int root = hvt_world_size(whole) - 1;
        result before, after;
        setup u = on_way(w);
        rig r;

        u.dist.update = HVT_UPDATE_SHARDED;
        u.sgd = adamw;
        before = train(&u, 5);
        CHECK_OK(rig_open(&r, &u));
        for (int t = 0; t < 3; t++)
            CHECK_OK(rig_step(&r, t));
        CHECK_FAILS(hvt_distopt_gather(r.d, root + 1), E_ARG, "root");
        CHECK_OK(hvt_distopt_gather(r.d, root));
        hvt_distopt_free(&r.d);
        CHECK_OK(hvt_distopt_create(r.o, r.comm, &r.u.dist, NULL, 0, &r.d));
        CHECK_OK(hvt_distopt_broadcast(r.d, root));
        for (int t = 3; t < 5; t++)
            CHECK_OK(rig_step(&r, t));
        CHECK_OK(rig_result(&r, &after));
        CHECK(before.weights == after.weights && before.momentum == after.momentum,
              "%s: %016llx, not %016llx", w->comm, (unsigned long long)after.weights,
              (unsigned long long)before.weights);
        rig_close(&r);
    }
}

TEST(new_buckets_are_new_slices_of_the_same_state)
{
    for (const way *w = NULL; (w = next_way(w));) {
        result before, after;
        setup u = on_way(w);
        rig r;

        u.dist.update = HVT_UPDATE_SHARDED;
        u.sgd = adamw;
        before = train(&u, 5);
        CHECK_OK(rig_open(&r, &u));
        for (int t = 0; t < 5; t++) {
            CHECK_OK(rig_step(&r, t));
            CHECK_OK(hvt_distopt_replan(r.d, t % 2 ? 1000 : HVT_BUCKET_ALL, 0));
        }
        CHECK_OK(rig_result(&r, &after));
        CHECK_SAME(before, after, "%s: %016llx, not %016llx", w->comm, (unsigned long long)after.weights,
                   (unsigned long long)before.weights);
        rig_close(&r);
    }
}

/* ---- replicas ---- */

/* The tensor, and the ranks whose copy it is that differs: this one to the last. */
static void check_refusal(hvt_status s, const char *comm, const char *what, const char *tensor, int rank)
{
    int last = hvt_world_size(job) - 1;
    char text[64];

    if (rank == last)
        snprintf(text, sizeof text, "on rank %d", rank);
    else
        snprintf(text, sizeof text, "on ranks %d-%d", rank, last);
    CHECK_FAILS(s, E_MISMATCH, tensor);
    CHECK(strstr(hvt_last_error(), text) && strstr(hvt_last_error(), what) && hvt_last_error_is_agreed(),
          "%s: %s", comm, hvt_last_error());
}

/* One bit of the last rank's copy, or of its node's, after an update: the check sees it, and so does the next
 * one that is due, where updates do not mend it: the bit is one that no rounding of a few updates reaches. */
TEST(replicas_that_differ_in_a_bit_are_named_on_every_rank)
{
    static const char *const kinds[] = {"parameters", "parameters", "16-bit copies", "momentum"};

    if (hvt_world_size(whole) == 1)
        SKIP("it takes two ranks");
    for (const way *w = NULL; (w = next_way(w));)
        for (int k = 0; k < (heap_memcheck() ? 4 : 8); k++) {
            bool sharded = k % 4 == 1, copies = k % 4 == 2, state = k % 4 == 3, last;
            int odd = hvt_world_size(whole) - 1;
            const hvt_param *p;
            setup u = on_way(w);
            rig r;

            if (hvt_world_size(job) == 1)
                continue;
            u.dist.update = sharded ? HVT_UPDATE_SHARDED : HVT_UPDATE_REPLICATED;
            u.dist.wire = k / 4 ? HVT_BF16 : HVT_F32;
            u.type = copies ? HVT_BF16 : HVT_F32;
            u.dist.check_replicas = 2;
            last = hvt_world_rank(job) == hvt_world_size(job) - 1;
            CHECK_OK(rig_open(&r, &u));
            while (sharded && (hvt_comm_can(r.comm) & HVT_COMM_SHARE) && odd > 0 &&
                   job->node_of[odd - 1] == job->node_of[odd])
                odd--; /* the first one of the page's node */
            for (int t = 0; t < 4; t++)
                CHECK_OK(rig_step(&r, t));
            p = &r.m->param[2];
            if (last && copies)
                r.m->copy[p->offset + p->count - 1] ^= 1;
            else if (last)
                ((uint32_t *)(void *)(state ? r.o->v : r.m->params))[p->offset + p->count - 1] ^= 1 << 20;
            CHECK_OK(hvt_world_barrier(job));
            if (sharded &&
                (hvt_comm_can(r.comm) & HVT_COMM_REDUCE_APPLY)) /* a page is not compared with itself */
                CHECK_OK(hvt__replicas_check(r.d));
            else
                check_refusal(hvt__replicas_check(r.d), w->comm, kinds[k % 4], p->name, odd);
            if (k % 4 == 0) { /* in a sharded update the next allgather mends it */
                CHECK_OK(rig_step(&r, 4));
                check_refusal(rig_step(&r, 5), w->comm, "after 6 updates", p->name, odd);
            }
            rig_close(&r);
        }
}

/* ---- memory ---- */

TEST(slices_that_one_rank_has_no_memory_for_fail_all_ranks_alike)
{
    if (hvt_world_size(whole) == 1)
        SKIP("it takes two ranks");
    for (const way *w = NULL; (w = next_way(w));) {
        result got, want;
        setup u = on_way(w);
        rig r;

        if (hvt_world_size(job) == 1)
            continue;
        u.dist.update = HVT_UPDATE_SHARDED;
        want = train(&u, 2);
        CHECK_OK(rig_prepare(&r, &u));
        rig_create_scarcely(&r);
        for (int t = 0; t < 2; t++)
            CHECK_OK(rig_step(&r, t));
        CHECK_OK(rig_result(&r, &got));
        CHECK(got.weights == want.weights, "%s: %016llx, not %016llx", w->comm,
              (unsigned long long)got.weights, (unsigned long long)want.weights);
        rig_close(&r);
    }
}

int main(void)
{
    CHECK_OK(hvt_world_open(NULL, &whole));
    CHECK_OK(hvt_world_open("singleton", &lone));
    if (!whole || !lone)
        return 1;
    job = whole;
    RUN(sharded_and_replicated_updates_give_the_same_bits);
    RUN(an_overflow_in_any_slice_is_seen_by_all_ranks);
    RUN(replicas_that_differ_in_a_bit_are_named_on_every_rank);
    RUN(across_nodes_a_rank_keeps_the_state_of_its_slices_alone);
    if (hvt_world_size(whole) <= 4) {
        RUN(a_sharded_update_keeps_one_copy_for_all_ranks);
        RUN(what_is_discarded_gives_nothing_back);
        RUN(auto_shards_where_it_pays);
        RUN(the_first_parameter_that_is_not_finite_is_named_on_all_ranks);
        RUN(checkpoints_know_nothing_of_slices);
        RUN(state_that_was_gathered_outlives_its_slices);
        RUN(new_buckets_are_new_slices_of_the_same_state);
        RUN(slices_that_one_rank_has_no_memory_for_fail_all_ranks_alike);
    }
    hvt_world_close(&lone);
    hvt_world_close(&whole);
    return check_done();
}
