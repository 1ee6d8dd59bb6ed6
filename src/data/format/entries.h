/* entries.h - the contents of one folder: folders, pictures, and entries that are not used. */
#ifndef HVT_DATA_ENTRIES_H
#define HVT_DATA_ENTRIES_H

#include "base_impl.h"

#include <sys/stat.h>

#define HVT__PICTURES ".jpg, .jpeg, .png, .ppm, .pgm, .pbm, .bmp, .webp, .tif or .tiff"

bool hvt__is_picture_name(const char *name); /* by its suffix */

/* A list of texts, stored one after the other. */
typedef struct hvt__names {
    char *text;
    uint32_t *at; /* [n] where each text begins */
    size_t n, used, at_room, text_room;
} hvt__names;

static inline const char *hvt__name_at(const hvt__names *names, size_t i)
{
    return names->text + names->at[i];
}

/* The index of a name in a sorted list; UINT32_MAX if it is not in it. */
uint32_t hvt__name_find(const hvt__names *sorted, const char *name);
hvt_status hvt__name_add(hvt__names *names, const char *name);
void hvt__names_free(hvt__names *names);
/* "a, b, c and 7 more" */
void hvt__names_text(const hvt__names *names, char *ret_text, size_t room);
/* Makes room for `more` elements of `size` bytes after the first n. */
hvt_status hvt__names_grow(void *array, size_t n, size_t more, size_t *room, size_t size);

typedef enum hvt__unused_kind {
    HVT__UNUSED_FILE,    /* not a picture, by its suffix */
    HVT__UNUSED_TABLE,   /* .csv or .tsv, which may hold labels */
    HVT__UNUSED_HIDDEN,  /* hidden (its name begins with a dot), or left by a system, such as __MACOSX */
    HVT__UNUSED_LINK,    /* broken */
    HVT__UNUSED_PICTURE, /* beside class folders */
    HVT__UNUSED_OTHER_PICTURE, /* of an unsupported format, by its suffix */
    HVT__UNUSED_KINDS
} hvt__unused_kind;

/* The number of unused entries of each kind, and an example. */
typedef struct hvt__unused {
    uint64_t n[HVT__UNUSED_KINDS];
    char first[HVT__UNUSED_KINDS][NAME_MAX + 1];
} hvt__unused;

void hvt__unused_add(hvt__unused *unused, hvt__unused_kind kind, uint64_t n, const char *name);

/* The attributes that show that a folder has changed. */
typedef struct hvt__folder_state {
    int64_t mtime, ctime; /* ns; programs can set mtime, but not ctime */
    uint64_t size;        /* combined with the number of links */
} hvt__folder_state;

static inline hvt__folder_state hvt__folder_state_of(const struct stat *info)
{
    return (hvt__folder_state){(int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec,
                               (int64_t)info->st_ctim.tv_sec * 1000000000 + info->st_ctim.tv_nsec,
                               (uint64_t)info->st_size ^ (uint64_t)info->st_nlink << 48};
}

typedef struct hvt__entries {
    hvt__names folders, pictures; /* sorted; a link counts as its target */
    hvt__unused unused;
    char dead_link[NAME_MAX + 1]; /* the first broken link without a picture's suffix; "": none */
    hvt__folder_state state;
} hvt__entries;

/* Errors: E_IO, E_FORMAT (too many names), E_MEM. */
hvt_status hvt__entries_read(const char *path, hvt__entries *ret_entries);
void hvt__entries_free(hvt__entries *e);

typedef enum hvt__fs_kind {
    HVT__FS_PLAIN,
    HVT__FS_IMAGE,  /* read-only image, whose times may be fixed: squashfs and the like */
    HVT__FS_PROGRAM /* FUSE: a program may invent times, at least those of folders */
} hvt__fs_kind;

/* The kind of the file system that holds a file or folder. */
hvt__fs_kind hvt__fs_kind_of(const char *path);

#endif /* HVT_DATA_ENTRIES_H */
