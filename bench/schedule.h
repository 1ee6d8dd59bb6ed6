/*
 * schedule.h - when a run of the cpu device's thread pool would end.
 */
#ifndef HVT_SCHEDULE_H
#define HVT_SCHEDULE_H

/* Seconds from the start of a run of `jobs` jobs to the end of the last one, if job i takes seconds[i] and
 * `threads` threads (at most HVT_MAX_THREADS) follow src/device/cpu/parallel.c: each takes the jobs of its
 * own queue, an equal and contiguous range, in order, then those of the queues after it, the next thread's
 * first. All start at the same time, claiming a job takes no time, and of threads that claim at the same time
 * the one with the lowest number is first.
 *
 * ret_thread: [jobs] the thread of each, or NULL. */
double schedule_run(const float *seconds, int jobs, int threads, int *ret_thread);

#endif /* HVT_SCHEDULE_H */
