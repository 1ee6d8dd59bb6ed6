/*
 * Updates of a model with frozen parameters: these do not change, and the others have the same bits with
 * every update path and any number of ranks.
 *
 * Runs alone and under mpirun.
 */
#include "comm_impl.h"
#include "nodes.h"
#include "optim/dist.h"
#include "rig.h"

static const char *const freezes[] = {"conv2d1,batchnorm2,conv2d4", "batchnorm", "conv2d,batchnorm", "linear",
                                      "conv2d7.weight,batchnorm8.bias"};

#define SHARDS (2 * hvt_world_size(job)) /* so that one rank alone must arrive at the same bits */

static setup frozen(hvt_world *world, const char *freeze)
{
    setup u = usual(world, SHARDS);

    u.freeze = freeze;
    u.sgd.weight_decay = .01f;
    u.dist.bucket_bytes = 3000;
    return u;
}

static bool is_fit(const char *name, const char *freeze)
{
    char list[200];

    snprintf(list, sizeof list, "%s", freeze);
    for (char *p = strtok(list, ","); p; p = strtok(NULL, ","))
        if (!strncmp(name, p, strlen(p)))
            return true;
    return false;
}

TEST(frozen_parameters_stay_and_the_others_move)
{
    for (size_t i = 0; i < HVT_LEN(freezes); i++) {
        setup u = frozen(job, freezes[i]);
        rig r;

        CHECK_OK(rig_open(&r, &u));
        if (r.d) {
            size_t n, at = 0;
            float *before = parameters(&r, &n), *stats = malloc(r.m->stats_count * sizeof *stats), *after;

            memcpy(stats, r.m->stats, r.m->stats_count * sizeof *stats);
            for (int t = 0; t < 3; t++)
                CHECK_OK(rig_step(&r, t));
            after = parameters(&r, &n);
            for (const hvt_param *p = r.m->param; p < r.m->param + r.m->nparam_tensors; at += p++->elements)
                CHECK(!memcmp(before + at, after + at, p->elements * sizeof *after) ==
                          is_fit(p->name, freezes[i]),
                      "--freeze %s: %s", freezes[i], p->name);
            for (const hvt_stat *s = r.m->stat; s < r.m->stat + r.m->nstat; s++)
                CHECK(stats[s->offset] != r.m->stats[s->offset], "--freeze %s: %s stays", freezes[i],
                      s->name);
            free(before);
            free(after);
            free(stats);
        }
        rig_close(&r);
    }
}

TEST(every_way_of_an_update_gives_the_same_bits)
{
    static const char *const comms[] = {"auto", "self", "shm", "mpi"};

    for (size_t i = 0; i < HVT_LEN(freezes); i++) {
        setup alone = frozen(lone, freezes[i]);
        result want = train(&alone, 4);

        for (size_t k = 0; k < 2 * HVT_LEN(comms); k++) {
            setup u = frozen(job, freezes[i]);
            result got;

            u.comm = comms[k / 2];
            u.dist.update = k % 2 ? HVT_UPDATE_SHARDED : HVT_UPDATE_REPLICATED;
            u.dist.check_replicas = 1;
            if (!can_open(u.comm))
                continue;
            got = train(&u, 4);
            CHECK_SAME(want, got, "--freeze %s, %s, %s: %016llx, alone %016llx", freezes[i], u.comm,
                       k % 2 ? "sharded" : "replicated", (unsigned long long)got.weights,
                       (unsigned long long)want.weights);
            check_replicas(u.comm, got);
        }
    }
}

TEST(sixteen_bits_and_factors_leave_them_alone_too)
{
    for (size_t i = 0; i < HVT_LEN(freezes); i++)
        for (int k = 0; k < 5; k++) {
            setup u = frozen(job, freezes[i]), v;
            result one, other;

            u.type = k == 1 ? HVT_BF16 : HVT_F32;
            u.dist.wire = k == 2 ? HVT_F16 : HVT_F32;
            u.dist.scaling = (hvt_scaling){.scale = k == 3 ? 1024 : 0};
            u.dist.powersgd = k == 4 ? 2 : 0;
            u.dist.check_replicas = 1;
            v = u;
            v.dist.update = k == 4 ? HVT_UPDATE_REPLICATED : HVT_UPDATE_SHARDED;
            v.dist.bucket_bytes = k == 4 ? 5000 : HVT_BUCKET_ALL;
            one = train(&u, 4);
            other = train(&v, 4);
            CHECK_SAME(one, other, "--freeze %s, case %d: %016llx and %016llx", freezes[i], k,
                       (unsigned long long)one.weights, (unsigned long long)other.weights);
            check_replicas(freezes[i], one);
        }
}

/* Root's parameters, the frozen ones too, come to all ranks, also where those of a node share a page. */
TEST(frozen_parameters_are_broadcast)
{
    static const int parts[][8] = {{0}, {2, 1}, {2, 2}};

    for (size_t i = 0; i < HVT_LEN(parts); i++) {
        hvt_world *whole = job, laid;
        int ranks = parts[i][0] + parts[i][1];
        setup u;
        rig r;

        if (ranks && ranks != hvt_world_size(whole))
            continue;
        if (ranks) {
            laid = on_nodes(whole, parts[i]);
            job = &laid;
        }
        u = frozen(job, "conv2d,batchnorm"); /* its gradients are far fewer than its parameters */
        u.comm = ranks ? "hier" : "auto";
        u.seed = (uint64_t)hvt_world_rank(job); /* every rank begins elsewhere */
        u.dist.update = HVT_UPDATE_SHARDED;
        CHECK_OK(rig_open(&r, &u));
        if (r.d) {
            uint64_t mine = 0, *all = calloc((size_t)hvt_world_size(job), sizeof *all);

            CHECK_OK(hvt_distopt_broadcast(r.d, 0));
            CHECK_OK(hvt_model_hash(r.m, &mine));
            CHECK_OK(hvt_world_allgather(job, &mine, sizeof mine, all));
            for (int k = 1; k < hvt_world_size(job); k++)
                CHECK(all[k] == all[0], "rank %d has %016llx, rank 0 %016llx", k, (unsigned long long)all[k],
                      (unsigned long long)all[0]);
            free(all);
        }
        rig_close(&r);
        if (ranks)
            free(laid.node_of);
        job = whole;
    }
}

TEST(ranks_that_freeze_differently_are_told)
{
    setup u = frozen(job, hvt_world_rank(job) ? "conv2d1" : "batchnorm2");
    rig r;

    if (hvt_world_size(job) > 1)
        CHECK_FAILS(rig_open(&r, &u), E_MISMATCH, "frozen");
    else
        CHECK_OK(rig_open(&r, &u));
    rig_close(&r);
}

int main(void)
{
    CHECK_OK(hvt_world_open(NULL, &job));
    CHECK_OK(hvt_world_open("singleton", &lone));
    RUN(frozen_parameters_stay_and_the_others_move);
    RUN(every_way_of_an_update_gives_the_same_bits);
    RUN(sixteen_bits_and_factors_leave_them_alone_too);
    RUN(frozen_parameters_are_broadcast);
    RUN(ranks_that_freeze_differently_are_told);
    hvt_world_close(&lone);
    hvt_world_close(&job);
    return check_done();
}
