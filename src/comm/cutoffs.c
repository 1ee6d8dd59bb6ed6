/*
 * The cutoffs of host comms by their names, for who measures them and who sets them.
 */
#include "base_impl.h"
#include "comm_internal.h"

#include <stddef.h>
#include <string.h>

#define FIELD(f) offsetof(hvt__cutoffs, f)
static const struct {
    hvt_cutoff t; /* value: not set */
    size_t field;
} table[] = {
    {{.name = "mpi-short",
      .meaning = "bytes; a sum of at most these travels whole: fewer messages, more bytes",
      .most = 1 << 24,
      .from = 1 << 10,
      .to = 1 << 18},
     FIELD(mpi_short)},
    {{.name = "mpi-packet",
      .meaning = "bytes of one message between hosts at most",
      .least = 1 << 10,
      .most = 1 << 28,
      .from = 1 << 20,
      .to = 1 << 24,
      .hosts = true},
     FIELD(mpi_packet)},
};

static size_t *field(hvt__cutoffs *tuning, size_t offset)
{
    return (size_t *)(void *)((char *)tuning + offset);
}

bool hvt_comm_cutoff(int i, hvt_cutoff *ret_cutoff)
{
    if (!ret_cutoff || i < 0 || (size_t)i >= HVT_LEN(table))
        return false;
    *ret_cutoff = table[i].t;
    ret_cutoff->value = *field(&hvt__cutoffs_next, table[i].field);
    return true;
}

/* NAME=N at *at, which moves behind it. */
static hvt_status read_one(const char **at, hvt__cutoffs *tuning)
{
    size_t len = strcspn(*at, ","), i = 0;
    const char *p = *at, *digits;
    int64_t value = -1;

    while (i < HVT_LEN(table) && !(hvt__scan_text(&p, table[i].t.name) && hvt__scan_text(&p, "="))) {
        p = *at;
        i++;
    }
    HVT_CHECK(i < HVT_LEN(table), E_ARG, "expected NAME=N with a name of mpi-short, mpi-packet; got '%.*s'",
              (int)len, *at);
    digits = p;
    HVT_CHECK(hvt__scan_whole(&p, INT64_MAX, &value) && p == *at + len &&
                  value >= (int64_t)table[i].t.least && value <= (int64_t)table[i].t.most,
              E_ARG, "%s: expected a whole number from %zu to %zu, got '%.*s'", table[i].t.name,
              table[i].t.least, table[i].t.most, (int)(*at + len - digits), digits);
    *field(tuning, table[i].field) = (size_t)value;
    *at += len + ((*at)[len] == ',');
    return HVT_OK;
}

hvt_status hvt_comm_set_cutoffs(const char *list, bool check)
{
    hvt__cutoffs tuning = hvt__cutoffs_next;

    HVT_CHECK(list, E_ARG, "no list of cutoffs; expected one like mpi-short=8192,mpi-packet=65536");
    while (*list)
        HVT_TRY(read_one(&list, &tuning));
    if (!check)
        hvt__cutoffs_next = tuning;
    return HVT_OK;
}
