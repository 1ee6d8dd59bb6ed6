/*
 * tcp.h - the world over TCP, for jobs without MPI.
 *
 * Every rank has a *door*, a listening socket. Rank 0's is at the address that all know (tcp_meet.c). Each
 * rank keeps one *line* to rank 0 for news: ranks that ended, words on channels, the end of the job
 * (tcp_serve.c). Messages travel over one connection per pair of ranks, opened when the pair first needs it
 * (tcp_messages.c). A connection begins with a hello. Nothing else is read from a peer that does not know the
 * job's secret.
 */
#ifndef HVT_WORLD_TCP_H
#define HVT_WORLD_TCP_H

#include "world_impl.h"

#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

enum { HVT__SECRET = 16, HVT__GUESTS = 64, HVT__ADDRESS_TEXT = 80, HVT__HOST_NAME = 64 };

typedef union hvt__address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} hvt__address;

typedef enum hvt__hello_kind { HVT__JOINS = 1, HVT__IS_PEER, HVT__LOOKS } hvt__hello_kind;

typedef struct hvt__hello {
    char magic[8];
    unsigned char secret[HVT__SECRET];
    int32_t kind, rank, size, pid;
    uint64_t host_id;
    int32_t port; /* of the rank's door */
    char host[HVT__HOST_NAME];
} hvt__hello;

/* Rank 0's answer to a rank that joins. */
typedef struct hvt__answer {
    char magic[8];
    unsigned char secret[HVT__SECRET];
    int32_t accepted, agreed;
    char text[512];
} hvt__answer;

/* How to reach a rank: the address of its door, its host and process. */
typedef struct hvt__tcp_place {
    hvt__address at;
    uint64_t host_id;
    int32_t
        near_zero; /* it reached rank 0 over the loopback, so its address is rank 0's, with its own port */
    int32_t pid;
    char host[HVT__HOST_NAME];
} hvt__tcp_place;

/* A listening socket, and connections whose hello has not arrived. */
typedef struct hvt__door {
    int fd;
    bool warned;
    struct {
        int fd; /* -1: free */
        size_t got;
        double since;
        hvt__hello hello;
        hvt__address from;
    } guest[HVT__GUESTS];
} hvt__door;

/* Kinds of news on a line. */
typedef enum hvt__news_kind {
    HVT__RANK_ENDED = 1,
    HVT__WORD, /* a rank's word on a channel */
    HVT__ABORTS,
    HVT__CLOSES
} hvt__news_kind;
typedef struct hvt__news {
    int32_t kind, rank, channel, value;
} hvt__news;

typedef struct hvt__line {
    int fd; /* -1: none */
    size_t got;
    hvt__news news;
} hvt__line;

typedef struct hvt__tcp_pair hvt__tcp_pair;

/* The header of a message. */
typedef struct hvt__tcp_head {
    uint32_t channel, tag;
    uint64_t bytes;
} hvt__tcp_head;

/* A message in flight. */
typedef struct hvt__tcp_request {
    struct hvt__tcp_request *next;
    char *at;
    size_t moved;
    hvt__tcp_head head;
    int peer;
    bool send, done, owned; /* owned: a dropped send, freed once it is complete */
} hvt__tcp_request;

/* A job's connections, shared by a world and the worlds split from it. */
typedef struct hvt__tcp {
    int rank, size, users;
    unsigned char secret[HVT__SECRET];
    hvt__tcp_place *place; /* [size] */
    hvt__address zero;     /* rank 0's address, as this rank reached it */
    char interface[16];

    hvt__door door;
    hvt__line *line; /* rank 0: [size]; others: [1], to rank 0 */
    struct pollfd *polled;
    pthread_t thread;
    int stop; /* eventfd */
    bool runs;
    pthread_mutex_t tell; /* guards writes to lines */
    atomic_int *gone;     /* [size] hvt__departure */

    pthread_mutex_t lock; /* guards all of the following */
    hvt__tcp_pair *pair;  /* [size] */
    int epoll, wake;      /* wake: eventfd for threads that sleep in epoll_wait() */
    int sleepers;
    uint32_t channels; /* the highest channel number given so far */
    hvt__news *word;   /* [words] last words of ranks on channels */
    int words, words_room;
} hvt__tcp;

/* How the ranks meet. */
typedef struct hvt__meeting {
    enum { HVT__BY_ADDRESS, HVT__BY_FILE } by;
    char host[256], path[PATH_MAX], shown[300];
    int port, ports; /* rank 0 takes the first free one of `ports` */
    int rank, size;
    char interface[16];
    unsigned char secret[HVT__SECRET];
} hvt__meeting;

/* tcp_net.c */
extern const char hvt__tcp_magic[8];
socklen_t hvt__address_bytes(const hvt__address *a);
void hvt__address_text(const hvt__address *a, char ret_text[HVT__ADDRESS_TEXT]); /* "10.0.7.1:2345" */
int hvt__address_port(const hvt__address *a);
void hvt__address_set_port(hvt__address *a, int port);
bool hvt__address_is_loopback(const hvt__address *a);
/* Finds the address of an interface in this family (AF_UNSPEC: any). E_ARG lists the existing interfaces. */
hvt_status hvt__interface_address(const char *name, int family, hvt__address *ret_address);
/* Looks up at most `most` addresses of a host name; returns their number, or 0 with the reason in ret_why. */
int hvt__look_up(const char *host, int port, hvt__address *ret, int most, const char **ret_why);
/* Opens a listening socket; -1 with errno. port 0: any. at NULL: all addresses of the host. */
int hvt__listen(const hvt__address *at, int port);
/* Connects within `seconds`; -1 with errno. from: the local address to use; NULL: any. */
int hvt__connect(const hvt__address *to, const hvt__address *from, double seconds);
/* Sets a connection's options: a peer that cannot be reached for --stall-abort seconds counts as ended. */
void hvt__connection_options(int fd);
/* Send or receive all bytes within `seconds`; false with errno, which is 0 if the other end closed. */
bool hvt__send_all(int fd, const void *data, size_t bytes, double seconds);
bool hvt__recv_all(int fd, void *data, size_t bytes, double seconds);
/* A hash of machine, host name, PID and network namespace; ranks that differ in it cannot share memory. */
uint64_t hvt__host_id(void);
void hvt__random_secret(unsigned char ret_secret[HVT__SECRET]);
bool hvt__secret_parse(const char *text, unsigned char ret_secret[HVT__SECRET]); /* any text */

/* tcp_serve.c */
typedef void hvt__enter_fn(void *ctx, int fd, const hvt__hello *hello, const hvt__address *from);
/* Append the door's sockets to p; returns their number. */
int hvt__door_poll(const hvt__door *d, struct pollfd *p);
/* Accepts connections, reads hellos, and lets in peers with the secret. Others are refused, which is logged
 * once. */
void hvt__door_look(hvt__door *d, const unsigned char *secret, hvt__enter_fn *enter, void *ctx);
void hvt__door_close(hvt__door *d);
void hvt__answer_fill(hvt__answer *a, const unsigned char *secret);
hvt_status hvt__serve_open(hvt__tcp *t);
void hvt__serve_close(hvt__tcp *t);
/* Tell all other ranks, through rank 0. */
void hvt__tell(hvt__tcp *t, const hvt__news *news);

/* tcp_messages.c */
hvt_status hvt__tcp_messages_open(hvt__tcp *t);
void hvt__tcp_messages_close(hvt__tcp *t);
/* Uses a connection that the peer has opened. */
void hvt__tcp_adopt(hvt__tcp *t, int fd, int peer);
hvt_status hvt__tcp_post(hvt__tcp *t, hvt__flight *f, uint32_t channel, bool send, void *at, size_t bytes,
                         int peer);
bool hvt__tcp_test(hvt__tcp *t, hvt__flight *f, bool again);
bool hvt__tcp_test_one(hvt__tcp *t, hvt__flight *f, int i);
void hvt__tcp_drop(hvt__tcp *t, hvt__flight *f);
void hvt__tcp_forget(hvt__tcp *t, uint32_t channel); /* drops the messages that arrived on it */

/* tcp_meet.c */
hvt_status hvt__meeting_of(const hvt_tcp_opts *opts, hvt__meeting *ret_meeting);
/* Meet the other ranks; fills rank, size, secret, place, zero, door and line. */
hvt_status hvt__meet(const hvt__meeting *m, hvt__tcp *t);

/* spawn.c: rank 0's listening socket that hvt_spawn() opened; -1: none. */
extern int hvt__spawned_door;

#endif /* HVT_WORLD_TCP_H */
