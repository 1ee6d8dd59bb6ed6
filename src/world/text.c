/* Lines about ranks: consecutive ranks become a span, a host shared by several is named once. */
#include "text.h"
#include "base_impl.h"

#include <stdarg.h>

void hvt__text_add(hvt__text *b, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(b->at + b->used, sizeof b->at - b->used, fmt, ap);
    va_end(ap);
    b->used += n < 0 ? 0 : (size_t)n;
    if (b->used >= sizeof b->at)
        b->used = sizeof b->at - 1;
}

void hvt__text_add_ranks(hvt__text *b, const hvt_world *w, const bool *in)
{
    int count = 0, spans = 0, hosts = 0;
    const char *last = NULL;

    for (int r = 0; r < w->size; r++)
        count += in[r];
    hvt__text_add(b, count == 1 ? "rank " : "ranks ");
    for (int r = 0, end; r < w->size; r = end + 1) {
        end = r;
        if (!in[r])
            continue;
        while (end + 1 < w->size && in[end + 1])
            end++;
        if (spans++ == 8) {
            hvt__text_add(b, ", ...");
            break;
        }
        hvt__text_add(b, end > r ? "%s%d-%d" : "%s%d", spans > 1 ? ", " : "", r, end);
    }
    for (int r = 0; r < w->size; r++) {
        if (!in[r] || (last && !strcmp(last, w->host[r])))
            continue;
        if (hosts == 4) {
            hvt__text_add(b, ", ...");
            break;
        }
        last = w->host[r];
        hvt__text_add(b, "%s%s", hosts++ ? ", " : " (", last);
    }
    hvt__text_add(b, ")");
}
