/*
 * Checks that the training set is the checkpoint's.
 *
 * A checkpoint has the number of images and a digest of them. The digest covers what is known when a set is
 * open (sizes, names or labels of all images, by format) and the bytes of some images, so that it costs few
 * reads. It covers no path, and nothing that depends on ranks or threads.
 *
 * A position inside an epoch is a place in the order of the images. Another set has another order, so
 * resuming inside an epoch fails unless --data-changed ok is given; between two epochs it only warns.
 */
#include "run.h"
#include "base_impl.h"

enum { SAMPLED = 128, SAMPLED_BYTES = 16 << 20 }; /* at most; images and bytes to read */

/* Adds some images to the digest. Unreadable ones are left out: the loader will report them. */
static hvt_status digest_samples(const hvt_dataset *set, uint64_t *digest)
{
    const uint32_t count = hvt_dataset_describe(set)->count, n = count < SAMPLED ? count : SAMPLED;
    hvt_record r = {0};
    hvt_status s = HVT_OK;
    size_t bytes = 0;

    for (uint32_t i = 0; i < n && bytes < SAMPLED_BYTES; i++) {
        s = hvt_dataset_read(set, (uint32_t)((uint64_t)i * count / n), &r);
        if (s == HVT_E_MEM)
            break;
        if (s == HVT_OK) {
            *digest = hvt__hash(hvt__mix(*digest ^ (uint64_t)(r.label + 1)), r.data, r.bytes);
            bytes += r.bytes;
        }
    }
    free(r.data);
    return s == HVT_E_MEM ? s : HVT_OK;
}

/* Computes a set's digest. A caller's set may compute its images anew, so only its description counts. */
static hvt_status digest(const hvt_dataset *set, bool opened, uint64_t *ret_digest)
{
    const hvt_dataset_info *info = hvt_dataset_describe(set);

    *ret_digest = hvt__mix(info->fingerprint ^ hvt__mix(info->count));
    if (opened)
        HVT_TRY(digest_samples(set, ret_digest));
    *ret_digest += *ret_digest == 0; /* 0: unknown */
    return HVT_OK;
}

hvt_status hvt__find_data(run *t)
{
    if (!t->train_set || !(*t->opts->save || *t->opts->resume))
        return HVT_OK;
    return digest(t->train_set, t->opened[0], &t->save.data);
}

/* Warns if --val-split does not choose among the images of training: it would hold out images that were
 * trained on. */
static hvt_status compare_rest(const run *t, const hvt_progress *p)
{
    const hvt_options *o = t->opts;
    hvt_dataset_opts opts = hvt__set_opts(o, true);
    bool own_choice =
        o->from[HVT__AT_data_dir] > HVT_FROM_CHECKPOINT && o->from[HVT__AT_val_split] > HVT_FROM_CHECKPOINT;
    hvt_dataset *rest = NULL;
    uint64_t now = 0;
    hvt_status s;

    if (!p->data || !(o->val_split > 0) || own_choice || !t->opened[1])
        return HVT_OK;
    HVT_TRY(hvt_dataset_open(o->data, &opts, &rest));
    s = digest(rest, true, &now);
    hvt_dataset_close(&rest);
    if (s == HVT_OK && now != p->data)
        HVT_WARN(
            "the training set, or --val-split, is not that of %s: it was trained on some of the images that "
            "--val-split %g holds out now, so the result is too good",
            o->resume, o->val_split);
    return s;
}

/* Continues the epoch after the same number of images, or ends it if the new set has fewer. */
static void move_position(run *t, char *ret_text, size_t bytes)
{
    uint32_t count = hvt_dataset_describe(t->train_set)->count;

    if (t->at.sample < count) {
        snprintf(ret_text, bytes,
                 "epoch %d continues with image %u of the new order: some images come twice in it, others "
                 "not at all",
                 t->at.epoch + 1, t->at.sample + 1);
        return;
    }
    snprintf(ret_text, bytes, "epoch %d had done %u images and ends here", t->at.epoch + 1, t->at.sample);
    t->at.epoch++;
    t->at.sample = 0;
    t->test.due = true;
    t->epoch_sum.steps = 0;
    t->epoch_sum.loss = (hvt_loss){0};
}

hvt_status hvt__compare_data(run *t, const hvt_progress *p)
{
    const hvt_options *o = t->opts;
    bool ok = !strcmp(o->data_changed, "ok");
    char change[120], position[200] = "training continues with the new set";
    uint32_t count;

    if (o->evaluate)
        return compare_rest(t, p);
    if (!t->train_set || !p->data || p->data == t->save.data || o->ask != HVT_ASK_TRAIN)
        return HVT_OK;
    count = hvt_dataset_describe(t->train_set)->count;
    if (count == p->images)
        snprintf(change, sizeof change, "it has %u images as before, but other labels, names, sizes or bytes",
                 count);
    else
        snprintf(change, sizeof change, "it had %u images, now it has %u", p->images, count);
    HVT_CHECK(ok || !t->at.sample, E_ARG,
              "--resume %s: the training set has changed: %s; this checkpoint is inside epoch %d, after %u "
              "images of an order that the new set does not have: expected the former set, or "
              "--data-changed ok, which continues with the new one",
              o->resume, change, t->at.epoch + 1, t->at.sample);
    if (t->at.sample)
        move_position(t, position, sizeof position);
    if (ok)
        HVT_INFO("note: the training set has changed since %s: %s; %s", o->resume, change, position);
    else
        HVT_WARN("the training set has changed since %s: %s; %s (--data-changed ok: no warning)", o->resume,
                 change, position);
    return HVT_OK;
}
