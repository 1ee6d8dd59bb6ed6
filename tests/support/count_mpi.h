/*
 * count_mpi.h - counts a program's MPI calls through MPI's profiling interface, on every communicator.
 * Included by one file of a program; its functions replace MPI's.
 *
 * A *message* is a send from one rank to another. All other communication (collectives, one-sided access, new
 * communicators, persistent requests) is *talk*, of which the last name is kept. Waiting, testing and probing
 * move no data and are not counted.
 */
#ifndef HVT_COUNT_MPI_H
#define HVT_COUNT_MPI_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>

static struct {
    atomic_llong sent, sent_bytes, taken, taken_bytes, talk;
    const char *_Atomic last_talk;
} mpi_use;

/* The counters at one moment, or the difference between two. */
typedef struct mpi_count {
    int64_t sent, sent_bytes, taken, taken_bytes, talk;
} mpi_count;

static inline mpi_count mpi_counted(mpi_count since)
{
    return (mpi_count){mpi_use.sent - since.sent, mpi_use.sent_bytes - since.sent_bytes,
                       mpi_use.taken - since.taken, mpi_use.taken_bytes - since.taken_bytes,
                       mpi_use.talk - since.talk};
}

static inline void count_sent(int count, MPI_Datatype type)
{
    int bytes;

    PMPI_Type_size(type, &bytes);
    mpi_use.sent++;
    mpi_use.sent_bytes += (int64_t)count * bytes;
}

static inline void count_taken(int count, MPI_Datatype type)
{
    int bytes;

    PMPI_Type_size(type, &bytes);
    mpi_use.taken++;
    mpi_use.taken_bytes += (int64_t)count * bytes;
}

static inline void count_talk(const char *name)
{
    mpi_use.talk++;
    mpi_use.last_talk = name;
}

#define LIST(...) __VA_ARGS__

#define SEND(name)                                                                                           \
    int MPI_##name(const void *buf, int n, MPI_Datatype t, int to, int tag, MPI_Comm c)                      \
    {                                                                                                        \
        count_sent(n, t);                                                                                    \
        return PMPI_##name(buf, n, t, to, tag, c);                                                           \
    }
#define START_SEND(name)                                                                                     \
    int MPI_##name(const void *buf, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r)      \
    {                                                                                                        \
        count_sent(n, t);                                                                                    \
        return PMPI_##name(buf, n, t, to, tag, c, r);                                                        \
    }
SEND(Send)
SEND(Bsend)
SEND(Ssend)
SEND(Rsend)
START_SEND(Isend)
START_SEND(Ibsend)
START_SEND(Issend)
START_SEND(Irsend)

int MPI_Recv(void *buf, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s)
{
    count_taken(n, t);
    return PMPI_Recv(buf, n, t, from, tag, c, s);
}

int MPI_Irecv(void *buf, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r)
{
    count_taken(n, t);
    return PMPI_Irecv(buf, n, t, from, tag, c, r);
}

int MPI_Sendrecv(const void *out, int n, MPI_Datatype t, int to, int tag, void *in, int m, MPI_Datatype u,
                 int from, int with, MPI_Comm c, MPI_Status *s)
{
    count_sent(n, t);
    count_taken(m, u);
    return PMPI_Sendrecv(out, n, t, to, tag, in, m, u, from, with, c, s);
}

/* A communicating call and its nonblocking version. */
#define LIST(...) __VA_ARGS__
#define TALK(name, params, args)                                                                             \
    int MPI_##name(LIST params)                                                                              \
    {                                                                                                        \
        count_talk("MPI_" #name);                                                                            \
        return PMPI_##name(LIST args);                                                                       \
    }
#define TALKS(name, twin, params, args)                                                                      \
    TALK(name, params, args)                                                                                 \
    TALK(twin, (LIST params, MPI_Request * request), (LIST args, request))

#define IN  const void *in
#define OUT void *out
typedef MPI_Datatype mpi_type;
TALKS(Barrier, Ibarrier, (MPI_Comm c), (c))
TALKS(Bcast, Ibcast, (OUT, int n, mpi_type t, int root, MPI_Comm c), (out, n, t, root, c))
TALKS(Gather, Igather, (IN, int n, mpi_type t, OUT, int m, mpi_type u, int root, MPI_Comm c),
      (in, n, t, out, m, u, root, c))
TALKS(Gatherv, Igatherv,
      (IN, int n, mpi_type t, OUT, const int m[], const int at[], mpi_type u, int root, MPI_Comm c),
      (in, n, t, out, m, at, u, root, c))
TALKS(Scatter, Iscatter, (IN, int n, mpi_type t, OUT, int m, mpi_type u, int root, MPI_Comm c),
      (in, n, t, out, m, u, root, c))
TALKS(Scatterv, Iscatterv,
      (IN, const int n[], const int at[], mpi_type t, OUT, int m, mpi_type u, int root, MPI_Comm c),
      (in, n, at, t, out, m, u, root, c))
TALKS(Allgather, Iallgather, (IN, int n, mpi_type t, OUT, int m, mpi_type u, MPI_Comm c),
      (in, n, t, out, m, u, c))
TALKS(Allgatherv, Iallgatherv,
      (IN, int n, mpi_type t, OUT, const int m[], const int at[], mpi_type u, MPI_Comm c),
      (in, n, t, out, m, at, u, c))
TALKS(Alltoall, Ialltoall, (IN, int n, mpi_type t, OUT, int m, mpi_type u, MPI_Comm c),
      (in, n, t, out, m, u, c))
TALKS(Alltoallv, Ialltoallv,
      (IN, const int n[], const int at[], mpi_type t, OUT, const int m[], const int to[], mpi_type u,
       MPI_Comm c),
      (in, n, at, t, out, m, to, u, c))
TALKS(Reduce, Ireduce, (IN, OUT, int n, mpi_type t, MPI_Op op, int root, MPI_Comm c),
      (in, out, n, t, op, root, c))
TALKS(Allreduce, Iallreduce, (IN, OUT, int n, mpi_type t, MPI_Op op, MPI_Comm c), (in, out, n, t, op, c))
TALKS(Reduce_scatter, Ireduce_scatter, (IN, OUT, const int n[], mpi_type t, MPI_Op op, MPI_Comm c),
      (in, out, n, t, op, c))
TALKS(Reduce_scatter_block, Ireduce_scatter_block, (IN, OUT, int n, mpi_type t, MPI_Op op, MPI_Comm c),
      (in, out, n, t, op, c))
TALKS(Scan, Iscan, (IN, OUT, int n, mpi_type t, MPI_Op op, MPI_Comm c), (in, out, n, t, op, c))
TALKS(Exscan, Iexscan, (IN, OUT, int n, mpi_type t, MPI_Op op, MPI_Comm c), (in, out, n, t, op, c))

TALK(Start, (MPI_Request * r), (r))
TALK(Startall, (int n, MPI_Request r[]), (n, r))
TALK(Comm_dup, (MPI_Comm c, MPI_Comm *ret), (c, ret))
TALK(Comm_split, (MPI_Comm c, int color, int key, MPI_Comm *ret), (c, color, key, ret))
TALK(Comm_split_type, (MPI_Comm c, int by, int key, MPI_Info info, MPI_Comm *ret), (c, by, key, info, ret))
TALK(Comm_free, (MPI_Comm * c), (c))
TALK(Win_fence, (int assert, MPI_Win w), (assert, w))
TALK(Win_lock, (int kind, int rank, int assert, MPI_Win w), (kind, rank, assert, w))
TALK(Win_lock_all, (int assert, MPI_Win w), (assert, w))
TALK(Put, (IN, int n, mpi_type t, int rank, MPI_Aint at, int m, mpi_type u, MPI_Win w),
     (in, n, t, rank, at, m, u, w))
TALK(Get, (OUT, int n, mpi_type t, int rank, MPI_Aint at, int m, mpi_type u, MPI_Win w),
     (out, n, t, rank, at, m, u, w))
TALK(Accumulate, (IN, int n, mpi_type t, int rank, MPI_Aint at, int m, mpi_type u, MPI_Op op, MPI_Win w),
     (in, n, t, rank, at, m, u, op, w))
TALK(Fetch_and_op, (IN, OUT, mpi_type t, int rank, MPI_Aint at, MPI_Op op, MPI_Win w),
     (in, out, t, rank, at, op, w))

#endif /* HVT_COUNT_MPI_H */
