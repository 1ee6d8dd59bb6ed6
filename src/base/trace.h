/*
 * trace.h - what a thread is doing (update, phase, start time), and its time in each phase.
 *
 *     hvt__trace_begin(HVT__EXCHANGE, bucket);
 *     return hvt__traced(hvt_comm_wait(comm, ticket));
 *
 * Phases nest. Each thread writes its own lane; any thread may read it. A phase's *own* time is the time
 * while it is the innermost, so own times add up to the elapsed time, less pauses (hvt__paused()). A begin or
 * an end costs one clock read.
 *
 * While recording is enabled, each ending phase emits an event.
 */
#ifndef HVT_BASE_TRACE_H
#define HVT_BASE_TRACE_H

#include "base_impl.h"

/* The phases: name and meaning. The detail is a bucket (compress to update), a rank (wait) or a micro-batch
 * of a split model (forward, backward); -1: none. */
#define HVT__PHASES(X)                                                                                       \
    X(OTHER, "other")       /* none of these */                                                              \
    X(SETUP, "setup")       /* everything before the first update */                                         \
    X(DATA, "data")         /* the next batch */                                                             \
    X(FORWARD, "forward")   /* and the loss */                                                               \
    X(BACKWARD, "backward") /* without the phases nested in it */                                            \
    X(DEVICE, "device")     /* waiting for a GPU's queue */                                                  \
    X(COMPRESS, "compress") /* conversion to the wire type and back */                                       \
    X(LAUNCH, "launch")     /* a bucket is sent */                                                           \
    X(EXCHANGE, "exchange") /* waiting for a bucket's sum, and computing it if no worker does */             \
    X(WAIT, "wait")         /* part of exchange: waiting for a rank, after spinning */                       \
    X(UPDATE, "update")     /* of parameters and running statistics */                                       \
    X(EVALUATE, "evaluate")                                                                                  \
    X(SAVE, "save")   /* a checkpoint */                                                                     \
    X(AGREE, "agree") /* small messages between ranks */                                                     \
    X(STEP, "step")   /* a whole update: only an event, without own time */

typedef enum hvt__phase {
#define HVT__PHASE_ENUM(name, text) HVT__##name,
    HVT__PHASES(HVT__PHASE_ENUM)
#undef HVT__PHASE_ENUM
        HVT__PHASE_COUNT
} hvt__phase;

const char *hvt__phase_name(hvt__phase phase);

/* Begin update `step`, in the program's count; 0: the next one, unless one has begun. Closes phases that an
 * error left open. */
void hvt__trace_step(int64_t step);
void hvt__trace_step_end(void);

void hvt__trace_begin(hvt__phase phase, int detail);
void hvt__trace_end(void);           /* ends the innermost phase, if any */
void hvt__trace_bytes(size_t bytes); /* moved or processed by the innermost phase, for its event */

static inline hvt_status hvt__traced(hvt_status s)
{
    hvt__trace_end();
    return s;
}

/* Names for the details of this thread's phases: of(ctx, detail), "" for none. NULL: no names. */
typedef const char *hvt__name_fn(const void *ctx, int detail);
void hvt__trace_names(hvt__name_fn *of, const void *ctx);
const char *hvt__trace_name(int detail);

/* Own time of each phase on this thread so far, in seconds. */
void hvt__trace_seconds(double ret_seconds[HVT__PHASE_COUNT]);

/* Set the function that describes this thread's subject within a phase: of(ctx, text, room), "" for none.
 * Another thread may call it until this one sets another function or NULL. It must not wait. */
typedef void hvt__about_fn(void *ctx, char *ret_text, size_t room);
void hvt__trace_about(hvt__about_fn *of, void *ctx);

/* ---- from another thread ---- */

typedef struct hvt__lane hvt__lane;

typedef struct hvt__where {
    int64_t step; /* 0: none yet */
    hvt__phase phase;
    int detail;
    double since; /* hvt__now() when the phase began */
} hvt__where;

hvt__lane *hvt__trace_lane(void); /* the calling thread's; valid while the thread exists */
/* Let watchdogs follow the calling thread until it ends. Returns its lane. */
hvt__lane *hvt__trace_follow(void);
/* Position and subject ("" for none) of a followed thread; zeros if it has ended. */
hvt__where hvt__trace_followed(const hvt__lane *lane, char *ret_about, size_t room);
/* Returns a recent position. It is consistent unless the thread changes it during the call. During a wait it
 * is the enclosing phase. */
hvt__where hvt__trace_where(const hvt__lane *lane);
uint64_t hvt__trace_progress(void); /* calls of hvt__progressed() by all threads of this rank */

/* ---- events ---- */

/* Stage k of a split model, from 1 on, is HVT__EXCHANGING + k. */
typedef enum hvt__thread { HVT__TRAINING, HVT__EXCHANGING, HVT__THREAD_COUNT } hvt__thread;

typedef struct hvt__event {
    double began, seconds; /* began: hvt__now() */
    int64_t step, bytes;   /* bytes 0: unknown */
    int32_t detail;
    int16_t phase, thread;
} hvt__event;

/* The calling thread's track in timelines; the training thread by default. */
void hvt__trace_thread(hvt__thread thread);

/* Keep up to `capacity` events of this rank's threads until they are taken. One listener of a rank at a time;
 * no events are kept while closed. */
hvt_status hvt__trace_open(size_t capacity);
void hvt__trace_enable(bool on); /* initially off */
void hvt__trace_close(void);
/* Take the oldest events, at most `most`; returns their number. left: events that remain; lost: events
 * dropped because the buffer was full. */
size_t hvt__trace_take(hvt__event *ret_event, size_t most, int64_t *ret_left, int64_t *ret_lost);

#endif /* HVT_BASE_TRACE_H */
