/*
 * Exchanges statistics of synchronized batch norms in the middle of a pass: two numbers per channel and
 * shard.
 *
 * They do not use the queue of gradients. To wait there would mean to wait for every earlier bucket, and to
 * run operations that must wait until the step is decided. So the statistics have their own comm of the same
 * kind, without a worker, whose operations are issued in the tape's order on every rank and complete where
 * they are issued. So each comm has the same order on all ranks, and neither waits for the other.
 *
 * Every rank gets the parts of all shards (allgather) and combines them itself. A rank's parts are its slice
 * of the buffer and fill whole units in which a comm cuts slices, so that all slices have one size. Two
 * buffers alternate, because a shard may write its part of the next norm while another shard still reads the
 * parts of this norm.
 *
 * With comm nccl nothing here waits: the device's queue continues when the parts have arrived. Operations of
 * both comms may be in flight at once; NCCL runs them in the order in which the host issued them
 * (cuda/comm_nccl.c), which is the same on every rank.
 */
#include "dist.h"
#include "base_impl.h"

struct hvt__moments {
    hvt_comm *comm;
    float *buffer[2];
    int turn;          /* the buffer of the last exchange */
    const char *layer; /* of the current exchange */
    int place[];       /* [shards] position of the shard's part */
};

/* The largest number of shards on a rank. */
static int most_shards(const hvt_distopt *d)
{
    int most = 0;

    for (int r = 0; r < d->ranks; r++) {
        const int n = d->first_of[r + 1] - d->first_of[r];

        most = n > most ? n : most;
    }
    return most;
}

/* Floats in all parts, including unused ones of ranks with fewer shards. */
static size_t parts_count(const hvt_distopt *d, int c)
{
    return (size_t)d->ranks * (size_t)most_shards(d) * hvt__part_floats(c);
}

static float *parts(void *ctx, bool next)
{
    const struct hvt__moments *s = ((const hvt_distopt *)ctx)->moments;

    return s->buffer[s->turn ^ next];
}

static const char *layer_name(const void *ctx, int detail)
{
    return ((const struct hvt__moments *)ctx)->layer;
}

static hvt_status exchange(void *ctx, int c, const char *layer)
{
    hvt_distopt *d = ctx;
    struct hvt__moments *s = d->moments;
    size_t count = parts_count(d, c);
    double start = hvt__running();
    hvt_ticket ticket;
    hvt_status status;

    s->layer = layer;
    s->turn ^= 1;
    hvt__trace_begin(HVT__EXCHANGE, -1);
    hvt__trace_bytes(count * sizeof(float));
    hvt__trace_names(layer_name, s);
    status = hvt_comm_allgather(s->comm, s->buffer[s->turn], count, HVT_F32, &ticket);
    if (status == HVT_OK)
        status = hvt_comm_wait(s->comm, ticket);
    hvt__trace_names(NULL, NULL);
    d->exposed += hvt__running() - start;
    return hvt__traced(status);
}

static void find_places(hvt_distopt *d)
{
    const int most = most_shards(d);
    size_t first, end;

    for (int r = 0; r < d->ranks; r++) {
        hvt_comm_slice(d->comm, (size_t)d->ranks * HVT__PART_UNIT, r, &first, &end);
        for (int i = d->first_of[r]; i < d->first_of[r + 1]; i++)
            d->moments->place[i] = (int)(first / HVT__PART_UNIT) * most + i - d->first_of[r];
    }
}

static hvt_status open_local(hvt_distopt *d)
{
    d->moments = calloc(1, sizeof *d->moments + (size_t)d->shards * sizeof *d->moments->place);
    HVT_CHECK(d->moments, E_MEM, "no memory for the moments of %d shards", d->shards);
    find_places(d);
    return hvt__sync_open(d->optim->m, &(hvt__sync_opts){.first = d->first_of[d->rank],
                                                         .local = d->opts.local_shards,
                                                         .all = d->shards,
                                                         .place = d->moments->place,
                                                         .parts = parts,
                                                         .exchange = exchange,
                                                         .ctx = d});
}

hvt_status hvt__moments_open(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    size_t bytes;

    HVT_TRY(hvt_world_agree(d->world, open_local(d)));
    bytes = parts_count(d, hvt__sync_channels(m)) * sizeof(float);
    HVT_TRY(hvt_comm_open(hvt_comm_name(d->comm), d->world, m->dev, &d->moments->comm));
    for (int i = 0; i < 2; i++)
        HVT_TRY(hvt_comm_alloc(d->moments->comm, bytes, (void **)&d->moments->buffer[i]));
    return HVT_OK;
}

void hvt__moments_close(hvt_distopt *d)
{
    struct hvt__moments *s = d->moments;

    if (!s)
        return;
    hvt__sync_close(d->optim->m);
    for (int i = 0; i < 2; i++)
        hvt_comm_release(s->comm, s->buffer[i]);
    hvt_comm_close(&s->comm);
    free(s);
    d->moments = NULL;
}
