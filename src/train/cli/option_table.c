/*
 * The table of options, made of HVT_OPTIONS, and what each of them is called: a flag is an option's field
 * with
 * '-' for '_'.
 */
#include "options.h"
#include "base_impl.h"

#include <string.h>

const hvt__option hvt__option_table[HVT_OPTION_COUNT] = {HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT__OPTION)};

/* Is text[0..len) the flag of this option? '_' and '-' are the same. */
static bool is_named(const hvt__option *o, const char *text, size_t len)
{
    if (strlen(o->field) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (o->field[i] != (text[i] == '-' ? '_' : text[i]))
            return false;
    return true;
}

const hvt__option *hvt__option_named(const char *name, size_t len)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (is_named(&hvt__option_table[i], name, len))
            return &hvt__option_table[i];
    return NULL;
}

const char *hvt__flag_of(const hvt__option *o, char ret_flag[HVT_OPTION_FLAG])
{
    size_t n = 2;

    memcpy(ret_flag, "--", 2);
    for (const char *p = o->field; *p && n < HVT_OPTION_FLAG - 1; p++)
        ret_flag[n++] = *p == '_' ? '-' : *p;
    ret_flag[n] = 0;
    return ret_flag;
}

const char *hvt__option_flag(int i)
{
    static char flags[HVT_OPTION_COUNT][HVT_OPTION_FLAG];

    return hvt__flag_of(&hvt__option_table[i], flags[i]);
}

int hvt__option_find(const char *name)
{
    const hvt__option *o = hvt__option_named(name, strlen(name));

    return o ? (int)(o - hvt__option_table) : -1;
}

bool hvt__option_is_text(int i)
{
    return hvt__option_table[i].kind == KIND_str || hvt__option_table[i].kind == KIND_pick;
}

bool hvt__option_is_switch(int i)
{
    return hvt__option_table[i].kind == KIND_bool;
}

hvt_scope hvt__option_scope(int i)
{
    return hvt__option_table[i].scope;
}
