/*
 * Scanning class folders, as torchvision's ImageFolder does: classes are the folders in the root, sorted by
 * the bytes of their names; pictures are the files with a picture's suffix below them, at any depth, sorted
 * by folder and name; links are followed. Unlike there, hidden folders and files are not used. Whatever is
 * not used is counted, for a note.
 *
 * Each thread takes one class after the other, which helps when a disk or a network responds slowly. The
 * order of the result does not depend on the threads.
 */
#define _GNU_SOURCE
#include "base/thread.h"
#include "listing.h"

#include <errno.h>

enum { THREADS = 8, DEPTH_MAX = 40, NOTE = 1200 };

static const double progress = 2; /* s between two progress lines */

/* A folder with pictures. */
typedef struct leaf {
    char *path; /* relative to the root */
    hvt__folder_state state;
    hvt__names names;
} leaf;

typedef struct group { /* of one class */
    const char *name;
    uint32_t number;
    leaf *leaf;
    size_t n, room;
    uint64_t files;
    hvt__unused unused;
    hvt_status status;
    hvt__error error;
} group;

typedef struct scan {
    const char *root;
    hvt__unused unused; /* in the root itself */
    group *group;
    size_t groups, next, done;
    uint64_t files;
    pthread_mutex_t lock;
    pthread_cond_t finished;
} scan;

static hvt_status walk(const scan *c, group *g, const char *path, int depth);

static hvt_status walk_inside(const scan *c, group *g, const char *path, const hvt__names *folders, int depth)
{
    for (size_t i = 0; i < folders->n; i++) {
        char inside[PATH_MAX];

        HVT_TRY(hvt__path(inside, "%s%s%s", path, *path ? "/" : "", hvt__name_at(folders, i)));
        HVT_TRY(walk(c, g, inside, depth + 1));
    }
    return HVT_OK;
}

static void add_unused(group *g, const hvt__unused *unused, const char *path)
{
    for (int k = 0; k < HVT__UNUSED_KINDS; k++) {
        char where[NAME_MAX + 1];

        if (*path)
            snprintf(where, sizeof where, "%.100s in %.150s", unused->first[k], path);
        hvt__unused_add(&g->unused, k, unused->n[k], *path ? where : unused->first[k]);
    }
}

/* Adds a folder of a class ("" for the root itself) and the folders inside it, including those without
 * pictures, since their times show when pictures are added. */
static hvt_status walk(const scan *c, group *g, const char *path, int depth)
{
    hvt__entries in = {0};
    char full[PATH_MAX];
    leaf l = {0};
    hvt_status s = HVT_OK;

    HVT_CHECK(depth < DEPTH_MAX, E_FORMAT, "%s/%s: folders are nested %d deep, perhaps by a circular link",
              c->root, path, depth);
    HVT_TRY(hvt__path(full, *path ? "%s/%s" : "%s", c->root, path));
    HVT_TRY(hvt__names_grow(&g->leaf, g->n, 1, &g->room, sizeof *g->leaf));
    HVT_TRY(hvt__entries_read(full, &in));
    l.path = strdup(path);
    HVT_CHECK_OR(done, l.path, E_MEM, "no memory to list %s", full);
    l.state = in.state;
    l.names = in.pictures;
    in.pictures = (hvt__names){0};
    g->leaf[g->n++] = l; /* g owns it now */
    g->files += l.names.n;
    add_unused(g, &in.unused, path);
    HVT_TRY_OR(done, walk_inside(c, g, path, &in.folders, depth));
done:
    hvt__entries_free(&in);
    return s;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const leaf *)a)->path, ((const leaf *)b)->path);
}

static void *scan_classes(void *arg)
{
    scan *c = arg;

    pthread_mutex_lock(&c->lock);
    while (c->next < c->groups) {
        group *g = &c->group[c->next++];

        pthread_mutex_unlock(&c->lock);
        g->status = walk(c, g, g->name, 0);
        if (g->status)
            hvt__error_take(&g->error);
        qsort(g->leaf, g->n, sizeof *g->leaf, by_path);
        pthread_mutex_lock(&c->lock);
        c->files += g->files;
        if (++c->done == c->groups)
            pthread_cond_broadcast(&c->finished);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Waits until all classes are done, with a progress line now and then. */
static void await_classes(scan *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->done < c->groups) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (time_t)progress;
        if (pthread_cond_timedwait(&c->finished, &c->lock, &until) == ETIMEDOUT)
            HVT_INFO("%s: %zu of %zu classes listed, %llu pictures", c->root, c->done, c->groups,
                     (unsigned long long)c->files);
    }
    pthread_mutex_unlock(&c->lock);
}

static hvt_status run_scan(scan *c)
{
    pthread_t thread[THREADS];
    int n = 0, most = c->groups < THREADS ? (int)c->groups : THREADS;

    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->finished, NULL);
    while (n < most && !hvt__thread_start(&thread[n], scan_classes, c))
        n++;
    if (n == 0)
        scan_classes(c);
    await_classes(c);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    pthread_cond_destroy(&c->finished);
    pthread_mutex_destroy(&c->lock);
    for (size_t i = 0; i < c->groups; i++)
        if (c->group[i].status) {
            hvt__error_put(&c->group[i].error);
            return c->group[i].status;
        }
    return HVT_OK;
}

/* Refuses the groups for which `is` is true. */
static hvt_status refuse_groups(const scan *c, bool is(const group *g), const char *what)
{
    hvt__names found = {0};
    char names[1200];
    hvt_status s = HVT_OK;

    for (size_t i = 0; i < c->groups && s == HVT_OK; i++)
        if (is(&c->group[i]))
            s = hvt__name_add(&found, c->group[i].name);
    hvt__names_text(&found, names, sizeof names);
    if (found.n && s == HVT_OK)
        s = HVT_FAIL(E_FORMAT, "%s: %s: %s", c->root, what, names);
    hvt__names_free(&found);
    return s;
}

static bool is_empty(const group *g)
{
    return g->files == 0;
}

static bool is_unknown(const group *g)
{
    return g->number == UINT32_MAX;
}

/* Refuses unsuitable classes. A class may be empty if another folder defines the classes. */
static hvt_status check_groups(const scan *c, const char *classes_of)
{
    char what[PATH_MAX + 40];

    snprintf(what, sizeof what, "classes that %s does not have", classes_of);
    HVT_TRY(refuse_groups(c, is_unknown, what));
    if (!strcmp(c->root, classes_of) || !c->files)
        HVT_TRY(refuse_groups(c, is_empty, "classes without a picture (" HVT__PICTURES ")"));
    HVT_CHECK(c->files < UINT32_MAX, E_FORMAT, "%s: %llu pictures are too many", c->root,
              (unsigned long long)c->files);
    return HVT_OK;
}

/* Warns of classes without images here. Groups and classes are sorted by name. */
static hvt_status warn_of_classes(const scan *c, const hvt__names *classes)
{
    hvt__names missing = {0};
    char names[600];
    hvt_status s = HVT_OK;

    for (size_t i = 0, at = 0; i < classes->n && s == HVT_OK; i++) {
        while (at < c->groups && c->group[at].number < i)
            at++;
        if (at == c->groups || c->group[at].number > i || is_empty(&c->group[at]))
            s = hvt__name_add(&missing, hvt__name_at(classes, i));
    }
    hvt__names_text(&missing, names, sizeof names);
    if (missing.n && s == HVT_OK)
        HVT_WARN("%s: %zu of %zu classes have no images here: %s", c->root, missing.n, classes->n, names);
    hvt__names_free(&missing);
    return s;
}

/* "not used: 3 files other than .jpg, ... (notes.txt in ant), 1 broken link (b.jpg in bee)" */
static void write_note(const scan *c, char ret_note[NOTE], bool *ret_is_warning)
{
    static const char *const of[HVT__UNUSED_KINDS][2] = {
        {"file other than " HVT__PICTURES, "files other than " HVT__PICTURES},
        {"table, since labels are folder names", "tables, since labels are folder names"},
        {"hidden or system entry", "hidden or system entries"},
        {"broken link", "broken links"},
        {"picture beside class folders", "pictures beside class folders"},
        {"picture to convert to JPEG or PNG", "pictures to convert to JPEG or PNG"}};
    hvt__unused all = c->unused;
    size_t used = 0;

    for (size_t i = 0; i < c->groups; i++)
        for (int k = 0; k < HVT__UNUSED_KINDS; k++)
            hvt__unused_add(&all, k, c->group[i].unused.n[k], c->group[i].unused.first[k]);
    *ret_note = 0;
    for (int k = 0; k < HVT__UNUSED_KINDS && used < NOTE; k++)
        if (all.n[k])
            used += (size_t)snprintf(ret_note + used, NOTE - used, "%s%llu %s (%s)",
                                     used ? ", " : "not used: ", (unsigned long long)all.n[k],
                                     of[k][all.n[k] > 1], all.first[k]);
    *ret_is_warning =
        all.n[HVT__UNUSED_LINK] || all.n[HVT__UNUSED_PICTURE] || all.n[HVT__UNUSED_OTHER_PICTURE];
}

/* ---- the block ---- */

typedef struct header {
    char magic[8];
    uint64_t bytes, hash; /* of all that follows `hash` */
    uint64_t fingerprint;
    uint32_t files, classes, folders, text; /* text: bytes */
    uint32_t note, is_warning;              /* note: its offset in the text */
} header;

static const char magic[8] = "HVTLIST3";

static uint64_t bytes_of(const header *h)
{
    return sizeof *h + sizeof(hvt__folder_state) * (uint64_t)h->folders +
           4 * ((uint64_t)h->classes + 3 * (uint64_t)h->folders + 1 + h->files) + h->text;
}

static uint64_t hash_of(const char *block, size_t bytes)
{
    size_t from = offsetof(header, fingerprint);

    return hvt__hash(HVT_HASH_INIT, block + from, bytes - from);
}

/* Sets the pointers to the block's parts, unchecked. */
static void lay_out(const char *block, hvt__listing *l)
{
    const header *h = (const header *)(const void *)block;
    const char *at = block + sizeof *h;

    l->block = block;
    l->bytes = h->bytes;
    l->files = h->files;
    l->classes = h->classes;
    l->folders = h->folders;
    l->fingerprint = h->fingerprint;
    l->state = (const hvt__folder_state *)(const void *)at;
    l->class_name = (const uint32_t *)(l->state + h->folders);
    l->folder_name = l->class_name + h->classes;
    l->folder_class = l->folder_name + h->folders;
    l->folder_first = l->folder_class + h->folders;
    l->file_name = l->folder_first + h->folders + 1;
    l->text = (const char *)(l->file_name + h->files);
    l->note = l->text + h->note;
    l->is_warning = h->is_warning;
}

static bool below(const uint32_t *at, uint32_t n, uint32_t most)
{
    for (uint32_t i = 0; i < n; i++)
        if (at[i] >= most)
            return false;
    return true;
}

bool hvt__listing_attach(const char *block, size_t bytes, hvt__listing *ret_listing)
{
    const header *h = (const header *)(const void *)block;
    hvt__listing l = {0};

    if (bytes < sizeof *h || memcmp(h->magic, magic, sizeof magic) || h->bytes != bytes ||
        bytes_of(h) != bytes || h->note >= h->text || block[bytes - 1] || !h->files || !h->folders ||
        h->hash != hash_of(block, bytes))
        return false;
    lay_out(block, &l);
    if (!below(l.class_name, l.classes, h->text) || !below(l.folder_name, l.folders, h->text) ||
        !below(l.folder_class, l.folders, l.classes ? l.classes : 1) ||
        !below(l.file_name, l.files, h->text) || l.folder_first[0] || l.folder_first[l.folders] != l.files)
        return false;
    for (uint32_t i = 0; i < l.folders; i++)
        if (l.folder_first[i] > l.folder_first[i + 1])
            return false;
    *ret_listing = l;
    return true;
}

/* Writes texts one after the other. */
typedef struct writer {
    char *text;
    uint32_t used;
} writer;

static uint32_t put(writer *w, const char *name)
{
    uint32_t at = w->used;
    size_t bytes = strlen(name) + 1;

    memcpy(w->text + at, name, bytes);
    w->used += (uint32_t)bytes;
    return at;
}

static hvt_status measure(const scan *c, const hvt__names *classes, const char *note, header *ret_header)
{
    uint64_t text = strlen(note) + 1, folders = 0;

    text += classes->used;
    for (size_t i = 0; i < c->groups; i++)
        for (size_t k = 0; k < c->group[i].n; k++, folders++) {
            const leaf *l = &c->group[i].leaf[k];

            text += strlen(l->path) + 1 + l->names.used;
        }
    HVT_CHECK(text < UINT32_MAX && folders < UINT32_MAX, E_FORMAT, "%s: %llu bytes of names are too many",
              c->root, (unsigned long long)text);
    *ret_header = (header){.files = (uint32_t)c->files,
                           .classes = (uint32_t)classes->n,
                           .folders = (uint32_t)folders,
                           .text = (uint32_t)text,
                           .note = (uint32_t)(text - strlen(note) - 1)};
    memcpy(ret_header->magic, magic, sizeof magic);
    ret_header->bytes = bytes_of(ret_header);
    return HVT_OK;
}

/* The listing's arrays are writable while it is made. */
#define WRITE(array) ((uint32_t *)(uintptr_t)(array))

static void write_leaves(const scan *c, const hvt__listing *l, writer *w)
{
    uint32_t folder = 0, file = 0;

    for (size_t i = 0; i < c->groups; i++)
        for (size_t k = 0; k < c->group[i].n; k++, folder++) {
            const leaf *from = &c->group[i].leaf[k];

            ((hvt__folder_state *)(uintptr_t)l->state)[folder] = from->state;
            WRITE(l->folder_name)[folder] = put(w, from->path);
            WRITE(l->folder_class)[folder] = c->group[i].number;
            WRITE(l->folder_first)[folder] = file;
            for (size_t f = 0; f < from->names.n; f++)
                WRITE(l->file_name)[file++] = put(w, hvt__name_at(&from->names, f));
        }
    WRITE(l->folder_first)[folder] = file;
}

/* The note comes last, so that the fingerprint, which covers only what precedes it, does not depend on it. */
static hvt_status write_block(const scan *c, const hvt__names *classes, char **ret_block, size_t *ret_bytes)
{
    hvt__listing l;
    header h, *to;
    writer w = {0};
    char note[NOTE], *block;
    bool is_warning;

    write_note(c, note, &is_warning);
    HVT_TRY(measure(c, classes, note, &h));
    h.is_warning = is_warning;
    block = calloc(1, h.bytes);
    HVT_CHECK(block, E_MEM, "no memory for a list of %u pictures", h.files);
    to = (header *)(void *)block;
    *to = h;
    lay_out(block, &l);
    w.text = (char *)(uintptr_t)l.text;
    for (size_t i = 0; i < classes->n; i++)
        WRITE(l.class_name)[i] = put(&w, hvt__name_at(classes, i));
    write_leaves(c, &l, &w);
    put(&w, note);
    to->fingerprint = hvt__hash(HVT_HASH_INIT, l.class_name, (size_t)(l.note - (const char *)l.class_name));
    to->hash = hash_of(block, h.bytes);
    *ret_block = block;
    *ret_bytes = h.bytes;
    return HVT_OK;
}

static void free_scan(scan *c)
{
    for (size_t i = 0; c->group && i < c->groups; i++) {
        for (size_t k = 0; k < c->group[i].n; k++) {
            free(c->group[i].leaf[k].path);
            hvt__names_free(&c->group[i].leaf[k].names);
        }
        free(c->group[i].leaf);
    }
    free(c->group);
}

/* Makes a group for each class of the root, with its index in `classes`; without classes one group for the
 * root itself. */
static hvt_status make_groups(scan *c, const hvt__names *mine, const hvt__names *classes)
{
    c->groups = mine ? mine->n : 1;
    c->group = calloc(c->groups, sizeof *c->group);
    HVT_CHECK(c->group, E_MEM, "no memory to list %zu classes", c->groups);
    if (!mine)
        c->group[0].name = "";
    for (size_t i = 0; mine && i < mine->n; i++) {
        c->group[i].name = hvt__name_at(mine, i);
        c->group[i].number = hvt__name_find(classes, c->group[i].name);
    }
    return HVT_OK;
}

bool hvt__listing_is_flat(const hvt__listed *what, const hvt__entries *root)
{
    return !root->folders.n || (what->flat && root->pictures.n && !strcmp(what->root, what->classes_of));
}

/* Checks the entries of the root other than its classes. */
static hvt_status look_beside(scan *c, const hvt__entries *root)
{
    HVT_CHECK(!*root->dead_link, E_IO,
              "%s/%s: a broken link, perhaps to a class; without it, later classes would get other labels: "
              "fix or remove it",
              c->root, root->dead_link);
    c->unused = root->unused;
    if (root->pictures.n)
        hvt__unused_add(&c->unused, HVT__UNUSED_PICTURE, root->pictures.n, hvt__name_at(&root->pictures, 0));
    return HVT_OK;
}

hvt_status hvt__listing_scan(const hvt__listed *what, char **ret_block, size_t *ret_bytes)
{
    scan c = {.root = what->root};
    hvt__entries root = {0}, all = {0};
    hvt__names none = {0};
    bool flat;
    hvt_status s;

    HVT_TRY_OR(done, hvt__entries_read(what->root, &root));
    HVT_CHECK_OR(done, root.folders.n || root.pictures.n || !root.unused.n[HVT__UNUSED_OTHER_PICTURE],
                 E_FORMAT,
                 "%s: no class folders and no pictures (" HVT__PICTURES "); convert %s to JPEG or PNG",
                 what->root, root.unused.first[HVT__UNUSED_OTHER_PICTURE]);
    HVT_CHECK_OR(done, root.folders.n || root.pictures.n, E_FORMAT,
                 "%s: no class folders and no pictures (" HVT__PICTURES ")", what->root);
    HVT_TRY_OR(done, hvt__entries_read(what->classes_of, &all));
    flat = hvt__listing_is_flat(what, &root);
    if (!flat)
        HVT_TRY_OR(done, look_beside(&c, &root));
    else if (root.folders.n)
        HVT_INFO(
            "%s: pictures are beside folders, so the folders are not classes: all pictures are unlabelled",
            what->root);
    HVT_TRY_OR(done, make_groups(&c, flat ? NULL : &root.folders, &all.folders));
    HVT_TRY_OR(done, run_scan(&c));
    HVT_TRY_OR(done, check_groups(&c, what->classes_of));
    if (!flat)
        HVT_TRY_OR(done, warn_of_classes(&c, &all.folders));
    HVT_TRY_OR(done, write_block(&c, flat ? &none : &all.folders, ret_block, ret_bytes));
done:
    free_scan(&c);
    hvt__entries_free(&root);
    hvt__entries_free(&all);
    return s;
}
