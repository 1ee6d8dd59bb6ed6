/*
 * Messages between the ranks of a world, for every backend: flights (messages in flight), and exchanges,
 * which wait for all of their messages.
 */
#include "base_impl.h"
#include "watch.h"
#include "world_impl.h"

hvt_status hvt__world_check_up(const hvt_world *w)
{
    HVT_CHECK(!w->ops->is_up || w->ops->is_up(), E_COMM,
              "MPI has been finalised: no rank can be reached any more");
    return HVT_OK;
}

hvt_status hvt__flight_reserve(hvt__flight *f, int room)
{
    const size_t each = f->world->ops->request;
    char *request;

    if (room <= f->room)
        return HVT_OK;
    request = malloc((size_t)room * (each + sizeof *f->peer));
    HVT_CHECK(request, E_MEM, "no memory for %d messages in flight", room);
    free(f->request);
    f->request = request;
    f->peer = (int *)(void *)(request + (size_t)room * each);
    f->room = room;
    return HVT_OK;
}

hvt_status hvt__flight_post(hvt__flight *f, bool send, void *at, size_t count, int peer)
{
    HVT_TRY(f->world->ops->post(f, send, at, count, peer));
    f->peer[f->n++] = peer;
    return HVT_OK;
}

void hvt__flight_drop(hvt__flight *f)
{
    if (f->n)
        f->world->ops->drop(f);
    f->n = 0;
}

static const char *to_do(const hvt__rank_group *group)
{
    return group->what ? group->what : "send and take its part";
}

/* Tells the watchdog which peers the unfinished messages wait for, and checks whether one of these peers has
 * left the comm. Messages that it sent before may still arrive, so a peer is lost only if one was gone at the
 * previous check, too. */
static hvt_status look_at_peers(hvt__flight *f, int wait, const hvt__rank_group *group, bool *gone)
{
    int waiting_on[HVT__WAITING_ON], m = 0;
    bool was_gone = *gone, done;

    *gone = false;
    for (int i = 0; i < f->n; i++) {
        bool named = m == HVT__WAITING_ON;

        HVT_TRY(f->world->ops->test_one(f, i, &done));
        if (done)
            continue;
        for (int k = 0; k < m; k++)
            named = named || waiting_on[k] == f->peer[i];
        if (!named)
            waiting_on[m++] = f->peer[i];
        if (hvt__watch_gave_up(f->world))
            HVT_TRY(group->lost(group, f->peer[i], to_do(group)));
        if (group->has_left(group, f->peer[i]) == HVT__HERE)
            continue;
        *gone = true;
        if (was_gone)
            HVT_TRY(group->lost(group, f->peer[i], to_do(group)));
    }
    if (m)
        hvt__wait_on(wait, f->world, waiting_on, m);
    return HVT_OK;
}

hvt_status hvt__flight_await(hvt__flight *f, const hvt__rank_group *group)
{
    const double pause = 0.1; /* s, between looks */
    hvt_status s = HVT_OK;
    bool done = false, gone = false;
    double looked = hvt__now();
    int wait = -1;

    HVT_TRY(f->world->ops->test(f, false, &done));
    if (!done)
        wait = hvt__wait_begin(f->world, HVT__ANYONE, to_do(group));
    while (!done) {
        HVT_TRY_OR(end, f->world->ops->test(f, true, &done));
        if (!done && hvt__now() - looked >= pause) {
            HVT_TRY_OR(end, look_at_peers(f, wait, group, &gone));
            looked = hvt__now();
        }
    }
    f->n = 0;
end:
    hvt__wait_end(wait);
    return s;
}

/*
 * Long messages are sent in rounds, one part of each per round. Both ends of a message agree on its rounds,
 * and a round waits only for the same round of others, so ranks cannot wait for each other in a cycle.
 */
hvt_status hvt__exchange(hvt__flight *f, const hvt__rank_group *group, const hvt__message *messages,
                         int recvs, int sends)
{
    bool more = true;
    hvt_status s;

    HVT_TRY(hvt__world_check_up(f->world));
    HVT_TRY(hvt__flight_reserve(f, recvs + sends));
    for (size_t at = 0; more; at += hvt__world_message) {
        more = false;
        for (int i = 0; i < recvs + sends; i++) {
            const hvt__message *p = &messages[i];
            size_t rest = p->bytes > at ? p->bytes - at : 0;

            if (!rest)
                continue;
            f->tag = group->channel * 2 + p->answer;
            HVT_TRY_OR(fail,
                       hvt__flight_post(f, i >= recvs, (char *)(uintptr_t)p->at + at,
                                        rest < hvt__world_message ? rest : hvt__world_message, p->rank));
            more = more || rest > hvt__world_message;
        }
        HVT_TRY_OR(fail, hvt__flight_await(f, group));
    }
    return HVT_OK;
fail:
    hvt__flight_drop(f);
    return s;
}
