/*
 * Lists of class names, one per line in the order of their numbers. CIFAR's and STL-10's archives have such a
 * file, and `hvtrain pack` writes one, classes.txt, beside its shards, whose labels are numbers.
 */
#include "data/data_impl.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES_MOST = 16 << 20 };

/* Reads a file and appends a 0; NULL if there is no such file. */
static hvt_status read_text(const char *path, char **ret_text)
{
    hvt__data_file f;
    hvt_status s;

    *ret_text = NULL;
    if (access(path, F_OK))
        return HVT_OK;
    HVT_TRY(hvt__data_open(&f, "%s", path));
    HVT_CHECK_OR(done, f.bytes <= BYTES_MOST, E_FORMAT, "%s holds %llu bytes, expected names of classes",
                 path, (unsigned long long)f.bytes);
    *ret_text = calloc(1, f.bytes + 1);
    HVT_CHECK_OR(done, *ret_text, E_MEM, "no memory to read %s", path);
    HVT_TRY_OR(done, hvt__data_read(&f, 0, f.bytes, *ret_text, (hvt__data_unit){"byte", 0, f.bytes}));
done:
    hvt__data_close(&f);
    if (s) {
        free(*ret_text);
        *ret_text = NULL;
    }
    return s;
}

/* Splits the text into lines, without empty ones at the end. */
static int cut(char *text, const char **ret_lines)
{
    int n = 0, last = 0;

    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        line[strcspn(line, "\r")] = 0;
        if (ret_lines)
            ret_lines[n] = line;
        n++;
        last = *line ? n : last;
    }
    return last;
}

hvt_status hvt__class_list_read(const char *folder, const char *file, hvt__class_list *ret_list)
{
    hvt__class_list list = {0};
    char path[PATH_MAX];
    size_t lines = 1;
    hvt_status s;

    *ret_list = list;
    HVT_TRY(hvt__path(path, "%s/%s", folder, file));
    HVT_TRY(read_text(path, &list.text));
    if (!list.text)
        return HVT_OK;
    for (const char *p = list.text; *p; p++)
        lines += *p == '\n';
    list.name = calloc(lines, sizeof *list.name);
    HVT_CHECK_OR(fail, list.name, E_MEM, "no memory for the names in %s", path);
    list.n = cut(list.text, list.name);
    *ret_list = list;
    return HVT_OK;
fail:
    hvt__class_list_free(&list);
    return s;
}

hvt_status hvt__class_list_read_all(const char *folder, const char *file, int classes,
                                    hvt__class_list *ret_list)
{
    HVT_TRY(hvt__class_list_read(folder, file, ret_list));
    if (!ret_list->n || ret_list->n == classes)
        return HVT_OK;
    HVT_WARN("%s/%s has %d names for %d classes: they are not used", folder, file, ret_list->n, classes);
    hvt__class_list_free(ret_list);
    return HVT_OK;
}

const char *hvt__class_list_at(const hvt__class_list *list, int label)
{
    return label < list->n ? list->name[label] : NULL;
}

void hvt__class_list_free(hvt__class_list *list)
{
    free(list->name);
    free(list->text);
    *list = (hvt__class_list){0};
}

/* ---- writing ---- */

/* The set's class names as lines, malloc'ed; NULL if it has none, or one that is not a line. */
static hvt_status make_text(const hvt_dataset *set, char **ret_text)
{
    int n = hvt_dataset_class_name(set, 0) ? hvt_dataset_describe(set)->classes : 0;
    size_t bytes = 1;
    char *text, *end;

    *ret_text = NULL;
    for (int i = 0; i < n; i++) {
        const char *name = hvt_dataset_class_name(set, i);

        if (!name || !*name || name[strcspn(name, "\r\n")])
            return HVT_OK;
        bytes += strlen(name) + 1;
    }
    if (!n)
        return HVT_OK;
    text = end = malloc(bytes);
    HVT_CHECK(text, E_MEM, "no memory for the names of %d classes", n);
    for (int i = 0; i < n; i++)
        end += sprintf(end, "%s\n", hvt_dataset_class_name(set, i));
    *ret_text = text;
    return HVT_OK;
}

static hvt_status write_text(const char *path, const char *text)
{
    char fresh[PATH_MAX];
    FILE *f;
    bool written;

    HVT_TRY(hvt__path(fresh, "%s.tmp", path));
    f = fopen(fresh, "we");
    HVT_CHECK(f, E_IO, "%s: cannot write: %s", fresh, strerror(errno));
    written = fputs(text, f) >= 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (fclose(f) || !written || rename(fresh, path)) {
        hvt_status s = HVT_FAIL(E_IO, "%s: cannot write: %s", path, strerror(errno));

        unlink(fresh);
        return s;
    }
    return HVT_OK;
}

hvt_status hvt__class_list_write(const char *folder, const char *file, const hvt_dataset *set,
                                 bool only_check)
{
    char path[PATH_MAX], *want = NULL, *have = NULL;
    hvt_status s;

    HVT_TRY(hvt__path(path, "%s/%s", folder, file));
    HVT_TRY(make_text(set, &want));
    if (!want)
        return HVT_OK;
    HVT_TRY_OR(done, read_text(path, &have));
    HVT_CHECK_OR(done, !have || !strcmp(have, want), E_IO,
                 "--output: %s has other classes than these images; remove it, or choose another folder",
                 path);
    s = have || only_check ? HVT_OK : write_text(path, want);
done:
    free(have);
    free(want);
    return s;
}
