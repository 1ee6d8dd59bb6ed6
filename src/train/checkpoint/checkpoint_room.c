/*
 * Checks, before the first update, that the checkpoints of a run fit on the disk of --save, so that a disk
 * that is too small costs no epoch. Only tensors are counted; headers and metadata are some kilobytes more.
 */
#include "snapshot.h"
#include "train/process/process_impl.h"
#include "base_impl.h"

typedef struct sizes {
    uint64_t all, largest; /* bytes of a checkpoint's files; of the largest */
} sizes;

static void add(sizes *to, uint64_t bytes)
{
    to->all += bytes;
    to->largest = bytes > to->largest ? bytes : to->largest;
}

static hvt_status measure(const hvt_model *m, const hvt_optim *o, int ranks, sizes *ret_sizes)
{
    const hvt__powersgd_state *p = o->powersgd;
    sizes to = {0};
    uint64_t bytes;

    HVT_TRY(hvt__weights_bytes(m, NULL, 0, &bytes));
    add(&to, bytes);
    if (o->arenas > o->states) /* the average, and the raw weights */
        add(&to, bytes);
    if (o->states) {
        HVT_TRY(hvt__weights_bytes(m, o->rule, o->states, &bytes));
        add(&to, bytes);
    }
    if (p)
        add(&to, sizeof(float) * (p->q_count + (uint64_t)ranks * p->residual_count));
    *ret_sizes = to;
    return HVT_OK;
}

static void warn(const hvt_options *opts, uint64_t one, uint64_t files, uint64_t room)
{
    char each[HVT__SIZE_TEXT], all[HVT__SIZE_TEXT], there[HVT__SIZE_TEXT];

    hvt__size_text(one, each);
    hvt__size_text(one * files, all);
    hvt__size_text(room, there);
    HVT_WARN(
        "--save %s: a checkpoint takes %s, and up to %llu more (--keep %d, the best, and one that is being "
        "written) take %s, but the disk has only %s free: the run ends when it is full; expected a "
        "larger disk or a lower --keep",
        opts->save, each, (unsigned long long)files, opts->keep, all, there);
}

hvt_status hvt__checkpoint_room(const hvt_options *opts, const hvt_model *m, const hvt_optim *o, int ranks,
                                int there, int64_t saves)
{
    int64_t files = (int64_t)opts->keep + 2 - there;
    uint64_t room;
    sizes s = {0};

    if (saves < 1)
        return HVT_OK;
    HVT_TRY(measure(m, o, ranks, &s));
    HVT_TRY(hvt__room_check("--save", opts->save, true, "a checkpoint", s.all, s.largest));
    room = hvt__room_in(opts->save);
    files = files < 1 ? 1 : files > saves ? saves : files;
    if (room != UINT64_MAX && room / (uint64_t)files < s.all)
        warn(opts, s.all, (uint64_t)files, room);
    return HVT_OK;
}
