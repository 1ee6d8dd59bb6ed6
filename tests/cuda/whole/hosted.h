/*
 * hosted.h - common to the files of the hosted device, see hosted.c: the data that an op copies to the GPU
 * and back.
 *
 * Terms: the *inner* device is the real one; a *span* is what one pointer of an op points to. Spans at one
 * host address are one span on the GPU, as long as the longest; contents that an op does not write come back
 * unchanged.
 */
#ifndef HVT_HOSTED_H
#define HVT_HOSTED_H

#include "base_impl.h"
#include "device_impl.h"

#include <stdlib.h>
#include <string.h>

#define DECLARE(entry, op) HVT__OP_TYPE(entry) hvt__##op##_hosted;
HVT__GENERAL_OPS(DECLARE)
#undef DECLARE

enum { SPANS = 160, ALIGN = 64, LINE = 16, GAP = 64, POISON = 0xff };

typedef struct hosted {
    hvt_device *inner;
    char *host; /* what travels: the spans of one op, between gaps of poison */
    void *dev;  /* as large, on the GPU */
    size_t room;
} hosted;

static inline hvt_device *inner_of(const hvt_device *d)
{
    return ((const hosted *)d->state)->inner;
}

/* ---- spans -------------------------------------------------------------------------------------- */

/* Rows of an image as the test has them and as the GPU takes them. */
typedef struct turn {
    size_t pixels, n, row; /* bytes of a row; pixels 0: both are alike */
} turn;

typedef struct span {
    void *host;
    size_t bytes, at; /* at: in the buffer that travels */
    bool written;
    turn turn;
} span;

typedef struct stage {
    hosted *h;
    span span[SPANS];
    int count;
    size_t bytes;
    bool sloppy;       /* the op may write to what it reads */
    hvt_status status; /* the first failure; the op is not run then */
} stage;

static inline stage begin(const hvt_device *d)
{
    return (stage){.h = d->state};
}

/* Note a span. It begins on the GPU as far from a multiple of 16 bytes as here. */
static inline int note(stage *s, const void *host, size_t bytes, bool written, turn t)
{
    if (!host)
        return -1;
    for (int i = 0; i < s->count; i++)
        if (s->span[i].host == host) {
            if (bytes != s->span[i].bytes && s->status == HVT_OK)
                s->status = HVT_FAIL(E_ARG, "one address with %zu and %zu bytes", s->span[i].bytes, bytes);
            s->span[i].written = s->span[i].written || written;
            return i;
        }
    if (s->count == SPANS) {
        s->status = HVT_FAIL(E_ARG, "more than %d spans", (int)SPANS);
        return -1;
    }
    s->bytes = (s->bytes + GAP + ALIGN - 1) / ALIGN * ALIGN;
    s->span[s->count] = (span){(void *)host, bytes, s->bytes + (uintptr_t)host % LINE, written, t};
    s->bytes = s->span[s->count].at + bytes;
    return s->count++;
}

static inline int in(stage *s, const void *host, size_t bytes)
{
    return note(s, host, bytes, false, (turn){0});
}

static inline int out(stage *s, void *host, size_t bytes)
{
    return note(s, host, bytes, true, (turn){0});
}

static inline size_t turned(const turn *t, size_t i)
{
    return i % t->n * t->pixels + i / t->n; /* row [pixel, image] is row [image, pixel] there */
}

static inline void pack(const span *p, char *to)
{
    const char *from = p->host;

    if (!p->turn.pixels)
        memcpy(to, from, p->bytes);
    for (size_t i = 0; i < p->turn.pixels * p->turn.n; i++)
        memcpy(to + turned(&p->turn, i) * p->turn.row, from + i * p->turn.row, p->turn.row);
}

static inline void unpack(const span *p, const char *from)
{
    char *to = p->host;

    if (!p->turn.pixels)
        memcpy(to, from, p->bytes);
    for (size_t i = 0; i < p->turn.pixels * p->turn.n; i++)
        memcpy(to + i * p->turn.row, from + turned(&p->turn, i) * p->turn.row, p->turn.row);
}

static inline hvt_status make_room(hosted *h, size_t bytes)
{
    const hvt_device_ops *ops = h->inner->ops;

    if (bytes <= h->room)
        return HVT_OK;
    ops->memory.release(h->inner, h->dev);
    free(h->host);
    h->dev = NULL;
    h->room = 0;
    h->host = malloc(bytes * 2);
    HVT_CHECK(h->host, E_MEM, "no memory for %zu bytes of spans", bytes * 2);
    HVT_TRY(ops->memory.alloc(h->inner, bytes * 2, &h->dev));
    h->room = bytes * 2;
    return HVT_OK;
}

/* Everything onto the GPU. */
static inline bool go(stage *s)
{
    hosted *h = s->h;

    s->bytes += GAP;
    if (s->status == HVT_OK)
        s->status = make_room(h, s->bytes);
    if (s->status != HVT_OK)
        return false;
    memset(h->host, POISON, s->bytes);
    for (int i = 0; i < s->count; i++)
        pack(&s->span[i], h->host + s->span[i].at);
    s->status = h->inner->ops->memory.upload(h->inner, h->dev, h->host, s->bytes);
    return s->status == HVT_OK;
}

static inline void *dev(const stage *s, int i)
{
    return i < 0 ? NULL : (char *)s->h->dev + s->span[i].at;
}

/* Is what came back still what was sent, where the op had nothing to write? */
static inline hvt_status check_rest(stage *s)
{
    const char *got = s->h->host;
    size_t at = 0;

    for (int i = 0; i <= s->count; i++) {
        const span *p = &s->span[i];
        size_t end = i < s->count ? p->at : s->bytes;

        for (; at < end; at++)
            HVT_CHECK((unsigned char)got[at] == POISON, E_DEVICE, "byte %zu behind span %d was written",
                      at - (i ? s->span[i - 1].at + s->span[i - 1].bytes : 0), i - 1);
        if (i == s->count)
            break;
        if (!p->written && !s->sloppy && !p->turn.pixels)
            HVT_CHECK(!memcmp(got + p->at, p->host, p->bytes), E_DEVICE, "span %d, which is read, changed",
                      i);
        at = p->at + p->bytes;
    }
    return HVT_OK;
}

/* Wait and bring back what was written; `ran` is the op's own status. */
static inline hvt_status end(stage *s, hvt_status ran)
{
    hvt_device *inner = s->h->inner;

    if (s->status == HVT_OK)
        s->status = ran;
    if (s->status == HVT_OK)
        s->status = inner->ops->memory.download(inner, s->h->host, s->h->dev, s->bytes);
    if (s->status == HVT_OK)
        s->status = check_rest(s);
    for (int i = 0; i < s->count && s->status == HVT_OK; i++)
        if (s->span[i].written)
            unpack(&s->span[i], s->h->host + s->span[i].at);
    return s->status;
}

#define RUN(s, call) end(&(s), go(&(s)) ? (call) : HVT_OK)

/* A matrix of `rows`, which become one block on the GPU: images one after the other. */
static inline int matrix(stage *s, const void *host, hvt_rows rows, size_t row, bool written)
{
    turn t = {0};

    if (rows.blocks > 1)
        t = (turn){(size_t)rows.blocks, (size_t)rows.block, row};
    return note(s, host, (size_t)rows.blocks * (size_t)rows.block * row, written, t);
}

static inline hvt_rows one_block(hvt_rows r)
{
    return (hvt_rows){1, r.blocks * r.block, r.blocks * r.real};
}

/* Images [n,h,w,c] in `order`. */
static inline int images(stage *s, const void *host, hvt_order order, hvt_dtype type, int n, int h, int w,
                         int c, bool written)
{
    return matrix(s, host, hvt__rows(order, h * w, n, n), (size_t)c * hvt_dtype_size(type), written);
}

#endif /* HVT_HOSTED_H */
