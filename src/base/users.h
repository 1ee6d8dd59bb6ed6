/*
 * users.h - counts of an object's users by kind.
 *
 * Closing an object that is in use only logs a line: it stays open and may be closed later.
 */
#ifndef HVT_USERS_H
#define HVT_USERS_H

#include <stdbool.h>

typedef enum hvt__user {
    HVT__USER_MODEL,
    HVT__USER_LOADER,
    HVT__USER_COMM,
    HVT__USER_OPTIM,
    HVT__USER_DISTOPT,
    HVT__USER_GRAPH,
    HVT__USER_KINDS
} hvt__user;

typedef struct hvt__users {
    int count[HVT__USER_KINDS];
} hvt__users;

/* by: 1 for a new user, -1 for one that is done. Thread-safe. */
void hvt__use(hvt__users *users, hvt__user kind, int by);
/* For close functions: true, and logged, if `what` ("device cpu") is still in use. */
bool hvt__in_use(const hvt__users *users, const char *what);

#endif /* HVT_USERS_H */
