/*
 * listing.h - the pictures below a folder, as torchvision's ImageFolder finds and sorts them.
 *
 * A listing is one block without pointers: it is sent to other hosts, shared by the ranks of one, and kept in
 * a file as it is. Paths are relative to its root.
 */
#ifndef HVT_DATA_LISTING_H
#define HVT_DATA_LISTING_H

#include "base_impl.h"
#include "world/node.h"

#include <stdatomic.h>

typedef struct hvt__listing {
    const char *block; /* points into `node`, or is malloc'ed */
    size_t bytes;
    hvt__node node;

    uint32_t files, classes, folders;
    uint64_t fingerprint;         /* of names and classes */
    const int64_t *mtime;         /* [folders] in ns */
    const uint32_t *class_name;   /* [classes] where they begin in `text`; classes 0: unlabelled */
    const uint32_t *folder_name;  /* [folders] */
    const uint32_t *folder_class; /* [folders] */
    const uint32_t *folder_first; /* [folders + 1] their files */
    const uint32_t *file_name;    /* [files] */
    const char *text;
    _Atomic uint32_t *seen; /* [files] what a file looked like when it was first read; 0: not yet */
} hvt__listing;

/* List `root`, or take the list that was kept: rank 0 for all. classes_of: the folder whose classes count;
 * root, or another, which has all classes of root and perhaps more. Collective with a world; its errors are
 * agreed. Errors: E_IO, E_FORMAT (no pictures, classes that are empty or that only root has), E_MEM. */
hvt_status hvt__listing_open(const char *root, const char *classes_of, hvt_world *world,
                             hvt__listing *ret_listing);
void hvt__listing_close(hvt__listing *l);

/* The folder that holds a file. */
uint32_t hvt__listing_folder(const hvt__listing *l, uint32_t file);

/* Listings of so many files are kept. For tests. */
extern uint32_t hvt__listing_kept_from;

/* ---- listing_scan.c ---- */

/* rank 0's part: *ret_block is malloc'ed. */
hvt_status hvt__listing_scan(const char *root, const char *classes_of, char **ret_block, size_t *ret_bytes);
/* A block from a file, which may hold anything: false if it is no listing. */
bool hvt__listing_attach(const char *block, size_t bytes, hvt__listing *ret_listing);
/* Texts, one behind the other. */
typedef struct hvt__names {
    char *text;
    uint32_t *at; /* [n] where each begins */
    size_t n, used, at_room, text_room;
} hvt__names;

static inline const char *hvt__name_at(const hvt__names *names, size_t i)
{
    return names->text + names->at[i];
}

/* The names of root's classes, sorted; and whether pictures lie beside them. */
hvt_status hvt__listing_classes(const char *root, hvt__names *ret_classes, bool *ret_pictures);
void hvt__names_free(hvt__names *names);

#endif /* HVT_DATA_LISTING_H */
