/*
 * patterns.h - what several operations together are. A row of the table in patterns.c has the operation that
 * a pattern ends in, a function that finds it, which changes nothing, and the operation that takes its place.
 */
#ifndef HVT_PT2_PATTERNS_H
#define HVT_PT2_PATTERNS_H

#include "graph.h"

/* What was found, for the function that replaces it. */
typedef struct pt2_match {
    pt2_value *in[8]; /* of what takes its place */
    int nin;
    pt2_attributes is;
} pt2_match;

typedef struct pt2_pattern {
    const char *name;
    pt2_op root;
    bool (*match)(pt2_graph *g, pt2_node *n, pt2_match *ret);
    pt2_op op; /* the root becomes this operation of ret->in and ret->is, */
    void (*replace)(pt2_graph *g, pt2_node *n, const pt2_match *m); /* unless there is another way */
} pt2_pattern;

/* pattern_attention.c */
bool hvt__pt2_match_sdpa(pt2_graph *g, pt2_node *n, pt2_match *ret);
bool hvt__pt2_match_attention(pt2_graph *g, pt2_node *n, pt2_match *ret);
/* pattern_rotary.c */
bool hvt__pt2_match_rotary(pt2_graph *g, pt2_node *n, pt2_match *ret);

#endif /* HVT_PT2_PATTERNS_H */
