/**
 * @file base.h
 * Status codes, the last error, and where log lines go.
 *
 * Every function that can fail returns hvt_status. Results leave through
 * trailing `ret_` pointers, which are written only on success.
 */
#ifndef HVT_BASE_H
#define HVT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HVT_API               __attribute__((visibility("default")))
#define HVT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define HVT_API
#define HVT_PRINTF(fmt, args)
#endif

#ifdef __cplusplus /* around the declarations of every header */
#define HVT_C_BEGIN extern "C" {
#define HVT_C_END   }
#else
#define HVT_C_BEGIN
#define HVT_C_END
#endif

HVT_C_BEGIN

/* name, value, meaning */
#define HVT_STATUS_MAP(X)                                                                                    \
    X(OK, 0, "success")                                                                                      \
    X(E_ARG, -1, "an argument is out of its documented range")                                               \
    X(E_MEM, -2, "host or device memory exhausted")                                                          \
    X(E_IO, -3, "a file or directory could not be read or written")                                          \
    X(E_FORMAT, -4, "a file does not contain what its name promises")                                        \
    X(E_SHAPE, -5, "shapes do not fit together")                                                             \
    X(E_UNSUPPORTED, -6, "this build or backend lacks the feature")                                          \
    X(E_DEVICE, -7, "a device reported failure")                                                             \
    X(E_COMM, -8, "MPI or NCCL reported failure, or a rank left")                                            \
    X(E_DIVERGED, -9, "a loss, a gradient or a weight is not finite")                                        \
    X(E_MISMATCH, -10, "ranks disagree on what must be the same everywhere")

typedef enum hvt_status {
#define X(name, value, text) HVT_##name = value,
    HVT_STATUS_MAP(X)
#undef X
} hvt_status;

typedef enum hvt_log_level { HVT_LOG_ERROR, HVT_LOG_WARN, HVT_LOG_INFO, HVT_LOG_DEBUG } hvt_log_level;
/** Receives a log line, without a line feed, on any thread. ctx: that of hvt_log_to(). */
typedef void hvt_log_fn(void *ctx, hvt_log_level level, const char *line);

HVT_API const char *hvt_version(void);             ///< "0.1.0"
HVT_API const char *hvt_status_name(hvt_status s); ///< "E_ARG"
HVT_API const char *hvt_status_text(hvt_status s); ///< "an argument is out of its documented range"

/** The calling thread's last error: one line, what was expected and what came; "" if none. */
HVT_API const char *hvt_last_error(void);
/** The error's source line and those of the callers that passed it on, one per line; "" if none. */
HVT_API const char *hvt_last_trace(void);
/** True if every rank has the same error, so that only one of them should print it. */
HVT_API bool hvt_last_error_is_agreed(void);

/** Send log lines up to max_level to fn, including hvt_train()'s progress (HVT_LOG_INFO). fn NULL: print them
 * on stderr and stdout. */
HVT_API void hvt_log_to(hvt_log_fn *fn, void *ctx, hvt_log_level max_level);

HVT_C_END
#endif /* HVT_BASE_H */
