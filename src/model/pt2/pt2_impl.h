/*
 * pt2_impl.h - a PyTorch model in a .pt2 file, shared by the files that read it: a zip of a graph in JSON,
 * which passes make a tape of (graph.h), and the values of the parameters. Nothing in it is unpickled, and
 * nothing is written to disk.
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
    uint64_t bytes;  /* of the file */
    char *top;       /* what the names of all entries begin with: "net/", or "" in files of PyTorch 2.6 */
    json_t *weights; /* name in the state_dict -> where its values are; NULL: pickled, hence not read */
    json_t *fixed;   /* the same of buffers that are not persistent, and other constants; NULL: none */
    pt2_graph *graph;
    int unused;               /* parameters that do not lead to the logits */
    const char *first_unused; /* name in the state_dict; borrowed */
};

/* ---- archive.c ---- */

hvt_status hvt__pt2_archive_open(hvt_pt2 *p);
/* Parse an entry; *ret_json is NULL if there is none of this name below the top folder. */
hvt_status hvt__pt2_archive_json(const hvt_pt2 *p, const char *entry, json_t **ret_json);
/* Checks that there is an entry of at least so many bytes; how many it has. */
hvt_status hvt__pt2_archive_has(const hvt_pt2 *p, const char *entry, size_t least, size_t *ret_bytes);
/* Read it, all its bytes. */
hvt_status hvt__pt2_archive_read(const hvt_pt2 *p, const char *entry, void *data, size_t bytes);

/* ---- weights.c ---- */

/* Parameters that do not lead to the logits: second names of those that do, and those that nothing reads. */
void hvt__pt2_find_unused(hvt_pt2 *p);
/* Checks that the weights are those of the graph, so that nothing is allocated for a graph whose sizes are
 * damaged. Values that are not read, since they are pickled or no f32, may be given by hvt_model_set() in
 * place of hvt_pt2_load(). */
hvt_status hvt__pt2_check_weights(const hvt_pt2 *p);
/* The `count` values of a buffer, by its name in the state_dict. */
hvt_status hvt__pt2_read_buffer(const hvt_pt2 *p, const char *state, int64_t count, double *ret_values);

#endif /* HVT_PT2_IMPL_H */
