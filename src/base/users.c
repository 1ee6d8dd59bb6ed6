/* Counts of an object's users, and the message when it is closed while in use. */
#include "users.h"
#include "base_impl.h"

void hvt__use(hvt__users *users, hvt__user kind, int by)
{
    __atomic_fetch_add(&users->count[kind], by, __ATOMIC_RELAXED);
}

bool hvt__in_use(const hvt__users *users, const char *what)
{
    static const char *const names[HVT__USER_KINDS] = {
        [HVT__USER_MODEL] = "model",
        [HVT__USER_LOADER] = "loader",
        [HVT__USER_COMM] = "comm",
        [HVT__USER_OPTIM] = "optimizer",
        [HVT__USER_DISTOPT] = "distributed optimizer",
        [HVT__USER_GRAPH] = "captured graph",
    };
    char text[160] = "";
    int kinds = 0;

    for (int i = 0; i < HVT__USER_KINDS; i++) {
        int n = __atomic_load_n(&users->count[i], __ATOMIC_RELAXED);
        size_t used = strlen(text);

        if (n > 0)
            snprintf(text + used, sizeof text - used, "%s%d %s%s", kinds++ ? ", " : "", n, names[i],
                     n > 1 ? "s" : "");
    }
    if (kinds)
        HVT_ERROR("%s is not closed: it is used by %s; close those first", what, text);
    return kinds > 0;
}
