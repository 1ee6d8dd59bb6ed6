/*
 * fuzz_listing [SECONDS [SEED]]: stored lists of folders with damage, but a valid hash, so that only the
 * checks of the contents protect the reader. Meant for -Db_sanitize=address.
 */
#include "data/format/listing.h"
#include "folder.h"

enum { HASHED_FROM = 24 }; /* the header's magic, bytes and hash come before */

/* Touch all that a reader may touch. */
static uint64_t use(const hvt__listing *l)
{
    uint64_t sum = strlen(l->note);

    for (uint32_t i = 0; i < l->classes; i++)
        sum += strlen(l->text + l->class_name[i]);
    for (uint32_t i = 0; i < l->files; i++) {
        uint32_t folder_of = hvt__listing_folder(l, i);

        sum += strlen(l->text + l->folder_name[folder_of]) + strlen(l->text + l->file_name[i]);
        sum += l->classes ? l->class_name[l->folder_class[folder_of]] : 0;
        sum += (uint64_t)l->state[folder_of].mtime;
    }
    return sum;
}

static void damage(char *block, size_t bytes, uint64_t *draws)
{
    for (uint64_t n = 1 + hvt__below(hvt__mix(++*draws), 4); n; n--) {
        size_t at = hvt__below(hvt__mix(++*draws), (uint32_t)bytes);
        uint64_t how = hvt__mix(++*draws);
        uint32_t value = how % 3 == 0 ? 0xffffffff : (uint32_t)(how >> 32) % 64;

        if (how % 5 == 0 || at + 4 > bytes)
            block[at] = (char)how;
        else
            memcpy(block + at / 4 * 4, &value, sizeof value);
    }
}

int main(int argc, char **argv)
{
    double end = hvt__now() + (argc > 1 ? atof(argv[1]) : 10);
    uint64_t draws = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, runs = 0, accepted = 0, sum = 0, hash;
    char command[400], *block, *copy;
    size_t bytes, size;
    hvt__listing l;

    if (!folder_make())
        return 1;
    snprintf(command, sizeof command,
             "cd %s && mkdir -p a/deep b && touch a/1.jpg a/2.jpg a/deep/3.png b/4.ppm b/5.jpeg", folder);
    if (system(command) || hvt__listing_scan(&(hvt__listed){folder, folder, false}, &block, &bytes)) {
        fprintf(stderr, "%s\n", hvt_last_error());
        return 1;
    }
    for (; hvt__now() < end; runs++) {
        size = runs % 4 ? bytes : hvt__below(hvt__mix(++draws), (uint32_t)bytes + 1);
        copy = malloc(size ? size : 1);
        if (!copy)
            return 1;
        memcpy(copy, block, size);
        if (size)
            damage(copy, size, &draws);
        if (size > HASHED_FROM) {
            hash = hvt__hash(HVT_HASH_INIT, copy + HASHED_FROM, size - HASHED_FROM);
            memcpy(copy + 16, &hash, sizeof hash);
            memcpy(copy + 8, &(uint64_t){size}, 8);
        }
        if (hvt__listing_attach(copy, size, &l)) {
            accepted++;
            sum += use(&l);
        }
        free(copy);
    }
    free(block);
    printf("%llu lists, %llu accepted (%llx)\n", (unsigned long long)runs, (unsigned long long)accepted,
           (unsigned long long)sum);
    return folder_remove() ? 0 : 1;
}
