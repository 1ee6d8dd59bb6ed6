/*
 * Scanning class folders. As torchvision's ImageFolder: classes are the folders in the root, sorted by the
 * bytes of their names; pictures are what has a picture's suffix below them, at any depth, sorted by folder
 * and name; links are followed. Other than there, folders whose names begin with a dot are no classes.
 *
 * A thread takes one class after the other, which helps where a disk or a network is slow to answer. The
 * order of the result does not depend on it.
 */
#define _GNU_SOURCE
#include "base/thread.h"
#include "listing.h"

#include <dirent.h>
#include <errno.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS = 8, DEPTH_MAX = 40, NAMED = 5 };

static const double progress = 2; /* s between two lines */

/* A folder with pictures. */
typedef struct leaf {
    char *path; /* relative to the root */
    int64_t mtime;
    hvt__names names;
} leaf;

typedef struct group { /* of a class */
    const char *name;
    uint32_t number;
    leaf *leaf;
    size_t n, room;
    uint64_t files, others; /* others: that are no pictures */
    char other[NAME_MAX + 1];
    hvt_status status;
    hvt__error error;
} group;

typedef struct scan {
    const char *root;
    group *group;
    size_t groups, next, done;
    uint64_t files;
    pthread_mutex_t lock;
    pthread_cond_t finished;
} scan;

static bool is_picture(const char *name)
{
    static const char *const suffix[] = {".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".pbm"};
    const char *dot = strrchr(name, '.');

    for (size_t i = 0; dot && i < HVT_LEN(suffix); i++)
        if (!strcasecmp(dot, suffix[i]))
            return true;
    return false;
}

void hvt__names_free(hvt__names *names)
{
    free(names->text);
    free(names->at);
    *names = (hvt__names){0};
}

/* Room for `more` elements of `size` bytes behind n. */
static hvt_status grow(void *array, size_t n, size_t more, size_t *room, size_t size)
{
    void **at = array, *moved;
    size_t want = *room ? *room : 16;

    if (n + more <= *room)
        return HVT_OK;
    while (want < n + more)
        want *= 2;
    moved = realloc(*at, want * size);
    HVT_CHECK(moved, E_MEM, "no memory to list %zu files", n);
    *at = moved;
    *room = want;
    return HVT_OK;
}

static hvt_status add_name(hvt__names *names, const char *name)
{
    size_t bytes = strlen(name) + 1;

    HVT_CHECK(names->used + bytes < UINT32_MAX, E_FORMAT, "%zu names of one folder are too many", names->n);
    HVT_TRY(grow(&names->at, names->n, 1, &names->at_room, sizeof *names->at));
    HVT_TRY(grow(&names->text, names->used, bytes, &names->text_room, 1));
    memcpy(names->text + names->used, name, bytes);
    names->at[names->n++] = (uint32_t)names->used;
    names->used += bytes;
    return HVT_OK;
}

static int by_name(const void *a, const void *b, void *text)
{
    return strcmp((char *)text + *(const uint32_t *)a, (char *)text + *(const uint32_t *)b);
}

static void sort_names(hvt__names *names)
{
    if (names->n)
        qsort_r(names->at, names->n, sizeof *names->at, by_name, names->text);
}

/* Its place in a sorted list; UINT32_MAX: it is not there. */
static uint32_t find_name(const hvt__names *sorted, const char *name)
{
    size_t low = 0, high = sorted->n;

    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(hvt__name_at(sorted, middle), name);

        if (order == 0)
            return (uint32_t)middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT32_MAX;
}

static bool is_folder(int fd, const struct dirent *e)
{
    struct stat info;

    if (e->d_type != DT_UNKNOWN && e->d_type != DT_LNK)
        return e->d_type == DT_DIR;
    return fstatat(fd, e->d_name, &info, 0) == 0 && S_ISDIR(info.st_mode);
}

static hvt_status open_folder(const char *path, DIR **ret_dir)
{
    *ret_dir = opendir(path);
    HVT_CHECK(*ret_dir, E_IO, "%s: %s", path, strerror(errno));
    return HVT_OK;
}

/* One entry of a folder: its folders to *folders, its pictures to *pictures. */
static hvt_status sort_entry(int fd, const struct dirent *e, hvt__names *folders, hvt__names *pictures,
                             group *g)
{
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
        return HVT_OK;
    if (is_folder(fd, e))
        return add_name(folders, e->d_name);
    if (is_picture(e->d_name))
        return add_name(pictures, e->d_name);
    if (g && *e->d_name != '.' && !g->others++)
        snprintf(g->other, sizeof g->other, "%s", e->d_name);
    return HVT_OK;
}

static hvt_status list(const char *path, hvt__names *folders, hvt__names *pictures, int64_t *ret_mtime,
                       group *g)
{
    struct stat info;
    struct dirent *e;
    DIR *dir;
    hvt_status s = HVT_OK;

    HVT_TRY(open_folder(path, &dir));
    HVT_CHECK_OR(done, fstat(dirfd(dir), &info) == 0, E_IO, "%s: %s", path, strerror(errno));
    *ret_mtime = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    while (errno = 0, (e = readdir(dir)))
        HVT_TRY_OR(done, sort_entry(dirfd(dir), e, folders, pictures, g));
    HVT_CHECK_OR(done, !errno, E_IO, "%s: %s", path, strerror(errno));
done:
    closedir(dir);
    return s;
}

hvt_status hvt__listing_classes(const char *root, hvt__names *ret_classes, bool *ret_pictures)
{
    hvt__names all = {0}, pictures = {0};
    int64_t ignored;
    hvt_status s;

    *ret_classes = (hvt__names){0};
    HVT_TRY_OR(done, list(root, &all, &pictures, &ignored, NULL));
    for (size_t i = 0; i < all.n; i++)
        if (*hvt__name_at(&all, i) != '.')
            HVT_TRY_OR(done, add_name(ret_classes, hvt__name_at(&all, i)));
    sort_names(ret_classes);
    *ret_pictures = pictures.n > 0;
done:
    hvt__names_free(&all);
    hvt__names_free(&pictures);
    if (s)
        hvt__names_free(ret_classes);
    return s;
}

static hvt_status walk(const scan *c, group *g, const char *path, int depth);

/* The folders inside. */
static hvt_status walk_inside(const scan *c, group *g, const char *path, const hvt__names *folders, int depth)
{
    for (size_t i = 0; i < folders->n; i++) {
        char inside[PATH_MAX];

        HVT_TRY(hvt__path(inside, "%s/%s", path, hvt__name_at(folders, i)));
        HVT_TRY(walk(c, g, inside, depth + 1));
    }
    return HVT_OK;
}

/* Add a folder of a class, "" for the root itself, and those inside it. Folders without pictures are added,
 * too: their time of change tells when there are some. */
static hvt_status walk(const scan *c, group *g, const char *path, int depth)
{
    hvt__names folders = {0};
    char full[PATH_MAX];
    leaf l = {0};
    hvt_status s;

    HVT_CHECK(depth < DEPTH_MAX, E_FORMAT, "%s/%s: folders are nested %d deep, perhaps by a link in a circle",
              c->root, path, depth);
    HVT_TRY(hvt__path(full, *path ? "%s/%s" : "%s", c->root, path));
    HVT_TRY(grow(&g->leaf, g->n, 1, &g->room, sizeof *g->leaf));
    l.path = strdup(path);
    HVT_CHECK(l.path, E_MEM, "no memory to list %s", full);
    s = list(full, &folders, &l.names, &l.mtime, g);
    g->leaf[g->n++] = l; /* which frees it, also after an error */
    HVT_TRY_OR(done, s);
    sort_names(&g->leaf[g->n - 1].names);
    g->files += l.names.n;
    if (*path)
        HVT_TRY_OR(done, walk_inside(c, g, path, &folders, depth));
done:
    hvt__names_free(&folders);
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

/* Until all classes are done; with a line now and then. */
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

/* "a, b, c and 7 more" of the groups for which `is` holds; how many. */
static size_t name_groups(const scan *c, bool is(const group *g), char *text, size_t room)
{
    size_t n = 0, used = 0;

    *text = 0;
    for (size_t i = 0; i < c->groups; i++) {
        if (!is(&c->group[i]) || ++n > NAMED)
            continue;
        used += (size_t)snprintf(text + used, room - used, "%s%s", n > 1 ? ", " : "", c->group[i].name);
        used = used < room ? used : room - 1;
    }
    if (n > NAMED)
        snprintf(text + used, room - used, " and %zu more", n - NAMED);
    return n;
}

static bool is_empty(const group *g)
{
    return g->files == 0;
}

static bool is_unknown(const group *g)
{
    return g->number == UINT32_MAX;
}

static hvt_status check_groups(const scan *c, const char *classes_of)
{
    char names[1200];

    HVT_CHECK(!name_groups(c, is_unknown, names, sizeof names), E_FORMAT,
              "%s: classes that %s does not have: %s", c->root, classes_of, names);
    HVT_CHECK(!name_groups(c, is_empty, names, sizeof names), E_FORMAT,
              "%s: classes without a picture (.jpg, .jpeg, .png, .ppm, .pgm or .pbm): %s", c->root, names);
    HVT_CHECK(c->files < UINT32_MAX, E_FORMAT, "%s: %llu pictures are too many", c->root,
              (unsigned long long)c->files);
    return HVT_OK;
}

/* What a user may not expect to be left out. */
static void tell_of_others(const scan *c, size_t classes)
{
    const group *first = NULL;
    uint64_t others = 0;

    for (size_t i = 0; i < c->groups; i++) {
        others += c->group[i].others;
        first = first || !c->group[i].others ? first : &c->group[i];
    }
    if (first)
        HVT_INFO("%s: %llu file%s left out, which are no .jpg, .jpeg, .png, .ppm, .pgm or .pbm (%s in %s)",
                 c->root, (unsigned long long)others, others > 1 ? "s are" : " is", first->other,
                 *first->name ? first->name : "it");
    if (c->groups < classes)
        HVT_WARN("%s: %zu of %zu classes have no images here", c->root, classes - c->groups, classes);
}

/* ---- the block ---- */

typedef struct header {
    char magic[8];
    uint64_t bytes, hash; /* of all that follows `hash` */
    uint64_t fingerprint;
    uint32_t files, classes, folders, text; /* text: bytes */
} header;

static const char magic[8] = "HVTLIST1";

static uint64_t bytes_of(const header *h)
{
    return sizeof *h + 8 * (uint64_t)h->folders +
           4 * ((uint64_t)h->classes + 3 * (uint64_t)h->folders + 1 + h->files) + h->text;
}

static uint64_t hash_of(const char *block, size_t bytes)
{
    size_t from = offsetof(header, fingerprint);

    return hvt__hash(HVT_HASH_INIT, block + from, bytes - from);
}

/* Where its parts lie; nothing is checked. */
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
    l->mtime = (const int64_t *)(const void *)at;
    l->class_name = (const uint32_t *)(l->mtime + h->folders);
    l->folder_name = l->class_name + h->classes;
    l->folder_class = l->folder_name + h->folders;
    l->folder_first = l->folder_class + h->folders;
    l->file_name = l->folder_first + h->folders + 1;
    l->text = (const char *)(l->file_name + h->files);
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
        bytes_of(h) != bytes || !h->text || block[bytes - 1] || !h->files || !h->folders ||
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

/* Puts texts one behind the other. */
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

static hvt_status measure(const scan *c, const hvt__names *classes, header *ret_header)
{
    uint64_t text = 0, folders = 0;

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
                           .text = (uint32_t)text};
    memcpy(ret_header->magic, magic, sizeof magic);
    ret_header->bytes = bytes_of(ret_header);
    return HVT_OK;
}

/* The listing's arrays may be written while it is made. */
#define WRITE(array) ((uint32_t *)(uintptr_t)(array))

static void write_leaves(const scan *c, const hvt__listing *l, writer *w)
{
    uint32_t folder = 0, file = 0;

    for (size_t i = 0; i < c->groups; i++)
        for (size_t k = 0; k < c->group[i].n; k++, folder++) {
            const leaf *from = &c->group[i].leaf[k];

            ((int64_t *)(uintptr_t)l->mtime)[folder] = from->mtime;
            WRITE(l->folder_name)[folder] = put(w, from->path);
            WRITE(l->folder_class)[folder] = c->group[i].number;
            WRITE(l->folder_first)[folder] = file;
            for (size_t f = 0; f < from->names.n; f++)
                WRITE(l->file_name)[file++] = put(w, hvt__name_at(&from->names, f));
        }
    WRITE(l->folder_first)[folder] = file;
}

static hvt_status write_block(const scan *c, const hvt__names *classes, char **ret_block, size_t *ret_bytes)
{
    hvt__listing l;
    header h, *to;
    writer w = {0};
    char *block;

    HVT_TRY(measure(c, classes, &h));
    block = calloc(1, h.bytes);
    HVT_CHECK(block, E_MEM, "no memory for a list of %u pictures", h.files);
    to = (header *)(void *)block;
    *to = h;
    lay_out(block, &l);
    w.text = (char *)(uintptr_t)l.text;
    for (size_t i = 0; i < classes->n; i++)
        WRITE(l.class_name)[i] = put(&w, hvt__name_at(classes, i));
    write_leaves(c, &l, &w);
    to->fingerprint =
        hvt__hash(HVT_HASH_INIT, l.class_name, (size_t)(block + h.bytes - (char *)l.class_name));
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

/* A group for each class of the root, with its number among `classes`; or one for the root itself. */
static hvt_status make_groups(scan *c, const hvt__names *mine, const hvt__names *classes)
{
    c->groups = mine->n ? mine->n : 1;
    c->group = calloc(c->groups, sizeof *c->group);
    HVT_CHECK(c->group, E_MEM, "no memory to list %zu classes", c->groups);
    if (!mine->n)
        c->group[0].name = "";
    for (size_t i = 0; i < mine->n; i++) {
        c->group[i].name = hvt__name_at(mine, i);
        c->group[i].number = find_name(classes, c->group[i].name);
    }
    return HVT_OK;
}

hvt_status hvt__listing_scan(const char *root, const char *classes_of, char **ret_block, size_t *ret_bytes)
{
    scan c = {.root = root};
    hvt__names mine = {0}, classes = {0}, none = {0};
    bool pictures = false, ignored;
    hvt_status s;

    HVT_TRY_OR(done, hvt__listing_classes(root, &mine, &pictures));
    HVT_CHECK_OR(done, mine.n || pictures, E_FORMAT,
                 "%s: neither folders of classes nor pictures (.jpg, .jpeg, .png, .ppm, .pgm or .pbm)", root);
    HVT_TRY_OR(done, hvt__listing_classes(classes_of, &classes, &ignored));
    HVT_TRY_OR(done, make_groups(&c, &mine, &classes));
    HVT_TRY_OR(done, run_scan(&c));
    HVT_TRY_OR(done, check_groups(&c, classes_of));
    tell_of_others(&c, mine.n ? classes.n : 0);
    HVT_TRY_OR(done, write_block(&c, mine.n ? &classes : &none, ret_block, ret_bytes));
done:
    free_scan(&c);
    hvt__names_free(&mine);
    hvt__names_free(&classes);
    return s;
}
