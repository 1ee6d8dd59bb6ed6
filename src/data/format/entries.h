/*
 * entries.h - what lies in one folder: folders, pictures, and what is not used.
 */
#ifndef HVT_DATA_ENTRIES_H
#define HVT_DATA_ENTRIES_H

#include "base_impl.h"

#include <sys/stat.h>

#define HVT__PICTURES ".jpg, .jpeg, .png, .ppm, .pgm or .pbm"

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

/* The place of a name in a sorted list; UINT32_MAX: it is not there. */
uint32_t hvt__name_find(const hvt__names *sorted, const char *name);
hvt_status hvt__name_add(hvt__names *names, const char *name);
void hvt__names_free(hvt__names *names);
/* "a, b, c and 7 more" */
void hvt__names_text(const hvt__names *names, char *ret_text, size_t room);
/* Room for `more` elements of `size` bytes behind n. */
hvt_status hvt__names_grow(void *array, size_t n, size_t more, size_t *room, size_t size);

typedef enum hvt__unused_kind {
    HVT__UNUSED_FILE,   /* no picture, by its suffix */
    HVT__UNUSED_TABLE,  /* .csv or .tsv, which may hold labels */
    HVT__UNUSED_HIDDEN, /* a file or folder whose name begins with a dot, or one of a system, such as __MACOSX
                         */
    HVT__UNUSED_LINK,   /* to nothing */
    HVT__UNUSED_PICTURE,       /* beside the folders of classes */
    HVT__UNUSED_OTHER_PICTURE, /* of a format that cannot be read, by its suffix */
    HVT__UNUSED_KINDS
} hvt__unused_kind;

/* How many entries of each kind were left out, and an example. */
typedef struct hvt__unused {
    uint64_t n[HVT__UNUSED_KINDS];
    char first[HVT__UNUSED_KINDS][NAME_MAX + 1];
} hvt__unused;

void hvt__unused_add(hvt__unused *unused, hvt__unused_kind kind, uint64_t n, const char *name);

/* What tells that a folder has changed. */
typedef struct hvt__folder_state {
    int64_t mtime, ctime; /* ns; programs may set the former, but not the latter */
    uint64_t size;        /* and number of links */
} hvt__folder_state;

static inline hvt__folder_state hvt__folder_state_of(const struct stat *info)
{
    return (hvt__folder_state){(int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec,
                               (int64_t)info->st_ctim.tv_sec * 1000000000 + info->st_ctim.tv_nsec,
                               (uint64_t)info->st_size ^ (uint64_t)info->st_nlink << 48};
}

typedef struct hvt__entries {
    hvt__names folders, pictures; /* sorted; links are what they lead to */
    hvt__unused unused;
    char dead_link[NAME_MAX + 1]; /* the first one to nothing that has no picture's suffix; "": none */
    hvt__folder_state state;
} hvt__entries;

/* Errors: E_IO, E_FORMAT too many names, E_MEM. */
hvt_status hvt__entries_read(const char *path, hvt__entries *ret_entries);
void hvt__entries_free(hvt__entries *e);

typedef enum hvt__fs_kind {
    HVT__FS_PLAIN,
    HVT__FS_IMAGE,  /* of a fixed state, whose times may be fixed, too: squashfs and the like */
    HVT__FS_PROGRAM /* FUSE: times may be made up, at least those of folders */
} hvt__fs_kind;

/* The kind of the file system that holds a file or folder. */
hvt__fs_kind hvt__fs_kind_of(const char *path);

#endif /* HVT_DATA_ENTRIES_H */
