/*
 * pt2_impl.h - a PyTorch model in a .pt2 file: a zip archive of the graph as JSON, which the passes of
 * graph.h turn into a tape, and of the parameters' values. The importer unpickles nothing and writes nothing
 * to disk.
 *
 * Included by src/model/pt2. Nothing else.
 */
#ifndef HVT_PT2_IMPL_H
#define HVT_PT2_IMPL_H

#include "graph.h"

#include <jansson.h>
#include <zip.h>

struct hvt_pt2 {
    char *path;
    zip_t *zip;
    uint64_t bytes;  /* size of the file */
    char *top;       /* the prefix of all entries' names: "net/", or "" in files of PyTorch 2.6 */
    json_t *weights; /* name in the state_dict -> entry with its values; NULL: pickled, so not read */
    json_t *fixed;   /* the same for non-persistent buffers and other constants; NULL: none */
    pt2_graph *graph;
    int unused;               /* number of parameters that the logits do not depend on */
    const char *first_unused; /* its name in the state_dict; borrowed */
    bool trained;             /* see hvt_pt2_info */
};

/* ---- archive.c ---- */

hvt_status hvt__pt2_archive_open(hvt_pt2 *p);
/* Parses an entry. *ret_json is NULL if the top folder has no entry of this name. */
hvt_status hvt__pt2_archive_json(const hvt_pt2 *p, const char *entry, json_t **ret_json);
/* Checks that an entry exists and has at least so many bytes. */
hvt_status hvt__pt2_archive_has(const hvt_pt2 *p, const char *entry, size_t least, size_t *ret_bytes);
/* Reads an entry's `bytes` bytes. */
hvt_status hvt__pt2_archive_read(const hvt_pt2 *p, const char *entry, void *data, size_t bytes);

/* ---- weights.c ---- */

/* Finds the parameters that the logits do not depend on: unread ones, and second names of others. */
void hvt__pt2_find_unused(hvt_pt2 *p);
/* Checks the weights against the graph before anything is allocated for its sizes. Values that this reader
 * cannot read (pickled, or not f32) are no error: the caller may set them by hvt_model_set(). */
hvt_status hvt__pt2_check_weights(const hvt_pt2 *p);
/* Finds out whether the weights of a norm are not those of a new one. */
hvt_status hvt__pt2_find_trained(hvt_pt2 *p);
/* Reads the `count` values of a buffer or parameter, by its name in the state_dict. */
hvt_status hvt__pt2_read_values(const hvt_pt2 *p, const char *state, int64_t count, double *ret_values);

#endif /* HVT_PT2_IMPL_H */
