/*
 * Parser of short option values: crop:4, powersgd:2, 100-119, step:30,0.1. Each function reads one part at
 * *at and moves *at past it. If the part is missing, it returns false or NULL and leaves *at unchanged.
 */
#include "base_impl.h"

#include <ctype.h>
#include <math.h>

bool hvt__scan_text(const char **at, const char *text)
{
    size_t len = strlen(text);

    if (strncmp(*at, text, len))
        return false;
    *at += len;
    return true;
}

bool hvt__scan_item(const char **at, const char *word)
{
    const char *p = *at;

    if (!hvt__scan_text(&p, word) || (*p && !hvt__scan_text(&p, ",")))
        return false;
    *at = p;
    return true;
}

bool hvt__scan_whole(const char **at, int64_t most, int64_t *ret)
{
    const char *p = *at;
    int64_t n = 0;

    for (; isdigit((unsigned char)*p); p++) {
        if (n > (most - (*p - '0')) / 10)
            return false;
        n = n * 10 + (*p - '0');
    }
    if (p == *at)
        return false;
    *at = p;
    *ret = n;
    return true;
}

bool hvt__scan_number(const char **at, double *ret)
{
    const char *digits = *at + (**at == '-' || **at == '+');
    char *end;
    double v;

    if ((!isdigit((unsigned char)*digits) && *digits != '.') ||
        (digits[0] == '0' && tolower(digits[1]) == 'x'))
        return false; /* refuses spaces, nan, inf and hexadecimal */
    v = strtod(*at, &end);
    if (end == *at || !isfinite(v))
        return false;
    *at = end;
    *ret = v;
    return true;
}

const char *hvt__next_item(const char **at, size_t *ret_len)
{
    const char *item = *at;

    if (!item)
        return NULL;
    *ret_len = strcspn(item, ",");
    *at = item[*ret_len] ? item + *ret_len + 1 : NULL;
    return item;
}
