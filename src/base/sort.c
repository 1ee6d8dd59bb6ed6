#include "base_impl.h"

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void hvt__sort(double *x, size_t n)
{
    qsort(x, n, sizeof *x, ascending);
}
