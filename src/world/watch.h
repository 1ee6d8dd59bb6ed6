/*
 * watch.h - who waits for whom, and for how long: watch.c collects it, watch_text.c judges it and makes the
 * text.
 *
 * Words. A *wait* is a stay in a call that cannot return before another rank has done something; that rank is
 * what it is *waiting on*. A *position* is what trace.h knows of a thread: update, phase, detail.
 */
#ifndef HVT_WORLD_WATCH_H
#define HVT_WORLD_WATCH_H

#include "base/trace.h"
#include "world_impl.h"

enum {
    HVT__WAITING_ON = 6,
    HVT__WAIT_TEXT = 32,
    HVT__TENSOR_TEXT = 64,
    HVT__ABOUT_TEXT = 400,
    HVT__ANYONE = -1,
    HVT__NOBODY = -2
};
enum { HVT__WATCH_GRACE = 1 /* s, between those that give up and report it and those that only give up */ };

/* A wait begins: for rank `peer` of w, or HVT__ANYONE, "to `what`". Returns its handle, -1 where nobody
 * watches. Cheap, but not free: for waits that are not over at once. Any thread, several at a time. */
int hvt__wait_begin(const hvt_world *w, int peer, const char *what);
/* Operations between the one that this thread works on and the one that it was asked to wait for: so many
 * buckets come before the one in its position. */
extern _Thread_local int64_t hvt__wait_behind;
/* It waits for these ranks of w; more than HVT__WAITING_ON of them go unnamed. */
void hvt__wait_on(int wait, const hvt_world *w, const int *peer, int n);
void hvt__wait_end(int wait);

/* What hvt_world_watch() was told for worlds that are opened later. */
extern hvt_stall hvt__watch_default;
/* A world was opened: watch it, if nothing is watched. Collective. */
void hvt__watch_by_default(hvt_world *world);
/* This rank has waited for stall.abort, and its program did not end it: what it waits for fails. */
bool hvt__watch_gave_up(void);
/* It does so now, and has logged this line; "": another rank has. */
void hvt__watch_give_up(const char *line);

/* Stop watching w; NULL: whatever is watched. Needs nobody else. */
void hvt__watch_close(const hvt_world *w);

/* A rank of the node as it looks now. Ages in seconds. */
typedef struct hvt__seen {
    int rank;            /* of the job */
    bool here;           /* its watchdog runs, and its process is neither stopped nor dead */
    bool left;           /* it has closed its watch */
    char life;           /* the letter in /proc/PID/stat; 0: cannot be told */
    double silent;       /* since its watchdog was last heard of */
    hvt__where position; /* of the thread that trains; its `since` does not count */
    double position_age;
    double idle;                 /* since it moved, began or ended a wait, or made progress of any kind */
    char about[HVT__ABOUT_TEXT]; /* "reading FILE", where it has been there for a while; "": nothing known */
    double wait_age;             /* < 0: it waits for nobody */
    hvt__where wait_position;
    char what[HVT__WAIT_TEXT];       /* they are to do */
    char tensor[HVT__TENSOR_TEXT];   /* with which the bucket begins; "": none is known */
    int waiting_on[HVT__WAITING_ON]; /* ranks of the job, HVT__NOBODY where there are fewer */
} hvt__seen;

typedef enum hvt__finding { HVT__FINE, HVT__STALLED, HVT__HOPELESS, HVT__RECOVERED } hvt__finding;

typedef struct hvt__verdict {
    hvt__finding finding;
    int speaker; /* who of `all` says so: one for the node; -1: nobody can */
    double age;
    double idle; /* the least of those who are there: for so long no rank has made progress */
} hvt__verdict;

/* The watchdogs of other hosts (watch_hosts.c); NULL: there are none. */
typedef struct hvt__hosts hvt__hosts;
hvt_status hvt__hosts_open(hvt_world *world, hvt__hosts **ret_hosts); /* Collective; closed on failure, too */
void hvt__hosts_close(hvt__hosts **hosts);
/* Ask them, at most some of many at a time, how many changes they have seen; answers come later. */
void hvt__hosts_ask(hvt__hosts *h);
/* Answer their questions: this rank's watchdog has seen so many changes. True if an answer says that a rank
 * of another host has got on since the last one. */
bool hvt__hosts_listen(hvt__hosts *h, uint64_t changes);

/* all[n]: the ranks of a node; others_idle: for so long no other host is known to have got on; said: lines
 * about this stall so far, at ages warn, 2 * warn, 4 * warn ... */
hvt__verdict hvt__watch_judge(const hvt__seen *all, int n, double others_idle, const hvt_stall *stall,
                              int said);
/* One line, in text[bytes]. named: room for w->size ranks. */
void hvt__watch_line(const hvt_world *w, const hvt__seen *all, int n, const hvt__verdict *v, bool *named,
                     char *text, size_t bytes);

#endif /* HVT_WORLD_WATCH_H */
