/*
 * trace.h - where a thread is: the update, the phase, since when; and how long it has been in each phase.
 *
 *     hvt__trace_begin(HVT__EXCHANGE, bucket);
 *     return hvt__traced(hvt_comm_wait(comm, ticket));
 *
 * Phases nest. Each thread has a lane of its own, which it alone writes; where it is, any thread may ask. A
 * phase's *own* time is what passes while it is the innermost, so own times add up to the time gone by, but
 * for pauses (hvt__paused). A begin or an end costs one look at the clock.
 *
 * While somebody listens, each phase that ends leaves an event.
 */
#ifndef HVT_BASE_TRACE_H
#define HVT_BASE_TRACE_H

#include "base_impl.h"

/* Name, and what is told of it. The detail of compress to update is a bucket, of wait a rank; -1: none. */
#define HVT__PHASES(X)                                                                                       \
    X(OTHER, "other")       /* none of these */                                                              \
    X(SETUP, "setup")       /* all that comes before the first update */                                     \
    X(DATA, "data")         /* the next batch */                                                             \
    X(FORWARD, "forward")   /* and the loss */                                                               \
    X(BACKWARD, "backward") /* without what follows, where it is nested in it */                             \
    X(COMPRESS, "compress") /* to the wire's type and back */                                                \
    X(LAUNCH, "launch")     /* a bucket leaves */                                                            \
    X(EXCHANGE, "exchange") /* a bucket's sum is waited for, and worked on where no one else does */         \
    X(WAIT, "wait")         /* in it: for a rank, once looking was not enough */                             \
    X(UPDATE, "update")     /* of parameters and moving statistics */                                        \
    X(EVALUATE, "evaluate")                                                                                  \
    X(SAVE, "save")   /* a checkpoint */                                                                     \
    X(AGREE, "agree") /* ranks tell each other something small */                                            \
    X(STEP, "step")   /* a whole update: an event, in which no time is its own */

typedef enum hvt__phase {
#define HVT__PHASE_ENUM(name, text) HVT__##name,
    HVT__PHASES(HVT__PHASE_ENUM)
#undef HVT__PHASE_ENUM
        HVT__PHASE_COUNT
} hvt__phase;

const char *hvt__phase_name(hvt__phase phase);

/* Update number `step` begins, as the program counts; 0: the next one, unless one has begun. Phases that an
 * error left open are closed. */
void hvt__trace_step(int64_t step);
void hvt__trace_step_end(void);

void hvt__trace_begin(hvt__phase phase, int detail);
void hvt__trace_end(void);           /* the innermost phase; without one, nothing */
void hvt__trace_bytes(size_t bytes); /* that the innermost phase moves or works on, for its event */

static inline hvt_status hvt__traced(hvt_status s)
{
    hvt__trace_end();
    return s;
}

/* What stands behind the details of this thread's phases: of(ctx, detail), "" where nothing does. NULL: no
 * names. */
typedef const char *hvt__name_fn(const void *ctx, int detail);
void hvt__trace_names(hvt__name_fn *of, const void *ctx);
const char *hvt__trace_name(int detail);

/* Seconds of each phase's own time on this thread so far. */
void hvt__trace_seconds(double ret_seconds[HVT__PHASE_COUNT]);

/* ---- from another thread ---- */

typedef struct hvt__lane hvt__lane;

typedef struct hvt__where {
    int64_t step; /* 0: none yet */
    hvt__phase phase;
    int detail;
    double since; /* hvt__now() when the phase began */
} hvt__where;

hvt__lane *hvt__trace_lane(void); /* the calling thread's, for as long as that lives */
/* What is told are values of the recent past, of one moment unless the thread moves on meanwhile. Of a wait
 * it is the phase around it. */
hvt__where hvt__trace_where(const hvt__lane *lane);

/* ---- events ---- */

typedef enum hvt__thread { HVT__TRAINING, HVT__EXCHANGING, HVT__THREAD_COUNT } hvt__thread;

typedef struct hvt__event {
    double began, seconds; /* began: hvt__now() */
    int64_t step, bytes;   /* bytes 0: not told */
    int32_t detail;
    int16_t phase, thread;
} hvt__event;

/* The calling thread's place in timelines; without this it is the one that trains. */
void hvt__trace_thread(hvt__thread thread);

/* Keep up to `room` events that were not taken yet. One listener at a time; shut: nothing is kept. */
hvt_status hvt__trace_open(size_t capacity);
void hvt__trace_enable(bool on); /* open: off, at first */
void hvt__trace_close(void);
size_t hvt__trace_count(void);                              /* events that can be taken */
size_t hvt__trace_take(hvt__event *ret_event, size_t most); /* the oldest; returns how many */
int64_t hvt__trace_lost(void);                              /* for which there was no room */

#endif /* HVT_BASE_TRACE_H */
