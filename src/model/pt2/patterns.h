/*
 * patterns.h - several operations that together are one. A row of the table in patterns.c names the last
 * operation of a pattern (its root), a function that matches it without changing the graph, and the operation
 * that replaces it.
 */
#ifndef HVT_PT2_PATTERNS_H
#define HVT_PT2_PATTERNS_H

#include "graph.h"

/* A match: the inputs and attributes of the replacement. */
typedef struct pt2_match {
    pt2_value *in[8];
    int nin;
    pt2_attributes is;
} pt2_match;

typedef struct pt2_pattern {
    const char *name;
    pt2_op root;
    bool (*match)(pt2_graph *g, pt2_node *n, pt2_match *ret);
    pt2_op op; /* the root becomes this operation on ret->in with ret->is */
    void (*replace)(pt2_graph *g, pt2_node *n, const pt2_match *m); /* used instead, if not NULL */
} pt2_pattern;

/* pattern_attention.c */
bool hvt__pt2_match_sdpa(pt2_graph *g, pt2_node *n, pt2_match *ret);
bool hvt__pt2_match_attention(pt2_graph *g, pt2_node *n, pt2_match *ret);
/* pattern_rotary.c */
bool hvt__pt2_match_rotary(pt2_graph *g, pt2_node *n, pt2_match *ret);

#endif /* HVT_PT2_PATTERNS_H */
