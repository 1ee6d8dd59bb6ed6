/*
 * view_picture: libhvt's pixels and boxes of picture files, for scripts. Reads commands line by line:
 *
 *   view HOW X Y W H FULL_H FULL_W TOP LEFT OUT_H OUT_W PATH     W 0: the whole picture; HOW 1: unscaled, 2:
 * turned, 3: both rrc H W SEED EPOCH SAMPLE LEAST MOST NARROW WIDE centre H W RESIZE OUT_H OUT_W jpeg H W
 * CHANNELS SAMPLING... PROGRESSIVE ARITHMETIC SPLIT OPTIMIZED RESTART QUALITY SEED PATH
 *
 * The last one writes a file: see jpeg_kind in pictures.h. SAMPLING is 10 * across + down for each of four
 * channels. An answer is a line "ok NUMBER ..." or "error MESSAGE"; a view's numbers are its size, and its
 * bytes follow.
 */
#include "pictures.h"

#include <unistd.h>

static void print_view(const hvt__view *v)
{
    printf("ok %d %d %d %d %d %d %d %d %d %d\n", v->x, v->y, v->w, v->h, v->full_h, v->full_w, v->top,
           v->left, v->out_h, v->out_w);
}

static hvt_status read_file(const char *path, hvt_record *r)
{
    uint64_t bytes;
    int fd;
    ssize_t n;

    HVT_TRY(hvt__open_regular(path, &fd, &bytes));
    HVT_TRY(hvt_record_reserve(r, bytes));
    n = read(fd, r->data, bytes);
    close(fd);
    HVT_CHECK(n == (ssize_t)bytes, E_IO, "%s: cannot be read", path);
    return HVT_OK;
}

static hvt_status show(const char *line)
{
    static hvt__picture *pictures[4];
    static hvt_record r;
    hvt__view v = {0};
    hvt__picture *p;
    uint8_t *out;
    int how, at = 0, h, w;

    HVT_CHECK(sscanf(line, "view %d %d %d %d %d %d %d %d %d %d %d %n", &how, &v.x, &v.y, &v.w, &v.h,
                     &v.full_h, &v.full_w, &v.top, &v.left, &v.out_h, &v.out_w, &at) == 11 &&
                  at,
              E_ARG, "no such command: %s", line);
    if (!pictures[how & 3]) {
        HVT_TRY(hvt__picture_open(&pictures[how & 3]));
        if (how & 1)
            hvt__picture_unscaled(pictures[how & 3]);
        if (how & 2)
            hvt__picture_turn(pictures[how & 3]);
    }
    p = pictures[how & 3];
    HVT_TRY(read_file(line + at, &r));
    HVT_TRY(hvt__picture_begin(p, &r, line + at, &h, &w));
    if (v.w == 0)
        v = hvt__view_whole(h, w);
    out = malloc((size_t)v.out_h * (size_t)v.out_w * 3);
    hvt_status s = hvt__picture_finish(p, &v, out);
    if (s == HVT_OK) {
        printf("ok %d %d\n", v.out_h, v.out_w);
        fwrite(out, 3, (size_t)v.out_h * (size_t)v.out_w, stdout);
    }
    free(out);
    return s;
}

static hvt_status write_jpeg(const char *line)
{
    int at = 0, sampling[4], progressive, arithmetic, split, optimized, seed;
    jpeg_kind k = {0};
    hvt_record r;
    FILE *f;

    HVT_CHECK(sscanf(line, "jpeg %d %d %d %d %d %d %d %d %d %d %d %d %d %d %n", &k.h, &k.w, &k.channels,
                     &sampling[0], &sampling[1], &sampling[2], &sampling[3], &progressive, &arithmetic,
                     &split, &optimized, &k.restart, &k.quality, &seed, &at) == 14 &&
                  at,
              E_ARG, "no such command: %s", line);
    for (int i = 0; i < 4; i++) {
        k.sampling[i][0] = (uint8_t)(sampling[i] / 10);
        k.sampling[i][1] = (uint8_t)(sampling[i] % 10);
    }
    k.progressive = progressive;
    k.arithmetic = arithmetic;
    k.split = split;
    k.optimized = optimized;
    r = make_jpeg(&k, (uint64_t)seed);
    f = fopen(line + at, "wb");
    HVT_CHECK(f, E_IO, "%s: cannot be written", line + at);
    fwrite(r.data, 1, r.bytes, f);
    fclose(f);
    free(r.data);
    printf("ok\n");
    return HVT_OK;
}

int main(void)
{
    char line[4096];

    while (fgets(line, sizeof line, stdin)) {
        int h, w, a, b, c;
        unsigned long long seed;
        hvt_rrc o = {.on = true};
        hvt__view v;

        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "rrc %d %d %llu %d %d %f %f %f %f", &h, &w, &seed, &a, &b, &o.least, &o.most,
                   &o.narrow, &o.wide) == 9) {
            v = hvt__view_rrc(h, w, &o, seed, a, (uint32_t)b, 224, 224);
            print_view(&v);
        } else if (sscanf(line, "centre %d %d %d %d %d", &h, &w, &a, &b, &c) == 5) {
            v = hvt__view_centre(h, w, a, b, c);
            print_view(&v);
        } else if ((strncmp(line, "jpeg ", 5) ? show(line) : write_jpeg(line)) != HVT_OK) {
            printf("error %s\n", hvt_last_error());
        }
        fflush(stdout);
    }
    return 0;
}
