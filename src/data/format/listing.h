/*
 * listing.h - the pictures below a folder, as torchvision's ImageFolder finds and sorts them.
 *
 * A listing is one block without pointers: it is sent to other hosts, shared by the ranks of a host, and
 * stored in a file as it is. Paths are relative to its root.
 */
#ifndef HVT_DATA_LISTING_H
#define HVT_DATA_LISTING_H

#include "data/data_impl.h"
#include "entries.h"
#include "world/node.h"

#include <stdatomic.h>

typedef struct hvt__listing {
    const char *block; /* in `node`, or malloc'ed */
    size_t bytes;
    hvt__node node;

    uint32_t files, classes, folders;
    uint64_t fingerprint;           /* of names and classes */
    const hvt__folder_state *state; /* [folders] */
    const uint32_t *class_name;     /* [classes] names' offsets in `text`; classes 0: unlabelled */
    const uint32_t *folder_name;    /* [folders] */
    const uint32_t *folder_class;   /* [folders] */
    const uint32_t *folder_first;   /* [folders + 1] first file of each folder */
    const uint32_t *file_name;      /* [files] */
    const char *text;
    const char *note;       /* the entries that are not used; "": none */
    bool is_warning;        /* of the note */
    _Atomic uint32_t *seen; /* [files] a file's state when it was first read; 0: not read yet */
} hvt__listing;

/* A folder to list. */
typedef struct hvt__listed {
    const char *root;
    const char *classes_of; /* the folder that defines the classes: root, or one with all of its classes */
    bool flat; /* if there are pictures beside the root's folders, these are not classes, and all pictures are
                  unlabelled */
} hvt__listed;

/* Lists the root, or loads the stored list, and reports what is not used: rank 0 for all. Collective with a
 * world; its errors are agreed. Errors: E_IO, E_FORMAT (no pictures, empty classes, classes that classes_of
 * does not have), E_MEM. */
hvt_status hvt__listing_open(const hvt__listed *what, hvt_world *world, hvt__listing *ret_listing);
void hvt__listing_close(hvt__listing *l);

/* The folder that holds a file. */
uint32_t hvt__listing_folder(const hvt__listing *l, uint32_t file);

/* The least number of files for which a listing is stored. For tests. */
extern uint32_t hvt__listing_kept_from;

/* ---- listing_scan.c ---- */

/* Scans the folders, on rank 0. *ret_block is malloc'ed. */
hvt_status hvt__listing_scan(const hvt__listed *what, char **ret_block, size_t *ret_bytes);
/* Attaches a block from a file, which may hold anything; false if it is not a listing. */
bool hvt__listing_attach(const char *block, size_t bytes, hvt__listing *ret_listing);
/* True if this root has no classes. */
bool hvt__listing_is_flat(const hvt__listed *what, const hvt__entries *root);

/* Logs a line, unless it is the last one that was logged: two splits may be parts of one folder, which is
 * then opened twice. */
void hvt__say_once(_Atomic uint64_t *said, hvt_log_level level, const char *dir, const char *text);

/* ---- splits.c ---- */

typedef struct hvt__split {
    char root[PATH_MAX], classes_of[PATH_MAX]; /* for hvt__listed */
    char masks[PATH_MAX];                      /* the folder of the pictures' masks; "": no masks */
} hvt__split;

/* Finds the folder of opts->dir that holds the images, and reports a surprising choice. On rank 0. Errors:
 * E_ARG no folder, E_IO, E_FORMAT a folder that may be a split or a class, E_MEM. */
hvt_status hvt__split_find(const hvt_dataset_opts *opts, hvt__split *ret_split);

#endif /* HVT_DATA_LISTING_H */
