/*
 * Each thread's last error: one line, and a trace with one line per caller that passed it on. Both are in
 * fixed thread-local buffers, so that "out of memory" can be reported, too; longer text is truncated.
 */
#include "base_impl.h"
#include "hvt/tensor.h"
#include "hvt/version.h"

#include <stdarg.h>

static _Thread_local hvt__error error;

static void trace(const char *file, int line, const char *what)
{
    size_t used = strlen(error.trace);
    const char *base = strrchr(file, '/');

    snprintf(error.trace + used, sizeof error.trace - used, "  %s:%d %s\n", base ? base + 1 : file, line,
             what);
}

hvt_status hvt__fail(hvt_status code, const char *file, int line, const char *fmt, ...)
{
    char text[sizeof error.text]; /* an argument may point into the previous error's text */
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++) /* names from files may contain line feeds */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    memcpy(error.text, text, sizeof text);
    error.trace[0] = '\0';
    error.agreed = false;
    trace(file, line, hvt_status_name(code));
    return code;
}

hvt_status hvt__pass(hvt_status code, const char *file, int line, const char *call)
{
    trace(file, line, call);
    return code;
}

void hvt__error_agreed(bool agreed)
{
    error.agreed = agreed;
}

void hvt__error_take(hvt__error *ret_error)
{
    *ret_error = error;
}

void hvt__error_put(const hvt__error *taken)
{
    error = *taken;
}

const char *hvt_last_error(void)
{
    return error.text;
}

const char *hvt_last_trace(void)
{
    return error.trace;
}

bool hvt_last_error_is_agreed(void)
{
    return error.agreed;
}

const char *hvt_version(void)
{
    return HVT_VERSION;
}

static const struct {
    const char *name, *text;
} statuses[] = {
#define X(name, value, text) [-(value)] = {#name, text},
    HVT_STATUS_MAP(X)
#undef X
};

static bool is_status(hvt_status s)
{
    return s <= 0 && (size_t)-s < HVT_LEN(statuses);
}

const char *hvt_status_name(hvt_status s)
{
    return is_status(s) ? statuses[-s].name : "unknown status";
}

const char *hvt_status_text(hvt_status s)
{
    return is_status(s) ? statuses[-s].text : "unknown status";
}

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [HVT_F32] = {"f32", 4}, [HVT_F16] = {"f16", 2}, [HVT_BF16] = {"bf16", 2}, [HVT_I32] = {"i32", 4},
    [HVT_U8] = {"u8", 1},   [HVT_F64] = {"f64", 8}, [HVT_I8] = {"i8", 1},     [HVT_I64] = {"i64", 8}};

size_t hvt_dtype_size(hvt_dtype t)
{
    return (size_t)t < HVT_LEN(dtypes) ? dtypes[t].size : 0;
}

const char *hvt_dtype_name(hvt_dtype t)
{
    return (size_t)t < HVT_LEN(dtypes) ? dtypes[t].name : "?";
}

size_t hvt_tensor_count(const hvt_tensor *t)
{
    size_t count = t != NULL;

    for (int i = 0; t && i < t->ndim; i++)
        count *= (size_t)t->dim[i];
    return count;
}
