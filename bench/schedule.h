/*
 * schedule.h - when a run of the cpu device's thread pool would end.
 */
#ifndef HVT_SCHEDULE_H
#define HVT_SCHEDULE_H

/* Seconds from the begin of a run of `jobs` jobs to the end of the last one, if job i takes seconds[i] and
 * `threads` threads (at most HVT_MAX_THREADS) do what src/device/cpu/parallel.c says: each takes the jobs of
 * its own queue, an equal and contiguous range, in order, then those of the queues after it, the next
 * thread's first. All begin at the same time, claiming a job takes none, and of threads that claim at the
 * same time the one of the lowest number comes first.
 *
 * ret_thread: [jobs] which thread does each, or NULL. */
double schedule_run(const float *seconds, int jobs, int threads, int *ret_thread);

#endif /* HVT_SCHEDULE_H */
