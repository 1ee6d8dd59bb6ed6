/*
 * edit_picture: libhvt's operations on the pixels of images, for scripts. Reads commands line by line:
 *
 *   edit OP VALUE H W C                                      then H * W * C bytes on the input
 *   draw POLICY OPS MAGNITUDE B C S H SEED EPOCH SAMPLE HEIGHT WIDTH
 *   time OP VALUE H W C TIMES
 *
 * OP is a number of hvt__op, POLICY one of hvt_policy. An answer is a line "ok ...": the changed bytes follow
 * it; an operation and its value for each drawn edit; or nanoseconds of one of TIMES operations on noise.
 */
#include "data/image/image_impl.h"

#include <stdio.h>
#include <stdlib.h>

static void edit(const hvt__edit *e, int h, int w, int c, int times)
{
    size_t bytes = (size_t)h * (size_t)w * (size_t)c;
    uint8_t *from = malloc(bytes + HVT__ROW_SLACK), *to = malloc(bytes);
    double began;

    if (!from || !to || h < 1 || w < 1 || (c != 1 && c != 3))
        exit(1);
    for (size_t i = 0; times && i < bytes; i++)
        from[i] = (uint8_t)hvt__mix(i);
    if (!times && fread(from, 1, bytes, stdin) != bytes)
        exit(1);
    began = hvt__now();
    for (int i = 0; i < (times ? times : 1); i++)
        hvt__enhance(e, h, w, c, from, to);
    if (times)
        printf("ok %.0f\n", (hvt__now() - began) / times * 1e9);
    else
        printf("ok\n");
    if (!times)
        fwrite(to, 1, bytes, stdout);
    free(from);
    free(to);
}

static void draw(const hvt_edits *o, uint64_t seed, int epoch, uint32_t sample, int h, int w)
{
    hvt__edit edits[HVT__EDITS];
    int n = hvt__edits_draw(o, h, w, seed, epoch, sample, edits);

    printf("ok");
    for (int i = 0; i < n; i++)
        printf(" %d %.17g", (int)edits[i].op, edits[i].value);
    printf("\n");
}

int main(void)
{
    char line[1024];

    while (fgets(line, sizeof line, stdin)) {
        int op, h, w, c, times = 0, policy, epoch;
        double value;
        unsigned long long seed;
        unsigned sample;
        hvt_edits o = {0};

        if (sscanf(line, "edit %d %lf %d %d %d", &op, &value, &h, &w, &c) == 5 ||
            sscanf(line, "time %d %lf %d %d %d %d", &op, &value, &h, &w, &c, &times) == 6) {
            edit(&(hvt__edit){(hvt__op)op, value}, h, w, c, times);
        } else if (sscanf(line, "draw %d %d %d %f %f %f %f %llu %d %u %d %d", &policy, &o.ops, &o.magnitude,
                          &o.jitter[0], &o.jitter[1], &o.jitter[2], &o.jitter[3], &seed, &epoch, &sample, &h,
                          &w) == 12) {
            o.policy = (hvt_policy)policy;
            draw(&o, seed, epoch, sample, h, w);
        } else
            return 1;
        fflush(stdout);
    }
    return 0;
}
