/*
 * fuzz_image SECONDS [SEED]: damaged JPEG, PNG and PPM files through the reader of pictures. Each must give
 * pixels or an error that names the file; a crash, a sanitizer's finding or gigabytes of memory end the run.
 * Best built with -Db_sanitize=address,undefined. Not a test by itself, since it runs for a given time. To
 * repeat a failing case, give its printed seed and 0 seconds.
 */
#include "pictures.h"

#include <sys/resource.h>

enum { KINDS = 14 };

static uint64_t state;

static uint32_t below(uint32_t n)
{
    state = hvt__mix(state);
    return hvt__below(state, n);
}

static hvt_record make(int kind)
{
    int h = 1 + (int)below(70), w = 1 + (int)below(70), subsampling = 1 + (int)below(2);
    jpeg_kind j = {h,
                   w,
                   .channels = (int[]){1, 3, 3, 3, 4, 5}[kind % 6],
                   .across = subsampling,
                   .down = 1 + (int)below(2),
                   .progressive = below(3) == 0,
                   .optimized = below(2),
                   .restart = below(4) == 0};
    static const int types[] = {PNG_COLOR_TYPE_GRAY,      PNG_COLOR_TYPE_PALETTE,    PNG_COLOR_TYPE_RGB,
                                PNG_COLOR_TYPE_RGB_ALPHA, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_GRAY};
    static const int bits[] = {16, 4, 8, 16, 8, 1};

    if (kind < 6)
        return make_jpeg(&j, below(99));
    if (kind < 12)
        return make_png(&(png_kind){h, w, types[kind - 6], bits[kind - 6], below(2)}, below(99));
    return make_ppm(kind == 12 ? 5 : 6, h, w, (int[]){1, 100, 255, 256, 65535}[below(5)], below(99));
}

static void damage(hvt_record *r)
{
    size_t n = r->bytes;
    uint32_t at = below((uint32_t)n), from = below((uint32_t)n), most = (uint32_t)n - (at > from ? at : from);

    switch (below(7)) {
    case 0:
        r->data[at] ^= (uint8_t)(1 << below(8));
        break;
    case 1:
        r->data[at] = (uint8_t)below(256);
        break;
    case 2:
        r->data[at] = (uint8_t[]){0, 1, 0x7f, 0x80, 0xff, 0xda, 0xd9, 0xc4}[below(8)];
        break;
    case 3:
        memmove(r->data + at, r->data + from, below(most + 1));
        break;
    case 4:
        r->bytes = at ? at : 1;
        break;
    case 5: /* the header alone is where sizes and tables are */
        r->data[below(n < 64 ? (uint32_t)n : 64)] = (uint8_t)below(256);
        break;
    default:
        memset(r->data + at, (int)below(256), below(most + 1));
    }
}

/* What became of a file, read with a view of its own. */
static hvt_status read_it(hvt__picture *p, const hvt_record *r)
{
    static const hvt_rrc usual = {true, .08f, 1, .75f, 4.f / 3};
    uint8_t out[32 * 32 * 3];
    hvt_record exact = *r; /* a byte beyond the file is noticed */
    hvt__view v;
    hvt_status s;
    int h, w;

    exact.data = malloc(r->bytes);
    memcpy(exact.data, r->data, r->bytes);
    s = hvt__picture_begin(p, &exact, "a/file", &h, &w);
    if (s == HVT_OK) {
        int side = 1 + (int)below(32);

        v = below(2) ? hvt__view_rrc(h, w, &usual, state, 0, 0, side, side)
                     : hvt__view_centre(h, w, side, side, 32);
        s = hvt__picture_finish(p, &v, out);
    }
    free(exact.data);
    return s;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 60, began = hvt__now(), slowest = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, count = 0, read = 0;
    hvt__picture *p = NULL;
    struct rusage use;

    CHECK_OK(hvt__picture_open(&p));
    do {
        uint64_t now = seed + count++;
        double start = hvt__now(), took;
        hvt_record r;
        hvt_status s;

        state = hvt__mix(now);
        r = make((int)below(KINDS));
        for (uint32_t n = below(6); n > 0; n--)
            damage(&r);
        s = read_it(p, &r);
        took = hvt__now() - start;
        read += s == HVT_OK;
        CHECK(s == HVT_OK || strstr(hvt_last_error(), "a/file"), "seed %llu: %s", (unsigned long long)now,
              hvt_last_error());
        CHECK(took < 30, "seed %llu takes %.1f s", (unsigned long long)now, took);
        slowest = took > slowest ? took : slowest;
        free(r.data);
        getrusage(RUSAGE_SELF, &use);
        CHECK(use.ru_maxrss < 3 << 20, "seed %llu: %ld MiB of memory", (unsigned long long)now,
              use.ru_maxrss >> 10);
    } while (hvt__now() - began < seconds && !check_now);
    hvt__picture_close(&p);
    printf("%llu files from seed %llu on, %llu of them read; slowest %.2f s, %ld MiB at most\n",
           (unsigned long long)count, (unsigned long long)seed, (unsigned long long)read, slowest,
           use.ru_maxrss >> 10);
    return check_now > 0;
}
