/*
 * watch.h - which ranks wait for which, and for how long: watch.c collects it, watch_text.c judges it and
 * writes the text.
 *
 * Terms. A *wait* is a call that cannot return before another rank acts; it is *waiting on* that rank. A
 * *position* is a thread's update, phase and detail (trace.h).
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
enum { HVT__WATCH_GRACE = 1 /* s, between ranks that give up with a report and those that only give up */ };

/* Begin a wait for rank `peer` of w, or HVT__ANYONE, "to `what`". Returns a handle, -1 without a watchdog.
 * Not free: use it for waits that are not over at once. Any thread, several at a time. */
int hvt__wait_begin(const hvt_world *w, int peer, const char *what);
/* The distance, in operations, from the operation that this thread runs to the one that it was asked to wait
 * for. The bucket in its position is that of the latter. */
extern _Thread_local int64_t hvt__wait_behind;
/* Sets the ranks of w that a wait is waiting on; only HVT__WAITING_ON of them are named. */
void hvt__wait_on(int wait, const hvt_world *w, const int *peer, int n);
void hvt__wait_end(int wait);

/* Limits set by hvt_world_watch() for worlds opened later. */
extern hvt_stall hvt__watch_default;
/* Watch a newly opened world unless this thread has another watched. Collective. */
void hvt__watch_by_default(hvt_world *world);
/* True if this rank of w has given up after stall.abort and its program continues: its waits must fail. */
bool hvt__watch_gave_up(const hvt_world *w);
/* Tell the program that this rank gives up, after logging this line; "": another rank logged it. */
void hvt__watch_give_up(const char *line);

/* Silences all watches: the line that should be the last one has been printed. */
void hvt__watch_mute(void);

/* Stop watching w. Not collective. */
void hvt__watch_close(const hvt_world *w);

/* A node's rank as last seen. Ages in seconds. */
typedef struct hvt__seen {
    int rank;            /* of the job */
    bool here;           /* its watchdog runs, and its process is neither stopped nor dead */
    bool left;           /* it has closed its watch */
    char life;           /* the letter in /proc/PID/stat; 0: unknown */
    double silent;       /* age of its watchdog's last beat */
    hvt__where position; /* of the training thread; `since` is unused */
    double position_age;
    double idle;                 /* age of its last move, begin or end of a wait, or other progress */
    char about[HVT__ABOUT_TEXT]; /* "reading FILE", if that lasts; "": unknown */
    double wait_age;             /* < 0: no wait */
    hvt__where wait_position;
    char what[HVT__WAIT_TEXT];       /* what it waits for these ranks to do */
    char tensor[HVT__TENSOR_TEXT];   /* first tensor of the bucket; "": unknown */
    int waiting_on[HVT__WAITING_ON]; /* ranks of the job; unused entries are HVT__NOBODY */
} hvt__seen;

typedef enum hvt__finding { HVT__FINE, HVT__STALLED, HVT__HOPELESS, HVT__RECOVERED } hvt__finding;

typedef struct hvt__verdict {
    hvt__finding finding;
    int speaker; /* index in `all` of the rank that reports for the node; -1: none can */
    double age;
    double idle; /* least idle time of the running ranks: no running rank has made progress for this long */
} hvt__verdict;

/* Watchdogs of other hosts (watch_hosts.c); NULL: none. */
typedef struct hvt__hosts hvt__hosts;
hvt_status hvt__hosts_open(hvt_world *world, hvt__hosts **ret_hosts); /* Collective; closed on failure, too */
void hvt__hosts_close(hvt__hosts **hosts);
/* Asks the other watchdogs, at most QUESTIONS at a time, how many changes they have seen; answers arrive
 * later. */
void hvt__hosts_ask(hvt__hosts *h);
/* Answers other watchdogs' questions with this one's number of changes, and reads answers. True if another
 * host has made progress since its last answer. */
bool hvt__hosts_listen(hvt__hosts *h, uint64_t changes);

/* all[n]: the ranks of a node; others_idle: seconds without known progress on other hosts; said: lines about
 * this stall so far, at ages warn, 2 * warn, 4 * warn ... */
hvt__verdict hvt__watch_judge(const hvt__seen *all, int n, double others_idle, const hvt_stall *stall,
                              int said);
/* Write the line to text[bytes]. named: scratch for w->size ranks. */
void hvt__watch_line(const hvt_world *w, const hvt__seen *all, int n, const hvt__verdict *v, bool *named,
                     char *text, size_t bytes);

#endif /* HVT_WORLD_WATCH_H */
