/*
 * constants.h - what the files share that compute constants when a .pt2 file is read: constants.c, and
 * constants_math.c, whose functions its table names.
 *
 * Included by these two. Nothing else.
 */
#ifndef HVT_PT2_CONSTANTS_H
#define HVT_PT2_CONSTANTS_H

#include "import.h"

static inline int ndim_of(const known *a, const known *b)
{
    return a->ndim > b->ndim ? a->ndim : b->ndim;
}

static inline int out_type(const importer *p)
{
    const char *name = hvt__pt2_out_name(p, 0);

    return name ? hvt__pt2_type(p->file, name) : 0;
}

/* The type of an argument. */
static inline int type_of(importer *p, const char *name)
{
    const tensor *t = hvt__pt2_uncut(p, name);

    return t ? hvt__pt2_type(p->file, t->name) : 0;
}

/* ---- constants.c ---- */

/* An argument; NULL: it is not given, or was refused. */
const known *hvt__pt2_constant(importer *p, const char *name);
const known *hvt__pt2_constant_self(importer *p); /* which must be given */
/* Numbers of its own, as those of the output's type; in place they are put where those before were. */
void hvt__pt2_out_numbers(importer *p, known *k);
bool hvt__pt2_only_numbers(importer *p, const known *x); /* no elements of a parameter: refused */
/* f of each number of x, in memory of its own; f NULL: x itself. NULL after a refusal. */
known *hvt__pt2_mapped(importer *p, const known *x, double (*f)(double));

/* ---- constants_math.c ---- */

enum { SIN, COS, EXP, LOG, SQRT, RSQRT, NEG, FLOOR };
enum { ADD, SUB, MUL, DIV, FLOOR_DIV, TRUNC_DIV, REMAINDER, EQ, NE, GE, GT, LE, LT };

void hvt__pt2_math_function(importer *p); /* SIN .. */
void hvt__pt2_math_combine(importer *p);  /* ADD .. */
void hvt__pt2_math_power(importer *p);
void hvt__pt2_math_logical_not(importer *p);
void hvt__pt2_math_bitwise_not(importer *p);
void hvt__pt2_math_triangle(importer *p); /* 1: triu, -1: tril */
void hvt__pt2_math_masked_fill(importer *p);
void hvt__pt2_math_where(importer *p);

#endif /* HVT_PT2_CONSTANTS_H */
