/* The list of --devices: cpu:0,cpu:1 (equal parts of the cores), cuda (all GPUs), cuda:0,cuda:2. */
#include "cli_impl.h"
#include "base_impl.h"

/* Reads cpu:N or cpu:N-M, or the same with cuda. */
static bool read_item(const char *item, size_t len, bool *ret_gpu, int64_t *ret_first, int64_t *ret_last)
{
    const char *at = item;

    *ret_gpu = hvt__scan_text(&at, "cuda:");
    if ((!*ret_gpu && !hvt__scan_text(&at, "cpu:")) || !hvt__scan_whole(&at, 9999, ret_first))
        return false;
    *ret_last = *ret_first;
    if (hvt__scan_text(&at, "-") && !hvt__scan_whole(&at, 9999, ret_last))
        return false;
    return at == item + len && *ret_last >= *ret_first;
}

hvt_status hvt__devices_parse(const char *list, hvt__devices *ret_devices)
{
    hvt__devices d = {0};
    const char *at = list, *item;
    size_t len;

    if (!strcmp(list, "cuda")) {
        *ret_devices = (hvt__devices){.on_gpu = true};
        return HVT_OK;
    }
    while ((item = hvt__next_item(&at, &len))) {
        int64_t first, last;
        bool gpu;

        HVT_CHECK(
            read_item(item, len, &gpu, &first, &last), E_ARG,
            "--devices: expected a list such as cpu:0,cpu:1 or cuda:0,cuda:1, or cuda for all GPUs, got "
            "'%.*s'",
            (int)len, item);
        HVT_CHECK(!d.n || gpu == d.on_gpu, E_ARG,
                  "--devices %s: expected devices of one kind, got both cpu and cuda", list);
        d.on_gpu = gpu;
        for (int64_t i = first; i <= last; i++) {
            for (int k = 0; k < d.n; k++)
                HVT_CHECK(d.index[k] != i, E_ARG, "--devices %s: %s:%d is named twice", list,
                          gpu ? "cuda" : "cpu", (int)i);
            HVT_CHECK(d.n < HVT__DEVICES_MOST, E_ARG, "--devices %s: expected at most %d devices", list,
                      HVT__DEVICES_MOST);
            d.index[d.n++] = (int)i;
        }
    }
    for (int k = 0; k < d.n && !d.on_gpu; k++)
        HVT_CHECK(d.index[k] == k, E_ARG,
                  "--devices %s: cpu:N is part N of the cores, which are divided equally: expected cpu:0 to "
                  "cpu:%d in this order",
                  list, d.n - 1);
    *ret_devices = d;
    return HVT_OK;
}
