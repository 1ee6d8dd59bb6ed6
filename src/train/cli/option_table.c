/*
 * The table of options, made from HVT_OPTIONS, and the flags: a flag is an option's field with '-' for '_'.
 */
#include "options.h"
#include "base_impl.h"

#include <string.h>

const hvt__option hvt__option_table[HVT_OPTION_COUNT] = {HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT__OPTION)};

const hvt__option *hvt__option_named(const char *name, size_t len)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const char *field = hvt__option_table[i].field;
        size_t k = 0;
        while (k < len && field[k] && field[k] == (name[k] == '-' ? '_' : name[k]))
            k++;
        if (k == len && !field[k])
            return &hvt__option_table[i];
    }
    return NULL;
}

int hvt__option_find(const char *name)
{
    const hvt__option *o = hvt__option_named(name, strlen(name));

    return o ? (int)(o - hvt__option_table) : -1;
}

hvt__flag hvt__flag_of(const hvt__option *o)
{
    hvt__flag flag;

    snprintf(flag.text, sizeof flag.text, "--%s", o->field);
    for (char *p = flag.text; *p; p++)
        *p = *p == '_' ? '-' : *p;
    return flag;
}

hvt__flag hvt__option_flag(int i)
{
    return hvt__flag_of(&hvt__option_table[i]);
}

hvt_scope hvt__option_scope(int i)
{
    return hvt__option_table[i].scope;
}
