/*
 * Write synth's training images to a file that bench/gpu/torch_peer.py reads:
 *
 *     dump_synth COUNT SIZE CLASSES FILE
 *
 * int32 count, size, classes; int32 labels[count]; uint8 images[count][size][size][3]. This host's byte
 * order.
 */
#include "hvt/hvt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hvt_status dump(const hvt_dataset *set, FILE *f)
{
    const hvt_dataset_info *info = hvt_dataset_describe(set);
    size_t image = (size_t)info->height * (size_t)info->width * (size_t)info->channels;
    int32_t head[3] = {(int32_t)info->count, info->height, info->classes};
    int32_t *labels = malloc(info->count * sizeof *labels);
    uint8_t *pixels = malloc(info->count * image);
    hvt_status s = labels && pixels ? HVT_OK : HVT_E_MEM;

    for (uint32_t i = 0; i < info->count && s == HVT_OK; i++) {
        int label;

        s = hvt_dataset_get(set, i, pixels + i * image, &label);
        if (s == HVT_OK)
            labels[i] = label;
    }
    if (s == HVT_OK && (fwrite(head, sizeof head, 1, f) != 1 ||
                        fwrite(labels, sizeof *labels, info->count, f) != info->count ||
                        fwrite(pixels, image, info->count, f) != info->count))
        s = HVT_E_IO;
    free(labels);
    free(pixels);
    return s;
}

static int number(const char *text)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (end != text && !*end && n >= 1 && n <= 1 << 24)
        return (int)n;
    fprintf(stderr, "dump_synth: COUNT, SIZE and CLASSES are whole numbers from 1, got '%s'\n", text);
    exit(2);
}

int main(int argc, char **argv)
{
    hvt_dataset_opts opts = {.train = true};
    hvt_dataset *set = NULL;
    hvt_status s;
    FILE *f;

    if (argc != 5) {
        fprintf(stderr, "usage: dump_synth COUNT SIZE CLASSES FILE\n");
        return 2;
    }
    opts.samples = (uint32_t)number(argv[1]);
    opts.image_size = number(argv[2]);
    opts.classes = number(argv[3]);
    if (hvt_dataset_open("synth", &opts, &set) != HVT_OK) {
        fprintf(stderr, "dump_synth: %s\n", hvt_last_error());
        return 1;
    }
    f = fopen(argv[4], "wb");
    s = f ? dump(set, f) : HVT_E_IO;
    if (f && fclose(f) != 0)
        s = HVT_E_IO;
    hvt_dataset_close(&set);
    if (s != HVT_OK)
        fprintf(stderr, "dump_synth: %s cannot be written: %s\n", argv[4],
                s == HVT_E_IO ? strerror(errno) : hvt_status_name(s));
    return s == HVT_OK ? 0 : 1;
}
