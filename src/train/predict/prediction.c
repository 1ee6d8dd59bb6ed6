/*
 * One image's prediction, and its output: the five best classes as a line of CSV, and the header of the NumPy
 * array of logits.
 */
#include "predict_impl.h"
#include "base_impl.h"

#include <math.h>

static bool before(float a, float b)
{
    return a > b || (isnan(a) && !isnan(b));
}

static void find_best(const float *logits, int classes, int32_t ret_of[HVT__BEST])
{
    int n = 0;

    for (int c = 0; c < classes; c++) {
        int at = n;

        while (at > 0 && before(logits[c], logits[ret_of[at - 1]]))
            at--;
        if (at == HVT__BEST)
            continue;
        n += n < HVT__BEST;
        for (int i = n - 1; i > at; i--)
            ret_of[i] = ret_of[i - 1];
        ret_of[at] = c;
    }
    for (; n < HVT__BEST; n++)
        ret_of[n] = -1;
}

void hvt__predict(const float *logits, int classes, hvt__prediction *ret)
{
    double most = -(double)INFINITY, sum = 0;

    find_best(logits, classes, ret->of);
    for (int c = 0; c < classes; c++)
        most = (double)logits[c] > most ? (double)logits[c] : most;
    for (int c = 0; c < classes; c++)
        sum += exp((double)logits[c] - most);
    for (int i = 0; i < HVT__BEST; i++)
        ret->part[i] = ret->of[i] < 0 ? 0 : exp((double)logits[ret->of[i]] - most) / sum;
}

/* Writes a field as in RFC 4180. */
static hvt_status put_field(hvt__output *o, const char *text)
{
    HVT_TRY(hvt__output_put(o, ",", 1));
    if (!text[strcspn(text, ",\"\r\n")])
        return hvt__output_put(o, text, strlen(text));
    HVT_TRY(hvt__output_put(o, "\"", 1));
    for (size_t n; *text; text += n) {
        n = strcspn(text, "\"");
        n += text[n] == '"';
        HVT_TRY(hvt__output_put(o, text, n));
        if (text[n - 1] == '"')
            HVT_TRY(hvt__output_put(o, "\"", 1));
    }
    return hvt__output_put(o, "\"", 1);
}

static hvt_status put_number(hvt__output *o, int64_t number)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)number);
    return put_field(o, text);
}

static bool has_names(const hvt__table *t)
{
    return t->names || hvt_dataset_class_name(t->set, 0);
}

/* The name of a label; NULL if it has none. */
static const char *name_of_label(const hvt__table *t, int label)
{
    return hvt_dataset_class_name(t->set, 0) ? hvt_dataset_class_name(t->set, label)
           : label < 0                       ? NULL
                                             : json_string_value(json_array_get(t->names, (size_t)label));
}

static const char *name_of_class(const hvt__table *t, int class)
{
    return t->names && class >= 0 ? json_string_value(json_array_get(t->names, (size_t) class))
                                  : hvt_dataset_class_name(t->set, class);
}

/* Writes the field of a name, if there is such a column. */
static hvt_status put_name(hvt__output *o, const hvt__table *t, const char *name)
{
    return has_names(t) ? put_field(o, name ? name : "") : HVT_OK;
}

static int columns(int classes)
{
    return classes < HVT__BEST ? classes : HVT__BEST;
}

hvt_status hvt__csv_begin(hvt__output *o, const hvt__table *t)
{
    const char *names = has_names(t) ? ",label_name" : "";
    char text[400];
    int n = snprintf(text, sizeof text, "index,file,label%s", names);

    for (int i = 1; i <= columns(t->classes); i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, ",class%d", i);
        if (*names)
            n += snprintf(text + n, sizeof text - (size_t)n, ",name%d", i);
        n += snprintf(text + n, sizeof text - (size_t)n, ",probability%d", i);
    }
    text[n++] = '\n';
    return hvt__output_put(o, text, (size_t)n);
}

/* Writes a probability with nine digits, which distinguish any two f32. */
static hvt_status put_part(hvt__output *o, double part)
{
    char text[32] = "nan"; /* without a sign */

    if (!isnan(part))
        snprintf(text, sizeof text, "%.9g", part);
    return put_field(o, text);
}

hvt_status hvt__csv_put(hvt__output *o, const hvt__table *t, const hvt__prediction *p)
{
    char name[PATH_MAX], index[16];
    bool labelled = p->there && p->label >= 0;

    HVT_TRY(hvt_dataset_name(t->set, p->id, name, sizeof name));
    HVT_TRY(hvt__output_put(o, index, (size_t)snprintf(index, sizeof index, "%u", p->id)));
    HVT_TRY(put_field(o, name));
    HVT_TRY(labelled ? put_number(o, p->label) : put_field(o, ""));
    HVT_TRY(put_name(o, t, name_of_label(t, labelled ? p->label : -1)));
    for (int i = 0; i < columns(t->classes); i++) {
        HVT_TRY(p->there ? put_number(o, p->of[i]) : put_field(o, ""));
        HVT_TRY(put_name(o, t, name_of_class(t, p->there ? p->of[i] : -1)));
        HVT_TRY(p->there ? put_part(o, p->part[i]) : put_field(o, ""));
    }
    return hvt__output_put(o, "\n", 1);
}

/* Source: numpy/lib/format.py. The header's length, magic included, is a multiple of 64. */
hvt_status hvt__npy_begin(hvt__output *o, uint32_t count, int classes, int h, int w)
{
    enum { BEFORE = 10, UNIT = 64 };
    static const unsigned char magic[8] = "\x93NUMPY\x01";
    char text[3 * UNIT], pixels[40] = "";

    if (h * w > 1)
        snprintf(pixels, sizeof pixels, ", %d, %d", h, w);

    int n = snprintf(text, sizeof text, "{'descr': '%cf4', 'fortran_order': False, 'shape': (%u, %d%s), }",
                     __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>', count, classes, pixels);
    int length = (BEFORE + n + 1 + UNIT - 1) / UNIT * UNIT - BEFORE;
    const unsigned char size[2] = {(unsigned char)length, (unsigned char)(length >> 8)};

    memset(text + n, ' ', (size_t)(length - n));
    text[length - 1] = '\n';
    HVT_TRY(hvt__output_put(o, magic, sizeof magic));
    HVT_TRY(hvt__output_put(o, size, sizeof size));
    return hvt__output_put(o, text, (size_t)length);
}
