/*
 * Broadcasting a text that rank 0 has read. Other hosts do not need the file, and all ranks find the same
 * mistakes in it.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <stdlib.h>

hvt_status hvt__share_text(hvt_world *world, hvt_status read, const char *what, char **text, size_t *bytes)
{
    int64_t count = (int64_t)*bytes;
    bool has = hvt_world_rank(world) == 0;
    hvt_status s;

    HVT_TRY_OR(fail, hvt_world_agree(world, read));
    HVT_TRY_OR(fail, hvt_world_broadcast(world, &count, sizeof count, 0));
    if (!has)
        *text = calloc((size_t)count + 1, 1);
    HVT_TRY_OR(fail, hvt_world_agree(world, *text ? HVT_OK : HVT_FAIL(E_MEM, "no memory for %s", what)));
    if (count)
        HVT_TRY_OR(fail, hvt_world_broadcast(world, *text, (size_t)count, 0));
    *bytes = (size_t)count;
    return HVT_OK;
fail:
    free(*text);
    *text = NULL;
    return s;
}
