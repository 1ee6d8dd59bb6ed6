/*
 * A net's images: checks the caller's arrays, converts targets to the model's types, and sends images to the
 * ranks that compute them.
 */
#include "net_impl.h"
#include "device/half.h"
#include "base_impl.h"
#include "hvt/collective.h"

#include <math.h>

hvt_status hvt__net_begin(const hvt_net *net, hvt__net_call call)
{
    static const char *const names[HVT__NET_CALLS] = {"trains the net", "saves it", "loads it"};
    const int32_t *calls = net->calls, mine = (int32_t)call;
    int other = 0;

    if (!strcmp(hvt_device_name(net->has.dev), "cuda")) /* its comm has no collectives on host memory */
        return HVT_OK;
    HVT_TRY(hvt_allgather(net->has.comm, &mine, 1, net->calls, NULL, HVT_I32, NULL));
    for (int r = 1; r < hvt_world_size(net->has.world) && !other; r++)
        other = calls[r] != calls[0] ? r : 0;
    return !other ? HVT_OK
                  : hvt_world_agree(net->has.world, HVT_FAIL(E_MISMATCH, "rank 0 %s, but rank %d %s",
                                                             names[calls[0]], other, names[calls[other]]));
}

static bool is_real(hvt_dtype t)
{
    return t == HVT_F16 || t == HVT_BF16 || t == HVT_F32 || t == HVT_F64;
}

hvt_status hvt__net_check_images(const hvt_net *net, const hvt_net_data *data)
{
    HVT_CHECK(data, E_ARG, "expected images, got NULL");
    HVT_CHECK(!data->refused, E_ARG, "%s", data->refused);
    HVT_CHECK(data->count >= 0 && data->count <= INT_MAX, E_ARG, "%lld images, expected 0 to 2^31 - 1",
              (long long)data->count);
    HVT_CHECK(data->images || !data->count, E_ARG, "%lld images, but their address is NULL",
              (long long)data->count);
    HVT_CHECK(is_real(data->type) || data->type == HVT_U8, E_ARG,
              "images are %s, expected u8, f16, bf16, f32 or f64", hvt_dtype_name(data->type));
    HVT_CHECK(data->layout == HVT_NHWC || data->layout == HVT_NCHW || data->layout == HVT_WHCN, E_ARG,
              "layout is %d, expected HVT_NHWC, HVT_NCHW or HVT_WHCN", (int)data->layout);
    return HVT_OK;
}

static double real_at(const void *x, hvt_dtype t, size_t i)
{
    return t == HVT_F64   ? ((const double *)x)[i]
           : t == HVT_F32 ? (double)((const float *)x)[i]
           : t == HVT_F16 ? (double)hvt__from_f16(((const uint16_t *)x)[i])
                          : (double)hvt__from_bf16(((const uint16_t *)x)[i]);
}

static int64_t whole_at(const void *x, hvt_dtype t, size_t i)
{
    return t == HVT_I64   ? ((const int64_t *)x)[i]
           : t == HVT_I32 ? ((const int32_t *)x)[i]
           : t == HVT_U8  ? ((const uint8_t *)x)[i]
                          : ((const int8_t *)x)[i];
}

static hvt_status convert_labels(const hvt_net *net, const hvt_net_data *data, int32_t *to)
{
    hvt_dtype t = data->target_type;

    HVT_CHECK(t == HVT_I8 || t == HVT_U8 || t == HVT_I32 || t == HVT_I64, E_ARG,
              "labels are %s, expected i8, u8, i32 or i64; numbers are targets of loss mse or mae",
              hvt_dtype_name(t));
    const int rows = net->has.labels, classes = net->has.outputs / rows;

    for (size_t i = 0; i < (size_t)data->count * (size_t)rows; i++) {
        int64_t label = whole_at(data->targets, t, i);
        bool ignored = rows > 1 && (label < 0 || (t == HVT_U8 && label == HVT_IGNORED));

        HVT_CHECK(ignored || (label >= 0 && label < classes), E_ARG,
                  "label of image %zu is %lld, expected 0 to %d", i / (size_t)rows, (long long)label,
                  classes - 1);
        to[i] = ignored ? -1 : (int32_t)label;
    }
    return HVT_OK;
}

hvt_status hvt__net_convert(const hvt_net *net, const hvt_net_data *data, void **ret_targets)
{
    bool labels = !hvt_loss_has_targets(net->opts.loss.kind);
    size_t n;

    HVT_TRY(hvt__net_check_images(net, data));
    HVT_CHECK(data->targets || !data->count, E_ARG, "%lld images without targets", (long long)data->count);
    n = (size_t)data->count * (size_t)(labels ? net->has.labels : net->has.outputs);
    *ret_targets = malloc((n + 1) * sizeof(float));
    HVT_CHECK(*ret_targets, E_MEM, "no memory for %zu targets", n);
    if (labels)
        return convert_labels(net, data, *ret_targets);
    HVT_CHECK(is_real(data->target_type), E_ARG, "targets are %s, expected f16, bf16, f32 or f64",
              hvt_dtype_name(data->target_type));
    for (size_t i = 0; i < n; i++) {
        float x = (float)real_at(data->targets, data->target_type, i);

        HVT_CHECK(isfinite(x), E_ARG, "target %zu of image %zu is %g, expected a finite number",
                  i % (size_t)net->has.outputs, i / (size_t)net->has.outputs, (double)x);
        ((float *)*ret_targets)[i] = x;
    }
    return HVT_OK;
}

void hvt__net_store(const float *from, size_t n, hvt_dtype type, void *to)
{
    for (size_t i = 0; i < n; i++)
        if (type == HVT_F64)
            ((double *)to)[i] = (double)from[i];
        else
            ((uint16_t *)to)[i] = type == HVT_F16 ? hvt__to_f16(from[i]) : hvt__to_bf16(from[i]);
}

/* The rank r with first[r] <= x < first[r + 1]. */
static int owner_of(const int64_t *first, int64_t x)
{
    int r = 0;

    while (x >= first[r + 1])
        r++;
    return r;
}

typedef struct trip {
    const hvt_net *net;
    const hvt__net_images *all;
    int64_t at, n;
    int64_t *goal;         /* [ranks + 1] positions in the update that each rank computes */
    size_t *sends, *takes; /* [ranks] images */
    size_t *next;          /* [ranks] images received so far from each */
} trip;

static int64_t number_at(const trip *t, int64_t p)
{
    return t->all->order ? (int64_t)t->all->order[t->at + p] : t->at + p;
}

/* Exchanges an array of `size` bytes per image: gathers what goes, exchanges it, and sorts what came by
 * position. */
static hvt_status travel(const trip *t, const char *mine, size_t size, hvt_dtype type, char *room, char *to)
{
    int ranks = hvt_world_size(t->net->has.world), me = hvt_world_rank(t->net->has.world);
    size_t unit = size / hvt_dtype_size(type), out = 0, in = 0;
    size_t *counts = t->next; /* elements to send, then to receive */
    char *taken;

    for (int64_t p = 0; p < t->n; p++)
        if (owner_of(t->all->first, number_at(t, p)) == me)
            memcpy(room + size * out++, mine + size * (size_t)(number_at(t, p) - t->all->first[me]), size);
    taken = room + size * out;
    for (int r = 0; r < ranks; r++) {
        counts[r] = t->sends[r] * unit;
        counts[ranks + r] = t->takes[r] * unit;
    }
    HVT_TRY(hvt_alltoall(t->net->has.comm, room, counts, taken, counts + ranks, type, NULL));
    for (int r = 0; r < ranks; r++) {
        counts[r] = in;
        in += t->takes[r];
    }
    for (int64_t p = t->goal[me]; p < t->goal[me + 1]; p++)
        memcpy(to + size * (size_t)(p - t->goal[me]),
               taken + size * counts[owner_of(t->all->first, number_at(t, p))]++, size);
    return HVT_OK;
}

/* Counts the images that ranks exchange; true if an image leaves its rank or its place. */
static bool count(trip *t)
{
    int me = hvt_world_rank(t->net->has.world);
    bool moves = t->all->order != NULL;

    for (int64_t p = 0; p < t->n; p++) {
        int from = owner_of(t->all->first, number_at(t, p)), to = owner_of(t->goal, p);

        moves |= from != to;
        t->sends[to] += from == me;
        t->takes[from] += to == me;
    }
    return moves;
}

hvt_status hvt__net_bring(const hvt_net *net, const hvt__net_images *all, int64_t at, int64_t n,
                          hvt__net_rows *ret_rows)
{
    int ranks = hvt_world_size(net->has.world), me = hvt_world_rank(net->has.world);
    size_t most = all->row > all->goal ? all->row : all->goal, mine, images, out = 0;
    void *memory = calloc((size_t)ranks * 5 + 1, sizeof(int64_t));
    trip t = {net, all, at, n, memory, NULL, NULL, NULL};
    char *room = NULL;
    hvt_status s = memory ? HVT_OK : HVT_FAIL(E_MEM, "no memory to exchange images");

    HVT_TRY_OR(done, hvt_world_agree(net->has.world, s));
    t.sends = (size_t *)(void *)(t.goal + ranks + 1);
    t.takes = t.sends + ranks;
    t.next = t.takes + ranks; /* [2 * ranks] */
    for (int r = 0, i = 0; r < ranks; r++) {
        for (; i < net->first_of[r + 1]; i++)
            t.goal[r + 1] += net->counts[i];
        t.goal[r + 1] += t.goal[r];
    }
    *ret_rows = (hvt__net_rows){0};
    if (!count(&t)) {
        size_t from = (size_t)(at + t.goal[me] - all->first[me]);

        ret_rows->images =
            t.goal[me + 1] > t.goal[me] ? (const char *)all->data->images + from * all->row : NULL;
        ret_rows->targets = (const char *)all->targets + (ret_rows->images ? from * all->goal : 0);
        goto done;
    }
    for (int r = 0; r < ranks; r++)
        out += t.sends[r];
    mine = (size_t)(t.goal[me + 1] - t.goal[me]);
    images = (mine * all->goal + 7) / 8 * 8; /* where images begin: aligned for doubles */
    ret_rows->memory = malloc(images + mine * all->row + 1);
    room = malloc((out + mine) * most + 1);
    s = ret_rows->memory && room ? HVT_OK : HVT_FAIL(E_MEM, "no memory for %zu images of an update", mine);
    HVT_TRY_OR(done, hvt_world_agree(net->has.world, s));
    ret_rows->images = (char *)ret_rows->memory + images;
    ret_rows->targets = ret_rows->memory;
    HVT_TRY_OR(done, travel(&t, all->data->images, all->row, all->data->type, room,
                            (char *)ret_rows->memory + images));
    HVT_TRY_OR(done, travel(&t, all->targets, all->goal, HVT_F32, room, ret_rows->memory));
done:
    free(room);
    free(memory);
    return s;
}
