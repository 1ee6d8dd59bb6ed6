/*
 * Captured steps. The device records what a step queues, from the forward pass to the last update, and
 * replays it in one call. This file does the host's part of such a step: counting and checking.
 *
 * The learning rate and the number of images are in the model's step state, which hvt_distopt_begin() writes
 * before each step, as it writes the shards' images for synchronized batch norm. Shard counts became kernel
 * arguments, so they must equal those of the captured step.
 */
#include "dist.h"

struct hvt_graph {
    hvt_op *op;
    hvt_device *dev;      /* borrowed */
    int shards, counts[]; /* [shards] images */
};

const char *hvt_distopt_uncapturable(const hvt_distopt *d)
{
    const hvt_device *dev;

    if (!d)
        return "there is no distributed optimizer";
    dev = d->optim->m->dev;
    if (!dev->ops->queue.capture_begin)
        return "this device runs each operation immediately";
    if (!(hvt_comm_can(d->comm) & HVT_COMM_CAPTURABLE))
        return "this exchange needs the host";
    if (d->opts.local_shards > 1)
        return "a step of several shards per rank has several batches";
    if (d->optim->m->keys)
        return "dropout takes its random numbers from the host";
    return NULL;
}

hvt_status hvt_distopt_capture(hvt_distopt *d)
{
    const char *why = hvt_distopt_uncapturable(d);
    hvt_device *dev;

    HVT_GIVEN(d, "a distributed optimizer");
    dev = d->optim->m->dev;
    HVT_CHECK(!why, E_UNSUPPORTED, "steps cannot be captured: %s", why);
    HVT_CHECK(d->begun && !d->pass && !*d->mark, E_ARG,
              "a capture must begin right after hvt_distopt_begin()");
    HVT_TRY(hvt__model_refresh(d->optim->m));
    d->tracked = d->optim->m->tracked;
    d->capturing = true;
    return dev->ops->queue.capture_begin(dev);
}

/* Abandons a capture, of which no rank has run anything, and resets the host's counts. */
static void give_up(hvt_distopt *d)
{
    if (d->capturing)
        d->optim->m->tracked = d->tracked;
    d->capturing = false;
    if (!d->begun)
        return;
    hvt__await_rest(d);
    hvt__distopt_drop(d);
}

/* This rank's part of the end of a capture. `failed`: the step could not be queued. */
static hvt_status end_capture(hvt_distopt *d, bool failed, hvt_graph **ret_graph)
{
    hvt_device *dev = d->optim->m->dev;
    size_t bytes = (size_t)d->shards * sizeof *d->counts;
    hvt_op *op = NULL;
    hvt_graph *g;
    hvt_status s;
    hvt__error why;

    hvt__error_take(&why);
    s = dev->ops->queue.capture_end(dev, &op);
    if (failed)
        s = HVT_FAIL(E_DEVICE, "%s", why.text);
    if (s != HVT_OK)
        goto fail;
    HVT_CHECK_OR(fail, !d->begun, E_ARG, "a capture must end after hvt_distopt_step()");
    g = malloc(sizeof *g + bytes);
    HVT_CHECK_OR(fail, g, E_MEM, "no memory for a captured step of %d shards", d->shards);
    *g = (hvt_graph){.op = op, .dev = dev, .shards = d->shards};
    memcpy(g->counts, d->counts, bytes);
    hvt__use(&dev->users, HVT__USER_GRAPH, 1);
    *ret_graph = g;
    return HVT_OK;
fail:
    hvt__op_free(op);
    return s;
}

hvt_status hvt_distopt_capture_end(hvt_distopt *d, hvt_graph **ret_graph)
{
    hvt_graph *g = NULL;
    hvt_status s;

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_CHECK(d->optim->m->dev->ops->queue.capture_begin, E_UNSUPPORTED, "steps cannot be captured: %s",
              hvt_distopt_uncapturable(d));
    s = hvt_world_agree(d->world, end_capture(d, !ret_graph, &g));
    if (s != HVT_OK) {
        hvt_graph_free(&g);
        give_up(d);
        return s;
    }
    d->capturing = false;
    *ret_graph = g;
    return d->optim->m->dev->ops->queue.graph_launch(g->op);
}

hvt_status hvt_distopt_replay(hvt_distopt *d, hvt_graph *g)
{
    hvt_model *m;

    HVT_GIVEN(d, "a distributed optimizer");
    HVT_GIVEN(g, "a captured graph");
    m = d->optim->m;
    HVT_CHECK(d->begun && !d->pass && !*d->mark, E_ARG,
              "a captured step must run right after hvt_distopt_begin()");
    HVT_CHECK(g->shards == d->shards && !memcmp(g->counts, d->counts, (size_t)g->shards * sizeof *g->counts),
              E_ARG, "the shards have other sizes than when the step was captured");
    HVT_TRY(hvt__model_refresh(m));
    hvt__trace_begin(HVT__LAUNCH, -1);
    HVT_TRY(hvt__traced(m->dev->ops->queue.graph_launch(g->op)));
    m->tracked++;
    m->backward_pending = false;
    hvt__sync_end(m);
    d->begun = false;
    hvt__trace_step_end();
    return HVT_OK;
}

void hvt_graph_free(hvt_graph **graph)
{
    hvt_graph *g = graph ? *graph : NULL;

    if (!g)
        return;
    hvt__op_free(g->op);
    hvt__use(&g->dev->users, HVT__USER_GRAPH, -1);
    free(g);
    *graph = NULL;
}
