/* The cutoffs of host comms by name, to measure and to set them. */
#include "base_impl.h"
#include "comm_internal.h"

#include <stddef.h>

enum { MPI_SHORT = 16384, MPI_PACKET = 48 << 10 };

_Thread_local hvt__cutoffs hvt__cutoffs_next = {MPI_SHORT, MPI_PACKET, .mpi_window = 1 << 18,
                                                .mpi_message = 1 << 30};

static const struct {
    hvt_cutoff t; /* value: the default */
    size_t value; /* offset of the value in use */
} table[] = {
    {{.name = "mpi-short",
      .meaning = "bytes; sums up to this size are sent whole: fewer messages, more bytes",
      .value = MPI_SHORT,
      .most = 1 << 24,
      .from = 1 << 10,
      .to = 1 << 18},
     offsetof(hvt__cutoffs, mpi_short)},
    {{.name = "mpi-packet",
      .meaning = "maximum bytes of a message between hosts",
      .value = MPI_PACKET,
      .least = 1 << 10,
      .most = 1 << 28,
      .from = 1 << 20,
      .to = 1 << 24,
      .hosts = true},
     offsetof(hvt__cutoffs, mpi_packet)},
};

static size_t *value_of(size_t i)
{
    return (size_t *)(void *)((char *)&hvt__cutoffs_next + table[i].value);
}

bool hvt_comm_cutoff(int i, hvt_cutoff *ret_cutoff)
{
    if (!ret_cutoff || i < 0 || (size_t)i >= HVT_LEN(table))
        return false;
    *ret_cutoff = table[i].t;
    ret_cutoff->value = *value_of((size_t)i);
    return true;
}

/* Read NAME=N at *at, which moves past it. */
static hvt_status read_one(const char **at)
{
    size_t len = strcspn(*at, ","), i = 0;
    const char *p = *at, *digits;
    int64_t value = -1;

    while (i < HVT_LEN(table) && !(hvt__scan_text(&p, table[i].t.name) && hvt__scan_text(&p, "="))) {
        p = *at;
        i++;
    }
    HVT_CHECK(i < HVT_LEN(table), E_ARG, "expected NAME=N, where NAME is mpi-short or mpi-packet, got '%.*s'",
              (int)len, *at);
    digits = p;
    HVT_CHECK(hvt__scan_whole(&p, INT64_MAX, &value) && p == *at + len &&
                  value >= (int64_t)table[i].t.least && value <= (int64_t)table[i].t.most,
              E_ARG, "%s: expected a whole number from %zu to %zu, got '%.*s'", table[i].t.name,
              table[i].t.least, table[i].t.most, (int)(*at + len - digits), digits);
    *value_of(i) = (size_t)value;
    *at += len + ((*at)[len] == ',');
    return HVT_OK;
}

hvt_status hvt_comm_set_cutoffs(const char *list, bool check)
{
    const hvt__cutoffs before = hvt__cutoffs_next;
    hvt_status s = HVT_OK;

    HVT_CHECK(list, E_ARG, "no list of cutoffs; expected one like mpi-short=8192,mpi-packet=65536");
    for (size_t i = 0; i < HVT_LEN(table); i++)
        *value_of(i) = table[i].t.value;
    while (s == HVT_OK && *list)
        s = read_one(&list);
    if (s != HVT_OK || check)
        hvt__cutoffs_next = before;
    return s;
}
