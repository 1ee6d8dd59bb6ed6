/*
 * users.h - who borrows what.
 *
 * A thing that others borrow counts them by kind. Closing it while it is still in use is one line of log and
 * harms nothing: it stays open, and may be closed once they are done.
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

/* by: 1 when one begins to borrow, -1 when it gives back. From any thread. */
void hvt__use(hvt__users *users, hvt__user kind, int by);
/* To be asked by close: true, and said, if anyone still borrows `what` ("device cpu"). */
bool hvt__in_use(const hvt__users *users, const char *what);

#endif /* HVT_USERS_H */
