/*
 * --tensorboard: scalars as event files, which TensorBoard reads.
 *
 * A file is a sequence of records, each of which is an 8-byte length, the CRC-32C of these bytes, the data
 * and their CRC-32C, all little-endian; a CRC is rotated and has a constant added (TFRecord). The data are a
 * protocol buffer, tensorflow.Event, whose fields are: 1 wall_time (double), 2 step (int64), 3 file_version
 * (string), 5 summary, 7 session_log. A summary has values (1), a value has a tag (1) and simple_value (2,
 * float); a session_log has a status (1), of which START (1) tells TensorBoard to drop what earlier files
 * have of this step and later ones. Source: tensorflow/core/util/event.proto and
 * core/framework/summary.proto.
 */
#include "report_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MESSAGE = 1024 /* bytes of the longest event */, CRC_BYTES = 4, LENGTH_BYTES = 8 };

struct hvt__events {
    const char *dir;   /* borrowed */
    int fd;            /* -1: no record yet */
    off_t size;        /* of whole records */
    bool warned, dead; /* dead: the file ends in half a record */
    int64_t step;      /* of the last record */
};

/* ---- protocol buffers ---- */

typedef struct message {
    uint8_t data[MESSAGE];
    size_t n;
} message;

static void put_bytes(message *m, const void *data, size_t n)
{
    if (n > MESSAGE - m->n)
        return;
    memcpy(m->data + m->n, data, n);
    m->n += n;
}

static void put_varint(message *m, uint64_t v)
{
    uint8_t byte;

    do {
        byte = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        put_bytes(m, &byte, 1);
    } while (v >>= 7);
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_key(message *m, unsigned field, unsigned type)
{
    put_varint(m, field << 3 | type);
}

/* Adds the `n` low bytes of v, the lowest first. */
static void put_fixed(message *m, uint64_t v, int n)
{
    for (int i = 0; i < n; i++, v >>= 8) {
        uint8_t byte = (uint8_t)v;

        put_bytes(m, &byte, 1);
    }
}

static void put_double(message *m, unsigned field, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED64);
    put_fixed(m, bits, sizeof bits);
}

static void put_float(message *m, unsigned field, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED32);
    put_fixed(m, bits, sizeof bits);
}

static void put_part(message *m, unsigned field, const void *data, size_t n)
{
    put_key(m, field, BYTES);
    put_varint(m, n);
    put_bytes(m, data, n);
}

/* ---- records ---- */

/* CRC-32C, Castagnoli's polynomial, bit by bit: an event has some hundred bytes. */
static uint32_t crc32c(const uint8_t *data, size_t n)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
    }
    return ~crc;
}

static uint32_t masked_crc(const uint8_t *data, size_t n)
{
    uint32_t crc = crc32c(data, n);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Writes a record in one call, so a killed process leaves at most its last record incomplete. */
static hvt_status write_event(hvt__events *e, const message *event)
{
    message m = {.n = 0};

    put_fixed(&m, event->n, LENGTH_BYTES);
    put_fixed(&m, masked_crc(m.data, LENGTH_BYTES), CRC_BYTES);
    put_bytes(&m, event->data, event->n);
    put_fixed(&m, masked_crc(event->data, event->n), CRC_BYTES);
    errno = 0;
    if (write(e->fd, m.data, m.n) != (ssize_t)m.n) {
        int why = errno ? errno : ENOSPC;

        if (ftruncate(e->fd, e->size)) /* otherwise readers would stop there */
            e->dead = true;
        return HVT_FAIL(E_IO, "--tensorboard %s: cannot write: %s", e->dir, strerror(why));
    }
    e->size += (off_t)m.n;
    return HVT_OK;
}

static message event_at(double time, int64_t step)
{
    message m = {.n = 0};

    put_double(&m, 1, time);
    put_key(&m, 2, VARINT);
    put_varint(&m, (uint64_t)step);
    return m;
}

/* ---- the file ---- */

hvt_status hvt__events_open(const char *dir, hvt__events **ret)
{
    struct stat info;
    hvt__events *e;

    HVT_CHECK(mkdir(dir, 0777) == 0 || errno == EEXIST, E_IO, "--tensorboard %s: cannot make it: %s", dir,
              strerror(errno));
    HVT_CHECK(stat(dir, &info) == 0 && S_ISDIR(info.st_mode), E_IO, "--tensorboard %s: is not a folder", dir);
    HVT_CHECK(access(dir, W_OK | X_OK) == 0, E_IO, "--tensorboard %s: cannot write there: %s", dir,
              strerror(errno));
    e = calloc(1, sizeof *e);
    HVT_CHECK(e, E_MEM, "no memory for --tensorboard");
    *e = (hvt__events){.dir = dir, .fd = -1};
    *ret = e;
    return HVT_OK;
}

void hvt__events_close(hvt__events **events)
{
    hvt__events *e = *events;

    if (!e)
        return;
    if (e->fd >= 0 && close(e->fd))
        HVT_WARN("--tensorboard %s: the last records may be missing: %s", e->dir, strerror(errno));
    free(e);
    *events = NULL;
}

/* Creates the file. TensorBoard reads the files of a folder whose names contain "tfevents", in the order of
 * names. */
static hvt_status begin(hvt__events *e, double time, const json_t *record)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t started[] = {1 << 3 | VARINT, 1};
    char path[PATH_MAX], host[80] = "";
    const char *evaluate = json_string_value(json_object_get(json_object_get(record, "options"), "evaluate"));
    int64_t resumed = (int64_t)json_integer_value(json_object_get(record, "resumed_steps"));
    message m = {.n = 0};

    gethostname(host, sizeof host - 1);
    HVT_TRY(
        hvt__path(path, "%s/events.out.tfevents.%010.0f.%.60s.%ld.0", e->dir, time, host, (long)getpid()));
    e->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    HVT_CHECK(e->fd >= 0, E_IO, "--tensorboard %s: cannot write: %s", path, strerror(errno));
    put_double(&m, 1, time);
    put_part(&m, 3, version, sizeof version - 1);
    HVT_TRY(write_event(e, &m));
    if (evaluate && !strcmp(evaluate, "on")) /* the evaluated run may have later steps */
        return HVT_OK;
    m = event_at(time, resumed > 0 ? resumed + 1 : 0);
    put_part(&m, 7, started, sizeof started);
    return write_event(e, &m);
}

/* The fields of a record that become scalars, and their tags. */
static const struct scalar {
    const char *record, *field, *tag;
} scalars[] = {
    {"step", "loss", "loss/train"},
    {"step", "top1", "accuracy/train"},
    {"step", "mae", "mae/train"},
    {"step", "lr", "lr"},
    {"step", "img_s", "img_s"},
    {"epoch", "train_loss", "epoch_loss/train"},
    {"epoch", "top1", "epoch_accuracy/train"},
    {"eval", "loss", "loss/test"},
    {"eval", "top1", "accuracy/test"},
    {"eval", "miou", "mean_iou/test"},
    {"eval", "mae", "mae/test"},
};

static hvt_status put_scalars(hvt__events *e, const json_t *record, const char *kind, double time)
{
    const json_t *step = json_object_get(record, strcmp(kind, "step") ? "at_step" : "step");
    message all = {.n = 0}, event;

    if (json_is_integer(step))
        e->step = (int64_t)json_integer_value(step);
    for (size_t i = 0; i < HVT_LEN(scalars); i++) {
        const json_t *v = json_object_get(record, scalars[i].field);
        message value = {.n = 0};

        if (strcmp(scalars[i].record, kind) != 0 || !json_is_number(v))
            continue;
        put_part(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_float(&value, 2, (float)json_number_value(v));
        put_part(&all, 1, value.data, value.n);
    }
    if (!all.n)
        return HVT_OK;
    event = event_at(time, e->step);
    put_part(&event, 5, all.data, all.n);
    return write_event(e, &event);
}

hvt_status hvt__events_put(hvt__events *e, const json_t *record)
{
    const char *kind = json_string_value(json_object_get(record, "record"));
    double time = json_number_value(json_object_get(record, "time"));
    hvt_status s;

    if (e->fd < 0)
        return begin(e, time, record);
    if (e->dead)
        return HVT_OK;
    s = put_scalars(e, record, kind ? kind : "", time);
    if (s && !e->warned)
        HVT_WARN("%s; training continues, and scalars are missing until it can be written again",
                 hvt_last_error());
    e->warned |= s != HVT_OK;
    return HVT_OK;
}
