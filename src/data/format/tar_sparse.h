/*
 * tar_sparse.h - sparse members of a tar file.
 *
 * A map lists the parts of a file that are stored, one after the other; the rest is zeros. It is a text,
 * "OFFSET,BYTES,OFFSET,BYTES,", as in pax headers of format 0.1.
 */
#ifndef HVT_DATA_TAR_SPARSE_H
#define HVT_DATA_TAR_SPARSE_H

#include "tar_index.h"

typedef struct hvt__tar_map {
    char *text; /* NULL: empty */
    size_t used, room;
} hvt__tar_map;

/* Errors: E_FORMAT (too long), E_MEM. */
hvt_status hvt__tar_map_add(hvt__tar_map *map, const char *number, size_t digits);
void hvt__tar_map_clear(hvt__tar_map *map);
/* Adds the numbers of an old GNU header h at byte `at` and of the blocks after it, which end at *ret_next.
 * Errors: E_IO, E_FORMAT, E_MEM. */
hvt_status hvt__tar_map_old(const hvt__data_file *f, uint64_t at, const uint8_t *h, hvt__tar_map *map,
                            uint64_t *ret_next);
/* Adds the numbers of pax format 1.0, which are lines before the data at `at` and end at *ret_next. Errors:
 * the same. */
hvt_status hvt__tar_map_lines(const hvt__data_file *f, uint64_t at, uint64_t bytes, hvt__tar_map *map,
                              uint64_t *ret_next);
/* Reads a file of `bytes` bytes, whose parts are stored from byte `at` on. Errors: E_IO, E_FORMAT. */
hvt_status hvt__tar_read_sparse(const hvt__data_file *f, const char *map, uint64_t at, size_t bytes,
                                uint8_t *ret_bytes);

/* Octal digits after blanks, up to a blank or the end, or GNU's big-endian binary. False if it is neither. */
bool hvt__tar_number(const uint8_t *field, size_t n, uint64_t *ret);

#endif /* HVT_DATA_TAR_SPARSE_H */
