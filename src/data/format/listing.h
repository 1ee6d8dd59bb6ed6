/*
 * listing.h - the pictures below a folder, as torchvision's ImageFolder finds and sorts them.
 *
 * A listing is one block without pointers: it is sent to other hosts, shared by the ranks of one, and kept in
 * a file as it is. Paths are relative to its root.
 */
#ifndef HVT_DATA_LISTING_H
#define HVT_DATA_LISTING_H

#include "data/data_impl.h"
#include "entries.h"
#include "world/node.h"

#include <stdatomic.h>

typedef struct hvt__listing {
    const char *block; /* points into `node`, or is malloc'ed */
    size_t bytes;
    hvt__node node;

    uint32_t files, classes, folders;
    uint64_t fingerprint;           /* of names and classes */
    const hvt__folder_state *state; /* [folders] */
    const uint32_t *class_name;     /* [classes] where they begin in `text`; classes 0: unlabelled */
    const uint32_t *folder_name;    /* [folders] */
    const uint32_t *folder_class;   /* [folders] */
    const uint32_t *folder_first;   /* [folders + 1] their files */
    const uint32_t *file_name;      /* [files] */
    const char *text;
    const char *note;       /* what is not used; "": nothing */
    bool is_warning;        /* the note */
    _Atomic uint32_t *seen; /* [files] what a file looked like when it was first read; 0: not yet */
} hvt__listing;

/* A folder to list. */
typedef struct hvt__listed {
    const char *root;
    const char *classes_of; /* the folder whose classes count: root, or one with all of its classes */
    bool flat; /* where pictures lie beside the root's folders, these are no classes: all are unlabelled */
} hvt__listed;

/* List the root, or take the list that was kept, and say what is not used: rank 0 for all. Collective with a
 * world; its errors are agreed. Errors: E_IO, E_FORMAT (no pictures, classes that are empty or that only root
 * has), E_MEM. */
hvt_status hvt__listing_open(const hvt__listed *what, hvt_world *world, hvt__listing *ret_listing);
void hvt__listing_close(hvt__listing *l);

/* The folder that holds a file. */
uint32_t hvt__listing_folder(const hvt__listing *l, uint32_t file);

/* Listings of so many files are kept. For tests. */
extern uint32_t hvt__listing_kept_from;

/* ---- listing_scan.c ---- */

/* rank 0's part: *ret_block is malloc'ed. */
hvt_status hvt__listing_scan(const hvt__listed *what, char **ret_block, size_t *ret_bytes);
/* A block from a file, which may hold anything: false if it is no listing. */
bool hvt__listing_attach(const char *block, size_t bytes, hvt__listing *ret_listing);
/* True if such a root has no classes. */
bool hvt__listing_is_flat(const hvt__listed *what, const hvt__entries *root);

/* Log a line, unless it is what was logged last: two splits may be parts of one folder, which is then opened
 * twice. */
void hvt__say_once(_Atomic uint64_t *said, hvt_log_level level, const char *dir, const char *text);

/* ---- splits.c ---- */

typedef struct hvt__split {
    char root[PATH_MAX], classes_of[PATH_MAX]; /* as of hvt__listed */
} hvt__split;

/* Where the images of opts->dir are, and say so where it may surprise. On rank 0. Errors: E_ARG no folder,
 * E_IO, E_FORMAT a folder that may be a split or a class, E_MEM. */
hvt_status hvt__split_find(const hvt_dataset_opts *opts, hvt__split *ret_split);

#endif /* HVT_DATA_LISTING_H */
