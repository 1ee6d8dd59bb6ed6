/* log_file.h - the log's file, for what writes records and for what ends a run from outside. */
#ifndef HVT_TRAIN_LOG_FILE_H
#define HVT_TRAIN_LOG_FILE_H

#include "train_impl.h"

#include <limits.h>

/* Add a line, its line feed included; false: nothing of it is there, and errno says why. */
bool hvt__log_line(int fd, const char *line, size_t bytes);

/* Its first record is written, its last one is. In between hvt__log_last() has something to do. */
void hvt__log_begun(int fd);
void hvt__log_ended(void);
void hvt__log_at(int64_t steps); /* so many updates are done: for the last record; costs a store */

/* The record `end` of a run that a signal or a watchdog ends, at once, if there is a log without one. why: a
 * JSON string or NULL. May be called in a signal's handler and by any thread. */
void hvt__log_last(const char *status, const char *signal_name, const char *why);

/* Text as a JSON string of plain ASCII, without allocating; cut off if need be. */
enum { HVT__LOG_WHY = 1400 };
void hvt__log_quote(const char *text, char ret_json[HVT__LOG_WHY]);

#endif /* HVT_TRAIN_LOG_FILE_H */
