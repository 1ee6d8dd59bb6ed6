/*
 * fuzz_formats SECONDS [SEED]: damaged NumPy arrays, tar shards, indexes of shards, and STL-10 files. Each
 * set must open and give its images, or give an error that names a file; a crash, a sanitizer's finding or
 * gigabytes of memory end the run. Best built with -Db_sanitize=address,undefined. Not a test by itself,
 * since it runs for a given time. To repeat a failing case, give its printed seed and 0 seconds.
 */
#include "base_impl.h"
#include "check.h"
#include "data/format/tar_index.h"
#include "folder.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 1 << 17, KINDS = 4 };

static uint64_t state;
static uint8_t bytes[MOST];
static size_t count;

static uint32_t below(uint32_t n)
{
    state = hvt__mix(state);
    return hvt__below(state, n);
}

static void append(const void *more, size_t n)
{
    for (size_t i = 0; i < n && count < MOST; i++)
        bytes[count++] = ((const uint8_t *)more)[i];
}

static void append_random(size_t n)
{
    for (size_t i = 0; i < n; i++)
        append(&(uint8_t){(uint8_t)below(256)}, 1);
}

static void damage(void)
{
    uint32_t n = (uint32_t)count, at, from, most;

    if (!n)
        return;
    at = below(below(2) ? n : n < 700 ? n : 700); /* headers are at the front */
    from = below(n);
    most = n - (at > from ? at : from);
    switch (below(7)) {
    case 0:
        bytes[at] ^= (uint8_t)(1 << below(8));
        break;
    case 1:
        bytes[at] = (uint8_t)below(256);
        break;
    case 2:
        bytes[at] = (uint8_t[]){0, 1, 0x7f, 0x80, 0xff, '9', '(', '\''}[below(8)];
        break;
    case 3:
        memmove(bytes + at, bytes + from, below(most + 1));
        break;
    case 4:
        count = at;
        break;
    case 5:
        append_random(below(600));
        break;
    default:
        memset(bytes + at, (int)below(256), below(most < 600 ? most + 1 : 600));
    }
}

static void write_to(const char *name)
{
    FILE *f = fopen(in_folder(name), "wb");

    if (!f || fwrite(bytes, 1, count, f) != count) {
        perror(name);
        exit(1);
    }
    fclose(f);
}

/* ---- files that are good ---- */

static const char *one_of(const char *const *of, uint32_t n)
{
    return of[below(n)];
}

/* An array of n items of this shape. */
static void make_npy(const char *descr, const char *shape, size_t data)
{
    char text[400];
    int version = 1 + (int)below(3), n;

    n = below(4) ? snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr,
                            below(9) ? "False" : "True", shape)
                 : snprintf(text, sizeof text, "{\"shape\":%s,\"fortran_order\":False,\"descr\":\"%s\"}",
                            shape, descr);
    append("\x93NUMPY", 6);
    append(&(uint8_t[]){(uint8_t)version, 0, (uint8_t)n, (uint8_t)(n >> 8), 0, 0}, version > 1 ? 6 : 4);
    append(text, (size_t)n);
    append_random(data);
}

static void make_images(void)
{
    static const char *const types[] = {"|u1", "<f4", "<f8", "u1", "<i2"};
    static const int sizes[] = {1, 4, 8, 1, 2};
    static const char *const shapes[] = {"(3, 5, 6, 3)", "(3, 3, 5, 6)", "(3, 5, 18)", "(3, 90, 1, 1L)",
                                         "(3,1,10,9)"};
    uint32_t t = below(5);

    make_npy(types[t], one_of(shapes, 5), 270 * (size_t)sizes[t]);
}

static void make_labels(void)
{
    static const char *const types[] = {"|u1", "<i2", "<u4", "<i8"};
    uint32_t t = below(4);

    make_npy(types[t], below(2) ? "(3,)" : "(3, 1)", (size_t)3 << t);
}

static void append_member(const char *name, char type, const void *data, size_t n)
{
    char h[512] = {0};
    unsigned sum = 0;

    memcpy(h, name, strlen(name) < 100 ? strlen(name) : 100);
    memcpy(h + 100, "0000644", 8);
    snprintf(h + 124, 12, "%011o", (unsigned)n & 0xffff);
    memset(h + 148, ' ', 8);
    h[156] = type;
    memcpy(h + 257, below(2) ? "ustar" : "ustar  ", 6);
    if (!below(5))
        memcpy(h + 345, "prefix", 6);
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", below(30) ? sum : sum + 1);
    append(h, sizeof h);
    append(data, n);
    append((uint8_t[512]){0}, (512 - n % 512) % 512);
}

static void make_tar(void)
{
    static const char *const kinds[] = {"jpg", "cls", "npy", "png", "ppm", "json", "JPEG", "a.cls"};
    int members = (int)below(12);

    for (int i = 0; i < members; i++) {
        char name[300], pax[400];

        memset(name, 'n', sizeof name);
        snprintf(name + (below(6) ? 0 : 150), 40, "d/%u.%s", i / 2, i % 2 ? "cls" : one_of(kinds, 8));
        if (!below(5))
            append_member("x", 'L', name, strlen(name) + 1);
        if (!below(5)) {
            snprintf(pax, sizeof pax, "%zu path=%s\n", strlen(name) + 10, name);
            append_member("x", 'x', pax, strlen(pax));
        }
        append_member(name, below(9) ? '0' : "0157gLxKSV2"[below(11)], "123456789", 1 + below(9));
    }
    append((uint8_t[1024]){0}, 512 * (size_t)below(3));
}

/* ---- trying them ---- */

static void try_set(const char *format, uint64_t seed)
{
    hvt_dataset *set = NULL;
    hvt_record r = {0};
    char name[100];
    hvt_status s = hvt_dataset_open(format, &(hvt_dataset_opts){.dir = folder, .train = true}, &set);

    CHECK(s == HVT_OK || strstr(hvt_last_error(), folder) || s == HVT_E_ARG, "seed %llu: %s",
          (unsigned long long)seed, hvt_last_error());
    for (uint32_t i = 0; set && i < hvt_dataset_describe(set)->count && i < 50; i++) {
        s = hvt_dataset_read(set, i, &r);
        CHECK(s == HVT_OK || strlen(hvt_last_error()) > 20, "seed %llu: %s", (unsigned long long)seed,
              hvt_last_error());
        CHECK_OK(hvt_dataset_name(set, i, name, sizeof name));
    }
    free(r.data);
    hvt_dataset_close(&set);
}

static void try_npy(uint64_t seed)
{
    uint32_t which = below(3); /* of the two files is damaged; 2: both */

    count = 0;
    make_images();
    for (uint32_t n = which == 1 ? 0 : below(4); n > 0; n--)
        damage();
    write_to("train_images.npy");
    count = 0;
    make_labels();
    for (uint32_t n = which == 0 ? 0 : below(4); n > 0; n--)
        damage();
    write_to("train_labels.npy");
    try_set("npy", seed);
}

static void try_tar(uint64_t seed)
{
    unlink(in_folder("train-0.tar.hvtindex"));
    count = 0;
    make_tar();
    for (uint32_t n = below(4); n > 0; n--)
        damage();
    write_to("train-0.tar");
    try_set("tar", seed);
}

/* The hash is made right again now and then, so that what lies behind it is tried, too. */
static void try_index(uint64_t seed)
{
    const char *path = in_folder("train-0.tar.hvtindex");
    size_t skipped = offsetof(hvt__tar_index, tar_bytes);
    int fd;
    ssize_t n;

    try_tar(seed);
    fd = open(path, O_RDONLY);
    if (fd < 0)
        return;
    n = read(fd, bytes, MOST);
    close(fd);
    count = n > 0 ? (size_t)n : 0;
    for (uint32_t k = below(4); k > 0; k--)
        damage();
    if (count > sizeof(hvt__tar_index) && below(4)) {
        uint64_t hash = hvt__hash(HVT_HASH_INIT, bytes + skipped, count - skipped);
        memcpy(bytes + offsetof(hvt__tar_index, hash), &hash, sizeof hash);
    }
    write_to("train-0.tar.hvtindex");
    try_set("tar", seed);
}

static void try_stl10(uint64_t seed)
{
    count = 0;
    append_random(9);
    for (size_t i = 0; i < 27648 * (size_t)below(4); i += 512)
        append(bytes, 512);
    for (uint32_t n = below(3); n > 0; n--)
        damage();
    write_to("train_X.bin");
    count = 0;
    for (uint32_t n = below(5); n > 0; n--)
        append(&(uint8_t){(uint8_t)(1 + below(10 + (below(9) == 0)))}, 1);
    write_to("train_y.bin");
    try_set("stl10", seed);
}

static void say_nothing(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

int main(int argc, char **argv)
{
    static void (*const kinds[KINDS])(uint64_t) = {try_npy, try_tar, try_index, try_stl10};
    double seconds = argc > 1 ? atof(argv[1]) : 60, began = hvt__now();
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, n = 0;
    struct rusage use;

    if (!folder_make())
        return 1;
    hvt_log_to(say_nothing, NULL, HVT_LOG_ERROR);
    do {
        uint64_t now = seed + n++;
        state = hvt__mix(now);
        kinds[below(KINDS)](now);
        getrusage(RUSAGE_SELF, &use);
        CHECK(use.ru_maxrss < 1 << 20, "seed %llu: %ld MiB of memory", (unsigned long long)now,
              use.ru_maxrss >> 10);
    } while (hvt__now() - began < seconds && !check_now);
    folder_remove();
    printf("%llu sets from seed %llu on; %ld MiB at most\n", (unsigned long long)n, (unsigned long long)seed,
           use.ru_maxrss >> 10);
    return check_now > 0;
}
