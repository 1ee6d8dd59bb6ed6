/*
 * shards.h - the index of all shards of a split.
 *
 * It is one block without pointers, which rank 0 makes, every host receives once, and its ranks share.
 */
#ifndef HVT_DATA_SHARDS_H
#define HVT_DATA_SHARDS_H

#include "tar_index.h"
#include "world/node.h"

typedef struct hvt__shard {
    uint64_t index; /* offset of its hvt__tar_index in the block */
    uint64_t path;  /* offset of its path, which ends in a zero */
    uint64_t first; /* number of its first sample in the split */
} hvt__shard;

/* The block: this head, then hvt__shard[shards], then the indexes and paths. */
typedef struct hvt__shards {
    uint64_t bytes; /* of the block */
    uint64_t shards, samples, classes, labelled, masked;
    uint64_t fingerprint;
} hvt__shards;

static inline const hvt__shard *hvt__shard_at(const hvt__shards *s, uint64_t i)
{
    return (const hvt__shard *)(s + 1) + i;
}

static inline const hvt__tar_index *hvt__shard_index(const hvt__shards *s, uint64_t i)
{
    return (const hvt__tar_index *)((const char *)s + hvt__shard_at(s, i)->index);
}

static inline const char *hvt__shard_path(const hvt__shards *s, uint64_t i)
{
    return (const char *)s + hvt__shard_at(s, i)->path;
}

typedef struct hvt__shard_set {
    const hvt__shards *block; /* shared by the node, or malloc'ed */
    hvt__node node;
} hvt__shard_set;

/* Opens the shards DIR/SPLIT-*.tar in the order of their names. Collective with a world; its errors are
 * agreed. Errors: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__shards_open(const char *dir, const char *split, hvt_world *world, hvt__shard_set *ret_set);
void hvt__shards_close(hvt__shard_set *set);

#endif /* HVT_DATA_SHARDS_H */
