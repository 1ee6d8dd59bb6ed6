/*
 * Lets ranks that wait for each other sleep. Tests preload it into the ranks that mpirun starts.
 *
 * Open MPI waits in a loop around sched_yield, which lets all other processes run first. Beside tests that
 * compute, each message then takes several time slices.
 */
#include <sched.h>
#include <time.h>

int sched_yield(void)
{
    nanosleep(&(struct timespec){0, 50 * 1000}, NULL);
    return 0;
}
